"""Softmax-sum probe: a softmax-weighted sum over the tokens of an answer."""

from probes.fitting.sequence import SequenceProbe
from probes.saved.sequence_head import SoftmaxSumHead


class SoftmaxSum(SequenceProbe):
    """Probe on a softmax-weighted sum over tokens (Constitutional Classifiers++, arXiv 2601.04603).

    Each token has the value z = w · x, where x is its standardised state. A larger z is evidence that the answer is
    wrong. The values are weighted by their softmax over the tokens. If w is small, the sum is close to the mean of z.
    If w is large, the sum is close to the maximum of z.

    Args:
        lr, l2, calibrator: See `Descent`.
    """

    name = "softmax_sum"

    def initial_head(self, d_model: int) -> SoftmaxSumHead:
        """Return a head with zero weights."""
        return SoftmaxSumHead(d_model)
