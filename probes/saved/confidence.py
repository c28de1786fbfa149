"""A confidence while a model answers: score questions before their first token, or generate with a probe attached."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from extract.errors import InputError

if TYPE_CHECKING:
    from extract.prompts import Prompt
    from extract.signals.hidden import HiddenCapture
    from probes.saved.artefact import ConfidenceProbe

    Prompts = Prompt | Sequence[Prompt] | Tensor


@dataclass(frozen=True)
class Answers:
    """What `ConfidentModel.generate` returns; one entry an answer, ordered by question.

    Attributes:
        text: The answers, without special tokens.
        confidence: [answer] float32, probability that the model answers this question rightly; from a probe that reads
            answers, that this answer is right (NaN for an empty one).
        sequences: [answer, token] int64, padded prompts and answers as transformers returns them.
        question: Index of the question of each answer.
    """

    text: list[str]
    confidence: Tensor
    sequences: Tensor
    question: list[int]

    def __len__(self) -> int:
        return len(self.text)

    def __iter__(self) -> Iterator[tuple[str, float]]:
        """Pairs of text and confidence."""
        return iter(zip(self.text, self.confidence.tolist(), strict=True))


def score(
    probe: ConfidenceProbe,
    hf_model: Any,
    tokenizer: Any,
    prompts: Prompts,
    answers: str | Sequence[str] | None = None,
    attention_mask: Tensor | None = None,
) -> Tensor:
    """See `ConfidenceProbe.score`."""
    check(probe, hf_model, tokenizer)
    if isinstance(prompts, Tensor) and prompts.dim() == 2:
        prompts = _unpadded(prompts, attention_mask, _pad_token(hf_model, tokenizer))
    ids = encode(probe, tokenizer, prompts)
    if probe.reads_answers:
        return _score_answers(probe, hf_model, ids, _encoded_answers(tokenizer, answers, len(ids)))
    if answers is not None:
        raise InputError(
            "Expected no `answers`, because this probe reads questions alone. Leave them out, or train a probe with "
            "--data.target=response."
        )
    return _score_questions(probe, hf_model, ids)


def _score_questions(probe: ConfidenceProbe, hf_model: Any, prompts: Sequence[Sequence[int]]) -> Tensor:
    """Confidences [question], by one pass over every prompt."""
    from extract.signals.reading import read_questions

    read = read_questions(hf_model, prompts, probe.signals, layers=_layers(probe))
    return probe.confidence(probe.features(read))


def _layers(probe: ConfidenceProbe) -> list[int]:
    return [] if probe.layer is None else [probe.layer]


def _encoded_answers(tokenizer: Any, answers: str | Sequence[str] | None, n_questions: int) -> list[list[int]]:
    """Token ids of one answer a question.

    Raises:
        InputError: None, or another number of them.
    """
    given = [answers] if isinstance(answers, str) else list(answers or ())
    if len(given) != n_questions:
        raise InputError(
            f"Expected `answers` to hold one answer a question, because this probe reads answers, but got {len(given)} "
            f"for {n_questions}. Give the answers that the model wrote."
        )
    return [tokenizer(answer, add_special_tokens=False)["input_ids"] for answer in given]


def _score_answers(
    probe: ConfidenceProbe, hf_model: Any, prompts: Sequence[Sequence[int]], contents: Sequence[Sequence[int]]
) -> Tensor:
    """Confidences [answer], by one pass over every prompt with its answer; NaN for an answer without tokens."""
    from extract.signals.base import Answer
    from extract.signals.reading import read_answers

    answers = [Answer(tuple(prompt), tuple(content)) for prompt, content in zip(prompts, contents, strict=True)]
    read = read_answers(hf_model, answers, probe.signals, layers=_layers(probe))
    return probe.confidence(probe.features(read))


def check(probe: ConfidenceProbe, hf_model: Any, tokenizer: Any) -> None:
    """Refuse another model than the probe was trained on.

    Raises:
        InputError: Weights, dtype, tokenizer or chat template differ.
    """
    from extract.models.loading import check_model

    check_model(hf_model, tokenizer, probe.config["model"], "the probe")


def encode(probe: ConfidenceProbe, tokenizer: Any, prompts: Prompts) -> list[list[int]]:
    """Prompt token ids, with the words around the question that the probe was trained with.

    Raises:
        InputError: No prompts, or an empty one.
    """
    from extract.prompts import PromptTemplate

    template = PromptTemplate.of(probe.config["prompt"])
    return [template.encode(tokenizer, prompt) for prompt in _listed(prompts)]


def _listed(prompts: Any) -> list[Any]:
    """One prompt or several, as a list of prompts.

    Raises:
        InputError: Nothing, or something that is neither text, chat nor token ids.
    """
    if isinstance(prompts, Tensor):
        prompts = _token_ids(prompts).tolist()
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, Mapping) or not isinstance(prompts, Iterable):
        raise InputError(
            "Expected `prompts` to be a text, a chat (a list of messages), token ids, or a list of them, but got a "
            f"{type(prompts).__name__}. Of a tokenizer's output, give the `input_ids`; put a message into a list."
        )
    prompts = list(prompts)
    if not prompts:
        raise InputError(
            "Expected `prompts` to hold at least one question, but it is empty. Give a text, a chat, or token ids."
        )
    return [prompts] if isinstance(prompts[0], (dict, int)) else prompts


def _token_ids(prompts: Tensor) -> Tensor:
    if prompts.dim() not in (1, 2) or prompts.is_floating_point():
        raise InputError(
            f"Expected `prompts` as a tensor to be [token] or [question, token] ids, but got {prompts.dtype} of shape "
            f"{tuple(prompts.shape)}. Give whole numbers."
        )
    return prompts


def _unpadded(ids: Tensor, mask: Tensor | None, pad: int) -> list[list[int]]:
    """Prompt ids of each row without padding.

    Raises:
        InputError: Rows that begin or end in what may be padding, and no mask.
    """
    ids = torch.atleast_2d(_token_ids(ids))
    if mask is not None:
        return [row[keep.bool()].tolist() for row, keep in zip(ids, torch.atleast_2d(mask), strict=True)]
    if len(ids) > 1 and bool(((ids[:, 0] == pad) | (ids[:, -1] == pad)).any()):
        raise InputError(
            "Expected `attention_mask` with a tensor of several prompts, because some begin or end in the padding "
            "token. Give the tokenizer's."
        )
    return ids.tolist()


def _pad_token(hf_model: Any, tokenizer: Any) -> int:
    candidates = (hf_model.generation_config.pad_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id, 0)
    return int(next(token for token in candidates if token is not None))


class ConfidentModel:
    """A model with a probe attached. Hooks exist only while `generate` runs; the model itself is not changed.

    Args:
        probe: A trained probe.
        hf_model: The model it was trained on.
        tokenizer: Its tokenizer.
    """

    def __init__(self, probe: ConfidenceProbe, hf_model: Any, tokenizer: Any) -> None:
        check(probe, hf_model, tokenizer)
        self.probe, self.tokenizer = probe, tokenizer
        self._model: Any = hf_model

    def detach(self) -> Any:
        """Let go of the model and return it, as it was."""
        model, self._model = self._model, None
        return model

    @torch.inference_mode()
    def generate(self, inputs: Prompts, **options: Any) -> Answers:
        """Answer questions, each with the confidence read at its last prompt token.

        A probe that reads token signals of the questions takes one more pass, over them. One that reads answers takes
        one more pass, over each question with its answer; answers end at the stop strings of its policy, unless
        `stop_strings` says otherwise, and `text` is cut before them.

        Args:
            inputs: Texts, chats or token ids, one or several; or a tensor [question, token] of ids, padded on the
                left, with `attention_mask` among the options.
            **options: Passed on to transformers' `generate`.

        Returns:
            Answers; several a question with `num_return_sequences`.

        Raises:
            InputError: Empty or right-padded inputs, or a probe that was detached.
        """
        from extract.sampling.local.batching import left_padded

        if self._model is None:
            raise InputError(
                "Expected a probe that is attached, but `detach` was called. Attach it again with `probe.attach(model, "
                "tokenizer)`."
            )
        device = self._model.device
        pad = _pad_token(self._model, self.tokenizer)
        mask = options.pop("attention_mask", None)
        if isinstance(inputs, Tensor):
            if mask is not None and not bool(torch.atleast_2d(mask)[:, -1].all()):
                raise InputError(
                    "Expected `inputs` to be padded on the left, but `attention_mask` ends in padding. Set "
                    "`tokenizer.padding_side = 'left'`."
                )
            inputs = _unpadded(inputs, mask, pad)
        options = {"pad_token_id": pad, **options}
        prompts = encode(self.probe, self.tokenizer, inputs)
        ids, mask = left_padded(prompts, pad=pad, device=device)
        n_prompt = ids.shape[1]
        if self.probe.reads_answers:
            return self._read_answers(prompts, ids, mask, options)
        sequences, confidence = self._read_questions(prompts, ids, mask, options)
        per_question = len(sequences) // len(ids)
        return Answers(
            text=self.tokenizer.batch_decode(sequences[:, n_prompt:], skip_special_tokens=True),
            confidence=confidence.repeat_interleave(per_question),
            sequences=sequences,
            question=[row // per_question for row in range(len(sequences))],
        )

    def _read_questions(
        self, prompts: list[list[int]], ids: Tensor, mask: Tensor, options: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """Generated sequences, and the confidence [question] in each question; hidden states are read on the way."""
        if self.probe.pooled is not None or self.probe.layer is None:
            sequences = _sequences(self._model.generate(input_ids=ids, attention_mask=mask, **options))
            return sequences, _score_questions(self.probe, self._model, prompts)
        with _PromptCapture(self._model, self.probe.layer, ids.shape[1]) as capture:
            sequences = _sequences(self._model.generate(input_ids=ids, attention_mask=mask, **options))
        read = self.probe.confidence(capture.states[self.probe.layer][:, 0]).cpu()
        return sequences, read[:: len(read) // len(ids)]

    def _read_answers(self, prompts: list[list[int]], ids: Tensor, mask: Tensor, options: dict[str, Any]) -> Answers:
        """Answers that end as those did which the probe was trained on, each read once more with its prompt."""
        from extract.models.loading import end_tokens
        from extract.signals.reading import content_tokens

        stop = list(self.probe.config.get("decoding", {}).get("stop", []))
        if stop:
            options = {"stop_strings": stop, "tokenizer": self.tokenizer, **options}
        sequences = _sequences(self._model.generate(input_ids=ids, attention_mask=mask, **options))
        per_question, ends = len(sequences) // len(ids), end_tokens(self._model, self.tokenizer)
        texts, contents = [], []
        for drawn in sequences[:, ids.shape[1] :].tolist():
            until_end = drawn[: next((place + 1 for place, token in enumerate(drawn) if token in ends), len(drawn))]
            text = self.tokenizer.decode(until_end, skip_special_tokens=True)
            texts.append(text[: min((text.index(one) for one in stop if one in text), default=len(text))])
            contents.append(content_tokens(self.tokenizer, ends, until_end, texts[-1]))
        question = [row // per_question for row in range(len(sequences))]
        confidence = _score_answers(self.probe, self._model, [prompts[i] for i in question], contents)
        return Answers(texts, confidence, sequences, question)


def _sequences(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output.sequences


class _PromptCapture:
    """Captures a layer at the last prompt token, in whichever of the passes of a generation that token comes by."""

    def __init__(self, model: Any, layer: int, n_prompt: int) -> None:
        from extract.signals.hidden import HiddenCapture
        from extract.signals.model_parts import decoder_of

        self._capture: HiddenCapture = HiddenCapture(model, [layer])
        self._decoder, self._n_prompt, self._seen = decoder_of(model), n_prompt, 0

    def __enter__(self) -> HiddenCapture:
        self._handle = self._decoder.register_forward_pre_hook(self._before, with_kwargs=True)
        return self._capture.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._handle.remove()
        self._capture.__exit__(*error)

    def _before(self, decoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = args[0] if args else kwargs.get("input_ids")
        given = kwargs["inputs_embeds"] if given is None else given
        n_rows, n_tokens = given.shape[:2]
        if self._seen < self._n_prompt <= self._seen + n_tokens:
            last = self._n_prompt - 1 - self._seen
            self._capture.start([[range(last, last + 1)] * n_rows])
        else:
            self._capture.start([])
        self._seen += n_tokens
