"""Stream an answer with the confidence after each token."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from extract.errors import InputError
from probes.saved.running_confidence import RunningConfidence, add_prompts, add_tokens
from probes.saved.streamed_text import StreamedText
from probes.saved.token_loop import drawn_tokens

if TYPE_CHECKING:
    from probes.saved.artefact import ConfidenceProbe
    from probes.saved.confidence import ConfidentModel, Prompts

#: Modes of transformers' `generate` in which each forward pass after the prompt processes only the latest token.
_MODES = ("greedy_search", "sample")


@dataclass(frozen=True)
class Step:
    """State of an answer after a token has been generated. The last step of a stream repeats the complete answer.

    A token's hidden state is computed in the forward pass that generates the next token. If the probe reads answers,
    the confidence after t tokens therefore covers only the first t − 1 tokens. In the last step, it covers the whole
    answer, except for the last token if generation stopped at the token limit.

    Attributes:
        text: The answer so far, without special tokens. Incomplete characters are withheld, as are characters that may
            begin a stop string.
        piece: The part of `text` that is new in this step; possibly empty.
        confidence: Probability that the model answers the question correctly. If the probe reads answers, it is the
            probability that this answer is right, based on the first `n_read` tokens; NaN if `n_read` is 0.
        novelty, is_novel: Novelty of the question or of the answer so far. See `Confidences`.
        n_read: Number of answer tokens that the confidence covers; 0 if the probe reads only the question.
        n_tokens: Number of tokens in the answer so far, without the end-of-sequence token. In the last step, the
            stop string is not counted either.
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
    check_streamable(probe)
    prompts, arguments = model._arguments(question, options)
    if len(prompts) != 1:
        raise InputError(
            f"Expected `question` to be a single question, but got {len(prompts)}. Call `stream` for each question, "
            "or use `generate`."
        )
    check_prompts(hf_model, prompts, n_further=1)
    config = copy.deepcopy(options.get("generation_config") or hf_model.generation_config)
    config.update(**{name: value for name, value in options.items() if value is not None})
    mode, n_answers = config.get_generation_mode(options.get("assistant_model")).value, config.num_return_sequences or 1
    if mode not in _MODES or n_answers > 1:
        raise InputError(
            "Expected options that generate one answer by greedy search or sampling, but got "
            f"{mode.replace('_', ' ')} with `num_return_sequences` {n_answers}. Use `generate` instead of `stream`."
        )
    if probe.reads_answers and probe.prefixes is None:
        warnings.warn(
            "The probe was calibrated only on complete answers. Until an answer is complete, its confidences are not "
            "calibrated. Train the probe with --data.prefixes=true.",
            stacklevel=3,
        )
    return _steps(model, prompts[0], backoff, arguments)


def check_streamable(probe: ConfidenceProbe) -> None:
    """Raise InputError if the probe reads token signals pooled over the complete answer."""
    if probe.reads_answers and probe.pooled is not None:
        raise InputError(
            "Expected a probe that supports streaming, but this one reads token signals pooled over complete answers. "
            "Use `generate`, or train a probe without token signals."
        )


def _steps(model: ConfidentModel, prompt: list[int], backoff: bool, arguments: dict[str, Any]) -> Iterator[Step]:
    """Generate an answer and yield its steps."""
    from extract.models.loading import end_tokens

    hf_model, drawn, text = model._model, list[int](), StreamedText(model.tokenizer, model._stop)
    ends, reader = end_tokens(hf_model, model.tokenizer), _Reader(model, prompt, backoff)

    for token in drawn_tokens(hf_model, arguments, reader.capturing):
        drawn.append(token)
        text.ended |= token in ends
        if not text.ended:
            piece = text.add(token)
            yield Step(text.shown, piece, *reader.after(len(drawn)), len(drawn))
    (complete,), (content,) = model._contents([drawn])
    yield Step(complete, complete[len(text.shown) :], *reader.at_end(len(content)), len(content))


class _Reader(RunningConfidence):
    """Reads hidden states during generation, and computes the confidence for the question or the partial answer."""

    def __init__(self, model: ConfidentModel, prompt: list[int], backoff: bool) -> None:
        super().__init__(model.probe, backoff)
        self._model, self._n_left, self._prompt_features = model._model, len(prompt), model._prompt_features
        # a drawn token can reach the CPU before other devices have finished their work
        self._wait = len({parameter.device for parameter in model._model.parameters()}) > 1
        if self._prompt_features is None and not model.probe.reads_answers:  # needs signals that are not captured
            add_prompts([self], model._read([prompt], None, backoff))

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Capture the hidden state of the last token in each forward pass.

        Passes that cover only the first part of the prompt are ignored.
        """
        from extract.signals.hidden import HiddenCapture
        from extract.signals.model_parts import decoder_of

        if self.has_read_prompt and not self.probe.reads_answers:
            yield  # the answer is not needed
            return
        thread = threading.get_ident()
        layers = self.probe.layers if self._prompt_features is None else self._prompt_features.layers

        def act(hidden: Tensor) -> None:
            if threading.get_ident() == thread:
                self._n_left -= hidden.shape[1]
                if self._n_left <= 0:  # the prompt can be read in several passes
                    self._read(capture.states)

        with HiddenCapture(self._model, layers) as capture:
            capture.select = lambda hidden: hidden[:, -1]
            capture.after(decoder_of(self._model), act)
            yield

    def _read(self, states: Mapping[int, Tensor]) -> None:
        """Record the confidence after the latest token of the prompt or answer.

        `states` maps each layer to the hidden state of that token, [1, d_model].
        """
        if self.probe.reads_answers and not self.has_read_prompt:
            add_prompts([self], None)
        elif self.probe.reads_answers:
            add_tokens([self], states, self._wait)
        elif not self.has_read_prompt and self._prompt_features is not None:
            add_prompts([self], self.probe.confidences(self._prompt_features(states), self.backoff), self._wait)
