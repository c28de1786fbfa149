"""Softmax-weighted probe: the sum over tokens of a linear function z of the token state, weighted by softmax(z)."""

from probes.fitting.sequence import SequenceProbe
from probes.saved.sequence_head import SoftmaxSumHead


class SoftmaxSum(SequenceProbe):
    """Sum over tokens of z = w · x, weighted by the softmax of z (Constitutional Classifiers++, arXiv 2601.04603).

    x is the standardised state of a token, and z is evidence that the answer is wrong. For small w, the sum is
    close to the mean of z over the tokens. For large w, it is close to the maximum.

    Args:
        lr, l2, calibrator: See `Descent`.
    """

    name = "softmax_sum"

    def initial_head(self, d_model: int) -> SoftmaxSumHead:
        """Return a head with zero weights."""
        return SoftmaxSumHead(d_model)
