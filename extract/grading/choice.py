r"""The grader `choice`: which of a question's lettered options an answer takes."""

import re
from collections.abc import Iterator, Sequence
from string import ascii_uppercase

from extract.errors import InputError
from extract.grading.base import Grade, from_function
from extract.grading.choice_options import match_exact, match_letters, match_text, plain, without_list
from extract.grading.latex import last_boxed
from extract.questions.question import Question

#: What an answer is stated behind, on the same line.
_CUE = re.compile(
    r"\banswer\b[^.:\n]{0,40}?(?::|=|\bis\b|\bbe\b)|(?<!not )\b(?:go|going) with\b"
    r"|\b(?:wait|actually|sorry|correction)\b(?:[\s,.:;-]|\b(?:actually|no|it is|it's|i mean)\b){1,9}"
    r"(?=[(*\"']{0,3}[A-Z]\b\W*(?:$|\n))",
    re.IGNORECASE,
)
_FAR = 1000  # characters behind a cue that are read
#: What says of the letters before it that they are the answer.
_AFFIRMED = re.compile(
    r"\s*(?:is|are|would be|must be|has to be)\s+(?:(?:the|my|both|most|best|final|likely|only|one|indeed|\w+ly)\s+)*"
    r"(?:answers?|options?|choices?|correct|right)\b",
    re.IGNORECASE,
)
#: What may stand between "the answer is" and its letter, so that the letter is what is meant, and not a vitamin.
_LEAD = re.compile(r"(?:\W|\b(?:the|option|choice|letter|most|likely|either|both|that|to|be|\w+ly)\b)*", re.IGNORECASE)
_ENDS = re.compile(r"\s*(?:$|,?\s*(?:because|since)\b)")


def grade_choice(question: Question, text: str) -> Grade:
    """Whether the answer takes the right option, and the letter that it takes.

    Raises:
        InputError: The question has no options, or its first reference is not the letter of one.
    """
    right = question.references[0]
    if len(right) != 1 or right not in ascii_uppercase[: len(question.choices)]:
        raise InputError(
            f"Expected question {question.id!r} to have `choices` and their letter as first of `references`, which the "
            f"grader 'choice' needs, but got {len(question.choices)} choices and {question.public(right[:100])!r}. "
            "Give another --grader, or correct the question."
        )
    taken = next((letters for letters in _stated(text, question.choices) if letters), set())
    letter = taken.pop() if len(taken) == 1 else None
    return Grade(letter == right, letter)


def _stated(text: str, choices: Sequence[str]) -> Iterator[set[str]]:
    """Letters of the options that each way of stating them gives, the surest way first."""
    yield match_exact(text, choices)
    text = plain(text)
    if (boxed := last_boxed(text)) is not None:
        yield _stated_in(boxed, 0, len(boxed), choices)
    yield _affirmed_or_cued(text, choices)
    bare = without_list(text, choices).strip()
    line, letters = bare.split("\n", 1)[0], match_letters(bare, len(choices))
    if letters and _LEAD.fullmatch(bare, 0, letters[0].start) and _ENDS.match(line, letters[0].end):
        yield letters[0].letters
    else:
        yield match_exact(line, choices)
    yield letters[-1].letters if letters else set()
    yield match_text(bare, choices)


def _stated_in(text: str, start: int, end: int, choices: Sequence[str]) -> set[str]:
    """What a statement takes: an option and nothing else, else its first letters, else the option that it says.

    Letters further inside, beside another option's text, leave open which of the two is meant.
    """
    statement = text[start:end]
    options, letters = match_exact(statement, choices), match_letters(text, len(choices), start, end)
    if options or not letters:
        return options or match_text(statement, choices)
    if _LEAD.fullmatch(text, start, letters[0].start):
        return letters[0].letters
    return letters[0].letters | match_text(statement, choices)


def _affirmed_or_cued(text: str, choices: Sequence[str]) -> set[str]:
    """What the last statement of an answer takes: what stands behind its cue, or what it says to be the answer."""
    groups = match_letters(text, len(choices))
    affirmed = [(group, match.end()) for group in groups if (match := _AFFIRMED.match(text, group.end))]
    cued = (-1, -1)
    for cue in _CUE.finditer(text):
        start, end = _behind(text, cue.end())
        if text[start:end].strip(" .:*") and not any(group.start < cue.start() < stop for group, stop in affirmed):
            cued = start, end
    if affirmed and affirmed[-1][0].start > cued[0]:
        line_start = text.rfind("\n", 0, affirmed[-1][0].start)
        return set().union(*(group.letters for group, _ in affirmed if group.start > line_start))
    return _stated_in(text, *cued, choices) if cued[0] >= 0 else set()


def _behind(text: str, start: int) -> tuple[int, int]:
    """Start and end of what follows a cue: the rest of the line, or the text's last line right behind it."""
    line, _, below = text[start : start + _FAR].partition("\n")
    if not line.strip(" .:*") and "\n" not in below.strip() and start + _FAR >= len(text):
        return start, len(text)
    return start, start + len(line)


CHOICE = from_function(
    "choice",
    grade_choice,
    "An option's text and nothing else, else the letter or the option's text in the last \\boxed{}, else in the last "
    "statement of an answer ('answer is B', 'answer:', 'B is correct', 'go with B', 'wait, C'), else in a first line "
    "that is nothing else but a reason, else the last letter that stands by itself, else the option whose text is "
    "said. Denied options ('not B', 'B is wrong') and a repeated list of options don't count. Nothing is taken where "
    "several options are ('A or B'), which is wrong. Right when the reference's letter is taken.",
    kinds=("choice",),
)
