"""`Grader`, which decides whether an answer is right, and `Grade`, its decision."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

from extract.questions.question import Kind, Question


class Grade(NamedTuple):
    """A grader's decision about one answer.

    Attributes:
        right: Whether the answer is right, or None if the grader could not decide.
        answer: Parsed answer, or None if the grader found none.
    """

    right: bool | None
    answer: str | None


class Case(NamedTuple):
    """An answer to grade, with its reasoning removed."""

    question: Question
    text: str
    answer: str


#: Known grades by question id and parsed answer. Graders add their decisions.
Known = dict[tuple[str, str], Grade]
#: Callback that receives the number of newly graded answers and the number of tokens used.
Counts = Callable[[int, int], object]
#: Function that returns the grade of each answer.
GradeAll = Callable[[Sequence[tuple[Question, str]], Known, Counts], list[Grade]]
#: Function that returns the grade of each case. No two cases have the same question and the same parsed answer.
Decide = Callable[[Sequence[Case], Counts], list[Grade]]


@dataclass(frozen=True)
class Grader:
    """A named grading rule.

    Attributes:
        name: Name of the grader, and of the folder that contains its grades.
        rule: Description of the rule, stored with the grades.
        running: Function that returns a context manager. The manager sets up resources and yields the function that
            grades answers.
        kinds: Kinds of questions for which this grader is the default.
        may_decide_later: Whether later runs should retry undecided answers.
    """

    name: str
    rule: str
    running: Callable[[], AbstractContextManager[GradeAll]]
    kinds: tuple[Kind, ...] = ()
    may_decide_later: bool = False

    def grade(self, question: Question, text: str) -> Grade:
        """Grade one answer. The text may contain reasoning.

        Each call sets up the grader's resources again. To grade many answers, use `running` instead.

        Raises:
            InputError: If the grader can't grade the question, or a package or server that it needs is missing.
        """
        with self.running() as grade_all:
            return grade_all([(question, text)], {}, lambda items, tokens: None)[0]


def from_function(
    name: str, grade: Callable[[Question, str], Grade], rule: str, kinds: tuple[Kind, ...] = ()
) -> Grader:
    """Build a grader from a function that takes a question and an answer (without its reasoning)."""

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
    """Build a grader from a decision function that is expensive to call.

    The function grades each distinct answer to a question only once.

    Args:
        parse: Function that returns the parsed answer or None, given a question and an answer without its reasoning.
        start: Function that returns a context manager. The manager yields a function that grades answers
            (see `Decide`).
        name, rule, kinds: See `Grader`.
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
    """Remove the reasoning that precedes an answer. The result is empty if the reasoning is truncated.

    >>> without_reasoning("<think>4 or 5?</think> 5")
    ' 5'
    >>> without_reasoning("<think>4 or")
    ''
    """
    _, end, answer = text.rpartition("</think>")
    return "" if not end and text.lstrip().startswith("<think>") else answer
