"""Compare probes that read all tokens of an answer with probes that read one state per answer.

The state is either the last token's or the mean over all tokens. All probes use the same answers, the same three layers
and the same folds. `best_sequence` is the sequence probe with the lowest validation loss in each fold.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.quality import recipe_of
from benchmarks.result import report
from datamodules import FeatureDataModule
from extract.commands import grade, read, sample
from extract.recipe import StoreRecipe
from probes.comparison.folds import fit, folds
from probes.registry import METHODS
from probes.report.evaluate import Scored, difference, estimate

STORE = "stores/sequence-facts"
LAYERS = (12, 18, 24)
SEQUENCE = ("attention", "multimax", "rolling", "softmax_sum")
#: Probes that read one state per answer: method and positions. The logistic probes are cross-fitted.
#: The probes trained with Adam use the splits of the sequence probes.
SINGLE = {
    "last_answer": ("response", ("last_answer",)),
    "mean_answer": ("response", ("mean_answer",)),
    "response": ("response", ("last_answer", "mean_answer")),
    "last_answer_adam": ("linear", ("last_answer",)),
    "mean_answer_adam": ("linear", ("mean_answer",)),
}
BEST = "best_sequence"


def recipe(n_questions: int) -> StoreRecipe:
    """Return the recipe of configs/brief.yaml, but with 5 answers of up to 64 tokens.

    The prompt asks for an answer in one sentence.
    """
    default = recipe_of("brief")
    prompt = replace(default.policy.prompt, template="{question} Answer in one sentence.")
    policy = replace(default.policy, prompt=prompt, max_new_tokens=64)
    return replace(default, n_questions=n_questions, k=5, policy=policy)


def make(n_questions: int) -> None:
    """Sample and grade the answers, and read the hidden states of their tokens."""
    sample(STORE, recipe(n_questions))
    grade(STORE, "short")
    read(STORE, ["hidden", "hidden_tokens"], "sample", LAYERS)


def data_of(signal: str, positions: tuple[str, ...], prefixes: bool = False) -> FeatureDataModule:
    """Return a datamodule with all usable answers in one split."""
    data = FeatureDataModule(STORE, target="response", signal=signal, positions=list(positions), prefixes=prefixes)
    data.load()
    return data


def out_of_fold(seed: int) -> tuple[dict[str, Scored], dict[str, float], dict[str, list[str]]]:
    """Return dicts keyed by probe: confidences with grades, total training times in seconds, and selections per fold.

    A selection is the feature (`layer/position`) that the probe reads in this fold. For `best_sequence`, it is the
    chosen probe, and there is no training time.
    """
    tokens = data_of("hidden_tokens", ("answer_tokens",))
    data = dict.fromkeys(SEQUENCE, tokens) | {name: data_of("hidden", where) for name, (_, where) in SINGLE.items()}
    every = tokens.every()
    n_rows, table = len(tokens.question_of), tokens.table
    confidence: dict[str, Tensor] = defaultdict(lambda: torch.full((n_rows,), torch.nan, dtype=torch.float64))
    fold, seconds, chosen = torch.full((n_rows,), -1), defaultdict[str, float](float), defaultdict[str, list[str]](list)
    for number, rows in enumerate(folds(table, every.question.unique(), 5, seed, 10)):
        losses = {}
        for name, of_probe in data.items():
            method = METHODS[SINGLE[name][0] if name in SINGLE else name]
            of_probe.use_split({split: questions.tolist() for split, questions in rows.items()})
            start = time.perf_counter()
            module = fit(method.load(), of_probe, method.epochs, seed)
            seconds[name] += time.perf_counter() - start
            test = of_probe.batch("test")
            with torch.no_grad():
                confidence[name][test.row] = module.predict(test.features).double()
            assert module.choice is not None
            chosen[name].append(module.choice.names[0])
            losses[name], fold[test.row] = module.val_figures["val/loss"], number
        best = min(SEQUENCE, key=losses.__getitem__)
        chosen[BEST].append(best)
        confidence[BEST][test.row] = confidence[best][test.row]
    own = every.row
    scored = {
        name: Scored(values[own], every.right, every.known, every.question, fold[own])
        for name, values in confidence.items()
    }
    return scored, seconds, chosen


def main() -> None:
    """Run the sequence benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=480)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    make(options.questions)
    scored, seconds, chosen = out_of_fold(options.seed)
    auroc = {name: estimate(method, "auroc") for name, method in scored.items()}
    differences = {f"{a} − {b}": difference(scored[a], scored[b], "auroc") for a in (*SEQUENCE, BEST) for b in SINGLE}
    method = scored[BEST]
    report(
        "sequence",
        {"auroc": auroc, "differences": differences},
        "stated",
        bool(torch.cat([one.confidence for one in scored.values()]).isfinite().all()),
        brier={name: estimate(one, "brier") for name, one in scored.items()},
        seconds_per_fit={name: total / 5 for name, total in seconds.items()},
        chosen=chosen,
        n_questions=method.n_questions,
        n_answers=len(method.confidence),
        accuracy=float(method.right.sum() / method.known.sum()),
        seed=options.seed,
    )


if __name__ == "__main__":
    main()
