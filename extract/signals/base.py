"""Results of a forward pass, from which the signals are computed (see `Pass`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from extract.signals.model_parts import ModelHead, n_layers


@dataclass(frozen=True)
class Answer:
    """Token ids of a prompt and of its answer's content (see `content_tokens`). The content can be empty."""

    prompt: tuple[int, ...]
    content: tuple[int, ...]


@dataclass(frozen=True)
class TokenSpans:
    """Indices of the answer's tokens in each row of a batch.

    After a prompt of P tokens, answer token y_t (t = 1, 2, …) is at index P + t − 1. It was drawn from the distribution
    at index P + t − 2. At question scope, only the distribution of y_1 is read.

    Attributes:
        first: Index of the last prompt token in each row.
        n_tokens: Number of answer tokens in each row; 1 at question scope.
        n_before: Number of cached tokens before this pass, the same for all rows.
    """

    first: list[int]
    n_tokens: list[int]
    n_before: int = 0

    @property
    def widest(self) -> int:
        """Largest `n_tokens`."""
        return max(self.n_tokens)

    def drawn_at(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the row of each answer token, and the index of the distribution from which it was drawn.

        Both have shape [sum of n_tokens] and dtype int64.
        """
        n = torch.tensor(self.n_tokens)
        row = torch.arange(len(n)).repeat_interleave(n)
        step = torch.arange(int(n.sum())) - (n.cumsum(0) - n).repeat_interleave(n)
        return row.to(device), (torch.tensor(self.first)[row] + step).to(device)

    def pad(self, values: Tensor) -> Tensor:
        """Split values [sum of n_tokens, …] into rows padded with NaN. Returns [row, token, …] on the CPU."""
        return pad_sequence(list(values.cpu().split(self.n_tokens)), batch_first=True, padding_value=torch.nan)

    def query_index(self, last: bool) -> Tensor:
        """Return the index of the distribution that predicts each answer token, [row, query] int64.

        If `last` is True, the index of the last token is appended. For answers shorter than the longest one, the
        indices continue past the end of the answer.
        """
        return torch.tensor(self.first)[:, None] + torch.arange(self.widest + last)


@dataclass(frozen=True)
class Places:
    """Queries whose attention is read in a forward pass.

    A position is the 0-based index of a token in its row, counting cached tokens. Keys are ordered by position.

    Attributes:
        index: Index of each query among the tokens of the pass, [row, query] int64.
        query: Position of each query, [row, query] int64.
        valid: False for the padding queries of shorter rows, [row, query] bool.
        n_tokens: Number of prompt and answer tokens in each row, [row] int64.
    """

    index: Tensor
    query: Tensor
    valid: Tensor
    n_tokens: Tensor
    spans: TokenSpans

    @classmethod
    def of(cls, spans: TokenSpans, n_queries: int, last: bool, device: torch.device) -> Self:
        """Return the queries at the positions that predict the answer tokens.

        If `last` is True, the query of the last answer token itself is appended.
        """
        first, n_answer, index = torch.tensor(spans.first), torch.tensor(spans.n_tokens), spans.query_index(last)
        return cls(
            index=index.clamp_max(n_queries - 1).to(device),
            query=(spans.n_before + index).to(device),
            valid=(torch.arange(index.shape[1]) < (n_answer + last)[:, None]).to(device),
            n_tokens=(spans.n_before + first + 1 + n_answer).to(device),
            spans=spans,
        )


class Lens(dict[str, Tensor]):
    """Statistics of token distributions, float32 on the CPU, padded with NaN. Entropies and divergences are in nats.

    The first four keys describe the distribution from which a token was drawn. The others describe the residual stream
    of layer l, or a distribution p_l, which is obtained by applying the final norm and the head to that stream. L is
    the last layer. The first four keys and `early_late` have shape [row, token], all others [row, token, layer].

    Keys:
        log_p: Log-probability of the drawn token; NaN if none was drawn.
        entropy: Shannon entropy.
        largest: Largest probability.
        margin: Largest probability minus the second largest.
        entropies: Shannon entropies of layers 1 … L.
        margins: Margins of layers 1 … L.
        agrees: 1 if a layer has the same most likely token as layer L, else 0, for layers 1 … L.
        previous_cosines: Cosine similarity of the residual streams of layers l − 1 and l, for l = 2 … L.
        last_cosines: Cosine similarity of the residual streams of layers l and L, for l = 1 … L.
        kl: KL(p_l ‖ p_L) for the last `N_COMPARED` layers before L.
        jsd: Jensen–Shannon divergence between p_l and p_L for the same layers as `kl`.
        early_late: KL(p_E ‖ p_F), where p_E and p_F are the mean distributions of the first and the last max(1, ⌊L/4⌋)
            layers.
    """


class Dots(NamedTuple):
    """Dot products ⟨h, h⟩, ⟨o, o⟩, ⟨h, o⟩ of the residual stream h and the attention output o, [row, query] float32."""

    hh: Tensor
    oo: Tensor
    ho: Tensor

    @classmethod
    def of(cls, h: Tensor, o: Tensor) -> Self:
        """Compute the dot products of the residual stream h and the attention output o.

        Both have the shape [row, query, d_model] and any float dtype.
        """
        h, o = h.float(), o.float()
        return cls((h * h).sum(-1), (o * o).sum(-1), (h * o).sum(-1))


@dataclass(frozen=True)
class Attention:
    """Attention in a forward pass, in float32. Values of padding queries are 0.

    Attributes:
        layers: Result of `read_layer` for each layer, with the entry `largest` removed.
        floors: For each floor ε, a tensor [row, query, key]. The key in the dict is the integer 100 ε. The tensor
            contains the sum over layers of log((1 − ε) a + ε), where a is the largest attention of any head.
        dots: `Dots` of each layer.
    """

    places: Places
    layers: list[dict[str, Tensor]]
    floors: dict[int, Tensor]
    dots: list[Dots]


@dataclass(frozen=True)
class Pass:
    """Result of a forward pass over a batch of questions or answers.

    Attributes:
        output: Output of the decoder. Its `last_hidden_state` [row, token, d_model] is the output of the final norm.
        tokens: Sampled tokens, [row, token] int64 on the CPU, padded with 0; None at question scope.
        states: Dict from layer to hidden states [row, position, d_model]. Positions are in the order of `POSITIONS`.
        token_states: Dict from layer to hidden states of the answers' tokens, [sum of n_tokens, d_model].
    """

    model: Any
    output: Any
    spans: TokenSpans
    tokens: Tensor | None
    states: dict[int, Tensor]
    token_states: dict[int, Tensor]
    lens: Lens
    attention: Attention

    @property
    def n_layers(self) -> int:
        """Number of transformer blocks."""
        return n_layers(self.model)

    def final_states(self) -> Tensor:
        """Return the final hidden states from which the tokens were drawn, [sum of n_tokens, d_model]."""
        states: Tensor = self.output.last_hidden_state
        return states[self.spans.drawn_at(states.device)]

    def logits(self, batch_size: int = 64) -> Iterator[Tensor]:
        """Yield the logits [token, vocab] from which the tokens were drawn, for up to `batch_size` tokens at a time."""
        head = ModelHead(self.model)
        return (head(states) for states in self.final_states().split(batch_size))

    def pad(self, values: Tensor) -> Tensor:
        """Split values into padded rows. See `TokenSpans.pad`."""
        return self.spans.pad(values)
