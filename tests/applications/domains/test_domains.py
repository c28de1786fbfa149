"""Tests of the command `domains`: planted domains, gaps of confidences, hidden questions, and bad input."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from applications.__main__ import COMMANDS
from applications.domains.command import domains
from extract import Question, Store
from extract.errors import InputError
from extract.running.cli import run
from extract.store.shards import Block
from tests.helpers.synthetic import make_store

TOPICS = ("river", "metal", "planet")
SIZES = (60, 40, 20)
TOPIC = np.repeat(np.arange(3), SIZES)
N = len(TOPIC)
#: Cluster 2 is weak.
ACCURACY = np.array([0.8, 0.7, 0.2])[TOPIC]


def add_embeddings(store: Store, topic: np.ndarray) -> None:
    """Write embeddings of the questions near one axis for each topic."""
    vectors = np.eye(8)[topic] + 0.03 * np.random.default_rng(0).normal(size=(len(topic), 8))
    for block in range(store.questions.n_blocks):
        rows = slice(block * store.questions.block_size, (block + 1) * store.questions.block_size)
        tensors = {"0/question": torch.from_numpy(vectors[rows]).float()}
        store.signals.write("text_embedding", Block(block), tensors, settings={"model": "made"})


def made_store(folder: Path, topic: np.ndarray = TOPIC, accuracy: np.ndarray = ACCURACY) -> Path:
    """Make a store of questions about three topics. The first one is private."""
    questions = [
        Question(
            id=f"q{i}",
            dataset="made",
            text=f"Which {TOPICS[one]} is number {i}?" if i else "A secret planet?",
            references=("right",),
            meta={"private": True} if i == 0 else {},
        )
        for i, one in enumerate(topic.tolist())
    ]
    store = make_store(folder, np.zeros((len(topic), 1, 2), np.float32), accuracy, k=8, questions=questions)
    add_embeddings(store, topic)
    return store.path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_store(tmp_path_factory.mktemp("stores") / "made")


def confidences(folder: Path, **columns: np.ndarray) -> list[str]:
    table = {name: pa.array(values, from_pandas=True) for name, values in columns.items()}
    pq.write_table(pa.table({"question_id": [f"q{i}" for i in range(N)], **table}), folder / "f.parquet")
    return [f"{folder / 'f.parquet'}:{name}" for name in columns]


def record_of(out: Path) -> Any:
    return json.loads((out / "domains.json").read_text())


@pytest.mark.slow
def test_the_command_finds_a_weak_domain_and_the_gap_of_a_constant_confidence(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = confidences(tmp_path, constant=np.full(N, 0.67), perfect=ACCURACY)
    options = ["--store", str(store), "--confidences", f"[{','.join(sources)}]", "--out", str(tmp_path / "out")]
    assert run(COMMANDS, "x", ["domains", *options]) == 0
    record, page = record_of(tmp_path / "out"), (tmp_path / "out/domains.md").read_text()
    found = record["clusters"]
    assert [cluster["words"] for cluster in found] == [[topic] for topic in TOPICS]
    assert [cluster["minus_rest"]["decision"] for cluster in found] == [1, 0, -1]
    assert [cluster["confidences"]["constant"]["gap"]["decision"] for cluster in found] == [-1, 0, 1]
    assert [cluster["confidences"]["perfect"]["gap"]["decision"] for cluster in found] == [0, 0, 0]
    summary = page.split("\n")[2]
    assert summary.startswith(
        "1 of 3 clusters has a significantly lower accuracy than the other questions: cluster 3 (pl"
    )
    assert summary in capsys.readouterr().out
    assert "The confidence `constant` is significantly higher than the accuracy in 1 of 3 clusters" in page
    assert "The confidence `perfect` does not differ significantly from the accuracy in any of the 3 clusters" in page
    assert "| **3** (chosen) |" in page
    assert (tmp_path / "out/plots/domains.png").is_file()


@pytest.mark.slow
def test_the_figures_are_the_means_of_the_table(store: Path, tmp_path: Path) -> None:
    sources = confidences(tmp_path, mine=np.linspace(0, 1, N))
    out = domains(str(store), sources, clusters=3, out=str(tmp_path / "out"))
    table, record = pq.read_table(out / "domains.parquet").to_pandas(), record_of(out)
    assert record["stability"] == []
    assert table["cluster"].tolist() == TOPIC.tolist()
    accuracy = table["right"] / table["known"]
    for one, cluster in enumerate(record["clusters"]):
        rows = table["cluster"] == one
        assert (
            cluster["n_questions"] == cluster["n_graded"] == SIZES[one] == len(cluster["questions"]) + rows.sum() - 10
        )
        assert cluster["accuracy"]["value"] == pytest.approx(accuracy[rows].mean())
        assert cluster["minus_rest"]["value"] == pytest.approx(accuracy[rows].mean() - accuracy[~rows].mean())
        assert cluster["confidences"]["mine"]["gap"]["value"] == pytest.approx((table["mine"] - accuracy)[rows].mean())
        nearest = table[rows].sort_values("distance")["question_id"][:10].tolist()
        assert [question["question_id"] for question in cluster["questions"]] == nearest
    assert record["all"]["accuracy"]["value"] == pytest.approx(accuracy.mean())


@pytest.mark.slow
def test_questions_without_a_confidence_are_left_out_of_its_gap(store: Path, tmp_path: Path) -> None:
    values = np.where(np.arange(N) < 55, np.nan, 0.5)
    out = domains(str(store), confidences(tmp_path, mine=values), clusters=3, out=str(tmp_path / "out"))
    found = [cluster["confidences"]["mine"] for cluster in record_of(out)["clusters"]]
    assert [one["n_questions"] for one in found] == [5, 40, 20]
    assert [one["gap"]["low"] is None for one in found] == [True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["probe_v1.0", "0", "accuracy", "text"])
def test_the_name_of_a_confidence_does_not_change_the_figures(store: Path, tmp_path: Path, name: str) -> None:
    columns = {name: np.full(N, 0.67)}
    out = domains(str(store), confidences(tmp_path, **columns), clusters=3, out=str(tmp_path / "out"))
    question = record_of(out)["clusters"][2]["questions"][0]
    assert question["confidences"] == {name: 0.67}
    assert question["text"].startswith("Which planet")
    assert question["accuracy"] in {j / 8 for j in range(9)}
    page = (out / "domains.md").read_text()
    assert f"The confidence `{name}` is significantly higher than the accuracy in 1 of 3 clusters" in page


@pytest.mark.slow
def test_confidences_from_half_of_the_answers_are_compared_with_the_other_half(store: Path, tmp_path: Path) -> None:
    sources = confidences(tmp_path, consistency=np.full(N, 0.5), other=np.full(N, 0.5))
    out = domains(str(store), sources, clusters=3, out=str(tmp_path / "out"))
    gaps = record_of(out)["all"]["confidences"]
    grades = pq.read_table(next((store / "grades/made").glob("00000*.parquet"))).to_pandas()
    grades = [grades, pq.read_table(next((store / "grades/made").glob("00001*.parquet"))).to_pandas()]
    held = np.mean([row for part in grades for row in part["right"][part["sample"] % 2 == 1]])
    assert gaps["consistency"]["gap"]["value"] == pytest.approx(0.5 - held)
    assert gaps["other"]["gap"]["value"] != gaps["consistency"]["gap"]["value"]
    assert "on the held-out half" in (out / "domains.md").read_text()


@pytest.mark.slow
def test_the_texts_of_private_questions_are_hidden(store: Path, tmp_path: Path) -> None:
    out = domains(str(store), clusters=2, out=str(tmp_path / "out"))
    assert all("secret" not in (out / name).read_text() for name in ("domains.md", "domains.json"))


@pytest.mark.slow
def test_a_domain_with_one_question_has_no_interval(tmp_path: Path) -> None:
    topic = np.repeat([0, 1, 2], [30, 29, 1])
    path = made_store(tmp_path / "s", topic, np.full(60, 0.5))
    out = domains(str(path), clusters=3, out=str(tmp_path / "out"))
    last = record_of(out)["clusters"][2]
    assert last["n_questions"] == 1
    assert last["minus_rest"]["decision"] is None
    assert last["accuracy"]["low"] is None
    assert "| 3 | – | 1 | 1 |" in (out / "domains.md").read_text()


@pytest.mark.slow
def test_questions_without_a_known_grade_are_clustered_but_not_scored(store: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(store, tmp_path / "s"))
    opened = Store.open(path)
    for part in opened.samples.ranges():
        rows = opened.grades.read("made", part).to_pylist()
        unknown = [row | ({"right": None} if row["question_id"] != "q60" else {}) for row in rows]
        opened.grades.write("other", part, unknown, "only one question")
    out = domains(str(path), clusters=3, grader="other", out=str(tmp_path / "out"))
    record = record_of(out)
    assert [cluster["n_questions"] for cluster in record["clusters"]] == [60, 40, 20]
    assert [cluster["n_graded"] for cluster in record["clusters"]] == [0, 1, 0]
    assert "None of the 3 clusters can be compared with the other questions" in (out / "domains.md").read_text()


def test_a_store_without_embeddings_is_refused_with_the_command_that_computes_them(tmp_path: Path) -> None:
    path = make_store(tmp_path / "s", np.zeros((N, 1, 2), np.float32), ACCURACY, k=2).path
    with pytest.raises(InputError, match=r"ask --store .*s --baselines '\[text_embedding\]'"):
        domains(str(path), out=str(tmp_path / "out"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clusters": N + 1}, f"the number of distinct questions, {N}, but got {N + 1}"),
        ({"clusters": 0}, "`clusters` to be between 2 and"),
        ({"confidences": ["nothing"]}, "folders of saved probes or FILE:COLUMN"),
        ({"seed": -1}, "`seed` to be between 0"),
        ({"grader": "nobody"}, "nobody"),
    ],
)
def test_bad_options_give_a_one_line_error_and_leave_no_folder(
    store: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message) as raised:
        domains(str(store), **options, out=str(tmp_path / "out"))
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.iterdir())
