"""Attention probe: a weighted mean over the tokens of an answer, with learned attention weights."""

from probes.fitting.sequence import MultiHeadProbe, random_rows
from probes.saved.sequence_head import AttentionHead


class Attention(MultiHeadProbe):
    """Attention probe with several heads and a position bias, as in EleutherAI's attention-probes.

    Each head computes an attention logit and a value for each token. It averages the values, weighted by the softmax of
    the logits. The score is the sum of these averages over the heads.

    Args:
        n_heads, lr, l2, calibrator: See `MultiHeadProbe`.
    """

    name = "attention"

    def initial_head(self, d_model: int) -> AttentionHead:
        """Return a head with random query weights. Value weights and position biases are 0."""
        head = AttentionHead(d_model, self.n_heads)
        head.weight[: self.n_heads] = random_rows(self.n_heads, d_model)
        return head
