"""Worked examples before a question: taken from train questions, or from questions that are then not asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from extract.errors import InputError
from extract.hashing import hash_order
from extract.prompts import PromptTemplate
from extract.questions.question import Question
from extract.running.progress import say

if TYPE_CHECKING:
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
        for question in questions:
            if question.private or question.messages:
                reason = f"question {question.id!r} is a chat, which is asked as it is"
                raise InputError(
                    f"Expected no `prompt.shots` with {source.dataset!r}, because "
                    f"{'its authors ask that none be shown' if question.private else reason}. Leave it out."
                )
        train = source.examples(seed)
        if train is None:
            order = hash_order([f"example/{question.id}" for question in questions], seed)
            chosen = _first_distinct((questions[i] for i in order), n_missing, taken=set())
            say(f"questions: {len(chosen)} questions of {source.dataset!r} are worked examples, and are not asked")
        else:
            chosen = _first_distinct(train, n_missing, taken={_words(question.prompt) for question in questions})
        if len(chosen) < n_missing or (train is None and len(questions) <= n_missing):
            raise InputError(
                f"Expected enough questions of {source.dataset!r} for {n_missing} worked examples besides those that "
                f"are asked, but there are {len(questions) if train is None else len(chosen)}. "
                "Ask for fewer --policy.prompt.shots."
            )
        examples = (
            (str(question.prompt), str(question.meta.get("worked") or question.references[0])) for question in chosen
        )
        prompt = replace(prompt, examples=tuple(examples))
    shown = {_words(asked) for asked, _ in prompt.examples}
    return [question for question in questions if _words(question.prompt) not in shown], prompt


def _first_distinct(candidates: Iterable[Question], n: int, taken: set[str]) -> list[Question]:
    """The first n candidates whose words are not taken, each with other words than those before it."""
    chosen: dict[str, Question] = {}
    for question in candidates:
        words = _words(question.prompt)
        if words not in taken:
            chosen.setdefault(words, question)
        if len(chosen) == n:
            break
    return list(chosen.values())


def _words(prompt: object) -> str:
    """What is asked, without what copies of a question differ in: capitals and spaces."""
    return " ".join(str(prompt).casefold().split())
