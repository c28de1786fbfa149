"""Compare the request rates of the server sampler and a plain `AsyncOpenAI` loop, on a local stub server.

The sampler's peak memory is measured for `--requests` requests and for a tenth of that number.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from itertools import count
from pathlib import Path

from openai import AsyncOpenAI

from benchmarks.memory import peak_mb
from benchmarks.result import alternating, report
from extract import StoreRecipe, sample
from extract.policy import Decoding
from extract.sampling.server.policy import Server
from tests.helpers.serving_stub import MODEL, Running, stub
from tests.helpers.tiny import write_questions

IN_FLIGHT, K = 500, 4


async def bare_loop(url: str, prompts: list[str]) -> list[str | None]:
    """Request K answers to each prompt with only the openai client and a semaphore."""
    free = asyncio.Semaphore(IN_FLIGHT)
    # 500 concurrent connections can take longer than the default limit of 5 seconds
    async with AsyncOpenAI(base_url=url, api_key="none", timeout=600) as api:

        async def ask(prompt: str, seed: int) -> str | None:
            async with free:
                reply = await api.chat.completions.create(
                    model=MODEL,
                    messages=[{"role": "user", "content": prompt}],
                    temperature=1.0,
                    max_tokens=16,
                    seed=seed,
                    logprobs=True,
                )
            return reply.choices[0].message.content

        return await asyncio.gather(*(ask(prompt, seed) for seed in range(K) for prompt in prompts))


def sampled(store: Path, questions: Path, server: Running) -> None:
    """Run the server sampler with the same requests as `bare_loop`."""
    options = Server(url=server.url, max_concurrency=IN_FLIGHT)
    policy = Decoding(temperature=1.0)
    recipe = StoreRecipe(
        str(questions), sampler="server", model=MODEL, k=K, policy=policy, server=options, block_size=1024
    )
    sample(str(store), recipe)


def command(store: Path, questions: Path, server: Running) -> list[str]:
    """Return the command line of the sampler."""
    given = {
        "store": store,
        "questions": questions,
        "sampler": "server",
        "model": MODEL,
        "k": K,
        "block_size": 1024,
        "policy.temperature": 1.0,
        "server.url": server.url,
        "server.max_concurrency": IN_FLIGHT,
    }
    return ["-m", "extract", "sample", *(f"--{name}={value}" for name, value in given.items())]


def main() -> None:
    """Run the request-rate benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, stub() as server:
        folder, numbers = Path(name), count()
        questions = write_questions(folder / "questions.jsonl", options.requests // K)
        prompts = [json.loads(line)["text"] for line in questions.read_text().splitlines()]
        ratio, bare, ours = alternating(
            lambda: asyncio.run(bare_loop(server.url, prompts)),
            lambda: sampled(folder / f"store-{next(numbers)}", questions, server),
            options.pairs,
            warm=0,
        )
        peaks = {}
        for n in (options.requests // 10, options.requests):
            part = write_questions(folder / f"{n}.jsonl", n // K)
            peaks[n] = peak_mb(command(folder / f"peak-{n}", part, server)) * 1e6 / 2**20
    growth = peaks[options.requests] / peaks[options.requests // 10]
    report(
        "served_rate",
        {"rate": ratio, "peak_mib": peaks, "growth": growth},
        "rate ≥ 0.7 of the bare loop's; peak equal within 10 % and at most 500 MiB",
        ratio >= 0.7 and growth <= 1.1 and max(peaks.values()) <= 500,
        requests=options.requests,
        max_concurrency=IN_FLIGHT,
        requests_per_second={"bare": options.requests / bare, "sampler": options.requests / ours},
        pairs=options.pairs,
    )


if __name__ == "__main__":
    main()
