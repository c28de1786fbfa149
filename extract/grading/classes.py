"""Classes of equal answers. Answers are equal if the grader parsed the same text from them.

For the `math` grader, answers are also equal if math-verify finds them equal.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from extract.grading.latex import spelled
from extract.grading.math import MATH, Algebra, equal_as_it_stands

Equal = Callable[[str, str], bool]


class AnswerClasses:
    """Groups the answers to a question into classes, numbered by first occurrence.

    Args:
        equal: Function that compares the first answer of a class with another answer. If None, only identical answers
            are equal.

    Attributes:
        first: First answer of each class, or None if the grader could not parse it.

    >>> classes = AnswerClasses()
    >>> [classes.add(answer) for answer in ("lima", None, "lima", None)]
    [0, 1, 0, 2]
    """

    def __init__(self, equal: Equal | None = None) -> None:
        self._equal, self._number = equal, dict[str, int]()
        self.first: list[str | None] = []

    def add(self, answer: str | None) -> int:
        """Return the class number of the next answer. Each answer that is None or empty gets a new class."""
        if answer and answer not in self._number and self._equal:
            for number, first in enumerate(self.first):
                if first and self._equal(first, answer):
                    self._number[answer] = number
                    break
        number = self._number.get(answer or "", len(self.first))
        if number == len(self.first):
            self.first.append(answer)
        if answer:
            self._number[answer] = number
        return number


@contextmanager
def equality(grader: str) -> Iterator[Equal | None]:
    """Context manager that yields the `equal` argument for `AnswerClasses`: None unless the grader is `math`."""
    if grader != MATH.name:
        yield None
        return
    with Algebra() as algebra:
        yield partial(_equal_expressions, algebra)


def _equal_expressions(algebra: Algebra, first: str, answer: str) -> bool:
    """Whether two mathematical answers are equal. False if math-verify can't decide."""
    equal = equal_as_it_stands(first, answer)
    return algebra.equal([spelled(first) or first], answer) is True if equal is None else equal
