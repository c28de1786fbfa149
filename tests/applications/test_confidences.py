"""Tests of reading confidences from saved probes and from tables."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch

from applications.confidences import read_confidence
from extract import Store
from extract.errors import InputError
from probes import load_probe
from tests.helpers.altered_probes import make_probe
from tests.helpers.synthetic import make_store

N = 12


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    features = np.random.default_rng(0).normal(size=(N, 2, 8)).astype(np.float32)
    return make_store(tmp_path_factory.mktemp("stores") / "made", features, np.full(N, 0.5), k=2, block_size=5)


def write_table(path: Path, **columns: Any) -> Path:
    (pa.csv.write_csv if path.suffix == ".csv" else pq.write_table)(pa.table(columns), path)
    return path


def write_probe(folder: Path, store: Store, **changes: Any) -> Path:
    """Save a probe of the store's model that reads its last layer and was trained on another store."""
    probe = make_probe(folder / "probe", random.Random(0))
    config = json.loads((probe / "config.json").read_text())
    (probe / "config.json").write_text(json.dumps(config | {"layers": [1], "model": store.model} | changes))
    return probe


# Tables


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_a_column_is_read_in_the_order_of_the_store_and_questions_without_a_value_are_nan(
    tmp_path: Path, store: Store, ending: str
) -> None:
    path = write_table(
        tmp_path / f"a.{ending}", question_id=["q7", "q0", "q3"], mine=[0.25, 1, None], other=["", "", ""]
    )
    expected = np.full(N, np.nan)
    expected[[7, 0]] = 0.25, 1
    np.testing.assert_array_equal(read_confidence(f"{path}:mine", store), expected)


def test_ids_that_look_like_numbers_are_read_from_csv(tmp_path: Path) -> None:
    store = make_store(tmp_path / "made", np.zeros((8, 1, 2), np.float32), np.full(8, 0.5), k=2, name="00")
    path = write_table(tmp_path / "a.csv", question_id=["007", "001"], mine=[0.7, 0.1])
    found = read_confidence(f"{path}:mine", store)
    assert (found[7], found[1]) == (0.7, 0.1)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"question_id": ["q0"], "min": [0.5]}, "have a column 'mine', but its columns are question_id, min.*`min`"),
        ({"mine": [0.5]}, "have a column 'question_id', but its columns are mine"),
        ({"question_id": ["q0", "p9"], "mine": [0.5, 0.5]}, "'p9' is not"),
        ({"question_id": ["q0", "q1", "q0"], "mine": [0.5, 0.5, 0.5]}, "'q0' has several"),
        ({"question_id": ["q0"], "mine": ["high"]}, "contain numbers, but its type is string"),
        ({"question_id": ["q0", "q1"], "mine": [0.5, 1.5]}, "between 0 and 1, but got 1.5"),
        ({"question_id": ["q0"], "mine": [-0.1]}, "between 0 and 1, but got -0.1"),
        ({"question_id": ["q0"], "mine": pa.nulls(1, pa.float64())}, "one question of .*, but all are missing"),
    ],
)
def test_a_table_that_does_not_match_the_store_is_refused(
    tmp_path: Path, store: Store, columns: dict[str, Any], message: str
) -> None:
    path = write_table(tmp_path / "a.parquet", **columns)
    with pytest.raises(InputError, match=message):
        read_confidence(f"{path}:mine", store)


def test_a_source_that_is_not_a_table_is_refused(tmp_path: Path, store: Store) -> None:
    (tmp_path / "a.parquet").write_text("text")
    with pytest.raises(InputError, match="to be a parquet file, but reading it failed"):
        read_confidence(f"{tmp_path}/a.parquet:mine", store)
    for source in ("missing.parquet:mine", "a.txt:mine"):
        with pytest.raises(InputError, match="to be the folder of a saved probe, or FILE:COLUMN"):
            read_confidence(source, store)


# Saved probes


def test_a_saved_probe_computes_its_confidences_from_the_signals_of_the_store(tmp_path: Path, store: Store) -> None:
    probe = write_probe(tmp_path, store, model=store.model | {"id": "another name", "revision": "main"})
    hidden = torch.from_numpy(store.signals.read("hidden", "1/last_prompt").numpy())
    expected = load_probe(probe).confidences(hidden).confidence.numpy()
    assert len(np.unique(expected)) == N
    np.testing.assert_array_equal(read_confidence(str(probe), store), expected.astype(np.float64))


def test_a_probe_without_a_record_of_its_training_is_read(tmp_path: Path, store: Store) -> None:
    probe = write_probe(tmp_path, store)
    config = json.loads((probe / "config.json").read_text())
    del config["training"]
    (probe / "config.json").write_text(json.dumps(config))
    assert np.isfinite(read_confidence(str(probe), store)).all()


def test_a_probe_that_does_not_match_the_store_is_refused(tmp_path: Path, store: Store) -> None:
    cases = [
        ({"target": "response", "position": "last_answer"}, "reads questions, but .* reads answers"),
        ({"model": store.model | {"fingerprint": "e" * 64}}, "differs in fingerprint"),
        ({"training": {"store": store.sha256}}, "not trained on the questions of .* Pass the out-of-fold predictions"),
        ({"layers": [5]}, "to contain '5/last_prompt'"),
    ]
    for number, (changes, message) in enumerate(cases):
        probe = write_probe(tmp_path / str(number), store, **changes)
        with pytest.raises(InputError, match=message):
            read_confidence(str(probe), store)


def test_predictions_for_training_questions_are_refused(tmp_path: Path, store: Store) -> None:
    ids = [question.id for question in store.questions]
    splits = ["train", *["test"] * (len(ids) - 1)]
    pq.write_table(pa.table({"question_id": ids, "mine": [0.5] * len(ids), "split": splits}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="also contains predictions for the training questions"):
        read_confidence(f"{tmp_path / 'a.parquet'}:mine", store)


def test_a_file_without_a_column_is_refused(tmp_path: Path, store: Store) -> None:
    with pytest.raises(InputError, match="FILE:COLUMN, but 'a.parquet' is neither"):
        read_confidence("a.parquet", store)
