"""Tests of `probes serve`: its options, refusals at the start, and the end after a signal."""

from __future__ import annotations

import os
import signal
import socket
import threading
from importlib import util
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import openai
import pytest
from fastapi import FastAPI

from extract import InputError
from extract.running.cli import run
from probes import load_probe
from probes.__main__ import COMMANDS
from probes.saved.artefact import ConfidenceProbe
from probes.saved.calibrators import Platt
from probes.saved.head import LinearHead
from probes.serving.access import read_key
from probes.serving.command import API_KEY, bound_socket, new_server
from tests.helpers.probe_server import serve_process, wait_until
from tests.helpers.tiny import byte_tokenizer, tiny_model
from tests.probes.saved.test_streaming import make_any_probe

pytestmark = pytest.mark.slow
KEY = "a-secret-key"


@pytest.fixture(scope="module")
def probe_folder(tmp_path_factory: pytest.TempPathFactory, model: Any, tokenizer: Any) -> str:
    head = LinearHead(64)
    head.weight.normal_()
    config = make_any_probe("last_prompt", model, tokenizer, stop=[]).config
    config |= {"head": "linear", "sizes": {}, "calibrator": "platt"}
    return str(ConfidenceProbe(head, Platt(0.7, -0.2), config).save(tmp_path_factory.mktemp("saved") / "probe", "card"))


def serve(*options: str) -> int:
    return run(COMMANDS, "python -m probes", ["serve", *options])


def only_line(capsys: pytest.CaptureFixture[str]) -> str:
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert printed.out == ""
    return line


def test_sigterm_ends_streams_and_the_process(probe_folder: str, tiny_folder: Path, model: Any, tokenizer: Any) -> None:
    options = ["--probe", probe_folder, "--model", str(tiny_folder), "--served_model_name", "served"]
    with serve_process(*options, **{API_KEY: KEY}) as (process, url):
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=20)
        question: Any = [{"role": "user", "content": "Why?"}]
        done: Any = client.chat.completions.create(model="served", messages=question, max_tokens=2)
        expected = load_probe(probe_folder).score(model, tokenizer, ["Why?"])
        assert done.choices[0].confidence == pytest.approx(float(expected.confidence), abs=1e-4)
        assert httpx.get(f"{url}/v1/models").status_code == 401
        stream = client.chat.completions.create(
            model="served", messages=question, max_tokens=480, temperature=0, stream=True
        )
        next(stream)
        process.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
        assert process.wait(5) == 0
        assert process.stderr is not None
        assert process.stderr.read() == "Stopped by SIGTERM.\n"
        client.close()


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_the_server_in_this_process(
    probe_folder: str, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    threads = threading.active_count()

    def interrupt() -> None:
        wait_until(lambda: "Serving tiny-llama at http://127.0.0.1:" in shown())
        os.kill(os.getpid(), signal.SIGINT)

    lines: list[str] = []

    def shown() -> str:
        lines.append(capsys.readouterr().err)
        return "".join(lines)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert serve("--probe", probe_folder, "--model", str(tiny_folder), "--port", "0") == 0
    thread.join()
    assert shown().endswith("Stopped by Ctrl-C.\n")
    assert threading.active_count() == threads


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "Expected an API key, because other machines can reach the host '0.0.0.0'"),
        (["--host", "example.org"], "CONFIDENCE_PROBES_API_KEY"),
        (["--host", "::"], "Expected an API key"),
        (["--port", "70000"], "Expected `port` to be from 0 to 65535"),
        (["--port", "-1"], "Expected `port` to be from 0"),
        (["--max_batch_size", "0"], "Expected `max_batch_size` to be at least 1"),
        (["--max_queue", "0"], "Expected `max_queue` to be at least 1"),
        (["--host", "192.0.2.1", "--api_key_env", "PATH"], "Expected `host` and `port`"),
        (["--api_key_env", "NOT_SET"], "'NOT_SET' to contain the API key, but it is not set"),
        (["--probe", "nowhere/at/all"], "nowhere"),
        (["--dtype", "int8"], "Expected `dtype`"),
        (["--api_key", KEY], "Did you mean `--api_key_env`?"),
    ],
)
def test_bad_options_are_refused(
    options: list[str], words: str, probe_folder: str, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--probe", probe_folder, "--model", str(tiny_folder), "--port", "0", *options]
    try:
        status = serve(*given)
    except SystemExit as end:
        status = int(str(end.code))
    assert status == 2
    line = only_line(capsys)
    assert words in line
    assert KEY not in line


def test_a_port_in_use_is_refused(probe_folder: str, tiny_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert serve("--probe", probe_folder, "--model", str(tiny_folder), "--port", str(port)) == 2
    assert "in use" in only_line(capsys)


def test_servers_that_start_at_the_same_time_do_not_share_a_port() -> None:
    with bound_socket("127.0.0.1", 0) as first, bound_socket("127.0.0.1", first.getsockname()[1]) as second:
        first.listen()
        server = new_server(FastAPI(), Mock(), "")
        with pytest.raises(InputError, match="Expected `port` to be free"):
            server.run([second])


def test_a_probe_of_another_model_is_refused(
    probe_folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tiny_model(seed=1)
    other.save_pretrained(tmp_path)
    byte_tokenizer().save_pretrained(tmp_path)
    assert serve("--probe", probe_folder, "--model", str(tmp_path), "--port", "0") == 2
    assert "Expected the model of the probe" in capsys.readouterr().err.splitlines()[-1]


def test_a_model_without_a_chat_template_is_refused(
    model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = None
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    config = make_any_probe("last_prompt", model, tokenizer, stop=[]).config
    config |= {"head": "linear", "sizes": {}, "calibrator": "platt"}
    ConfidenceProbe(LinearHead(64), Platt(0.7, -0.2), config).save(tmp_path / "probe", "card")
    options = ["--probe", str(tmp_path / "probe"), "--model", str(tmp_path / "model"), "--port", "0"]
    assert serve(*options) == 2
    assert "Expected the tokenizer to have a chat template" in capsys.readouterr().err.splitlines()[-1]


def test_missing_packages_are_named(
    probe_folder: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = util.find_spec
    monkeypatch.setattr(
        "probes.serving.command.find_spec", lambda name: None if name in ("fastapi", "uvicorn") else find(name)
    )
    assert serve("--probe", probe_folder) == 2
    line = only_line(capsys)
    assert "fastapi and uvicorn" in line
    assert "confidence-probes[serve]" in line


@pytest.mark.parametrize("key", ["with space", "ü", "a\nb"])
def test_keys_that_no_header_can_contain_are_refused_without_showing_them(key: str) -> None:
    with pytest.raises(ValueError, match="'SOME'") as caught:
        read_key("SOME", False, {"SOME": key})
    assert key not in str(caught.value)
    assert read_key("SOME", True, {}) is None
    assert read_key("SOME", True, {"SOME": KEY}) == KEY
    with pytest.raises(ValueError, match="empty"):
        read_key("SOME", True, {"SOME": ""})
