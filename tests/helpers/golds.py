"""Reference answers of GSM8K, SVAMP and MATH-500, and modifications that keep or change their value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from extract.questions import Question
from tests.helpers.latex_values import values

DATA = Path(__file__).parents[3] / "shared/data"


class Written(NamedTuple):
    """A modified reference answer: the name of the modification, whether the answer is right, and its text."""

    how: str
    right: bool
    text: str


def written_numbers(gold: str, others: list[str]) -> Iterator[Written]:
    """Yield other forms of the same number, and different numbers."""
    value = Fraction(gold.replace(",", ""))
    plain = str(value) if value.denominator == 1 else str(float(value))
    grouped = f"{int(value):,}" if value.denominator == 1 else f"{float(value):,}"
    for how, text in {
        "gold": gold,
        "spacing": f"The answer is \n\n   {plain}  \n",
        "trailing period": f"The answer is {plain}.",
        "dollar": f"She makes ${plain} in all.",
        "thousands separators": f"The answer is {grouped}",
        "LaTeX separators": "$\\boxed{" + grouped.replace(",", r",\!") + "}$",
        "units": f"It takes them {plain} hours",
        "percent sign": f"That is {plain}%",
        "decimal": f"The answer is {plain}{'.00' if value.denominator == 1 else '0'}",
        "boxed in prose": rf"Of 7 we take some, so \boxed{{{plain}}} are left after 2 days.",
        "####": f"2 + 2 = 4\n#### {plain}\n\nQuestion: How much is 3 + 3?",
        "bold": f"The answer is **{plain}**",
        "other numbers after it": f"{plain} are left, which is 2 more than 1000003",
    }.items():
        yield Written(how, True, text)
    for how, other in {
        "value + 1": value + 1,
        "value − 1": value - 1,
        "wrong sign": -value,
        "ten times": 10 * value,
        "a tenth": value / 10,
        "another gold": Fraction(others[0].replace(",", "")),
    }.items():
        if other != value:
            said = str(other) if other.denominator == 1 else str(float(other))
            yield Written(how, False, f"The answer is {said}.")


def written_latex(gold: str, others: list[str]) -> Iterator[Written]:
    """Yield other forms of the same LaTeX expression, and expressions with a different value."""
    worth = values(gold)
    number = worth[0].real if worth and len(worth) == 1 and re.fullmatch(r"[-\d.,\\!]+", gold) else None
    for how, latex in {
        "gold": gold,
        "spacing": re.sub(r"([-+=])", r" \1 ", gold).replace(" ", "  "),
        r"\, spacing": re.sub(r"(?<=[,+=]) *(?!\\!|\d{3})", r"\\, ", gold),
        r"\dfrac": re.sub(r"\\[dt]?frac", r"\\dfrac", gold),
        r"\left \right": re.sub(r"(?<!left)(?<!text\{)([(\[])(.*)(?<!right)([)\]])", r"\\left\1\2\\right\3", gold),
        "thousands separators": re.sub(r"\B(?=(?:\d{3})+$)", ",", gold) if gold.isdecimal() else gold,
        "units": gold if number is None else rf"{gold}\text{{ cm}}^2",
        "dollar": gold if number is None else rf"\${gold}",
        "decimal": gold if number is None or "." in gold else f"{gold}.0",
        "slash": re.sub(r"^(-?)\\d?frac\{(\d+)\}\{(\d+)\}$", r"\1\2/\3", gold),
        "degrees": gold.replace(r"^\circ", r"^{\circ}"),
    }.items():
        if how == "gold" or (latex != gold and (values(latex) or latex) == (worth or latex)):
            yield Written(how, True, rf"\boxed{{{latex}}}")
    yield Written("in prose", True, f"The answer is ${gold}$, as was to be shown for $n = 2$.")
    yield Written("trailing period", True, rf"So we find \[{gold}.\]")
    yield Written("boxed in prose", True, rf"With $x = 7$ we have \boxed{{{gold}}} and 3 more steps are not needed.")
    parts = gold.split(",") if number is None and not re.search(r"\d,\d{3}|,\\!", gold) else [gold]
    closing = gold[-1] if gold[-1] in ")]" else r"\}" if gold.endswith("}") else ""
    for how, candidates in {
        "digit + 1": _with_digits(gold, lambda digits: str(int(digits) + 1)),
        "digit − 1": _with_digits(gold, lambda digits: str(abs(int(digits) - 1))),
        "ten times": _with_digits(gold, lambda digits: digits + "0"),
        "wrong sign": [
            gold[1:] if gold.startswith("-") else f"-{gold}",
            *_with_digits(gold, lambda digits: f"-{digits}"),
        ],
        "a part left out": [",".join(parts[:-1]) + closing] if len(parts) > 1 else [],
        "another gold": [next(other for other in others if _differ(gold, other))],
    }.items():
        for wrong in candidates:
            if _differ(gold, wrong):
                yield Written(how, False, rf"\boxed{{{wrong}}}")
    for how, wrong in {
        "another bracket": gold.translate(str.maketrans("[]", "()")) if re.search(r"(?<!\\)[][]", gold) else gold,
        "parts in another order": _reversed(gold),
    }.items():
        if wrong != gold:
            yield Written(how, False, rf"\boxed{{{wrong}}}")


def _reversed(gold: str) -> str:
    """Reverse the coordinates of a point or the rows of a matrix. Other references are returned unchanged."""
    if found := re.fullmatch(r"(\\left)?\((.+?)(\\right)?\)", gold):
        return gold if "cup" in gold else f"({','.join(reversed(found[2].split(',')))})"
    if found := re.fullmatch(r"\\begin\{pmatrix\}(.+)\\end\{pmatrix\}", gold):
        rows = r" \\ ".join(row.strip() for row in reversed(found[1].split(r"\\")))
        return rf"\begin{{pmatrix}} {rows} \end{{pmatrix}}"
    return gold


def _with_digits(gold: str, change: Callable[[str], str]) -> list[str]:
    """Return reference answers with one run of digits changed, but never the base of a numeral."""
    return [
        gold[: run.start()] + change(run[0]) + gold[run.end() :] for run in re.finditer(r"(?<![_\d])(?<!_\{)\d+", gold)
    ]


def _differ(gold: str, other: str) -> bool:
    """Return whether two references differ in every reading. For example, x = 5 can also be read as 5.

    Words and numerals with a base differ if their letters differ.
    """
    if any(re.fullmatch(r"[a-z]\s*=.*", one) for one in (gold, other)):
        return values(gold.split("=")[-1]) != values(other.split("=")[-1]) and values(other.split("=")[-1]) is not None
    ours, theirs = values(gold), values(other)
    if ours is None and theirs is None:
        return _bare_words(gold) != _bare_words(other)
    return ours != theirs and theirs is not None


def _bare_words(gold: str) -> str:
    return re.sub(r"\\text|\W", "", gold).lower()


def golds() -> dict[str, tuple[str, list[str], Callable[[str, list[str]], Iterator[Written]]]]:
    """Return the grader, the reference answers and their modified forms for each set."""
    lines = (DATA / "gsm8k_test.jsonl").read_text(encoding="utf-8").splitlines()
    gsm8k = [json.loads(line)["answer"].split("####")[1].strip() for line in lines]
    svamp = [str(one["Answer"]) for one in json.loads((DATA / "svamp.json").read_text(encoding="utf-8"))]
    math = [json.loads(line)["answer"] for line in (DATA / "math500.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "GSM8K": ("number", gsm8k, written_numbers),
        "SVAMP": ("number", svamp, written_numbers),
        "MATH-500": ("math", math, written_latex),
    }


def cases_of(
    name: str, references: list[str], written: Callable[[str, list[str]], Iterator[Written]], every: int = 1
) -> list[tuple[Question, Written]]:
    """Return pairs of a question and a form of its reference answer, for every `every`-th question."""
    return [
        (Question(str(number), name, "?", references=(gold,)), one)
        for number, gold in list(enumerate(references))[::every]
        for one in written(gold, references[number + 1 :] + references[:number])
    ]
