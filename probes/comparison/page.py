"""A comparison as a page for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from probes.comparison.out_of_fold import BEST
from probes.comparison.record import cheap_baselines
from probes.report.templates import COLUMNS, inline, p_value, table
from probes.report.templates import difference as difference_text
from probes.report.templates import metric as figure
from probes.saved.card import model_words, tried

_COLUMNS = tuple(one for one in COLUMNS if one[0] != "auroc_hard")
_LEVEL = 0.05


def page(record: dict[str, Any], pictures: Sequence[str]) -> str:
    """The comparison as Markdown."""
    model, decoding = record["policy"]["model"], record["policy"]["decoding"]
    methods = record["methods"]
    whole = {name: one for name, one in methods.items() if not one["half"]}
    half = {BEST: {**methods[BEST], **record["on_half"][BEST]}} | {
        name: one for name, one in methods.items() if one["half"]
    }
    k = record["n_answers"] / record["n_questions"]
    return f"""# What knows how often the model is right

{model_words(model)} answered {record["n_questions"]} questions of {", ".join(record["datasets"])}, {k:g} times each, at temperature {decoding["temperature"]}, at most {decoding["max_new_tokens"]} tokens, prompt
`{inline(decoding["prompt"]["template"])}`; graded by `{record["grader"]}`; mean accuracy {record["accuracy"]:.3f}. Every method is scored out of fold: {record["folds"]} folds by question, and inside each, a quarter of the other
questions chooses layer, penalty and probe and fits the calibrators. `{BEST}` is in every fold the probe of hidden states with the least validation cross-entropy. Intervals are 95 %, over questions.

{verdict(record)}

## Confidences in questions, scored on all answers

{ceiling(record)}

{methods_table(whole)}

## The same, against methods that spend half of the answers

{half_section(half)}

- **Read, written**: tokens that the answering model reads and writes for one confidence; a text or NLI encoder is not counted.
- **AUROC** compares answers to two different questions of the same fold. **Brier** is debiased, against the true accuracy; **skill** is 1 − Brier / Brier of the training mean. **Answers' Brier** is the score of the
  same confidence against single answers: larger by the mean of p(1−p), which no confidence given before the answer can take away.
- **ECE** in ten bins of equal width, of equal **mass**, and as **RMSCE**, squared and with the noise subtracted, 0 where nothing is left: the first two are too large for a calibrated confidence, in resamples even more so. None has an interval that can be trusted near 0.
- **AURC**: mean share of wrong answers among the most confident questions, over all shares of questions answered; lower is better. It and Spearman pool the folds, which ranks even a constant a little.
- An AUROC of exactly ½ is a method whose scores did not rise with accuracy on validation: its calibrator made it a constant.

## Tests

Differences on the same questions and answers. p: AUROC by the paired bootstrap, Brier by sign flips of questions, two-sided, {5 * record["n_resamples"]:,} draws each, so that no p is below {2 / (5 * record["n_resamples"] + 1):.1g}; **p (Holm)** is corrected for all rows of the metric.

{tests_table(record["tests"])}

## Confidences in single answers

Scored on {next(iter(record["answers"].values()))["n_samples"] if record["answers"] else 0} answers; intervals over questions. `constant`, `base_rate` and `{BEST}` give all answers to a question the same confidence. AUROC here
counts all pairs of answers of a fold, those to one question too.

{answers_table(record["answers"])}

## What validation chose

{table(["fold", "probe", "layer", "position", "option", "validation loss"], [[str(one["fold"]), one["probe"], "–" if one["layer"] is None else str(one["layer"]), one["position"] or "–", " ".join(tried(one)), f"{one['val_loss']:.4f}"] for one in record["chosen"]])}

{"".join(f"- {note}{chr(10)}" for note in record["notes"])}
{masked(record["masked"])}
{chr(10).join(f"![{name}](plots/{name}.png)" for name in pictures)}

Store identity `{record["identity"]}`, seed {record["seed"]}, {", ".join(f"{name} {number}" for name, number in record["versions"].items())}.
"""


def half_section(methods: dict[str, Any]) -> str:
    """Methods that spend one half of the answers, with the chosen probe on the other."""
    chosen = methods[BEST]
    if not chosen["n_questions"]:
        return "Left out: the held-out half of the answers has less than two grades a question. Sample more answers."
    k = chosen["n_samples"] / chosen["n_questions"]
    return f"""These make their confidence from every second answer, and are scored on the others (k = {k:g}), as is `{BEST}` here.

{methods_table(methods)}"""


def verdict(record: dict[str, Any]) -> str:
    """Some lines: whether the chosen probe is better than every baseline that costs no more."""
    cheap, probes = cheap_baselines(record), Counter(one["probe"] for one in record["chosen"])
    chosen = ", ".join(f"`{name}` in {n}" for name, n in probes.most_common())
    lines = [
        f"Validation chose {chosen} of {record['folds']} folds. Against the baselines that cost no more tokens, with p corrected for all tests of the metric, `{BEST}` is",
        "",
    ]
    for metric, better, label in (("auroc", 1, "AUROC"), ("brier", -1, "Brier score")):
        found = {row["b"]: row for row in record["tests"] if row["a"] == BEST and row["metric"] == metric}
        groups: dict[str, list[str]] = {
            said: [] for said in ("better than", "worse than", "not told apart from", "not tested against")
        }
        for name in cheap:
            row = found.get(name)
            if row is None:
                groups["not tested against"].append(f"`{name}`")
                continue
            sure = row["p_holm"] is not None and row["p_holm"] < _LEVEL
            said = "not told apart from" if not sure else "better than" if row["value"] * better > 0 else "worse than"
            interval = difference_text(row)
            groups[said].append(f"`{name}` ({interval}, p {p_value(row['p_holm'])})")
        parts = [f"{said} {', '.join(names)}" for said, names in groups.items() if names]
        lines.append(f"- by {label} {'; '.join(parts)}.")
    return "\n".join(lines)


def ceiling(record: dict[str, Any]) -> str:
    """What the best possible AUROC would be."""
    one = record["methods"][BEST]["auroc_ceiling"]
    if one is None:
        return "The best possible AUROC could not be estimated: accuracies vary no more than noise would."
    return f"Who knew every accuracy would reach an AUROC of {one['value']:.3f} (between {one['low']:.3f} by the pessimistic and {one['high']:.3f} by the optimistic estimate)."


def methods_table(methods: dict[str, Any]) -> str:
    """One row a method, the probes first."""
    order = {"chosen": 0, "probe": 1, "baseline": 2}
    rows = [
        [
            f"**{name}**" if one["kind"] == "chosen" else name,
            ", ".join(
                "–" if one[tokens] is None else f"{one[tokens]:.0f}" for tokens in ("tokens_read", "tokens_written")
            ),
            *(figure(one, key) for key, _ in _COLUMNS),
            "–" if one["response_brier"] is None else f"{one['response_brier']:.3f}",
            str(one["n_questions"]) + (f" ({one['n_masked']} without)" if one["n_masked"] else ""),
        ]
        for name, one in sorted(methods.items(), key=lambda item: order[item[1]["kind"]])
    ]
    header = ["method", "read, written", *(label for _, label in _COLUMNS), "answers' Brier", "questions"]
    return table(header, rows)


def tests_table(tests: Sequence[dict[str, Any]]) -> str:
    """One row a pair of methods, both metrics beside each other."""
    pairs: dict[tuple[str, str], dict[str, Any]] = {}
    for row in tests:
        pairs.setdefault((row["a"], row["b"]), {})[row["metric"]] = row
    rows = [
        [f"{a} − {b}" + (" (half)" if next(iter(found.values()))["half"] else "")]
        + [
            text
            for metric in ("auroc", "brier")
            for row in [found.get(metric)]
            for text in (
                ("–", "–", "–") if row is None else (difference_text(row), p_value(row["p"]), p_value(row["p_holm"]))
            )
        ]
        for (a, b), found in pairs.items()
    ]
    return table(["difference", "AUROC", "p", "p (Holm)", "Brier", "p", "p (Holm)"], rows)


def answers_table(methods: dict[str, Any]) -> str:
    """One row a method, on single answers."""
    columns = [(key, label) for key, label in _COLUMNS if methods and key in next(iter(methods.values()))]
    rows = [
        [name, *(figure(one, key) for key, _ in columns), str(one["n_samples"]), str(one["n_masked"])]
        for name, one in methods.items()
    ]
    return table(["method", *(label for _, label in columns), "answers", "without a score"], rows)


def masked(reasons: dict[str, str]) -> str:
    """The methods that are missing, and why."""
    if not reasons:
        return ""
    return "## Not in the tables\n\n" + "\n".join(f"- `{name}`: {reason}" for name, reason in reasons.items()) + "\n"
