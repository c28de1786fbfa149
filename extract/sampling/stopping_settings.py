"""Settings for early stopping, and the order of answers for stopping rules."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from extract.errors import InputError, at_least_one
from extract.grading import grader_of_kinds, load_grader
from extract.hashing import sha256_json
from extract.policy import Decoding
from extract.questions.question import Question
from extract.sampling.prior import Prior, read_priors
from extract.sampling.stopping import STOPPING_RULES


@dataclass(frozen=True)
class Stopping:
    """Settings for early stopping, checked by `load_stopping`.

    Attributes:
        grader: Name of the grader that parses the answers.
        priors: Dict from question id to prior. Empty if the rule needs none.
        per_round: Number of answers per question and temperature in each round. In a temperature grid, temperature 0
            gets one answer.
    """

    rule: str
    threshold: float
    grader: str
    priors: Mapping[str, Prior]
    per_round: int

    def record(self, temperatures: Iterable[float], budget: int) -> dict[str, Any]:
        """Return the settings that affect the decisions of the stopping rule.

        `budget` is the maximum number of answers to each question at each temperature.
        """
        priors = sha256_json({id_: list(prior) for id_, prior in self.priors.items()}) if self.priors else None
        settings = {"rule": self.rule, "threshold": self.threshold, "grader": self.grader, "priors": priors}
        return {**settings, "temperatures": sorted(temperatures), "budget": budget}


def load_stopping(
    rule: str,
    threshold: float | None,
    priors: str | None,
    grader: str | None,
    per_round: int,
    questions: Sequence[Question],
    decoding: Decoding,
) -> Stopping:
    """Check the early-stopping options (see `sample_family`), and read the priors.

    Raises:
        InputError: If an option is invalid, if the grader is a judge or can't grade the questions, or if the
            temperatures or `priors` do not suit the rule.
    """
    entry, needs_priors = STOPPING_RULES[rule], STOPPING_RULES[rule].needs == "prior"
    at_least_one("per_round", per_round, default=2)
    low, high = entry.bounds
    threshold = entry.threshold if threshold is None else threshold
    is_whole = all(isinstance(one, int) for one in entry.thresholds)
    if not low <= threshold <= high or (is_whole and threshold % 1):
        raise InputError(
            f"Expected `threshold` to be {'a whole number ' if is_whole else ''}between {low:g} and {high:g} for the "
            f"rule {rule}, but got {threshold:g}. The default is {entry.threshold:g}."
        )
    if entry.needs == "temperatures" and len(decoding.temperatures) == 1:
        raise InputError(
            f"Expected a grid of temperatures for the rule {rule}, but got one temperature. Pass, for example, "
            "--policy.temperature 0.4:1.2:0.4, or choose a different rule."
        )
    if needs_priors != (priors is not None):
        raise InputError(
            f"Expected `priors` to be {'a file' if needs_priors else 'omitted'} for the rule {rule}, but got "
            f"{priors!r}. {'Write it with `python -m probes priors`.' if needs_priors else 'Omit --priors.'}"
        )
    name = grader or grader_of_kinds(question.kind for question in questions)
    if name == "judge":
        raise InputError(
            "Expected `grader` to be a grader that parses answers without a model, but got 'judge'. Pass "
            "--grader short, for example. The answers can still be graded by the judge afterwards."
        )
    with load_grader(name).running() as grade_all:  # raises an error if the grader does not suit the questions
        grade_all([(question, "") for question in questions], {}, lambda answers, tokens: None)
    ids, prompt = [question.id for question in questions], sha256_json(decoding.record()["prompt"])
    return Stopping(rule, threshold, name, read_priors(priors, ids, prompt) if priors else {}, per_round)


def turns(temperatures: Collection[float], k: int) -> list[tuple[int, float]]:
    """List each answer's sample index and temperature, in the order used by stopping rules.

    If there are several temperatures, only one answer is used at temperature 0.

    >>> turns([0.0, 0.5], 3)
    [(0, 0.0), (0, 0.5), (1, 0.5), (2, 0.5)]
    """
    once = len(temperatures) > 1
    return [(j, t) for j in range(k) for t in sorted(temperatures) if j == 0 or t > 0 or not once]
