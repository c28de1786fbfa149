"""Tests of the latent probe: its likelihood and score against loops, planted spreads, collapses, and training."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, Normal

from datamodules import FeatureDataModule
from extract.errors import InputError
from probes import load_probe
from probes.fitting.latent_model import (
    DRAWS,
    FLOOR,
    Answers,
    Gaussian,
    answer_loss,
    collapse,
    drawn_noise,
    encode,
    initial_weights,
    principal_axes,
    rank_correlations,
    sampled_score,
    summarise,
)
from probes.latent import Latent
from probes.report.report import Report
from probes.saved.head import LatentHead
from tests.helpers.fitting import descend
from tests.helpers.latent_simulation import TEST, TRAIN, Fitted, Simulated, fit, forced, simulate
from tests.helpers.synthetic import add_answer_signals, make_store


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def answers() -> Tensor:
    """Return five questions with four answers and three components.

    Some answers are missing, one question has none, and one has a single answer.
    """
    embeddings = drawn(5, 4, 3)
    embeddings[1, 2] = embeddings[3] = embeddings[4, 1:] = torch.nan
    return embeddings


@pytest.mark.parametrize("shared", [0.0, 0.7])
def test_the_loss_is_the_likelihood_of_answers_with_a_shared_component(answers: Tensor, shared: float) -> None:
    predicted = Gaussian(drawn(5, 3, seed=1), 0.3 + drawn(5, 3, seed=2).abs())
    total, number = 0.0, 0
    for question in range(5):
        given = answers[question][answers[question].isfinite().all(-1)]
        for i in range(3 if len(given) else 0):
            mean, deviation = (one[question, i].expand(len(given)) for one in predicted)
            covariance = torch.diag(deviation**2) + shared
            total -= float(MultivariateNormal(mean, covariance).log_prob(given[:, i]))
        number += len(given)
    of_questions = summarise(answers, torch.eye(3, dtype=torch.float64))
    loss = answer_loss(predicted, torch.full((1, 3), shared, dtype=torch.float64), of_questions)
    assert float(loss) == pytest.approx(total / number, rel=1e-12)
    if shared == 0:
        kept = answers.isfinite().all(-1)
        plain = Normal(predicted.mean[:, None], predicted.deviation[:, None]).log_prob(answers.nan_to_num()).sum(-1)
        assert float(loss) == pytest.approx(-float(plain[kept].mean()), rel=1e-12)


def test_the_order_of_the_answers_does_not_matter(answers: Tensor) -> None:
    axes = torch.eye(3, dtype=torch.float64)
    for one, other in zip(summarise(answers, axes), summarise(answers[:, [2, 0, 3, 1]], axes), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.slow
def test_identical_answers_give_a_finite_loss_and_finite_gradients() -> None:
    torch.manual_seed(0)
    weights = {name: one[0].requires_grad_() for name, one in initial_weights(1, 8, 16, 4).items()}
    log_shared = torch.zeros(1, 4, requires_grad=True)
    same = torch.nn.functional.normalize(torch.randn(6, 1, 4), dim=-1).expand(6, 5, 4)
    of_questions, hidden = summarise(same, torch.eye(4)), torch.randn(6, 8)
    optimizer = torch.optim.Adam([*weights.values(), log_shared], lr=0.05)
    for _ in range(150):
        loss = answer_loss(encode(hidden, **weights), log_shared.exp(), of_questions)
        optimizer.zero_grad()
        loss.backward()
        assert loss.isfinite()
        assert all(one.grad is not None and one.grad.isfinite().all() for one in (*weights.values(), log_shared))
        optimizer.step()
    with torch.no_grad():
        predicted, total = encode(hidden, **weights), log_shared.exp().sum()
    assert float(predicted.deviation.min()) >= FLOOR
    assert float(predicted.deviation.max()) < 0.1
    assert (sampled_score(predicted, total, drawn_noise(4)) > 0.95).all()


def test_the_score_is_the_median_cosine_of_all_pairs_of_draws() -> None:
    mean, deviation, noise = drawn(6, seed=1), 0.1 + drawn(6, seed=2).abs(), drawn_noise(6).double()
    around = mean * np.sqrt((float(mean @ mean) + 0.5) / float(mean @ mean))
    draws = [(around + deviation * one).numpy() for one in noise]
    cosines = sorted(
        float(a @ b) / float(np.linalg.norm(a) * np.linalg.norm(b)) for i, a in enumerate(draws) for b in draws[:i]
    )
    assert len(cosines) == DRAWS * (DRAWS - 1) // 2 == 190
    score = sampled_score(Gaussian(mean, deviation), torch.tensor(0.5), noise)
    assert float(score) == pytest.approx(cosines[94], abs=1e-12)


def test_equal_inputs_have_equal_scores_and_another_seed_gives_other_draws() -> None:
    assert torch.equal(drawn_noise(5), drawn_noise(5))
    assert not torch.equal(drawn_noise(5), drawn_noise(5, seed=1))
    head = LatentHead(4, hidden=3, components=2)
    assert torch.equal(head(torch.ones(4)), head(torch.ones(3, 4))[2])


def test_the_score_falls_as_the_deviation_grows_and_is_near_its_expectation() -> None:
    deviation = torch.linspace(0.01, 0.3, 20)[:, None].expand(20, 64)
    predicted = Gaussian(torch.full((20, 64), 0.125 / 2), deviation)
    score = sampled_score(predicted, torch.tensor(0.75), drawn_noise(64))
    assert (score.diff() < 0).all()
    agreed = predicted.mean.square().sum(-1) + 0.75  # limit of the score as the number of components grows
    expected = agreed / (agreed + predicted.deviation.square().sum(-1))
    torch.testing.assert_close(score, expected, atol=0.05, rtol=0)


def test_the_axes_are_those_of_an_uncentred_decomposition() -> None:
    embeddings = 0.1 * drawn(40, 5, 6) + torch.tensor([3.0, 0, 0, 0, 0, 0])
    embeddings[3, 2] = torch.nan
    axes = principal_axes(embeddings, 2)
    rows = embeddings.flatten(0, 1)
    _, _, reference = np.linalg.svd(rows[rows.isfinite().all(-1)].numpy())
    assert torch.allclose((axes @ torch.from_numpy(reference[:2]).T).abs(), torch.eye(2, dtype=torch.float64))
    assert abs(float(axes[0, 0])) > 0.999  # the common component of all embeddings is kept


@cache
def simulated(told: bool) -> Simulated:
    return simulate(told, seed=0, d_model=144)


@cache
def fit_once(told: bool, hierarchical: bool = True) -> Fitted:
    return fit(simulated(told), hierarchical)


@pytest.mark.slow
@pytest.mark.parametrize("told", [True, False])
def test_the_score_finds_a_planted_spread(told: bool) -> None:
    data, fitted = simulated(told), fit_once(told)
    assert fitted.collapsed is None
    assert fitted.rank(data) >= 0.8
    narrow = 1 / (1 + data.spread[TEST])
    agreed = fitted.predicted.mean.square().sum(-1) + fitted.shared
    control = agreed / (agreed + fitted.predicted.deviation.square().sum(-1))
    assert float(rank_correlations(control[TEST, None], narrow)) == pytest.approx(fitted.rank(data), abs=0.02)
    assert torch.equal(*(fit(data, epochs=5).scores for _ in range(2)))  # the same seed


@pytest.mark.slow
def test_without_the_shared_component_the_deviation_includes_the_error_of_the_mean() -> None:
    data, plain, whole = simulated(False), fit_once(False, hierarchical=False), fit_once(False)
    assert plain.rank(data) < whole.rank(data) - 0.1
    seu = float((1 - data.agreement[TEST]).mean())  # for embeddings of length 1 the sum of the answers' variances
    held = [float(one.predicted.deviation[TEST].square().sum(-1).mean()) for one in (plain, whole)]
    assert held[1] == pytest.approx(seu, rel=0.1)
    assert held[0] > 3 * seu


@pytest.mark.slow
def test_centring_makes_scores_near_the_centre_independent_of_the_deviation() -> None:
    data, fitted = simulated(True), fit_once(True, hierarchical=False)
    centre = data.embeddings[TRAIN].mean((0, 1)) @ principal_axes(data.embeddings[TRAIN], 64).T
    moved = fitted.predicted._replace(mean=fitted.predicted.mean - centre)
    centred = sampled_score(moved, fitted.shared, drawn_noise(64))
    narrow = 1 / (1 + data.spread[TEST])
    assert float(rank_correlations(centred[TEST, None], narrow)) < fitted.rank(data) - 0.02


def test_rank_correlations_leave_out_questions_without_agreement_and_a_constant_has_none() -> None:
    agreement = torch.tensor([0.9, 0.1, torch.nan, 0.5])
    scores = torch.tensor([[3.0, 1.0, 5.0], [1.0, 2.0, 5.0], [9.0, 9.0, 5.0], [2.0, 3.0, 5.0]])
    assert rank_correlations(scores, agreement).tolist() == pytest.approx([1.0, -0.5, -1.0])


@pytest.mark.slow
def test_every_forced_collapse_is_reported() -> None:
    said = {name: fitted.collapsed for name, fitted in forced(simulated(False)).items()}
    for sentence in said.values():
        assert sentence is not None
        assert sentence.startswith("The latent spread has collapsed")
        assert sentence.endswith(".")
    assert "rank correlation" in str(said["shuffled"])
    assert "the same for all 100 validation questions" in str(said["constant"])
    assert "the same for all 100 validation questions" in str(said["penalised"])


def test_a_collapse_to_the_floor_or_to_flat_scores_is_reported() -> None:
    agreement, deviation = torch.linspace(0, 1, 50), torch.rand(50, 8) + 0.1
    assert "at their lower bound" in str(collapse(agreement, agreement, torch.full((50, 8), FLOOR * 1.001)))
    assert "varies only 1.0% as much" in str(collapse(0.01 * agreement, agreement, deviation))
    assert "is only -1.00" in str(collapse(-agreement, agreement, deviation))
    assert collapse(agreement, agreement, deviation) is None
    agreement[::7] = torch.nan
    assert collapse(torch.linspace(0, 1, 50), agreement, deviation) is None


# The probe in a trainer


def plant(folder: Path, seed: int = 0, k: int = 8) -> Path:
    """Make a store in which a direction of layer 2 determines correctness, and right answers are identical."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(160, 3, 16)).astype(np.float32)
    accuracy = 1 / (1 + np.exp(-3 * features[:, 2, 0]))
    add_answer_signals(make_store(folder, features, accuracy, k=k))
    return folder


def trained(data: FeatureDataModule, epochs: int = 30, folder: Path | None = None, **options: Any) -> Latent:
    torch.manual_seed(0)
    module = Latent(**{"hidden": 16, "components": 8, "lr": 0.01, **options})
    descend(module, data, epochs, every=5, folder=folder)
    return module


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plant(tmp_path_factory.mktemp("stores") / "latent")


@pytest.fixture(scope="module")
def data(store: Path) -> FeatureDataModule:
    module = FeatureDataModule(str(store))
    module.setup()
    return module


@pytest.fixture(scope="module")
def fitted(data: FeatureDataModule) -> Latent:
    return trained(data)


@pytest.fixture(scope="module")
def report(data: FeatureDataModule, fitted: Latent) -> Report:
    return Report(fitted, data, seed=0, n_resamples=50)


@pytest.mark.slow
def test_the_probe_finds_the_planted_layer_without_grades_and_reports_no_collapse(
    fitted: Latent, report: Report
) -> None:
    assert fitted.choice is not None
    assert fitted.choice.names == ("2/last_prompt",)
    assert fitted.warning is None
    figures = report.record["splits"]["test"]["capability"]["latent"]
    assert figures["auroc"]["low"] > 0.5


@pytest.mark.slow
def test_the_best_weights_of_every_candidate_are_kept(data: FeatureDataModule, fitted: Latent) -> None:
    batch = data.batch("val")
    with torch.no_grad():
        scores = fitted.candidate_scores(fitted.standardised(batch.features))
    agreement = fitted.answer_agreement[batch.question]
    for feature in range(3):
        rank = rank_correlations(scores[0, :, feature : feature + 1], agreement)
        assert float(rank) == pytest.approx(float(fitted.best_rank[0, feature]), abs=1e-6)
    assert fitted.val_figures["val/spearman_agreement"] == pytest.approx(float(fitted.best_rank[0, 2]), abs=1e-6)


@pytest.mark.slow
def test_grades_are_not_used_in_training(store: Path, fitted: Latent) -> None:
    other = FeatureDataModule(str(store))
    other.setup()
    train = other.batch("train")
    train.right[:] = train.right.flip(0)
    train.target[:] = train.target.flip(0)
    again = trained(other)
    assert torch.equal(again.weight_in, fitted.weight_in)
    assert torch.equal(again.log_shared, fitted.log_shared)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The latent spread has collapsed")  # five epochs are few
def test_candidates_train_as_if_alone(data: FeatureDataModule) -> None:
    both = trained(data, epochs=5, l2=[0.0, 10.0])
    alone = trained(data, epochs=5)
    torch.testing.assert_close(both.weight[0], alone.weight[0])
    free, penalised = both.weight.detach().square().flatten(1).sum(-1).tolist()
    assert penalised < free


@pytest.mark.slow
def test_a_saved_probe_gives_the_confidences_of_the_fitted_one(
    data: FeatureDataModule, fitted: Latent, report: Report, tmp_path: Path
) -> None:
    loaded = load_probe(report.probe().save(tmp_path / "probe"))
    assert loaded.config["sizes"] == {"hidden": 16, "components": 8}
    features = data.batch("test").features
    torch.testing.assert_close(loaded.confidences(features[:, 2]).confidence, fitted.predict(features))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The latent spread has collapsed")  # five epochs are few
def test_a_checkpoint_gives_the_scores_of_its_epoch(data: FeatureDataModule, tmp_path: Path) -> None:
    module = trained(data, epochs=5, folder=tmp_path)
    path = module.trainer.checkpoint_callback.best_model_path  # type: ignore[union-attr]
    loaded = Latent.load_from_checkpoint(path, weights_only=True)
    features = module.standardised(data.batch("test").features)
    torch.testing.assert_close(loaded.candidate_scores(features), module.candidate_scores(features))


@pytest.mark.slow
def test_a_probe_that_learnt_nothing_reports_this(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    accuracy = rng.random(120)
    add_answer_signals(make_store(tmp_path / "store", rng.normal(size=(120, 1, 8)).astype(np.float32), accuracy, k=6))
    unknowing = FeatureDataModule(str(tmp_path / "store"))
    with pytest.warns(UserWarning, match="latent spread has collapsed"):
        module = trained(unknowing, l2=1e5)
    assert module.warning is not None


@pytest.mark.slow
def test_a_spread_that_is_not_related_to_the_grades_gives_the_base_rate_with_a_warning(store: Path) -> None:
    opposite = FeatureDataModule(str(store), layers=[2])
    opposite.setup()
    batch = opposite.batch("val")
    batch.right[:] = batch.known - batch.right
    batch.target[:] = 1 - batch.target
    module = trained(opposite)
    assert module.warning is not None
    assert "no better than the mean accuracy" in module.warning
    assert float(module.predict(batch.features).std()) < 1e-6


@pytest.mark.parametrize("options", [{"hidden": 0}, {"components": -1}, {"lr": 0.0}, {"calibrator": "temperature"}])
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"`{next(iter(options))}`"):
        Latent(**options)


@pytest.mark.slow
def test_more_components_than_embeddings_have_are_refused(data: FeatureDataModule) -> None:
    with pytest.raises(InputError, match="`components` to be at most 8"):
        trained(data, components=9)


def test_targets_of_single_answers_are_refused(store: Path) -> None:
    with pytest.raises(InputError, match="`target` to be question-level"):
        trained(FeatureDataModule(str(store), target="response"))


def test_a_store_without_embeddings_names_the_command_that_computes_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    make_store(tmp_path / "store", rng.normal(size=(60, 1, 4)).astype(np.float32), rng.random(60))
    with pytest.raises(InputError, match=r"ask --store .* --baselines '\[text_embedding\]'"):
        trained(FeatureDataModule(str(tmp_path / "store")))


def test_a_head_whose_shared_variance_is_negative_is_named() -> None:
    head = LatentHead(4, hidden=3, components=2)
    assert head.problem() is None
    head.shared.fill_(-1)
    assert head.problem() == "`shared` is -1.0, below 0"


def test_a_question_without_answers_gives_finite_gradients(answers: Tensor) -> None:
    predicted = Gaussian(*(drawn(5, 3, seed=seed).abs().add(0.3).requires_grad_() for seed in (1, 2)))
    shared = torch.full((1, 3), 0.7, dtype=torch.float64, requires_grad=True)
    answer_loss(predicted, shared, summarise(answers, torch.eye(3, dtype=torch.float64))).backward()
    for weight in (*predicted, shared):
        assert weight.grad is not None
        assert weight.grad.isfinite().all()
    assert predicted.mean.grad is not None
    assert predicted.mean.grad[3].tolist() == [0, 0, 0]  # it has no answer


def test_summaries_of_no_answers_count_nothing() -> None:
    nothing = summarise(torch.full((2, 3, 4), torch.nan), torch.eye(4))
    assert nothing.number.tolist() == [0, 0]
    predicted = Gaussian(torch.zeros(2, 4), torch.ones(2, 4))
    assert float(answer_loss(predicted, torch.ones(1, 4), Answers(*nothing))) == 0
