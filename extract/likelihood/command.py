"""The command ``python -m extract likelihood``."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pyarrow import parquet

from extract.asking.base import AskContext, fill_asked
from extract.asking.registry import ASKED
from extract.errors import InputError
from extract.likelihood.next_tokens import next_tokens
from extract.likelihood.options import Continuations, continuations_of
from extract.likelihood.perplexity import measure_texts, read_texts
from extract.likelihood.report import describe_options, describe_texts, describe_tokens
from extract.models.embedded import EMBEDDED_MODEL
from extract.models.loading import load_model
from extract.models.store_model import load_store_model
from extract.running.worker import Lazy, Worker
from extract.sampling.temperature_grid import each_store
from extract.store.fill import extended
from extract.store.store import Store


def likelihood(
    store: str | None = None,
    prompt: str | None = None,
    texts: str | None = None,
    continuations: Continuations | None = None,
    top_k: int | None = None,
    window: int | None = None,
    stride: int | None = None,
    out: str | None = None,
    model: str | None = None,
    device: str = "auto",
    device_map: str | None = None,
) -> None:
    """Compute the log-probabilities of answer options, of the next token after a prompt, or of whole texts.

    Pass exactly one of `store`, `prompt` and `texts`. With `store`, the results are added to the store.

    Args:
        store: Folder of a store, or of a temperature grid. Options are scored as continuations of the prompts.
        prompt: Plain text. The most likely next tokens are listed.
        texts: File of texts whose perplexity is computed: a .txt file (one text), or a .jsonl, .json, .csv or .parquet
            file with a `text` column.
        continuations: With --store, what to score: letters (each option's letter, the default) or texts (each option's
            text).
        top_k: With --prompt, number of next tokens to list. By default, 10.
        window: With --texts, number of tokens per forward pass. By default, the context length of the model.
        stride: With --texts, number of tokens by which the window moves in a long text. By default, half of the window.
        out: With --texts, Parquet file for each text's log-likelihood and its length in tokens, bytes and words.
        model: Hub id or folder of the model. By default, the store's model. Without a store, the default is
            smollm2-135m-instruct, which `make install` installs.
        device: auto, cpu, cuda or cuda:N.
        device_map: How to distribute a large model over several devices, as in transformers (auto, balanced, …).

    Raises:
        InputError: If the input can't be read or scored, or an argument does not apply to it.
    """
    given = [name for name, value in (("store", store), ("prompt", prompt), ("texts", texts)) if value is not None]
    if len(given) != 1:
        raise InputError(
            "Expected exactly one of `store`, `prompt` and `texts`, but got "
            f"{' and '.join(given) or 'none of them'}. Pass --store STORE, for example."
        )
    of_mode: dict[str, dict[str, object]] = {
        "store": {"continuations": continuations},
        "prompt": {"top_k": top_k},
        "texts": {"window": window, "stride": stride, "out": out},
    }
    for mode, values in of_mode.items():
        if mode != given[0] and (unused := [name for name, value in values.items() if value is not None]):
            raise InputError(
                f"Expected `{unused[0]}` to be passed only with --{mode}, but it was passed with --{given[0]}. "
                f"Remove `{unused[0]}`."
            )
    if store is not None:
        options = {
            "continuations": continuations or "letters",
            "model": model,
            "device": device,
            "device_map": device_map,
        }
        each_store(score_store)(store=store, **options)
        return
    documents = [] if texts is None else read_texts(texts)
    if out is not None:
        with _writing(out):  # before anything is computed
            Path(out).parent.mkdir(parents=True, exist_ok=True)
            Path(out).open("ab").close()
    loaded, tokenizer = load_model(model or EMBEDDED_MODEL, device=device, device_map=device_map)
    if prompt is not None:
        print("\n".join(describe_tokens(next_tokens(loaded, tokenizer, prompt, 10 if top_k is None else top_k))))
        return
    table = measure_texts(loaded, tokenizer, documents, window, stride)
    print("\n".join(describe_texts(table)))
    if out is not None:
        with _writing(out):
            parquet.write_table(table, out)


@contextmanager
def _writing(out: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"Expected `out` to be a writable file, but got {out!r}: {error}. Pass a different --out."
        ) from None


def score_store(
    store: str,
    continuations: Continuations = "letters",
    model: str | None = None,
    device: str = "auto",
    device_map: str | None = None,
    worker: Worker | None = None,
) -> Store:
    """Score the options of a store's questions, and print how often the most likely option is right."""
    with extended(store, worker) as (opened, worker):
        for question in opened.questions:  # raises an InputError before the model is loaded
            continuations_of(question, continuations)
        load = Lazy(partial(load_store_model, opened, model, device, device_map))
        baseline = ASKED["likelihood"].load()("likelihood", opened, AskContext(load, continuations=continuations))
        fill_asked(opened, [baseline], worker)
    if not opened.asked.missing("likelihood"):  # other workers may still be running
        print("\n".join(describe_options(opened)))
    return opened
