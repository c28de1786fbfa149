"""Grade the reference answers of GSM8K, SVAMP and MATH-500 (../shared/data), and modifications of them.

Each modification is meant either to keep or to change the value of the answer. For LaTeX, an independent parser
(`latex_values`) checks the effect. Modifications without the intended effect are left out.
"""

from __future__ import annotations

from benchmarks.result import report
from extract.grading import load_grader
from tests.helpers.golds import (
    DATA,
    Written,
    cases_of,
    golds,
)


def main() -> None:
    """Run the benchmark and print its results."""
    if not DATA.is_dir():
        raise SystemExit("golds: skipped, because the folder ../shared/data with the question sets does not exist")
    shares: dict[str, dict[str, tuple[int, int]]] = {}
    wrong_right, right = [], {}
    for name, (grader, references, written) in golds().items():
        cases = cases_of(name, references, written)
        with load_grader(grader).running() as grade_all:
            grades = grade_all([(question, one.text) for question, one in cases], {}, lambda items, tokens: None)
        counted = shares.setdefault(name, {})
        for (question, one), grade in zip(cases, grades, strict=True):
            n_right, n = counted.get(_label(one), (0, 0))
            counted[_label(one)] = (n_right + (grade.right is True), n + 1)
            if grade.right and not one.right:
                wrong_right.append((question.references[0], one.text))
        right[name] = counted["gold"]
    rows = sorted(dict.fromkeys(row for counted in shares.values() for row in counted), key=lambda row: "wrong" in row)
    print(f"| what was done | {' | '.join(shares)} |\n|---|{'---:|' * len(shares)}")
    for row in rows:
        cells = (f"{counted[row][0]} of {counted[row][1]}" if row in counted else "" for counted in shares.values())
        print(f"| {row} | {' | '.join(cells)} |")
    for gold, text in wrong_right[:20]:
        print(f"graded as right: {text!r} for {gold!r}")
    report(
        "golds",
        {"golds right": {name: n / of for name, (n, of) in right.items()}, "wrong values right": len(wrong_right)},
        "all golds right, no wrong value right",
        not wrong_right and all(n == of for n, of in right.values()),
        right={name: dict(sorted(counted.items())) for name, counted in shares.items()},
    )


def _label(one: Written) -> str:
    return one.how if one.right else f"wrong: {one.how}"


if __name__ == "__main__":
    main()
