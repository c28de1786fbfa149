"""Tests of the broader probe: its weight, the scores that it predicts, and a shift that it has seen in other groups."""

from __future__ import annotations

import copy

import pytest
import torch
from scipy.optimize import minimize_scalar

from probes.fitting.backoff import fit_backoff
from probes.fitting.broader import L2, fit_broader, mixture_weight
from probes.fitting.group_ridge import RIDGE, few_layers, fit_ridge, held_out_scores
from probes.metrics.functional import debiased_brier
from probes.saved.novelty import Novelty

N, N_SHIFTED, WIDTH, K = 200, 40, 12, 20


def questions(generator: torch.Generator, shift: torch.Tensor, n: int = N) -> tuple[torch.Tensor, ...]:
    """Return features [row, 1, width], right and known. The accuracy depends on the first coordinate and the shift."""
    x = torch.randn(n, WIDTH, generator=generator)
    accuracy = torch.sigmoid(2 * x[:, 0] - 3 * shift[1])
    return (
        (x + 8 * shift)[:, None],
        torch.binomial(torch.full((n,), float(K)), accuracy, generator=generator),
        torch.full((n,), float(K)),
    )


def narrow_confidence(features: torch.Tensor) -> torch.Tensor:
    """Return the confidence of a probe that knows only the first coordinate."""
    return torch.sigmoid(2 * features[:, 0, 0])


@pytest.fixture(scope="module")
def fitted() -> tuple[Novelty, torch.Generator]:
    """Return a novelty with a broader probe that was fitted to 30 groups with random shifts."""
    generator = torch.Generator().manual_seed(0)
    own = questions(generator, torch.zeros(WIDTH))
    shifts = torch.randn(30, WIDTH, generator=generator) * (torch.arange(WIDTH) > 0)
    others = [questions(generator, shift, N_SHIFTED) for shift in shifts]
    novelty = fit_backoff(own[0], WIDTH, *own[1:], torch.arange(N) % 5, torch.arange(N) % 3)
    features, right, known = (torch.cat(columns) for columns in zip(own, *others, strict=True))
    groups = ["own"] * N + [f"shift {number}" for number in range(30) for _ in range(N_SHIFTED)]
    ids = [str(number) for number in range(len(groups))]
    novelty.broader = fit_broader(features, WIDTH, right, known, groups, ids, torch.arange(len(groups)) < N)
    return novelty, generator


@pytest.mark.slow
def test_novel_questions_that_are_familiar_to_the_broader_probe_get_its_confidences(
    fitted: tuple[Novelty, torch.Generator],
) -> None:
    novelty, generator = fitted
    assert novelty.broader is not None
    features, right, known = questions(generator, torch.eye(WIDTH)[1])  # a shift that lowers the accuracy
    raw, narrow = narrow_confidence(features), copy.deepcopy(novelty)
    narrow.broader = None
    found, backed_off = novelty(features[:, 0], raw), narrow(features[:, 0], raw)
    assert found.is_novel.all()
    assert torch.equal(found.novelty, backed_off.novelty)
    expected, share = novelty.broader(features[:, 0])
    assert (share == novelty.broader.share).double().mean() > 0.9
    is_familiar = share == novelty.broader.share
    mixed = backed_off.confidence.lerp(expected, novelty.broader.share)
    torch.testing.assert_close(found.confidence[is_familiar], mixed[is_familiar])
    assert debiased_brier(found.confidence, right, known) < 0.5 * debiased_brier(raw, right, known)


def test_questions_that_are_novel_to_both_probes_are_backed_off_to_the_base_rate(
    fitted: tuple[Novelty, torch.Generator],
) -> None:
    novelty, generator = fitted
    features, *_ = questions(generator, 50 * torch.eye(WIDTH)[1])
    raw = narrow_confidence(features)
    found = novelty(features[:, 0], raw)
    assert found.is_novel.all()
    torch.testing.assert_close(found.confidence, raw.lerp(novelty.base_rate, novelty.weight))


def test_familiar_questions_keep_their_confidences(fitted: tuple[Novelty, torch.Generator]) -> None:
    novelty, generator = fitted
    features, *_ = questions(generator, torch.zeros(WIDTH))
    raw = narrow_confidence(features)
    found = novelty(features[:, 0], raw)
    assert torch.equal(found.confidence[~found.is_novel], raw[~found.is_novel])


def test_a_broader_probe_that_does_not_transfer_gets_no_weight() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(900, WIDTH, generator=generator)
    number, known = torch.arange(900) // 150, torch.full((900,), float(K))
    x[150:, 1:] += 8 * torch.randn(5, WIDTH - 1, generator=generator)[number[150:] - 1]
    of_group = torch.tensor([0, 0.95, 0.05, 0.95, 0.05, 0.95])[number]  # unrelated to the features and the narrow probe
    accuracy = torch.where(number == 0, torch.sigmoid(2 * x[:, 0]), 0.5 * torch.sigmoid(2 * x[:, 0]) + 0.5 * of_group)
    right = torch.binomial(known, accuracy, generator=generator)
    groups, ids = [str(one) for one in number.tolist()], [str(row) for row in range(900)]
    assert fit_broader(x[:, None], WIDTH, right, known, groups, ids, number == 0).share < 0.5


def test_a_store_with_the_same_questions_can_be_broader() -> None:
    generator = torch.Generator().manual_seed(0)
    own, other = (questions(generator, shift, 120) for shift in (torch.zeros(WIDTH), torch.eye(WIDTH)[1]))
    features, right, known = (torch.cat(columns) for columns in zip(own, other, strict=True))
    ids = [str(row) for row in range(120)]
    fitted = fit_broader(
        features, WIDTH, right, known, ["own"] * 120 + ["other"] * 120, ids * 2, torch.arange(240) < 120
    )
    assert fitted.problem() is None


def test_the_saved_weights_reproduce_the_scores_of_the_ridge_regression() -> None:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(150, 9, WIDTH, generator=generator) * 5 + 30  # far from 0, like some coordinates of a model
    accuracy, known = torch.sigmoid((features[:, 0, 0] - 30) / 5), torch.full((150,), float(K))
    right = torch.binomial(known, accuracy, generator=generator)
    groups, ids = ["own"] * 90 + ["a"] * 30 + ["b"] * 30, [str(row) for row in range(150)]
    broad = fit_broader(features, WIDTH, right, known, groups, ids, torch.arange(150) < 90)
    x = few_layers(features).flatten(1)
    weight, bias = fit_ridge(x[:, None], right / known, L2)
    score = x.double() @ weight[0].double() + bias
    confidence, _ = broad(features.flatten(1))
    assert torch.corrcoef(torch.stack([score, confidence.double().logit()]))[0, 1] == pytest.approx(1, abs=1e-5)
    assert set(broad.weight.reshape(9, WIDTH).any(1).nonzero()[:, 0].tolist()) == {0, 3, 6}


def test_held_out_scores_are_those_of_ridge_regressions_without_the_fold() -> None:
    from sklearn.linear_model import Ridge
    from sklearn.preprocessing import StandardScaler

    generator = torch.Generator().manual_seed(2)
    features, target = torch.randn(90, 2, 7, generator=generator) + 3, torch.rand(90, generator=generator)
    fold = torch.arange(90) % 3
    found = held_out_scores(features, target, fold)
    for number in range(3):
        inside, scores = (fold == number).numpy(), []
        for layer in range(2):
            x = features[:, layer].double().numpy()
            scaler = StandardScaler().fit(x[~inside])
            model = Ridge(RIDGE * 60).fit(scaler.transform(x[~inside]) * (59 / 60) ** 0.5, target[~inside])
            scores.append(model.predict(scaler.transform(x[inside]) * (59 / 60) ** 0.5))  # torch divides by n − 1
        assert found[inside].numpy() == pytest.approx(sum(scores) / 2, abs=1e-5)


def test_the_weight_minimises_the_squared_error() -> None:
    confidence, broader, accuracy = torch.rand(3, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    accuracy = 0.3 * confidence + 0.7 * broader + 0.2 * (accuracy - 0.5)

    def loss(weight: float) -> float:
        return float(((1 - weight) * confidence + weight * broader - accuracy).square().sum())

    best = minimize_scalar(loss, bounds=(0, 1), method="bounded").x
    assert float(mixture_weight(confidence, broader, accuracy)) == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize(("better", "weight"), [("broader", 1.0), ("confidence", 0.0)])
def test_the_weight_is_a_fraction(better: str, weight: float) -> None:
    right, wrong = torch.tensor([0.9, 0.2]), torch.tensor([0.6, 0.4])
    of = {"broader": (wrong, right), "confidence": (right, wrong)}[better]
    assert mixture_weight(*of, 2 * right - wrong) == weight
