"""Tests of `probes score`: its lines, their order, streaming, interruption, resuming, and bad input."""

from __future__ import annotations

import codecs
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from threading import Timer
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filelock import FileLock

from extract.errors import InputError
from extract.questions.question import HIDDEN
from extract.running.cli import run
from probes import load_probe
from probes.__main__ import COMMANDS
from probes.saved.scoring import score
from tests.helpers.experiments import ROOT
from tests.helpers.saved_probes import linear_probe
from tests.helpers.tiny import save_model, tiny_model

QUESTIONS = ["Why?", "Is it so?", "Where was it seen, and by whom, in the end?", "Who?", "How much of it is left?"]
LONG = "a" * 600  # the tiny model reads at most 512 tokens


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, model: Any, tokenizer: Any) -> dict[str, str]:
    """Save a probe that reads questions and one that reads answers."""
    positions = {"capability": "last_prompt", "response": "mean_answer"}
    saved = {target: linear_probe(model, tokenizer, target=target, position=at) for target, at in positions.items()}
    return {target: str(probe.save(tmp_path_factory.mktemp(target), "card")) for target, probe in saved.items()}


Score = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def scored(folders: dict[str, str], tiny_folder: Path, tmp_path: Path) -> Score:
    """Return a function that runs the command and returns the objects that it wrote."""

    def run_score(questions: Path, target: str = "capability", **options: Any) -> list[dict[str, Any]]:
        out = tmp_path / "out.jsonl"
        out.unlink(missing_ok=True)
        score(folders[target], str(questions), str(out), model=str(tiny_folder), **options)
        return strict(out.read_text())

    return run_score


def strict(text: str) -> list[dict[str, Any]]:
    """Parse JSON Lines, and refuse NaN and infinity, which are not JSON."""
    return [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]


def write(path: Path, rows: list[Any]) -> Path:
    """Write rows to a file in the format of its suffix."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        names = list(rows[0])
        header = dict(zip(names, names, strict=True))
        path.write_text("\n".join(",".join(f'"{row[name]}"' for name in names) for row in (header, *rows)))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".txt":
        path.write_text("\n".join(row["question"] for row in rows))
    else:
        path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet", ".txt"])
def test_every_kind_of_file_gives_the_confidences_of_score_in_its_order(
    scored: Score, folders: dict[str, str], model: Any, tokenizer: Any, tmp_path: Path, suffix: str
) -> None:
    file = write(tmp_path / f"questions{suffix}", [{"id": f"q{i}", "question": q} for i, q in enumerate(QUESTIONS)])
    found = scored(file, batch_size=2)
    assert [record["question"] for record in found] == QUESTIONS
    assert [record["id"] for record in found] == ([1, 2, 3, 4, 5] if suffix == ".txt" else [f"q{i}" for i in range(5)])
    expected = load_probe(folders["capability"]).score(model, tokenizer, QUESTIONS)
    assert [record["confidence"] for record in found] == pytest.approx(expected.confidence.tolist(), abs=1e-5)
    assert [record["is_novel"] for record in found] == expected.is_novel.tolist()
    assert {record["novelty"] for record in found} == {None}  # the probe has the format of earlier versions
    assert all(list(record) == ["id", "question", "confidence", "novelty", "is_novel"] for record in found)


def test_answers_chats_and_the_packages_own_rows_are_read(
    scored: Score, folders: dict[str, str], model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    chat = [{"role": "user", "content": "Who?"}]
    options = {"text": "Which is odd?", "choices": ["2", "3"], "kind": "choice", "references": ["B"], "answer": "B"}
    rows = [{"question": "Why?", "answer": "Because."}, {"question": chat, "answer": "me"}, options]
    found = scored(write(tmp_path / "pairs.jsonl", [*rows, {"question": "Why?", "answer": ""}]), "response")
    prompts = ["Why?", chat, "Which is odd?\nA. 2\nB. 3"]
    assert [record["question"] for record in found] == [*prompts, "Why?"]
    assert [record["answer"] for record in found] == ["Because.", "me", "B", ""]
    expected = load_probe(folders["response"]).score(model, tokenizer, prompts, ["Because.", "me", "B"]).confidence
    assert [record["confidence"] for record in found[:3]] == pytest.approx(expected.tolist(), abs=1e-5)
    assert found[3]["confidence"] is None  # an empty answer has no hidden states


def test_the_texts_of_a_private_set_are_scored_but_not_written(scored: Score, tmp_path: Path) -> None:
    answers = {"Correct Answer": "1", "Incorrect Answer 1": "2", "Incorrect Answer 2": "3", "Incorrect Answer 3": "4"}
    row = {"Record ID": "r", "Question": "An invented question?", "Subdomain": "Inventions", **answers}
    (record,) = scored(Path(f"gpqa={write(tmp_path / 'gpqa.csv', [row])}"))
    assert (record["id"], record["question"]) == ("r", HIDDEN)
    assert 0 < record["confidence"] < 1


def test_questions_below_the_threshold_are_marked_for_abstention(scored: Score, tmp_path: Path) -> None:
    file = write(tmp_path / "questions.txt", [{"question": question} for question in QUESTIONS])
    confidences = [record["confidence"] for record in scored(file)]
    threshold = sorted(confidences)[2]
    found = scored(file, abstain_below=threshold)
    assert [record["abstain"] for record in found] == [confidence < threshold for confidence in confidences]


@pytest.mark.parametrize(
    ("target", "line", "message"),
    [
        ("capability", "{bad", "line 2 of 'bad.jsonl' to be a JSON object, but it is not valid JSON"),
        ("capability", [1], "to be a JSON object, but got a list"),
        ("capability", {"question": " "}, "line 2 of 'bad.jsonl' to have a `question`, but it is empty"),
        ("capability", {"prompt": "Why?"}, "to have a `question`, but its fields are prompt"),
        ("capability", {"question": [{"role": "user"}]}, "objects with two strings, `role` and `content`"),
        ("capability", {"question": "\ud800"}, "to be UTF-8 text"),
        ("capability", {"question": LONG}, "Expected at most 512 tokens, the limit of .*, but prompt 0 has"),
        ("capability", {"question": "Why?", "answer": "me"}, "This probe reads only questions"),
        ("response", {"question": "Why?"}, "This probe reads answers"),
        ("response", {"question": "Why?", "answer": 5}, "`answer` in line 2 of 'bad.jsonl' to be a string, but got 5"),
        ("response", {"question": "Why?", "answer": LONG}, "Expected at most 512 tokens"),
    ],
)
def test_a_bad_line_gets_an_error_and_the_others_are_scored(
    scored: Score, tmp_path: Path, target: str, line: Any, message: str
) -> None:
    good = {"question": "Who?"} | ({"answer": "me"} if target == "response" else {})
    file = write(tmp_path / "bad.jsonl", [good, json.dumps(line) if isinstance(line, list) else line, good, good])
    with pytest.raises(InputError, match=rf"all 4 questions to be valid, but 1 could not be scored.*{message}"):
        scored(file, target, abstain_below=0.0)
    found = strict((tmp_path / "out.jsonl").read_text())
    assert [record["confidence"] is None for record in found] == [False, True, False, False]
    assert [record["abstain"] for record in found] == [False, True, False, False]
    assert found[0]["confidence"] == pytest.approx(found[3]["confidence"], abs=1e-5)
    assert "\n" not in found[1]["error"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"abstain_below": 1.5}, "`abstain_below` to be between 0 and 1, but got 1.5"),
        ({"batch_size": 0}, "`batch_size` to be at least 1"),
        ({"questions": "nowhere.txt"}, "`questions` to be one of"),
        ({"probe": "./nowhere"}, "there is no folder"),
    ],
)
def test_an_impossible_option_is_refused_before_the_model_is_loaded(
    folders: dict[str, str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        score(**{"probe": folders["capability"], "questions": "facts", "model": "./nowhere", **options})


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_without_questions_is_refused_before_the_model_is_loaded(
    folders: dict[str, str], tmp_path: Path, suffix: str
) -> None:
    file = write(tmp_path / f"own{suffix}", [{"q": "Why?", "kind": "short"}])
    with pytest.raises(InputError, match=f"own{suffix}' to have a `question`, but its fields are q, kind. Rename"):
        score(folders["capability"], str(file), str(tmp_path / "out.jsonl"), model="./nowhere")
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_no_questions_and_another_model_are_refused(scored: Score, folders: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(InputError, match="at least one question, but it is empty"):
        scored(tmp_path / "empty.txt")
    other = save_model(tiny_model(seed=1), tmp_path / "other")
    file = write(tmp_path / "questions.txt", [{"question": "Why?"}])
    with pytest.raises(InputError, match="differs in fingerprint"):
        score(folders["capability"], str(file), str(tmp_path / "new.jsonl"), model=str(other))


class Interrupted(BytesIO):
    """Standard input of two lines, after which the process receives a signal."""

    def read1(self, size: int | None = -1) -> bytes:
        line = self.readline()
        if not line:
            os.kill(os.getpid(), signal.SIGINT)
        return line


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[BytesIO], None]]:
    """Return a function that replaces standard input."""

    def replace(content: BytesIO) -> None:
        monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": content}))

    return replace


def test_two_commands_cannot_write_to_the_same_file(scored: Score, tmp_path: Path) -> None:
    with (
        FileLock(tmp_path / ".out.jsonl.lock"),
        pytest.raises(InputError, match="Expected `out` to be used by one command"),
    ):
        scored(write(tmp_path / "questions.txt", [{"question": "Why?"}]))


@pytest.mark.parametrize("line", ["3", "null", '"x"'])
def test_a_file_of_another_program_is_not_continued(
    scored: Score, folders: dict[str, str], tiny_folder: Path, tmp_path: Path, line: str
) -> None:
    file, out = write(tmp_path / "questions.txt", [{"question": "Why?"}]), tmp_path / "out.jsonl"
    scored(file)
    out.write_text(f"{line}\n")
    with pytest.raises(InputError, match="it has a line that is not a JSON object"):
        score(folders["capability"], str(file), str(out), model=str(tiny_folder))


def test_a_byte_order_mark_is_ignored(scored: Score, tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    file.write_bytes(codecs.BOM_UTF8 + b'{"id": "a", "question": "Why?"}\n')
    (record,) = scored(file)
    assert (record["id"], record["question"]) == ("a", "Why?")


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_command_keeps_its_lines_and_continues_after_them(
    folders: dict[str, str], tiny_folder: Path, tmp_path: Path, piped: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    out, text = tmp_path / "results" / "out.jsonl", "".join(f"{question}\n" for question in QUESTIONS).encode()
    options = [f"--probe={folders['capability']}", f"--out={out}", f"--model={tiny_folder}"]
    piped(Interrupted(b"\n".join(text.splitlines()[:2]) + b"\n"))
    assert run(COMMANDS, "probes", ["score", *options]) == 130
    assert capsys.readouterr().err.endswith(
        "error: interrupted. Finished work is kept. Run the same command again to continue.\n"
    )
    assert [record["question"] for record in strict(out.read_text())] == QUESTIONS[:2]
    out.write_text((first := out.read_text().replace("confidence", "kept")) + '{"id": 3, "que')  # a half-written line

    piped(BytesIO(text))
    assert run(COMMANDS, "probes", ["score", *options]) == 0
    assert out.read_text().startswith(first)  # these lines were not computed again
    assert [record["question"] for record in strict(out.read_text())] == QUESTIONS
    complete = out.read_bytes()
    for changed, more, message in (
        (text, ["--backoff=false"], "its settings differ in backoff: found True, expected False"),
        (text.replace(b"Why", b"How"), [], "out.jsonl' is for 'Why?' instead of 'How?'"),
        (b"Why?\n", [], "to begin with the 5 questions in"),
        (text, ["--abstain_below=0.5"], "abstain_below: found None, expected 0.5"),
    ):
        piped(BytesIO(changed))
        capsys.readouterr()
        assert run(COMMANDS, "probes", ["score", *options, *more]) == 2
        assert message in capsys.readouterr().err
    assert out.read_bytes() == complete


def test_each_line_is_written_at_once_without_importing_lightning_wandb_or_sklearn(
    folders: dict[str, str], tiny_folder: Path
) -> None:
    program = f"""
import sys
for name in ("lightning", "wandb", "sklearn", "torchmetrics", "jsonargparse", "matplotlib"):
    sys.modules[name] = None
from extract.running.exit import end_process, exit_status
from probes.saved.scoring import score
end_process(lambda: exit_status(lambda: score({folders["capability"]!r}, model={str(tiny_folder)!r})))
"""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, cwd=ROOT, text=True, bufsize=1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        guard = Timer(60, process.kill)
        guard.start()
        try:
            for question in QUESTIONS[:2]:  # the next one is sent after the answer has been read
                process.stdin.write(json.dumps({"question": question}) + "\n")
                assert json.loads(process.stdout.readline())["question"] == question
            process.stdout.close()
            process.stdin.write("Who?\n")
            assert process.wait(30) == 128 + signal.SIGPIPE
            assert "Traceback" not in process.stderr.read()
        finally:
            guard.cancel()
            process.kill()
