"""The scores behind the baselines: of questions by what is known before any answer, and of sampled answers.

An uncertainty of an answer is a score of that answer. Its mean over half of the answers is a score of the question.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping

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
from probes.fitting.calibration import fit_platt

#: Rows of the question table, or of the answer table, by split.
Rows = dict[str, Tensor]
#: From the data and the rows of each split to scores of all rows, higher = more likely right.
Score = Callable[[FeatureDataModule, Rows], Tensor]
#: Uncertainty of every answer, [answer] float64; NaN for none.
AnswerUncertainty = Callable[[FeatureDataModule], NDArray[np.float64]]
#: Joint uncertainty of several answers, given by their rows in the answer table.
JointUncertainty = Callable[[NDArray[np.int64]], float]


def mean_accuracy(table: QuestionTable, rows: Tensor) -> float:
    """Mean expected accuracy of some questions."""
    return float(torch.from_numpy(table.accuracy)[rows].mean())


def constant(data: FeatureDataModule, rows: Rows) -> Tensor:
    """Mean accuracy of the training split, for every question."""
    return torch.full((len(data.table.ids),), mean_accuracy(data.table, rows["train"]), dtype=torch.float64)


def base_rate(data: FeatureDataModule, rows: Rows) -> Tensor:
    """Mean training accuracy of the question's group; of all questions for a group without training questions."""
    table, rows_of = data.table, defaultdict(list)
    for row in rows["train"].tolist():
        rows_of[table.groups[row]].append(row)
    means = {group: mean_accuracy(table, torch.tensor(members)) for group, members in rows_of.items()}
    overall = mean_accuracy(table, rows["train"])
    return torch.tensor([means.get(group, overall) for group in table.groups], dtype=torch.float64)


def length(data: FeatureDataModule, rows: Rows) -> Tensor:
    """Prompt length in tokens through a logistic curve fitted on the training split, in the direction that fits.

    Raises:
        InputError: If a server did not report the prompt lengths.
    """
    tokens, train = torch.from_numpy(data.table.prompt_tokens), rows["train"]
    if tokens.isnan().any():
        raise InputError("Expected the tokens of every prompt, but the server did not report all. Use other baselines.")
    right, known = torch.from_numpy(data.table.right)[train], torch.from_numpy(data.table.known)[train]
    falling, rising = fit_platt(-tokens[train], right, known), fit_platt(tokens[train], right, known)
    return rising(tokens) if rising.slope > 0 else falling(-tokens)


def of_each(uncertainty: AnswerUncertainty) -> Mapping[Scope, Score]:
    """Score of answers, and of questions by its mean over one half of their answers that have a value."""

    def of_questions(data: FeatureDataModule, rows: Rows) -> Tensor:
        answers, values = data.table.answers, uncertainty(data)
        included = ~answers.held_out & np.isfinite(values)
        question, n_questions = torch.from_numpy(answers.question[included]), len(data.table.ids)
        totals = question.bincount(torch.from_numpy(values[included]), n_questions)
        return -totals / question.bincount(None, n_questions)

    return {"question": of_questions, "sample": lambda data, rows: torch.from_numpy(-uncertainty(data))}


def of_all(uncertainty: Callable[[FeatureDataModule], JointUncertainty]) -> Mapping[Scope, Score]:
    """Score of questions: minus the joint uncertainty of one half of their answers."""

    def score(data: FeatureDataModule, rows: Rows) -> Tensor:
        halves = data.table.answers.rows_by_question(len(data.table.ids), ~data.table.answers.held_out)
        return torch.tensor(list(map(uncertainty(data), halves)), dtype=torch.float64).neg()

    return {"question": score}


def token_entropy(pooling: str) -> AnswerUncertainty:
    """Entropy of the distributions that an answer's tokens were drawn from, in nats, pooled over the tokens."""

    def uncertainty(data: FeatureDataModule) -> NDArray[np.float64]:
        (key,) = choose_keys(data.store, "tokens", "sample", ["entropy"], layers=None)
        return pool(data.store.signals.read_ragged("tokens", key), pooling).double().numpy()

    return uncertainty


def semantic_entropy(data: FeatureDataModule) -> JointUncertainty:
    """Discrete semantic entropy over clusters of equal normalised answers."""
    answer = data.table.answers.answer
    return lambda rows: discrete_entropy(clusters_of(answer[row] for row in rows))


def semantic_entropy_likelihood(data: FeatureDataModule) -> JointUncertainty:
    """Semantic entropy over the same clusters, weighted by the likelihood of the answers."""
    answers = data.table.answers
    return lambda rows: likelihood_entropy(-answers.mean_nll[rows], clusters_of(answers.answer[row] for row in rows))


def semantic_entropy_nli(data: FeatureDataModule) -> JointUncertainty:
    """Discrete semantic entropy over clusters of answers that entail each other."""
    cluster = asked_of_answers(data.store, data.table, "entailment")
    return lambda rows: discrete_entropy(cluster[rows].tolist())


def embedding_spread(data: FeatureDataModule) -> JointUncertainty:
    """Mean cosine distance between the embeddings of the answers (SEU)."""
    embeddings = data.store.signals.read("text_embedding", "0/answer", "sample").numpy()
    return lambda rows: seu(embeddings[rows])
