"""Stream an answer with the confidence after each token, without an additional pass or synchronisation."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from extract.errors import InputError
from probes.saved.novelty import Confidences
from probes.saved.paused_generation import Streamer, tokens_of
from probes.saved.sequence_head import SequenceHead
from probes.saved.streamed_text import StreamedText

if TYPE_CHECKING:
    from probes.saved.artefact import ConfidenceProbe
    from probes.saved.confidence import ConfidentModel, Prompts

#: Modes of transformers' `generate` in which each pass after the prompt reads the token that was drawn last.
_MODES = ("greedy_search", "sample")


@dataclass(frozen=True)
class Step:
    """State of an answer after a token was drawn. The last step of a stream repeats the complete answer.

    The model reads a token in the pass that draws the next token. The confidence after the tth token therefore covers
    only the first t − 1 tokens. In the last step, it covers the whole answer, except for the last token of an answer
    that ended at the token limit.

    Attributes:
        text: The answer so far, without special tokens. The bytes of an incomplete character, and characters that may
            begin a stop string, are withheld until it is clear that they belong to the answer.
        piece: The part of `text` that is new in this step; possibly empty.
        confidence: Probability that the model answers the question correctly. If the probe reads answers, it is the
            probability that this answer is right, judged by its first `n_read` tokens; NaN if `n_read` is 0.
        novelty: Novelty of the question or of the answer so far. See `Confidences`.
        is_novel: Whether the question or answer is more novel than 99 % of the training rows.
        n_read: Number of tokens of the answer that the confidence covers; 0 if the probe reads only the question.
        n_tokens: Number of tokens in the answer so far, without the end token. In the last step, tokens that belong to
            the stop string are not counted either.
    """

    text: str
    piece: str
    confidence: float
    novelty: float
    is_novel: bool
    n_read: int
    n_tokens: int


def stream(model: ConfidentModel, question: Prompts, backoff: bool, options: dict[str, Any]) -> Iterator[Step]:
    """Check the arguments of `ConfidentModel.stream`, and return its iterator."""
    from extract.models.loading import check_prompts

    probe, hf_model = model.probe, model._model
    if probe.reads_answers and probe.pooled is not None:
        raise InputError(
            "Expected a probe that can be streamed, but this one reads pooled token signals of complete answers. Use "
            "`generate`, or train a probe without token signals."
        )
    prompts, arguments = model._arguments(question, options)
    if len(prompts) != 1:
        raise InputError(
            f"Expected `question` to be a single question, but got {len(prompts)}. Call `stream` for each of them, or "
            "use `generate`."
        )
    check_prompts(hf_model, prompts, n_further=1)
    config = copy.deepcopy(options.get("generation_config") or hf_model.generation_config)
    config.update(**{name: value for name, value in options.items() if value is not None})
    mode, n_answers = config.get_generation_mode(options.get("assistant_model")).value, config.num_return_sequences or 1
    if mode not in _MODES or n_answers > 1:
        raise InputError(
            f"Expected options for greedy search or sampling of one answer, but got {mode.replace('_', ' ')} with "
            f"`num_return_sequences` {n_answers}. Use `generate` instead of `stream`."
        )
    if probe.reads_answers and probe.prefixes is None:
        warnings.warn(
            "The probe was calibrated only on complete answers. Until an answer is complete, its confidences are not "
            "calibrated. Train the probe with --data.prefixes=true.",
            stacklevel=3,
        )
    return _steps(model, prompts[0], backoff, arguments)


def _steps(model: ConfidentModel, prompt: list[int], backoff: bool, arguments: dict[str, Any]) -> Iterator[Step]:
    """Generate an answer and yield its steps."""
    from extract.models.loading import end_tokens

    hf_model, drawn, text = model._model, list[int](), StreamedText(model.tokenizer, model._stop)
    ends, reader = end_tokens(hf_model, model.tokenizer), _Reader(model, prompt, backoff)

    def generate(streamer: Streamer) -> None:
        with torch.inference_mode(), reader.capturing():
            hf_model.generate(**arguments, streamer=streamer)

    with closing(tokens_of(generate)) as tokens:
        for token in tokens:
            drawn.append(token)
            text.ended |= token in ends
            if not text.ended:
                piece = text.add(token)
                yield Step(text.shown, piece, *reader.after(len(drawn)), len(drawn))
    (complete,), (content,) = model._contents([drawn])
    yield Step(complete, complete[len(text.shown) :], *reader.at_end(len(content)), len(content))


class _Reader:
    """Confidences of a question, or of the answer so far, computed in the passes that generate the answer.

    Args:
        model: Model with an attached probe.
        prompt: Token ids of the prompt.
        backoff: See `ConfidentModel.stream`.
    """

    def __init__(self, model: ConfidentModel, prompt: list[int], backoff: bool) -> None:
        self._model, self._probe, self._backoff, self._n_left = model._model, model.probe, backoff, len(prompt)
        self._running = RunningScore(model.probe)
        # a token waits only for the device on which it is drawn
        self._has_one_device = len({parameter.device for parameter in model._model.parameters()}) == 1
        #: Scores [1] and features [1, d_model] of the first t tokens of the answer, for t = 1, 2, …
        self._scores, self._features = list[Tensor](), list[Tensor]()
        #: Confidence, novelty and `is_novel` of the first t tokens, t = 0, 1, …; t = 0 is the question.
        self._found = list[Tensor]()
        self._prompt_features = model._prompt_features
        if self._prompt_features is None and not model.probe.reads_answers:  # needs signals that are not captured
            self._add(model._read([prompt], None, backoff))

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Read the state of the last token in every pass of the current thread, from the end of the prompt on."""
        from extract.signals.hidden import HiddenCapture
        from extract.signals.model_parts import decoder_of

        thread = threading.get_ident()
        layers = self._probe.layers if self._prompt_features is None else self._prompt_features.layers

        def act(hidden: Tensor) -> None:
            if threading.get_ident() == thread:
                self._n_left -= hidden.shape[1]
                if self._n_left <= 0:  # the prompt can be read in several passes
                    self._read(capture.states)

        with HiddenCapture(self._model, layers) as capture:
            capture.select = lambda hidden: hidden[:, -1]
            capture.after(decoder_of(self._model), act)  # runs after the hooks of `capture`
            yield

    def _read(self, states: Mapping[int, Tensor]) -> None:
        """Add the confidence after the last token that was read. `states` are its states [1, d_model] by layer."""
        if self._probe.reads_answers and not self._found:
            self._found.append(torch.full((3,), torch.nan))
        elif self._probe.reads_answers:
            self._scores.append(self._running.update(torch.cat([states[layer] for layer in self._probe.layers], 1)))
            self._features.append(self._running.features)
            prefixes, n = self._probe.prefixes, len(self._scores)
            self._add_answer(n, 1.0 if prefixes is None else prefixes.expected_fraction(n))
        elif not self._found and self._prompt_features is not None:
            self._add(self._probe.confidences(self._prompt_features(states), self._backoff))

    def _add_answer(self, n_read: int, fraction: float, wait: bool = False) -> None:
        """Add the numbers of the first `n_read` tokens, which are the given fraction of the answer. See `_add`."""
        confidence = self._probe.calibrated(self._scores[n_read - 1], fraction)
        self._add(self._probe.with_novelty(self._features[n_read - 1], confidence, self._backoff), wait)

    def _add(self, found: Confidences, wait: bool = False) -> None:
        """Copy the numbers to the CPU. Unless `wait` is true, it is complete once the next token is on the CPU."""
        numbers = torch.cat([values.float() for values in found])
        self._found.append(numbers.to("cpu", non_blocking=not wait and self._has_one_device))

    def after(self, n_drawn: int) -> tuple[float, float, bool, int]:
        """Return the numbers of a step, from `confidence` to `n_read`, after `n_drawn` tokens were drawn."""
        n_read = n_drawn - 1 if self._probe.reads_answers else 0
        confidence, novelty, is_novel = self._found[n_read].tolist()
        return confidence, novelty, is_novel == 1, n_read

    def at_end(self, n_tokens: int) -> tuple[float, float, bool, int]:
        """Return the numbers of the last step for a complete answer of `n_tokens` tokens."""
        n_read = min(n_tokens, len(self._scores))
        if n_read:
            self._found[n_read:] = []
            self._add_answer(n_read, 1.0, wait=True)
        return self.after(n_read + 1)


class RunningScore:
    """Score of an answer so far, updated with the state of each token without reading earlier states again.

    Args:
        probe: Probe that reads answers.

    Attributes:
        features: [1, d_model] features of the tokens so far, from which the novelty is computed.
    """

    features: Tensor

    def __init__(self, probe: ConfidenceProbe) -> None:
        self._head, self._position = probe.head, probe.position
        self._kept: Tensor | None = None
        self._total: Tensor | None = None
        self._n_tokens = 0

    def update(self, state: Tensor) -> Tensor:
        """Add a token with the state [1, d_model], and return the score [1] float32 of all tokens so far."""
        head, kept = self._head.to(state.device), self._kept
        self._n_tokens += 1
        self._total = state.float() if self._total is None else self._total + state
        mean = (self._total / self._n_tokens).to(state.dtype)  # rounded as in the signal `hidden`
        if isinstance(head, SequenceHead):
            numbers = head.numbers(state)[None]
            self.features, self._kept = mean, numbers if kept is None else torch.cat([kept, numbers], 1)
            return head.pool(self._kept, torch.ones_like(self._kept[..., 0], dtype=torch.bool)) + head.bias
        if self._position == "mean_answer":
            state = mean
        elif self._position == "first_answer":
            self._kept = state = state if kept is None else kept
        self.features = state.float()
        return torch.as_tensor(head(state))
