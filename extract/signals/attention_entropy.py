"""The signal `attention_entropy`: how widely each layer looked around where an answer's tokens were drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from extract.signals.attention_scores import HIDDEN
from extract.signals.base import Pass

#: What `over_heads` gives.
NAMES = ("normalised", "sink_free", "smallest_head")


class HeadEntropies(NamedTuple):
    """Entropies of attention over the largest that they could be, [row, head, query] float32 in [0, 1].

    Attributes:
        whole: Of all visible keys, by the logarithm of their number; 0 with one key.
        sink_free: The same without the first token, which many heads look at when there is nothing to see.
    """

    whole: Tensor
    sink_free: Tensor


def head_entropies(scores: Tensor, sink: Tensor, n_visible: Tensor) -> HeadEntropies:
    """Entropies of softmax(`scores`) over what each query sees.

    With p the weight of the first token and H' the entropy of the others among themselves, H = h(p) + (1 − p) H', h the
    entropy of a coin. H' comes from the other scores alone, so that it is exact even where p is 1 in float32.

    Args:
        scores: [row, head, query, key] float32, `HIDDEN` where a query can't see a key. Overwritten.
        sink: [row] int64, the key of the first token.
        n_visible: [row, query] int64 keys that each query sees.
    """
    at = sink[:, None, None, None].expand(*scores.shape[:3], 1)
    of_sink = scores.gather(-1, at)
    shifted = scores.scatter_(-1, at, HIDDEN)
    top = shifted.amax(-1, keepdim=True)
    shifted -= top
    weights = shifted.exp()
    total = weights.sum(-1)
    others = total.log() - weights.mul_(shifted).sum(-1) / total
    visible_sink = of_sink[..., 0] > HIDDEN / 2
    n_others = n_visible[:, None] - visible_sink.long()
    lead = of_sink[..., 0] - (top[..., 0] + total.log())
    share = lead.sigmoid(), (-lead).sigmoid()
    whole = torch.special.entr(share[0]) + torch.special.entr(share[1]) + share[1] * others
    return HeadEntropies(_of_largest(whole, n_visible[:, None]), _of_largest(others, n_others))


def _of_largest(entropy: Tensor, n_keys: Tensor) -> Tensor:
    """Entropy over log(`n_keys`), 0 with one key or none."""
    return torch.where(n_keys > 1, entropy / n_keys.clamp_min(2).log(), 0.0).clamp(0, 1)


def over_heads(of_heads: Sequence[HeadEntropies]) -> dict[str, Tensor]:
    """[row, query] by name: the mean over heads, with and without the first token, and the smallest head's."""
    whole, sink_free = (torch.cat(one, 1) for one in zip(*of_heads, strict=True))
    return dict(zip(NAMES, (whole.mean(1), sink_free.mean(1), whole.amin(1)), strict=True))


def attention_entropy(read: Pass) -> dict[str, Tensor]:
    """Entropies of attention where each token was drawn: [row, token] float32 in [0, 1] by ``layer/name``, layers from 1.

    - ``normalised``: the mean over heads of each head's entropy by the logarithm of the keys that it could see.
    - ``sink_free``: the same without the first token.
    - ``smallest_head``: the first one of the head that looked at the fewest, and no mean.
    """
    found: dict[str, Tensor] = {}
    for layer, of_layer in enumerate(read.the_attention.layers, start=1):
        values = torch.stack([of_layer[name] for name in NAMES])[..., : read.rows.widest].cpu()
        found |= {f"{layer}/{name}": of_name for name, of_name in zip(NAMES, values, strict=True)}
    return found
