"""Heads: from the hidden state of one layer and position to a confidence. This is all that a saved probe is."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LinearHead(nn.Module):
    """σ(slope · (w · (h − mean) / scale + b) + intercept): standardiser, linear map and Platt calibrator.

    Args:
        d_model: Width of the hidden state.
    """

    mean: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor
    slope: Tensor
    intercept: Tensor

    def __init__(self, d_model: int) -> None:
        super().__init__()
        for name, value in (("mean", 0.0), ("scale", 1.0), ("weight", 0.0)):
            self.register_buffer(name, torch.full((d_model,), value))
        for name, value in (("bias", 0.0), ("slope", 1.0), ("intercept", 0.0)):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32))

    def forward(self, hidden: Tensor) -> Tensor:
        """Confidences [...] float32 in [0, 1] from hidden states [..., d_model] of any float dtype."""
        logit = ((hidden.float() - self.mean) / self.scale) @ self.weight + self.bias
        return torch.sigmoid(self.slope * logit + self.intercept)

    def problem(self) -> str | None:
        """What no training gives, in a few words; None for a head that can be used.

        All values are finite but those of `scale`, which are above 0, and infinite for what is left out.
        """
        for name, tensor in self.state_dict().items():
            wrong = ~(tensor > 0) if name == "scale" else ~tensor.isfinite()
            if wrong.any():
                return f"`{name}` holds {float(tensor[wrong].flatten()[0])}"
        return f"`slope` is {float(self.slope)}, below 0" if self.slope < 0 else None


#: Closed list of heads that a saved probe may name; nothing else is ever loaded.
HEADS: dict[str, type[LinearHead]] = {"linear": LinearHead}
