"""`TextReader`, the base class of sentence encoders and entailment classifiers."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from extract.errors import InputError
from extract.models.embedded import EMBEDDED_ENCODER, embedded_encoder_folder
from extract.models.loading import resolve_device, tokenizer_hash, weight_fingerprint
from extract.running.memory import retry_with_smaller_batch
from extract.running.progress import Count, quiet_loggers
from extract.signals.reader import by_length
from extract.text import one_line

_BATCH_TOKENS = 4096


class TextReader:
    """Text model and its tokenizer, loaded from safetensors in float32. Remote code is never run.

    Attributes:
        option: Command-line option that selects the model, used in messages.
        noun: Expected kind of model, used in messages.
        auto_class: Name of the transformers class that loads the model.
        batch_tokens: Maximum number of tokens per batch, halved when memory runs out.
        settings: Model name (without path), hashes of weights and tokenizer, and maximum number of tokens per text.

    Raises:
        InputError: If the model can't be loaded or its weights are incomplete.
    """

    option: ClassVar[str]
    noun: ClassVar[str]
    auto_class: ClassVar[str]

    def __init__(self, name: str, device: str = "auto") -> None:
        import transformers

        self._name = name
        torch_device = resolve_device(device)
        source = str(embedded_encoder_folder()) if name == EMBEDDED_ENCODER else name
        try:
            with quiet_loggers("transformers"):
                self._tokenizer = transformers.AutoTokenizer.from_pretrained(source)
                model, report = getattr(transformers, self.auto_class).from_pretrained(
                    source, dtype=torch.float32, use_safetensors=True, output_loading_info=True
                )
        except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
            raise self.refusal(one_line(error, 300).rstrip(".")) from error
        # the pooler is not used, and masked language models have none
        missing = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
        if missing:
            raise self.refusal(f"its weights lack {missing[0]!r}")
        self.model = model.to(torch_device).eval()
        positions = getattr(model.config, "max_position_embeddings", None) or math.inf
        self._limit = min(self._tokenizer.model_max_length, positions)
        self.batch_tokens = _BATCH_TOKENS
        folder = Path(name)
        self.settings = {
            "model": folder.resolve().name if folder.is_dir() else name,
            "weights": weight_fingerprint(model),
            "tokenizer": tokenizer_hash(self._tokenizer),
            "most_tokens": None if math.isinf(self._limit) else self._limit,
        }

    def refusal(self, reason: str) -> InputError:
        """Return the error for a model that can't be used."""
        return InputError(
            f"Expected `{self.option}` to be the Hub id or folder of {self.noun} in safetensors format, but "
            f"{self._name!r} can't be used: {reason}. Pass a different --{self.option}."
        )

    def encode(self, texts: Sequence[str] | Sequence[tuple[str, str]]) -> list[dict[str, list[int]]]:
        """Tokenize each text, or pair of texts, into a dict of model inputs. Long inputs are truncated."""
        cut: dict[str, Any] = {} if math.isinf(self._limit) else {"truncation": True, "max_length": self._limit}
        columns = zip(*texts, strict=True) if texts and isinstance(texts[0], tuple) else [texts]
        encoded = self._tokenizer(*map(list, columns), **cut)
        return [{name: rows[i] for name, rows in encoded.items()} for i in range(len(texts))]

    def read(
        self,
        encoded: Sequence[dict[str, list[int]]],
        result: Callable[[Any, Tensor], Tensor],
        progress: Callable[[int, int], None] = lambda items, tokens: None,
    ) -> Tensor:
        """Run the model on encoded texts, batched by length. Return results [text, …] on the CPU.

        `result` maps the model's output and a mask [row, token] to a tensor [row, …].
        """
        lengths = [len(inputs["input_ids"]) for inputs in encoded]
        pad = {"input_ids": self._tokenizer.pad_token_id or 0}

        @torch.inference_mode()
        def read_with(batch_tokens: int, counted: Count) -> Tensor:
            order: list[int] = []
            parts: list[Tensor] = []
            for batch in by_length(lengths, batch_tokens):
                inputs = {}
                for name in encoded[0]:
                    rows = [torch.tensor(encoded[i][name]) for i in batch]
                    inputs[name] = pad_sequence(rows, True, pad.get(name, 0)).to(self.model.device)
                parts.append(result(self.model(**inputs), inputs["attention_mask"]).cpu())
                order += batch
                counted(len(batch), sum(lengths[i] for i in batch))
            return torch.cat(parts)[torch.tensor(order).argsort()]

        values, self.batch_tokens = retry_with_smaller_batch(read_with, self.batch_tokens, "tokens", progress)
        return values
