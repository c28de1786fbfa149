"""Tests of prefixes of answers in the datamodule: their tokens, targets and splits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from datamodules import FeatureDataModule
from datamodules.token_states import TokenStates
from extract import InputError
from extract.store.ragged import Ragged
from tests.helpers.token_states import token_store

FRACTIONS = [0.25, 0.5, 0.75, 1.0]
POSITIONS = ["first_answer", "last_answer", "mean_answer"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return token_store(tmp_path_factory.mktemp("store") / "made", n=60).path


def loaded(store: Path, signal: str, **options: Any) -> FeatureDataModule:
    data = FeatureDataModule(str(store), target="response", signal=signal, prefixes=True, **options)
    data.setup()
    return data


def test_a_prefix_has_the_first_tokens_of_the_answer_rounded_up() -> None:
    rows = [torch.randn(n, 3) for n in (1, 2, 7, 8, 0)]
    prefixes = TokenStates.of([Ragged.of(rows), Ragged.of([-row for row in rows])]).prefixes(FRACTIONS)
    expected = [row[: math.ceil(fraction * len(row))] for fraction in FRACTIONS for row in rows]
    assert [len(row) for row in expected[:5]] == [1, 1, 2, 2, 0]
    for feature, sign in ((0, 1), (1, -1)):
        for found, row in zip(prefixes[:, feature].rows(), expected, strict=True):
            assert torch.equal(found, sign * row)


@pytest.mark.parametrize("position", POSITIONS)
def test_states_at_a_position_equal_those_of_each_row(position: str) -> None:
    rows = [torch.randn(n, 3) for n in (0, 4, 1, 6, 0)]
    states = TokenStates.of([Ragged.of(rows), Ragged.of([row**2 for row in rows])])[torch.tensor([3, 0, 2, 1, 4])]
    found = states.at(position).double()
    assert found.isnan().all(2).tolist() == [[False] * 2, [True] * 2, [False] * 2, [False] * 2, [True] * 2]
    for i, row in ((0, rows[3]), (2, rows[2]), (3, rows[1])):
        both = np.stack([row.double().numpy(), row.double().numpy() ** 2])
        expected = {"first_answer": both[:, 0], "last_answer": both[:, -1], "mean_answer": both.mean(1)}[position]
        np.testing.assert_allclose(found[i].numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize(("signal", "options"), [("hidden_tokens", {}), ("hidden", {"positions": POSITIONS})])
def test_prefixes_share_the_target_and_the_split_of_their_answer(
    signal: str, options: dict[str, Any], store: Path
) -> None:
    data = loaded(store, signal, **options)
    plain = FeatureDataModule(str(store), target="response", signal="hidden_tokens")
    plain.setup()
    for split in ("train", "val", "test"):
        whole, every, expected = data.batch(split), data.batch(split, prefixes=True), plain.batch(split)
        assert torch.equal(whole.row.sort().values, expected.row.sort().values)
        assert torch.equal(data.split_rows[split], whole.row)
        assert len(every.row) == 4 * len(whole.row)
        for fraction in FRACTIONS:
            part = every.take(every.fraction == fraction)
            assert torch.equal(part.row.sort().values, whole.row.sort().values)
            assert torch.equal(part.target, torch.from_numpy(data.table.answers.right)[part.row].float())
            assert torch.equal(part.question, data.question_of[part.row])
    assert data.n_unusable == plain.n_unusable


def test_vectors_of_prefixes_are_those_of_their_tokens(store: Path) -> None:
    tokens, vectors = (
        loaded(store, "hidden_tokens", layers=[0, 2]),
        loaded(store, "hidden", positions=POSITIONS, layers=[0, 2]),
    )
    assert vectors.feature_names == [f"{layer}/{position}" for layer in (0, 2) for position in POSITIONS]
    a, b = tokens.batch("val", prefixes=True), vectors.batch("val", prefixes=True)
    assert torch.equal(a.row, b.row)
    for i, row in enumerate(a.features[:, 1].rows()):
        torch.testing.assert_close(b.features[i, 3:], torch.stack([row[0], row[-1], row.mean(0)]), atol=1e-5, rtol=0)


def test_later_tokens_do_not_change_a_prefix(store: Path) -> None:
    data = loaded(store, "hidden", positions=["mean_answer"])
    states = data.store.signals.read_ragged("hidden_tokens", "0/answer_tokens")
    changed = Ragged.of(
        [torch.cat([row[: math.ceil(len(row) / 2)], row[math.ceil(len(row) / 2) :] + 9]) for row in states.rows()]
    )
    before, after = (TokenStates.of([one]).prefixes(FRACTIONS).at("mean_answer") for one in (states, changed))
    n = states.n_rows
    assert torch.equal(before[: 2 * n], after[: 2 * n])
    assert (before[3 * n :] != after[3 * n :]).any(2).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "capability"}, "`prefixes` to be false"),
        ({"target": "response", "signal": "tokens"}, "`prefixes` to be false"),
        ({"target": "response", "join": ["tokens"]}, "`prefixes` to be false"),
        ({"target": "response", "positions": ["mean_answers"]}, "but got 'mean_answers'. Did you mean `mean_answer`"),
        (
            {"target": "response", "signal": "hidden_tokens", "positions": ["last_answer"]},
            "`positions` to be one of answer_tokens",
        ),
        ({"target": "response", "layers": [9]}, "`layers` to be one of 0, 1, 2"),
    ],
)
def test_features_without_prefixes_are_refused(options: dict[str, Any], message: str, store: Path) -> None:
    with pytest.raises(InputError, match=message):
        FeatureDataModule(str(store), prefixes=True, **options).load()
