"""Texts for people: the report of a run and the model card of a saved probe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from extract.signals.features import Pooled
from probes.report.templates import COLUMNS, difference, inline, metric, table

#: Options of which a probe tries several values, in words.
OPTIONS = {"l2": "L2", "n_neighbors": "number of neighbours"}
#: Fewer test questions say little.
_FEW_QUESTIONS = 30


def methods_table(methods: dict[str, Any]) -> str:
    """One row a method: every figure with its interval, and the counts."""
    columns = [(key, label) for key, label in COLUMNS if key in next(iter(methods.values()))]
    rows = [
        [
            name,
            *(metric(figures, key) for key, _ in columns),
            str(figures["n_questions"]),
            str(figures["n_samples"]),
            str(figures["n_unknown"]),
        ]
        for name, figures in methods.items()
    ]
    return table(["method", *(label for _, label in columns), "questions", "answers", "unknown"], rows)


def summary_table(methods: dict[str, Any]) -> str:
    """The main figures of every method in aligned columns, for a terminal."""
    shown = next(iter(methods.values()))
    columns = [key for key in ("auroc", "brier", "brier_skill", "ece_width") if key in shown]
    rows = [("test split, 95 % intervals", *(label for key, label in COLUMNS if key in columns))]
    rows += [(name, *(metric(figures, key) for key in columns)) for name, figures in methods.items()]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


_TARGETS = {
    "capability": "The share of right answers to a question is its accuracy p̂, which the probe was taught and is tested on.",
    "semantic_entropy": "The probe was taught whether a question's answers agree more than those to most training questions (no grade); its calibrator and the figures go by the accuracy p̂, the share of right answers.",
    "seu": "The probe was taught how near the embeddings of a question's answers are to each other (no grade); its calibrator and the figures go by the accuracy p̂, the share of right answers.",
    "response": "The probe reads a question with one of its answers, and was taught, and is tested on, whether that answer is right.",
}
_LEGENDS = {
    "capability": """- **AUROC**: of a right and a wrong answer to two different questions, how often the right one's question has the higher confidence. The best that is possible here
  {ceiling}. **AUROC of p̂ ≥ ½** tells questions that are mostly right from the others; **Spearman** is the rank correlation of confidence and p̂.
- **Brier**: mean squared distance from the true accuracy, free of the bias of measuring it with few answers; **skill** is 1 − Brier / Brier of the training mean.
- **AURC**: mean share of wrong answers among the most confident questions, over all shares of questions answered; lower is better.
- `consistency`, the entropies, likelihoods and `seu` use one half of the answers and are scored on the other; their pairs below score the probe on that half too.""",
    "response": """- **AUROC**: of a right and a wrong answer, how often the right one has the higher confidence. **Brier**: mean squared distance of the confidence from right (1) or wrong (0).
- **AURC**: mean share of wrong answers among the most confident ones, over all shares of answers given; lower is better.
- `constant`, `base_rate`, `length` and what was asked about a question give all its answers the same confidence; `mean_nll`, `max_nll`, the entropies and `p_true_answer` look at the answer.""",
}


def markdown_report(record: dict[str, Any], identity: dict[str, Any], pictures: Sequence[str]) -> str:
    """The report of a run as Markdown."""
    model, decoding = identity["policy"]["model"], identity["policy"]["decoding"]
    chosen, counts = record["chosen"], record["n_questions"]
    ((target, methods),) = record["splits"]["test"].items()
    probe = next(iter(methods))
    ends = (min(record["tried"]), max(record["tried"]))
    option, value = tried(chosen)
    edge = " (the end of the range that was tried)" if len(record["tried"]) > 1 and float(value) in ends else ""
    paired = [[f"{row['a']} − {row['b']}", row["metric"], difference(row)] for row in record["paired"]]
    warning = f"\n**{record['warning']}**\n" if record["warning"] else ""
    n_answers = round(methods[probe]["n_samples"] / methods[probe]["n_questions"], 1)
    few = (
        f"\n**Only {counts['test']} test questions: read the intervals, not the values.**\n"
        if counts["test"] < _FEW_QUESTIONS
        else ""
    )
    return f"""# How well the probe knows how often the model is right

{model_words(model)} answered {sum(counts.values())} questions of {", ".join(record["datasets"])}, {n_answers:g} times each, at temperature {decoding["temperature"]}, top-p {decoding["top_p"]}, at most
{decoding["max_new_tokens"]} tokens, prompt `{inline(decoding["prompt"]["template"])}`; graded by `{record["grader"]}`. {record["taught"] or _TARGETS[record["target"]]} The probe `{probe}` reads
{what_is_read(chosen["layer"], chosen["position"], record["pooled"])}, {option} {value}{edge}; {"" if chosen["layer"] is None else "layer, "}{option} and the {chosen["calibrator"]["kind"]} calibrator were chosen on {counts["val"]} validation questions after
training on {counts["train"]}. The table is on {counts["test"]} test questions, on which nothing was fitted or chosen. Rows left out for want of two graded answers or of features: {record["n_unusable"]}.
{few}{warning}
{methods_table(methods)}

- Intervals are 95 %, from resampling questions with all their answers.
{_LEGENDS[target].replace("{ceiling}", _ceiling(methods[probe]))}
- **ECE**: mean distance of confidence and accuracy in ten bins of equal width, or of equal **mass**. Not debiased: with few questions it is too large. **RMSCE** is the root of
  the squared distance with the noise subtracted, and 0 where nothing is left. None has an interval that can be trusted near 0.
- `constant` is the training mean, `base_rate` the training mean of the question's group, `length` a regression on the prompt's length, `consistency` the share of the most frequent answer.
{"".join(f"- `{name}` is left out: {reason}{chr(10)}" for name, reason in record["masked"].items())}- Questions without two graded answers are in no row; **unknown** counts answers that the grader could not decide.

## Differences, paired by question

{table(["difference", "metric", "value"], paired)}

## Pictures

All but `accuracy`, which shows all questions, are on the test questions.{" `layers` shows every layer's probe there, after the choice was made on validation." if "layers" in pictures else ""}

{chr(10).join(f"![{name}](plots/{name}.png)" for name in pictures)}

Store identity `{record["identity"]}`, seed {record["seed"]}, {", ".join(f"{name} {number}" for name, number in record["versions"].items())}.
"""


def what_is_read(layer: int | None, position: str | None, pooled: dict[str, Any] | None) -> str:
    """What a probe reads, in words: a hidden state, numbers of token signals, or both.

    >>> what_is_read(3, "last_answer", {"keys": ["tokens/30/nll"], "pooling": ["mean", "max"], "weights": None})
    'the hidden state of layer 3 at `last_answer`, with 2 numbers of `tokens` (mean, max)'
    """
    hidden = "" if layer is None else f"the hidden state of layer {layer} at `{position}`"
    if pooled is None:
        return hidden
    of = Pooled.from_json(pooled)
    signals = ", ".join(f"`{name}`" for name in dict.fromkeys(key.split("/")[0] for key in of.keys))
    weighted = f"; weighted by `{of.weights}`" if of.weights else ""
    how = f" ({', '.join(of.pooling)}{weighted})" if of.pooling else ""
    numbers = f"{len(of.names)} numbers of {signals}{how}"
    return f"{hidden}, with {numbers}" if hidden else numbers


def tried(chosen: dict[str, Any]) -> tuple[str, str]:
    """Which option validation chose a value of, in words, and the value.

    >>> tried({"layer": 3, "n_neighbors": 25.0})
    ('number of neighbours', '25')
    """
    option = next(name for name in OPTIONS if name in chosen)
    return OPTIONS[option], f"{chosen[option]:.12g}"


def model_words(model: dict[str, Any]) -> str:
    """Which model answered.

    >>> model_words({"id": "smollm2", "dtype": "float32"}), model_words({"id": "smollm2", "dtype": None})
    ('`smollm2` (float32)', '`smollm2` (behind a server)')
    """
    return f"`{inline(model['id'])}` ({model['dtype'] or 'behind a server'})"


def _ceiling(figures: dict[str, Any]) -> str:
    one = figures.get("auroc_ceiling")
    if one is None:
        return "could not be estimated"
    return f"is estimated at {one['value']:.3f} ({one['low']:.3f} by the pessimistic way, {one['high']:.3f} by the optimistic one; no interval)"


_GIVES = (
    "the model answers a question rightly, before it writes the first token",
    "an answer that the model gave is right",
)
_EXAMPLES = (
    'print(probe.score(hf_model, tokenizer, ["What is the capital of Peru?"]))',
    """model = probe.attach(hf_model, tokenizer)
answers = model.generate(["What is the capital of Peru?"], max_new_tokens=16, do_sample=False)
print(answers.text, answers.confidence)  # of other words than the model's own, also shorter ones, it knows nothing""",
)
_TAUGHT = {
    "semantic_entropy": " It was taught whether a question's answers agree, without grades; only the calibrator has seen grades.",
    "seu": " It was taught how near the embeddings of a question's answers are to each other; only the calibrator has seen grades.",
}
_CARD = (
    ("auroc", "AUROC"),
    ("brier", "Brier score (of questions: debiased)"),
    ("brier_skill", "Brier skill over the training mean"),
    ("ece_width", "ECE, 10 bins of equal width"),
)


def model_card(config: dict[str, Any]) -> str:
    """README.md of a saved probe: what it is for, what it reads, how well it does, how to use it."""
    model, training, test = config["model"], config["training"], config["test"]
    return f"""---
library_name: confidence-probes
base_model: {model["id"]}
tags: [confidence, calibration, probe]
---

# Confidence probe for `{model["id"]}`

Gives the probability that {_GIVES[config["target"] == "response"]}. It reads
{what_is_read(config["layer"], config["position"], config.get("pooled"))}, and is a {config["head"]} head with a {config["calibrator"]} calibrator.{" " + config["taught"] if config.get("taught") else _TAUGHT.get(config["target"], "")}

```python
from extract import load_model
from probes import load_probe

hf_model, tokenizer = load_model({model["id"]!r})
probe = load_probe("path/of/this/folder")
{_EXAMPLES[config["target"] == "response"]}
```

It holds for this policy only, and refuses another model: weights `{model["fingerprint"][:16]}…`, {model["dtype"]}, temperature {config["decoding"]["temperature"]}, at most
{config["decoding"]["max_new_tokens"]} tokens, prompt `{inline(config["prompt"]["template"])}`.

Trained on {training["n_questions"]["train"]} questions of {", ".join(training["datasets"])}, graded by `{training["grader"]}`; layer, {tried(training)[0]} and calibrator chosen on {training["n_questions"]["val"]} more.

| on {test["n_questions"]} test questions | 95 % interval over questions |
|---|---|
{chr(10).join(f"| {label} | {metric(test, key)} |" for key, label in _CARD if key in test)}

Questions of another kind than those it was trained on get numbers that nobody has checked.
"""
