"""The chosen candidate of a probe."""

from dataclasses import dataclass

from probes.saved.calibrators import Calibrator


@dataclass(frozen=True)
class Choice:
    """Candidate that was chosen on the validation rows.

    Attributes:
        features: Indices of the features that it reads.
        names: Names of these features.
        candidate: Index of its penalty or number of neighbours.
        value: Its penalty or number of neighbours.
        calibrator: Calibrator for its scores.
    """

    features: tuple[int, ...]
    names: tuple[str, ...]
    candidate: int
    value: float
    calibrator: Calibrator

    @property
    def layers(self) -> list[int]:
        """Layers of the features; empty for token signals."""
        return [int(name.split("/")[0]) for name in self.names if "/" in name]

    @property
    def position(self) -> str | None:
        """Token position of the features; None for token signals."""
        return self.names[0].split("/")[1] if "/" in self.names[0] else None
