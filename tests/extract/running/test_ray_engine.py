"""Tests of the Ray engine: the bytes of a local run, actors that die, and errors of one line."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from extract.__main__ import COMMANDS
from extract.errors import InputError
from extract.running import ray_engine
from extract.running.cli import run
from extract.running.ray_engine import RayWorker, worker_for
from tests.helpers.killing import Commands, changed, content, finished
from tests.helpers.ray_cluster import kill_actor, small_cluster
from tests.helpers.serving_stub import MODEL, stub
from tests.helpers.tiny import save_model, tiny_model

pytestmark = pytest.mark.slow
ON_RAY = ["--engine", "ray", "--actors", "2"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    with small_cluster():
        yield


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    made = Commands(tmp_path_factory.mktemp("commands"), n_questions=48)
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
                self.has_killed = kill_actor()
            time.sleep(0.01)


@pytest.mark.usefixtures("cluster")
def test_a_job_whose_actors_are_killed_finishes_with_the_bytes_of_a_local_run(commands: Commands) -> None:
    local, on_ray = commands.folder / "local", commands.folder / "on_ray"
    ask = ["ask", "--baselines", "[verbalized]", "--model", str(commands.folder / "model")]
    for name, line in {"sample": None, "grade": ["grade"], "read": None, "ask": ask}.items():
        for store, engine in ((local, []), (on_ray, ON_RAY)):
            options = commands.line(name, store)[2:] if line is None else [*line, "--store", str(store)]
            killer = Killer(on_ray)
            if store == on_ray and name in ("sample", "read"):
                killer.start()
            assert finish(*options, *engine) == 0
            killer.is_over = True
            if killer.ident is not None:
                killer.join()
                assert killer.has_killed
                assert changed(killer.kept, finished(on_ray)) == 0
        assert content(on_ray) == content(local), name


@pytest.mark.usefixtures("cluster")
def test_actors_send_requests_to_servers_and_skip_addresses_that_fail(commands: Commands, tmp_path: Path) -> None:
    with stub() as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        line = ["sample", "--sampler", "server", "--model", MODEL, "--k", "2", "--block_size", "8"]
        line += ["--questions", str(commands.folder / "questions.jsonl"), "--policy.temperature", "1"]
        urls = f"[{server.url},http://127.0.0.1:{closed.getsockname()[1]}/v1]"
        assert finish(*line, "--store", str(tmp_path / "local"), "--server.url", server.url) == 0
        assert finish(*line, "--store", str(tmp_path / "ray"), "--server.url", urls, *ON_RAY) == 0
    assert content(tmp_path / "ray") == content(tmp_path / "local")


@pytest.mark.usefixtures("cluster")
def test_an_actor_that_cannot_write_ends_the_job_with_one_line_and_the_next_run_continues(
    commands: Commands, capfd: pytest.CaptureFixture[str]
) -> None:
    store = commands.folder / "blocked"
    assert finish(*commands.line("sample", store)[2:]) == 0
    (store / "signals").touch()
    capfd.readouterr()
    assert finish(*commands.line("read", store)[2:], *ON_RAY) == 2
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert len([line for line in said.splitlines() if line.startswith("error: ")]) == 1
    assert "Not a directory. Finished work is kept." in said
    (store / "signals").unlink()
    assert finish(*commands.line("read", store)[2:], *ON_RAY) == 0
    assert finish("verify", "--store", str(store)) == 0


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("actors", [0, 3])
def test_more_actors_than_the_cluster_has_cpus_are_refused(actors: int) -> None:
    with pytest.raises(InputError, match=rf"`actors` to be from 1 to 2, .* the cluster has 2, but got {actors}\. Pass"):
        RayWorker(actors).once(dict)


@pytest.mark.usefixtures("cluster")
def test_a_block_that_kills_every_actor_ends_the_job_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setattr(ray_engine, "RETRIES", 0)
    with pytest.raises(InputError, match=r"^Expected the Ray cluster to finish the job, but got [^\n]* are kept\."):
        RayWorker(1).once(lambda: os._exit(1))


@pytest.mark.usefixtures("cluster")
def test_a_cluster_that_disappears_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        worker = RayWorker(1)
        monkeypatch.setattr(ray_engine, "CHECK_SECONDS", 0.2)
        monkeypatch.setattr(RayWorker, "_address", closed.getsockname())
        with pytest.raises(InputError, match="Expected the Ray cluster to finish the job, but got ConnectionRefused"):
            worker.once(lambda: time.sleep(2))


def test_a_second_job_on_a_store_waits(commands: Commands, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_an_unreachable_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "nowhere:x")
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(InputError, match=r"^Expected a Ray cluster at RAY_ADDRESS='nowhere:x', but got: [^\n]*$"):
        ray_engine.connect()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stop", "adaptive_consistency", *ON_RAY], "Expected `stop` to be left out with the engine ray"),
        (
            ["--server.budget_tokens", "9", *ON_RAY],
            "Expected `server.budget_tokens` to be left out with the engine ray",
        ),
        (["--actors", "2"], "Expected `actors` only for the engine ray, but got 2. Pass --engine ray."),
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
