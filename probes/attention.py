"""Attention probe: a weighted mean over the tokens of an answer, whose weights are learned."""

from probes.fitting.sequence import MultiHeadProbe, random_rows
from probes.saved.sequence_head import AttentionHead


class Attention(MultiHeadProbe):
    """Attention probe with several heads and a position bias, as in EleutherAI's attention-probes.

    Each head has a query, a value and a slope per token. The score is the sum over heads of the mean of the values,
    weighted by the softmax of the attention logits. It equals a linear probe of `mean_answer` if all queries are 0.

    Args:
        n_heads, lr, l2, calibrator: See `MultiHeadProbe`.
    """

    name = "attention"

    def initial_head(self, d_model: int) -> AttentionHead:
        """Return a head with random queries, and zero values and slopes."""
        head = AttentionHead(d_model, self.n_heads)
        head.weight[: self.n_heads] = random_rows(self.n_heads, d_model)
        return head
