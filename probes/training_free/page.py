"""A grid as a page for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probes.report.templates import inline, p_value, table
from probes.report.templates import interval as cell
from probes.saved.card import model_words
from probes.training_free.record import LENGTH, LEVEL, TRUNCATED

#: Fewer test questions say little.
FEW_QUESTIONS = 30
#: What rows are, in their order.
_ROLES = ("best", "reference", "control")


def page(record: dict[str, Any], pictures: Sequence[str]) -> str:
    """The grid as Markdown."""
    model, decoding = record["policy"]["model"], record["policy"]["decoding"]
    val, test, grid = record["parts"]["val"], record["parts"]["test"], record["grid"]
    return f"""# What a signal alone says of an answer

{model_words(model)} answered questions of {", ".join(record["datasets"])} at temperature {decoding["temperature"]}, at most {decoding["max_new_tokens"]} tokens, prompt `{inline(decoding["prompt"]["template"])}`; graded by
`{record["grader"]}`. Every token signal of the store, pooled over an answer's content tokens in every way, is a score of that answer, and so are the numbers of `tokens` with every weighting: {grid["n_scores"]:,} scores, none of them trained, each in a direction that was fixed
before. {val["n_questions"]} questions chose (validation; nothing is trained, so that the training questions choose too), {test["n_questions"]} others tested, those that `train.py` tests with the same share and seed.

{verdict(record)}
{_few(test["n_questions"])}
## Counts

{counts_table(record)}

## The best of each family

Chosen on validation within each family, and of weighted scores (×) among those that differ there from all without weights; all columns but `on validation` are on the test answers. The first row is the
chosen one of all that take a single answer.

{families_table(record)}

- **AUROC**: of a right and a wrong answer, how often the right one has the higher score, ties ½; all pairs, also of answers to one question. A score that is the same for all answers has ½. Intervals are 95 %, by resampling
  questions with all their answers; – where right or wrong answers come from fewer than five questions.
- **On validation** the chosen scores look better than they are, because they were chosen there.
- **p** is against an AUROC of ½, two-sided, corrected for the rows of this table by the largest of all under exchanged grades (max-T): the grades of all answers to a question go to another question together.
- **Not cut**: among the answers that came to an end. **Equal length**: only pairs of a right and a wrong answer of equal length (the same number of up to 5 tokens, then within 25 %), {_share(record)} of all pairs. What a score loses there, it may
  owe to the length.
- `{LENGTH}` is log n alone, its direction taken from validation: {"longer" if record["longer_is_wrong"] else "shorter"} answers are wrong more often there. `{TRUNCATED}` is whether the limit of tokens cut the answer.
{_half_note(record)}
## Tests of the chosen score

Differences in AUROC on the same answers. p: paired bootstrap over questions, two-sided, {5 * record["n_resamples"]:,} draws; **p (Holm)** is corrected for the rows.

{tests_table(record["tests"])}

## By group of questions

The chosen score, between answers to questions of one group. What is lost against all questions is what it says of the groups. Without
an interval where right or wrong answers come from fewer than five questions: read nothing from these but the counts.

{groups_table(record["groups"])}

## All scores

grid.parquet has a row for each: signal, key, pooling, weighting, AUROC, standard error and number of answers on both parts, a 95 % interval on the test answers from the clustered standard error (on the scale of
log-odds), and a p-value corrected for all {grid["n_tested"]:,} scores that vary (max-T). With few test questions interval and p-value may disagree; take a score for better than chance where both say so. By these, {_overall(grid)} Do not take the best test row of it for a result: it is the best of {grid["n_scores"]:,}.

{_pictures(pictures)}{_masked(record["masked"])}
Store identity `{record["identity"]}`, seed {record["seed"]}, {", ".join(f"{name} {number}" for name, number in record["versions"].items())}.
"""


def verdict(record: dict[str, Any]) -> str:
    """What the numbers say of the chosen score, and no more."""
    rows = {row["name"]: row for row in record["rows"]}
    chosen, test = rows[record["chosen"]], record["parts"]["test"]
    begin = f"Of {record['grid']['n_scores']:,} scores validation chose **{record['chosen']}** (AUROC {chosen['auroc_val']:.3f} there)."
    if chosen["auroc"] is None:
        return f"{begin} The {test['n_questions']} test questions have too few right or wrong answers to say how well it does."
    p = chosen["p_corrected"]
    sure = p is not None and p < LEVEL
    low, high = chosen["auroc"]["low"], chosen["auroc"]["high"]
    side = (
        "it ranks right answers above wrong ones"
        if low > 0.5
        else "it ranks wrong answers above right ones"
        if high < 0.5
        else "the test finds more than chance in it, but by its interval it may be chance: more test questions would tell"
    )
    lines = [
        f"{begin} On {chosen['n_answers']:,} answers to {test['n_questions']} test questions its AUROC is {cell(chosen['auroc'])}: {side if sure else 'it is not told apart from chance'} (p {p_value(p)})."
    ]
    for one in record["tests"]:
        if one["a"] == record["chosen"]:
            better = one["p_holm"] is not None and one["p_holm"] < LEVEL
            said = "not told apart from" if not better else "better than" if one["value"] > 0 else "worse than"
            lines.append(f"It is {said} {_called(one['b'], record)} ({_difference(one)}, p {p_value(one['p_holm'])}).")
    if record["chosen"] == record["reference"]:
        lines.append("It is the mean token entropy itself.")
    within = chosen["equal_length"]
    if within is not None:
        holds = (
            "still above ½" if within["low"] > 0.5 else "below ½" if within["high"] < 0.5 else "not told apart from ½"
        )
        lines.append(f"Between answers of equal length its AUROC is {cell(within)}, {holds}.")
    return " ".join(lines)


def _called(name: str, record: dict[str, Any]) -> str:
    return (
        "answer length alone"
        if name == LENGTH
        else "mean token entropy"
        if name == record["reference"]
        else f"`{name}`"
    )


def counts_table(record: dict[str, Any]) -> str:
    """Questions and answers of both parts."""
    columns = ("n_questions", "n_answers", "n_right", "n_truncated", "n_empty", "n_unknown")
    rows = [
        [label, *(f"{record['parts'][part][one]:,}" for one in columns)]
        for part, label in (("val", "choose (validation)"), ("test", "test"))
    ]
    header = [
        "",
        "questions",
        "graded answers",
        "right",
        "cut at the limit",
        "without a content token (no score)",
        "unknown grade (left out)",
    ]
    left_out = record["n_questions_left_out"]
    return table(header, rows) + (
        f"\n\n{left_out} questions with fewer than two graded answers are left out." if left_out else ""
    )


def families_table(record: dict[str, Any]) -> str:
    """One row a family, the chosen one first, then the references."""
    rows = sorted(record["rows"], key=lambda row: (row["name"] != record["chosen"], _ROLES.index(row["role"])))
    return table(
        ["family", "score", "on validation", "AUROC", "p", "not cut", "equal length", "answers"],
        [
            [
                _family(row, record),
                f"`{row['name']}`",
                "–" if row["auroc_val"] is None else f"{row['auroc_val']:.3f}",
                cell(row["auroc"]),
                p_value(row["p_corrected"]),
                cell(row["uncut"]),
                cell(row["equal_length"]),
                f"{row['n_answers']:,}",
            ]
            for row in rows
        ],
    )


def _family(row: dict[str, Any], record: dict[str, Any]) -> str:
    if row["role"] != "best":
        return {"reference": "mean token entropy", "control": "control"}[row["role"]]
    return f"**{row['family']}**" if row["name"] == record["chosen"] else row["family"] + " †" * row["half"]


def tests_table(tests: Sequence[dict[str, Any]]) -> str:
    """One row a pair."""
    if not tests:
        return "None could be made: there are too few right or wrong answers."
    rows = [
        [
            f"`{one['a']}` − `{one['b']}`",
            _difference(one),
            p_value(one["p"]),
            p_value(one["p_holm"]),
            f"{one['n_answers']:,}",
        ]
        for one in tests
    ]
    return table(["difference", "AUROC", "p", "p (Holm)", "answers"], rows)


def groups_table(groups: Sequence[dict[str, Any]]) -> str:
    """One row a group."""
    rows = [
        [
            one["group"] or "all",
            str(one["n_questions"]),
            str(one["n_answers"]),
            str(one["n_right"]),
            cell(one["auroc"]) if one["auroc"] or one["value"] is None else f"{one['value']:.3f}",
        ]
        for one in groups
    ]
    return table(["group", "questions", "answers", "right", "AUROC"], rows)


def _difference(one: dict[str, Any]) -> str:
    return f"{one['value']:+.3f} [{one['low']:+.3f}, {one['high']:+.3f}]"


def _share(record: dict[str, Any]) -> str:
    share = next(row["share_of_pairs"] for row in record["rows"] if row["name"] == record["chosen"])
    return "–" if share is None else f"{share:.0%}"


def _few(n_questions: int) -> str:
    if n_questions >= FEW_QUESTIONS:
        return ""
    return f"\n**Only {n_questions} test questions: read the intervals, not the values.**\n"


def _half_note(record: dict[str, Any]) -> str:
    if not any(row["half"] for row in record["rows"]):
        return ""
    return "- † takes further answers: it is made from those with even j to a question, in their order of drawing from 0, and scored on those with odd j; it is not chosen among the others.\n"


def _overall(grid: dict[str, Any]) -> str:
    below = f" and {grid['n_below']:,} below it, that is the wrong way round" if grid["n_below"] else ""
    return f"{grid['n_above']:,} lie above ½{below}; the others are not told apart from chance."


def _pictures(pictures: Sequence[str]) -> str:
    if not pictures:
        return ""
    shown = "\n".join(f"![{name}](plots/{name}.png)" for name in pictures)
    return f"The pictures show the AUROC on the questions that chose, which are the larger part; look there for what signals and poolings have in common, and above for how well one does.\n\n{shown}\n\n"


def _masked(reasons: dict[str, str]) -> str:
    if not reasons:
        return ""
    return "Left out:\n\n" + "\n".join(f"- `{name}`: {reason}" for name, reason in reasons.items()) + "\n\n"
