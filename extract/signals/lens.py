"""Logit lens: token distributions of all layers, computed with the model's final norm and head."""

from collections import defaultdict
from collections.abc import Callable, Collection
from functools import cache, partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.linalg import vecdot

from extract.signals.base import Lens, TokenSpans
from extract.signals.model_parts import Hooks, ModelHead, decoder_blocks, final_norm, n_layers, not_norm_alone

#: Number of preceding layers to compare with the last layer.
N_COMPARED = 10
#: Number of logits in memory at a time.
LOGITS_AT_ONCE = {"cpu": 2**24, "cuda": 2**27}
#: Number of logits to reduce at a time if no layers are compared.
REDUCED_AT_ONCE = {"cpu": 2**20, "cuda": 2**27}
#: Lower bound of shifted logits. Excluded tokens (−∞) get a finite logit and keep probability 0.
_IMPOSSIBLE = -1e4
#: Lower bound of exponents. Lower exponents can produce subnormal numbers, which are ten times slower to process.
_NOTHING = -80.0


class Softmax(NamedTuple):
    """Token distributions p in float32, where p = weight / total and log p = shifted − log(total).

    `weight` and `shifted` have shape [token, vocab], and `total` has shape [token].
    """

    shifted: Tensor
    weight: Tensor
    total: Tensor


def softmax(logits: Tensor) -> Softmax:
    """Compute the token distributions of `logits` [token, vocab]. Float32 logits are overwritten."""
    shifted = logits.float()
    shifted.sub_(shifted.amax(-1, keepdim=True)).clamp_(min=_IMPOSSIBLE)
    weight = shifted.clamp(min=_NOTHING).exp_()
    return Softmax(shifted, weight, weight.sum(-1))


def entropy(p: Softmax) -> Tensor:
    """Compute the Shannon entropy in nats, [token]."""
    return (p.total.log() - vecdot(p.weight, p.shifted) / p.total).clamp_(min=0)


def most_likely(p: Softmax) -> tuple[Tensor, Tensor, Tensor]:
    """Return the most likely token, its probability, and its margin over the second most likely, each [token]."""
    best = p.shifted.topk(2)
    first, second = best.values.exp().unbind(-1)
    return best.indices[:, 0], first / p.total, (first - second) / p.total


def kl(p: Softmax, q: Softmax) -> Tensor:
    """Compute the Kullback–Leibler divergence KL(p ‖ q) in nats, [token]."""
    logs = (vecdot(p.weight, p.shifted) - vecdot(p.weight, q.shifted)) / p.total
    return (logs - p.total.log() + q.total.log()).clamp_(min=0)


def jensen_shannon(p: Softmax, q: Softmax) -> Tensor:
    """Compute the Jensen–Shannon divergence in nats, [token]."""
    mixed = (p.weight * (0.5 / p.total)[:, None]).addcmul_(q.weight, (0.5 / q.total)[:, None])
    entropy_mixed = -vecdot(mixed, mixed.clamp(min=torch.finfo(mixed.dtype).tiny).log_())
    return (entropy_mixed - (entropy(p) + entropy(q)) / 2).clamp_(min=0)


def kl_of_means(p: Tensor, q: Tensor) -> Tensor:
    """Compute KL(p ‖ q) in nats, [token], for probabilities p and q [token, vocab]."""
    tiny = torch.finfo(p.dtype).tiny
    return (vecdot(p, p.clamp(min=tiny).log_()) - vecdot(p, q.clamp(min=tiny).log_())).clamp_(min=0)


class LensReader(Hooks):
    """Context manager that computes a `Lens` for each forward pass. Call `start` before the pass and `finish` after it.

    `needs` contains any of ``logits`` (the final distribution), ``lens`` (entropies), ``exit`` and ``divergence``.

    Raises:
        InputError: If the model's blocks or its final norm can't be found.
    """

    def __init__(self, model: Any, needs: Collection[str]) -> None:
        super().__init__()
        self._model, self._needs = model, frozenset(needs)
        self._head, self._blocks, self._n_layers = ModelHead(model), decoder_blocks(model), n_layers(model)
        self._reads_layers = bool(self._needs & {"lens", "exit", "divergence"})
        self._keeps_states = bool(self._needs & {"exit", "divergence"})
        self._norm = final_norm(model) if self._reads_layers else nn.Identity()
        self._spans: TokenSpans | None = None
        self._kept: dict[int, Tensor] = {}  # states by layer, or entropies of all layers but the last

    def __enter__(self) -> Self:
        for layer, block in enumerate(self._blocks if self._reads_layers else (), 1):
            self.after(block, partial(self._read, layer))
        return self

    def start(self, spans: TokenSpans) -> None:
        """Set the token spans for the next pass."""
        self._spans, self._index = spans, spans.drawn_at(self._model.device)

    def finish(self, last_hidden_state: Tensor, tokens: Tensor | None) -> Lens:
        """Compute the statistics of the most recent pass.

        Args:
            last_hidden_state: Output of the decoder, [row, token, d_model].
            tokens: Sampled tokens, [row, token] int64; None at question scope.

        Raises:
            InputError: If anything other than the final norm follows the last block.
        """
        assert self._spans is not None
        spans, kept, self._spans, self._kept = self._spans, self._kept, None, {}
        normed = last_hidden_state[spans.drawn_at(last_hidden_state.device)].to(self._model.device)
        if self._reads_layers:
            found = self._norm(kept[self._n_layers]).float()
            finite = found.isfinite() & normed.isfinite()
            if not torch.allclose(found[finite], normed.float()[finite], rtol=1e-2, atol=1e-3):
                raise not_norm_alone(self._model)
        drawn = None
        if tokens is not None:
            drawn = torch.cat([row[:n] for row, n in zip(tokens, spans.n_tokens, strict=True)]).to(normed.device)
        size = self._head.chunk_size(LOGITS_AT_ONCE)
        chunks = [self._chunk(slice(i, i + size), normed, drawn, kept) for i in range(0, len(normed), size)]
        numbers = {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}
        if self._reads_layers and not self._keeps_states:
            layers = [kept[layer] for layer in range(1, self._n_layers)]
            numbers["entropies"] = torch.stack([*layers, numbers["entropy"]], dim=1)
        if "exit" in self._needs:
            stream = torch.stack([kept[layer] for layer in range(1, self._n_layers + 1)], dim=1)
            unit = nn.functional.normalize(stream.float(), dim=-1)
            numbers["previous_cosines"] = vecdot(unit[:, :-1], unit[:, 1:])
            numbers["last_cosines"] = vecdot(unit, unit[:, -1:])
        return Lens({name: spans.pad(values) for name, values in numbers.items()})

    def _chunk(self, chunk: slice, normed: Tensor, drawn: Tensor | None, kept: dict[int, Tensor]) -> dict[str, Tensor]:
        """Compute the statistics of a chunk of tokens. Each statistic has the shape [token, …]."""
        last = softmax(self._head(normed[chunk]))
        log_p = torch.full_like(last.total, torch.nan)
        if drawn is not None:
            log_p = last.shifted.gather(-1, drawn[chunk, None])[:, 0] - last.total.log()
        token, largest, margin = most_likely(last)
        numbers = {"log_p": log_p, "entropy": entropy(last), "largest": largest, "margin": margin}
        if self._keeps_states:
            numbers |= self._compare({layer: of_layer[chunk] for layer, of_layer in kept.items()}, last, token)
        return numbers

    def _compare(self, states: dict[int, Tensor], last: Softmax, token: Tensor) -> dict[str, Tensor]:
        """Compute the `Lens` statistics that compare layers. Each layer is represented by its residual stream.

        `last` contains the last layer's distributions, and `token` their most likely tokens.
        """
        n_layers, columns, means = self._n_layers, defaultdict[str, list[Tensor]](list), dict[str, Tensor]()
        n_quarter = max(1, n_layers // 4)
        quarters = {"early": range(1, n_quarter + 1), "late": range(n_layers - n_quarter + 1, n_layers + 1)}
        for layer in range(1, n_layers + 1):
            p = last if layer == n_layers else softmax(self._head(self._norm(states[layer])))
            columns["entropies"].append(entropy(p))
            if "exit" in self._needs:
                own_token, _, margin = most_likely(p)
                columns["margins"].append(margin)
                columns["agrees"].append((own_token == token).float())
            if "divergence" in self._needs:
                if max(1, n_layers - N_COMPARED) <= layer < n_layers:
                    columns["kl"].append(kl(p, last))
                    columns["jsd"].append(jensen_shannon(p, last))
                for name in (name for name, quarter in quarters.items() if layer in quarter):
                    share = (1 / (n_quarter * p.total))[:, None]
                    means[name] = means[name].addcmul_(p.weight, share) if name in means else p.weight * share
            del p
        numbers = {name: torch.stack(layers, dim=1) for name, layers in columns.items()}
        return numbers | ({"early_late": kl_of_means(means["early"], means["late"])} if means else {})

    def _read(self, layer: int, hidden: Tensor) -> None:
        if self._spans is None:
            return
        row, index = self._index
        # the model can span several devices
        states = hidden[row.to(hidden.device), index.to(hidden.device)].to(self._model.device)
        whole = self._keeps_states or layer == self._n_layers
        self._kept[layer] = states if whole else layer_entropy(self._head, self._norm, states)


def layer_entropy(head: ModelHead, norm: nn.Module, states: Tensor) -> Tensor:
    """Compute a layer's entropies in nats, [token], from its residual stream [token, d_model]."""
    few = head.chunk_size(REDUCED_AT_ONCE)
    chunks = states.split(head.chunk_size(LOGITS_AT_ONCE))
    return torch.cat([logit_entropy(logits) for chunk in chunks for logits in head(norm(chunk)).split(few)])


def logit_entropy(logits: Tensor) -> Tensor:
    """Compute the entropy of token distributions in nats, [token], from logits [token, vocab].

    On a CUDA device, the computation is compiled if possible. Without compilation, float32 `logits` are
    overwritten.
    """
    return _compiled()(logits) if logits.is_cuda and _can_compile() else entropy(softmax(logits))


def fusible_entropy(logits: Tensor) -> Tensor:
    """Compute `logit_entropy` with out-of-place operations only, which a compiler can fuse."""
    shifted = (logits.float() - logits.amax(-1, keepdim=True).float()).clamp(min=_IMPOSSIBLE)
    weight = shifted.exp()
    total = weight.sum(-1)
    return (total.log() - (weight * shifted).sum(-1) / total).clamp(min=0)


@cache
def _compiled() -> Callable[[Tensor], Tensor]:
    return torch.compile(fusible_entropy, dynamic=True)


@cache
def _can_compile() -> bool:
    """Whether torch can compile for CUDA devices. It needs Triton and a C compiler."""
    try:
        _compiled()(torch.zeros(2, 2, device="cuda"))
    except RuntimeError:
        return False
    return True
