"""Compare training-free methods and metrics with their implementations in lm-polygraph and uqlm on the same samples.

The samples are 10 answers to each of 60 questions of the default store. The question-level methods use the 5 answers
with even indices. Each package runs in the environment that `make peers` creates.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.quality import recipe_of
from benchmarks.result import report
from datamodules import FeatureDataModule
from extract.commands import ask, make_store, read
from extract.errors import InputError
from extract.store.shards import Scope
from probes.baselines import similarity
from probes.baselines.registry import BASELINES
from probes.metrics.functional import auprc, aurc, capability_auroc, prediction_rejection_ratio, spearman

ROOT = Path(__file__).parents[1]
PEERS = ("lm-polygraph", "uqlm")
#: Middle layer of the 31 layers.
LAYER = 15
BAR, N_METHODS = 1e-6, 12
Values = dict[str, NDArray[np.float64]]


class Pair(NamedTuple):
    """A method or metric of another package, and the corresponding baseline or metric of this package.

    Attributes:
        theirs: Name in score_lm_polygraph.py or score_uqlm.py.
        ours: Name of our baseline or metric.
        scope: Whether questions or answers are scored.
        formula: Their value as a function of ours, for the table.
        change: Function that converts our uncertainty (the negated score) or our metric to their value.
        same: Whether their value and our converted value should be equal.
        ascii_only: Whether to compare only questions whose answers are all ASCII.
    """

    theirs: str
    ours: str
    scope: Scope = "question"
    formula: str = "{}"
    change: Callable[[NDArray[np.float64]], NDArray[np.float64]] = lambda value: value
    same: bool = True
    ascii_only: bool = False


PAIRS = {
    "lm-polygraph": [
        Pair("Perplexity", "mean_nll", "sample", "{} of an answer"),
        Pair("MaximumSequenceProbability", "sequence_nll", "sample", "{} of an answer"),
        Pair("MeanTokenEntropy", "mean_entropy", "sample", "{} of an answer"),
        Pair("MonteCarloSequenceEntropy", "sequence_nll"),
        Pair("MonteCarloNormalizedSequenceEntropy", "mean_nll"),
        Pair("LexicalSimilarity", "lexical_similarity", "question", "{} − 1", lambda u: u - 1, ascii_only=True),
        Pair("NumSemSets", "semantic_sets"),
        Pair("SemanticEntropyEmpirical", "semantic_entropy"),
        Pair("DegMat, Jaccard", "degree_jaccard"),
        Pair("Eccentricity, Jaccard", "eccentricity_jaccard"),
        Pair("EigValLaplacian, Jaccard", "eigenvalue_sum_jaccard"),
        Pair("KernelLanguageEntropy, jaccard", "kernel_entropy_jaccard"),
        Pair("DegMat, embedding", "seu", "question", "4/5 · {}", lambda u: u * 4 / 5),
        Pair("Eccentricity, embedding", "eccentricity_embedding"),
        Pair("EigValLaplacian, embedding", "eigenvalue_sum_embedding"),
        Pair("KernelLanguageEntropy, embedding", "kernel_entropy_embedding"),
        Pair("EigenScore", "eigenscore"),
        Pair("prr 1.0", "prr"),
        Pair("prr 0.5", "prr_50"),
        Pair("spearmanr", "spearman"),
        Pair("roc-auc", "auroc"),
        Pair("pr-auc", "auprc"),
        Pair("rcc-auc", "aurc"),
        Pair("LexicalSimilarity, stemmed", "lexical_similarity", "question", "{} − 1", lambda u: u - 1, same=False),
        Pair("SemanticEntropy", "semantic_entropy_likelihood", same=False),
        Pair("prr 1.0, random orders drawn", "prr", same=False),
        Pair("prr 0.5, random orders drawn", "prr_50", same=False),
    ],
    "uqlm": [
        Pair("discrete semantic entropy", "semantic_entropy"),
        Pair("token-probability semantic entropy", "semantic_entropy_likelihood"),
        Pair("num_semantic_sets", "semantic_sets"),
        Pair("exact_match of the most frequent answer", "consistency", change=np.negative),
        Pair("cosine_sim, mean over answers", "seu", "question", "1 − {}/2", lambda u: 1 - u / 2),
        Pair("min_probability", "max_nll", "sample", "exp(−{}) of an answer", lambda u: np.exp(-u)),
        Pair("sequence_probability, normalized", "mean_nll", "sample", "exp(−{}) of an answer", lambda u: np.exp(-u)),
        Pair("sequence_probability", "sequence_nll", "sample", "exp(−{}) of an answer", lambda u: np.exp(-u)),
        Pair("monte_carlo_probability", "mean_nll", "question", "exp(−{})", lambda u: np.exp(-u), same=False),
    ],
}


def make_samples(store: str, n_questions: int) -> FeatureDataModule:
    """Create or complete the store, and return its data."""
    make_store(store, replace(recipe_of("default"), n_questions=n_questions), "short", ["hidden"])
    read(store, ["hidden", "tokens"], "sample", [LAYER])
    ask(store, ["text_embedding"])
    data = FeatureDataModule(store)
    data.load()
    return data


def uncertainty(data: FeatureDataModule, name: str, scope: Scope = "question") -> NDArray[np.float64]:
    """Return the negated score of a baseline, [question] or [answer]."""
    return -BASELINES[name].scores[scope](data, {}).double().numpy()


def samples(data: FeatureDataModule) -> dict[str, Any]:
    """Return the inputs for both packages. Question-level methods get only the answers with even indices."""
    answers, signals = data.table.answers, data.store.signals
    entropy = signals.read_ragged("tokens", signals.keys("tokens", "sample")[0])
    states = signals.read("hidden", f"{LAYER}/last_answer", "sample").double().numpy()
    embeddings = signals.read("text_embedding", "0/answer", "sample").double().numpy()
    logprobs = [
        values[:n]
        for values, n in zip(data.store.samples.read()["logprobs"].to_pylist(), entropy.lengths.tolist(), strict=True)
    ]
    halves = answers.rows_by_question(len(data.table.ids), ~answers.held_out)
    texts = [[answers.text[row] for row in rows] for rows in halves]
    labels = {answer: i for i, answer in enumerate(dict.fromkeys(answers.answer))}
    return {
        "questions": {
            "text": texts,
            "logprobs": [[logprobs[row] for row in rows] for rows in halves],
            "cluster": [[labels[answers.answer[row]] for row in rows] for rows in halves],
            "states": [states[rows].tolist() for rows in halves],
            "embedding": [embeddings[rows].tolist() for rows in halves],
            "similarity_jaccard": [similarity.jaccard(of).tolist() for of in texts],
            "similarity_embedding": [similarity.cosine(embeddings[rows]).tolist() for rows in halves],
        },
        "answers": {"logprobs": logprobs, "entropy": [one.tolist() for one in entropy.rows()]},
        "metrics": {
            "uncertainty": uncertainty(data, "mean_nll").tolist(),
            "accuracy": data.table.accuracy.tolist(),
            "nll": answers.mean_nll.tolist(),
            "right": answers.right.tolist(),
        },
    }


def python_of(peer: str) -> Path:
    """Return the Python interpreter in the environment of a package."""
    environment = ROOT / ".peers" / peer
    if not (environment / ".ready").exists():
        raise InputError(f"Expected {peer} to be installed in '{environment}', but it is not. Run `make peers`.")
    return environment / "bin" / "python"


def score(peer: str, given: dict[str, Any]) -> dict[str, Any]:
    """Run the package `peer` in its own environment, on the inputs `given`. Return its version and the values."""
    script = Path(__file__).parent / "peers" / f"score_{peer.replace('-', '_')}.py"
    done = subprocess.run(
        [python_of(peer), script], input=json.dumps(given), capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = "".join(done.stderr.strip().splitlines()[-1:])
        raise InputError(f"Expected {peer} to score the samples, but '{script}' failed: {reason}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def our_metrics(uncertainty: list[float], accuracy: list[float], nll: list[float], right: list[float]) -> Values:
    """Compute the metrics of `PAIRS` as score_lm_polygraph.py does."""
    scores, share, of_answers, is_right = (
        torch.tensor(values, dtype=torch.float64) for values in (uncertainty, accuracy, nll, right)
    )
    questions, answers = (
        (-values, known_right, torch.ones_like(values))
        for values, known_right in ((scores, share), (of_answers, is_right))
    )
    values = {
        "prr": prediction_rejection_ratio(*questions),
        "prr_50": prediction_rejection_ratio(*questions, max_rejection=0.5),
        "spearman": spearman(*questions),
        "auroc": capability_auroc(*answers),
        "auprc": auprc(*answers),
        "aurc": aurc(*answers),
    }
    return {name: value.reshape(1).numpy() for name, value in values.items()}


def compared(data: FeatureDataModule, given: dict[str, Any], peer: str, theirs: Values) -> Iterator[tuple[Pair, float]]:
    """Yield each pair in `PAIRS[peer]`, and the largest difference between the peer's values and ours."""
    metrics = our_metrics(**given["metrics"])
    is_ascii = np.array([all(map(str.isascii, texts)) for texts in given["questions"]["text"]])
    for pair in PAIRS[peer]:
        here = metrics[pair.ours] if pair.ours in metrics else uncertainty(data, pair.ours, pair.scope)
        difference = np.abs(pair.change(here) - np.array(theirs[pair.theirs]))
        yield pair, float((difference[is_ascii] if pair.ascii_only else difference).max())


def main() -> None:
    """Run the parity benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", default="stores/parity")
    parser.add_argument("--questions", type=int, default=60)
    options = parser.parse_args()
    value, details, equal = {}, {}, []
    try:
        for peer in PEERS:
            python_of(peer)  # before anything is sampled
        data = make_samples(options.store, options.questions)
        given = samples(data)
        for peer in PEERS:
            scored = score(peer, given)
            rows = list(compared(data, given, peer, scored["values"]))
            for pair, difference in rows:
                print(f"| {peer} | `{pair.theirs}` | {pair.formula.format(f'`{pair.ours}`')} | {difference:.1e} |")
            same = {pair.theirs: difference for pair, difference in rows if pair.same}
            equal += [difference <= BAR for difference in same.values()]
            value[f"{peer} {scored['version']}"] = {"methods": len(same), "largest difference": max(same.values())}
            details[f"differences_{peer}"] = {pair.theirs: difference for pair, difference in rows}
    except InputError as error:
        sys.exit(f"error: {error}")
    report(
        "parity",
        value,
        f"at least {N_METHODS} methods, all equal to {BAR:g}",
        len(equal) >= N_METHODS and all(equal),
        **details,
        n_questions=len(data.table.ids),
    )


if __name__ == "__main__":
    main()
