"""Perplexity of texts under a causal language model. Long texts are read in overlapping windows."""

import csv
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import stdtrit

from extract.errors import InputError
from extract.likelihood.scoring import BATCH_TOKENS, Item, first_token, score
from extract.questions.loaders import LOADERS
from extract.running.memory import retry_with_smaller_batch
from extract.running.progress import Progress
from extract.schemas import TEXT
from extract.text import one_line

#: Context length in tokens if the model's config specifies none.
_DEFAULT_CONTEXT = 2048


class Estimate(NamedTuple):
    """Perplexity and its 95 % interval, which is None for a single text."""

    value: float
    interval: tuple[float, float] | None


def read_texts(path: str) -> list[str]:
    """Read the texts of a .txt file (one text) or of a .jsonl, .json, .csv or .parquet file (column ``text``)."""
    file, suffixes = Path(path), (".txt", *LOADERS)
    suffix = file.suffix.lower()
    if not file.is_file() or suffix not in suffixes:
        problem = "has a different suffix" if file.is_file() else "does not exist"
        raise InputError(f"Expected `texts` to be a file ({', '.join(suffixes)}), but {path!r} {problem}.")
    try:
        if suffix == ".txt":
            texts: list[Any] = [file.read_text(encoding="utf-8")]
        else:
            texts = [row.get("text") for row in LOADERS[suffix](file, ())]
    except InputError:
        raise
    except (OSError, ValueError, RecursionError, csv.Error, pa.ArrowException) as error:
        raise InputError(
            f"Expected {path!r} to be a valid {suffix} file in UTF-8, but reading it failed: "
            f"{one_line(error, 200).rstrip('.')}."
        ) from None
    empty = [number for number, text in enumerate(texts, 1) if not (TEXT.holds(text) and text.strip())]
    if empty or not texts:
        problem = f"row {empty[0]} has no valid text" if empty else "the file has no rows"
        raise InputError(
            f"Expected every row of {path!r} to contain text, but {problem}. The column must be named `text`."
        )
    return texts


def windows(n_tokens: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """For each window, yield its start, its end and the index of its first scored token.

    Every token except the first is scored once. Its context is at least ``window - stride`` tokens, or all earlier
    tokens if there are fewer.

    >>> list(windows(10, window=6, stride=3))
    [(0, 6, 1), (3, 9, 6), (6, 10, 9)]
    """
    scored = 1
    for begin in range(0, n_tokens, stride):
        end = min(begin + window, n_tokens)
        yield begin, end, scored
        scored = end
        if end == n_tokens:
            return


def context_of(model: Any) -> int:
    """Return the context length of a model in tokens."""
    return int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or _DEFAULT_CONTEXT)


def measure_texts(
    model: Any,
    tokenizer: Any,
    texts: Sequence[str],
    window: int | None = None,
    stride: int | None = None,
) -> pa.Table:
    """Compute the negative log-likelihood of each text.

    The first token of a text is predicted from a BOS or EOS token (see `first_token`).

    Args:
        model: Causal language model in evaluation mode.
        tokenizer: The model's tokenizer.
        texts: Texts with at least one token.
        window: Number of tokens per forward pass. By default, the context length of the model.
        stride: Number of tokens by which the window moves. By default, half of the window.

    Returns:
        Table with one row per text: `nll` (float64, nats), `n_tokens`, `n_bytes` and `n_words` (int64).

    Raises:
        InputError: If `window` is not between 2 and the context length, or `stride` is not between 1 and `window` − 1.
    """
    context = context_of(model)
    window = context if window is None else window
    stride = window // 2 if stride is None else stride
    if not 2 <= window <= context:
        raise InputError(
            f"Expected `window` to be between 2 and {context}, the model's context length, but got {window}."
        )
    if not 1 <= stride < window:
        raise InputError(
            f"Expected `stride` to be between 1 and {window - 1}, because the window has {window} tokens, but got "
            f"{stride}. Pass {window // 2}, for example."
        )
    start = first_token(tokenizer)
    encoded = [start + tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    spans = [(i, span) for i, ids in enumerate(encoded) for span in windows(len(ids), window, stride)]
    items = [Item(encoded[i][begin:first], [encoded[i][first:end]]) for i, (begin, end, first) in spans]
    nll = np.zeros(len(texts))
    with Progress("likelihood", len(items), "windows") as progress:
        scores, _ = retry_with_smaller_batch(partial(score, model, items), BATCH_TOKENS, "tokens", progress)
    np.subtract.at(nll, [i for i, _ in spans], np.ravel(scores))
    return pa.table(
        {
            "nll": nll,
            "n_tokens": [len(ids) - 1 for ids in encoded],
            "n_bytes": [len(text.encode()) for text in texts],
            "n_words": [len(text.split()) for text in texts],
        }
    )


def perplexity(nll: NDArray[np.float64], lengths: NDArray[np.int64]) -> Estimate:
    """Compute exp(Σ nll / Σ length) over texts, with a 95 % interval. Values too large for float64 become infinite.

    The interval is exp(r ± t s / Σ length), by the delta method for a ratio. r is the ratio of the sums, and
    s² = n/(n − 1) Σ (nll − r length)². t is the 97.5 % quantile of Student's t distribution with n − 1 degrees of
    freedom.

    `nll` [text] is in nats. `lengths` [text] are in tokens, bytes or words.
    """
    n, ratio = len(nll), nll.sum() / lengths.sum()
    if n == 1:
        return Estimate(_exp(ratio), None)
    error = np.sqrt(n / (n - 1) * ((nll - ratio * lengths) ** 2).sum()) / lengths.sum()
    half = stdtrit(n - 1, 0.975) * error
    return Estimate(_exp(ratio), (_exp(ratio - half), _exp(ratio + half)))


def _exp(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.exp(value))
