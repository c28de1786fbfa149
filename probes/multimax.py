"""MultiMax probe, which sums the largest or the smallest token value of each head."""

from probes.fitting.sequence import MultiHeadProbe, random_rows
from probes.saved.sequence_head import MultiMaxHead


class MultiMax(MultiHeadProbe):
    """MultiMax probe (Kramár et al., arXiv 2601.11516), in which a single token can decide the score.

    Each head computes a value per token. The score is a sum over the heads, which are numbered from 0. Even heads
    contribute their largest value over the tokens, and odd heads contribute their smallest.

    Args:
        n_heads, lr, l2, calibrator: See `MultiHeadProbe`.
    """

    name = "multimax"

    def initial_head(self, d_model: int) -> MultiMaxHead:
        """Return a head with small random weights."""
        return MultiMaxHead(d_model, self.n_heads).filled(weight=random_rows(self.n_heads, d_model) / 10)
