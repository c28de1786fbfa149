"""Tests of budgets that are split over temperatures."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from applications.passk.estimators import pass_at_k, pass_of_split
from applications.passk.temperatures import as_drawn, best_single, even_splits, temperature_record
from extract.hashing import hash_order

IDS = [f"q{i}" for i in range(40)]


def counts(*probabilities: float, n: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return counts [temperature, question] of answers that are right with one probability at each temperature."""
    rng = np.random.default_rng(seed)
    known = np.full((len(probabilities), len(IDS)), n)
    return rng.binomial(known, np.array(probabilities)[:, None]), known


def test_the_best_temperature_of_a_half_is_used_in_the_other_half() -> None:
    passed = torch.tensor([[0.9, 0.8, 0.1, 0.2], [0.5, 0.4, 0.6, 0.3]]).double()
    first = torch.tensor([True, True, False, False])
    chosen = best_single(passed, first)(torch.ones(1, 4).double())
    assert chosen.tolist() == pytest.approx([(0.5 + 0.4 + 0.1 + 0.2) / 4])  # best in its own half: 0.65
    resampled = torch.tensor([[0.0, 1.0, 3.0, 0.0]]).double()
    assert best_single(passed, first)(resampled).tolist() == pytest.approx([(0.4 + 3 * 0.1) / 4])


def test_the_best_single_temperature_is_not_optimistic_if_all_are_the_same() -> None:
    chosen, optimistic = [], []
    for seed in range(300):
        right, known = counts(0.3, 0.3, 0.3, 0.3, seed=seed)
        passed = torch.from_numpy(right / known)
        chosen.append(float(best_single(passed, torch.arange(40) < 20)(torch.ones(1, 40).double())))
        optimistic.append(float(passed.mean(1).max()))
    assert abs(np.mean(chosen) - 0.3) < 3 * np.std(chosen) / 300**0.5
    assert np.mean(optimistic) > 0.31


def test_budgets_compare_an_even_split_with_single_temperatures_at_the_same_total() -> None:
    right, known = counts(0.1, 0.3, 0.2)
    found = temperature_record(right, known, [0.3, 0.6, 0.9], IDS, 100, 0)
    assert [(budget["k"], budget["split"]) for budget in found["budgets"]] == [(3, [1, 1, 1]), (6, [2, 2, 2])]
    for budget in found["budgets"]:
        expected = pass_of_split(right, known, budget["split"]).mean()
        assert budget["of_split"]["value"] == pytest.approx(expected)
        singles = [pass_at_k(c, n, [budget["k"]]).mean() for c, n in zip(right, known, strict=True)]
        assert [one["value"] for one in budget["of_single"]] == pytest.approx(singles)
        difference = budget["of_split"]["value"] - budget["of_best"]["value"]
        assert budget["split_minus_best"]["value"] == pytest.approx(difference)
        assert budget["split_minus_best"]["low"] < difference < budget["split_minus_best"]["high"]
    assert found["union"]["value"] == (right > 0).any(0).mean()
    assert [one["value"] for one in found["solved"]] == pytest.approx((right > 0).mean(1))
    assert found["n_answers"] == 24


def test_the_chosen_temperatures_come_from_the_two_halves() -> None:
    right, known = counts(0.0, 0.0)
    first = hash_order(IDS, 0)[:20]
    second = [i for i in range(40) if i not in first]
    right[0, first] = right[1, second] = 4
    found = temperature_record(right, known, [0.5, 1.0], IDS, 100, 0)
    assert found["budgets"][0]["chosen"] == [1.0, 0.5]  # used in the first half, and in the second half
    assert found["budgets"][0]["of_best"]["value"] == 0


def test_one_answer_at_temperature_0_counts_as_any_number_of_identical_ones() -> None:
    right, known = counts(1.0, 0.5)
    right[0], known[0] = np.arange(40) % 2, 1
    drawn_right, drawn_known = as_drawn(right, known, [0.0, 1.0])
    assert (drawn_known == 8).all()
    assert drawn_right[0].tolist() == [0, 8] * 20
    assert (drawn_right[1] == right[1]).all()
    found = temperature_record(right, known, [0.0, 1.0], IDS, 100, 0)
    assert [budget["split"] for budget in found["budgets"]] == [[1, 1], [1, 2], [1, 4]]
    assert [budget["of_single"][0]["value"] for budget in found["budgets"]] == [0.5, 0.5, 0.5]
    assert found["n_answers"] == 9


def test_counts_above_temperature_0_are_not_changed() -> None:
    right, known = counts(0.5, 0.5, n=1)
    assert (as_drawn(right, known, [0.5, 1.0])[1] == 1).all()
    many = counts(0.5, 0.5)
    assert (as_drawn(*many, [0.0, 1.0])[0] == many[0]).all()


def test_there_is_no_budget_if_each_temperature_has_fewer_answers_than_there_are_temperatures() -> None:
    assert even_splits([0.3, 0.6, 0.9], most=2) == []
    found = temperature_record(*counts(0.5, 0.5, 0.5, n=2), [0.3, 0.6, 0.9], IDS, 100, 0)
    assert found["budgets"] == []
