"""Tests of `probes priors`: the file, its fit, and bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch

from datamodules import FeatureDataModule
from datamodules.table import load_table
from extract.commands import sample_family
from extract.errors import InputError
from extract.models.loading import load_model
from extract.prompts import PromptTemplate
from extract.questions.source import find_source
from extract.recipe import StoreRecipe
from extract.sampling.prior import fit_prior
from extract.store.store import Store
from probes.report.report import Report
from probes.saved.artefact import load_probe
from probes.saved.priors import priors
from tests.helpers.fitting import fit
from tests.helpers.tiny import write_questions


@pytest.fixture(scope="module")
def trained(small_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a trained probe and its predictions."""
    folder, data = tmp_path_factory.mktemp("trained"), FeatureDataModule(str(small_store))
    data.setup()
    report = Report(fit(data, epochs=10), data, seed=0, n_resamples=5)
    report.probe().save(folder / "probe")
    pq.write_table(report.predictions(), folder / "predictions.parquet")
    return folder


@pytest.fixture
def recipe(tmp_path: Path, tiny_folder: Path) -> StoreRecipe:
    questions = write_questions(tmp_path / "new.jsonl", 12)
    return StoreRecipe(questions=str(questions), model=str(tiny_folder), k=4)


def test_the_priors_are_the_confidences_of_the_probe(trained: Path, recipe: StoreRecipe, tmp_path: Path) -> None:
    out = priors(str(trained / "probe"), recipe, str(tmp_path / "priors.parquet"))
    rows = pq.read_table(out).to_pylist()
    probe, (model, tokenizer) = load_probe(trained / "probe"), load_model(recipe.model)
    questions = find_source(recipe.questions).questions(seed=0)
    prompts = [recipe.policy.prompt.encode(tokenizer, question.prompt) for question in questions]
    expected = dict(
        zip([question.id for question in questions], probe.score(model, tokenizer, prompts).confidence, strict=True)
    )
    assert {row["question_id"]: row["confidence"] for row in rows} == pytest.approx(
        {id_: float(value) for id_, value in expected.items()}, abs=1e-6
    )
    assert {(row["concentration"], row["diversity"]) for row in rows} == {tuple(probe.config["prior"].values())}
    (store,) = sample_family(str(tmp_path / "store"), recipe, stop="prior", threshold=0.05, priors=str(out))
    assert (store.samples.stopping(store.samples.ranges()[0]) or {})["rule"] == "prior"


def test_the_prior_is_fitted_to_the_validation_questions(trained: Path, small_store: Path) -> None:
    table = load_table(Store.open(small_store), "planted")
    column = load_probe(trained / "probe").config["name"]
    rows = [row for row in pq.read_table(trained / "predictions.parquet").to_pylist() if row["split"] == "val"]
    indices = [table.ids.index(row["question_id"]) for row in rows]
    fitted = fit_prior(
        torch.tensor([row[column] for row in rows]).double().numpy(),
        table.right[indices],
        table.known[indices],
        table.wrong_classes[indices],
    )
    saved = load_probe(trained / "probe").config["prior"]
    assert [saved["concentration"], saved["diversity"]] == pytest.approx(fitted, rel=1e-3)


def test_a_probe_without_a_prior_is_refused(trained: Path, recipe: StoreRecipe, tmp_path: Path) -> None:
    config = trained / "probe" / "config.json"
    before = config.read_text()
    try:
        config.write_text(json.dumps({key: value for key, value in json.loads(before).items() if key != "prior"}))
        with pytest.raises(InputError, match="`probe` to be a probe with a fitted prior"):
            priors(str(trained / "probe"), recipe, str(tmp_path / "priors.parquet"))
    finally:
        config.write_text(before)


def test_another_prompt_or_the_training_questions_are_refused(
    trained: Path, recipe: StoreRecipe, small_store: Path, tmp_path: Path
) -> None:
    changed = replace(recipe, policy=replace(recipe.policy, prompt=PromptTemplate("{question}?")))
    with pytest.raises(InputError, match="the prompt of this run differs in template"):
        priors(str(trained / "probe"), changed, str(tmp_path / "priors.parquet"))
    same = replace(recipe, questions=str(small_store.parent / "questions.jsonl"))
    with pytest.raises(InputError, match="to differ from the training questions"):
        priors(str(trained / "probe"), same, str(tmp_path / "priors.parquet"))
