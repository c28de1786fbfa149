"""Pure functions of distributions over tokens, from logits, in float32: entropies, most likely tokens, divergences.

A softmax is kept undivided, as weights and their sum, because each division and each logarithm over all words costs as
much as the rest of an entropy.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import vecdot

#: Logits are this far below the largest one at the most: what is ruled out (−∞) is finite then, and still impossible.
_IMPOSSIBLE = -1e4
#: Below it exp gives subnormal numbers, which are ten times slower; as weights they are nothing either way.
_NOTHING = -80.0


class Softmax(NamedTuple):
    """Distributions over words: p = weight / total, log p = shifted − log total.

    Attributes:
        shifted: [token, vocab] float32, logits less the largest one.
        weight: [token, vocab] float32, their exponentials.
        total: [token] float32, sum of the weights.
    """

    shifted: Tensor
    weight: Tensor
    total: Tensor

    @property
    def p(self) -> Tensor:
        """[token, vocab] probabilities."""
        return self.weight / self.total[:, None]


def softmax(logits: Tensor) -> Softmax:
    """Distributions of `logits` [token, vocab]; float32 logits are overwritten."""
    shifted = logits.float()
    shifted.sub_(shifted.amax(-1, keepdim=True)).clamp_(min=_IMPOSSIBLE)
    weight = shifted.clamp(min=_NOTHING).exp_()
    return Softmax(shifted, weight, weight.sum(-1))


def entropy(p: Softmax) -> Tensor:
    """Shannon entropy [token] in nats: log Σ exp(z) − Σ p z, z shifted by its largest, else float32 errs by 3e-4."""
    return (p.total.log() - vecdot(p.weight, p.shifted) / p.total).clamp_(min=0)


def log_probability(p: Softmax, words: Tensor) -> Tensor:
    """Log-probability [token] in nats of one word each, `words` [token] int64."""
    return p.shifted.gather(-1, words[:, None])[:, 0] - p.total.log()


def most_likely(p: Softmax) -> tuple[Tensor, Tensor, Tensor]:
    """The most likely token, its probability, and by how much that exceeds the next one's; [token] each."""
    best = p.shifted.topk(2)
    first, second = best.values.exp().unbind(-1)
    return best.indices[:, 0], first / p.total, (first - second) / p.total


def kl(p: Softmax, q: Softmax) -> Tensor:
    """KL(p ‖ q) [token] in nats: Σ p (log p − log q)."""
    logs = (vecdot(p.weight, p.shifted) - vecdot(p.weight, q.shifted)) / p.total
    return (logs - p.total.log() + q.total.log()).clamp_(min=0)


def jensen_shannon(p: Softmax, q: Softmax) -> Tensor:
    """Jensen–Shannon divergence [token] in nats, at most ln 2: H((p + q) / 2) − (H(p) + H(q)) / 2."""
    mixed = (p.weight * (0.5 / p.total)[:, None]).addcmul_(q.weight, (0.5 / q.total)[:, None])
    entropy_mixed = -vecdot(mixed, mixed.clamp(min=torch.finfo(mixed.dtype).tiny).log_())
    return (entropy_mixed - (entropy(p) + entropy(q)) / 2).clamp_(min=0)


def kl_of_means(p: Tensor, q: Tensor) -> Tensor:
    """KL(p ‖ q) [token] in nats of probabilities [token, vocab]."""
    tiny = torch.finfo(p.dtype).tiny
    return (vecdot(p, p.clamp(min=tiny).log_()) - vecdot(p, q.clamp(min=tiny).log_())).clamp_(min=0)
