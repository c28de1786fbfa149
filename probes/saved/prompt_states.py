"""Capture the features of a question probe during generation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from extract.signals.hidden import HiddenCapture
    from probes.saved.artefact import ConfidenceProbe


class PromptFeatures:
    """Compute the features of a question probe from hidden states at the last prompt token.

    If the probe reads the `tokens` signal, the constructor runs the decoder on one token. This reveals the type of the
    decoder's output.

    Attributes:
        layers: Layers whose hidden states are needed, in ascending order.
    """

    def __init__(self, probe: ConfidenceProbe, model: Any) -> None:
        from extract.signals.lens import LensReader
        from extract.signals.model_parts import n_layers

        self._probe, self._model, self._last = probe, model, n_layers(model)
        self._lens = LensReader(model, ["logits"]) if probe.pooled is not None else None
        self.layers = sorted({*probe.layers, *([] if self._lens is None else [self._last])})

    def __call__(self, states: Mapping[int, Tensor]) -> Tensor:
        """Compute features [row, width] from a dict of each layer's hidden states [row, d_model]."""
        probe, device = self._probe, states[self.layers[0]].device
        read = {
            probe.config["signal"]: {f"{layer}/{probe.position}": states[layer].to(device) for layer in probe.layers}
        }
        if self._lens is not None:
            read["tokens"] = {key: values.to(device) for key, values in self._tokens(states[self._last]).items()}
        features = probe.features(read)
        assert isinstance(features, Tensor)
        return features

    def _tokens(self, states: Tensor) -> dict[str, Tensor]:
        """Compute the `tokens` signal, a dict of tensors [row], from hidden states [row, d_model] of the last layer."""
        from extract.signals.base import Pass, TokenSpans
        from extract.signals.lens_signals import tokens

        assert self._lens is not None
        spans = TokenSpans([0] * len(states), [1] * len(states), 0)
        self._lens.start(spans)
        lens = self._lens.finish(states[:, None], None)
        attention: Any = None  # not used by the signal
        of_prompts = Pass(self._model, None, spans, None, {}, {}, lens, attention)
        return {key: values[:, 0] for key, values in tokens(of_prompts).items()}


def can_capture(probe: ConfidenceProbe) -> bool:
    """Whether a probe's features can be computed from hidden states at the last prompt token."""
    return bool(probe.layers) and not probe.reads_answers and set(probe.signals) <= {"hidden", "tokens"}


@contextmanager
def captured_prompt(model: Any, layers: Sequence[int], n_prompt: int) -> Iterator[HiddenCapture]:
    """Capture hidden states at the last prompt token during generation. Chunked prefill is supported."""
    from extract.signals.hidden import HiddenCapture
    from extract.signals.model_parts import decoder_of

    capture, n_seen = HiddenCapture(model, layers), 0

    def before(decoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal n_seen
        given = args[0] if args else kwargs.get("input_ids")
        n_rows, n_tokens = (kwargs["inputs_embeds"] if given is None else given).shape[:2]
        last = n_prompt - 1 - n_seen
        capture.start([[range(last, last + 1)] * n_rows] if 0 <= last < n_tokens else [])
        n_seen += n_tokens

    handle = decoder_of(model).register_forward_pre_hook(before, with_kwargs=True)
    try:
        with capture:
            yield capture
    finally:
        handle.remove()
