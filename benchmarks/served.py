"""Compare `transformers serve` with the local sampler, both with SmolLM2-135M-Instruct.

The accuracies must agree. Options that the server does not support must raise an error.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from benchmarks.result import report
from extract import StoreRecipe, grade, sample
from extract.errors import InputError
from extract.models.embedded import embedded_model_folder
from extract.policy import Decoding
from extract.sampling.server.policy import Server
from extract.store.store import Store
from tests.helpers.serving_stub import faults
from tests.helpers.transformers_server import DRAWS, prompt_lengths, transformers_serve


def refusal(folder: Path, recipe: StoreRecipe) -> str:
    """Sample answers. Return the error message, or an empty string if there is no error."""
    try:
        sample(str(folder), recipe)
    except InputError as error:
        return str(error)
    return ""


def accuracies(store: Store) -> dict[str, float]:
    """Return the fraction of right answers to each question."""
    table = store.grades.read("short").to_pandas()
    return table.groupby("question_id")["right"].mean().to_dict()


def difference(a: dict[str, float], b: dict[str, float]) -> tuple[float, float]:
    """Return the 95 % interval (Student's t) for the mean difference between paired accuracies."""
    of_question = np.array([a[id_] - b[id_] for id_ in b])
    half = student.ppf(0.975, len(of_question) - 1) * of_question.std(ddof=1) / np.sqrt(len(of_question))
    return float(of_question.mean() - half), float(of_question.mean() + half)


def compared(store: Store, local: Store, n_answers: int) -> dict[str, Any]:
    """Compare the results from the server with those from the local sampler."""
    rows = store.samples.read().select(["question_id", "sample"]).to_pylist()
    a, b = accuracies(store), accuracies(local)
    low, high = difference(a, b)
    return {
        "served": float(np.mean(list(a.values()))),
        "local": float(np.mean(list(b.values()))),
        "difference": [low, high],
        "each once": len({tuple(row.values()) for row in rows}) == len(rows) == n_answers,
        "same prompts": prompt_lengths(store) == prompt_lengths(local),
    }


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--k", type=int, default=4)
    parser.add_argument("--local_k", type=int, default=20)
    options = parser.parse_args()
    model = embedded_model_folder()
    common: dict[str, Any] = {"n_questions": options.questions, "policy": Decoding()}
    with tempfile.TemporaryDirectory() as name, transformers_serve(model) as url, faults(url, stall=90) as proxy:
        folder = Path(name)

        def served(**server: Any) -> StoreRecipe:
            asked = Server(
                **{"url": url, "max_concurrency": 8, "timeout": 60, "logprobs": False, "extra_body": DRAWS, **server}
            )
            return StoreRecipe(**common, sampler="server", model=model.name, k=options.k, server=asked)

        refused = {
            "greedy": refusal(folder / "greedy", served(extra_body={})),
            "n": refusal(folder / "n", served(n=options.k)),
            "logprobs": refusal(folder / "logprobs", served(logprobs=True)),
            "model": refusal(folder / "model", replace(served(), model="another")),
        }
        local = sample(str(folder / "local"), StoreRecipe(**common, model=str(model), k=options.local_k))
        grade(str(local.path), "short")
        seconds, results = {}, {}
        for way, recipe in {"direct": served(), "behind the proxy": served(url=proxy.url, attempts=30)}.items():
            start = time.perf_counter()
            store = sample(str(folder / way), recipe)
            seconds[way] = time.perf_counter() - start
            grade(str(store.path), "short")
            results[way] = compared(store, local, options.questions * options.k)
        broken = dict(proxy.faults())
    report(
        "served",
        results,
        "each answer once, as many prompt tokens as locally, 0 in the 95 % interval for the difference; four refusals",
        all(
            r["each once"] and r["same prompts"] and r["difference"][0] <= 0 <= r["difference"][1]
            for r in results.values()
        )
        and all(refused.values()),
        seconds=seconds,
        proxy=broken,
        refused={name: line.replace(url, "URL") for name, line in refused.items()},
    )


if __name__ == "__main__":
    main()
