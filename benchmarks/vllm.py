"""Compare the accuracy and speed of vLLM and the local sampler, both on the CPU with SmolLM2-135M-Instruct.

vLLM runs in the environment that `make vllm` creates. It is stopped before the local sampler starts.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.result import report
from benchmarks.served import compared, refusal
from extract import StoreRecipe, grade, sample
from extract.models.embedded import embedded_model_folder
from extract.models.loading import load_model
from extract.policy import Decoding
from extract.sampling.server.policy import Server
from extract.store.store import Store

ROOT = Path(__file__).parents[1]
#: Questions and answers per question for the accuracy, and bars for tokens per second relative to vLLM.
N_QUESTIONS, K = 200, 4
BARS = {"float32": 2.0, "bfloat16": 3.0}
#: Requests token ids, because the usage counts the tokens of all answers to a request together.
TOKEN_IDS = {"return_token_ids": True}

#: Program that runs a command, and ends its own process group when the standard input closes.
_WATCH = """
import os, signal, subprocess, sys, threading
def watch():
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)
threading.Thread(target=watch, daemon=True).start()
sys.exit(subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL).returncode)
"""


@contextmanager
def vllm_serve(model: Path, dtype: str, seconds: float = 900.0) -> Iterator[str]:
    """Run vLLM on the loopback interface, and yield its address.

    vLLM runs until the context or this process ends. The first run compiles the model, which takes minutes.

    Raises:
        RuntimeError: If the server does not start within `seconds`.
    """
    python = ROOT / ".venv-vllm/bin/python"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", model.name, "--dtype", dtype, "--generation-config", "vllm"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OMP_NUM_THREADS")}
    settings = {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    # by default, vLLM computes with all cores but one
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    settings["VLLM_CPU_OMP_THREADS_BIND"] = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", cores)
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-c", _WATCH, *command],
            env={**inherited, **settings},
            stdin=subprocess.PIPE,  # closes with this process
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + seconds
            while not _is_ready(f"http://127.0.0.1:{port}/health"):
                if process.poll() is not None or time.monotonic() > deadline:
                    said.seek(0)
                    raise RuntimeError(f"vLLM did not start: {said.read()[-2000:].decode(errors='replace')}")
                time.sleep(0.5)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            with suppress(ProcessLookupError):  # raised when the server, its engine and its workers have ended
                os.killpg(process.pid, signal.SIGTERM)
                for _ in range(100):
                    time.sleep(0.1)
                    process.poll()
                    os.killpg(process.pid, 0)
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def versions() -> dict[str, str]:
    """Return the versions of vLLM, PyTorch and transformers in vLLM's environment."""
    program = "import json; from importlib.metadata import version as v; print(json.dumps({n: v(n) for n in ('vllm-cpu', 'torch', 'transformers')}))"
    done = subprocess.run([ROOT / ".venv-vllm/bin/python", "-c", program], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def timed(folder: Path, recipe: StoreRecipe) -> tuple[Store, float]:
    """Sample answers, and return the store and the number of sampled tokens per second.

    End-of-sequence tokens are counted. The time to load the model is not included.
    """
    loading = 0.0

    def load(*arguments: Any, **given: Any) -> Any:
        nonlocal loading
        start = time.perf_counter()
        loaded = load_model(*arguments, **given)
        loading += time.perf_counter() - start
        return loaded

    start = time.perf_counter()
    with patch("extract.models.loading.load_model", load):
        store = sample(str(folder), recipe)
    seconds = time.perf_counter() - start - loading
    return store, sum(filter(None, store.samples.read()["n_tokens"].to_pylist())) / seconds


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the vLLM benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=480)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--dtypes", nargs="+", choices=BARS, default=list(BARS))
    parser.add_argument("--n", type=int, default=10, help="answers per request")
    parser.add_argument("--start_seconds", type=float, default=900.0, help="maximum time to start vLLM")
    options = parser.parse_args(arguments)
    if not (ROOT / ".venv-vllm/bin/python").is_file():
        raise SystemExit(
            f"error: Expected vLLM to be installed in '{ROOT}/.venv-vllm', but it is not. Run `make vllm`."
        )
    model, n = embedded_model_folder(), min(options.questions, N_QUESTIONS)
    accuracy, rates, seeded = {}, {}, ""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for dtype in options.dtypes:

            def local(n_questions: int, k: int, dtype: str = dtype) -> StoreRecipe:
                return StoreRecipe(n_questions=n_questions, k=k, policy=Decoding(), model=str(model), dtype=dtype)

            with vllm_serve(model, dtype, options.start_seconds) as url:

                def served(n_questions: int, k: int, url: str = url, **given: Any) -> StoreRecipe:
                    server = Server(
                        url=url,
                        timeout=3600,  # in bfloat16, a request can take longer than the default of 600 seconds
                        **{"n": min(options.n, k), "seeds": False, "extra_body": TOKEN_IDS, **given},
                    )
                    return StoreRecipe(
                        n_questions=n_questions,
                        k=k,
                        policy=Decoding(),
                        sampler="server",
                        model=model.name,
                        server=server,
                    )

                sample(str(folder / f"warm-{dtype}"), served(8, 2))
                if dtype == "float32":
                    store, _ = timed(folder / "served", served(n, K, n=1))
                _, theirs = timed(folder / f"served-{dtype}", served(options.questions, options.k))
                if dtype == "float32":  # the last request to this server, because seeds end it
                    seeded = refusal(folder / "seeded", served(n, K, n=1, seeds=True, attempts=3)).replace(url, "URL")
            if dtype == "float32":
                of_local, _ = timed(folder / "local", local(n, K))
                for sampled in (store, of_local):
                    grade(str(sampled.path), "short")
                accuracy = compared(store, of_local, n * K)
            _, ours = timed(folder / f"local-{dtype}", local(options.questions, options.k))
            rates[dtype] = {"ratio": ours / theirs, "local": ours, "vllm": theirs}
    agrees = not accuracy or (
        accuracy["each once"]
        and accuracy["same prompts"]
        and accuracy["difference"][0] <= 0 <= accuracy["difference"][1]
    )
    report(
        "vllm",
        {"accuracy": accuracy, "tokens per second": rates},
        "0 in the 95 % interval for the difference; local sampler over vLLM: "
        + ", ".join(f"≥ {BARS[dtype]:g} in {dtype}" for dtype in options.dtypes),
        agrees and all(rate["ratio"] >= BARS[dtype] for dtype, rate in rates.items()),
        questions={"accuracy": n, "speed": options.questions},
        k={"accuracy": K, "speed": options.k},
        n=options.n,
        seeded=seeded,
        vllm=versions(),
        threads=torch.get_num_threads(),
    )


if __name__ == "__main__":
    main()
