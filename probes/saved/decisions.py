"""Act on confidences: withhold answers, route questions, or choose the best of several answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from extract.errors import InputError
from probes.saved.confidence import Answers, ConfidentModel

if TYPE_CHECKING:
    from extract.prompts import Prompt


@dataclass(frozen=True)
class Decisions:
    """Output of `abstain`, `route` and `best_of`, with one entry per question.

    Attributes:
        text: The answers; None for a withheld answer.
        confidence: Confidence of the model (for `route`, of the cheap model), [question] float32. NaN for an empty
            answer, which `abstain` withholds and `route` replaces.
        novelty, is_novel: See `Confidences`; [question] float32 and [question] bool.
        answered_by: Source of each answer: ``model``, ``strong`` (only for `route`), or None for a withheld answer.
        threshold: Minimum confidence for using the model's answer; None for `best_of`.
    """

    text: list[str | None]
    confidence: Tensor
    novelty: Tensor
    is_novel: Tensor
    answered_by: list[str | None]
    threshold: float | None

    def __len__(self) -> int:
        return len(self.text)


def abstain(
    model: ConfidentModel,
    questions: Sequence[Prompt],
    risk: float | None = None,
    threshold: float | None = None,
    backoff: bool = False,
    **options: Any,
) -> Decisions:
    """Answer only the questions whose confidence is at or above a threshold.

    If the probe reads answers, all answers are generated. Those below the threshold are withheld.

    Args:
        model: Model with an attached probe.
        questions: Strings, chats or lists of token ids.
        risk: Largest acceptable fraction of wrong answers among the answers that are not withheld. The probe must
            contain a threshold for this risk, stored by `python -m applications decide`.
        threshold: Threshold to use instead of a stored one.
        backoff: Whether to shift the confidences of novel questions (see `Confidences`). Use False with stored
            thresholds, which were certified without this shift.
        **options: Options of transformers' `generate`.

    Raises:
        InputError: If both or neither of `risk` and `threshold` are passed, `threshold` is not between 0 and 1, the
            probe has no threshold for the risk, `questions` is empty, or the options request several answers per
            question.
    """
    prompts, least = _listed(questions), chosen_threshold(model, risk, threshold)
    if model.probe.reads_answers:
        answers = _one_each(model.generate(prompts, backoff=backoff, **options), len(prompts))
        is_kept = (answers.confidence >= least).tolist()
        texts: list[str | None] = [text if kept else None for text, kept in zip(answers.text, is_kept, strict=True)]
        found = answers.confidence, answers.novelty, answers.is_novel
    else:
        found = model.score(prompts, backoff=backoff)
        is_kept = (found[0] >= least).tolist()
        texts = [None] * len(prompts)
        if rows := [row for row, kept in enumerate(is_kept) if kept]:
            answers = _one_each(model.generate([prompts[row] for row in rows], backoff=backoff, **options), len(rows))
            for row, text in zip(rows, answers.text, strict=True):
                texts[row] = text
    return Decisions(texts, *found, ["model" if kept else None for kept in is_kept], least)


def route(
    cheap: ConfidentModel,
    strong: ConfidentModel | Callable[[list[Any]], Sequence[str]],
    questions: Sequence[Prompt],
    risk: float | None = None,
    threshold: float | None = None,
    backoff: bool = False,
    **options: Any,
) -> Decisions:
    """Answer with the cheap model if its confidence reaches a threshold, and otherwise with the strong model.

    Args:
        cheap: Model with an attached probe.
        strong: Another model with an attached probe, or a function from a list of questions to their answers.
        questions: Strings, chats or lists of token ids.
        risk: Largest acceptable fraction of wrong answers among the cheap model's answers. See `abstain`.
        threshold: Threshold to use instead of a stored one.
        backoff: See `abstain`.
        **options: Options of transformers' `generate` for both models.

    Raises:
        InputError: In the same cases as `abstain`, or if `strong` does not return one answer per question.
    """
    prompts = _listed(questions)
    kept = abstain(cheap, prompts, risk, threshold, backoff, **options)
    rows = [row for row, who in enumerate(kept.answered_by) if who is None]
    texts, who = list(kept.text), list(kept.answered_by)
    if rows:
        routed = [prompts[row] for row in rows]
        answers = strong.generate(routed, **options).text if isinstance(strong, ConfidentModel) else strong(routed)
        if len(answers) != len(rows):
            raise InputError(
                f"Expected `strong` to return one answer per question, but got {len(answers)} answers to {len(rows)} "
                "questions. Return a list with one string per question."
            )
        for row, text in zip(rows, answers, strict=True):
            texts[row], who[row] = text, "strong"
    return Decisions(texts, kept.confidence, kept.novelty, kept.is_novel, who, kept.threshold)


def best_of(
    model: ConfidentModel, questions: Sequence[Prompt], n: int, backoff: bool = True, **options: Any
) -> Decisions:
    """Sample n answers to each question, and return the one with the highest confidence.

    Args:
        model: Model with an attached probe that reads answers.
        questions: Strings, chats or lists of token ids.
        n: Number of answers per question.
        backoff: Whether to shift the confidences of novel answers. See `Confidences`.
        **options: Options of transformers' `generate`. Answers are sampled unless `do_sample` is False.

    Returns:
        The best answers. An empty answer is chosen only if all n answers are empty.

    Raises:
        InputError: If the probe reads only questions, `n` is not positive, or `questions` is empty.
    """
    if not model.probe.reads_answers:
        raise InputError(
            "Expected a probe that reads answers, but this probe gives the same confidence to all answers to a "
            "question. Train a probe with --data.target=response."
        )
    if n < 1:
        raise InputError(f"Expected `n` to be at least 1, but got {n}. Pass the number of answers per question.")
    prompts = _listed(questions)
    answers = model.generate(prompts, backoff=backoff, **{"do_sample": True, **options, "num_return_sequences": n})
    best = answers.confidence.nan_to_num(-1.0).view(len(prompts), n).argmax(1)
    rows = (torch.arange(len(prompts)) * n + best).tolist()
    confidence, novelty, is_novel = (values[rows] for values in (answers.confidence, answers.novelty, answers.is_novel))
    return Decisions([answers.text[row] for row in rows], confidence, novelty, is_novel, ["model"] * len(rows), None)


def chosen_threshold(model: ConfidentModel, risk: float | None, threshold: float | None) -> float:
    """Return `threshold`, or the probe's stored threshold for `risk`. Exactly one of the two must be passed."""
    if (risk is None) == (threshold is None):
        raise InputError(
            f"Expected exactly one of `risk` and `threshold`, but got {risk} and {threshold}. Pass the largest "
            "acceptable fraction of wrong answers as `risk`."
        )
    if threshold is not None:
        if not 0 <= threshold <= 1:
            raise InputError(f"Expected `threshold` to be between 0 and 1, but got {threshold}. Try 0.5.")
        return threshold
    stored = {decision["risk"]: decision["threshold"] for decision in model.probe.config.get("decisions", [])}
    if risk not in stored:
        known = f"thresholds only for {', '.join(map(str, sorted(stored)))}" if stored else "no thresholds"
        raise InputError(
            f"Expected the probe to have a threshold for a risk of {risk}, but it has {known}. Run `python -m "
            f"applications decide` with --risk '[{risk}]' and --probe to check whether this risk is achievable."
        )
    return float(stored[risk])


def _listed(questions: Any) -> list[Any]:
    """Return the questions as a list. Raise InputError if there are none, or if they are a single string."""
    if isinstance(questions, str) or not questions:
        raise InputError(
            f"Expected `questions` to be a list of questions, but got {questions!r}. Pass a list with one string "
            "per question."
        )
    return list(questions)


def _one_each(answers: Answers, n: int) -> Answers:
    """Return the answers if each of `n` questions has exactly one. Otherwise, raise InputError."""
    if len(answers) != n:
        raise InputError(
            f"Expected one answer per question, but got {len(answers)} answers to {n} questions. Omit "
            "`num_return_sequences`, or use `best_of`."
        )
    return answers
