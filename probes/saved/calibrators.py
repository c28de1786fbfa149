"""Calibrators: modules from any score to a confidence, as a saved probe holds them.

Every calibrator keeps the order of the scores, but for ties that isotonic regression makes. Its values are float64
buffers; it computes in float64 and answers in the score's dtype. `probes.fitting.calibration` fits them.
"""

from typing import ClassVar, Self

import torch
from torch import Tensor, nn

#: Knots that a saved isotonic calibrator may have at most: 4 MiB. A fit makes no more than two a row.
MOST_KNOTS = 2**18


class Calibrator(nn.Module):
    """Base: named values as float64 buffers, in the order of the constructor."""

    #: What a saved probe calls it.
    kind: ClassVar[str]
    #: Names of the values.
    values: ClassVar[tuple[str, ...]]
    #: Axes of each value: 0 for a number, 1 for a list of knots.
    n_axes: ClassVar[int] = 0

    def _keep(self, *values: Tensor | float) -> None:
        for name, value in zip(self.values, values, strict=True):
            self.register_buffer(name, torch.as_tensor(value, dtype=torch.float64).detach().clone())

    def extra_repr(self) -> str:
        """The values."""
        return ", ".join(f"{name}={getattr(self, name).tolist()}" for name in self.values)

    def problem(self) -> str | None:
        """What no fit gives, in a few words; None for a calibrator that can be used."""
        for name, tensor in self.state_dict().items():
            if not tensor.isfinite().all():
                return f"`{name}` holds {float(tensor[~tensor.isfinite()].flatten()[0])}"
        return None

    @classmethod
    def of_shapes(cls, shapes: dict[str, tuple[int, ...]]) -> Self:
        """A calibrator of zeros to load values into, from the shapes that a file's header states.

        Raises:
            ValueError: A value is missing, or has a shape that no fit gives. Other names are not looked at.
        """
        for name in cls.values:
            shape = shapes.get(name)
            if shape is None or len(shape) != cls.n_axes or not all(1 <= size <= MOST_KNOTS for size in shape):
                found = "missing" if shape is None else f"of shape {list(shape)}"
                raise ValueError(f"`{name}` of a {cls.kind!r} calibrator is {found}")
        return cls(*(torch.zeros(shapes[name], dtype=torch.float64) for name in cls.values))


class Platt(Calibrator):
    """The confidence σ(slope · score + intercept); `slope` is never negative.

    >>> Platt(slope=2.0, intercept=0.0)(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([0.1192, 0.5000, 0.8808])
    """

    kind = "platt"
    values = ("slope", "intercept")
    slope: Tensor
    intercept: Tensor

    def __init__(self, slope: Tensor | float, intercept: Tensor | float) -> None:
        super().__init__()
        self._keep(slope, intercept)

    def forward(self, score: Tensor) -> Tensor:
        """Confidences in [0, 1] of the shape and dtype of `score`."""
        return torch.sigmoid(self.slope * score.double() + self.intercept).to(score.dtype)

    def problem(self) -> str | None:
        """What no fit gives: a value that is not finite, or a negative slope."""
        return super().problem() or (f"`slope` is {float(self.slope)}, below 0" if self.slope < 0 else None)


class Temperature(Calibrator):
    """The confidence σ(score / temperature), for scores that are log-odds: a score of 0 stays a confidence of ½.

    >>> Temperature(0.5)(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([0.1192, 0.5000, 0.8808])
    """

    kind = "temperature"
    values = ("temperature",)
    temperature: Tensor

    def __init__(self, temperature: Tensor | float) -> None:
        super().__init__()
        self._keep(temperature)

    def forward(self, score: Tensor) -> Tensor:
        """Confidences in [0, 1] of the shape and dtype of `score`."""
        return torch.sigmoid(score.double() / self.temperature).to(score.dtype)

    def problem(self) -> str | None:
        """What no fit gives: a temperature that is not finite, or not above 0."""
        low = self.temperature <= 0
        return super().problem() or (f"`temperature` is {float(self.temperature)}, not above 0" if low else None)


class Isotonic(Calibrator):
    """The confidence that knots give: linear between (x, y), flat outside.

    >>> Isotonic([0.0, 1.0], [0.2, 0.6])(torch.tensor([-5.0, 0.5, 5.0]))
    tensor([0.2000, 0.4000, 0.6000])
    """

    kind = "isotonic"
    values = ("x", "y")
    n_axes = 1
    x: Tensor
    y: Tensor

    def __init__(self, x: Tensor | list[float], y: Tensor | list[float]) -> None:
        super().__init__()
        self._keep(torch.as_tensor(x, dtype=torch.float64), torch.as_tensor(y, dtype=torch.float64))

    def forward(self, score: Tensor) -> Tensor:
        """Confidences in [0, 1] of the shape and dtype of `score`."""
        wide = score.double().contiguous()  # what searchsorted asks for
        above = torch.searchsorted(self.x, wide).clamp_max(len(self.x) - 1)
        below = (above - 1).clamp_min(0)
        width = (self.x[above] - self.x[below]).clamp_min(torch.finfo(torch.float64).tiny)
        share = ((wide - self.x[below]) / width).clamp(0, 1)
        return torch.lerp(self.y[below], self.y[above], share).to(score.dtype)

    def problem(self) -> str | None:
        """What no fit gives: infinite values, other lengths, x not increasing, y decreasing or outside [0, 1]."""
        steps = self.x.diff()
        if self.x.shape != self.y.shape or not len(self.x):
            problem = f"`x` has the shape {list(self.x.shape)} and `y` {list(self.y.shape)}"
        elif not ((steps > 0) & steps.isfinite()).all():
            problem = "`x` is not increasing"
        elif (self.y.diff() < 0).any():
            problem = "`y` is decreasing"
        elif ((self.y < 0) | (self.y > 1)).any():
            problem = f"`y` reaches from {float(self.y.min())} to {float(self.y.max())}, outside [0, 1]"
        else:
            problem = None
        return super().problem() or problem


#: Closed list of calibrators that a config or a saved probe may name.
CALIBRATORS: dict[str, type[Calibrator]] = {kind.kind: kind for kind in (Platt, Temperature, Isotonic)}
