"""The penalty and features chosen for a probe, and the calibrators of its scores."""

from dataclasses import dataclass

from probes.saved.calibrators import Calibrator


@dataclass(frozen=True)
class Choice:
    """Candidate that was chosen on the validation rows.

    Attributes:
        features, names: Indices and names of the features that the candidate reads.
        candidate, value: Index and value of the chosen penalty or number of neighbours.
        calibrator: Calibrator for the scores of the candidate.
        prefixes: Calibrators for prefixes, in the order of `PREFIXES`; empty if the probe was not trained on prefixes.
    """

    features: tuple[int, ...]
    names: tuple[str, ...]
    candidate: int
    value: float
    calibrator: Calibrator
    prefixes: tuple[Calibrator, ...] = ()

    @property
    def layers(self) -> list[int]:
        """Layers of the features; empty for token signals."""
        return [int(name.split("/")[0]) for name in self.names if "/" in name]

    @property
    def position(self) -> str | None:
        """Token position of the features; None for token signals."""
        return self.names[0].split("/")[1] if "/" in self.names[0] else None
