"""Saved probes: folders with config.json, model.safetensors and a model card."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from huggingface_hub.hub_mixin import ModelHubMixin
from safetensors.torch import save
from torch import Tensor

from extract.errors import InputError
from extract.signals.features import TokenFeatures
from extract.store.files import replace_file
from extract.store.ragged import Ragged
from probes.saved.calibrators import Calibrator
from probes.saved.confidence import ConfidentModel
from probes.saved.head import Head
from probes.saved.hub import CARD, failure, find_probe, read_card
from probes.saved.loading import FORMAT_VERSION, probe_tensors, read_config, read_weights
from probes.saved.novelty import Confidences, Novelty, flat
from probes.saved.prefixes import PrefixCalibrator

if TYPE_CHECKING:
    from probes.saved.confidence import Prompts

_CARD = """\
---
library_name: confidence-probes
tags: [confidence, calibration, probe]
---

# Confidence probe
"""


class ConfidenceProbe(ModelHubMixin):
    """A trained probe, which consists of a head, a calibrator and a configuration. Load it with `load_probe`.

    Args:
        head: Maps features (hidden states, pooled token signals, or both) to scores.
        calibrator: Maps scores to confidences.
        config: Content of config.json.
        prefixes: Calibrators for prefixes of answers, or None.
        novelty: Computes the novelty of rows, and applies the back-off to novel rows (see `Novelty`). None in
            probes saved by earlier versions of this package.
        card: Model card, with its metadata.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Skip `ModelHubMixin.__new__`, which would keep a second copy of the config."""
        return object.__new__(cls)

    def __init__(
        self,
        head: Head,
        calibrator: Calibrator,
        config: dict[str, Any],
        prefixes: PrefixCalibrator | None = None,
        novelty: Novelty | None = None,
        card: str | None = None,
    ) -> None:
        self.head, self.calibrator, self.prefixes, self.novelty = head.eval(), calibrator.eval(), prefixes, novelty
        self.config, self.card = config, card
        #: Layers of the hidden states, 0 for the embeddings; empty if the probe reads only token signals.
        self.layers: list[int] = config["layers"]
        #: Named token position of the hidden states; None if the probe reads only token signals.
        self.position: str | None = config["position"]
        #: Whether the probe reads the prompt and an answer, not only the prompt.
        self.reads_answers: bool = config["target"] == "response"
        #: Whether the probe reads the hidden states of all tokens of an answer.
        self.reads_tokens: bool = config["signal"] == "hidden_tokens"
        #: Pooled token signals, which are appended to each hidden state; None if the probe reads no token signals.
        self.pooled = TokenFeatures.from_json(config["pooled"]) if config.get("pooled") else None

    @property
    def signals(self) -> list[str]:
        """Names of the signals that the probe reads."""
        hidden = [str(self.config["signal"])] if self.layers else []
        return hidden + ([] if self.pooled is None else self.pooled.signals)

    def features(self, read: Mapping[str, Mapping[str, Tensor | Ragged]]) -> Tensor | Ragged:
        """Assemble the head's features [row, d_model] on the CPU.

        `read` maps each signal to a dict from keys to tensors. If the probe reads `hidden_tokens`, the features are
        ragged, [row, token, d_model].

        Raises:
            InputError: If `read` lacks a layer or a token signal that the probe uses.
        """

        def tensor(signal: str, key: str) -> Tensor | Ragged:
            if key not in read[signal]:
                raise InputError(
                    f"Expected the {signal!r} signal of {self.config['model']['id']!r} to contain {key!r}, but it "
                    f"contains only {', '.join(sorted(read[signal]))}. Restore the probe's config.json."
                )
            return read[signal][key]

        pooled = [] if self.pooled is None else [self.pooled.vector(tensor)]
        parts = [] if self.layers else pooled
        for layer in self.layers:
            hidden = tensor(self.config["signal"], f"{layer}/{self.position}")
            if isinstance(hidden, Ragged):
                return hidden
            parts += [hidden.float(), *pooled]
        return torch.cat(parts, 1)

    def confidences(self, features: Tensor | Ragged, backoff: bool = True) -> Confidences:
        """Compute the confidence and novelty of each row from features [row, d_model], as returned by `features`.

        For ragged features [row, token, d_model], the results are NaN for rows without tokens. If `backoff` is true,
        the confidences of novel rows are shifted. See `Confidences`.
        """
        values = features.values if isinstance(features, Ragged) else features
        if values.shape[-1] != self.config["d_model"]:
            raise InputError(
                f"Expected {'hidden states' if self.pooled is None else 'features'} of width {self.config['d_model']}, "
                f"but got {values.shape[-1]}. Compute them with the model {self.config['model']['id']!r}."
            )
        return self.with_novelty(flat(features), self.calibrated(self.head.to(values.device)(features)), backoff)

    def calibrated(self, score: Tensor, fraction: float = 1.0) -> Tensor:
        """Compute confidences [row] from the head's scores [row], without the back-off for novel rows.

        `fraction` is the fraction of the answer that the scores cover. Only prefix calibrators use it.
        """
        where = torch.device("cpu") if score.device.type == "mps" else score.device  # MPS has no float64
        calibrator, score_there = self.calibrator.to(where), score.to(where)
        if self.prefixes is None or fraction == 1:
            return calibrator(score_there).to(score.device)
        return self.prefixes.to(where)(score_there, fraction, calibrator).to(score.device)

    def with_novelty(self, features: Tensor, confidence: Tensor, backoff: bool = True) -> Confidences:
        """Compute the novelty of each row from features [row, d_model].

        If `backoff` is true, also shift the confidences of novel rows.
        """
        if self.novelty is not None:
            return self.novelty.to(features.device)(features, confidence, backoff)
        return Confidences(confidence, torch.full_like(confidence, torch.nan), torch.zeros_like(confidence).bool())

    def score(
        self,
        hf_model: Any,
        tokenizer: Any,
        prompts: Prompts,
        answers: str | Sequence[str] | None = None,
        attention_mask: Tensor | None = None,
        backoff: bool = True,
    ) -> Confidences:
        """Compute confidences for questions, or for given answers, with one forward pass each. Nothing is generated.

        Args:
            hf_model: The model that the probe was trained on.
            tokenizer: Tokenizer of the model.
            prompts: One or more strings, chats or lists of token ids.
            answers: One answer per question. Required if the probe's target is `response`, and not accepted otherwise.
            attention_mask: Mask that is 0 at padding, [question, token]. Required if `prompts` is a padded tensor.
            backoff: Whether to shift the confidences of novel questions. See `Confidences`.

        Returns:
            The confidence and novelty of each question, on the CPU; NaN for an empty answer.

        Raises:
            InputError: If `hf_model` is the wrong model, a prompt is empty, or `answers` is missing or not accepted.
        """
        return self.attach(hf_model, tokenizer).score(prompts, answers, attention_mask, backoff)

    def attach(self, hf_model: Any, tokenizer: Any) -> ConfidentModel:
        """Attach the probe to its model.

        Raises:
            InputError: If the model differs from the probe's model.
        """
        return ConfidentModel(self, hf_model, tokenizer)

    def save(self, folder: str | Path, card: str | None = None) -> Path:
        """Write the probe and a model card to a folder, and return the folder.

        If `card` is None, the attribute of the same name is used.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = probe_tensors(self.head, self.calibrator, self.prefixes, self.novelty)
        weights = save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, metadata={"format": "pt"})
        stated = {"format_version": FORMAT_VERSION, "weights": hashlib.sha256(weights).hexdigest()}
        config = json.dumps({**self.config, **stated}, indent=1, sort_keys=True) + "\n"
        replace_file(folder / "model.safetensors", weights)
        replace_file(folder / "config.json", config.encode())
        replace_file(folder / CARD, (card or self.card or _CARD).encode())
        return folder

    def _save_pretrained(self, save_directory: Path) -> None:
        """Write all files.

        `ModelHubMixin` itself writes only the config and the model card, and only if they are missing.
        """
        self.save(save_directory)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the probe and its model card to the Hub. Return the URL of the commit.

        The access token comes from `hf auth login` or the HF_TOKEN environment variable. It cannot be passed as an
        option.

        Args:
            repo_id: Hub id of the repository, such as "ORG/NAME".
            **options: `private`, `commit_message`, `branch` or `create_pr`, as in `ModelHubMixin.push_to_hub`.

        Raises:
            InputError: If the upload fails. This may leave a new repository behind, but never an incomplete probe.
        """
        if options.get("token") is not None:
            raise InputError(
                "Expected no `token`, but got one. Run `hf auth login`, or set the HF_TOKEN environment variable."
            )
        try:
            return super().push_to_hub(repo_id, **options)
        except (InputError, TypeError):  # an error of `save`, or an unknown option
            raise
        except Exception as error:  # huggingface_hub, its HTTP library and hf_xet raise many exception types
            raise InputError(
                f"Expected the Hub to accept the probe {repo_id!r}, but the upload failed: {failure(error)}."
            ) from error

    @classmethod
    def from_pretrained(  # overridden, because `ModelHubMixin` would parse the config before it is checked
        cls, pretrained_model_name_or_path: str | Path, *, revision: str | None = None, **options: Any
    ) -> Self:
        """Load a probe from a folder or the Hub. No code in its files is executed.

        Args:
            pretrained_model_name_or_path: Folder of the probe, or a Hub id.
            revision: Commit, branch or tag of a Hub repository.
            **options: `cache_dir`, `force_download` and `local_files_only`, as in `ModelHubMixin.from_pretrained`. With
                ``token=False``, no access token is sent.

        Raises:
            InputError: If `load_probe` raises it, or if the Hub refuses access.
        """
        config_file, weights_file, card_file = find_probe(pretrained_model_name_or_path, revision, **options)
        config = read_config(config_file)
        head, calibrator, prefixes, novelty = read_weights(weights_file, config)
        return cls(head, calibrator, config, prefixes, novelty, read_card(card_file))


def load_probe(probe: str | Path, revision: str | None = None) -> ConfidenceProbe:
    """Load a saved probe. All content is checked, and no code is executed.

    Args:
        probe: Folder of the probe, or a Hub id.
        revision: Commit, branch or tag of a Hub repository.

    Raises:
        InputError: If the probe does not exist, is damaged, or has an unsupported head, calibrator or format version.
    """
    return ConfidenceProbe.from_pretrained(probe, revision=revision)
