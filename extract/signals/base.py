"""`Pass`: a batch that the model has just read, from which signals are computed, and its token indices."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from extract.signals.model_parts import ModelHead, n_layers


@dataclass(frozen=True)
class Answer:
    """Token ids of a prompt and of the content of an answer (see `content_tokens`). The content can be empty."""

    prompt: tuple[int, ...]
    content: tuple[int, ...]


@dataclass(frozen=True)
class TokenSpans:
    """Token indices of each row of a batch.

    After a prompt of P tokens, answer token y_t is at index P + t − 1 and was drawn at index P + t − 2. At question
    scope the only token is the first one of the answer, which is not drawn yet.

    Attributes:
        first: Index that drew y_1, the last token of the prompt.
        n_tokens: Number n of answer tokens, at least 1.
        n_before: Number of tokens in the key-value cache before this pass, equal for all rows.
    """

    first: list[int]
    n_tokens: list[int]
    n_before: int = 0

    @property
    def widest(self) -> int:
        """Largest number of answer tokens of a row."""
        return max(self.n_tokens)

    def drawn_at(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Row and index that drew each token, both [sum of n_tokens] int64, in the order of the rows."""
        n = torch.tensor(self.n_tokens)
        row = torch.arange(len(n)).repeat_interleave(n)
        step = torch.arange(int(n.sum())) - (n.cumsum(0) - n).repeat_interleave(n)
        return row.to(device), (torch.tensor(self.first)[row] + step).to(device)

    def pad(self, values: Tensor) -> Tensor:
        """Pad values [sum of n_tokens, …] to [row, token, …] on the CPU, with NaN after the tokens of a row."""
        return pad_sequence(list(values.cpu().split(self.n_tokens)), batch_first=True, padding_value=torch.nan)

    def query_index(self, last: bool) -> Tensor:
        """Indices [row, query] int64 that drew y_1 … y_n and, with `last`, that of y_n. Short rows exceed their end."""
        return torch.tensor(self.first)[:, None] + torch.arange(self.widest + last)


@dataclass(frozen=True)
class Places:
    """Queries whose attention is read in a pass.

    A place is the 0-based position of a token in its row, including cached tokens. Keys are ordered by place.

    Attributes:
        index: Index of each query among the tokens of the pass, [row, query] int64.
        query: Place of each query, [row, query] int64.
        valid: Whether the row has the query, [row, query] bool. The attention of other queries is 0.
        n_tokens: Number N of tokens of prompt and answer, [row] int64.
        spans: Token spans of the batch.
    """

    index: Tensor
    query: Tensor
    valid: Tensor
    n_tokens: Tensor
    spans: TokenSpans

    @classmethod
    def of(cls, spans: TokenSpans, n_queries: int, last: bool, device: torch.device) -> Self:
        """Places of a pass over `n_queries` tokens; with `last` also the place of y_n."""
        first, n_answer, index = torch.tensor(spans.first), torch.tensor(spans.n_tokens), spans.query_index(last)
        return cls(
            index=index.clamp_max(n_queries - 1).to(device),
            query=(spans.n_before + index).to(device),
            valid=(torch.arange(index.shape[1]) < (n_answer + last)[:, None]).to(device),
            n_tokens=(spans.n_before + first + 1 + n_answer).to(device),
            spans=spans,
        )


class Lens(dict[str, Tensor]):
    """Statistics of the distributions that drew the tokens, float32 on the CPU, NaN after the tokens of a row.

    The first four describe the model's own distribution, [row, token]. The others describe all layers,
    [row, token, layer], each read through the model's final norm and head. Entropies and divergences are in nats.

    Keys:
        log_p: log p of the drawn token; NaN if none was drawn.
        entropy: Shannon entropy.
        largest: Largest probability.
        margin: Largest probability minus the second largest.
        entropies: Shannon entropies, layers 1 … L.
        margins: Like `margin`, layers 0 (the embeddings) … L.
        agrees: 1 if the most likely token is that of layer L, else 0; layers 0 … L.
        next_cosines: Cosine of the residual streams before and after the next block, layers 0 … L − 1.
        last_cosines: Cosine of the residual streams of a layer and of layer L, layers 0 … L.
        kl: KL(p_l ‖ p_L), the last `N_COMPARED` layers before L.
        jsd: Jensen–Shannon divergence of p_l and p_L, the same layers.
        early_late: KL(p_E ‖ p_F) of the mean distributions of the first and last quarter of the layers, [row, token].
    """


class Dots(NamedTuple):
    """Dot products ⟨h, h⟩, ⟨o, o⟩ and ⟨h, o⟩ of residual stream h and attention output o, each [row, query] float32."""

    hh: Tensor
    oo: Tensor
    ho: Tensor

    @classmethod
    def of(cls, h: Tensor, o: Tensor) -> Self:
        """Compute them from h and o, [row, query, d_model] of any float dtype."""
        h, o = h.float(), o.float()
        return cls((h * h).sum(-1), (o * o).sum(-1), (h * o).sum(-1))


@dataclass(frozen=True)
class Attention:
    """Attention of the answers' queries, float32, 0 after the queries of a row.

    Attributes:
        places: Queries and keys.
        layers: Results of `read_layer` by layer, without `largest`.
        floors: [row, query, key] by floor ε in hundredths: log((1 − ε) a + ε) summed over layers, where a is the
            attention of the strongest head.
        dots: Dot products of residual stream and attention output by layer.
    """

    places: Places
    layers: list[dict[str, Tensor]]
    floors: dict[int, Tensor]
    dots: list[Dots]


@dataclass(frozen=True)
class Pass:
    """A batch of questions or answers that the model has just read, with the data that the signals' `needs` name.

    Attributes:
        model: The model.
        output: Output of its decoder; `last_hidden_state` [row, token, d_model] is after the final norm.
        spans: Token indices. At question scope each row has one token, which is not drawn yet.
        tokens: Drawn tokens, [row, token] int64 on the CPU, 0 after the tokens of a row; None at question scope.
        states: Hidden states [row, position, d_model] by layer, in the order of the scope's `POSITIONS`.
        lens: Statistics of the layers' distributions.
        attention: Attention of the answers' queries.
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
        """States after the final norm that drew the tokens, [sum of n_tokens, d_model]."""
        states: Tensor = self.output.last_hidden_state
        return states[self.spans.drawn_at(states.device)]

    def logits(self, batch_size: int = 64) -> Iterator[Tensor]:
        """Logits [token, vocab] that drew the tokens, `batch_size` tokens at a time, in the order of the rows."""
        head = ModelHead(self.model)
        return (head(states) for states in self.final_states().split(batch_size))

    def pad(self, values: Tensor) -> Tensor:
        """Pad values [sum of n_tokens, …] to [row, token, …] on the CPU, with NaN after the tokens of a row."""
        return self.spans.pad(values)
