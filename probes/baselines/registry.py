"""Registry of the baselines, which score questions and answers without a trained probe.

To add a baseline, write a score function in `scores.py` and register it here. Model-based baselines are registered in
`extract.asking.registry`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.features import FeatureDataModule
from datamodules.table import QuestionTable, asked_of_answers
from extract.asking.registry import ASKED, ask_command
from extract.errors import InputError
from extract.registry import Registry
from extract.store.shards import Scope
from probes.baselines import dispersion, scores, similarity
from probes.baselines.scores import Rows, Score
from probes.fitting.calibration import fit_calibrator


class Baseline(NamedTuple):
    """A baseline that scores questions, answers or both.

    Attributes:
        scores: Dict from each scope to a `Score` function. The function must not use the grades of the test split.
        supervised: Whether the scores depend on the rows and grades outside the test split.
        calibrator: Name of the calibrator that is fitted on the training and validation splits; None if the scores are
            probabilities.
        half: Whether questions are scored with half of their answers and evaluated on the rest.
        needs: Model-based baselines and answer signals that the store must contain.
        prompt_needs: Signals of the prompt that the store must contain.
    """

    scores: Mapping[Scope, Score]
    supervised: bool = False
    calibrator: str | None = "platt"
    half: bool = False
    needs: tuple[str, ...] = ()
    prompt_needs: tuple[str, ...] = ()


def _asked(name: str, scope: Scope) -> Score:
    if scope == "question":
        return lambda data, rows: torch.tensor(data.table.asked[name]["value"].to_numpy())
    return lambda data, rows: torch.from_numpy(asked_of_answers(data.store, data.table, name))


_DISPERSIONS = {
    "degree": dispersion.degree,
    "eccentricity": dispersion.eccentricity,
    "eigenvalue_sum": dispersion.eigenvalue_sum,
    "kernel_entropy": dispersion.kernel_entropy,
}


BASELINES: Registry[Baseline] = Registry(
    "baseline",
    {
        "constant": Baseline({"question": scores.constant}, supervised=True, calibrator=None),
        "base_rate": Baseline({"question": scores.base_rate}, supervised=True, calibrator=None),
        "length": Baseline({"question": scores.length}, supervised=True, calibrator=None),
        "answer_length": Baseline({"sample": lambda data, rows: -torch.from_numpy(data.table.answers.n_tokens)}),
        **{
            name: Baseline(
                {scope: _asked(asked, scope) for scope in entry.scopes}, calibrator=calibrator, needs=(asked,)
            )
            for asked, entry in ASKED.items()
            for name, calibrator in entry.confidences.items()
        },
        "first_token_entropy": Baseline(
            {"question": lambda data, rows: -scores.first_token(data, "entropy")}, prompt_needs=("tokens",)
        ),
        "first_token_margin": Baseline(
            {"question": lambda data, rows: scores.first_token(data, "margin")}, prompt_needs=("tokens",)
        ),
        "consistency": Baseline({"question": lambda data, rows: torch.from_numpy(data.table.consistency)}, half=True),
        "mean_nll": Baseline(scores.of_each(lambda data: data.table.answers.mean_nll), half=True),
        "max_nll": Baseline(scores.of_each(lambda data: data.table.answers.max_nll), half=True),
        "sequence_nll": Baseline(scores.of_each(lambda data: data.table.answers.sequence_nll), half=True),
        "mean_entropy": Baseline(scores.of_each(scores.token_entropy("mean")), half=True, needs=("tokens",)),
        "max_entropy": Baseline(scores.of_each(scores.token_entropy("max")), half=True, needs=("tokens",)),
        "semantic_sets": Baseline(scores.of_all(scores.semantic_sets), half=True),
        "semantic_entropy": Baseline(scores.of_all(scores.semantic_entropy), half=True),
        "semantic_entropy_likelihood": Baseline(scores.of_all(scores.semantic_entropy_likelihood), half=True),
        "semantic_entropy_nli": Baseline(scores.of_all(scores.semantic_entropy_nli), half=True, needs=("entailment",)),
        "lexical_similarity": Baseline(
            scores.dispersed(scores.of_texts(similarity.rouge_l), dispersion.mean_distance), half=True
        ),
        **{
            f"{name}_jaccard": Baseline(scores.dispersed(scores.of_texts(similarity.jaccard), measure), half=True)
            for name, measure in _DISPERSIONS.items()
        },
        "seu": Baseline(scores.of_all(scores.embedding_spread), half=True, needs=("text_embedding",)),
        **{
            f"{name}_embedding": Baseline(
                scores.dispersed(scores.of_embeddings, measure), half=True, needs=("text_embedding",)
            )
            for name, measure in _DISPERSIONS.items()
            if name != "degree"  # equals (n − 1)/n times SEU
        },
        "eigenscore": Baseline(scores.of_all(scores.hidden_eigenscore), half=True, needs=("hidden",)),
    },
)


def baselines_of(scope: Scope) -> list[str]:
    """Return the names of the baselines for a scope (questions or answers)."""
    return [name for name, baseline in BASELINES.items() if scope in baseline.scores]


def is_half(name: str) -> bool:
    """Return whether a method is a baseline that uses half of each question's answers."""
    return name in BASELINES and BASELINES[name].half


def available(name: str, data: FeatureDataModule) -> bool:
    """Return whether the store contains everything that a baseline needs."""
    asked, signals, baseline = data.store.asked, data.store.signals, BASELINES[name]
    return not any(signals.missing(need, "question") for need in baseline.prompt_needs) and all(
        need in data.table.asked
        or (need in asked.names("sample") and not asked.missing(need, "sample"))
        or (need in signals.names() and not signals.missing(need, "sample"))
        for need in baseline.needs
    )


def needed_commands(name: str) -> str:
    """Return the commands that compute the data needed by a baseline.

    >>> needed_commands("max_entropy")
    "python -m extract read --store STORE --signals '[tokens]' --scope sample"
    """
    read, baseline = "python -m extract read --store STORE --signals '[{}]'", BASELINES[name]
    commands = [read.format(need) for need in baseline.prompt_needs]
    commands += [
        ask_command(need) if need in ASKED else f"{read} --scope sample".format(need) for need in baseline.needs
    ]
    return "; ".join(commands)


def cost_of(name: str, data: FeatureDataModule) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return how many prompt tokens and generated tokens a baseline needs, both [question].

    A baseline that uses half of the answers needs the prompt and these answers. A first-token baseline needs only the
    prompt. A model-based baseline needs its own prompts and replies. Tokens read by text encoders and entailment
    classifiers are not counted. Counts that a server did not report are NaN.
    """
    table, baseline = data.table, BASELINES[name]
    if baseline.half:
        used = ~table.answers.held_out
        written = np.bincount(table.answers.question[used], table.answers.n_tokens[used], len(table.ids))
        return table.prompt_tokens, written
    if baseline.prompt_needs:
        return table.prompt_tokens, np.zeros(len(table.ids))
    asked = [table.asked[need] for need in baseline.needs if need in table.asked]
    prompts, replies = (
        sum((values[column].to_numpy() for values in asked), np.zeros(len(table.ids)))
        for column in ("prompt_tokens", "completion_tokens")
    )
    return prompts, replies


def confidence(name: str, data: FeatureDataModule, scope: Scope = "question") -> Callable[[Rows], Tensor]:
    """Return a function that computes the calibrated confidences of a baseline.

    The function takes a dict that maps each split to its rows. These are rows of the question table, or of the answer
    table if `scope` is "sample". The function returns the confidences of all rows; NaN if missing. The calibrator is
    fitted on the training and validation splits. If there are no scores to fit it to, the function raises an
    InputError.
    """
    score = partial(BASELINES[name].scores[scope], data)
    if BASELINES[name].supervised:
        return lambda rows: _calibrated(name, data, score(rows).double(), rows, scope)
    return partial(_calibrated, name, data, score({}).double(), scope=scope)


def _calibrated(name: str, data: FeatureDataModule, score: Tensor, rows: Rows, scope: Scope) -> Tensor:
    """Calibrate the scores of a baseline. See `confidence`."""
    baseline = BASELINES[name]
    if baseline.calibrator is None:
        return score
    if scope == "question":
        right, known = counts(data.table, baseline.half)
    else:
        right, known = torch.from_numpy(data.table.answers.right), torch.from_numpy(data.table.answers.known)
    fitted = scores.outside_test(rows)
    fitted = fitted[(known[fitted] > 0) & score[fitted].isfinite()]
    if not len(fitted):
        raise InputError(
            f"Expected the {name!r} baseline to have scores outside the test split, but got none. These scores are "
            "needed for calibration. Use more questions."
        )
    return fit_calibrator(baseline.calibrator, score[fitted], right[fitted], known[fitted])(score)


def counts(table: QuestionTable, half: bool) -> tuple[Tensor, Tensor]:
    """Count the right answers and the graded answers to each question.

    If `half` is true, only answers with odd indices are counted.
    """
    right, known = (table.held_right, table.held_known) if half else (table.right, table.known)
    return torch.from_numpy(right), torch.from_numpy(known)
