"""Rewordings of questions, which show how much accuracy and confidence depend on the wording.

To add a rewording, add an entry to `REWORDINGS`.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from extract.errors import InputError, at_least_one
from extract.questions.question import Question

#: Key of `Question.meta` with the id of the original question.
ORIGINAL = "reworded"


def _initial_lower(text: str) -> str:
    return text[:1].lower() + text[1:]


#: Rewordings by name. The right answer stays the same.
REWORDINGS: dict[str, Callable[[str], str]] = {
    "please answer": lambda text: f"Please answer the following question. {text}",
    "only answer": lambda text: f"{text} Give only the answer.",
    "one word": lambda text: f"{text} Reply in one or two words.",
    "quick": lambda text: f"I have a quick question: {text}",
    "friend": lambda text: f"My friend wants to know: {text}",
    "need": lambda text: f"{text} I really need to know.",
    "trivia": lambda text: f"Here is a trivia question for you. {text}",
    "crossword": lambda text: f"For a crossword puzzle: {text}",
    "tell me": lambda text: f"Tell me, {_initial_lower(text)}",
    "do you know": lambda text: f"Do you know the answer to this? {text}",
    "time": lambda text: f"{text} Take your time.",
    "exam": lambda text: f"This was asked in an exam: {text}",
    "hi": lambda text: f"Hi there! {text}",
    "advance": lambda text: f"{text} Thanks in advance!",
    "precisely": lambda text: f"Answer this as precisely as you can: {text}",
    "wondering": lambda text: f"I was wondering, {_initial_lower(text)}",
    "no explanation": lambda text: f"{text} (no explanation needed)",
    "next": lambda text: f"Next question. {text}",
    "she asked": lambda text: f'She asked: "{text}"',
    "excuse me": lambda text: f"Excuse me, {_initial_lower(text)}",
    "appreciate": lambda text: f"I would appreciate your help. {text}",
    "help": lambda text: f"Can you help me with this one? {text}",
    "guess": lambda text: f"{text} If you are not sure, guess.",
    "without looking": lambda text: f"Without looking it up: {text}",
    "title": lambda text: text.title(),
    "quoted": lambda text: f'"{text}"',
    "twice": lambda text: f"{text} {text}",
}


def reworded(questions: Iterable[Question], n: int = 6, seed: int = 0) -> list[Question]:
    """Return `n` different rewordings of each question, chosen at random from `REWORDINGS`.

    The group of a new question is the name of its rewording. The id of the original question is in
    ``meta["reworded"]``.

    Args:
        questions: Plain-text questions.
        n: Number of rewordings per question.
        seed: Seed for choosing the rewordings.

    Raises:
        InputError: If `n` is not between 1 and the number of rewordings, or if a question is a chat.

    >>> [one] = reworded([Question("a", "mine", "1 + 1?", references=("2",))], n=1)
    >>> one.id, one.text, one.meta
    ('hi: a', 'Hi there! 1 + 1?', {'reworded': 'a'})
    """
    at_least_one("n", n, default=6)
    if n > len(REWORDINGS):
        raise InputError(f"Expected `n` to be at most {len(REWORDINGS)}, the number of rewordings, but got {n}.")
    rng, found = random.Random(seed), list[Question]()
    for question in questions:
        if question.messages:
            raise InputError(f"Expected plain-text questions, but {question.id!r} is a chat. Chats cannot be reworded.")
        for name in rng.sample(list(REWORDINGS), n):
            # a rewording of a rewording refers to the original question
            meta = {ORIGINAL: question.id, **question.meta}
            new: dict[str, Any] = {
                "id": f"{name}: {question.id}",
                "text": REWORDINGS[name](question.text),
                "group": name,
                "meta": meta,
            }
            found.append(replace(question, **new))
    return found
