"""Scores from sampled answers: consistency, likelihoods, entropies of tokens, semantic entropies, embedding spread.

An uncertainty of an answer is a score of that answer. Its mean over half of the answers is a score of the question.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.feature_spec import choose_keys
from datamodules.features import FeatureDataModule
from datamodules.semantic import clusters_of, discrete_entropy, likelihood_entropy, seu
from datamodules.table import asked_of_answers
from extract.signals.pooling import pool
from extract.store.shards import Scope

#: Rows of the question table, or of the answer table, by split.
Rows = dict[str, Tensor]
#: From the data and the rows of each split to scores of all rows, higher = more likely right.
Score = Callable[[FeatureDataModule, Rows], Tensor]
#: Uncertainty of every answer, [answer] float64; NaN for none.
AnswerUncertainty = Callable[[FeatureDataModule], NDArray[np.float64]]
#: Joint uncertainty of several answers, given by their rows in the answer table.
JointUncertainty = Callable[[NDArray[np.int64]], float]


def of_answers_and_questions(uncertainty: AnswerUncertainty) -> Mapping[Scope, Score]:
    """Score of answers, and of questions by its mean over one half of their answers that have a value."""

    def of_questions(data: FeatureDataModule, rows: Rows) -> Tensor:
        answers, values = data.table.answers, uncertainty(data)
        included = ~answers.held_out & np.isfinite(values)
        question, n_questions = torch.from_numpy(answers.question[included]), len(data.table.ids)
        return -question.bincount(torch.from_numpy(values[included]), n_questions) / question.bincount(
            None, n_questions
        )

    return {"question": of_questions, "sample": lambda data, rows: torch.from_numpy(-uncertainty(data))}


def of_questions(uncertainty: Callable[[FeatureDataModule], JointUncertainty]) -> Mapping[Scope, Score]:
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
