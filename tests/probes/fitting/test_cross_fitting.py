"""Tests of cross-fitting and of the fallback to the mean accuracy, on synthetic stores with a known truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from datamodules import FeatureDataModule
from probes.comparison.out_of_fold import BEST, Comparison
from probes.fitting.module import ProbeModule
from probes.fitting.quiet import quiet_lightning
from probes.fitting.standardiser import standardiser
from probes.fitting.training import N_FOLDS, ClosedForm
from probes.layer_average import LayerAverage
from probes.logistic import Logistic
from probes.metrics.functional import capability_auroc
from probes.report.report import Report, report_page
from probes.ridge import Ridge
from tests.helpers.fitting import descend, fit
from tests.helpers.planted import planted
from tests.helpers.synthetic import add_answer_signals, make_store

MakeData = Callable[..., FeatureDataModule]


@pytest.fixture
def make_data(tmp_path: Path) -> MakeData:
    """Return a function that makes a store in which the last of three layers determines the accuracy."""

    def make(n: int = 100, seed: int = 0, shuffled: bool = False, target: str = "capability") -> FeatureDataModule:
        features, accuracy = planted(n, seed=seed)
        if shuffled:
            accuracy = np.random.default_rng(seed).permutation(accuracy)
        folder = tmp_path / f"{seed} {shuffled} {target}"
        store = make_store(folder, features, accuracy, seed=seed)
        if target == "response":
            add_answer_signals(store)
        data = FeatureDataModule(str(folder), target=target)
        data.setup()
        return data

    return make


def fitted(module: ClosedForm, data: FeatureDataModule) -> ClosedForm:
    quiet_lightning()
    descend(module, data, epochs=1, every=1)
    return module


def out_of_fold(module: ClosedForm) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the out-of-fold scores [penalty, row, input] and the rows [row]."""
    assert module._out_of_fold is not None
    scores, batch = module._out_of_fold
    return scores, batch.row


@pytest.mark.slow
def test_out_of_fold_scores_come_from_probes_fitted_on_the_other_folds(make_data: MakeData) -> None:
    data = make_data()
    module = fitted(Logistic(), data)
    scores, _ = out_of_fold(module)
    rows = data.batch("train", "val")
    fold = data.inner_folds(rows.question, N_FOLDS)
    assert sorted(fold.unique().tolist()) == list(range(N_FOLDS))
    for number in range(N_FOLDS):
        others, held = rows.take(fold != number), rows.take(fold == number)
        mean, scale = standardiser(others.features)
        weight, bias = module.solve(((others.features - mean) / scale).transpose(0, 1), others.target)
        expected = torch.einsum("rfd,pfd->prf", (held.features - mean) / scale, weight) + bias[:, None]
        torch.testing.assert_close(scores[:, fold == number], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_the_final_probe_is_fitted_on_training_and_validation_questions(make_data: MakeData) -> None:
    data = make_data()
    module, rows = fitted(Ridge(), data), data.batch("train", "val")
    mean, scale = standardiser(rows.features)
    weight, bias = module.solve(((rows.features - mean) / scale).transpose(0, 1), rows.target)
    torch.testing.assert_close(module.weight.detach(), weight)
    torch.testing.assert_close(module.bias.detach(), bias)


@pytest.mark.slow
def test_a_grade_changes_the_final_confidence_of_its_question_but_not_its_out_of_fold_score(
    make_data: MakeData,
) -> None:
    data = make_data()
    before, features = fitted(Ridge(l2=0.3), data), data.batch("train").features
    scores, rows = out_of_fold(before)
    batch = data.batch("train")
    place = int(((batch.right > 1) & (batch.right < 9)).nonzero()[0])
    row = int(batch.row[place])
    batch.right[place] = data.table.right[row] = 1 if batch.right[place] > 4 else 9  # still not always wrong
    batch.target[place] = batch.right[place] / 10
    after = fitted(Ridge(l2=0.3), data)
    changed = (out_of_fold(after)[0] - scores).abs().amax((0, 2)) > 1e-6
    own = (rows == row).nonzero().item()
    assert not changed[int(own)]
    fold = data.inner_folds(data.batch("train", "val").question, N_FOLDS)
    assert torch.equal(changed, fold != fold[int(own)])
    assert abs(float((after.predict(features) - before.predict(features))[place])) > 1e-3


@pytest.mark.slow
def test_an_inner_fold_has_all_answers_to_its_questions(make_data: MakeData) -> None:
    data = make_data(target="response")
    rows = data.batch("train", "val")
    fold = data.inner_folds(rows.question, N_FOLDS)
    assert len(rows.question) > len(rows.question.unique())
    for question in rows.question.unique():
        assert len(fold[rows.question == question].unique()) == 1


@pytest.mark.slow
def test_questions_with_right_answers_are_spread_over_the_inner_folds(make_data: MakeData) -> None:
    data = make_data()
    data.table.groups[:] = ["same"] * 100
    right = np.zeros(100, dtype=data.table.right.dtype)
    right[np.random.default_rng(0).choice(100, 10, replace=False)] = 3
    data.table.right[:] = right
    fold = data.inner_folds(torch.arange(100), N_FOLDS)
    assert fold.bincount().tolist() == [20] * N_FOLDS
    assert fold[torch.from_numpy(right) > 0].bincount(minlength=N_FOLDS).tolist() == [2] * N_FOLDS


@pytest.mark.slow
@pytest.mark.parametrize("probe", [LayerAverage, Logistic])
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_with_shuffled_labels_a_probe_returns_the_base_rate_with_a_warning(
    make_data: MakeData, probe: type[ClosedForm], seed: int
) -> None:
    data = make_data(seed=seed, shuffled=True)
    module, rows = fitted(probe(), data), data.batch("train", "val")
    rate = float(rows.right.sum() / rows.known.sum())
    assert module.predict(rows.features).tolist() == pytest.approx([rate] * len(rows.row))
    assert module.warning is not None
    assert (
        "On 80 questions, the probe's cross-fitted confidences predict the grades no better than the mean"
        in module.warning
    )
    assert module.val_figures["val/auroc"] == 0.5
    assert module.val_figures["val/loss"] == pytest.approx(float(module.val_losses.mean()))


@pytest.mark.slow
def test_a_report_has_the_warning_and_the_number_of_training_and_validation_answers(make_data: MakeData) -> None:
    data = make_data(seed=3, shuffled=True)
    report, rows = Report(fitted(Logistic(), data), data, seed=0, n_resamples=5), data.batch("train", "val")
    rate = float(rows.right.sum() / rows.known.sum())
    assert report.confidences["logistic"][rows.row].tolist() == pytest.approx([rate] * len(rows.row))
    warning = report.record["warning"]
    assert warning == report.module.warning is not None
    assert f"**{warning}**" in report_page(report.record, [])
    training = report.probe().config["training"]
    assert training["cross_fitted"]
    assert training["n_samples"] == int(rows.known.sum())


@pytest.mark.slow
@pytest.mark.parametrize("probe", [LayerAverage, Logistic])
@pytest.mark.parametrize("seed", [3, 4, 5])
def test_with_a_planted_signal_a_probe_does_not_return_the_base_rate(
    make_data: MakeData, probe: type[ClosedForm], seed: int
) -> None:
    data = make_data(seed=seed)
    module, test = fitted(probe(), data), data.batch("test")
    confidence = module.predict(test.features)
    assert module.warning is None
    assert float(capability_auroc(confidence, test.right, test.known)) > 0.65
    assert float(confidence.std()) > 0.05


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_scores_that_every_calibrator_ignores_give_the_base_rate_with_a_warning(make_data: MakeData, seed: int) -> None:
    data = make_data(seed=seed)
    module = fitted(Ridge(), data)
    scores, batch = module._out_of_fold or pytest.fail("not fitted")
    module._out_of_fold = -scores[:, :, 2:].expand_as(scores), batch  # the planted layer: higher for wrong answers
    module.on_train_end()
    assert module.choice is not None
    assert float(module.choice.calibrator.slope) == 0
    assert module.warning is not None


@pytest.mark.slow
def test_a_probe_trained_by_descent_can_return_the_base_rate_too(make_data: MakeData) -> None:
    data = make_data(seed=8, shuffled=True)
    module: ProbeModule = fit(data, epochs=30)
    assert module.warning is not None
    assert "On 20 questions" in module.warning
    assert float(module.predict(data.batch("test").features).std()) < 1e-6


def few_right(
    folder: Path, n_right: int, probes: Sequence[str] = ("layer_average", "ridge"), n_folds: int = 5
) -> Comparison:
    """Return a comparison of 60 questions of which `n_right` have right answers."""
    features, accuracy = planted(60)[0], np.zeros(60)
    accuracy[[0, 30, 15, 45][:n_right]] = 0.5
    make_store(folder / "store", features, accuracy)
    return Comparison(str(folder / "store"), probes=probes, n_folds=n_folds)


@pytest.mark.slow
@pytest.mark.parametrize("n_right", [2, 4])
def test_few_questions_with_right_answers_give_finite_confidences(tmp_path: Path, n_right: int) -> None:
    out = few_right(tmp_path, n_right).run()
    for name in ("layer_average", "ridge", BEST):
        confidence = out.confidence[name][out.questions]
        assert ((confidence > 0) & (confidence < 1)).all()


@pytest.mark.slow
def test_a_single_question_with_right_answers_gives_the_base_rate(tmp_path: Path) -> None:
    out = few_right(tmp_path, 1, probes=["layer_average", "difference_of_means", "linear"], n_folds=3).run()
    assert not {"layer_average", "difference_of_means", "linear", "consistency", "length"} & set(out.masked)
    assert out.confidence[BEST][out.questions].max() < 0.1
    assert any("returns this mean accuracy" in note for note in out.notes)
