"""Tests of `abstain`, `route` and `best_of` with a tiny model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import probes
from extract import InputError
from probes import abstain, best_of, route
from probes.saved.confidence import ConfidentModel
from tests.helpers.saved_probes import linear_probe

QUESTIONS = ["Why?", "What is this long question about?", "Who", "Where is it, then?", "How much wood?"]
OPTIONS = {"max_new_tokens": 4, "do_sample": False}


def attached(model: Any, tokenizer: Any, target: str, **changes: Any) -> ConfidentModel:
    """Attach a linear probe with random weights."""
    position = "last_prompt" if target == "capability" else "last_answer"
    return linear_probe(model, tokenizer, target=target, position=position, **changes).attach(model, tokenizer)


@pytest.fixture
def of_questions(model: Any, tokenizer: Any) -> ConfidentModel:
    stored = {"level": 0.9, "coverage": 0.5, "n_questions": 100}
    decisions = [{"risk": 0.2, "threshold": 0.0, **stored}, {"risk": 0.1, "threshold": 1.0, **stored}]
    return attached(model, tokenizer, "capability", decisions=decisions)


@pytest.fixture
def of_answers(model: Any, tokenizer: Any) -> ConfidentModel:
    return attached(model, tokenizer, "response")


def middle(confidence: torch.Tensor) -> float:
    """Return a threshold that three of five confidences reach."""
    return float(confidence.sort().values[2])


def count_rows(monkeypatch: pytest.MonkeyPatch, model: Any) -> list[int]:
    """Return a list of the numbers of prompts in later calls of `generate`."""
    rows: list[int] = []
    generate = model.generate

    def counting(**options: Any) -> Any:
        rows.append(len(options["input_ids"]))
        return generate(**options)

    monkeypatch.setattr(model, "generate", counting)
    return rows


def test_only_questions_at_or_above_the_threshold_are_generated(
    of_questions: ConfidentModel, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = of_questions.generate(QUESTIONS, **OPTIONS)
    threshold = middle(of_questions.score(QUESTIONS).confidence)
    rows = count_rows(monkeypatch, model)
    found = abstain(of_questions, QUESTIONS, threshold=threshold, **OPTIONS)
    kept = (found.confidence >= threshold).tolist()
    assert rows == [3]
    assert found.text == [text if one else None for text, one in zip(every.text, kept, strict=True)]
    assert found.answered_by == ["model" if one else None for one in kept]
    torch.testing.assert_close(found.confidence, every.confidence, atol=1e-5, rtol=0)


def test_answers_below_the_threshold_and_empty_answers_are_withheld(of_answers: ConfidentModel) -> None:
    every = of_answers.generate(QUESTIONS, **OPTIONS)
    threshold = middle(every.confidence)
    found = abstain(of_answers, QUESTIONS, threshold=threshold, **OPTIONS)
    assert [text is not None for text in found.text] == (every.confidence >= threshold).tolist()
    ended = abstain(of_answers, QUESTIONS, threshold=0.0, max_new_tokens=1, suppress_tokens=list(range(1, 258)))
    assert ended.text == [None] * 5
    assert ended.confidence.isnan().all()


def test_the_threshold_for_a_risk_is_the_one_that_is_stored(of_questions: ConfidentModel) -> None:
    assert None not in abstain(of_questions, QUESTIONS, risk=0.2, **OPTIONS).text
    assert abstain(of_questions, QUESTIONS, risk=0.1, **OPTIONS).answered_by == [None] * 5


@pytest.mark.parametrize("strong", ["a function", "a model"])
def test_the_strong_model_answers_only_questions_below_the_threshold(
    strong: str, of_questions: ConfidentModel, of_answers: ConfidentModel
) -> None:
    asked: list[str] = []

    def other(questions: list[str]) -> list[str]:
        asked.extend(questions)
        return [f"strong {question}" for question in questions]

    threshold = middle(of_questions.score(QUESTIONS).confidence)
    found = route(
        of_questions, other if strong == "a function" else of_answers, QUESTIONS, threshold=threshold, **OPTIONS
    )
    below = [q for q, value in zip(QUESTIONS, found.confidence.tolist(), strict=True) if value < threshold]
    texts = of_answers.generate(below, **OPTIONS).text if strong == "a model" else [f"strong {q}" for q in below]
    assert len(below) == 2
    assert [text for text, who in zip(found.text, found.answered_by, strict=True) if who == "strong"] == texts
    assert found.answered_by.count("model") == 3
    assert asked == (below if strong == "a function" else [])


def test_best_of_returns_the_answer_with_the_highest_confidence(of_answers: ConfidentModel) -> None:
    torch.manual_seed(0)
    every = of_answers.generate(QUESTIONS, max_new_tokens=4, do_sample=True, num_return_sequences=6)
    torch.manual_seed(0)
    found = best_of(of_answers, QUESTIONS, 6, max_new_tokens=4)
    confidence = every.confidence.nan_to_num(-1).view(5, 6)
    assert found.text == [every.text[6 * i + int(best)] for i, best in enumerate(confidence.argmax(1))]
    torch.testing.assert_close(found.confidence, confidence.amax(1))
    assert len(found) == 5


CALLS: dict[str, tuple[Callable[[ConfidentModel, ConfidentModel], Any], str]] = {
    "neither risk nor threshold": (lambda q, a: abstain(q, QUESTIONS), "exactly one of `risk` and `threshold`"),
    "both": (lambda q, a: abstain(q, QUESTIONS, risk=0.2, threshold=0.5), "exactly one of `risk` and `threshold`"),
    "a risk that was not certified": (
        lambda q, a: abstain(q, QUESTIONS, risk=0.05),
        r"for a risk of 0.05, but it has thresholds only for 0.1, 0.2. Run `python -m applications decide` .* --probe",
    ),
    "no stored thresholds": (lambda q, a: route(a, print, QUESTIONS, risk=0.2), "but it has no thresholds"),
    "a text": (lambda q, a: abstain(q, "Why?", threshold=0.5), "`questions` to be a list of questions, but got 'Why"),
    "no questions": (lambda q, a: best_of(a, [], 3), "`questions` to be a list of questions"),
    "several answers": (
        lambda q, a: abstain(q, QUESTIONS, threshold=0.0, num_return_sequences=2, num_beams=2, **OPTIONS),
        "one answer per question, but got 10 answers to 5",
    ),
    "too few strong answers": (
        lambda q, a: route(q, lambda questions: ["x"], QUESTIONS, threshold=1.0),
        "`strong` to return one answer per question, but got 1 answers to 5",
    ),
    "best of a question probe": (lambda q, a: best_of(q, QUESTIONS, 3), "a probe that reads answers"),
    "best of no answers": (lambda q, a: best_of(a, QUESTIONS, 0), "`n` to be at least 1, but got 0"),
    "a threshold above 1": (lambda q, a: abstain(q, QUESTIONS, threshold=60.0), "between 0 and 1, but got 60.0"),
}


@pytest.mark.parametrize("name", CALLS)
def test_bad_arguments_give_a_one_line_error(
    name: str, of_questions: ConfidentModel, of_answers: ConfidentModel
) -> None:
    call, message = CALLS[name]
    with pytest.raises(InputError, match=message) as raised:
        call(of_questions, of_answers)
    assert "\n" not in str(raised.value)


def test_the_functions_are_public_names_of_the_package() -> None:
    assert {"abstain", "route", "best_of", "Decisions"} <= set(probes.__all__)
