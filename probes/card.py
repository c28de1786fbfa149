"""Texts for people: the report of a run and the model card of a saved probe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_COLUMNS = (
    ("auroc", "AUROC"),
    ("brier", "Brier"),
    ("brier_skill", "skill"),
    ("ece_width", "ECE"),
    ("ece_mass", "ECE (mass)"),
    ("spearman", "Spearman"),
    ("auroc_hard", "AUROC of p̂ ≥ ½"),
)

#: Fewer test questions say little.
_FEW_QUESTIONS = 30


def cell(interval: dict[str, float] | None) -> str:
    """``0.69 [0.62, 0.75]``, or a dash."""
    return "–" if interval is None else f"{interval['value']:.3f} [{interval['low']:.3f}, {interval['high']:.3f}]"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def methods_table(methods: dict[str, Any]) -> str:
    """One row a method: every figure with its interval, and the counts."""
    rows = [
        [
            name,
            *(cell(figures[key]) for key, _ in _COLUMNS),
            str(figures["n_questions"]),
            str(figures["n_samples"]),
            str(figures["n_unknown"]),
        ]
        for name, figures in methods.items()
    ]
    return table(["method", *(label for _, label in _COLUMNS), "questions", "answers", "unknown"], rows)


def summary_table(methods: dict[str, Any]) -> str:
    """The main figures of every method in aligned columns, for a terminal."""
    columns = ("auroc", "brier", "brier_skill", "ece_width")
    rows = [("test split, 95 % intervals", *(label for key, label in _COLUMNS if key in columns))]
    rows += [(name, *(cell(figures[key]) for key in columns)) for name, figures in methods.items()]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def markdown_report(record: dict[str, Any], identity: dict[str, Any], pictures: Sequence[str]) -> str:
    """The report of a run as Markdown."""
    model, decoding = identity["policy"]["model"], identity["policy"]["decoding"]
    chosen, counts, methods = record["chosen"], record["n_questions"], record["splits"]["test"]["capability"]
    probe = next(iter(methods))
    ceiling = methods[probe]["auroc_ceiling"]
    ceiling_text = (
        "could not be estimated"
        if ceiling is None
        else f"is estimated at {ceiling['value']:.3f} ({ceiling['low']:.3f} by the pessimistic way, {ceiling['high']:.3f} by the optimistic one; no interval)"
    )
    tried = record["l2_tried"]
    edge = " (the end of the range that was tried)" if len(tried) > 1 and chosen["l2"] in (tried[0], tried[-1]) else ""
    paired = [
        [f"{row['a']} − {row['b']}", row["metric"], f"{row['value']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"]
        for row in record["paired"]
    ]
    n_answers = round(methods[probe]["n_samples"] / methods[probe]["n_questions"], 1)
    few = (
        f"\n**Only {counts['test']} test questions: read the intervals, not the values.**\n"
        if counts["test"] < _FEW_QUESTIONS
        else ""
    )
    return f"""# How well the probe knows how often the model is right

`{model["id"]}` ({model["dtype"]}) answered {sum(counts.values())} questions of {", ".join(record["datasets"])}, {n_answers:g} times each, at temperature {decoding["temperature"]}, top-p {decoding["top_p"]}, at most
{decoding["max_new_tokens"]} tokens, prompt `{decoding["prompt"]["template"]}`; graded by `{record["grader"]}`. The share of right answers to a question is its accuracy p̂. The probe `{probe}` reads
layer {chosen["layer"]} at `{chosen["position"]}`, L2 {chosen["l2"]:g}{edge}; layer, L2 and the Platt calibrator were chosen on {counts["val"]} validation questions after
training on {counts["train"]}. The table is on {counts["test"]} test questions, on which nothing was fitted or chosen. Left out for want of two graded answers or of features: {record["n_unusable"]}.
{few}
{methods_table(methods)}

- Intervals are 95 %, from resampling questions with all their answers.
- **AUROC**: of a right and a wrong answer to two different questions, how often the right one's question has the higher confidence. The best that is possible here
  {ceiling_text}. **AUROC of p̂ ≥ ½** tells questions that are mostly right from the others; **Spearman** is the rank correlation of confidence and p̂.
- **Brier**: mean squared distance from the true accuracy, free of the bias of measuring it with few answers; **skill** is 1 − Brier / Brier of the training mean.
- **ECE**: mean distance of confidence and accuracy in ten bins of equal width, or of equal **mass**. Not debiased: with few questions it is too large, and its interval too.
- `constant` is the training mean, `base_rate` the training mean of the question's group, `length` a regression on the prompt's length, `consistency` the share of the most frequent answer.
  `consistency` uses one half of the answers and is scored on the other; its pair below scores the probe on that half too.
- Questions without two graded answers are in no row; **unknown** counts answers that the grader could not decide.

## Differences, paired by question

{table(["difference", "metric", "value"], paired)}

## Pictures

The first three are on the test questions; `layers` shows every layer's probe there, after the choice was made on validation; `accuracy` shows all questions.

{chr(10).join(f"![{name}](plots/{name}.png)" for name in pictures)}

Store identity `{record["identity"]}`, seed {record["seed"]}, {", ".join(f"{name} {number}" for name, number in record["versions"].items())}.
"""


def model_card(config: dict[str, Any]) -> str:
    """README.md of a saved probe: what it is for, what it reads, how well it does, how to use it."""
    model, training, test = config["model"], config["training"], config["test"]
    return f"""---
library_name: confidence-probes
base_model: {model["id"]}
tags: [confidence, calibration, probe]
---

# Confidence probe for `{model["id"]}`

Gives the probability that the model answers a question rightly, before it writes the first token. It reads the residual stream at layer {config["layer"]}, position
`{config["position"]}`, and is a {config["head"]} head with a Platt calibrator.

```python
from extract import load_model
from probes import load_probe

hf_model, tokenizer = load_model({model["id"]!r})
probe = load_probe("path/of/this/folder")
print(probe.score(hf_model, tokenizer, ["What is the capital of Peru?"]))
```

It holds for this policy only, and refuses another model: weights `{model["fingerprint"][:16]}…`, {model["dtype"]}, temperature {config["decoding"]["temperature"]}, at most
{config["decoding"]["max_new_tokens"]} tokens, prompt `{config["prompt"]["template"]}`.

Trained on {training["n_questions"]["train"]} questions of {", ".join(training["datasets"])}, graded by `{training["grader"]}`; layer, L2 and calibrator chosen on {training["n_questions"]["val"]} more.

| on {test["n_questions"]} test questions | 95 % interval over questions |
|---|---|
| capability AUROC | {cell(test["auroc"])} |
| Brier score, debiased | {cell(test["brier"])} |
| Brier skill over the training mean | {cell(test["brier_skill"])} |
| ECE, 10 bins of equal width | {cell(test["ece_width"])} |

Questions of another kind than those it was trained on get numbers that nobody has checked.
"""
