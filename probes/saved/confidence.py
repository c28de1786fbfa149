"""Apply a saved probe to its model: score questions, or generate answers with confidences."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from extract.errors import InputError
from probes.saved.loading import FORMAT_VERSION
from probes.saved.prompt_starts import PromptStarts
from probes.saved.streamed_text import until

if TYPE_CHECKING:
    from extract.prompts import Prompt
    from extract.store.ragged import Ragged
    from probes.saved.artefact import ConfidenceProbe
    from probes.saved.novelty import Confidences
    from probes.saved.streaming import Step

    Prompts = Prompt | Sequence[Prompt] | Tensor


@dataclass(frozen=True)
class Answers:
    """Output of `ConfidentModel.generate`, with one entry per answer, ordered by question.

    Attributes:
        text: The answers, without special tokens.
        confidence: Probability that the model answers the question correctly, [answer] float32. If the probe reads
            answers, it is the probability that the answer is right; NaN for an empty answer.
        novelty, is_novel: See `Confidences`; [answer] float32 and [answer] bool.
        sequences: Token ids of the padded prompts and answers, as returned by transformers, [answer, token] int64.
        question: Index of each answer's question.
    """

    text: list[str]
    confidence: Tensor
    novelty: Tensor
    is_novel: Tensor
    sequences: Tensor
    question: list[int]

    def __len__(self) -> int:
        return len(self.text)

    def __iter__(self) -> Iterator[tuple[str, float]]:
        """Iterate over pairs of text and confidence."""
        return iter(zip(self.text, self.confidence.tolist(), strict=True))


class ConfidentModel:
    """A model with an attached probe. The model itself is not changed.

    Args:
        probe: Trained probe.
        hf_model: The transformers model that the probe was trained on.
        tokenizer: Tokenizer of the model.

    Raises:
        InputError: If the weights, dtype, tokenizer or chat template differ from those used to train the probe.
    """

    def __init__(self, probe: ConfidenceProbe, hf_model: Any, tokenizer: Any) -> None:
        from extract.models.loading import check_model
        from probes.saved.prompt_states import PromptFeatures, can_capture

        check_model(hf_model, tokenizer, probe.config["model"], "the probe")
        if probe.novelty is None and probe.config.get("format_version", FORMAT_VERSION) < FORMAT_VERSION:
            warnings.warn(
                "The probe was saved by an earlier version of confidence-probes and cannot detect novel questions. "
                "Train it again.",
                stacklevel=3,
            )
        self.probe, self.tokenizer = probe, tokenizer
        self._model: Any = hf_model
        self._prompt_features = PromptFeatures(probe, hf_model) if can_capture(probe) else None
        self._stop: list[str] = list(probe.config.get("decoding", {}).get("stop") or [])

    @cached_property
    def starts(self) -> PromptStarts:
        """Key/value caches of prompt prefixes, kept until the probe is detached."""
        return PromptStarts(self._model, lambda prompt: self._encode(prompt, None)[0])

    def detach(self) -> Any:
        """Detach the probe and return the transformers model."""
        model, self._model = self._model, None
        self.__dict__.pop("starts", None)
        return model

    def score(
        self,
        prompts: Prompts,
        answers: str | Sequence[str] | None = None,
        attention_mask: Tensor | None = None,
        backoff: bool = True,
    ) -> Confidences:
        """See `ConfidenceProbe.score`."""
        ids = self._encode(prompts, attention_mask)
        return self._read(ids, self._encode_answers(answers, len(ids)), backoff)

    @torch.inference_mode()
    def generate(self, inputs: Prompts, backoff: bool = True, **options: Any) -> Answers:
        """Generate answers with confidences.

        Generation stops at the stop strings of the training data, unless `stop_strings` is passed. In either case, each
        `text` ends before the first stop string of the training data.

        Two kinds of probes need no extra forward pass after generation. The first kind reads the hidden states of all
        answer tokens. The second kind reads hidden states of the question and may also read the `tokens` signal. All
        other probes need one extra pass.

        Args:
            inputs: One or more strings, chats or lists of token ids, or a left-padded tensor of token ids
                [question, token]. With a tensor, pass its `attention_mask` as an option.
            backoff: Whether to shift the confidences of novel questions. See `Confidences`.
            **options: Options of transformers' `generate`, such as `num_return_sequences` (answers per question).

        Raises:
            InputError: If the inputs are empty or right-padded, or the probe was detached from the model.
        """
        from probes.saved.answer_states import captured_answers
        from probes.saved.prompt_states import captured_prompt

        prompts, arguments = self._arguments(inputs, options)
        probe, model, mask = self.probe, self._model, arguments["attention_mask"]
        n_prompt = mask.shape[1]
        capturing: AbstractContextManager[Any] = nullcontext()
        if probe.reads_tokens:
            capturing = captured_answers(model, probe.layers[0], n_prompt)
            arguments["return_dict_in_generate"] = True
        elif self._prompt_features is not None:
            capturing = captured_prompt(model, self._prompt_features.layers, n_prompt)
        with capturing as captured:
            output = model.generate(**arguments)
            sequences = output if isinstance(output, Tensor) else output.sequences
            per_question, drawn, states = len(sequences) // len(mask), sequences[:, n_prompt:], None
            if probe.reads_answers:
                texts, contents = self._contents(drawn.tolist())
            if probe.reads_tokens:
                lengths = [len(content) for content in contents]
                states = captured.of(drawn, mask.repeat_interleave(per_question, 0), output.past_key_values, lengths)
        question = [row // per_question for row in range(len(sequences))]
        if probe.reads_answers:
            rows = [prompts[i] for i in question], contents
            found = self._read(*rows, backoff) if states is None else probe.confidences(states, backoff)
            return Answers(texts, *found, sequences, question)
        if self._prompt_features is None:
            found = self._read(prompts, None, backoff)
        else:
            states = {layer: of_rows[:: len(of_rows) // len(mask), 0] for layer, of_rows in captured.states.items()}
            found = probe.confidences(self._prompt_features(states), backoff)
        texts = [until(self._stop, text) for text in self.tokenizer.batch_decode(drawn, skip_special_tokens=True)]
        confidence, novelty, is_novel = (values.repeat_interleave(per_question) for values in found)
        return Answers(texts, confidence, novelty, is_novel, sequences, question)

    def stream(self, question: Prompts, backoff: bool = True, **options: Any) -> Iterator[Step]:
        """Generate one answer, and return an iterator over its steps. Each step has the text and the confidence so far.

        The tokens are identical to those of `generate`. The model runs only while the caller waits for the next
        step. To stop the generation, close the iterator or stop iterating.

        A probe that reads only hidden states and, optionally, the `tokens` signal needs no additional forward pass. Any
        other probe that scores questions needs one additional pass over the prompt.

        Args:
            question: One string, one chat, or the token ids of one prompt.
            backoff: Whether to shift the confidences of novel questions. See `Confidences`.
            **options: Options of transformers' `generate` for greedy search or sampling.

        Raises:
            InputError: If there is more than one question or answer, the prompt is empty or too long, or the probe
                reads token signals pooled over the answer.
        """
        from probes.saved.streaming import stream

        return stream(self, question, backoff, options)

    def _arguments(self, inputs: Prompts, options: Mapping[str, Any]) -> tuple[list[list[int]], dict[str, Any]]:
        """Return the inputs' token ids and the arguments for transformers' `generate`."""
        from extract.sampling.local.batching import left_padded

        mask = options.get("attention_mask")
        if mask is not None and not bool(torch.atleast_2d(mask)[:, -1].all()):
            raise InputError(
                "Expected `inputs` to be padded on the left, but they are padded on the right. Set "
                "`tokenizer.padding_side = 'left'`."
            )
        prompts, pad = self._encode(inputs, mask), self._pad_token()
        ids, mask = left_padded(prompts, pad=pad, device=self._model.device)
        stopping = {"stop_strings": self._stop, "tokenizer": self.tokenizer} if self._stop else {}
        return prompts, {"pad_token_id": pad, **stopping, **options, "input_ids": ids, "attention_mask": mask}

    def _encode(self, prompts: Any, mask: Tensor | None) -> list[list[int]]:
        """Convert one or more prompts to token ids, using the probe's prompt template."""
        from extract.models.loading import check_prompts
        from extract.prompts import PromptTemplate

        if self._model is None:
            raise InputError("Expected the probe to be attached, but it was detached. Attach it again.")
        if isinstance(prompts, Tensor):
            if prompts.dim() not in (1, 2) or prompts.is_floating_point():
                raise InputError(
                    "Expected `prompts` to be a tensor of token ids, [token] or [question, token], but got "
                    f"{prompts.dtype} of shape {tuple(prompts.shape)}. Pass integer token ids."
                )
            ids = torch.atleast_2d(prompts)
            if mask is None and len(ids) > 1 and bool((ids[:, [0, -1]] == self._pad_token()).any()):
                raise InputError(
                    "Expected an `attention_mask` with the tensor of prompts, but got none. The mask is needed because "
                    "some prompts begin or end with the padding token. Pass the mask that the tokenizer returned."
                )
            masks = torch.ones_like(ids) if mask is None else torch.atleast_2d(mask)
            prompts = [row[present.bool()].tolist() for row, present in zip(ids, masks, strict=True)]
        prompts = [prompts] if isinstance(prompts, str) else prompts
        if isinstance(prompts, Mapping) or not isinstance(prompts, Iterable):
            raise InputError(
                "Expected `prompts` to be a string, a chat (list of messages), token ids, or a list of these, but got "
                f"{type(prompts).__name__}. For a tokenizer's output, pass its `input_ids`. Put a single "
                "message in a list."
            )
        prompts = list(prompts)
        if not prompts:
            raise InputError("Expected `prompts` to contain at least one question, but it is empty. Pass a question.")
        template = PromptTemplate(**self.probe.config["prompt"])
        prompts = [prompts] if isinstance(prompts[0], (dict, int)) else prompts
        encoded = [template.encode(self.tokenizer, prompt) for prompt in prompts]
        check_prompts(self._model, encoded)
        return encoded

    def _encode_answers(self, answers: str | Sequence[str] | None, n_questions: int) -> list[list[int]] | None:
        """Convert one answer per question to token ids. Returns None if the probe reads only questions."""
        if not self.probe.reads_answers:
            if answers is not None:
                raise InputError(
                    "Expected no `answers`, but answers were passed. This probe reads only questions. Omit `answers`, "
                    "or train a probe with --data.target=response."
                )
            return None
        texts = [answers] if isinstance(answers, str) else list(answers or ())
        if len(texts) != n_questions:
            raise InputError(
                f"Expected `answers` to contain one answer per question, but got {len(texts)} answers to "
                f"{n_questions} questions. This probe reads answers. Pass one of the model's answers for each question."
            )
        return [self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]

    def _pad_token(self) -> int:
        of_model, tokenizer = self._model.generation_config.pad_token_id, self.tokenizer
        return int(next(t for t in (of_model, tokenizer.pad_token_id, tokenizer.eos_token_id, 0) if t is not None))

    def _read(
        self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]] | None, backoff: bool
    ) -> Confidences:
        """Compute confidences [row] with one forward pass per prompt, or per prompt and answer."""
        return self.probe.confidences(self._features(prompts, answers), backoff)

    def _features(self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]] | None) -> Tensor | Ragged:
        """Read the probe's features [row, ...], and return them on the CPU."""
        from extract.signals.base import Answer
        from extract.signals.reading import read_answers, read_questions

        probe, layers, shared = self.probe, self.probe.layers, self.starts.of(prompts)
        if answers is None:
            read: Any = read_questions(self._model, prompts, probe.signals, layers=layers, shared=shared)
        else:
            pairs = [Answer(tuple(prompt), tuple(answer)) for prompt, answer in zip(prompts, answers, strict=True)]
            read = read_answers(self._model, pairs, probe.signals, layers=layers, shared=shared)
        return probe.features(read)

    def _contents(self, drawn: list[list[int]], stop: Sequence[str] | None = None) -> tuple[list[str], list[list[int]]]:
        """Return the texts and content tokens of answers, truncated at `stop` (default: the probe's stop strings)."""
        from extract.models.loading import end_tokens
        from extract.signals.reading import content_tokens

        stop = self._stop if stop is None else stop
        ends, texts, contents = end_tokens(self._model, self.tokenizer), [], []
        for tokens in drawn:
            until_end = tokens[: next((i + 1 for i, token in enumerate(tokens) if token in ends), len(tokens))]
            texts.append(until(stop, self.tokenizer.decode(until_end, skip_special_tokens=True)))
            contents.append(content_tokens(self.tokenizer, ends, until_end, texts[-1]))
        return texts, contents
