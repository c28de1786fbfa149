"""One pass over a batch of questions or answers, from which every signal that is asked for is taken."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from extract.signals.batches import right_padded
from extract.signals.capture import AnswerCapture, HiddenCapture, decoder_of, n_layers
from extract.signals.head import ModelHead
from extract.signals.lens import Lens, LensReader
from extract.signals.positions import question_position
from extract.signals.shared_prompt import SharedPrompt
from extract.signals.token_spans import Rows

if TYPE_CHECKING:
    from extract.signals.attention import Attention

_OF_LENS = {"logits", "lens", "exit", "divergence"}
_OF_ATTENTION = {"attention_entropy", "attention_blocks", "attention_macs", "mixing"}


@dataclass(frozen=True)
class Answer:
    """Tokens of an answer and of the prompt before it.

    Attributes:
        prompt: Prompt token ids.
        content: The answer's content tokens, see `content_tokens`; may be empty.
    """

    prompt: tuple[int, ...]
    content: tuple[int, ...]


@dataclass(frozen=True)
class Pass:
    """A batch that the model has just read. What a signal did not say that it needs may be None.

    Attributes:
        model: The model.
        output: What its decoder returned; `last_hidden_state` [row, token, d_model] is after the final norm.
        rows: Where the distributions stand that drew the tokens. At question scope that is the last token of the prompt
            alone, which is going to draw the first one.
        tokens: [row, token] int64 that were drawn, on the CPU, 0 behind an answer's; None at question scope.
        states: [row, position, d_model] by layer, of the layers that were asked for; positions in the order of
            `QUESTION_POSITIONS` or `ANSWER_POSITIONS`.
        lens: What the layers' distributions say.
        attention: What the attention weights say.
    """

    model: Any
    output: Any
    rows: Rows
    tokens: Tensor | None
    states: dict[int, Tensor]
    lens: Lens
    attention: Attention | None

    def drawn_from(self) -> Tensor:
        """States after the final norm that the tokens were drawn from, [sum of the rows' tokens, d_model]; `rows.padded` gives rows."""
        states: Tensor = self.output.last_hidden_state
        return states[self.rows.drawn_at(states.device)]

    def logits(self, at_once: int = 64) -> Iterator[Tensor]:
        """Logits [token, vocab] that the tokens were drawn from, a few tokens at a time, in the order of `drawn_from`."""
        head = ModelHead(self.model)
        return (head(states) for states in self.drawn_from().split(at_once))

    @property
    def n_layers(self) -> int:
        """Number of blocks L."""
        return n_layers(self.model)

    @property
    def the_attention(self) -> Attention:
        """`attention` for a signal that needs it."""
        assert self.attention is not None
        return self.attention


class Reader:
    """Runs passes for signals; inside its context the model has the hooks that they need, and outside none.

    Args:
        model: Causal language model in evaluation mode.
        needs: What the signals need.
        layers: Layers whose hidden states are kept.

    Raises:
        InputError: A layer that the model does not have, or a model that can't be read for what is needed.
    """

    def __init__(self, model: Any, needs: Collection[str], layers: Sequence[int] = ()) -> None:
        self._model, self._layers, self._needs = model, layers, frozenset(needs)
        self._stack = ExitStack()
        self._at_question = HiddenCapture(model, layers)
        self._at_answer = AnswerCapture(model, layers)

    def __enter__(self) -> Self:
        self._stack.__enter__()
        lens, attention = self._needs & _OF_LENS, self._needs & _OF_ATTENTION
        try:
            self._lens = self._stack.enter_context(LensReader(self._model, lens)) if lens else None
            self._attention: Any = None
            if attention:
                from extract.signals.attention import AttentionReader

                self._attention = self._stack.enter_context(AttentionReader(self._model, attention))
            if self._layers:
                self._stack.enter_context(self._at_question)
                self._stack.enter_context(self._at_answer)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def questions(self, prompts: Sequence[Sequence[int]], position: str = "last_prompt") -> Pass:
        """Read prompts, and look at the place that is going to draw the first token of an answer."""
        at = [question_position(position, len(prompt)) for prompt in prompts]
        rows = Rows(at, [1] * len(at), read=False)
        self._at_question.positions = torch.tensor(at, device=self._model.device)
        read = self._pass(right_padded(prompts, self._model.device), rows, None)
        states, self._at_question.states, self._at_question.positions = self._at_question.states, {}, None
        return Pass(states={layer: state[:, None] for layer, state in states.items()}, **read)

    def answers(self, answers: Sequence[Answer], shared: SharedPrompt | None = None, left: bool = False) -> Pass:
        """Read answers behind their prompts.

        Args:
            answers: Answers with at least one content token.
            shared: What all the prompts begin with, when it has been read already.
            left: Pad on the left and not on the right, as for generation.
        """
        n_before = 0 if shared is None else len(shared)
        n_prompt = [len(answer.prompt) - n_before for answer in answers]
        n_answer = [len(answer.content) for answer in answers]
        ids = [answer.prompt[n_before:] + answer.content for answer in answers]
        longest = max(map(len, ids))
        n_pad = [longest - len(one) if left else 0 for one in ids]
        rows = Rows([pad + n - 1 for pad, n in zip(n_pad, n_prompt, strict=True)], n_answer, n_before, n_pad)
        self._at_answer.look_at([pad + n for pad, n in zip(n_pad, n_prompt, strict=True)], n_answer)
        padded = right_padded([[0] * pad + list(one) for pad, one in zip(n_pad, ids, strict=True)], self._model.device)
        drawn = right_padded([answer.content for answer in answers], torch.device("cpu"))
        options = {"past_key_values": shared.cache(len(answers)), "use_cache": True} if shared else {}
        if left:
            place = torch.arange(longest, device=padded.device) - torch.tensor(n_pad, device=padded.device)[:, None]
            options |= {"attention_mask": (place >= 0).long(), "position_ids": place.clamp(min=0)}
        read = self._pass(padded, rows, drawn, **options)
        return Pass(states=self._at_answer.take(), **read)

    def _pass(self, ids: Tensor, rows: Rows, drawn: Tensor | None, **options: Any) -> dict[str, Any]:
        for reader in (self._lens, self._attention):
            if reader is not None:
                reader.look_at(rows)
        output = decoder_of(self._model)(**{"input_ids": ids, "use_cache": False} | options)
        lens = Lens() if self._lens is None else self._lens.take(output.last_hidden_state, drawn)
        attention = None if self._attention is None else self._attention.take()
        return {"model": self._model, "output": output, "rows": rows, "tokens": drawn, "lens": lens, "attention": attention}  # fmt: skip
