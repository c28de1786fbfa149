"""`Grader`: a named rule that decides whether an answer is right. `Grade`: its decision."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

from extract.questions.question import Kind, Question


class Grade(NamedTuple):
    """Decision of a grader about an answer.

    Attributes:
        right: Whether the answer is right; None if the grader could not decide.
        answer: Parsed answer, for counting equal ones; None if there was nothing to parse, which counts as wrong.
    """

    right: bool | None
    answer: str | None


class Case(NamedTuple):
    """An answer to decide: its question, its text without reasoning, and the parsed answer."""

    question: Question
    text: str
    answer: str


#: Known grades by question id and parsed answer. A grader adds its decisions.
Known = dict[tuple[str, str], Grade]
#: Callback with the numbers of graded answers and of tokens spent on them.
Counts = Callable[[int, int], object]
#: Function from questions and the texts of their answers to one grade each.
GradeAll = Callable[[Sequence[tuple[Question, str]], Known, Counts], list[Grade]]
#: Function from cases, distinct in question and parsed answer, to one grade each.
Decide = Callable[[Sequence[Case], Counts], list[Grade]]


@dataclass(frozen=True)
class Grader:
    """A named grading rule.

    Attributes:
        name: Name of the grader and of the folder of its grades.
        rule: Description of the rule, recorded with the grades.
        running: Opens a context that holds the grader's resources and yields its grading function.
        kinds: Kinds of questions that use this grader by default.
        may_decide_later: Whether undecided answers are worth another attempt.
    """

    name: str
    rule: str
    running: Callable[[], AbstractContextManager[GradeAll]]
    kinds: tuple[Kind, ...] = ()
    may_decide_later: bool = False

    def grade(self, question: Question, text: str) -> Grade:
        """Grade one answer. For many answers, `running` starts the grader's resources only once.

        Args:
            text: Answer as sampled, including any reasoning.

        Raises:
            InputError: If the grader can't grade the question, or a requirement is missing.
        """
        with self.running() as grade_all:
            return grade_all([(question, text)], {}, lambda items, tokens: None)[0]


def from_function(
    name: str, grade: Callable[[Question, str], Grade], rule: str, kinds: tuple[Kind, ...] = ()
) -> Grader:
    """Build a grader from a pure function.

    Args:
        grade: Function from a question and an answer without reasoning to a grade.
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
    """Build a grader with expensive decisions: each distinct answer to a question is decided once.

    Args:
        parse: Function from a question and an answer without reasoning to the parsed answer, or None.
        start: Opens a context that yields the decision function.
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
    """Remove the reasoning of a model before its answer. The result is empty if the reasoning was cut off.

    >>> without_reasoning("<think>4 or 5?</think> 5")
    ' 5'
    >>> without_reasoning("<think>4 or")
    ''
    """
    _, end, answer = text.rpartition("</think>")
    return "" if not end and text.lstrip().startswith("<think>") else answer
