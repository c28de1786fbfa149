"""The lens: every layer's distribution over words, through the model's own final norm and head, a chunk of tokens at a time.

Of the distributions only numbers are kept, so that no more than a chunk's logits are in memory. Where a number compares
layers, the residual stream is kept at the answers' tokens until the pass has ended; where none does, a layer is looked
at when it has been computed and nothing else is kept of it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Self, TypedDict, cast

import torch
from torch import Tensor, nn

from extract.signals.capture import Hooks, decoder_blocks, n_layers
from extract.signals.distributions import (
    Softmax,
    entropy,
    jensen_shannon,
    kl,
    kl_of_means,
    likeliest,
    log_probability,
    softmax,
)
from extract.signals.head import ModelHead, final_norm, not_norm_alone
from extract.signals.token_spans import Rows

#: Most layers before the last one whose distributions are compared with it.
DEEPEST = 10
#: Logits that are in memory at a time: 64 MB in float32 on a CPU. A GPU wants more of them to be busy.
_LOGITS = {"cpu": 2**24, "cuda": 2**27}
#: Of those, how many are looked at together where nothing is compared: as many as stay in a CPU's cache.
_AT_ONCE = {"cpu": 2**20, "cuda": 2**25}


class Lens(TypedDict, total=False):
    """Numbers of the distributions that drew the tokens, float32 on the CPU, NaN behind a row's tokens; nats, probabilities.

    It has what the signals need (`NEEDS` says by which word). The first four are of the model's own distribution,
    [row, token]; the others are of all layers' distributions, [row, token, layer].

    Attributes:
        log_p: log p of the token that was drawn; NaN where none was.
        entropy: Shannon entropy.
        largest: p of the likeliest word.
        margin: By how much that is more than the p of the next one.
        entropies: Shannon entropies, layers 1 … L.
        margins: As `margin`, layers 0 (the embeddings) … L.
        agrees: 1 where the likeliest word is that of layer L, layers 0 … L.
        next_cosines: Cosine of the residual stream with that after the next block, layers 0 … L − 1.
        last_cosines: Cosine of the residual stream with that after the last block, layers 0 … L.
        kl: KL(p_l ‖ p_L), the last `DEEPEST` layers before L.
        jsd: Jensen–Shannon divergence of p_l and p_L, the same layers.
        early_late: [row, token], KL of the mean distribution of the first quarter of the layers to that of the last one.
    """

    log_p: Tensor
    entropy: Tensor
    largest: Tensor
    margin: Tensor
    entropies: Tensor
    margins: Tensor
    agrees: Tensor
    next_cosines: Tensor
    last_cosines: Tensor
    kl: Tensor
    jsd: Tensor
    early_late: Tensor


class LensReader(Hooks):
    """Reads a `Lens` from passes in its context: `look_at` before a pass, `take` after it.

    Args:
        model: A causal language model.
        needs: What is wanted: ``logits`` (the final distribution), ``lens`` (entropies), ``exit``, ``divergence``.

    Raises:
        InputError: The model's blocks or its final norm are not found.
    """

    def __init__(self, model: Any, needs: Collection[str]) -> None:
        super().__init__()
        self._head, self._blocks, self.last = ModelHead(model), decoder_blocks(model), n_layers(model)
        self._needs = frozenset(needs)
        self._layers = bool(self._needs & {"lens", "exit", "divergence"})
        self._keeps = bool(self._needs & {"exit", "divergence"})
        self._norm = final_norm(model) if self._layers else nn.Identity()
        self._model = model
        self._rows: Rows | None = None
        self._states: dict[int, Tensor] = {}
        self._entropies: dict[int, Tensor] = {}

    def __enter__(self) -> Self:
        if self._layers:
            if "exit" in self._needs:
                self._handles.append(self._blocks[0].register_forward_pre_hook(self._before, with_kwargs=True))
            for layer, block in enumerate(self._blocks, 1):
                self._handles.append(block.register_forward_hook(self._after(layer)))
        return self

    def look_at(self, rows: Rows) -> None:
        """Say whose tokens are looked at in the next pass."""
        self._rows, self._at = rows, rows.drawn_at(self._model.device)

    def take(self, last_hidden_state: Tensor, tokens: Tensor | None) -> Lens:
        """The numbers of the pass that has ended; nothing is kept of the next until `look_at`.

        Args:
            last_hidden_state: [row, token, d_model], what the decoder returned.
            tokens: [row, token] int64, the tokens that were drawn, anything behind them; None where there are none.

        Raises:
            InputError: Something other than the final norm comes behind the last block.
        """
        rows, states, entropies = self._rows, self._states, self._entropies
        assert rows is not None  # `look_at` came before the pass
        self._rows, self._states, self._entropies = None, {}, {}
        normed = last_hidden_state[rows.drawn_at(last_hidden_state.device)].to(self._model.device)
        if self._layers:
            self._check_norm(states[self.last], normed)
        drawn = None if tokens is None else _flat(tokens, rows).to(normed.device)
        size = self._head.tokens_of(_LOGITS)
        chunks = [
            self._chunk(slice(start, start + size), normed, drawn, states) for start in range(0, len(normed), size)
        ]
        read = {name: torch.cat([chunk[name] for chunk in chunks]) for name in chunks[0]}
        if self._layers and not self._keeps:
            layers = [entropies[layer] for layer in range(1, self.last)]
            read["entropies"] = torch.stack([*layers, read["entropy"]], dim=1)
        if "exit" in self._needs:
            read |= _cosines(torch.stack([states[layer] for layer in range(self.last + 1)], dim=1))
        return cast("Lens", {name: rows.padded(values) for name, values in read.items()})

    def _chunk(self, of: slice, normed: Tensor, drawn: Tensor | None, states: dict[int, Tensor]) -> dict[str, Tensor]:
        """All numbers of some tokens that need the last layer's distribution: [token, …] by name."""
        last = softmax(self._head(normed[of]))
        log_p = torch.full_like(last.total, torch.nan) if drawn is None else log_probability(last, drawn[of])
        word, largest, margin = likeliest(last)
        read = {"log_p": log_p, "entropy": entropy(last), "largest": largest, "margin": margin}
        if not self._keeps:
            return read
        first = 0 if "exit" in self._needs else 1
        numbers = _Numbers(self._needs, self.last, last, word)
        for layer in range(first, self.last):
            numbers.add(layer, softmax(self._head(self._norm(states[layer][of]))))
        numbers.add(self.last, last)
        return read | numbers.read()

    def _check_norm(self, state: Tensor, normed: Tensor) -> None:
        """Refuse a model that does more between its last block and its head than the norm that was found."""
        found = self._norm(state).float()
        known = found.isfinite() & normed.isfinite()
        if not torch.allclose(found[known], normed.float()[known], rtol=1e-2, atol=1e-3):
            raise not_norm_alone(self._model)

    def _before(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._look(0, args[0] if args else kwargs["hidden_states"])

    def _after(self, layer: int) -> Any:
        def hook(block: nn.Module, args: Any, output: Any) -> None:
            self._look(layer, output if isinstance(output, Tensor) else output[0])

        return hook

    def _look(self, layer: int, hidden: Tensor) -> None:
        if self._rows is None:
            return
        row, place = self._at
        # a model may be spread over devices; its numbers are formed on one
        states = hidden[row.to(hidden.device), place.to(hidden.device)].to(self._model.device)
        if self._keeps or layer == self.last:
            self._states[layer] = states
        else:
            self._entropies[layer] = layer_entropy(self._head, self._norm, states)


def layer_entropy(head: ModelHead, norm: nn.Module, states: Tensor) -> Tensor:
    """Entropy [token] in nats of a layer's distributions, from its residual stream [token, d_model]."""
    few = head.tokens_of(_AT_ONCE)
    return torch.cat(
        [
            entropy(softmax(logits))
            for chunk in states.split(head.tokens_of(_LOGITS))
            for logits in head(norm(chunk)).split(few)
        ]
    )


class _Numbers:
    """Numbers of a chunk of tokens, layer after layer, beside the last layer's distribution and its likeliest word."""

    def __init__(self, needs: Collection[str], n_layers: int, last: Softmax, word: Tensor) -> None:
        self._needs, self._n, self._last, self._word = needs, n_layers, last, word
        self._columns: dict[str, list[Tensor]] = {}
        quarter = max(1, n_layers // 4)
        self._quarters = (range(1, quarter + 1), range(n_layers - quarter + 1, n_layers + 1))
        self._means: list[Tensor | None] = [None, None]

    def add(self, layer: int, p: Softmax) -> None:
        """Look at a layer."""
        if layer:
            self._keep("entropies", entropy(p))
        if "exit" in self._needs:
            word, _, margin = likeliest(p)
            self._keep("margins", margin)
            self._keep("agrees", (word == self._word).float())
        if "divergence" in self._needs:
            if self._n - DEEPEST <= layer < self._n and layer:
                self._keep("kl", kl(p, self._last))
                self._keep("jsd", jensen_shannon(p, self._last))
            for i, quarter in enumerate(self._quarters):
                if layer in quarter:
                    share = (1 / (len(quarter) * p.total))[:, None]
                    mean = self._means[i]
                    self._means[i] = p.weight * share if mean is None else mean.addcmul_(p.weight, share)

    def read(self) -> dict[str, Tensor]:
        """[token, layer] by name, and [token] of `early_late`."""
        early, late = self._means
        compared = {} if early is None or late is None else {"early_late": kl_of_means(early, late)}
        return {name: torch.stack(columns, dim=1) for name, columns in self._columns.items()} | compared

    def _keep(self, name: str, values: Tensor) -> None:
        self._columns.setdefault(name, []).append(values)


def _cosines(states: Tensor) -> dict[str, Tensor]:
    """Cosines of residual streams [token, layer, d_model] with the next and with the last one, [token, layer]."""
    unit = nn.functional.normalize(states.float(), dim=-1)
    return {
        "next_cosines": torch.linalg.vecdot(unit[:, :-1], unit[:, 1:]),
        "last_cosines": torch.linalg.vecdot(unit, unit[:, -1:]),
    }


def _flat(tokens: Tensor, rows: Rows) -> Tensor:
    """Tokens [sum of n_tokens] of [row, token]."""
    return torch.cat([tokens[i, :n] for i, n in enumerate(rows.n_tokens)])
