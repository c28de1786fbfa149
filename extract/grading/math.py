r"""The grader `math`: what an answer states is compared as numbers, as text, and by math-verify.

math-verify runs in a process of its own (``math_worker.py``), which is ended when an answer takes too long. Where it
raises an error, runs out of time or crashes, the grade is unknown; only its verdict makes an answer wrong.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Self

from extract.errors import InputError
from extract.grading.base import Case, Counts, Decide, Grade, from_decisions
from extract.grading.latex import numeral, spelled, stated_answer, value, wrapped_words
from extract.grading.math_worker import Verdict
from extract.text import normalize

SECONDS = 10.0  # for one answer


def equal_as_it_stands(gold: str, answer: str) -> bool | None:
    r"""Whether an answer equals a gold answer, as far as that shows without algebra.

    Args:
        gold: LaTeX.
        answer: As `spelled`.

    Returns:
        None where it takes algebra to tell.

    >>> equal_as_it_stands(r"\frac12", "1/2"), equal_as_it_stands("52_8", "52_9"), equal_as_it_stands("x+1", "1+x")
    (True, False, None)
    """
    spelling = spelled(gold)
    if spelling is None or spelling == answer:
        return spelling == answer
    words = wrapped_words(gold)
    if words is not None:
        return normalize(answer) == words
    ours, theirs = numeral(spelling), numeral(answer)
    if ours and not theirs:
        return answer == ours[0]  # the question says which base
    if theirs and theirs[1] == "10" and not ours:
        return spelling == theirs[0]
    if ours or theirs:
        return ours == theirs
    numbers = value(spelling), value(answer)
    return None if None in numbers else numbers[0] == numbers[1]


class Algebra:
    """Compares expressions by math-verify, in a process that is started when it is first needed, and anew when it ends.

    It may be asked from any thread. The process ends with the context, and with us.

    Args:
        seconds: What each answer may take.

    Raises:
        InputError: math-verify is missing.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        if find_spec("math_verify") is None:
            raise InputError(
                "Expected math-verify to be installed, which the grader 'math' needs, but it is not. "
                "Run `pip install 'confidence-probes[math]'`."
            )
        self.seconds = seconds
        self._process: subprocess.Popen[str] | None = None
        self._lock = Lock()

    def equal(self, golds: Sequence[str], answer: str) -> Verdict:
        """Whether an answer equals one of several gold answers; None where that could not be decided."""
        with self._lock:
            process = self._process = self._process or _start()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                asked = {"golds": golds, "answer": answer, "seconds": self.seconds}
                print(json.dumps(asked), file=process.stdin, flush=True)
                line = process.stdout.readline()
            except BrokenPipeError:
                line = ""
            if not line:  # it took too long, or crashed
                self._end()
                return None
            verdict: Verdict = json.loads(line)
            return verdict

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()


def _start() -> subprocess.Popen[str]:
    """The process, once it is ready.

    Raises:
        InputError: It does not become so.
    """
    worker = Path(__file__).with_name("math_worker.py")
    process = subprocess.Popen(
        [sys.executable, "-P", str(worker)],  # -P: the modules beside it are not for it
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    if not process.stdout.readline():
        lines = process.communicate()[1].strip().splitlines() or ["nothing"]
        raise InputError(
            f"Expected math-verify to start, but its process said {lines[-1]!r}. "
            "Run `pip install 'confidence-probes[math]'` again."
        )
    return process


@contextmanager
def decide_math() -> Iterator[Decide]:
    """Starts what compares, and ends it."""
    with Algebra() as algebra:

        def decide(cases: Sequence[Case], count: Counts) -> list[Grade]:
            grades = []
            for case in cases:
                grades.append(_decide(case, algebra))
                count(1, 0)
            return grades

        yield decide


def _decide(case: Case, algebra: Algebra) -> Grade:
    references = case.question.references
    verdicts = [equal_as_it_stands(gold, case.answer) for gold in references]
    if True in verdicts:
        return Grade(True, case.answer)
    unclear = [spelled(gold) or gold for gold, equal in zip(references, verdicts, strict=True) if equal is None]
    verdict = algebra.equal(unclear, case.answer) if unclear else False
    return Grade(False, None) if verdict == "unread" else Grade(verdict, case.answer)


MATH = from_decisions(
    "math",
    lambda question, text: stated_answer(text),
    decide_math,
    "The last \\boxed{}, else what follows the last 'answer is', else the last formula, else the last line; spacing, "
    "units, degrees, currencies and percent signs don't count. Nothing is taken from prose that holds several numbers, "
    "nor beside a word that makes of a number or formula a part ('10 or 20', 'not 20', '20 times x'). Right when it is "
    "spelled like a reference, or has its exact value; where one of the two is no number, when math-verify 0.9 finds "
    f"them equal. Unknown where that takes more than {SECONDS:g} seconds or fails.",
    kinds=("math",),
)
