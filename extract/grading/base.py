"""`Grader`: a named rule that says whether an answer is right, and `Grade`, what it says."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

from extract.questions.question import Kind, Question


class Grade(NamedTuple):
    """What a grader says of an answer.

    Attributes:
        right: Whether it is right; None where the grader could not decide.
        answer: What it took for the answer, so that equal ones can be counted; None where it found none: wrong.
    """

    right: bool | None
    answer: str | None


class Case(NamedTuple):
    """An answer to be decided: its question, its text without reasoning, and what was taken for the answer."""

    question: Question
    text: str
    answer: str


#: Grades of answers that were decided already, by question id and answer; a grader adds to it what it decides.
Known = dict[tuple[str, str], Grade]
#: Counts answers that are graded, and tokens that were spent on them.
Counts = Callable[[int, int], object]
#: From questions and their answers' texts to a grade each.
GradeAll = Callable[[Sequence[tuple[Question, str]], Known, Counts], list[Grade]]
#: From cases, no two with the same question and answer, to a grade each.
Decide = Callable[[Sequence[Case], Counts], list[Grade]]


@dataclass(frozen=True)
class Grader:
    """A named rule.

    Attributes:
        name: Its name, and that of the folder of its grades.
        rule: The rule in words, recorded beside the grades.
        running: Starts what it needs, gives a function that grades answers, and ends what it started.
        kinds: Kinds of questions that it grades where no grader is named.
        may_decide_later: Whether what it could not decide is worth another try.
    """

    name: str
    rule: str
    running: Callable[[], AbstractContextManager[GradeAll]]
    kinds: tuple[Kind, ...] = ()
    may_decide_later: bool = False

    def grade(self, question: Question, text: str) -> Grade:
        """The grade of one answer as it was sampled. For many answers `running` starts what it needs only once.

        Raises:
            InputError: A question that this grader can't grade, or something that it needs is missing.
        """
        with self.running() as grade_all:
            return grade_all([(question, text)], {}, lambda items, tokens: None)[0]


def from_function(
    name: str, grade: Callable[[Question, str], Grade], rule: str, kinds: tuple[Kind, ...] = ()
) -> Grader:
    """A grader out of a pure function from a question and an answer without its reasoning.

    Args:
        grade: The function.
        name, rule, kinds: As in `Grader`.
    """

    def grade_all(answers: Sequence[tuple[Question, str]], known: Known, count: Counts) -> list[Grade]:
        grades = []
        for question, text in answers:
            grades.append(grade(question, without_reasoning(text)))
            count(1, 0)
        return grades

    return Grader(name, rule, lambda: nullcontext(grade_all), kinds)


def from_decisions(
    name: str,
    parse: Callable[[Question, str], str | None],
    start: Callable[[], AbstractContextManager[Decide]],
    rule: str,
    kinds: tuple[Kind, ...] = (),
) -> Grader:
    """A grader whose decisions are expensive: each different answer to a question is decided once.

    Args:
        parse: From a question and an answer without its reasoning to what is taken for the answer.
        start: Starts what decides about answers that were parsed, and ends it.
        name, rule, kinds: As in `Grader`.
    """

    @contextmanager
    def running() -> Iterator[GradeAll]:
        with start() as decide:

            def grade_all(answers: Sequence[tuple[Question, str]], known: Known, count: Counts) -> list[Grade]:
                keys: list[tuple[str, str] | None] = []
                new: dict[tuple[str, str], Case] = {}
                for question, text in answers:
                    text = without_reasoning(text)
                    answer = parse(question, text)
                    keys.append(None if answer is None else (question.id, answer))
                    if answer is not None and (question.id, answer) not in known:
                        new.setdefault((question.id, answer), Case(question, text, answer))
                decided = dict(zip(new, decide(list(new.values()), count), strict=True))
                count(len(answers) - len(new), 0)
                known.update((key, grade) for key, grade in decided.items() if grade.right is not None)
                return [Grade(False, None) if key is None else known.get(key) or decided[key] for key in keys]

            yield grade_all

    return Grader(name, rule, running, kinds, may_decide_later=True)


def without_reasoning(text: str) -> str:
    """An answer without what a model thought before it; empty where the thinking was cut off before any answer.

    >>> without_reasoning("<think>4 or 5?</think> 5")
    ' 5'
    >>> without_reasoning("<think>4 or")
    ''
    """
    _, end, answer = text.rpartition("</think>")
    return "" if not end and text.lstrip().startswith("<think>") else answer
