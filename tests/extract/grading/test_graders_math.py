"""Tests of the grader `math`: accepted answers, and grades that do not depend on threads, event loops or crashes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from extract.errors import InputError
from extract.grading import Grade, load_grader
from extract.grading import math as mathematics
from extract.grading.latex import spelled, stated_answer
from extract.grading.math import Algebra, equal_as_it_stands
from extract.grading.math_worker import load_equal
from extract.questions import Question

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def algebra() -> Iterator[Algebra]:
    with Algebra() as running:
        yield running


def equal(gold: str, answer: str, algebra: Algebra) -> object:
    answer_spelled = stated_answer(rf"\boxed{{{answer}}}")
    assert answer_spelled is not None
    shown = equal_as_it_stands(gold, answer_spelled)
    return algebra.equal([spelled(gold) or gold], answer_spelled) if shown is None else shown


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\frac{14}{3}", r"\dfrac{14}3"),
        (r"\frac{14}{3}", "14/3"),
        ("0.5", r"\frac12"),
        (r"137 \frac{1}{2}", "137.5"),
        (r"\$32,\!348", "32348"),
        (r"864 \mbox{ inches}^2", "864"),
        (r"5.4 \text{ cents}", r"5.4"),
        (r"90^\circ", r"90^{\circ}"),
        (r"90^\circ", "90 degrees"),
        (r"\text{Evelyn}", "evelyn"),
        (r"\text{(C)}", "C"),
        ("52_8", "52_{8}"),
        ("52_8", r"52_{\text{8}}"),
        ("52_8", "52"),
        ("52", "52_{10}"),
        ("1000", "1 000"),
        ("1234", r"1\,234"),
        ("1234", "1~234"),
        ("1000", "1'000"),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac\pi2)"),
        ("x^3+3x-6", "3x + x^3 - 6"),
        (r"\frac{11+9a}{20}", r"\frac{11}{20} + \frac{9a}{20}"),
        ("1,-2", "-2, 1"),
        ("x=5", "5"),
        (r"x \in [-2,7]", "[-2,7]"),
        ("y = -2x", "y + 2x = 0"),
        (r"(0,9) \cup (9,36)", r"(9,36) \cup (0,9)"),
        (r"\begin{pmatrix} -7 \\ 16 \end{pmatrix}", r"\begin{bmatrix} -7 \\ 16 \end{bmatrix}"),
        ("2m", "m+m"),
        (r"\cot x", r"\frac{\cos x}{\sin x}"),
        (r"2\sqrt{113}", r"\sqrt{452}"),
    ],
)
def test_equal_values_are_right_in_any_form(gold: str, answer: str, algebra: Algebra) -> None:
    assert equal(gold, answer, algebra) is True


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (".0000672", ".0000671"),  # math-verify alone rounds to 6 places
        ("9", r"900\%"),  # which it reads as 9
        (r"\frac{1}{3}", "0.333333"),
        (r"\sqrt{2}", "1.414214"),
        ("52_8", "52_9"),
        ("52_8", "42"),
        ("52", "52_8"),
        (r"\text{Evelyn}", "nylevE"),
        (r"\text{(C)}", "E"),
        (r"137 \frac{1}{2}", "68.5"),
        ("(3,4]", "(3,4)"),
        ("(6,31,-1)", "(31,6,-1)"),
        ("5", r"5\text{ million}"),
        ("2", r"2\text{ or }3"),
        ("2", r"2\pi"),
        ("5", r"5\mathrm{i}"),
        ("0", "1 000"),
        ("0", "100 000"),
        ("2m", "2"),  # whose letters it reads as units
        ("2m", "2g"),
        ("5", "5m"),
        ("1+2i", "1-2i"),
        (r"1 \pm \sqrt{19}", r"1 + \sqrt{19}"),
        ("y = -2x", "y = 2x"),
        ("x=5", "y=5"),
    ],
)
def test_different_values_are_wrong(gold: str, answer: str, algebra: Algebra) -> None:
    assert equal(gold, answer, algebra) is False


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"First $x = 3$. \[\boxed{\frac12}\] with $y = 2$", "1/2"),
        ("The answer is $p - q$, as $p > q$.", "p-q"),
        (r"Thus $a = 1$ and so $\sqrt2$", r"\sqrt{2}"),
        ("It takes 1 hour.\n\nThe final answer is: 7 apples.", "7"),
        ("x = 5", "x=5"),
        ("The answer is Evelyn.", "evelyn"),
        ("Then they have 5 apples left.", "5"),
        ("", None),
        (r"\boxed{}", None),
        (r"\boxed{" + "x+" * 2000 + "}", None),
        (r"\boxed{1 00}", None),
        ("The answer is equal to $20$.", "20"),
        ("The answer is $20$, as $x > 3$ or $x < 2$.", "20"),
        (r"\boxed{4}^{2}", "4^{2}"),
        (r"\boxed{x+1}^2", "(x+1)^2"),
        (r"\boxed{52}_8", "52_8"),
        (r"-\boxed{4}", "-4"),
        ("- \\boxed{4}", "4"),
        (r"\boxed{90}^\circ", "90"),
        (r"\boxed{4}^{\text{th}}", "4"),
        (r"\boxed{4\text{ cm}}^2", "4"),
        (r"\boxed{4}, not \boxed{5}", "4"),
        ("They retrieved B + 2B + 4 = 5B + 4 = 19 balls.", "19"),
        ("Now we know that 2/3 * x = 12.", None),
        (r"2\boxed{4}", "4"),  # a known error
    ],
)
def test_the_stated_answer_is_parsed(text: str, answer: str | None) -> None:
    assert stated_answer(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        "The answer is 10 or 20",
        "The answer is not 20",
        "The answer is minus 20",
        "The answer is 20 times pi",
        "The answer is 4 times 20",
        "The answer is twice 20",
        "The answer is greater than 20",
        "The answer is at least 20",
        "The answer is between 10 and 20",
        "10 to 20",
        "The answer is $20$ or $10$.",
        "The answer is $10$ to $20$.",
        "The answer is not $20$.",
        "It isn't $20$.",
        "$20$ times $x$",
        "The answer is $20$ times $x$",
        "The answer is $20$ more than $x$",
        "The answer is $20$ million",
        "20 is not the answer.",
        "20 is wrong",
        "It can't be 20",
        "The answer is 20 squared",
        "$20$ is wrong",
        "The answer can't be $20$",
        "I don't think it is $20$",
        r"\boxed{20\text{ is wrong}}",
        r"\boxed{20} is wrong",
        r"It is not $\boxed{20}$",
    ],
)
def test_parts_of_an_expression_and_one_of_several_numbers_are_not_parsed(text: str) -> None:
    assert load_grader("math").grade(Question("m", "t", "?", references=("20",), kind="math"), text) == (False, None)


def test_texts_that_are_not_expressions_are_wrong_and_unparsed() -> None:
    question = Question("m", "t", "?", references=(r"\sqrt{2}",), kind="math")
    assert load_grader("math").grade(question, r"\boxed{{{}") == Grade(False, None)


CASES = [
    (r"\frac{11+9a}{20}", r"\boxed{\frac{9a+11}{20}}"),
    (r"\frac{11+9a}{20}", r"\boxed{\frac{9a+12}{20}}"),
    ("(3,4]", r"\boxed{(3,4]}"),
    ("(3,4]", r"\boxed{(3,4)}"),
    ("p - q", "So it is $-q+p$."),
    ("p - q", "So it is $q - p$."),
    ("y = -2x", r"\boxed{2x+y=0}"),
    (r"\cot x", r"\boxed{\frac{1}{\tan x}}"),
    ("2k", ""),
    ("7", "seven"),
]


def grades() -> list[Grade]:
    """Grade all cases with `grade`."""
    answers = [
        (Question(str(n), "t", "?", references=(gold,), kind="math"), text) for n, (gold, text) in enumerate(CASES)
    ]
    with load_grader("math").running() as grade_all:
        return grade_all(answers, {}, lambda items, tokens: None)


def test_grades_are_the_same_in_the_main_thread_under_asyncio_and_in_its_worker_threads() -> None:
    async def inside_a_loop() -> list[Grade]:
        return grades()

    async def in_a_thread_of_a_loop() -> list[Grade]:
        return await asyncio.to_thread(grades)

    main = grades()
    assert [grade.right for grade in main] == [True, False, True, False, True, False, True, True, False, False]
    assert asyncio.run(inside_a_loop()) == main
    assert asyncio.run(in_a_thread_of_a_loop()) == main


def test_threads_share_one_process_and_get_their_own_answers(algebra: Algebra) -> None:
    with ThreadPoolExecutor(8) as threads:
        verdicts = list(threads.map(lambda n: algebra.equal([f"{n % 3}x + y"], f"y + {n % 2}x"), range(24)))
    assert verdicts == [n % 3 == n % 2 for n in range(24)]


def test_an_answer_that_takes_too_long_is_unknown_and_the_next_one_is_graded() -> None:
    with Algebra(seconds=0.1) as impatient:
        assert impatient.equal([r"2x"], "1000000000!") is None
        impatient.seconds = 10
        assert impatient.equal(["2x"], "x+x") is True


def test_a_killed_process_leaves_one_answer_unknown(algebra: Algebra) -> None:
    assert algebra.equal(["2x"], "x+x") is True
    assert algebra._process is not None
    os.kill(algebra._process.pid, signal.SIGKILL)
    algebra._process.wait()
    assert algebra.equal(["2x"], "x+x") is None
    assert algebra.equal(["2x"], "x+x") is True


def test_an_unknown_grade_is_not_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Algebra, "equal", lambda *given: None)
    question = Question("m", "t", "?", references=("2x",), kind="math")
    assert load_grader("math").grade(question, r"\boxed{x+x}") == Grade(None, "x+x")


def test_an_error_of_math_verify_is_unknown_unless_another_gold_is_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    def verify(gold: object, stated: object, *args: object, **options: object) -> bool:
        if "y" in str(gold):
            raise TypeError("these can not be compared")
        return str(gold) == str(stated)

    monkeypatch.setattr("math_verify.verify", verify)
    equal = load_equal()
    assert equal(["2y"], "2x") is None
    assert equal(["3x", "2y"], "2x") is None
    assert equal(["2y", "2x"], "2x") is True
    assert equal(["3x"], "2x") is False


def test_the_process_ends_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "from extract.grading.math import Algebra\n"
        "algebra = Algebra()\n"
        "algebra.equal(['x'], 'x+0')\n"
        "print(algebra._process.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert Path(f"/proc/{child}").exists() or not Path("/proc").exists()
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 20
    while _alive(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _alive(child)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_without_math_verify_the_grader_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mathematics, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'confidence-probes\[math\]'"):
        load_grader("math").grade(Question("m", "t", "?", references=("1",), kind="math"), "1")


def test_importing_the_graders_does_not_import_math_verify() -> None:
    code = "import sys, extract.grading; sys.exit('math_verify' in sys.modules or 'openai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
