r"""The `math` grader, which compares answers with references as strings, as values, or with math-verify.

math-verify runs in a separate process (``math_worker.py``). If it raises an error, times out or crashes, the grade is
unknown.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE
from threading import Lock
from typing import Self

from extract.errors import InputError
from extract.grading.base import Case, Counts, Decide, Grade, from_decisions
from extract.grading.latex import NUMERAL, spelled, stated_answer, value, wrapped_words
from extract.grading.math_worker import Verdict
from extract.text import normalize

SECONDS = 10.0  # time limit per answer


def equal_as_it_stands(gold: str, answer: str) -> bool | None:
    r"""Return whether an answer equals a gold answer by value or spelling, or None if only algebra can tell.

    `gold` is LaTeX, and `answer` is a result of `spelled`.

    >>> equal_as_it_stands(r"\frac12", "1/2"), equal_as_it_stands("52_8", "52_9"), equal_as_it_stands("x+1", "1+x")
    (True, False, None)
    """
    spelling = spelled(gold)
    if spelling is None or spelling == answer:
        return spelling == answer
    words = wrapped_words(gold)
    if words is not None:
        return normalize(answer) == words
    ours, theirs = NUMERAL.fullmatch(spelling), NUMERAL.fullmatch(answer)
    if ours and not theirs:
        return answer == ours[1]  # the question states the base
    if theirs:
        return not ours and theirs[2] == "10" and spelling == theirs[1]
    numbers = value(spelling), value(answer)
    return None if None in numbers else numbers[0] == numbers[1]


class Algebra:
    """Compares expressions with math-verify in a separate process.

    The process restarts after a failure, and runs until the ``with`` block ends. Instances are thread-safe.

    Args:
        seconds: Time limit per answer.

    Raises:
        InputError: If math-verify is not installed.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        if find_spec("math_verify") is None:
            raise InputError(
                "Expected math-verify to be installed for the 'math' grader, but it is not. "
                "Run `pip install 'confidence-probes[math]'`."
            )
        self.seconds = seconds
        self._process: subprocess.Popen[str] | None = None
        self._lock = Lock()

    def equal(self, golds: Sequence[str], answer: str) -> Verdict:
        """Return whether an answer equals one of `golds`.

        The result is None if the comparison is undecided, and "unread" if the answer is not an expression.
        """
        with self._lock:
            process = self._process = self._process or _start()
            asked = {"golds": golds, "answer": answer, "seconds": self.seconds}
            try:
                print(json.dumps(asked), file=process.stdin, flush=True)
                line = process.stdout.readline() if process.stdout else ""
            except BrokenPipeError:
                line = ""
            if not line:  # timeout or crash
                self.__exit__()
            verdict: Verdict = json.loads(line or "null")
            return verdict

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _start() -> subprocess.Popen[str]:
    """Start the math-verify process and wait until it is ready."""
    worker = Path(__file__).with_name("math_worker.py")
    command = [sys.executable, "-P", str(worker)]  # -P: no imports from the folder of the worker
    process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
    if process.stdout and not process.stdout.readline():
        lines = process.communicate()[1].strip().splitlines() or ["nothing"]
        raise InputError(
            f"Expected math-verify to start, but its process printed {lines[-1]!r}. "
            "Run `pip install 'confidence-probes[math]'` again."
        )
    return process


@contextmanager
def _deciding() -> Iterator[Decide]:
    with Algebra() as algebra:

        def decide(cases: Sequence[Case], count: Counts) -> list[Grade]:
            grades = []
            for case in cases:
                equal = {gold: equal_as_it_stands(gold, case.answer) for gold in case.question.references}
                verdict: Verdict = True in equal.values()
                unclear = [spelled(gold) or gold for gold in equal if equal[gold] is None]
                if unclear and not verdict:
                    verdict = algebra.equal(unclear, case.answer)
                grades.append(Grade(False, None) if verdict == "unread" else Grade(verdict, case.answer))
                count(1, 0)
            return grades

        yield decide


MATH = from_decisions(
    "math",
    lambda question, text: stated_answer(text),
    _deciding,
    "The answer is the last \\boxed{} that is not denied ('not 5', '5 is wrong'), with a minus in front of it and an "
    "exponent or index behind it, otherwise the text after the last 'answer is', otherwise the last formula, otherwise "
    "the last line. Spacing, units, degrees, currencies and percent signs are ignored. There is no answer if a number "
    "or formula is denied, a word makes it a part of the answer ('10 or 20', '20 times x'), or prose contains several "
    "numbers or terms (4x). The answer is right if it has the same spelling or exact value as a reference or, if one "
    "of the two is not a number, if math-verify 0.9 considers them equal. The grade is unknown if the comparison takes "
    f"more than {SECONDS:g} seconds or fails.",
    kinds=("math",),
)
