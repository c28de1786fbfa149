"""Tests of the stopping rules: the posterior and the expected gain against brute force, and properties of all rules."""

from __future__ import annotations

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad

from extract.sampling.prior import Prior, expected_gain, fit_prior, lead_probabilities, posterior_weights
from extract.sampling.stopping import STOPPING_RULES, Answers, adaptive_consistency, count, two_stage

PRIOR = Prior(0.4, 3.0, 1.7)


def answers_of(classes: list[list[int]] | np.ndarray, budget: int | None = None) -> Answers:
    drawn = np.atleast_2d(np.array(classes))
    return Answers(drawn, np.full(budget or drawn.shape[1], 0.7))


def probability(sequence: tuple[int, ...], prior: Prior) -> float:
    """Return the probability of a sequence of answers.

    The right answer is 0. Wrong answers are numbered by first occurrence.
    """
    (a, b), total, seen = prior.beta, 1.0, Counter[int]()
    for n, answer in enumerate(sequence):
        right = (a + seen[0]) / (a + b + n)
        wrong = n - seen[0]
        if answer == 0:
            total *= right
        else:
            new = prior.diversity if not seen[answer] else seen[answer]
            total *= (1 - right) * new / (prior.diversity + wrong)
        seen[answer] += 1
    return total


def sequences(n: int) -> list[tuple[int, ...]]:
    """Return all sequences in which each wrong class 1, 2, … occurs only after the previous one."""
    return [s for s in product(range(n + 1), repeat=n) if all(x <= max(s[:i], default=0) + 1 for i, x in enumerate(s))]


def test_the_model_is_a_distribution_over_sequences() -> None:
    assert sum(probability(one, PRIOR) for one in sequences(5)) == pytest.approx(1)


def test_the_posterior_follows_bayes_rule_over_all_sequences() -> None:
    labels = (0, 0, 1, 0, 2)  # the classes that are seen; which one is right is unknown
    by_right = {}
    for right in (0, 1, 2, None):
        numbers = {right: 0}
        truth = tuple(numbers.setdefault(label, len(numbers)) for label in labels)
        by_right[right] = probability(truth, PRIOR)
    *_, weight = posterior_weights(PRIOR, 5)
    counts = Counter(labels)
    found = {right: weight[0 if right is None else counts[right]] for right in by_right}
    for right in by_right:
        assert found[right] / sum(found.values()) == pytest.approx(by_right[right] / sum(by_right.values()))


def test_after_one_answer_the_probability_that_it_is_right_is_the_confidence() -> None:
    for confidence in (0.1, 0.5, 0.93):
        (weight,) = posterior_weights(PRIOR._replace(confidence=confidence), 1)
        assert weight[1] / weight.sum() == pytest.approx(confidence)


def test_the_probability_of_leading_is_a_sum_over_all_futures() -> None:
    n, budget = 3, 6
    tables = dict(lead_probabilities(PRIOR, budget))
    for start, x, y in (((0, 0, 1), 2, 1), ((1, 1, 0), 1, 2), ((1, 1, 2), 0, 2), ((0, 1, 2), 1, 1)):
        futures = [s for s in product(range(budget + 1), repeat=budget) if s[:n] == start]
        futures = [s for s in futures if all(v <= max(s[:i], default=0) + 1 for i, v in enumerate(s))]
        weight = np.array([probability(s, PRIOR) for s in futures])
        margin = np.array([s.count(0) - s.count(1) for s in futures])
        assert tables[n][x, y] == pytest.approx(weight @ np.heaviside(margin, 0.5) / weight.sum())


def test_the_expected_gain_is_the_change_in_accuracy_if_only_two_answers_can_win() -> None:
    labels, budget = (0, 0, 0, 1, 1), 6  # one more answer: only the second class can tie, none can win
    hypotheses = {right: np.array([0, 0, 0, 1, 1]) == right for right in (0, 1)}
    expected, norm = 0.0, 0.0
    for right in (*hypotheses, None):
        numbers = {right: 0}
        truth = tuple(numbers.setdefault(label, len(numbers)) for label in labels)
        for last in range(4):
            sequence = (*truth, last)
            if last > max(truth) + 1:
                continue
            chance = probability(sequence, PRIOR)
            tie = right in (0, 1) and last == numbers[1 if 1 in numbers else right]
            final = 0.0 if right is None else float(right == 0)
            if tie:
                final = 0.5
            expected += chance * (final - float(right == 0))
            norm += chance
    gain = expected_gain(PRIOR, answers_of([list(labels)]).counts, budget)[0, -1]
    assert gain == pytest.approx(expected / norm)


def test_no_gain_is_expected_when_further_answers_cannot_change_the_decision() -> None:
    gain = expected_gain(PRIOR, answers_of([[0, 0, 0, 0, 1]]).counts, 7)
    assert gain[0, 3:] == pytest.approx(0)
    assert gain[0, 0] > 0.05


@pytest.mark.parametrize(("confidence", "least"), [(0.97, 0), (0.02, 0), (0.5, 0.05)])
def test_the_expected_gain_is_small_for_certain_questions_and_large_for_uncertain_ones(
    confidence: float, least: float
) -> None:
    gain = expected_gain(Prior(confidence, 3, 2), answers_of([[0, 1]], 20).counts, 20)[0, -1]
    agreeing = expected_gain(Prior(confidence, 3, 2), answers_of([[0, 0]], 20).counts, 20)[0, -1]
    assert (gain > least) if least else (agreeing < 0.03)


def test_the_prior_is_recovered_from_simulated_answers() -> None:
    rng, n, k = np.random.default_rng(0), 4000, 12
    f = rng.beta(1, 1, n)
    right = rng.binomial(k, rng.beta(2.5 * f, 2.5 * (1 - f)))
    classes = [_restaurant(k - r, 1.7, rng) for r in right]
    concentration, diversity = fit_prior(f, right, np.full(n, k), np.array(classes))
    assert concentration == pytest.approx(2.5, rel=0.1)
    assert diversity == pytest.approx(1.7, rel=0.1)


def _restaurant(n: int, diversity: float, rng: np.random.Generator) -> int:
    return sum(rng.random() < diversity / (diversity + i) for i in range(n))


def test_adaptive_consistency_integrates_the_beta_density() -> None:
    classes = [[0, 0, 1, 2, 0, 1, 1, 1]]
    found = adaptive_consistency(answers_of(classes))[0]
    for n in range(1, 9):
        (v1, v2) = (*(c for _, c in Counter(classes[0][:n]).most_common(2)), 0)[:2]
        above, whole = (quad(lambda q, v1=v1, v2=v2: q**v1 * (1 - q) ** v2, low, 1)[0] for low in (0.5, 0))
        assert found[n - 1] == pytest.approx(above / whole)


def test_early_stopping_needs_a_whole_window_of_equal_answers() -> None:
    rule = STOPPING_RULES["early_stopping"]
    evidence = rule.evidence(answers_of([[1, 0, 0, 0, 0, 0, 2]]), None)
    assert evidence.tolist() == [[1, 1, 2, 3, 4, 5, 1]]
    assert rule.stops(evidence, 3).tolist() == [[False] * 5 + [True, False]]
    assert rule.stops(evidence, 2).tolist() == [[False, False, False, True, False, True, False]]


def in_rounds(of_temperature: dict[float, list[int]]) -> Answers:
    """Return the answers at each temperature in rounds."""
    turns = sorted((turn, t, a) for t, drawn in of_temperature.items() for turn, a in enumerate(drawn))
    return Answers(np.array([[a for _, _, a in turns]]), np.array([t for _, t, _ in turns]))


lists = st.lists(st.integers(0, 3), min_size=8, max_size=8)


@pytest.mark.slow
@given(st.lists(lists, min_size=1, max_size=4), st.integers(0, 3), st.integers(1, 9), st.floats(0, 1))
def test_two_stage_voting_never_exits_before_n_min(drawn: list[list[int]], cold: int, least: int, cross: float) -> None:
    answers = in_rounds({0.0: [cold]} | {0.1 * (i + 1): one for i, one in enumerate(drawn)})
    evidence = two_stage(answers, cross=cross, least=least)[0]
    for place in np.flatnonzero(evidence >= 0):
        held = Counter(answers.temperatures[: place + 1].tolist())
        assert all(n >= least for t, n in held.items() if t > 0)
        assert len(held) == len(drawn) + 1


@pytest.mark.slow
@given(st.lists(st.integers(0, 1), min_size=6, max_size=6), st.integers(1, 3))
def test_one_dissenting_temperature_prevents_an_exit_if_all_must_agree(noise: list[int], hot: int) -> None:
    agreeing = {0.1 * t: [0] * 6 for t in range(1, 4)}
    dissenting = {0.1 * t: one for t, one in agreeing.items()} | {
        0.1 * hot: [2, 2, *(2 * n for n in noise[:1]), 2, 2, 2]
    }
    assert (two_stage(in_rounds(dissenting))[0] == -np.inf).all()
    assert (two_stage(in_rounds({0.0: [2], **agreeing}))[0] == -np.inf).all()
    assert (two_stage(in_rounds({0.0: [0], **agreeing}))[0] == 1).sum() == 4  # rounds 3 to 6


def test_the_evidence_of_two_stage_voting_is_the_smallest_share_of_a_mode() -> None:
    answers = in_rounds({0.0: [5], 0.5: [5, 5, 5, 1], 1.0: [5, 5, 2, 5]})
    expected = np.full(9, -np.inf)
    expected[[6, 8]] = 2 / 3, 3 / 4
    assert two_stage(answers)[0] == pytest.approx(expected)


@pytest.mark.slow
@given(
    st.lists(st.integers(0, 3), min_size=2, max_size=12),
    st.sampled_from(["adaptive_consistency", "early_stopping", "prior"]),
    st.data(),
)
def test_decisions_do_not_depend_on_the_answers_drawn_at_once(
    classes: list[int], name: str, data: st.DataObject
) -> None:
    rule = STOPPING_RULES[name]
    threshold = data.draw(st.sampled_from(rule.thresholds))
    whole = rule.decide(answers_of([classes]), threshold, PRIOR)
    for n in range(1, len(classes) + 1):
        one = rule.decide(answers_of([classes[:n]], len(classes)), threshold, PRIOR)
        assert (one.reason is not None) == (n >= whole.n_answers)
        if one.reason:
            assert one == whole


@pytest.mark.slow
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12))
def test_the_leader_is_the_most_frequent_answer_and_the_earliest_of_several(classes: list[int]) -> None:
    found = answers_of([classes]).leader[0]
    assert [int(one) for one in found] == [Counter(classes[: n + 1]).most_common(1)[0][0] for n in range(len(classes))]


def test_counts_are_cumulative() -> None:
    assert count(np.array([[0, 1, 0]]), 2).tolist() == [[[1, 0], [1, 1], [2, 1]]]
