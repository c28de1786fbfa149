"""A saved probe: a folder with config.json, model.safetensors and a model card. No pickle, no code."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import save
from torch import Tensor

from extract.errors import InputError
from extract.files import replace_file
from probes.head import LinearHead
from probes.loading import FORMAT_VERSION, find_probe, read_config, read_head

if TYPE_CHECKING:
    from probes.confidence import ConfidentModel, Prompts


class ConfidenceProbe:
    """A trained probe with everything that is needed to use it rightly.

    Args:
        head: From hidden states to confidences.
        config: What config.json holds: model identity, layer, named position, prompt, target, training set, figures.
    """

    def __init__(self, head: LinearHead, config: dict[str, Any]) -> None:
        self.head = head.eval().requires_grad_(False)
        self.config = config

    @property
    def layer(self) -> int:
        """Layer that is read, 0 for the embeddings."""
        return int(self.config["layer"])

    @property
    def position(self) -> str:
        """Named token position that is read."""
        return str(self.config["position"])

    def confidence(self, hidden: Tensor) -> Tensor:
        """Confidences [...] float32 from hidden states [..., d_model] of `layer` at `position`."""
        if hidden.shape[-1] != self.config["d_model"]:
            raise InputError(
                f"Expected hidden states of width {self.config['d_model']}, but got {hidden.shape[-1]}. Read them from {self.config['model']['id']!r}."
            )
        return self.head.to(hidden.device)(hidden)

    def score(self, hf_model: Any, tokenizer: Any, prompts: Prompts, attention_mask: Tensor | None = None) -> Tensor:
        """Confidence of each question before any answer, by one pass over the prompts.

        Args:
            hf_model: The model that the probe was trained on.
            tokenizer: Its tokenizer.
            prompts: Texts, chats or token ids; one or several.
            attention_mask: [question, token], 0 at padding, for a tensor of padded ids.

        Returns:
            [question] float32 in [0, 1], on the CPU.

        Raises:
            InputError: Another model, or an empty prompt.
        """
        from probes.confidence import score

        return score(self, hf_model, tokenizer, prompts, attention_mask)

    def attach(self, hf_model: Any, tokenizer: Any) -> ConfidentModel:
        """A wrapper whose `generate` gives every answer with a confidence.

        Raises:
            InputError: Another model; the message says which one the probe wants.
        """
        from probes.confidence import ConfidentModel

        return ConfidentModel(self, hf_model, tokenizer)

    def save(self, folder: str | Path, card: str) -> Path:
        """Write the probe with the text of its model card; returns the folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in self.head.state_dict().items()}
        weights = save(tensors, metadata={"format": "pt"})
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
    files = find_probe(probe, revision)
    config = read_config(files.config)
    return ConfidenceProbe(read_head(files.tensors, config), config)
