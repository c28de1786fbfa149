"""`Pass`: a batch that the model has just read, from which signals are computed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from extract.signals.model_parts import ModelHead, n_layers
from extract.signals.spans import Places, TokenSpans


@dataclass(frozen=True)
class Answer:
    """Tokens of an answer and of the prompt before it.

    Attributes:
        prompt: Prompt token ids.
        content: The answer's content tokens, see `content_tokens`; may be empty.
    """

    prompt: tuple[int, ...]
    content: tuple[int, ...]


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
