"""Score functions of the baselines, based on properties of the question or on its sampled answers.

Uncertainties are negated to obtain scores. The uncertainty of a question is computed from half of its answers. Answers
that are equal after normalisation form a cluster.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.feature_spec import choose_keys
from datamodules.features import FeatureDataModule
from datamodules.semantic import clusters_of, discrete_entropy, likelihood_entropy, seu
from datamodules.table import QuestionTable, asked_of_answers
from extract.errors import InputError
from extract.signals.pooling import pool
from extract.store.shards import Scope
from probes.baselines.dispersion import eigenscore
from probes.baselines.similarity import cosine
from probes.fitting.calibration import fit_platt

#: Dict from each split to its rows in the question table or the answer table.
Rows = dict[str, Tensor]
#: Function that maps the data and the rows of each split to scores [row] of all rows of the table; NaN if missing.
#: Higher means more likely to be right.
Score = Callable[[FeatureDataModule, Rows], Tensor]
#: Function that maps the data to the uncertainties [answer]; NaN if missing.
AnswerUncertainty = Callable[[FeatureDataModule], NDArray[np.float64]]
#: Function that maps answers, given as rows of the answer table, to their joint uncertainty.
JointUncertainty = Callable[[NDArray[np.int64]], float]
#: Function that maps answers, given as rows of the answer table, to their similarities [row, row].
Similarities = Callable[[NDArray[np.int64]], NDArray[np.float64]]


def mean_accuracy(table: QuestionTable, rows: Tensor) -> float:
    """Return the mean accuracy of the questions in `rows`."""
    return float(torch.from_numpy(table.accuracy)[rows].mean())


def outside_test(rows: Rows) -> Tensor:
    """Return the rows of the training and validation splits."""
    return torch.cat([rows["train"], rows["val"]])


def constant(data: FeatureDataModule, rows: Rows) -> Tensor:
    """Give every question the same score: the mean accuracy of the training and validation splits."""
    return torch.full((len(data.table.ids),), mean_accuracy(data.table, outside_test(rows)), dtype=torch.float64)


def base_rate(data: FeatureDataModule, rows: Rows) -> Tensor:
    """Score each question by the mean accuracy of its group in the training and validation splits.

    If a group has no questions in those splits, the score is the mean accuracy of all questions in the splits.
    """
    table, rows_of, known = data.table, defaultdict(list), outside_test(rows)
    for row in known.tolist():
        rows_of[table.groups[row]].append(row)
    means = {group: mean_accuracy(table, torch.tensor(members)) for group, members in rows_of.items()}
    overall = mean_accuracy(table, known)
    return torch.tensor([means.get(group, overall) for group in table.groups], dtype=torch.float64)


def length(data: FeatureDataModule, rows: Rows) -> Tensor:
    """Score questions with a logistic regression on the prompt length in tokens.

    Raises:
        InputError: If any prompt length is unknown.
    """
    tokens, train = torch.from_numpy(data.table.prompt_tokens), outside_test(rows)
    if tokens.isnan().any():
        raise InputError(
            f"Expected the prompt lengths of all {len(tokens)} questions to be known, but "
            f"{int(tokens.isnan().sum())} lengths are unknown. Use different baselines."
        )
    right, known = torch.from_numpy(data.table.right)[train], torch.from_numpy(data.table.known)[train]
    falling, rising = fit_platt(-tokens[train], right, known), fit_platt(tokens[train], right, known)
    return rising(tokens) if rising.slope > 0 else falling(-tokens)


def of_each(uncertainty: AnswerUncertainty) -> Mapping[Scope, Score]:
    """Return a mapping from the scopes `question` and `sample` to score functions.

    An answer is scored by its negated uncertainty. A question is scored by the negated mean uncertainty of half of its
    answers.
    """

    def of_questions(data: FeatureDataModule, rows: Rows) -> Tensor:
        answers, values = data.table.answers, uncertainty(data)
        included = ~answers.held_out & np.isfinite(values)
        question, n_questions = torch.from_numpy(answers.question[included]), len(data.table.ids)
        totals = question.bincount(torch.from_numpy(values[included]), n_questions)
        return -totals / question.bincount(None, n_questions)

    return {"question": of_questions, "sample": lambda data, rows: torch.from_numpy(-uncertainty(data))}


def of_all(uncertainty: Callable[[FeatureDataModule], JointUncertainty]) -> Mapping[Scope, Score]:
    """Return a mapping from the scope `question` to a score function.

    A question is scored by the negated joint uncertainty of half of its answers.
    """

    def score(data: FeatureDataModule, rows: Rows) -> Tensor:
        halves = data.table.answers.rows_by_question(len(data.table.ids), ~data.table.answers.held_out)
        return torch.tensor(list(map(uncertainty(data), halves)), dtype=torch.float64).neg()

    return {"question": score}


def token_entropy(pooling: str) -> AnswerUncertainty:
    """Return a function that pools the next-token entropy (nats) over the tokens of each answer."""

    def uncertainty(data: FeatureDataModule) -> NDArray[np.float64]:
        (key,) = choose_keys(data.store, "tokens", "sample", ["entropy"], layers=None)
        return pool(data.store.signals.read_ragged("tokens", key), pooling).double().numpy()

    return uncertainty


def first_token(data: FeatureDataModule, value: str) -> Tensor:
    """Read a statistic [question] of the next-token distribution after the prompt."""
    (key,) = choose_keys(data.store, "tokens", "question", [value], layers=None)
    return data.store.signals.read("tokens", key)


def semantic_sets(data: FeatureDataModule) -> JointUncertainty:
    """Return a function that counts clusters of answers."""
    answer = data.table.answers.answer_class
    return lambda rows: len(set(clusters_of(answer[rows].tolist()))) or float("nan")


def semantic_entropy(data: FeatureDataModule) -> JointUncertainty:
    """Return a function that computes discrete semantic entropy."""
    answer = data.table.answers.answer_class
    return lambda rows: discrete_entropy(clusters_of(answer[rows].tolist()))


def semantic_entropy_likelihood(data: FeatureDataModule) -> JointUncertainty:
    """Return a function that computes likelihood-weighted semantic entropy."""
    answers = data.table.answers
    return lambda rows: likelihood_entropy(-answers.mean_nll[rows], clusters_of(answers.answer_class[rows].tolist()))


def semantic_entropy_nli(data: FeatureDataModule) -> JointUncertainty:
    """Return a function that computes discrete semantic entropy. Answers that entail each other form a cluster."""
    cluster = asked_of_answers(data.store, data.table, "entailment")
    return lambda rows: discrete_entropy(cluster[rows].tolist())


def embedding_spread(data: FeatureDataModule) -> JointUncertainty:
    """Return a function that computes SEU, the mean cosine distance between answer embeddings."""
    embeddings = _embeddings(data)
    return lambda rows: seu(embeddings[rows])


def _embeddings(data: FeatureDataModule) -> NDArray[np.float32]:
    """Read the normalised sentence embeddings [answer, d] of the answers; NaN for empty answers."""
    return data.store.signals.read("text_embedding", "0/answer", "sample").numpy()


def of_texts(
    similarity: Callable[[Sequence[str]], NDArray[np.float64]],
) -> Callable[[FeatureDataModule], Similarities]:
    """Return a function that computes the similarities of answers from their texts."""

    def similarities(data: FeatureDataModule) -> Similarities:
        text = data.table.answers.text
        return lambda rows: similarity([text[row] for row in rows])

    return similarities


def of_embeddings(data: FeatureDataModule) -> Similarities:
    """Return a function that computes cosine similarities between the sentence embeddings of non-empty answers."""
    embeddings = _embeddings(data)
    return lambda rows: cosine(embeddings[rows])


def dispersed(
    similarities: Callable[[FeatureDataModule], Similarities], dispersion: Callable[[NDArray[np.float64]], float]
) -> Mapping[Scope, Score]:
    """Return a mapping from the scope `question` to a score function.

    A question is scored by the negated dispersion of half of its answers. The score is NaN if that half contains fewer
    than two answers.
    """

    def uncertainty(data: FeatureDataModule) -> JointUncertainty:
        of_rows = similarities(data)

        def joint(rows: NDArray[np.int64]) -> float:
            similarity = of_rows(rows)
            return dispersion(similarity) if len(similarity) > 1 else float("nan")

        return joint

    return of_all(uncertainty)


def hidden_eigenscore(data: FeatureDataModule) -> JointUncertainty:
    """Return a function that computes the EigenScore from the hidden states of the answers.

    The states are those at the last content token of each answer. They come from the stored layer closest to L / 2,
    where L is the last stored layer.
    """
    keys = choose_keys(data.store, "hidden", "sample", ["last_answer"], layers=None)
    layer_of = {key: int(key.partition("/")[0]) for key in keys}
    middle = min(keys, key=lambda key: abs(layer_of[key] - max(layer_of.values()) / 2))
    states = data.store.signals.read("hidden", middle, "sample").float().numpy()
    return lambda rows: eigenscore(states[rows])
