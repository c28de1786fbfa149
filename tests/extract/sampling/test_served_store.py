"""Tests of stores of served models: requests, results, resuming, budgets, failures, and signals from a local copy."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from datamodules.table import load_table
from extract import Decoding, InputError, Store, StoreRecipe, grade, read, sample
from extract.policy import ModelIdentity
from extract.questions.source import find_source
from extract.running.worker import Worker
from extract.sampling.server.client import Client, Unanswered
from extract.sampling.server.endpoint import RejectedRequest
from extract.sampling.server.policy import Server, request_for, request_seed
from extract.sampling.server.protocol import Choice, Reply, Request
from extract.sampling.server.queue import OpenRange
from extract.store.answer_log import AnswerLog
from extract.store.parquet import SAMPLES_SCHEMA, write_table
from extract.store.samples import REJECTED, Samples
from extract.store.shards import SampleRange
from extract.store.verify import verify
from extract.viewing.inspection import describe
from tests.helpers.forking import Forked, run_program
from tests.helpers.serving_stub import MODEL, Running, answer_text, faults, stub
from tests.helpers.serving_stub import Options as StubOptions
from tests.helpers.tiny import write_questions

pytestmark = [pytest.mark.slow, pytest.mark.processes]

KEY = "sk-not-to-be-seen-0123456789"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with stub() as running:
        yield running


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_questions(tmp_path_factory.mktemp("questions") / "questions.jsonl", 20))


def recipe(url: str, questions: str, k: int = 2, **changes: Any) -> StoreRecipe:
    """Return a recipe with 20 questions in blocks of 8, 8 tokens per answer and 10 concurrent requests.

    Keyword arguments change options of the server.
    """
    options = {"max_concurrency": 10, "timeout": 5.0, "attempts": 3, **changes}
    return StoreRecipe(
        questions=questions,
        sampler="server",
        model=MODEL,
        k=k,
        block_size=8,
        policy=Decoding(temperature=1.0, max_new_tokens=8),
        server=Server(url=url, **options),
    )


def asked(server: Running) -> Counter[int]:
    """Return how often the stub was asked for an answer with each seed, without the requests of the preflight."""
    return Counter(one["seed"] for one in server.answered() if "Say " in json.dumps(one["prompt"]))


def seeds_of(answers: Iterable[tuple[str, int]]) -> set[int]:
    """Return the seeds of all questions and samples."""
    return {request_seed(0, *one) for one in answers}


def logged(store: Path) -> list[dict[str, Any]]:
    """Return every answer in the logs of a store as parsed JSON, even while logs are being written and deleted."""
    logs = []
    for path in store.glob("samples/*.jsonl"):
        with suppress(FileNotFoundError):
            logs.append(path.read_bytes())
    return [row for log in logs for line in log[: log.rfind(b"\n") + 1].splitlines()[1:] for row in json.loads(line)]


def check_whole(store: Store, k: int) -> None:
    """Check that every sample of every question is stored once with the stub's answer, and that no log is left."""
    rows = store.samples.read().to_pylist()
    assert Counter((row["question_id"], row["sample"]) for row in rows) == Counter(
        (question.id, j) for question in store.questions for j in range(k)
    )
    texts = {question.id: question.prompt for question in store.questions}
    for row in rows:
        prompt = [{"role": "user", "content": texts[row["question_id"]]}]
        seed = request_seed(0, row["question_id"], row["sample"])
        assert row["text"] == answer_text(StubOptions(), prompt, seed, 1.0, 0)
    assert not list(store.path.rglob("*.jsonl"))


def test_answers_are_stored_with_everything_that_the_server_reports(
    server: Running, questions: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = sample(str(tmp_path / "store"), recipe(server.url, questions))
    check_whole(store, 2)
    table = store.samples.read()
    assert table.schema.equals(SAMPLES_SCHEMA)
    row = table.to_pylist()[0]
    assert (row["finish_reason"], row["n_tokens"], row["logprobs"]) == ("stop", 3, [-0.5] * 3)
    assert row["token_ids"] is row["reasoning"] is None
    assert row["prompt_tokens"] > 0
    assert store.samples.ranges() == [SampleRange(block, j, j + 1) for block in range(3) for j in range(2)]
    verify(str(tmp_path / "store"))
    assert "answers/s" in capsys.readouterr().err


def test_the_identity_contains_the_model_name_and_request_format_but_no_address(
    server: Running, questions: str, tmp_path: Path
) -> None:
    made = recipe(server.url, questions, extra_body={"min_p": 0.1})
    store = sample(str(tmp_path / "store"), made)
    policy = store.identity["policy"]
    assert policy["model"] == vars(ModelIdentity(MODEL, None, None, None, None, None))
    assert policy["request"] == {"api": "chat", "extra": {"min_p": 0.1}}
    made.check_store(store)
    elsewhere = Server(url="http://other:1/v1", max_concurrency=3, n=4, seeds=False, extra_body={"min_p": 0.1})
    replace(made, server=elsewhere).check_store(store)
    for other, difference in {
        "model.id": replace(made, model="other"),
        "request.extra.min_p": replace(made, server=replace(made.server, extra_body={})),
        "decoding.temperature": replace(made, policy=Decoding(temperature=0.5, max_new_tokens=8)),
    }.items():
        with pytest.raises(InputError, match=other):
            difference.check_store(store)
        with pytest.raises(InputError, match=other):
            sample(str(tmp_path / "store"), difference)


def test_each_sampler_refuses_stores_of_the_other(
    server: Running, questions: str, tmp_path: Path, tiny_folder: Path
) -> None:
    served = sample(str(tmp_path / "served"), recipe(server.url, questions))
    local = StoreRecipe(questions=questions, model=str(tiny_folder), k=2, block_size=8)
    with pytest.raises(InputError, match="sampler: found 'server-1', expected 'local"):
        sample(str(served.path), local)
    sample(str(tmp_path / "local"), local)
    with pytest.raises(InputError, match="sampler: found 'local-.*expected 'server-1'"):
        sample(str(tmp_path / "local"), recipe(server.url, questions))


def test_only_missing_samples_are_requested(server: Running, questions: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    sample(str(path), recipe(server.url, questions))
    before, stamps = asked(server), {file: file.stat().st_mtime_ns for file in (path / "samples").iterdir()}
    store = sample(str(path), recipe(server.url, questions, k=5))
    check_whole(store, 5)
    assert {file: file.stat().st_mtime_ns for file in stamps} == stamps
    new = asked(server) - before
    assert set(new) == seeds_of((question.id, j) for question in store.questions for j in (2, 3, 4))
    assert new.total() == 60
    before = asked(server)
    sample(str(path), recipe(server.url, questions, k=5))  # nothing is missing, so no request is sent
    assert asked(server) == before


def test_several_answers_from_one_request_are_several_samples(server: Running, questions: str, tmp_path: Path) -> None:
    store = sample(str(tmp_path / "store"), recipe(server.url, questions, k=5, n=2))
    assert {(part.start, part.stop) for part in store.samples.ranges()} == {(0, 2), (2, 4), (4, 5)}
    rows = store.samples.read().to_pylist()
    assert len({(row["question_id"], row["sample"]) for row in rows}) == len({row["text"] for row in rows}) == 100
    assert {row["n_tokens"] for row in rows} == {3}  # from log-probabilities: `usage` is the total for both


def test_a_raw_prompt_goes_to_completions_and_thinking_to_the_chat_template(
    server: Running, questions: str, tmp_path: Path
) -> None:
    raw = recipe(server.url, questions)
    raw = replace(
        raw, policy=replace(raw.policy, prompt=replace(raw.policy.prompt, template="Q: {question}\nA:", chat=False))
    )
    store = sample(str(tmp_path / "raw"), raw)
    assert store.identity["policy"]["request"]["api"] == "completions"
    assert "Q: Say 3 word word word \nA:" in [one["prompt"] for one in server.answered()]
    thinking = replace(raw.policy, prompt=replace(raw.policy.prompt, chat=True, thinking=False))
    extra = request_for(store.questions[0], [0], thinking, Server(extra_body={"min_p": 0.1})).extra
    assert extra == {"min_p": 0.1, "chat_template_kwargs": {"enable_thinking": False}}


def test_seeds_are_31_bit_hashes_of_policy_question_and_sample() -> None:
    seeds = [request_seed(seed, id_, j) for seed in (0, 1) for id_ in ("a", "b") for j in range(500)]
    assert len(set(seeds)) == len(seeds)
    assert 0 <= min(seeds) < 2**28 < max(seeds) < 2**31


# Resuming


def command(store: Path, questions: str, url: str, *further: str) -> list[str]:
    options = {"questions": questions, "model": MODEL, "k": 4, "block_size": 8, "policy.temperature": 1}
    options |= {"policy.max_new_tokens": 8, "server.url": url, "server.max_concurrency": 4, "store": store}
    given = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    return [sys.executable, "-m", "extract", "sample", "--sampler", "server", *given, *further]


def start(line: list[str]) -> Forked:
    return Forked(line[3:])  # without `python -m extract`


def wait_for_answers(store: Path, n: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        whole = [path for path in store.glob("samples/*.parquet") if not path.with_suffix(".jsonl").exists()]
        if 4 * len(whole) + len(logged(store)) >= n:
            return
        time.sleep(0.005)


def test_answers_received_before_a_kill_are_not_requested_again(questions: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with stub(seconds=0.05) as server:
        process = start(command(path, questions, server.url))
        wait_for_answers(path, 21)
        process.kill()
        process.communicate()
        held = {(row["question_id"], row["sample"]) for row in logged(path)}
        held |= {(row["question_id"], row["sample"]) for row in Store.open(path).samples.read().to_pylist()}
        assert 21 <= len(held) < 80
        store = sample(str(path), recipe(server.url, questions, k=4))
        check_whole(store, 4)
        times = asked(server)
    assert {times[seed] for seed in seeds_of(held)} == {1}


@pytest.mark.parametrize(
    ("number", "status", "word"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_signal_ends_sampling_with_one_line_and_received_answers_are_kept(
    number: signal.Signals, status: int, word: str, questions: str, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    with stub(seconds=0.05) as server:
        process = start(command(path, questions, server.url))
        wait_for_answers(path, 12)
        process.send_signal(number)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == status
    assert "Traceback" not in said
    assert "never retrieved" not in said
    assert f"error: {word}. Finished work is kept. Run the same command again to continue." in said
    held = Store.open(path).samples.read().num_rows + len(logged(path))
    assert 12 <= held < 80


def stopped_early(server: Running, questions: str, path: Path, k: int = 3, **changes: Any) -> Store:
    """Make a store with unfinished parts, from a run that reached its budget."""
    with pytest.raises(InputError, match="budget"):
        sample(str(path), recipe(server.url, questions, k=k, budget_requests=18, max_concurrency=3, **changes))
    return Store.open(path)


def test_a_run_with_another_n_completes_unfinished_shards_first(
    server: Running, questions: str, tmp_path: Path
) -> None:
    store = stopped_early(server, questions, tmp_path / "store", k=6, n=4)
    (log,) = store.path.glob("samples/*.jsonl")
    assert log.name == "00001.000-004.jsonl"
    assert store.samples.ranges() == [SampleRange(0, 0, 4)]
    held = {(row["question_id"], row["sample"]): row["text"] for row in logged(store.path)}
    assert held
    store = sample(str(store.path), recipe(server.url, questions, k=6, n=3))
    assert {(part.start, part.stop) for part in store.samples.ranges() if part.block < 2} == {(0, 4), (4, 6)}
    assert {(part.start, part.stop) for part in store.samples.ranges() if part.block == 2} == {(0, 3), (3, 6)}
    texts = {(row["question_id"], row["sample"]): row["text"] for row in store.samples.read().to_pylist()}
    assert len(texts) == 120
    assert {one: texts[one] for one in held} == held


def test_an_incomplete_line_is_removed_and_empty_lines_are_requested_again(
    server: Running, questions: str, tmp_path: Path
) -> None:
    store = stopped_early(server, questions, tmp_path / "store")
    (log,) = store.path.glob("samples/*.jsonl")
    first, broken, *whole = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([first, b"\0" * len(broken), b"\n", *whole, broken[:-20]]))
    check_whole(sample(str(store.path), recipe(server.url, questions, k=3)), 3)


@pytest.mark.parametrize("left", [b"", b'{"format": "confid'])
def test_a_log_without_a_first_line_is_restarted(left: bytes, server: Running, questions: str, tmp_path: Path) -> None:
    store = stopped_early(server, questions, tmp_path / "store")
    (log,) = store.path.glob("samples/*.jsonl")
    log.write_bytes(left)
    check_whole(sample(str(store.path), recipe(server.url, questions, k=3)), 3)


def test_the_log_of_another_store_or_shard_is_refused(server: Running, questions: str, tmp_path: Path) -> None:
    store = stopped_early(server, questions, tmp_path / "store")
    (log,) = store.path.glob("samples/*.jsonl")
    content = log.read_text()
    for text in (content.replace(store.sha256, "0" * 64, 1), content.replace('"start": 0', '"start": 1', 1), "{}\n"):
        log.write_text(text)
        with pytest.raises(InputError, match="to begin with the header"):
            sample(str(store.path), recipe(server.url, questions, k=3))
        with pytest.raises(InputError, match=r"samples/00001.000-001.jsonl"):
            verify(str(store.path))
    log.write_text(content)
    verify(str(store.path))
    log.unlink()
    log.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text(content)
    with pytest.raises(OSError, match="symbolic link"):
        sample(str(store.path), recipe(server.url, questions, k=3))
    assert (tmp_path / "elsewhere").read_text() == content


def test_the_log_of_a_complete_shard_is_deleted(server: Running, questions: str, tmp_path: Path) -> None:
    store = stopped_early(server, questions, tmp_path / "store")
    (log,) = store.path.glob("samples/*.jsonl")
    left = store.samples.log_file(store.samples.ranges()[0])
    left.write_text(log.read_text())
    check_whole(sample(str(store.path), recipe(server.url, questions, k=3)), 3)


def test_a_complete_log_becomes_a_shard_without_requests(server: Running, questions: str, tmp_path: Path) -> None:
    store = sample(str(tmp_path / "store"), recipe(server.url, questions))
    for part in store.samples.ranges():
        rows = store.samples.read(part).to_pylist()
        log = AnswerLog(store, part)
        for row in reversed(rows):
            log.append([row])
        log.close()
        store.samples.file(part).with_suffix(".json").unlink()  # killed after writing the table but before its sidecar
    check_whole(sample(str(store.path), recipe("http://127.0.0.1:9/v1", questions)), 2)


def test_a_damaged_shard_is_named_and_requested_again(
    server: Running, questions: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = sample(str(tmp_path / "store"), recipe(server.url, questions))
    store.samples.file(SampleRange(1, 0, 1)).write_bytes(b"nothing")
    check_whole(sample(str(store.path), recipe(server.url, questions)), 2)
    assert "samples/00001.000-001.parquet" in capsys.readouterr().err


def test_workers_request_only_their_own_blocks(server: Running, questions: str, tmp_path: Path) -> None:
    made = recipe(server.url, questions)
    for rank in (1, 0):
        store = sample(str(tmp_path / "store"), made, Worker(rank, 2))
        assert {part.block for part in store.samples.ranges()} == ({1} if rank else {0, 1, 2})
    check_whole(store, 2)


# Failures


def test_a_budget_stops_sampling_evenly_and_the_next_run_continues(
    server: Running, questions: str, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    with pytest.raises(InputError, match=r"^Expected the budget to cover all answers[^\n]*at least 1 answers\.$"):
        sample(str(path), recipe(server.url, questions, k=3, budget_requests=34))
    counts = Counter(row["question_id"] for row in [*Store.open(path).samples.read().to_pylist(), *logged(path)])
    assert len(counts) == 20
    assert set(counts.values()) <= {1, 2}
    assert counts.total() == 34 - 4  # the preflight requests four short texts
    check_whole(sample(str(path), recipe(server.url, questions, k=3)), 3)


def test_every_sample_is_stored_once_although_the_server_fails(
    server: Running, questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extract.sampling.server.client.retry_wait", lambda state: 0.0)
    with faults(server.url, stall=1.0) as proxy:
        store = sample(str(tmp_path / "store"), recipe(proxy.url, questions, attempts=20, timeout=0.7))
    check_whole(store, 2)


@pytest.mark.parametrize("n", [5, 58])
def test_a_crash_on_a_seed_during_the_run_names_the_option_and_the_next_run_continues(
    n: int, questions: str, tmp_path: Path
) -> None:
    """The server dies after `n` answers, of which 5 belong to the preflight."""
    path = tmp_path / "store"
    with (
        stub(on_seed="exit", n_seeds=n) as dying,
        pytest.raises(
            InputError,
            match=r"^[^\n]*has crashed, restart it, and run the command again with --server\.seeds=false\.[^\n]*$",
        ),
    ):
        sample(str(path), recipe(dying.url, questions, k=3, attempts=2, timeout=30))
    n_kept = len([*Store.open(path).samples.read().to_pylist(), *logged(path)])
    assert n - 5 - 10 <= n_kept <= n - 4
    with stub(on_seed="exit") as server:
        store = sample(str(path), recipe(server.url, questions, k=3, seeds=False))
    assert len(store.samples.read()) == 60


def test_unanswered_requests_are_repeated_by_the_next_run(
    questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, ask, calls = tmp_path / "store", Client.ask, Counter[str]()

    async def ask_or_not(self: Client, request: Request) -> Reply:
        calls["ask"] += 1
        if calls["ask"] % 7 == 0:
            raise Unanswered("3 attempts failed, the last one with: status 503")
        return await ask(self, request)

    with stub() as server:
        with monkeypatch.context() as patch:
            patch.setattr(Client, "ask", ask_or_not)
            with pytest.raises(InputError, match=r"answers are missing: [^\n]* Run the same command again[^\n]*$"):
                sample(str(path), recipe(server.url, questions, k=3))
        assert len([*Store.open(path).samples.read().to_pylist(), *logged(path)]) == 60 - calls["ask"] // 7
        check_whole(sample(str(path), recipe(server.url, questions, k=3)), 3)
        assert set(asked(server).values()) == {1}


def test_an_unreachable_server_another_model_and_a_refused_key_leave_no_store(
    questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_KEY", "wrong")
    with stub(key=KEY) as keyed, stub(says_model="other-model") as other, stub(ignores=("temperature",)) as greedy:
        for url, words, options in (
            ("http://127.0.0.1:9/v1", "the connection failed", {"attempts": 1}),
            (keyed.url, "STUB_KEY", {"api_key_env": "STUB_KEY"}),
            (other.url, "other-model", {}),
            (greedy.url, "vary at temperature 1", {}),
        ):
            with pytest.raises(InputError, match=words) as refused:
                sample(str(tmp_path / "store"), recipe(url, questions, **options))
            assert "\n" not in str(refused.value)
            assert not (tmp_path / "store" / "identity.json").exists()
        with pytest.raises(InputError, match="typo"):
            sample(str(tmp_path / "store"), replace(recipe(greedy.url, questions), model="typo"))


def test_a_key_is_in_no_file_and_no_message(
    questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("STUB_KEY", KEY)
    path = tmp_path / "store"
    with stub(key=KEY) as server:
        stopped_early(server, questions, path, api_key_env="STUB_KEY")
        sample(str(path), recipe(server.url, questions, k=3, api_key_env="STUB_KEY"))
    said = "".join(capsys.readouterr())
    assert KEY not in said
    for file in path.rglob("*"):
        assert file.is_dir() or KEY.encode() not in file.read_bytes(), file


def test_private_text_that_a_server_repeats_is_not_shown(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {"id": "q7", "text": "Which of these elements is the heaviest?", "references": ["lead"]}
    questions = tmp_path / "private.jsonl"
    questions.write_text(json.dumps({**record, "meta": {"private": True}}))

    async def refuse(self: Client, request: Request) -> Reply:
        raise InputError(f"Expected the server to answer, but it returned status 400: bad prompt {request.prompt}")

    with monkeypatch.context() as patch:
        patch.setattr(Client, "ask", refuse)
        with pytest.raises(InputError, match="on question 'q7' is hidden, because it repeats"):
            sample(str(tmp_path / "store"), recipe(server.url, str(questions)))


def test_a_full_disk_gives_a_one_line_error_and_the_next_run_continues(
    server: Running, questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "store", AnswerLog._write
    calls: list[str] = []

    def full_after_a_while(self: AnswerLog, text: str) -> None:
        calls.append(text)
        if len(calls) > 30:
            real = os.write
            with monkeypatch.context() as patch:
                patch.setattr(os, "write", lambda fd, line: real(fd, line[:9]))  # the last block's room
                write(self, text)
        write(self, text)

    with monkeypatch.context() as patch:
        patch.setattr(AnswerLog, "_write", full_after_a_while)
        with pytest.raises(OSError, match="No space left on device") as full:
            sample(str(path), recipe(server.url, questions))
    assert full.value.errno == errno.ENOSPC
    assert str(full.value.filename).endswith(".jsonl")
    kept = [*Store.open(path).samples.read().to_pylist(), *logged(path)]
    assert 20 < len(kept) < 30
    before = asked(server)
    check_whole(sample(str(path), recipe(server.url, questions)), 2)
    assert not seeds_of((row["question_id"], row["sample"]) for row in kept) & (asked(server) - before).keys()


@pytest.fixture(scope="module")
def served(server: Running, questions: str, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return sample(str(tmp_path_factory.mktemp("served") / "store"), recipe(server.url, questions))


# Stored parts of a reply


def choice(**changes: Any) -> Choice:
    return Choice(
        **{"text": "Lima", "reasoning": None, "finish_reason": "stop", "logprobs": None, "token_ids": None, **changes}
    )


@pytest.mark.parametrize(
    ("of_choice", "stated", "expected"),
    [
        ({}, 2, (None, None, 2)),
        ({}, None, (None, None, None)),
        ({"logprobs": [-0.5, -0.1]}, None, (None, [-0.5, -0.1], 2)),
        ({"logprobs": [-0.5], "token_ids": [7]}, 4, ([7], None, 4)),  # some tokens were not reported
        ({"logprobs": [-0.5], "token_ids": [7, 8]}, None, (None, [-0.5], 1)),
        ({"logprobs": [-0.5, float("-inf")], "token_ids": [7, 8]}, None, ([7, 8], None, 2)),
        ({"logprobs": [0.5]}, None, (None, None, None)),
        ({"token_ids": [-1]}, None, (None, None, None)),
        ({"logprobs": []}, 0, (None, None, None)),
        ({"text": "", "logprobs": []}, 0, (None, [], 0)),
    ],
)
def test_contradictory_token_counts_are_unknown(of_choice: Any, stated: Any, expected: Any) -> None:
    (row,) = Reply(MODEL, [choice(**of_choice)], None, stated).rows("q", [3])
    assert (row["token_ids"], row["logprobs"], row["n_tokens"]) == expected
    assert (row["sample"], row["prompt_tokens"]) == (3, None)


def test_surplus_answers_are_left_out() -> None:
    rows = Reply(MODEL, [choice(text=text) for text in "abc"], 5, 9).rows("q", [3, 4])
    assert [(row["sample"], row["text"], row["n_tokens"]) for row in rows] == [(3, "a", None), (4, "b", None)]


# Isolated failures


def refusing(words: str, refuses: Callable[[Request], bool]) -> Any:
    """Return an `ask` method for a client of a server that refuses some requests with status 400."""
    ask = Client.ask

    async def ask_or_refuse(self: Client, request: Request) -> Reply:
        if refuses(request):
            raise RejectedRequest(f"Expected it to answer, but it returned status 400: {words}.")
        return await ask(self, request)

    return ask_or_refuse


def test_a_rejected_question_does_not_block_others_and_its_answers_are_unknown(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, questions = tmp_path / "store", str(write_questions(tmp_path / "questions.jsonl", 20))
    first = find_source(questions).questions(seed=0)[0]
    with stub(rejects=first.prompt, ignores=("usage",)) as server:
        for k in (2, 3):  # the preflight tries another question, for a new and an existing store
            store = sample(str(path), recipe(server.url, questions, k=k))
            said = capsys.readouterr().err
            assert re.search(rf"rejected 1 question \({first.id!r}\)[^\n]*too long[^\n]*recorded as rejected", said)
        assert set(asked(server).values()) == {1}
    rows = store.samples.read().to_pylist()
    rejected = [row for row in rows if row["finish_reason"] == REJECTED]
    assert len(rows) == 60
    assert [(row["question_id"], row["sample"], row["text"]) for row in rejected] == [
        (first.id, j, "") for j in range(3)
    ]
    verify(str(path))
    for grader in ("short", "exact"):
        grade(str(path), grader)
        assert "60 answers graded" in (said := capsys.readouterr().err)
        assert "3 unknown (3 rejected by the server)" in said
        grades = store.grades.read(grader).to_pylist()
        assert [row["question_id"] for row in grades if row["right"] is None] == [first.id] * 3
    assert "3 (5 %) rejected by the server" in describe(store, "short", 2)
    read(str(path), ["tokens"], "sample", model=str(tiny_folder))
    entropies = store.signals.read_ragged("tokens", "3/entropy").rows()
    assert all(entropies[i].isnan().all() == (row["finish_reason"] == REJECTED) for i, row in enumerate(rows))
    table = load_table(store, "short")
    place = table.ids.index(first.id)
    assert (table.known[place], table.unknown[place]) == (0, 3)
    assert np.isnan(table.consistency[place])
    assert sorted(table.known) == [0, *[3] * 19]


def test_rejected_answers_are_requested_again_after_an_incomplete_run(
    questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, first = tmp_path / "store", find_source(questions).questions(seed=0)[0]
    with stub() as server:
        with monkeypatch.context() as patch:
            patch.setattr(Client, "ask", refusing("too long", lambda one: first.prompt in json.dumps(one.prompt)))
            with pytest.raises(InputError, match="budget"):
                sample(str(path), recipe(server.url, questions, budget_requests=30))
        check_whole(sample(str(path), recipe(server.url, questions)), 2)


def test_many_refused_questions_in_a_row_stop_the_run(
    questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Request] = []
    monkeypatch.setattr("extract.sampling.server.run.MOST_REJECTED", 6)

    def after_the_trial(request: Request) -> bool:
        tried.append(request)
        return len(tried) > 5

    monkeypatch.setattr(Client, "ask", refusing("no", after_the_trial))
    with stub() as server, pytest.raises(InputError, match=r"rejected 6 in a row[^\n]*status 400: no\.$"):
        sample(str(tmp_path / "store"), recipe(server.url, questions, max_concurrency=1))
    assert len(tried) < 15


def test_replies_of_the_preflight_are_stored_as_their_samples(server: Running, questions: str, tmp_path: Path) -> None:
    store = stopped_early(server, questions, tmp_path / "store", k=4, n=4)
    before = asked(server)
    rows = {(row["question_id"], row["sample"]) for row in [*store.samples.read().to_pylist(), *logged(store.path)]}
    made = recipe(server.url, questions, k=4, n=1)
    sample(str(store.path), replace(made, server=replace(made.server, url=[server.url] * 3)))
    new = asked(server) - before
    assert set(new.values()) == {1}
    assert set(new) == seeds_of((one.id, j) for one in store.questions for j in range(4) if (one.id, j) not in rows)


def test_a_range_is_written_only_with_all_logged_answers(served: Store, tmp_path: Path) -> None:
    store = Store.open(shutil.copytree(served.path, tmp_path / "store"))
    part = SampleRange(1, 0, 1)
    rows = store.samples.read(part).to_pylist()
    store.samples.file(part).unlink()
    store.samples.file(part).with_suffix(".json").unlink()
    opened = OpenRange(store, part, 1)
    opened.log.append(rows)
    opened.log.path.write_bytes(b"".join(opened.log.path.read_bytes().splitlines(keepends=True)[:1]))  # lost
    assert not opened.close()
    assert not store.samples.file(part).exists()
    assert store.samples.log_file(part).exists()


def test_answers_in_flight_are_kept_if_a_file_cannot_be_written(
    questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"

    def full(self: Samples, part: SampleRange, rows: Any, **record: Any) -> None:
        raise InputError("Expected to be able to write, but: No space left on device.")

    with stub(seconds=0.05) as server:
        with monkeypatch.context() as patch:
            patch.setattr(Samples, "write", full)
            with pytest.raises(InputError, match="No space left on device"):
                sample(str(path), recipe(server.url, questions))
        held = {(row["question_id"], row["sample"]) for row in logged(path)}
        assert seeds_of(held) == set(asked(server))  # every requested answer is stored
        assert 8 <= len(held) < 40
        check_whole(sample(str(path), recipe(server.url, questions)), 2)
        assert set(asked(server).values()) == {1}


def test_a_log_that_cannot_be_synced_stops_the_run(
    questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: AnswerLog) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("extract.sampling.server.run.SYNC_SECONDS", 0.05)
    monkeypatch.setattr(AnswerLog, "sync", broken)
    with stub(seconds=0.1) as server, pytest.raises(OSError, match="Input/output error"):
        sample(str(tmp_path / "store"), recipe(server.url, questions, max_concurrency=2))
    assert len(logged(tmp_path / "store")) < 20


def test_a_failed_sync_is_repeated(served: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part, calls = SampleRange(0, 0, 1), list[int]()

    def once_broken(fd: int) -> None:
        calls.append(fd)
        if len(calls) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    store = Store.open(shutil.copytree(served.path, tmp_path / "store"))
    log = AnswerLog(store, part)
    monkeypatch.setattr(os, "fsync", once_broken)
    log.append(store.samples.read(part).to_pylist())
    with pytest.raises(OSError, match="Input/output"):
        log.sync()
    log.sync()
    log.sync()
    log.close()
    assert len(calls) == 2


def run_with_few_files(options: Sequence[str], said: str) -> None:
    """Run `python -m extract` in a forked process that may open 45 files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (45, 45))
    run_program(options, said)


def test_a_low_limit_of_open_files_gives_a_one_line_error(
    server: Running, questions: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.helpers.forking.run_program", run_with_few_files)
    process = start(command(tmp_path / "store", questions, server.url))
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert "but the limit is 45. Lower `server.max_concurrency`" in said
    assert "Traceback" not in said


def test_five_interrupts_end_sampling_with_one_line(questions: str, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with stub(seconds=0.05) as server:
        process = start(command(path, questions, server.url))
        wait_for_answers(path, 8)
        for _ in range(5):
            process.send_signal(signal.SIGINT)
            time.sleep(0.005)
        said = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "Traceback" not in said
    assert "asyncio" not in said


def test_a_warning_says_that_answers_at_temperature_0_are_identical(
    server: Running, questions: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = recipe(server.url, questions)
    sample(str(tmp_path / "store"), replace(made, policy=replace(made.policy, temperature=0.0)))
    assert "at temperature 0, the 2 answers to a question are mostly identical" in capsys.readouterr().err


def test_grades_of_replaced_answers_are_named_and_recomputed(
    questions: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, part = tmp_path / "store", SampleRange(1, 0, 1)
    with stub() as server:
        sample(str(path), recipe(server.url, questions))
    grade(str(path))
    store = Store.open(path)
    changed = [{**row, "text": "word"} for row in store.samples.read(part).to_pylist()]
    store.samples.write(part, changed)
    with pytest.raises(
        InputError, match=r"grades/short/00001.000-001.parquet: its samples have been replaced since they were graded"
    ):
        verify(str(path))
    capsys.readouterr()
    grade(str(path))
    assert (
        "grades/short/00001.000-001.parquet: its samples have been replaced since they were graded"
        in capsys.readouterr().err
    )
    verify(str(path))
    assert store.grades.read("short").num_rows == 40


def test_grades_without_provenance_are_kept_and_an_earlier_rule_is_reported(
    served: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store.open(shutil.copytree(served.path, tmp_path / "store"))
    grade(str(store.path))
    for part in store.samples.ranges():
        file = store.grades.file("short", part)
        table = pq.read_table(file)
        assert b"samples" in table.schema.metadata
        write_table(file, table.replace_schema_metadata({"grader": "short", "rule": "as it was"}))
    before = [store.grades.file("short", part).read_bytes() for part in store.samples.ranges()]
    capsys.readouterr()
    grade(str(store.path))
    assert "short has already graded all answers, but with a different rule; delete" in capsys.readouterr().err
    verify(str(store.path))
    assert [store.grades.file("short", part).read_bytes() for part in store.samples.ranges()] == before
    store.grades.file("short", part).unlink()
    with pytest.raises(InputError, match="grades/short' to follow this run's grading rule.*to grade again"):
        grade(str(store.path))
