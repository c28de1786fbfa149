"""A saved probe: a folder with config.json, model.safetensors and a model card. No pickle, no code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from extract.errors import InputError
from probes.head import HEADS, LinearHead

if TYPE_CHECKING:
    from probes.confidence import ConfidentModel, Prompts

FORMAT_VERSION = 1
_FILES = ("config.json", "model.safetensors", "README.md")
_NEEDED = ("format_version", "head", "d_model", "layer", "position", "signal", "target", "model", "prompt")


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
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(
            json.dumps({"format_version": FORMAT_VERSION, **self.config}, indent=1, sort_keys=True) + "\n",
            encoding="utf-8",
        )
        (folder / "README.md").write_text(card, encoding="utf-8")
        return folder


def load_probe(probe: str | Path, revision: str | None = None) -> ConfidenceProbe:
    """Load a saved probe.

    Args:
        probe: Folder of the probe, or a Hub id.
        revision: Commit, branch or tag of a Hub repository.

    Raises:
        InputError: No probe there, or one that is damaged, of an unknown kind, or of a newer format.
    """
    folder = Path(probe)
    if not folder.is_dir():
        folder = _from_hub(str(probe), revision)
    config = _read_config(folder / "config.json")
    head = HEADS[config["head"]](config["d_model"])
    try:
        tensors = load_file(folder / "model.safetensors")
        head.load_state_dict(tensors, strict=True)
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"Expected {str(folder / 'model.safetensors')!r} to hold the tensors of a {config['head']!r} head of width {config['d_model']}, but it does not: {reason}"
        ) from error
    bad = [name for name, tensor in tensors.items() if tensor.isnan().any()]
    if bad:
        raise InputError(
            f"Expected the tensors of {str(folder)!r} to be numbers, but {', '.join(bad)} hold NaN. Train the probe again."
        )
    return ConfidenceProbe(head, config)


def _from_hub(probe: str, revision: str | None) -> Path:
    if probe.count("/") != 1 or probe.startswith((".", "/")):
        raise InputError(
            f"Expected `probe` to be the folder of a saved probe or a Hub id, but there is no folder {probe!r}. Runs save theirs as runs/NAME/probe."
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(probe, revision=revision, allow_patterns=list(_FILES)))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(
            f"Expected `probe` to be the folder of a saved probe or a Hub id, but {probe!r} is no folder and the Hub gave: {reason}"
        ) from error


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise InputError(
            f"Expected `probe` to be the folder of a saved probe, but {str(path.parent)!r} has no config.json. Runs save theirs as runs/NAME/probe."
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        missing = [key for key in _NEEDED if key not in config]
    except (ValueError, TypeError) as error:
        raise InputError(f"Expected {str(path)!r} to be JSON, but it does not parse: {error}") from error
    if missing:
        raise InputError(f"Expected {str(path)!r} to describe a probe, but it lacks {', '.join(missing)}.")
    if config["format_version"] != FORMAT_VERSION:
        raise InputError(
            f"Expected a probe of format version {FORMAT_VERSION}, but {str(path)!r} has {config['format_version']!r}. Use the version of confidence-probes that wrote it."
        )
    if not isinstance(config["head"], str) or config["head"] not in HEADS:
        raise InputError(
            f"Expected `head` in {str(path)!r} to be one of {', '.join(HEADS)}, but got {config['head']!r}."
        )
    from extract.signals import SIGNALS
    from extract.signals.positions import QUESTION_POSITIONS

    for key, known in (("signal", SIGNALS), ("position", QUESTION_POSITIONS)):
        if not isinstance(config[key], str) or config[key] not in known:
            raise InputError(
                f"Expected `{key}` in {str(path)!r} to be one of {', '.join(known)}, but got {config[key]!r}."
            )
    for key in ("model", "prompt"):
        if not isinstance(config[key], dict):
            raise InputError(f"Expected `{key}` in {str(path)!r} to be an object, but got {config[key]!r}.")
    if not isinstance(config["layer"], int) or config["layer"] < 0:
        raise InputError(f"Expected `layer` in {str(path)!r} to be a layer's number, but got {config['layer']!r}.")
    if not isinstance(config["d_model"], int) or not 0 < config["d_model"] < 2**20:
        raise InputError(f"Expected `d_model` in {str(path)!r} to be a positive width, but got {config['d_model']!r}.")
    return config
