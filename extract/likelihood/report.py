"""Text reports that ``python -m extract likelihood`` prints."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from extract.likelihood.next_tokens import NextToken
from extract.likelihood.options import NORMALISATIONS, right
from extract.likelihood.perplexity import perplexity
from extract.store.store import Store
from extract.text import aligned
from extract.viewing.summary import interval


def describe_options(store: Store) -> list[str]:
    """Return the accuracy of choosing the most likely option, with 95 % intervals, as lines of text."""
    rows = store.asked.read("likelihood").to_pylist()
    hits = {name: right(rows, name) for name in NORMALISATIONS}
    known = ~np.isnan(hits["sum"])
    left_out = ""
    if n_left_out := len(rows) - known.sum():
        having = "1 question has" if n_left_out == 1 else f"{n_left_out} questions have"
        left_out = f" {having} only one continuation or no known right answer."
    estimates = {name: interval(values) for name, values in hits.items()}
    if (found := estimates["sum"]) is None:
        return [f"likelihood: {len(rows)} questions scored. The accuracy is unknown.{left_out}"]
    chance = np.mean([1 / len(row["continuations"]) for row, is_known in zip(rows, known, strict=True) if is_known])
    table = [
        (normalisation.label, normalisation.metric or "–", "{:.3f} [{:.3f}, {:.3f}]".format(*(estimates[name] or ())))
        for name, normalisation in NORMALISATIONS.items()
    ]
    return [
        f"{store.model_id}: the most likely option is right with probability {found[0]:.3f} "
        f"[{found[1]:.3f}, {found[2]:.3f}] (95 % interval, {known.sum()} questions, chance {chance:.3f}).{left_out}",
        f"The mean total probability of the options is {np.mean([row['mass'] for row in rows]):.3f}.",
        *aligned([("log-probability", "lm-evaluation-harness", "accuracy"), *table]),
    ]


def describe_tokens(tokens: Sequence[NextToken]) -> list[str]:
    """Return a table of next tokens and their probabilities as lines of text."""
    rows = [(repr(one.text), str(one.token), f"{one.probability:.4f}") for one in tokens]
    total = sum(one.probability for one in tokens)
    return [
        f"The {len(tokens)} most likely next tokens have a total probability of {total:.4f}.",
        *aligned([("next token", "id", "probability"), *rows]),
    ]


def describe_texts(table: pa.Table) -> list[str]:
    """Return the perplexity per token, byte and word as lines of text. `table` is the result of `measure_texts`."""
    rows = [("unit", "number", "perplexity", "bits per unit")]
    nll = table["nll"].to_numpy()
    for unit in ("token", "byte", "word"):
        lengths = table[f"n_{unit}s"].to_numpy()
        value, between = perplexity(nll, lengths)
        shown = f"{value:.4g}" if between is None else f"{value:.4g} [{between[0]:.4g}, {between[1]:.4g}]"
        rows.append((unit, f"{lengths.sum():,}", shown, f"{nll.sum() / np.log(2) / lengths.sum():.3f}"))
    n = len(table)
    note = "95 % intervals over texts" if n > 1 else "no interval, because there is only one text"
    texts = "1 text" if n == 1 else f"{n} texts"
    return [f"Perplexity {rows[1][2]} per token over {texts} ({note}).", *aligned(rows)]
