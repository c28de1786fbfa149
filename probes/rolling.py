"""Rolling probe."""

from typing import Any

from extract.errors import at_least_one
from probes.fitting.sequence import SequenceProbe
from probes.saved.sequence_head import RollingHead


class Rolling(SequenceProbe):
    """Probe that computes the mean of w · x in every window of tokens (arXiv 2601.11516).

    x is the standardised state of a token. The score is the negative of the largest mean. A large mean is evidence that
    the answer is wrong.

    Args:
        window: Number of consecutive tokens in a window. An answer with fewer tokens forms a single window.
        **options: `lr`, `l2` and `calibrator`. See `Descent`.
    """

    name = "rolling"

    def __init__(self, window: int = 4, **options: Any) -> None:
        super().__init__(**options)
        self.window = at_least_one("window", window, default=4)

    def initial_head(self, d_model: int) -> RollingHead:
        """Return a head with zero weights."""
        return RollingHead(d_model, self.window)
