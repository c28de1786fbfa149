"""Select and order questions, and choose worked examples."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from extract.errors import InputError, nearest
from extract.hashing import hash_order
from extract.prompts import PromptTemplate
from extract.questions.question import Question
from extract.questions.source import Source
from extract.running.progress import say

_OWN = ("group", "kind", "dataset")


def subset(
    questions: Sequence[Question], n_questions: int | None, seed: int, stratify_by: str | None, name: str
) -> list[Question]:
    """Select questions in a seeded random order. A smaller subset is a prefix of a larger one.

    With `stratify_by`, one question is taken from each stratum in turn.

    Args:
        n_questions: Number of questions; None for all.
        stratify_by: `group`, `kind`, `dataset` or a key of `meta`; None for no stratification.
        name: Name of the source, for error messages.

    Raises:
        InputError: If there are too few questions, or if no question has the `stratify_by` field.
    """
    if n_questions is not None and not 1 <= n_questions <= len(questions):
        raise InputError(
            f"Expected `n_questions` to be between 1 and {len(questions)}, the size of {name!r}, but got "
            f"{n_questions}. Pass a number in this range, or omit `n_questions` to use all questions."
        )
    ordered = [questions[i] for i in hash_order([question.id for question in questions], seed)]
    if stratify_by is not None:
        values = [str(getattr(q, stratify_by) if stratify_by in _OWN else q.meta.get(stratify_by, "")) for q in ordered]
        if not any(values):
            known = [name for name in _OWN if any(getattr(question, name) for question in ordered)]
            known += dict.fromkeys(key for question in ordered for key in question.meta)
            raise InputError(
                f"Expected `stratify_by` to be a field of these questions ({', '.join(known)}), but got "
                f"{stratify_by!r}.{nearest(stratify_by, known)}"
            )
        next_round: defaultdict[str, count[int]] = defaultdict(count)
        rounds = [next(next_round[value]) for value in values]
        ordered = [ordered[i] for i in sorted(range(len(ordered)), key=rounds.__getitem__)]  # stable
    return ordered[:n_questions]


def with_examples(source: Source, prompt: PromptTemplate, seed: int) -> tuple[list[Question], PromptTemplate]:
    """Read the questions of a source, and select worked examples for few-shot prompts.

    The examples come from the train split, excluding rows whose text matches that of a question. If there is no train
    split, they come from the questions themselves. Questions whose text matches that of an example are left out.

    Args:
        prompt: Template with the number of examples (`shots`) or the examples themselves.

    Returns:
        The remaining questions, and the prompt template with the examples.

    Raises:
        InputError: If examples must be selected, and there are too few questions or one of the questions is private or
            a chat.
    """
    questions = source.questions(seed)
    if prompt.shots > len(prompt.examples):
        hidden = next((question for question in questions if question.private or question.messages), None)
        if hidden is not None:
            is_chat = f"Question {hidden.id!r} is a chat, and examples cannot be added to chats"
            reason = f"Question {hidden.id!r} is private" if hidden.private else is_chat
            raise InputError(
                f"Expected no `prompt.shots` with {source.dataset!r}, but got {prompt.shots}. {reason}. "
                "Remove `prompt.shots`."
            )
        train = source.examples(seed)
        order = hash_order([f"example/{question.id}" for question in questions], seed)
        taken = set() if train is None else {_words(question.prompt) for question in questions}
        chosen: dict[str, Question] = {}
        for question in train or (questions[i] for i in order):
            if (words := _words(question.prompt)) not in taken:
                chosen.setdefault(words, question)
            if len(chosen) == prompt.shots:
                break
        if train is None:
            say(
                f"questions: {len(chosen)} questions from {source.dataset!r} are used only as worked (few-shot) "
                "examples"
            )
        if len(chosen) < prompt.shots or (train is None and len(questions) <= prompt.shots):
            raise InputError(
                f"Expected {source.dataset!r} to have enough questions for {prompt.shots} worked examples, but found "
                f"only {len(questions) if train is None else len(chosen)}. A question cannot be both an example "
                "and part of the store. Reduce --policy.prompt.shots."
            )
        shown = ((str(one.prompt), str(one.meta.get("worked") or one.references[0])) for one in chosen.values())
        prompt = replace(prompt, examples=tuple(shown))
    examples = {_words(asked) for asked, _ in prompt.examples}
    return [question for question in questions if _words(question.prompt) not in examples], prompt


def _words(prompt: object) -> str:
    """Convert a prompt to lower case with single spaces."""
    return " ".join(str(prompt).casefold().split())
