"""Baselines: scores that read no hidden states. Fitted on train, calibrated on validation, like a probe.

A new one is a function and one entry in `BASELINES`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules import FeatureDataModule, QuestionTable
from datamodules.feature_spec import choose_keys
from datamodules.semantic import clusters_of, discrete_entropy, likelihood_entropy, seu
from extract.errors import InputError
from extract.signals.pooling import pool
from probes.fitting.calibration import fit_calibrator, fit_platt

#: Rows of the question table by split.
Rows = dict[str, Tensor]


class Cost(NamedTuple):
    """Tokens of the model that answers, a question: [question] each, NaN where a server did not tell them."""

    read: NDArray[np.number]
    written: NDArray[np.number]


class Baseline(NamedTuple):
    """How a baseline comes to its number.

    Attributes:
        score: From the data and the rows of each split to scores of the whole table, [question] or, of an answer's
            baseline, [answer]; higher = more likely right, NaN where there is none. Looks at grades of the training split only.
        cost: Tokens that the score costs beside those of the one answer that a user wants anyway.
        calibrator: How the score becomes a confidence on validation; None where it is one.
        half: Whether it spends one half of the answers, and is therefore scored on the other.
        needs: What `python -m extract ask` or `read` has to have put into the store, as a person would type it.
    """

    score: Callable[[FeatureDataModule, Rows], Tensor]
    cost: Callable[[FeatureDataModule], Cost]
    calibrator: str | None = "platt"
    half: bool = False
    needs: str | None = None


class AnswerBaseline(NamedTuple):
    """A baseline of single answers.

    Attributes:
        score: From the data to scores [answer] float64, higher = more likely right; NaN where there is none.
        needs: As of a `Baseline`.
    """

    score: Callable[[FeatureDataModule], NDArray[np.float64]]
    needs: str | None = None


# Costs


def free(data: FeatureDataModule) -> Cost:
    """Nothing that the model reads or writes."""
    nothing = np.zeros(len(data.table.ids), dtype=np.int64)
    return Cost(nothing, nothing)


def half_of_answers(data: FeatureDataModule) -> Cost:
    """The prompt once, and every second answer."""
    answers = data.table.answers
    spent = ~answers.held_out
    return Cost(
        data.table.prompt_tokens,
        np.bincount(answers.question[spent], answers.n_tokens[spent], len(data.table.ids)),
    )


def asking(name: str) -> Callable[[FeatureDataModule], Cost]:
    """What was read and written when the model was asked, all attempts together."""
    return lambda data: Cost(data.table.asked[name].prompt_tokens, data.table.asked[name].completion_tokens)


# Scores


def constant(data: FeatureDataModule, rows: Rows) -> Tensor:
    """The training split's mean accuracy, for every question."""
    return torch.full((len(data.table.ids),), mean_accuracy(data.table, rows["train"]), dtype=torch.float64)


def mean_accuracy(table: QuestionTable, rows: Tensor) -> float:
    """Mean expected accuracy of some rows."""
    return float(torch.from_numpy(table.accuracy)[rows].mean())


def base_rate(data: FeatureDataModule, rows: Rows) -> Tensor:
    """The training split's mean accuracy of the question's group; of all questions for a group not seen there."""
    table, seen = data.table, defaultdict(list)
    for row in rows["train"].tolist():
        seen[table.groups[row]].append(float(table.accuracy[row]))
    overall = mean_accuracy(table, rows["train"])
    return torch.tensor(
        [sum(seen[g]) / len(seen[g]) if seen[g] else overall for g in table.groups], dtype=torch.float64
    )


def length(data: FeatureDataModule, rows: Rows) -> Tensor:
    """Prompt length in tokens, through a logistic curve fitted on train; shorter or longer may be the better.

    Raises:
        InputError: The answers are by a server that did not tell it.
    """
    tokens = torch.from_numpy(data.table.prompt_tokens)
    train = rows["train"]
    if tokens.isnan().any():
        raise InputError(
            "Expected the number of tokens of every prompt, but the server that answered did not tell all of them. Use another baseline."
        )
    right, known = torch.from_numpy(data.table.right)[train], torch.from_numpy(data.table.known)[train]
    falling, rising = fit_platt(-tokens[train], right, known), fit_platt(tokens[train], right, known)
    return rising(tokens) if rising.slope > 0 else falling(-tokens)


def asked(name: str) -> Callable[[FeatureDataModule, Rows], Tensor]:
    """What the model said of itself when it was asked about each question."""
    return lambda data, rows: torch.from_numpy(data.table.asked[name].value)


def consistency(data: FeatureDataModule, rows: Rows) -> Tensor:
    """Share of the most frequent answer among every second one."""
    return torch.from_numpy(data.table.consistency)


def mean_of_half(values: Callable[[FeatureDataModule], NDArray[np.float64]]) -> Callable[..., Tensor]:
    """Minus the mean over every second answer of an uncertainty [answer]; answers without one are passed over."""

    def score(data: FeatureDataModule, rows: Rows) -> Tensor:
        answers, value = data.table.answers, values(data)
        counted = ~answers.held_out & np.isfinite(value)
        total, n = (
            np.bincount(answers.question[counted], weight, len(data.table.ids))
            for weight in (value[counted], np.ones(counted.sum()))
        )
        with np.errstate(invalid="ignore"):
            return torch.from_numpy(-total / n)

    return score


def token_entropy(how: str) -> Callable[[FeatureDataModule], NDArray[np.float64]]:
    """Entropy of the distributions that an answer's tokens were drawn from, in nats, pooled over the tokens."""

    def values(data: FeatureDataModule) -> NDArray[np.float64]:
        (key,) = choose_keys(data.store, "tokens", "sample", ["entropy"], layers=None)
        return pool(data.store.signals.read_ragged("tokens", key), how).double().numpy()

    return values


def of_half(value: Callable[[FeatureDataModule], Callable[[NDArray[np.int64]], float]]) -> Callable[..., Tensor]:
    """Minus an uncertainty that every second answer to a question has together, given by rows of the answer table."""

    def score(data: FeatureDataModule, rows: Rows) -> Tensor:
        spent: list[list[int]] = [[] for _ in data.table.ids]
        for row in np.flatnonzero(~data.table.answers.held_out):
            spent[data.table.answers.question[row]].append(int(row))
        uncertainty = value(data)
        return torch.tensor([-uncertainty(np.array(one, dtype=np.int64)) for one in spent], dtype=torch.float64)

    return score


def semantic_entropy(data: FeatureDataModule) -> Callable[[NDArray[np.int64]], float]:
    """Discrete semantic entropy, where answers are equal that the grader took for equal."""
    answer = data.table.answers.answer
    return lambda spent: discrete_entropy(clusters_of(answer[row] for row in spent))


def likelihood_semantic_entropy(data: FeatureDataModule) -> Callable[[NDArray[np.int64]], float]:
    """Semantic entropy where answers weigh what they are likely."""
    answers = data.table.answers
    return lambda spent: likelihood_entropy(-answers.mean_nll[spent], clusters_of(answers.answer[row] for row in spent))


def entailment_semantic_entropy(data: FeatureDataModule) -> Callable[[NDArray[np.int64]], float]:
    """Discrete semantic entropy, where answers are equal that entail each other by an NLI model."""
    cluster = data.asked_of_answers("entailment").value
    return lambda spent: discrete_entropy(cluster[spent].tolist())


def embedding_uncertainty(data: FeatureDataModule) -> Callable[[NDArray[np.int64]], float]:
    """Mean cosine distance of the answers' embeddings (SEU)."""
    read = data.store.signals.read("text_embedding", "0/answer", "sample").numpy()
    return lambda spent: seu(read[spent])


_ASK = "python -m extract ask --store STORE --baselines"
_READ_TOKENS = "python -m extract read --store STORE --signals [tokens] --scope sample"
BASELINES: dict[str, Baseline] = {
    "constant": Baseline(constant, free, None),
    "base_rate": Baseline(base_rate, free, None),
    "length": Baseline(length, free, None),
    "verbalized": Baseline(asked("verbalized"), asking("verbalized"), None, needs=f"{_ASK} [verbalized]"),
    "verbalized_isotonic": Baseline(
        asked("verbalized"), asking("verbalized"), "isotonic", needs=f"{_ASK} [verbalized]"
    ),
    "p_true": Baseline(asked("p_true"), asking("p_true"), None, needs=f"{_ASK} [p_true]"),
    "p_true_isotonic": Baseline(asked("p_true"), asking("p_true"), "isotonic", needs=f"{_ASK} [p_true]"),
    "consistency": Baseline(consistency, half_of_answers, half=True),
    "mean_nll": Baseline(mean_of_half(lambda data: data.table.answers.mean_nll), half_of_answers, half=True),
    "max_nll": Baseline(mean_of_half(lambda data: data.table.answers.max_nll), half_of_answers, half=True),
    "mean_entropy": Baseline(mean_of_half(token_entropy("mean")), half_of_answers, half=True, needs=_READ_TOKENS),
    "max_entropy": Baseline(mean_of_half(token_entropy("max")), half_of_answers, half=True, needs=_READ_TOKENS),
    "semantic_entropy": Baseline(of_half(semantic_entropy), half_of_answers, half=True),
    "semantic_entropy_likelihood": Baseline(of_half(likelihood_semantic_entropy), half_of_answers, half=True),
    "semantic_entropy_nli": Baseline(
        of_half(entailment_semantic_entropy), half_of_answers, half=True, needs=f"{_ASK} [entailment] --nli_model NAME"
    ),
    "seu": Baseline(of_half(embedding_uncertainty), half_of_answers, half=True, needs=f"{_ASK} [text_embedding]"),
}


#: Baselines of a single answer, from its own tokens or from asking about it: uncertainties or scores [answer].
ANSWER_BASELINES: dict[str, AnswerBaseline] = {
    "answer_length": AnswerBaseline(lambda data: -data.table.answers.n_tokens),
    "mean_nll": AnswerBaseline(lambda data: -data.table.answers.mean_nll),
    "max_nll": AnswerBaseline(lambda data: -data.table.answers.max_nll),
    "mean_entropy": AnswerBaseline(lambda data: -token_entropy("mean")(data), _READ_TOKENS),
    "max_entropy": AnswerBaseline(lambda data: -token_entropy("max")(data), _READ_TOKENS),
    "p_true_answer": AnswerBaseline(
        lambda data: data.asked_of_answers("p_true_answer").value, f"{_ASK} [p_true_answer]"
    ),
}


def available(
    name: str, data: FeatureDataModule, baselines: Mapping[str, Baseline | AnswerBaseline] = BASELINES
) -> bool:
    """Whether the store holds what a baseline needs."""
    needs, store = baselines[name].needs, data.store
    held = {
        *data.table.asked,
        *(asked for asked in store.asked.names("sample") if not store.asked.missing(asked, "sample")),
    }
    held |= {signal for signal in store.signals.names() if not store.signals.missing(signal, "sample")}
    return needs is None or any(f"[{one}]" in needs for one in held)


def confidence(name: str, data: FeatureDataModule, rows: Rows) -> Tensor:
    """Confidences [question] of a baseline, calibrated on the validation split where they need it; NaN without a score.

    Raises:
        InputError: Validation does not allow its calibrator.
    """
    method = BASELINES[name]
    score = method.score(data, rows).double()
    if method.calibrator is None:
        return score
    return _calibrated(method.calibrator, score, *counts(data.table, method.half), rows["val"])


def answer_confidence(name: str, data: FeatureDataModule, rows: Rows) -> Tensor:
    """Confidences [answer] of a baseline of single answers, Platt-calibrated on the validation split's answers.

    Args:
        name: One of `ANSWER_BASELINES`.
        data: The data.
        rows: Rows of the answer table by split.

    Raises:
        InputError: Validation does not allow a calibrator.
    """
    score = torch.from_numpy(ANSWER_BASELINES[name].score(data)).double()
    right, known = torch.from_numpy(data.table.answers.right), torch.from_numpy(data.table.answers.known)
    return _calibrated("platt", score, right, known, rows["val"])


def _calibrated(kind: str, score: Tensor, right: Tensor, known: Tensor, val: Tensor) -> Tensor:
    val = val[(known[val] > 0) & score[val].isfinite()]
    if not len(val):
        raise InputError("Expected validation rows with a score to calibrate on, but there are none.")
    return fit_calibrator(kind, score[val], right[val], known[val])(score)


def counts(table: QuestionTable, half: bool) -> tuple[Tensor, Tensor]:
    """Right and known answers [question], all of them or those of the held-out half."""
    right, known = (table.held_right, table.held_known) if half else (table.right, table.known)
    return torch.from_numpy(right), torch.from_numpy(known)
