"""Tests of the Ray engine: the bytes of a local run, actors that die, and errors of one line."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from filelock import FileLock

from extract import Decoding, StoreRecipe, grade, read, sample_family
from extract.__main__ import COMMANDS
from extract.commands import ask
from extract.errors import InputError
from extract.grading import GRADERS, Judge, load_grader
from extract.running import ray_engine
from extract.running.cli import run
from extract.running.progress import Progress
from extract.running.ray_engine import RayWorker, worker_for
from extract.running.worker import Result, Worker
from extract.sampling.server.policy import Server
from extract.store.shards import Block
from tests.helpers.altered_stores import make_store
from tests.helpers.killing import Commands, changed, content, finished
from tests.helpers.ray_cluster import kill_an_actor, small_cluster
from tests.helpers.serving_stub import MODEL, stub
from tests.helpers.tiny import save_model, tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.processes]
ONE_ACTOR = ["--engine", "ray", "--actors", "1"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with small_cluster():
        yield


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    made = Commands(tmp_path_factory.mktemp("commands"), n_questions=16)
    save_model(tiny_model(max_position_embeddings=1024), made.folder / "model")  # for the prompt of `verbalized`
    return made


def finish(*line: str) -> int:
    return run(COMMANDS, "extract", list(line))


class Killer(threading.Thread):
    """Kills one actor as soon as a store has more finished files, and records the finished files before the kill."""

    def __init__(self, store: Path) -> None:
        super().__init__()
        self.store, self.kept, self.has_killed, self.is_over = store, dict[str, Any](), False, False
        self.n_before = len(finished(store))

    def run(self) -> None:
        while not (self.has_killed or self.is_over):
            self.kept = finished(self.store)
            if len(self.kept) > self.n_before:
                self.has_killed = kill_an_actor()
            time.sleep(0.01)


class TwicePickled(Worker):
    """Worker that sends the blocks through pickles, as to an actor, and does each block twice, as after a death."""

    def once(self, function: Callable[[], Result]) -> Result:
        return through_pickle(through_pickle(function)())

    def run(self, start: Any, items: Sequence[Any], n_rows: Any, bar: Any) -> Iterator[Any]:
        for _, of_block in groupby(items, lambda item: item.block):
            part = through_pickle(list(of_block))
            with through_pickle(start)() as process, bar() as progress:
                yield through_pickle(process(part, progress))
            with through_pickle(start)() as process:
                process(part, lambda rows, tokens: pytest.fail("a block is done again"))


def through_pickle(value: Any) -> Any:
    from ray import cloudpickle

    return cloudpickle.loads(cloudpickle.dumps(value))


def test_commands_can_be_pickled_and_do_no_block_twice(commands: Commands, tmp_path: Path) -> None:
    model = str(commands.folder / "model")
    questions = str(commands.folder / "questions.jsonl")
    decoding = Decoding(temperature="0:1:1", max_new_tokens=8)
    recipe = StoreRecipe(questions=questions, model=model, k=3, block_size=8, policy=decoding)
    for folder, worker in ((tmp_path / "local", Worker()), (tmp_path / "twice", TwicePickled())):
        store = str(sample_family(str(folder), recipe, worker)[1].path)
        sample_family(str(folder), replace(recipe, k=4), worker)  # two ranges in each block
        grade(store, worker=worker)
        read(store, model=model, worker=worker)
        read(store, ["hidden", "early_exit"], "sample", model=model, worker=worker)
        ask(store, ["verbalized"], model, worker=worker, max_new_tokens=4)
    assert content(tmp_path / "twice") == content(tmp_path / "local")


def test_requests_to_a_server_can_be_pickled_and_are_sent_once(commands: Commands, tmp_path: Path) -> None:
    """One of two addresses crashes during the run, so the requests go to the other one."""
    decoding, stores = Decoding(temperature=1.0, max_new_tokens=8), []
    recipe = StoreRecipe(
        questions=str(commands.folder / "questions.jsonl"), model=MODEL, sampler="server", k=2, policy=decoding
    )
    for worker in (Worker(), TwicePickled()):
        with stub() as stable, stub(on_seed="exit", n_seeds=5) as dying:
            server = Server(url=[dying.url, stable.url], attempts=5)
            folder = str(tmp_path / type(worker).__name__)
            stores += sample_family(folder, replace(recipe, server=server, block_size=8), worker)
            asked = Counter((request["seed"], str(request["prompt"])) for request in stable.answered())
        assert max(asked.values()) == 1
    assert content(stores[1].path) == content(stores[0].path)


def test_rejected_questions_of_all_blocks_are_counted_and_reported_once(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decoding = Decoding(temperature=1.0, max_new_tokens=8)
    recipe = StoreRecipe(questions=str(commands.folder / "questions.jsonl"), model=MODEL, sampler="server", k=2)
    with stub(rejects="Say 1") as server:
        recipe = replace(recipe, policy=decoding, block_size=1, server=Server(url=[server.url]))
        sample_family(str(tmp_path / "all"), recipe, TwicePickled())
        assert capsys.readouterr().err.count("recorded as rejected") == 1
        monkeypatch.setattr("extract.sampling.server.sampler.MOST_REJECTED", 2)
        with pytest.raises(
            InputError, match=r"rejected 2 in a row\. .*, delete the files in .* The prompt is too long"
        ):
            sample_family(str(tmp_path / "stopped"), recipe, TwicePickled())


@pytest.mark.usefixtures("cluster")
def test_a_missing_folder_and_a_failed_write_are_named_with_the_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    worker, file = RayWorker(1), tmp_path / "file"
    file.touch()
    with pytest.raises(NotADirectoryError, match=rf"Not a directory \(in an actor on {socket.gethostname()}\)"):
        worker.once(partial(os.mkdir, file / "folder"))
    monkeypatch.setattr("os.getcwd", lambda: str(tmp_path / "gone"))
    with pytest.raises(InputError, match="the current folder '.*gone' to exist on all machines"):
        worker.once(dict)


@pytest.mark.parametrize("name", GRADERS)
def test_graders_can_be_pickled(name: str) -> None:
    grader = through_pickle(load_grader(name, Judge(model="a model")))
    assert grader.rule == load_grader(name, Judge(model="a model")).rule


@pytest.mark.usefixtures("cluster")
def test_a_job_whose_actor_is_killed_finishes_with_the_bytes_of_a_local_run(commands: Commands) -> None:
    local, on_ray = commands.folder / "local", commands.folder / "on_ray"
    assert finish(*commands.line("sample", local)[2:]) == 0
    killer = Killer(on_ray)
    killer.start()
    assert finish(*commands.line("sample", on_ray)[2:], *ONE_ACTOR) == 0
    killer.is_over = True
    killer.join()
    assert killer.has_killed
    assert changed(killer.kept, finished(on_ray)) == 0
    assert len(killer.kept) < len(finished(on_ray))
    assert content(on_ray) == content(local)


@pytest.mark.usefixtures("cluster")
def test_an_actor_that_cannot_write_ends_the_job_with_one_line_and_the_next_run_continues(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The command is `grade`, because actors that load no model start within a second."""
    local = make_store(tmp_path / "local")
    shutil.rmtree(local / "grades")
    store = shutil.copytree(local, tmp_path / "unwritable")
    (store / "grades").touch()
    assert finish("grade", "--store", str(store), *ONE_ACTOR) == 2
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert len([line for line in said.splitlines() if line.startswith("error: ")]) == 1
    assert f"Not a directory (in an actor on {socket.gethostname()}). Finished work is kept." in said
    (store / "grades").unlink()
    assert finish("grade", "--store", str(store), "--engine", "ray", "--actors", "2") == 0
    assert finish("grade", "--store", str(local)) == 0
    assert content(store) == content(local)


@pytest.mark.usefixtures("cluster")
def test_more_actors_than_the_cluster_has_cpus_are_refused() -> None:
    with pytest.raises(InputError, match=r"`actors` to be at most 2, .* in the cluster, but got 3\. Pass"):
        RayWorker(3).once(dict)


@pytest.mark.usefixtures("cluster")
def test_actors_that_cannot_start_get_no_blocks() -> None:
    """Another job uses one of the two CPUs."""
    import ray

    @contextmanager
    def square() -> Iterator[Callable[..., list[int]]]:  # local, so that actors need not import this module
        yield lambda block, progress: [item.block**2 for item in block]

    other = ray.remote(num_cpus=1)(Counter).remote()
    ray.get(other.__ray_ready__.remote())
    blocks = [Block(i) for i in range(5)]
    bar = partial(Progress, "square", 5, "blocks")
    found = list(RayWorker(2).run(square, blocks, lambda block: 1, bar))
    ray.kill(other)
    assert sorted(found) == [[0], [1], [4], [9], [16]]


@pytest.mark.usefixtures("cluster")
def test_a_block_that_kills_every_actor_ends_the_job_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_engine, "RETRIES", 0)
    with pytest.raises(InputError, match=r"^Expected the Ray cluster to finish the job, but got [^\n]* are kept\."):
        RayWorker(1).once(lambda: os._exit(1))


@pytest.mark.usefixtures("cluster")
def test_a_cluster_that_disappears_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        worker = RayWorker(1)
        monkeypatch.setattr(ray_engine, "CHECK_SECONDS", 0.2)
        monkeypatch.setattr(RayWorker, "_address", f"127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(InputError, match="Expected the Ray cluster to finish the job, but got ConnectionRefused"):
            worker.once(lambda: time.sleep(2))


def test_a_second_job_on_a_store_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FileLock(tmp_path / ".writer-0-of-1.lock"):
        thread = threading.Thread(target=lambda: _enter(tmp_path))
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
    thread.join(10)
    assert not thread.is_alive()
    assert "waiting: another run is writing" in capsys.readouterr().err


def _enter(store: Path) -> None:
    with RayWorker().writing(store):
        pass


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'confidence-probes\[ray\]'"):
        RayWorker().once(dict)


@pytest.mark.parametrize("address", ["nowhere:x", "127.0.0.1:1"])
def test_an_unreachable_cluster_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(InputError, match=rf"^Expected a Ray cluster at RAY_ADDRESS='{address}', but got: [^\n]*$"):
        ray_engine.connect()


def test_several_processes_with_the_ray_engine_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="--engine ray to run in one process, but WORLD_SIZE is 2. Run"):
        worker_for("ray")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stop", "adaptive_consistency", *ONE_ACTOR], "Expected `stop` to be unset with --engine ray"),
        (
            ["--server.budget_tokens", "9", *ONE_ACTOR],
            "Expected `server.budget_tokens` to be unset with --engine ray",
        ),
        (["--engine", "ray", "--actors", "0"], "Expected `actors` to be at least 1, but got 0. Pass a larger --actors"),
        (["--actors", "2"], "Expected no `actors` without --engine ray, but got 2. Pass --engine ray."),
    ],
)
def test_options_of_the_other_engine_are_refused(
    options: Sequence[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert finish("sample", "--store", str(tmp_path / "store"), *options) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_the_default_engine_is_this_process_or_a_worker_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert worker_for("local").label == " 2/2"


def test_a_cluster_without_cpus_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RayWorker, "_ray", SimpleNamespace(cluster_resources=dict, remote=None))
    with pytest.raises(InputError, match="to have at least one CPU, but it has none"):
        RayWorker().once(dict)


def test_the_remedy_for_long_paths_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(*arguments: Any, **options: Any) -> None:
        raise OSError("AF_UNIX path length cannot exceed 107 bytes")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", init)
    with pytest.raises(InputError, match=r"Ray to start, but got: AF_UNIX [^\n]* set RAY_TMPDIR=/tmp"):
        ray_engine.connect()
