"""MultiMax probe."""

from probes.fitting.sequence import MultiHeadProbe, random_rows
from probes.saved.sequence_head import MultiMaxHead


class MultiMax(MultiHeadProbe):
    """MultiMax probe (Kramár et al., arXiv 2601.11516), in which a single token can decide the score.

    Each head computes a value for each token. The score is the sum of the largest values of heads 0, 2, 4, … and the
    smallest values of heads 1, 3, 5, ….

    Args:
        n_heads, lr, l2, calibrator: See `MultiHeadProbe`.
    """

    name = "multimax"

    def initial_head(self, d_model: int) -> MultiMaxHead:
        """Return a head with small random weights."""
        return MultiMaxHead(d_model, self.n_heads).filled(weight=random_rows(self.n_heads, d_model) / 10)
