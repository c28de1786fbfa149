"""Tests of imported logs that Inspect and lm-evaluation-harness really wrote, and of altered copies of them."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datamodules.table import load_table
from extract.commands import grade
from extract.errors import InputError
from extract.sampling.imported.command import import_log
from extract.sampling.imported.lm_eval import read_lm_eval
from extract.sampling.imported.log import Answer, grade_of, safe_name
from extract.store.store import Store
from extract.store.verify import verify
from extract.viewing.inspection import inspect
from tests.helpers.logs import INSPECT, LM_EVAL, LM_EVAL_RESULTS, altered_inspect, altered_lm_eval, as_archive, lines_of


def rows_of(store: Store, grader: str | None = None) -> dict[tuple[str, int], Any]:
    """Return the texts, or the grades of a grader, by question id and sample index."""
    table = store.samples.read() if grader is None else store.grades.read(grader)
    column = "text" if grader is None else "right"
    return {(row["question_id"], row["sample"]): row[column] for row in table.to_pylist()}


@pytest.fixture(scope="module")
def log() -> dict[str, Any]:
    return json.loads(INSPECT.read_text(encoding="utf-8"))


@pytest.fixture
def from_inspect(tmp_path: Path) -> Store:
    return import_log(str(tmp_path / "store"), str(INSPECT), "inspect")


def test_a_store_of_inspect_has_the_answers_and_scores_of_the_log(from_inspect: Store, log: dict[str, Any]) -> None:
    expected = {(s["id"], s["epoch"] - 1): s["output"]["choices"][0]["message"]["content"] for s in log["samples"]}
    assert rows_of(from_inspect) == expected
    assert len(expected) == 18
    for score in log["results"]["scores"]:
        accuracy = load_table(from_inspect, f"inspect_{score['name']}").accuracy
        np.testing.assert_allclose(accuracy.mean(), score["metrics"]["accuracy"]["value"], atol=1e-12)
    assert from_inspect.grades.names() == ["inspect_includes", "inspect_match"]
    first = from_inspect.questions[0]
    assert (first.id, first.group) == (log["eval"]["dataset"]["sample_ids"][0], "capital")
    assert [turn["role"] for turn in first.messages] == ["system", "user"]


def test_a_store_of_lm_eval_has_the_answers_and_scores_of_the_log(tmp_path: Path) -> None:
    store = import_log(str(tmp_path / "store"), str(LM_EVAL), "lm-eval")
    rows, results = lines_of(LM_EVAL), json.loads(LM_EVAL_RESULTS.read_text(encoding="utf-8"))
    texts = {(str(row["doc_id"]), i): text for row in rows for i, text in enumerate(row["resps"][0])}
    assert rows_of(store) == texts
    assert len(texts) == 36
    graders = {"none": "lm_eval_exact_match", "short": "lm_eval_exact_match_short"}
    assert store.grades.names() == sorted(graders.values())  # the majority is not the answer of one sample
    for name, grader in graders.items():
        grades = rows_of(store, grader)
        known = [right for (_, sample), right in grades.items() if sample == 0]
        assert np.mean(known) == pytest.approx(results["results"]["facts"][f"exact_match,{name}"], abs=1e-12)
        assert {right for (_, sample), right in grades.items() if sample > 0} == {None}
    grade(str(store.path), "short")
    assert load_table(store, "short").known.tolist() == [3] * 12


def test_both_formats_of_inspect_give_the_same_store(from_inspect: Store, tmp_path: Path, log: dict[str, Any]) -> None:
    written_by_inspect = import_log(str(tmp_path / "archive"), str(INSPECT.with_suffix(".eval")), "inspect")
    other_compression = import_log(str(tmp_path / "other"), str(as_archive(log, tmp_path / "log.eval")), "inspect")
    assert from_inspect.sha256 == written_by_inspect.sha256 == other_compression.sha256
    assert rows_of(from_inspect) == rows_of(written_by_inspect) == rows_of(other_compression)


def test_the_identity_states_the_known_part_of_the_policy(
    from_inspect: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, decoding = (from_inspect.identity["policy"][name] for name in ("model", "decoding"))
    assert model.pop("id") == "smollm2-135m-instruct"  # without the folder
    assert set(model.values()) == {None}
    assert {name: decoding[name] for name in ("temperature", "top_p", "top_k", "max_new_tokens", "stop", "seed")} == {
        **{"temperature": 0.7, "max_new_tokens": 16, "seed": 1},
        **dict.fromkeys(("top_p", "top_k", "stop")),
    }
    other = import_log(str(tmp_path / "other"), str(LM_EVAL), "lm-eval").identity["policy"]
    assert {name: other["decoding"][name] for name in ("temperature", "top_k", "max_new_tokens", "stop", "seed")} == {
        **{"temperature": 0.7, "top_k": None, "max_new_tokens": 16, "stop": ["\n"], "seed": 1234}
    }
    assert other["request"]["tool"] == "lm_eval"
    inspect(str(from_inspect.path))
    page = capsys.readouterr().out
    assert "temperature 0.7, top-p unknown, top-k unknown, at most 16 tokens, stop unknown, seed 1" in page
    assert "imported   from inspect_ai 0.3.285, task facts" in page
    assert "token ids  unknown for 18 answers: `read` tokenizes the texts again" in page
    verify(str(from_inspect.path))


def test_no_other_fields_of_a_log_are_stored(tmp_path: Path) -> None:
    def add_keys(log: dict[str, Any]) -> None:
        log["eval"]["model_args"] |= {"api_key": "sk-SECRET", "model_path": "/home/SECRET/tiny"}
        log["eval"]["model_generate_config"]["extra_headers"] = {"Authorization": "Bearer SECRET"}
        log["samples"][0]["metadata"]["token"] = "SECRET"

    def add_more(rows: list[dict[str, Any]], results: dict[str, Any]) -> None:
        results["config"]["model_args"]["api_key"] = "sk-SECRET"
        results["model_name"] = "/home/SECRET/tiny"
        rows[0]["doc"]["token"] = "SECRET"

    for path, source in (
        (altered_inspect(tmp_path, add_keys), "inspect"),
        (altered_lm_eval(tmp_path, add_more), "lm-eval"),
    ):
        store = import_log(str(tmp_path / source), str(path), source)
        assert store.model_id == "tiny"
        assert "SECRET" not in json.dumps(store.identity) + json.dumps(store.questions.table.to_pylist())


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        *(("org/model", "org/model"), ("Llama 3 8B", "Llama 3 8B"), (5, "5"), (None, "unknown"), ("", "unknown")),
        *((r"C:\Users\SECRET\tiny", "tiny"), ("/home/SECRET/my model/", "my model"), ("file:///home/SECRET/m", "m")),
        *(("m,api_key=SECRET", "m"), ("pretrained=/SECRET/m,token=SEC/RET", "m"), ("m\ntoken: SECRET", "m")),
    ],
)
def test_names_are_kept_without_folders_and_keys(tmp_path: Path, name: object, kept: str) -> None:
    assert safe_name(name) == kept
    path = altered_inspect(tmp_path, lambda log: log["eval"].update(task=name))
    store = import_log(str(tmp_path / "store"), str(path), "inspect")
    assert (store.identity["policy"]["request"]["task"], store.questions[0].dataset) == (kept, kept)


def test_missing_epochs_have_no_answer_and_an_unknown_grade(
    tmp_path: Path, log: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, *others = log["samples"]
    failed = {**second, "output": {**second["output"], "choices": []}, "messages": [], "scores": None}
    path = as_archive({**log, "samples": [failed, *others]}, tmp_path / "log.eval", finished=False)
    store = import_log(str(tmp_path / "store"), str(path), "inspect")
    assert "import: 16 answers to 6 questions (2 answers are not in the log)" in capsys.readouterr().err
    missing = {(sample["id"], sample["epoch"] - 1) for sample in (first, second)}
    grades = rows_of(store, "inspect_match")
    assert {key for key, right in grades.items() if right is None} == missing
    assert {key for key, text in rows_of(store).items() if not text} == missing
    table = load_table(store, "inspect_match")
    assert (table.known.sum(), table.unknown.sum(), table.answers.rejected.sum()) == (16, 2, 2)
    grade(str(store.path), "short")
    assert "grade: 16 answers graded by short" in capsys.readouterr().err
    assert load_table(store, "short").unknown.sum() == 2


@pytest.mark.parametrize(
    ("value", "right"),
    [
        *(("C", True), ("I", False), ("N", False), ("P", None), (1, True), (0.0, False), (0.5, None), (True, True)),
        *((float("nan"), None), ([1], None), (None, None), ("yes", None)),
    ],
)
def test_partial_and_other_scores_are_unknown(value: object, right: bool | None) -> None:
    assert grade_of(value, "text").right is right


def test_scores_with_several_values_are_several_graders(tmp_path: Path) -> None:
    def change(log: dict[str, Any]) -> None:
        for sample in log["samples"]:
            sample["scores"] = {"my scorer": {"value": {"first": 1, "second": 0.5}, "answer": "x"}}

    store = import_log(str(tmp_path / "store"), str(altered_inspect(tmp_path, change)), "inspect")
    assert store.grades.names() == ["inspect_my-scorer_first"]  # the other one has no known grade
    assert set(store.grades.read("inspect_my-scorer_first")["answer"].to_pylist()) == {"x"}


def test_options_reasoning_and_finish_reasons_of_inspect_are_read(tmp_path: Path) -> None:
    def change(log: dict[str, Any]) -> None:
        log["plan"]["config"]["system_message"] = "Be brief."
        for sample in log["samples"]:
            message = sample["output"]["choices"][0]["message"]
            message["content"] = [{"type": "reasoning", "reasoning": "Hm."}, {"type": "text", "text": "B \ud83d"}]
            sample |= {"choices": ["Oslo", "Lima"], "target": "B"}
            sample["output"]["choices"][0]["stop_reason"] = "model_length"

    store = import_log(str(tmp_path / "store"), str(altered_inspect(tmp_path, change)), "inspect")
    question, row = store.questions[0], store.samples.read().to_pylist()[0]
    assert (question.kind, question.references, len(question.messages)) == ("choice", ("B", "Lima"), 3)
    assert (row["text"], row["reasoning"], row["finish_reason"]) == ("B \ufffd", "Hm.", "length")
    grade(str(store.path))
    assert load_table(store, "choice").accuracy.tolist() == [1.0] * 6


def test_chats_for_servers_are_read_from_logs_of_lm_eval(tmp_path: Path) -> None:
    def change(rows: list[dict[str, Any]], results: dict[str, Any]) -> None:
        for row in rows:
            request = row["arguments"]["gen_args_0"]
            request["arg_0"] = json.dumps([{"role": "user", "content": row["doc"]["text"], "type": "text"}])
            request["arg_1"] |= {"do_sample": False, "until": "END"}

    store = import_log(str(tmp_path / "store"), str(altered_lm_eval(tmp_path, change)), "lm-eval")
    assert store.questions[0].messages == ({"role": "user", "content": "What is the capital of the Comoros?"},)
    decoding = store.identity["policy"]["decoding"]
    assert (decoding["temperature"], decoding["stop"], decoding["prompt"]["chat"]) == (0.0, ["END"], True)


def test_scores_of_errors_and_scores_that_belong_to_no_answer_are_left_out(tmp_path: Path) -> None:
    def falling(rows: list[dict[str, Any]], results: dict[str, Any]) -> None:
        results["higher_is_better"]["facts"]["exact_match"] = False

    assert read_lm_eval(altered_lm_eval(tmp_path, falling), None).rules == {}
    alone = altered_lm_eval(tmp_path / "..", lambda rows, results: None, with_results=False)
    log = read_lm_eval(alone, None)  # it is unknown which answer was scored, and which model answered
    assert (log.rules, log.model, log.decoding.temperature) == ({}, "unknown", 0.7)


def test_references_are_parsed_by_the_kind_of_the_questions(tmp_path: Path) -> None:
    def solve(rows: list[dict[str, Any]], results: dict[str, Any]) -> None:
        for row in rows:
            row["target"] = "2 and 40 are\n#### 42"
            row["resps"] = [["It is 42."] * 3]

    path = str(altered_lm_eval(tmp_path, solve))
    store = import_log(str(tmp_path / "store"), path, "lm-eval", kind="number")
    grade(str(store.path))
    assert store.questions[0].references == ("42",)
    assert load_table(store, "number").accuracy.tolist() == [1.0] * 12


def test_a_failed_epoch_does_not_count_as_a_different_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(log: dict[str, Any]) -> None:
        log["plan"]["config"]["temperature"] = 0
        for sample in log["samples"]:
            sample["output"]["choices"][0]["message"]["content"] = "Lima"
        log["samples"][0]["output"]["choices"] = []

    store = import_log(str(tmp_path / "store"), str(altered_inspect(tmp_path, change)), "inspect")
    inspect(str(store.path))
    page = capsys.readouterr().out
    assert "6 questions always got the same text" in page
    assert "warning" not in page


def test_folders_in_an_archive_are_ignored(tmp_path: Path, log: dict[str, Any]) -> None:
    path = as_archive(log, tmp_path / "log.eval")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("samples/", "")
    assert len(import_log(str(tmp_path / "store"), str(path), "inspect").samples.read()) == 18


def set_epoch(epoch: object) -> Callable[[dict[str, Any]], object]:
    return lambda log: log["samples"][0].update(epoch=epoch)


def alike_scorers(log: dict[str, Any]) -> None:
    log["samples"][0]["scores"] = {"a b": {"value": "C"}, "a/b": {"value": "I"}}


def tool_call(log: dict[str, Any]) -> None:
    log["samples"][0]["messages"].insert(1, {"role": "tool", "content": "4"})


def other_prompt(log: dict[str, Any]) -> None:
    log["samples"][-1]["messages"][0]["content"] = "Be brief."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda log: log.update(version=3), "an Inspect log in format version 2, but it has version 3"),
        (lambda log: log.pop("version"), "KeyError: 'version'"),
        (lambda log: log["samples"].append(log["samples"][0]), "to be unique, but epoch 1 of sample"),
        *((set_epoch(n), "`epoch` of sample .* to be a whole number from 1") for n in (0, -3, 1.5, "1", 3_000_000)),
        (alike_scorers, "would be stored as 'inspect_a-b'"),
        (lambda log: [s["output"].update(choices=[]) for s in log["samples"]], "but every sample failed"),
        (lambda log: log["samples"].clear(), "at least one question"),
        (tool_call, "but it has a tool call. Agent logs can't be imported"),
        (other_prompt, "to have the same prompt and references, but epoch 3 of sample .* in messages"),
        (lambda log: [turn.update(content=" ") for s in log["samples"] for turn in s["messages"]], "content is empty"),
    ],
)
def test_bad_logs_of_inspect_are_refused(tmp_path: Path, change: Callable[[Any], object], message: str) -> None:
    path = altered_inspect(tmp_path, change)
    with pytest.raises(InputError, match=message):
        import_log(str(tmp_path / "store"), str(path), "inspect")
    assert not (tmp_path / "store").exists()


def likelihoods(rows: list[dict[str, Any]], results: dict[str, Any]) -> None:
    rows[0]["arguments"]["gen_args_0"]["arg_1"] = " Moroni"


def alike_metrics(rows: list[dict[str, Any]], results: dict[str, Any]) -> None:
    for row in rows:
        row |= {"metrics": ["acc", "acc_short"], "acc": 1, "acc_short": 0}


def no_text(rows: list[dict[str, Any]], results: dict[str, Any]) -> None:
    for row in rows:
        row["arguments"]["gen_args_0"]["arg_0"] = " "


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows, results: rows[1].pop("filter"), "line 2 .* but it lacks filter. Files of other versions"),
        (
            lambda rows, results: rows.append(rows[0]),
            "to be unique, but line 37 .* repeats the id 'none' for question '0'",
        ),
        (lambda rows, results: rows.clear(), "at least one question"),
        (likelihoods, "compares log-probabilities of given texts. .* `python -m extract likelihood`"),
        (alike_metrics, "would be stored as 'lm_eval_acc_short'"),
        (no_text, "exactly one of `text` and `messages`"),
        (
            lambda rows, results: rows[3]["arguments"]["gen_args_0"]["arg_1"].update(temperature=1),
            "same generation options, but line 4",
        ),
        (
            lambda rows, results: rows[0].update(arguments=[["prompt", {}]]),
            "may be truncated, or its version may not be supported",
        ),
    ],
)
def test_bad_logs_of_lm_eval_are_refused(tmp_path: Path, change: Callable[..., object], message: str) -> None:
    path = altered_lm_eval(tmp_path, change)
    with pytest.raises(InputError, match=message):
        import_log(str(tmp_path / "store"), str(path), "lm-eval")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("source", "path"), [("inspect", INSPECT), ("inspect", INSPECT.with_suffix(".eval")), ("lm-eval", LM_EVAL)]
)
def test_truncated_and_empty_files_give_a_one_line_error(tmp_path: Path, source: str, path: Path) -> None:
    for size in (0, 10, path.stat().st_size // 2, path.stat().st_size - 5):
        (tmp_path / path.name).write_bytes(path.read_bytes()[:size])
        with pytest.raises(InputError) as raised:
            import_log(str(tmp_path / "store"), str(tmp_path / path.name), source)
        assert "\n" not in str(raised.value)


def test_an_archive_with_damaged_content_is_refused(tmp_path: Path) -> None:
    path = INSPECT.with_suffix(".eval")
    with zipfile.ZipFile(path) as archive:
        member = next(member for member in archive.infolist() if member.filename.startswith("samples/"))
    for start in (100, 200, member.compress_size):  # at some places, the file can still be decompressed
        content = bytearray(path.read_bytes())
        content[member.header_offset + start] ^= 1
        (tmp_path / "log.eval").write_bytes(content)
        with pytest.raises(InputError, match="to be an Inspect log in format version 2, but it can't be read"):
            import_log(str(tmp_path / "store"), str(tmp_path / "log.eval"), "inspect")


def test_paths_and_sources_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="`path` to be a log file, but .* does not exist"):
        import_log(str(tmp_path / "store"), str(tmp_path / "absent.eval"), "inspect")
    with pytest.raises(InputError, match="`path` to be a log file, but .* is a folder"):
        import_log(str(tmp_path / "store"), str(tmp_path), "lm-eval")
    with pytest.raises(InputError, match="`source` to be one of lm-eval, inspect, jsonl, but got 'inspekt'"):
        import_log(str(tmp_path / "store"), str(INSPECT), "inspekt")
    shutil.copy(INSPECT, tmp_path / "file")
    with pytest.raises(InputError, match="`store` to be a new folder or a store"):
        import_log(str(tmp_path / "file"), str(INSPECT), "inspect")
    assert Answer("x").grades == {}
