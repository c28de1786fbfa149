"""Compare all poolings with plain loops over numpy arrays in float64, including rows without an answer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from extract.errors import InputError
from extract.signals.pooling import PEAKS, POOLINGS, peak_features, pool, pool_each, weight_of, windows
from extract.store.ragged import Ragged

Array = NDArray[np.float64]


def ragged(rows: list[Any]) -> Ragged:
    return Ragged.of([torch.tensor(row, dtype=torch.float32) for row in rows])


def made(seed: int, n_rows: int = 60, longest: int = 40) -> tuple[list[Array], list[Array]]:
    """Return values and weights of all kinds of rows: empty, with one token, with ties, and with weights of 0."""
    rng = np.random.default_rng(seed)
    lengths = np.concatenate([[0, 1, 1, 2, 3], rng.integers(0, longest, n_rows - 5)])
    values = [rng.exponential(size=n).round(1 if i % 3 == 0 else 9).astype(np.float32) for i, n in enumerate(lengths)]
    weights = [rng.exponential(size=n).astype(np.float32) * (rng.random(n) < 0.7) for n in lengths]
    for i in range(0, n_rows, 7):
        weights[i] = np.zeros_like(weights[i])
    for i in range(3, n_rows, 7):
        weights[i] = weights[i].round(0)  # ties
    return [one.astype(np.float64) for one in values], [one.astype(np.float64) for one in weights]


def plainly(u: Array, how: str) -> float:
    if not len(u) or np.isnan(u).any():
        return math.nan
    if how.startswith("top_"):
        k = max(1, len(u) * int(how[4:]) // 100)
        return float(np.mean(sorted(u)[-k:]))
    if how.startswith("q"):
        return float(np.quantile(u, int(how[1:]) / 100))
    if how == "std":
        return float(np.std(u, ddof=1)) if len(u) > 1 else 0.0
    return float({"mean": np.mean, "max": np.max}[how](u))


def weighted(u: Array, w: Array, how: str) -> float:
    if not len(u) or np.isnan(u).any() or np.isnan(w).any() or w.sum() == 0:
        return plainly(u, how) if not np.isnan(w).any() else math.nan
    if how.startswith("top_"):
        k = max(1, len(u) * int(how[4:]) // 100)
        chosen = sorted(range(len(u)), key=lambda t: -w[t])[:k]  # stable: ties go to the earlier token
        return float(sum(w[t] * u[t] for t in chosen) / sum(w[t] for t in chosen))
    share = w / w.sum()
    mean = float((share * u).sum())
    if how == "mean":
        return mean
    if how == "std":
        return math.sqrt(float((share * (u - mean) ** 2).sum()))
    q = 1.0 if how == "max" else int(how[1:]) / 100
    order = np.argsort(u)
    c = np.cumsum(w[order])
    first = next(i for i in range(len(u)) if c[i] >= q * c[-1])
    return float(u[order[min(first, len(u) - 1)]])


@pytest.mark.parametrize("how", POOLINGS)
def test_every_pooling_equals_a_plain_loop(how: str) -> None:
    values, weights = made(seed=1)
    got = pool(ragged(values), how)
    np.testing.assert_allclose(got, [plainly(u, how) for u in values], rtol=1e-6)
    assert got.dtype == torch.float32
    got = pool(ragged(values), how, ragged(weights))
    expected = [weighted(u, w, how) for u, w in zip(values, weights, strict=True)]
    np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.slow
def test_pooling_in_chunks_gives_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    values, weights = made(seed=2, n_rows=300, longest=200)
    u, w, hows = ragged(values), ragged(weights), list(POOLINGS)
    together = pool_each(u, hows, w), windows(u, 4), peak_features(u, weights=w)
    monkeypatch.setattr("extract.signals.padding.CELLS_AT_ONCE", 500)
    apart = pool_each(u, hows, w), windows(u, 4), peak_features(u, weights=w)
    assert torch.equal(together[1].nan_to_num(-1), apart[1].nan_to_num(-1))
    for whole, split in ((together[0], apart[0]), (together[2], apart[2])):
        for name in whole:
            np.testing.assert_allclose(whole[name], split[name], rtol=1e-6)


def test_rows_without_tokens_or_with_nan_are_nan_and_a_single_token_is_unchanged() -> None:
    values = ragged([[], [0.7], [1.0, torch.nan], [1.0, torch.inf], [2.0, 4.0]])
    weights = ragged([[], [0.0], [1.0, 1.0], [1.0, 1.0], [torch.nan, 1.0]])
    for how in POOLINGS:
        plain, by_weight = pool(values, how).tolist(), pool(values, how, weights).tolist()
        assert [math.isnan(one) for one in plain] == [True, False, True, True, False]
        assert [math.isnan(one) for one in by_weight] == [True, False, True, True, True]
        assert plain[1] == by_weight[1] == (0.0 if how == "std" else pytest.approx(0.7))
    assert windows(values, 3).isnan().all(1).tolist() == [True, False, True, True, False]
    assert peak_features(values)["max"].isnan().tolist() == [True, False, True, True, False]


def test_rows_that_are_all_empty_are_all_nan() -> None:
    empty = ragged([[], []])
    assert pool(empty, "mean").isnan().tolist() == [True, True]
    assert windows(empty, 2).shape == (2, 2)
    assert set(peak_features(empty, weights=empty)) == {*PEAKS[0], *PEAKS[1]}
    assert pool(Ragged(torch.empty(0), torch.zeros(1, dtype=torch.int64)), "max").shape == (0,)


def test_equal_weights_do_not_change_a_mean_and_a_single_weight_selects_its_token() -> None:
    values = ragged([[3.0, 1.0, 2.0], [5.0, 7.0]])
    assert pool(values, "mean", ragged([[0.1, 0.1, 0.1], [2.0, 2.0]])).tolist() == [2.0, 6.0]
    alone = ragged([[0.0, 4.0, 0.0], [0.0, 1e-30]])
    for how in POOLINGS:
        assert pool(values, how, alone).tolist() == ([0.0, 0.0] if how == "std" else [1.0, 7.0])


def test_the_scale_of_the_weights_does_not_matter() -> None:
    values, weights = made(seed=3)
    small = ragged([w * 2.0**-60 for w in weights])
    for how in POOLINGS:
        torch.testing.assert_close(
            pool(ragged(values), how, small), pool(ragged(values), how, ragged(weights)), equal_nan=True, rtol=0, atol=0
        )


def test_several_columns_and_several_weights_are_pooled_separately() -> None:
    values, weights = made(seed=4)
    u, w = ragged(values), ragged(weights)
    columns = Ragged(torch.stack([u.values, 2 * u.values], 1), u.offsets)
    both = Ragged(torch.stack([w.values, w.values.flip(0), w.values.square()], 1), w.offsets)
    for how in POOLINGS:
        got = pool(columns, how)
        for i in range(2):
            torch.testing.assert_close(got[:, i], (i + 1) * pool(u, how), equal_nan=True)
        got = pool(Ragged(u.values[:, None], u.offsets), how, both)
        assert got.shape == (u.n_rows, 3)
        for i in range(3):
            one = pool(u, how, Ragged(both.values[:, i], u.offsets))
            torch.testing.assert_close(got[:, i], one, equal_nan=True)


def test_windows_are_the_means_of_an_even_split_and_a_short_row_repeats_its_tokens() -> None:
    values, _ = made(seed=5)
    for n_windows in (1, 4, 8):
        got = windows(ragged(values), n_windows)
        for u, row in zip(values, got, strict=True):
            if len(u) >= n_windows:
                expected = [part.mean() for part in np.array_split(u, n_windows)]
            else:
                expected = [u[i * len(u) // n_windows] if len(u) else math.nan for i in range(n_windows)]
            np.testing.assert_allclose(row, expected, rtol=1e-5)


@pytest.mark.parametrize("threshold", [0.2, 0.5])
def test_peak_features_equal_a_plain_loop(threshold: float) -> None:
    values, weights = made(seed=6)
    got = peak_features(ragged(values), threshold, ragged(weights))
    assert list(got) == PEAKS[0] + PEAKS[1]
    alone = peak_features(ragged(values), threshold)
    assert list(alone) == PEAKS[0]
    assert all(torch.equal(alone[name].nan_to_num(-1), got[name].nan_to_num(-1)) for name in alone)
    for row, (u, w) in enumerate(zip(values, weights, strict=True)):
        n = len(u)
        if not n:
            continue
        total = sum(w)
        peaks = [h for h in u if h > threshold]
        critical = [h for h, a in zip(u, w, strict=True) if h > threshold and total and a / total > 1 / n + 1e-8]
        expected = {
            "log_count": math.log(1 + len(peaks)),
            "density": len(peaks) / n,
            "mean_peak": sum(peaks) / len(peaks) if peaks else 0.0,
            "max": max(u),
            "mean": sum(u) / n,
            "median": float(np.median(u)),
            "std": plainly(u, "std"),
            "q75": plainly(u, "q75"),
            "q90": plainly(u, "q90"),
            "max_jump": max((abs(u[t + 1] - u[t]) for t in range(n - 1)), default=0.0),
            "log_n": math.log(n),
            "log_critical": math.log(1 + len(critical)),
            "critical_density": len(critical) / n,
            "critical_mean": sum(critical) / len(critical) if critical else 0.0,
            "critical_max": max(critical, default=0.0),
            **{f"w_{how}": weighted(u, w, how) for how in ("mean", "q75", "q90", "std", "max")},
        }
        for name, value in expected.items():
            assert float(got[name][row]) == pytest.approx(value, rel=1e-5, abs=1e-7), (name, row)


def test_impossible_poolings_give_a_one_line_error() -> None:
    values = ragged([[1.0, 2.0], [3.0]])
    with pytest.raises(InputError, match="but got 'top_11'. Did you mean `top_10`"):
        pool(values, "top_11")
    with pytest.raises(InputError, match="Did you mean `mean`"):
        pool_each(values, ["max", "meen"])
    with pytest.raises(InputError, match="to have as many tokens per row as the values, but the numbers differ"):
        pool(values, "mean", ragged([[1.0], [2.0, 3.0]]))
    with pytest.raises(InputError, match="`weights` to be at least 0, but got -1"):
        pool(values, "mean", ragged([[1.0, -1.0], [2.0]]))


def test_weights_have_names() -> None:
    assert weight_of("entropy") == ("tokens", "entropy")
    assert weight_of("prob") == ("tokens", "one_minus_pmax")
    for name in ("entrpy", "hidden/last_answer", "nowhere/x", ""):
        with pytest.raises(InputError, match="`weights` to be one of entropy, prob"):
            weight_of(name)
