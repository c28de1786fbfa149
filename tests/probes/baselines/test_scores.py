"""Compare the scores of training-free baselines with loops over the answers in a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from datamodules import FeatureDataModule
from extract import Store
from extract.store.shards import Block
from probes.baselines.dispersion import degree, eccentricity, eigenscore, eigenvalue_sum, kernel_entropy, mean_distance
from probes.baselines.registry import BASELINES, available, cost_of, needed_commands
from probes.baselines.similarity import cosine, jaccard, rouge_l
from probes.comparison.out_of_fold import Comparison
from tests.helpers.planted import planted
from tests.helpers.synthetic import LAST, add_answer_signals, make_store

MEASURES = {
    "degree": degree,
    "eccentricity": eccentricity,
    "eigenvalue_sum": eigenvalue_sum,
    "kernel_entropy": kernel_entropy,
}


def scores(data: FeatureDataModule, name: str) -> list[float]:
    return BASELINES[name].scores["question"](data, {}).tolist()


def halves(data: FeatureDataModule) -> list[list[int]]:
    """Return the rows of the answers with even index to each question."""
    return [
        [row for row in np.flatnonzero(data.table.answers.question == i) if data.table.answers.sample[row] % 2 == 0]
        for i in range(len(data.table.ids))
    ]


def expect(data: FeatureDataModule, name: str, of_half: Callable[[list[int]], float]) -> None:
    assert BASELINES[name].half
    expected = [-of_half(rows) for rows in halves(data)]
    np.testing.assert_allclose(scores(data, name), expected, rtol=1e-9, atol=1e-9)
    assert len(set(expected)) > 2


@pytest.mark.slow
@pytest.mark.parametrize("measure", MEASURES)
def test_graph_measures_use_the_texts_or_the_embeddings_of_half_of_the_answers(
    data: FeatureDataModule, measure: str
) -> None:
    texts = Store.open(data.store_path).samples.read()["text"].to_pylist()
    expect(data, f"{measure}_jaccard", lambda rows: MEASURES[measure](jaccard([texts[row] for row in rows])))
    if measure != "degree":
        vectors = data.store.signals.read("text_embedding", "0/answer", "sample").numpy()
        expect(data, f"{measure}_embedding", lambda rows: MEASURES[measure](cosine(vectors[rows])))


def test_lexical_similarity_is_the_mean_of_all_pairs(data: FeatureDataModule) -> None:
    texts = data.table.answers.text
    expect(data, "lexical_similarity", lambda rows: mean_distance(rouge_l([texts[row] for row in rows])))


def test_semantic_sets_are_distinct_normalised_answers(data: FeatureDataModule) -> None:
    answer = data.table.answers.answer
    expect(data, "semantic_sets", lambda rows: len({answer[row] for row in rows}))


def test_each_unparsed_answer_is_a_separate_set(data: FeatureDataModule, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = data.table.answers
    unreadable = replace(data.table, answers=replace(answers, answer_class=0 * answers.answer_class))
    monkeypatch.setattr(data, "table", unreadable)
    assert scores(data, "semantic_sets") == [-3.0] * 120


def test_the_eigenscore_uses_the_middle_layer_and_leaves_out_empty_answers(
    data: FeatureDataModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = data.store.signals.read
    layers = {f"{layer}/last_answer": read("hidden", f"{layer % 2}/last_answer", "sample") for layer in (6, 15, 30)}
    layers["15/last_answer"][2] = torch.nan
    monkeypatch.setattr(data.store.signals, "read", lambda signal, key, scope: layers[key])
    monkeypatch.setattr(data.store.signals, "keys", lambda *_: [*layers])
    expect(data, "eigenscore", lambda rows: eigenscore(layers["15/last_answer"][rows].numpy()))


def test_the_sequence_nll_is_the_sum_over_the_content_tokens(data: FeatureDataModule) -> None:
    samples = Store.open(data.store_path).samples.read().to_pylist()
    sums = [
        -sum(row["logprobs"][: len(row["logprobs"]) - (row["finish_reason"] == "stop")])
        if len(row["logprobs"]) > (row["finish_reason"] == "stop")
        else np.nan
        for row in samples
    ]
    assert np.isnan(sums).any()
    of_answers = -BASELINES["sequence_nll"].scores["sample"](data, {}).numpy()
    np.testing.assert_allclose(of_answers, sums, rtol=1e-9)
    expect(data, "sequence_nll", lambda rows: float(np.nanmean([sums[row] for row in rows])))


@pytest.mark.parametrize(("name", "sign"), [("entropy", -1), ("margin", 1)])
def test_the_first_token_costs_only_the_prompt(data: FeatureDataModule, name: str, sign: int) -> None:
    read = data.store.signals.read("tokens", f"{LAST}/{name}")
    method = f"first_token_{name}"
    assert not BASELINES[method].half
    assert scores(data, method) == pytest.approx((sign * read).tolist())
    n_read, n_written = cost_of(method, data)
    assert n_read.tolist() == [9.0] * 120
    assert n_written.tolist() == [0.0] * 120
    assert needed_commands(method) == "python -m extract read --store STORE --signals '[tokens]'"


@pytest.mark.slow
def test_the_first_token_needs_the_signal_of_the_prompt(tmp_path: Path) -> None:
    made = make_store(tmp_path / "store", *planted(), k=6)
    add_answer_signals(made)
    for block in range(made.questions.n_blocks):
        made.signals.file("tokens", Block(block)).unlink()
    masked = Comparison(str(tmp_path / "store"), probes=["logistic"], n_folds=2).run().masked
    command = "python -m extract read --store STORE --signals '[tokens]'`."
    assert masked["first_token_entropy"].endswith(command)
    assert masked["first_token_margin"].endswith(command)
    assert "mean_entropy" not in masked


def test_a_single_answer_has_no_dispersion(data: FeatureDataModule, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = data.table.answers
    rejected = answers.rejected | ((answers.question == 3) & (answers.sample > 0))
    monkeypatch.setattr(data, "table", replace(data.table, answers=replace(answers, rejected=rejected)))
    for name in ("lexical_similarity", *(f"{measure}_jaccard" for measure in MEASURES), "eigenscore"):
        assert np.isnan(scores(data, name)[3]), name
        assert np.isfinite(np.delete(scores(data, name), 3)).all(), name


def test_baselines_without_inputs_are_available(data: FeatureDataModule) -> None:
    missing = [name for name in BASELINES if not available(name, data)]
    assert missing == ["p_true_answer", "likelihood", "likelihood_isotonic", "semantic_entropy_nli"]
