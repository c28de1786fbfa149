"""Measure the speed of sampling answers of different lengths, in float32 and bfloat16.

All methods generate answers of the same preset lengths (8 to 256 tokens, about 40 on average). When answers finish, the
sampler starts new ones in their place. It is compared with sequential batches, two workers, `generate`,
`generate_batch` (continuous batching), vLLM, and the matrix products of the linear layers alone.

The default model is SmolLM2-135M-Instruct, which `make install` installs. `--random` uses Llama-3.2-1B with random
weights, and prompts of random tokens. On a GPU, the two-worker run, the matrix products and (by default) vLLM are
skipped.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.result import report
from benchmarks.sampling import random_llama
from benchmarks.vllm import vllm_serve
from extract.models.embedded import embedded_model_folder
from extract.models.loading import DTYPES, end_tokens, load_model
from extract.policy import Decoding
from extract.prompts import PromptTemplate
from extract.questions import load_questions
from extract.sampling.local.batching import left_padded
from extract.sampling.local.draws import Drawn, draw, keyed_uniforms, question_key
from extract.sampling.local.token_sampler import TokenSampler

LONGEST, SHORTEST, MEAN = 256, 8, 32
TEMPERATURE, MAX_ROWS = 0.7, 320
N_WORKERS = 2


def answer_lengths(ids: Sequence[str], k: int) -> list[list[int]]:
    """Return the length of each answer in tokens, [question][sample]."""
    keys = np.array([question_key(1, id_) for id_ in ids], dtype=np.uint64)
    uniforms = keyed_uniforms(np.repeat(keys, k), np.tile(np.arange(k, dtype=np.uint64), len(ids)), 1)
    numbers = np.log1p(-uniforms) / math.log(1 - 1 / (MEAN + 1))
    return np.minimum(SHORTEST + numbers.astype(int), LONGEST).reshape(len(ids), k).tolist()


class Sides:
    """The functions that are timed. Each returns the number of answer tokens."""

    def __init__(
        self, dtype: str, n_questions: int, k: int, random: bool = False, worker: int = 0, n_workers: int = 1
    ) -> None:
        if random:
            self.model, self.tokenizer, prompts, _ = random_llama(n_questions, DTYPES[dtype])
            self.model.generation_config.eos_token_id = 0
            ids = [str(i) for i in range(n_questions)]
        else:
            self.model, self.tokenizer = load_model(dtype=dtype)
            questions = load_questions("facts")[:n_questions]
            ids = [question.id for question in questions]
            template = PromptTemplate("{question} Answer briefly.")
            prompts = [template.encode(self.tokenizer, question.text or "") for question in questions]
        self.max_rows = MAX_ROWS // n_workers
        self.ids, self.prompts = ids[worker::n_workers], prompts[worker::n_workers]
        self.k, self.lengths = k, answer_lengths(self.ids, k)
        self.n_tokens = sum(map(sum, self.lengths))
        self.end = end_tokens(self.model, self.tokenizer)
        self.decoding = Decoding(temperature=TEMPERATURE, max_new_tokens=LONGEST)

    @contextmanager
    def scheduled(self) -> Iterator[None]:
        """Make the sampler end each answer at its preset length.

        The random number for an answer's last token is set to 2. Given this value, the patched `draw` returns an end
        token.
        """
        lengths = {
            (question_key(self.decoding.seed, id_), j): length
            for id_, of_question in zip(self.ids, self.lengths, strict=True)
            for j, length in enumerate(of_question)
        }

        def uniforms(keys: Any, samples: Any, n_steps: int) -> Any:
            numbers = keyed_uniforms(keys, samples, n_steps)
            for row, key, sample in zip(numbers, keys.tolist(), samples.tolist(), strict=True):
                row[lengths[key, sample] - 1] = 2
            return numbers

        end = torch.tensor(self.end, device=self.model.device)

        def forced(logits: Tensor, numbers: Tensor, *settings: Any) -> Drawn:
            drawn, last = draw(logits, numbers.masked_fill(numbers == 2, 0.5), *settings), numbers == 2
            tokens = drawn.tokens.masked_fill(torch.isin(drawn.tokens, end), 100)
            return Drawn(tokens.masked_fill(last, self.end[0]), drawn.logprobs)

        local = "extract.sampling.local"
        with patch(f"{local}.token_sampler.keyed_uniforms", uniforms), patch(f"{local}.answer_batch.draw", forced):
            yield

    def sample(self, n_questions: int | None = None) -> int:
        """Run the local sampler on all questions at once, or on `n_questions` at a time."""
        sampler = TokenSampler(self.model, self.tokenizer, self.decoding, self.max_rows)
        step, n_tokens = n_questions or len(self.ids), 0
        with self.scheduled():
            for start in range(0, len(self.ids), step):
                some = slice(start, start + step)
                answers = sampler.sample(self.ids[some], self.prompts[some], range(self.k))
                n_tokens += sum(len(answer.token_ids) for answer in answers)
        return n_tokens

    @torch.inference_mode()
    def generate(self) -> int:
        """Run the model's own `generate`, with the sampler's batch size."""
        step = MAX_ROWS // self.k
        for start in range(0, len(self.ids), step):
            ids, mask = left_padded(self.prompts[start : start + step], pad=0, device=self.model.device)
            lengths = torch.tensor(self.lengths[start : start + step], device=ids.device).flatten()

            def force(
                tokens: Tensor, scores: Tensor, n_prompt: int = ids.shape[1], lengths: Tensor = lengths
            ) -> Tensor:
                ends = tokens.shape[1] - n_prompt == lengths - 1
                scores[:, self.end] = -torch.inf
                scores[ends] = -torch.inf
                scores[ends, self.end[0]] = 0
                return scores

            self.model.generate(
                ids,
                attention_mask=mask,
                do_sample=True,
                temperature=TEMPERATURE,
                top_k=0,
                top_p=1.0,
                max_new_tokens=LONGEST,
                num_return_sequences=self.k,
                pad_token_id=0,
                logits_processor=[force],
            )
        return self.n_tokens

    def generate_batch(self) -> int:
        """Generate answers with transformers' continuous batching, with one request per answer."""
        from transformers import ContinuousBatchingConfig, GenerationConfig

        config = GenerationConfig(do_sample=True, temperature=TEMPERATURE, top_k=0, top_p=1.0, max_new_tokens=LONGEST)
        batching = ContinuousBatchingConfig(max_batch_tokens=MAX_ROWS)
        n_tokens = 0
        with self.model.continuous_batching_context_manager(config, continuous_batching_config=batching) as manager:
            for prompt, lengths in zip(self.prompts, self.lengths, strict=True):
                for length in lengths:
                    manager.add_request(prompt, max_new_tokens=length, eos_token_id=-1)
            for _ in range(len(self.ids) * self.k):
                n_tokens += len(manager.get_result().generated_tokens)
        return n_tokens

    def vllm(self, url: str) -> int:
        """Sample from a running vLLM server, with one request per answer and at most `MAX_ROWS` open requests."""

        def request(prompt: list[int], length: int) -> int:
            body = {"model": embedded_model_folder().name, "prompt": prompt, "max_tokens": length}
            body |= {"temperature": TEMPERATURE, "ignore_eos": True}
            data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
            with urllib.request.urlopen(urllib.request.Request(f"{url}/completions", data, headers)) as reply:
                return json.load(reply)["usage"]["completion_tokens"]

        pairs = [(prompt, n) for prompt, lengths in zip(self.prompts, self.lengths, strict=True) for n in lengths]
        with ThreadPoolExecutor(MAX_ROWS) as pool:
            return sum(pool.map(request, *zip(*pairs, strict=True)))

    def limit(self) -> Callable[[], int]:
        """Return a function that computes only the matrix products of the sampler's linear layers."""
        passes: Counter[tuple[int, int]] = Counter()
        hook = self.model.model.layers[0].register_forward_pre_hook(
            lambda layer, inputs: passes.update([inputs[0].shape[:2]])
        )
        self.sample()
        hook.remove()
        layers = [layer for layer in self.model.modules() if isinstance(layer, nn.Linear)]
        inner = [layer for layer in layers if layer is not self.model.lm_head]

        @torch.inference_mode()
        def products() -> int:
            for (n_rows, n_tokens), times in passes.items():
                like = self.model.lm_head.weight
                inputs = {n: like.new_ones(n_rows, n_tokens, n) for n in {layer.in_features for layer in layers}}
                for _ in range(times):
                    for layer in inner:
                        nn.functional.linear(inputs[layer.in_features], layer.weight)
                    nn.functional.linear(inputs[self.model.lm_head.in_features][:, -1], self.model.lm_head.weight)
            return self.n_tokens

        return products


_worker: Sides  # of this worker process


def _load(n_threads: int, *settings: Any) -> None:
    global _worker
    torch.set_num_threads(n_threads)
    _worker = Sides(*settings)


def _sample() -> int:
    return _worker.sample()


@contextmanager
def workers(*settings: Any) -> Iterator[Callable[[], int]]:
    """Start worker processes, and divide the questions, rows and threads among them.

    Yields a function that samples with all workers.
    """
    with ExitStack() as stack:
        pools = [stack.enter_context(ProcessPoolExecutor(1, get_context("spawn"))) for _ in range(N_WORKERS)]
        n_threads = max(1, torch.get_num_threads() // N_WORKERS)
        for loading in [pool.submit(_load, n_threads, *settings, i, N_WORKERS) for i, pool in enumerate(pools)]:
            loading.result()
        yield lambda: sum(sampling.result() for sampling in [pool.submit(_sample) for pool in pools])


def tokens_per_second(action: Callable[[], int]) -> float:
    """Call a function that returns a number of tokens, and return the tokens per second."""
    start = time.perf_counter()
    n_tokens = action()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return n_tokens / (time.perf_counter() - start)


def main() -> None:
    """Print the measured speeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--questions", type=int, default=256)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--pairs", type=int, default=3)
    cuda, rates = torch.cuda.is_available(), dict[str, dict[str, float]]()
    parser.add_argument("--others", nargs="*", default=["generate", "generate_batch", *([] if cuda else ["vllm"])])
    options = parser.parse_args()
    for dtype in options.dtypes:
        settings = dtype, options.questions, options.k, options.random
        sides = Sides(*settings)
        actions: dict[str, Callable[[], int]] = {
            "refilled": sides.sample,
            "batches": partial(sides.sample, MAX_ROWS // options.k),
        }
        if not cuda:
            actions["limit"] = sides.limit()
        measured: dict[str, list[float]] = {name: [] for name in actions}
        for _ in range(options.pairs):
            for name, action in actions.items():
                measured[name].append(tokens_per_second(action))
        rates[dtype] = {name: statistics.median(values) for name, values in measured.items()}
        if not cuda:
            with workers(*settings) as sample:
                rates[dtype]["workers"] = tokens_per_second(sample)
        for name in options.others:
            if name == "vllm":
                with vllm_serve(embedded_model_folder(), dtype) as url:
                    tokens_per_second(partial(sides.vllm, url)) if options.pairs > 1 else None  # warm-up
                    rates[dtype][name] = tokens_per_second(partial(sides.vllm, url))
            else:
                rates[dtype][name] = tokens_per_second(getattr(sides, name))
    ratios = {
        dtype: {
            f"{own} / {name}": of_dtype[own] / rate
            for own in ("refilled", "workers")
            if own in of_dtype
            for name, rate in of_dtype.items()
        }
        for dtype, of_dtype in rates.items()
    }
    bars: dict[str, dict[str, float]] = (
        {"bfloat16": {"refilled / generate": 1.3}}
        if cuda
        else {
            "float32": {"refilled / batches": 1.5, "refilled / generate": 4, "workers / vllm": 2},
            "bfloat16": {"refilled / limit": 0.65, "refilled / vllm": 3},
        }
    )
    report(
        "refill",
        {"ratio": ratios, "tokens per second": rates},
        f"ratios of tokens per second: {bars}",
        all(ratios[dtype].get(name, math.inf) >= bar for dtype in rates for name, bar in bars[dtype].items()),
        questions=options.questions,
        k=options.k,
        tokens=sides.n_tokens,
        pairs=options.pairs,
        threads=torch.get_num_threads(),
    )


if __name__ == "__main__":
    main()
