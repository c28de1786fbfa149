"""Tests of the broader probe: its weight, the scores that it predicts, and a shift that it has seen in other groups."""

from __future__ import annotations

import pytest
import torch
from scipy.optimize import minimize_scalar

from probes.fitting.backoff import fit_backoff
from probes.fitting.broader import fit_broader, least_squares_weight
from probes.fitting.group_ridge import RIDGE, fit_ridge, held_out_scores
from probes.metrics.functional import debiased_brier
from probes.saved.novelty import Novelty

N, N_SHIFTED, WIDTH, K = 200, 40, 12, 20


def questions(generator: torch.Generator, shift: torch.Tensor, n: int = N) -> tuple[torch.Tensor, ...]:
    """Return features [row, 1, width], right and known. The accuracy depends on the first coordinate and the shift."""
    x = torch.randn(n, WIDTH, generator=generator)
    accuracy = torch.sigmoid(2 * x[:, 0] - 3 * shift[1])
    return (x + 8 * shift)[:, None], torch.binomial(torch.full((n,), float(K)), accuracy, generator=generator), torch.full((n,), float(K))


def narrow_confidence(features: torch.Tensor) -> torch.Tensor:
    """Return the confidence of a probe that knows only the first coordinate."""
    return torch.sigmoid(2 * features[:, 0, 0])


def fitted() -> tuple[Novelty, Novelty, torch.Generator]:
    """Return a novelty without and with a broader probe, fitted to 30 groups with random shifts."""
    generator = torch.Generator().manual_seed(0)
    own = questions(generator, torch.zeros(WIDTH))
    shifts = torch.randn(30, WIDTH, generator=generator) * (torch.arange(WIDTH) > 0)
    others = [questions(generator, shift, N_SHIFTED) for shift in shifts]
    narrow = fit_backoff(own[0], WIDTH, *own[1:], torch.arange(N) % 5, torch.arange(N) % 3)
    every = [torch.cat(columns) for columns in zip(own, *others, strict=True)]
    labels = [None] * N + [f"shift {number}" for number in range(30) for _ in range(N_SHIFTED)]
    return narrow, fit_broader(narrow, *every, labels, narrow_confidence(every[0])), generator


def test_novel_questions_are_backed_off_to_what_the_broader_probe_has_learnt() -> None:
    narrow, broad, generator = fitted()
    assert broad.weight > 0.6
    features, right, known = questions(generator, torch.eye(WIDTH)[1])  # a shift that lowers the accuracy
    raw = narrow_confidence(features)
    found = {name: one(features[:, 0], raw) for name, one in (("narrow", narrow), ("broad", broad))}
    brier = {name: float(debiased_brier(one.confidence, right, known)) for name, one in found.items()}
    assert found["broad"].is_novel.all()
    assert torch.equal(found["broad"].novelty, found["narrow"].novelty)
    assert brier["broad"] < 0.75 * brier["narrow"]


def test_familiar_questions_keep_their_confidences() -> None:
    _, broad, generator = fitted()
    features, *_ = questions(generator, torch.zeros(WIDTH))
    raw = narrow_confidence(features)
    found = broad(features[:, 0], raw)
    assert torch.equal(found.confidence[~found.is_novel], raw[~found.is_novel])


def test_the_saved_weights_reproduce_the_confidences_of_the_ridge_regression() -> None:
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(150, 9, WIDTH, generator=generator) * 5 + 30  # far from 0, like some coordinates of a model
    accuracy, known = torch.sigmoid((features[:, 0, 0] - 30) / 5), torch.full((150,), float(K))
    right = torch.binomial(known, accuracy, generator=generator)
    narrow = fit_backoff(features[:90], WIDTH, right[:90], known[:90], torch.arange(90) % 5, torch.arange(90) % 3)
    labels = [None] * 90 + ["a"] * 30 + ["b"] * 30
    broad = fit_broader(narrow, features, right, known, labels, torch.full((150,), 0.5))
    weight, bias = fit_ridge(features, right / known)
    score = torch.einsum("rld,ld->r", features.double(), weight.double()) + bias
    logits = broad.broader(features.flatten(1)).logit()
    assert torch.corrcoef(torch.stack([score, logits.double()]))[0, 1] == pytest.approx(1, abs=1e-6)


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
    assert float(least_squares_weight(confidence, broader, accuracy)) == pytest.approx(best, abs=1e-5)


@pytest.mark.parametrize(("better", "weight"), [("broader", 1.0), ("confidence", 0.0)])
def test_the_weight_is_a_fraction(better: str, weight: float) -> None:
    right, wrong = torch.tensor([0.9, 0.2]), torch.tensor([0.6, 0.4])
    of = {"broader": (wrong, right), "confidence": (right, wrong)}[better]
    assert least_squares_weight(*of, 2 * right - wrong) == weight
