"""Calibrators: monotone modules that map scores to confidences.

Confidences are computed in float64 and returned in the score's dtype. `probes.fitting.calibration` fits calibrators.
"""

from typing import ClassVar, Self

import torch
from torch import Tensor, nn


class Calibrator(nn.Module):
    """Base class for calibrators. A calibrator stores named parameters as float64 buffers.

    Args:
        *values: The parameters, in the order of their names in the class attribute `values`. Those of `Isotonic` are
            lists of numbers.
    """

    #: Name of the calibrator in config.json.
    kind: ClassVar[str]
    #: Names of the parameters.
    values: ClassVar[tuple[str, ...]]
    #: Number of axes of each parameter: 0 for a number, 1 for a list of knots.
    n_axes: ClassVar[int] = 0

    def __init__(self, *values: Tensor | list[float] | float) -> None:
        super().__init__()
        for name, value in zip(self.values, values, strict=True):
            self.register_buffer(name, torch.as_tensor(value, dtype=torch.float64).detach().clone())

    def extra_repr(self) -> str:
        """Format the parameters and their values for `repr`."""
        return ", ".join(f"{name}={getattr(self, name).tolist()}" for name in self.values)

    def problem(self) -> str | None:
        """Return a short description of the first invalid value, or None."""
        for name, tensor in self.state_dict().items():
            if not tensor.isfinite().all():
                return f"`{name}` contains {float(tensor[~tensor.isfinite()].flatten()[0])}"
        return None

    @classmethod
    def of_zeros(cls, n_knots: int) -> Self:
        """Create a calibrator filled with zeros."""
        return cls(*(torch.zeros([n_knots] * cls.n_axes) for _ in cls.values))


class Platt(Calibrator):
    """Platt scaling: the confidence σ(slope · score + intercept), where `slope` is not negative.

    >>> Platt(2.0, 0.0)(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([0.1192, 0.5000, 0.8808])
    """

    kind = "platt"
    values = ("slope", "intercept")
    slope: Tensor
    intercept: Tensor

    def forward(self, score: Tensor) -> Tensor:
        """Map scores to confidences in [0, 1] with the shape and dtype of `score`."""
        return torch.sigmoid(self.slope * score.double() + self.intercept).to(score.dtype)

    def problem(self) -> str | None:
        """See `Calibrator.problem`. The slope must not be negative."""
        return super().problem() or (f"`slope` is {float(self.slope)}, below 0" if self.slope < 0 else None)


class Temperature(Calibrator):
    """Temperature scaling: the confidence σ(score / temperature) for scores that are log-odds.

    >>> Temperature(0.5)(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([0.1192, 0.5000, 0.8808])
    """

    kind = "temperature"
    values = ("temperature",)
    temperature: Tensor

    def forward(self, score: Tensor) -> Tensor:
        """Map scores to confidences in [0, 1] with the shape and dtype of `score`."""
        return torch.sigmoid(score.double() / self.temperature).to(score.dtype)

    def problem(self) -> str | None:
        """See `Calibrator.problem`. The temperature must be positive."""
        low = self.temperature <= 0
        return super().problem() or (f"`temperature` is {float(self.temperature)}, not above 0" if low else None)


class Isotonic(Calibrator):
    """Isotonic calibration: the confidence is linear between the knots (x, y) and constant beyond the outer knots.

    >>> Isotonic([0.0, 1.0], [0.2, 0.6])(torch.tensor([-5.0, 0.5, 5.0]))
    tensor([0.2000, 0.4000, 0.6000])
    """

    kind = "isotonic"
    values = ("x", "y")
    n_axes = 1
    x: Tensor
    y: Tensor

    def forward(self, score: Tensor) -> Tensor:
        """Map scores to confidences in [0, 1] with the shape and dtype of `score`."""
        wide = score.double().contiguous()  # searchsorted needs contiguous input
        above = torch.searchsorted(self.x, wide).clamp_max(len(self.x) - 1)
        below = (above - 1).clamp_min(0)
        width = (self.x[above] - self.x[below]).clamp_min(torch.finfo(torch.float64).tiny)
        share = ((wide - self.x[below]) / width).clamp(0, 1)
        return torch.lerp(self.y[below], self.y[above], share).to(score.dtype)

    def problem(self) -> str | None:
        """See `Calibrator.problem`. x must increase. y must lie in [0, 1] and must not decrease."""
        if problem := super().problem():
            return problem
        if self.x.shape != self.y.shape or not len(self.x):
            return f"`x` has the shape {list(self.x.shape)} and `y` has the shape {list(self.y.shape)}"
        steps = self.x.diff()
        if not ((steps > 0) & steps.isfinite()).all():
            return "`x` is not increasing"
        if (self.y.diff() < 0).any():
            return "`y` is decreasing"
        outside = self.y[(self.y < 0) | (self.y > 1)]
        return f"`y` contains {float(outside[0])}, outside [0, 1]" if len(outside) else None


#: Calibrators that are allowed in a config or a saved probe.
CALIBRATORS: dict[str, type[Calibrator]] = {kind.kind: kind for kind in (Platt, Temperature, Isotonic)}
