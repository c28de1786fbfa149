"""Benchmark the server of `python -m probes serve`: its confidences, latency and throughput.

Its confidences for 1,000 questions (32 concurrent requests) are compared with those of `score`. The latency of
`/v1/score` for one client is compared with that of a forward pass in this process. The server can be faster, because it
processes the worked examples of the prompts only once. The throughput with 32 clients is compared with that for one
client.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import torch
from openai import AsyncOpenAI

from benchmarks.result import alternating, report
from extract.questions import load_questions
from probes import load_probe
from probes.saved.scoring import load_model_of
from tests.helpers.probe_server import serve_process


async def answered(url: str, model: str, questions: Sequence[str], n_clients: int) -> list[tuple[float, float]]:
    """Request an answer to each question, and return the confidences and novelties."""
    free = asyncio.Semaphore(n_clients)
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=600, max_retries=0) as client:

        async def ask(question: str) -> tuple[float, float]:
            async with free:
                answer = await client.chat.completions.create(
                    model=model, messages=[{"role": "user", "content": question}], max_tokens=4
                )
            found: Any = answer.choices[0].model_extra
            return found["confidence"], found["novelty"]

        return await asyncio.gather(*map(ask, questions))


async def rate(url: str, questions: Sequence[str], n_clients: int) -> float:
    """Return the number of questions scored per second, with one question per request."""
    free = asyncio.Semaphore(n_clients)
    limits = httpx.Limits(max_connections=n_clients)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:

        async def score(question: str) -> None:
            async with free:
                (await client.post("/v1/score", json={"questions": [question]})).raise_for_status()

        await asyncio.gather(*map(score, questions[:n_clients]))  # connect
        start = time.perf_counter()
        await asyncio.gather(*map(score, questions))
        return len(questions) / (time.perf_counter() - start)


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--probe", help="folder of a saved probe (default: the probe of the newest run)")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=101)
    parser.add_argument("--scored", type=int, default=256, help="number of questions used to measure the throughput")
    options = parser.parse_args()
    probe = options.probe or str(max(Path("runs").glob("*/probe"), key=lambda path: path.stat().st_mtime))
    loaded = load_probe(probe)
    model, tokenizer = load_model_of(loaded)
    attached, name = loaded.attach(model, tokenizer), str(loaded.config["model"]["id"])
    facts = [question.text or "" for question in load_questions("facts")]
    questions = [facts[i % len(facts)] for i in range(options.requests)]
    with serve_process("--probe", probe) as (_, url):
        start = time.perf_counter()
        found = asyncio.run(answered(url, name, questions, options.clients))
        seconds = time.perf_counter() - start
        ids = torch.tensor([attached._encode(facts[0], None)[0]], device=model.device)
        with httpx.Client(base_url=url) as client:

            def over_http() -> None:
                client.post("/v1/score", json={"questions": [facts[0]]}).raise_for_status()

            @torch.inference_mode()
            def in_process() -> None:
                model(input_ids=ids, use_cache=False, logits_to_keep=1)

            _, latency, one_pass = alternating(over_http, in_process, options.pairs)
        scored = [facts[i % len(facts)] for i in range(options.scored)]
        rates = {n: [asyncio.run(rate(url, scored, n)) for _ in range(3)] for n in (1, options.clients)}
    expected = attached.score(questions)
    differences = {
        field: max(abs(a - b) for a, b in zip(values, getattr(expected, field).tolist(), strict=True))
        for field, values in zip(("confidence", "novelty"), zip(*found, strict=True), strict=True)
    }
    per_second = {n: statistics.median(of_runs) for n, of_runs in rates.items()}
    value = {
        "largest difference": differences["confidence"],
        "p50 over a forward pass": latency / one_pass,
        "throughput over sequential": per_second[options.clients] / per_second[1],
    }
    report(
        "serving",
        value,
        "≤ 1e-4, ≤ 1.3, ≥ 2",
        value["largest difference"] <= 1e-4
        and value["p50 over a forward pass"] <= 1.3
        and value["throughput over sequential"] >= 2,
        differences=differences,
        seconds_of_score=latency,
        seconds_of_pass=one_pass,
        scored_per_second=per_second,
        answers_per_second=len(questions) / seconds,
        requests=len(questions),
        clients=options.clients,
        prompt_tokens=ids.shape[1],
        dtype=str(model.dtype).removeprefix("torch."),
    )


if __name__ == "__main__":
    main()
