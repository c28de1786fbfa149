"""A saved probe: a folder with config.json, model.safetensors and a model card. No pickle, no code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save
from torch import Tensor

from extract.errors import InputError
from extract.signals.features import TokenFeatures
from extract.store.files import replace_file
from extract.store.ragged import Ragged
from probes.saved.calibrators import Calibrator
from probes.saved.confidence import ConfidentModel
from probes.saved.head import Head
from probes.saved.loading import FORMAT_VERSION, find_probe, probe_tensors, read_config, read_weights

if TYPE_CHECKING:
    from probes.saved.confidence import Prompts


class ConfidenceProbe:
    """A trained probe with all that is needed to use it.

    Args:
        head: From features, which are hidden states, numbers of token signals or both, to scores.
        calibrator: From scores to confidences.
        config: What config.json holds: model identity, what is read, prompt, target, training set, figures.
    """

    def __init__(self, head: Head, calibrator: Calibrator, config: dict[str, Any]) -> None:
        self.head, self.calibrator = head.eval(), calibrator.eval()
        self.config = config
        #: Layer whose hidden state is read, 0 for the embeddings; None for token signals alone.
        self.layer: int | None = config["layer"]
        #: Named token position at which the hidden state is read; None for token signals alone.
        self.position: str | None = config["position"]
        #: Whether the probe reads an answer with its prompt, and not the prompt alone.
        self.reads_answers: bool = config["target"] == "response"
        #: Numbers of token signals that are read, behind the hidden state where there is a layer; None for none.
        self.pooled = TokenFeatures.from_json(config["pooled"]) if config.get("pooled") else None

    @property
    def signals(self) -> list[str]:
        """Names of the signals that are read."""
        hidden = [] if self.layer is None else [str(self.config["signal"])]
        return hidden + ([] if self.pooled is None else self.pooled.signals)

    def features(self, read: Mapping[str, Mapping[str, Tensor | Ragged]]) -> Tensor:
        """What the head takes, [row, d_model] on the CPU, from what a model was read for: tensors by signal and key.

        Raises:
            InputError: The model has no such layer.
        """

        def tensor(signal: str, key: str) -> Tensor | Ragged:
            if key not in read[signal]:
                raise InputError(
                    f"Expected {self.config['model']['id']!r} to have {key!r} of the signal {signal!r}, which the "
                    f"probe reads, but it has {', '.join(sorted(read[signal]))}. Restore the probe's config.json."
                )
            return read[signal][key]

        parts = []
        if self.layer is not None:
            hidden = tensor(self.config["signal"], f"{self.layer}/{self.position}")
            assert isinstance(hidden, Tensor)
            parts.append(hidden.float())
        if self.pooled is not None:
            parts.append(self.pooled.vector(tensor))
        return torch.cat(parts, 1)

    def confidence(self, features: Tensor) -> Tensor:
        """Confidences [...] float32 of features [..., d_model], by default hidden states of `layer` at `position`."""
        if features.shape[-1] != self.config["d_model"]:
            raise InputError(
                f"Expected {'hidden states' if self.pooled is None else 'features'} of width {self.config['d_model']}, "
                f"but got {features.shape[-1]}. Read them from {self.config['model']['id']!r}."
            )
        score = self.head.to(features.device)(features)
        where = torch.device("cpu") if features.device.type == "mps" else features.device  # which has no float64
        return self.calibrator.to(where)(score.to(where)).to(features.device)

    def score(
        self,
        hf_model: Any,
        tokenizer: Any,
        prompts: Prompts,
        answers: str | Sequence[str] | None = None,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """Confidence of each question before any answer, by one pass over the prompts; or of given answers.

        Args:
            hf_model: The model that the probe was trained on.
            tokenizer: Its tokenizer.
            prompts: Texts, chats or token ids; one or several.
            answers: The answer to each question, for a probe of the target `response`, which reads both.
            attention_mask: [question, token], 0 at padding, for a tensor of padded ids.

        Returns:
            [question] float32 in [0, 1], on the CPU; NaN for an answer without words.

        Raises:
            InputError: Another model, an empty prompt, or answers where the probe reads none or the other way round.
        """
        return self.attach(hf_model, tokenizer).score(prompts, answers, attention_mask)

    def attach(self, hf_model: Any, tokenizer: Any) -> ConfidentModel:
        """A wrapper whose `generate` gives every answer with a confidence.

        Raises:
            InputError: Another model; the message says which one the probe wants.
        """
        return ConfidentModel(self, hf_model, tokenizer)

    def save(self, folder: str | Path, card: str) -> Path:
        """Write the probe with the text of its model card; returns the folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = probe_tensors(self.head, self.calibrator)
        weights = save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, metadata={"format": "pt"})
        stated = {"format_version": FORMAT_VERSION, "weights": hashlib.sha256(weights).hexdigest()}
        config = json.dumps({**self.config, **stated}, indent=1, sort_keys=True) + "\n"
        replace_file(folder / "model.safetensors", weights)
        replace_file(folder / "config.json", config.encode())
        (folder / "README.md").write_text(card, encoding="utf-8")
        return folder


def load_probe(probe: str | Path, revision: str | None = None) -> ConfidenceProbe:
    """Load a saved probe, of which any file may hold anything.

    Args:
        probe: Folder of the probe, or a Hub id.
        revision: Commit, branch or tag of a Hub repository.

    Raises:
        InputError: No probe there, or one that is damaged, of an unknown kind, or of a newer format.
    """
    config_file, weights_file = find_probe(probe, revision)
    config = read_config(config_file)
    return ConfidenceProbe(*read_weights(weights_file, config), config)
