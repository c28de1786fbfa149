"""Worked examples before a question: taken from train questions, or from questions that are then not asked."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace

from extract.errors import InputError
from extract.hashing import hash_order
from extract.prompts import PromptTemplate
from extract.questions.question import Question
from extract.questions.source import Source


def with_examples(source: Source, prompt: PromptTemplate, seed: int) -> tuple[list[Question], PromptTemplate]:
    """The questions that may be asked, and the prompt with its worked examples.

    Examples are questions of the source's train split whose words are not asked; without such a split they are
    questions of its own. No question is asked that has the words of an example, also of one that was given.

    Args:
        source: Where the questions are.
        prompt: How many examples there are to be, or the examples.
        seed: Seed of their choice, and of shuffled options.

    Raises:
        InputError: There are too few questions, they are chats, or they are not to be shown.
    """
    questions = source.questions(seed)
    n_missing = prompt.shots - len(prompt.examples)
    if n_missing > 0:
        _check(questions, source.dataset)
        train = source.examples(seed)
        if train is None:
            order = hash_order([f"example/{question.id}" for question in questions], seed)
            chosen = first_distinct((questions[i] for i in order), n_missing, taken=())
            print(
                f"questions: {len(chosen)} worked examples are questions of {source.dataset!r} itself, "
                "which are then not asked",
                file=sys.stderr,
            )
        else:
            chosen = first_distinct(train, n_missing, taken=(words(question) for question in questions))
        if len(chosen) < n_missing or (train is None and len(questions) <= n_missing):
            raise InputError(
                f"Expected enough questions of {source.dataset!r} for {n_missing} worked examples besides those that "
                f"are asked, but there are {len(questions) if train is None else len(chosen)}. "
                "Ask for fewer --policy.prompt.shots."
            )
        prompt = replace(prompt, examples=tuple((str(example.prompt), worked(example)) for example in chosen))
    shown = {_folded(asked) for asked, _ in prompt.examples}
    return [question for question in questions if words(question) not in shown], prompt


def worked(question: Question) -> str:
    """The answer of an example: the worked solution where there is one, else the first reference."""
    return str(question.meta.get("worked") or question.references[0])


def words(question: Question) -> str:
    """What is asked, without what copies of a question differ in: capitals and spaces."""
    return _folded(question.prompt if isinstance(question.prompt, str) else str(question.prompt))


def first_distinct(candidates: Iterable[Question], n: int, taken: Iterable[str]) -> list[Question]:
    """The first n candidates of words that are not taken, each of other words than those before it."""
    chosen: list[Question] = []
    seen = set(taken)
    for question in candidates:
        if len(chosen) == n:
            break
        if words(question) not in seen:
            seen.add(words(question))
            chosen.append(question)
    return chosen


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _check(questions: Iterable[Question], dataset: str) -> None:
    for question in questions:
        if question.private:
            raise InputError(
                f"Expected no `prompt.shots` with {dataset!r}: examples stand in every store's identity and every "
                "saved probe, and its authors ask that none be shown. Leave it out."
            )
        if question.messages:
            raise InputError(
                f"Expected no `prompt.shots` with {dataset!r}, whose question {question.id!r} is a chat, which is "
                "asked as it is. Write the examples into its messages."
            )
