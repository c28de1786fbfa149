"""`Pass`: a batch that the model has just read, from which signals are computed, and where its tokens are."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from extract.signals.model_parts import ModelHead, n_layers


@dataclass(frozen=True)
class Answer:
    """Token ids of a prompt, and of the answer's content, see `content_tokens`, which may be empty."""

    prompt: tuple[int, ...]
    content: tuple[int, ...]


@dataclass(frozen=True)
class TokenSpans:
    """Token indices of each row of a batch.

    Behind a prompt of P tokens, answer token y_t was drawn at index P + t − 2 and is itself at index P + t − 1. At
    question scope the only token is the one that is going to be drawn after the prompt.

    Attributes:
        first: Index that drew y_1: the last token of the prompt.
        n_tokens: Number n of answer tokens, at least 1.
        n_before: Tokens in the key-value cache before this pass, the same for all rows.
    """

    first: list[int]
    n_tokens: list[int]
    n_before: int = 0

    @property
    def widest(self) -> int:
        """Largest number of tokens of a row."""
        return max(self.n_tokens)

    def drawn_at(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Row and index that drew each token, [sum of n_tokens] int64 each, row after row."""
        n = torch.tensor(self.n_tokens)
        row = torch.arange(len(n)).repeat_interleave(n)
        step = torch.arange(int(n.sum())) - (n.cumsum(0) - n).repeat_interleave(n)
        return row.to(device), (torch.tensor(self.first)[row] + step).to(device)

    def pad(self, values: Tensor) -> Tensor:
        """[row, token, …] on the CPU of values [sum of n_tokens, …]; NaN behind a row's tokens."""
        return pad_sequence(list(values.cpu().split(self.n_tokens)), batch_first=True, padding_value=torch.nan)

    def query_index(self, last: bool) -> Tensor:
        """[row, query] int64 indices that drew y_1 … y_n and, with `last`, that of y_n; rows may run past their end."""
        return torch.tensor(self.first)[:, None] + torch.arange(self.widest + last)


@dataclass(frozen=True)
class Places:
    """Queries whose attention is read in a pass.

    A place is a token's position in its own row, counted from 0 with the tokens in the cache; keys are in this order.

    Attributes:
        index: [row, query] int64, index of each query among the tokens of the pass.
        query: [row, query] int64, its place.
        valid: [row, query] bool, whether the row has this query; attention of the others is 0.
        n_tokens: [row] int64 N, tokens of prompt and answer.
        spans: What the places belong to.
    """

    index: Tensor
    query: Tensor
    valid: Tensor
    n_tokens: Tensor
    spans: TokenSpans

    @classmethod
    def of(cls, spans: TokenSpans, n_queries: int, last: bool, device: torch.device) -> Self:
        """Places of a pass over `n_queries` tokens; with `last` also that of y_n's own."""
        first, n_answer, index = torch.tensor(spans.first), torch.tensor(spans.n_tokens), spans.query_index(last)
        return cls(
            index=index.clamp_max(n_queries - 1).to(device),
            query=(spans.n_before + index).to(device),
            valid=(torch.arange(index.shape[1]) < (n_answer + last)[:, None]).to(device),
            n_tokens=(spans.n_before + first + 1 + n_answer).to(device),
            spans=spans,
        )


class Lens(dict[str, Tensor]):
    """Numbers of the distributions that drew the tokens, float32 on the CPU, NaN behind a row's tokens.

    The first four describe the model's own distribution, [row, token]; the others those of all layers,
    [row, token, layer], each read through the model's final norm and head. Entropies and divergences are in nats.

    Keys:
        log_p: log p of the token that was drawn; NaN where none was.
        entropy: Shannon entropy.
        largest: Largest probability.
        margin: Largest probability less the second largest.
        entropies: Shannon entropies, layers 1 … L.
        margins: As `margin`, layers 0 (the embeddings) … L.
        agrees: 1 where the most likely token is that of layer L, layers 0 … L.
        next_cosines: Cosine of the residual stream with that after the next block, layers 0 … L − 1.
        last_cosines: Cosine of the residual stream with that after the last block, layers 0 … L.
        kl: KL(p_l ‖ p_L), the last `N_COMPARED` layers before L.
        jsd: Jensen–Shannon divergence of p_l and p_L, the same layers.
        early_late: [row, token], KL of the mean distribution of the first quarter of the layers to that of the last.
    """


class Dots(NamedTuple):
    """Dot products ⟨h, h⟩, ⟨o, o⟩ and ⟨h, o⟩ of residual stream h and attention output o, [row, query] float32 each."""

    hh: Tensor
    oo: Tensor
    ho: Tensor

    @classmethod
    def of(cls, h: Tensor, o: Tensor) -> Self:
        """Of h and o, [row, query, d_model] in any float dtype."""
        h, o = h.float(), o.float()
        return cls((h * h).sum(-1), (o * o).sum(-1), (h * o).sum(-1))


@dataclass(frozen=True)
class Attention:
    """Attention of each answer's queries, float32; 0 behind a row's queries.

    Attributes:
        places: The queries and keys.
        layers: For each layer what `read_layer` returns, without `largest`.
        floors: By floor ε in hundredths, [row, query, key]: log((1 − ε) a + ε) summed over layers, a the strongest
            head's attention.
        dots: For each layer, how much attention adds to the residual stream.
    """

    places: Places
    layers: list[dict[str, Tensor]]
    floors: dict[int, Tensor]
    dots: list[Dots]


@dataclass(frozen=True)
class Pass:
    """A batch of questions or answers that the model has just read, with no more than what the signals' `needs` name.

    Attributes:
        model: The model.
        output: Output of its decoder; `last_hidden_state` [row, token, d_model] is after the final norm.
        spans: Where the tokens are. At question scope each row has one, which is going to be drawn after the prompt.
        tokens: [row, token] int64 on the CPU, the tokens that were drawn, 0 behind a row's; None at question scope.
        states: [row, position, d_model] by layer, positions in the order of `POSITIONS` of the scope.
        lens: Numbers of the layers' distributions.
        attention: Attention weights.
    """

    model: Any
    output: Any
    spans: TokenSpans
    tokens: Tensor | None
    states: dict[int, Tensor]
    lens: Lens
    attention: Attention

    @property
    def n_layers(self) -> int:
        """Number of blocks L."""
        return n_layers(self.model)

    def final_states(self) -> Tensor:
        """States after the final norm that the tokens were drawn from, [sum of the rows' tokens, d_model]."""
        states: Tensor = self.output.last_hidden_state
        return states[self.spans.drawn_at(states.device)]

    def logits(self, batch_size: int = 64) -> Iterator[Tensor]:
        """Logits [token, vocab] that the tokens were drawn from, `batch_size` tokens at a time, row after row."""
        head = ModelHead(self.model)
        return (head(states) for states in self.final_states().split(batch_size))

    def pad(self, values: Tensor) -> Tensor:
        """[row, token, …] on the CPU of values [sum of the rows' tokens, …]; NaN behind a row's tokens."""
        return self.spans.pad(values)
