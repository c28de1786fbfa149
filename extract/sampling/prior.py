r"""Bayesian model of the answers to a question. Its prior is based on the confidence of a probe.

Let p be the proportion of right answers to a question, and f the question's calibrated confidence. The prior of p is

.. math:: p \sim \mathrm{Beta}(a, b), \quad a = \kappa f, \quad b = \kappa (1 - f)

Right answers are equal to each other. Wrong answers follow a Chinese restaurant process. After j wrong answers, the
next wrong answer is new with probability θ/(θ + j). Otherwise, it repeats a random earlier wrong answer.

A class is a set of equal answers. After n answers, a class of m answers is right with posterior probability
proportional to w(m). The posterior probability that the right answer has not occurred yet is proportional to w(0):

.. math::
    w(m) = \frac{\Gamma(a + m)\, \Gamma(b + n - m)}{\Gamma(m)\, \Gamma(\theta + n - m)}, \quad
    w(0) = \theta\, \frac{\Gamma(a)\, \Gamma(b + n)}{\Gamma(\theta + n)}

Up to a common factor, each weight is the product of a Beta integral over p and the Ewens probability of the partition
of wrong answers.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy.special import betaln, gammaln

from extract.errors import InputError
from extract.store.files import replace_file
from extract.text import one_line

#: Minimum distance of a clipped confidence from 0 and 1.
_LEAST = 1e-3
#: Key of the prompt template's SHA-256 in the Parquet metadata.
_PROMPT = "prompt"
#: Smallest and largest value of κ and θ.
_BOUNDS = (0.01, 1000.0)


class Prior(NamedTuple):
    """Parameters of the prior for one question.

    Attributes:
        confidence: Calibrated probability f that an answer is right.
        concentration: κ. The larger it is, the closer the proportion of right answers is to f.
        diversity: θ. The larger it is, the more often wrong answers differ from each other.
    """

    confidence: float
    concentration: float
    diversity: float

    @property
    def beta(self) -> tuple[float, float]:
        """Parameters a and b of the Beta distribution."""
        clipped = min(max(self.confidence, _LEAST), 1 - _LEAST)
        return self.concentration * clipped, self.concentration * (1 - clipped)


def write_priors(
    path: str | Path,
    question_ids: Sequence[str],
    confidence: NDArray[np.float64],
    concentration: float,
    diversity: float,
    prompt: str,
) -> None:
    """Write priors to a file that `read_priors` can read.

    `confidence` has shape [question]. `prompt` is the SHA-256 of the prompt template.
    """
    rows = [Prior(value, concentration, diversity)._asdict() for value in confidence.tolist()]
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist([{"question_id": id_, **row} for id_, row in zip(question_ids, rows, strict=True)])
    pq.write_table(table.replace_schema_metadata({_PROMPT: prompt}), sink)
    replace_file(Path(path), sink.getvalue().to_pybytes())


def read_priors(path: str | Path, question_ids: Sequence[str], prompt: str) -> dict[str, Prior]:
    """Read the priors of questions from a file written by ``python -m probes priors``.

    `prompt` is the SHA-256 of the prompt template.
    """
    columns = ["question_id", *Prior._fields]
    try:
        with pq.ParquetFile(path) as file:
            metadata = file.schema_arrow.metadata or {}
            ids, *values = (file.read(columns)[name].to_pylist() for name in columns)
            numbers = np.array(values, dtype=np.float64).T
            rows = dict(zip(ids, map(Prior._make, numbers.tolist()), strict=True))
    except (OSError, pa.ArrowException, KeyError, ValueError, TypeError) as error:
        raise InputError(
            f"Expected `priors` to be a Parquet file with the columns {', '.join(columns)}, but reading {str(path)!r} "
            f"failed: {one_line(error)}. Create it with `python -m probes priors`."
        ) from None
    if metadata.get(_PROMPT.encode(), prompt.encode()) != prompt.encode():
        raise InputError(
            f"Expected the priors in {str(path)!r} to have been computed with this run's prompt, but they were "
            "computed with a different prompt. Pass the same options, such as --config, to `python -m probes priors` "
            "and to this command."
        )
    missing = [id_ for id_ in question_ids if id_ not in rows]
    if missing or len(rows) < len(ids):
        noun = f"{len(missing)} of them have none, such as {missing[0]!r}" if missing else "some have more than one"
        raise InputError(
            f"Expected {str(path)!r} to contain one prior for each of the {len(question_ids)} questions, but {noun}. "
            "Regenerate the file with this run's questions."
        )
    low, high = np.array([(0, 1), *[_BOUNDS] * 2]).T
    wrong = ~((numbers >= low) & (numbers <= high)).all(1)
    if wrong.any():
        raise InputError(
            f"Expected the confidences in {str(path)!r} to be in [0, 1] and the other columns in [0.01, 1000], but got "
            f"{tuple(numbers[wrong][0].tolist())} for {ids[int(wrong.argmax())]!r}. Regenerate the file."
        )
    return {id_: rows[id_] for id_ in question_ids}


def fit_prior(
    confidence: NDArray[np.float64],
    right: NDArray[np.int64],
    n_answers: NDArray[np.int64],
    wrong_classes: NDArray[np.int64],
) -> tuple[float, float]:
    """Fit the prior's parameters κ and θ by maximum likelihood.

    Do not pass questions on which the stopping rule is evaluated.

    The arguments have shape [question]. `right`, `n_answers` and `wrong_classes` count the right answers, all answers,
    and the distinct wrong answers. Both results are between 0.01 and 1000.
    """
    wrong = n_answers - right

    def of_partitions(log_diversity: float) -> float:
        diversity = np.exp(log_diversity)
        return -float((wrong_classes * log_diversity - gammaln(diversity + wrong) + gammaln(diversity)).sum())

    concentration = fit_concentration(confidence.clip(_LEAST, 1 - _LEAST), right, n_answers, _BOUNDS)
    return concentration, _minimise_log(of_partitions, _BOUNDS)


def fit_concentration(
    mean: NDArray[np.float64], right: NDArray[np.int64], n_answers: NDArray[np.int64], bounds: tuple[float, float]
) -> float:
    """Fit the concentration κ of the priors Beta(κ f, κ (1 − f)) by maximum likelihood.

    The number of right answers has a beta-binomial distribution. All arrays have shape [question]. `mean` contains f,
    strictly between 0 and 1.
    """

    def loss(log_concentration: float) -> float:
        a, b = np.exp(log_concentration) * np.stack([mean, 1 - mean])
        return -float((betaln(a + right, b + n_answers - right) - betaln(a, b)).sum())

    return _minimise_log(loss, bounds)


def _minimise_log(loss: Callable[[float], float], bounds: tuple[float, float]) -> float:
    """Return the x within `bounds` that minimises ``loss(log x)``."""
    from scipy.optimize import minimize_scalar  # here, because the import would delay every command

    return float(np.exp(minimize_scalar(loss, bounds=np.log(bounds), method="bounded").x))


def posterior_weights(prior: Prior, n: int) -> Iterator[NDArray[np.float64]]:
    """For i = 1, …, n, yield the posterior weights after i answers, scaled to a maximum of 1.

    The shape is [i + 1]. Element m is the weight w(m) of the hypothesis that a given class, which contains m answers,
    is right. Element 0 is the weight of the hypothesis that the right answer has not occurred yet.
    """
    (a, b), m = prior.beta, np.arange(n + 1)
    right = gammaln(a + m) - gammaln(np.maximum(m, 1))
    right[0] += np.log(prior.diversity)
    wrong = gammaln(b + m) - gammaln(prior.diversity + m)
    for answers in range(1, n + 1):
        log = right[: answers + 1] + wrong[answers::-1]
        yield np.exp(log - log.max())


def lead_probabilities(prior: Prior, budget: int) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """For n = budget, …, 0, yield n and the probabilities [n + 1, n + 1] that the right class beats a rival.

    Suppose that x of the n answers so far are in the right class, and y ≤ n − x are in one particular wrong class (the
    rival). Element [x, y] is the probability that the right class has more answers than the rival after all `budget`
    answers. A tie counts as ½. The next answer is right with probability (a + x)/(a + b + n). If it is wrong, it is in
    the rival class with probability y/(θ + n − x).
    """
    a, b = prior.beta
    side = np.arange(budget + 1.0)
    ahead = np.heaviside(side[:, None] - side, 0.5)
    yield budget, ahead
    for n in range(budget - 1, -1, -1):
        x, y = side[: n + 1, None], side[: n + 1]
        right = (a + x) / (a + b + n)
        rival = (1 - right) / (prior.diversity + n - x) * np.minimum(y, n - x)
        ahead = right * ahead[1:, :-1] + rival * ahead[:-1, 1:] + (1 - right - rival) * ahead[:-1, :-1]
        yield n, ahead


def expected_gain(prior: Prior, counts: NDArray[np.integer], budget: int) -> NDArray[np.float64]:
    r"""Compute the expected gain in accuracy from voting after all `budget` answers instead of now.

    .. math:: \sum_c P(c) \, P(c \text{ ahead of its largest rival at the end} \mid c) - P(\text{leading answer})

    where P(c) is the posterior probability that class c is right. The sum runs over all classes that have occurred,
    plus one class for a right answer that has not occurred yet.

    Returns the gain [order, answer] for the cumulative `counts` [order, answer, class]. `budget` is the number of
    answers if sampling does not stop early.
    """
    n_answers = counts.shape[1]
    gain = np.zeros(counts.shape[:2])
    pair = np.partition(np.pad(counts, ((0, 0), (0, 0), (1, 0))), -2, axis=-1)[..., -2:].astype(np.intp)
    weights = list(posterior_weights(prior, n_answers))
    for n, ahead in lead_probabilities(prior, budget):
        if not 0 < n <= n_answers:
            continue
        held, (second, first) = counts[:, n - 1], pair[:, n - 1].T
        weight = weights[n - 1]
        unseen, seen, leading = weight[0], np.where(held > 0, weight[held], 0), weight[first]
        wins = (seen * ahead.take(held * (n + 1) + first[:, None])).sum(1) + unseen * ahead[0, first]
        wins += leading * (ahead[first, second] - ahead[first, first])  # the leader's largest rival is the runner-up
        gain[:, n - 1] = (wins - leading) / (seen.sum(1) + unseen)
    return gain
