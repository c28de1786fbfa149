"""Score samples with uqlm's own scorers.

`benchmarks.parity` runs this script in the environment .peers/uqlm. The script reads JSON from standard
input and writes {method: values} to standard output.
"""

import itertools
import json
import sys
from importlib.metadata import version

import numpy as np
from uqlm.black_box import CosineScorer, MatchScorer
from uqlm.nli.nli import NLI
from uqlm.scorers import SemanticEntropy
from uqlm.white_box import SampledLogprobsScorer, SingleLogprobsScorer


class NeverEntails(NLI):
    """Classifier that finds a contradiction in every pair, so that only identical texts are equivalent."""

    def __init__(self) -> None:
        self.probabilities, self.label_mapping = {}, ["contradiction", "neutral", "entailment"]

    def predict_batch(self, pairs: list[tuple[str, str]]) -> np.ndarray:
        """Return label probabilities [pair, label]. Every pair is labelled a contradiction."""
        return np.tile([1.0, 0.0, 0.0], (len(pairs), 1))


class GivenEmbeddings(CosineScorer):
    """Cosine scorer with precomputed embeddings. Instead of texts, it takes the indices of embeddings, as strings."""

    def __init__(self, embeddings: list[list[float]]) -> None:
        self.embeddings, self.max_length = np.array(embeddings), 2000

    def _get_embeddings(self, *texts: list[str]) -> tuple[np.ndarray, ...]:
        return tuple(self.embeddings[[int(text) for text in of]] for of in texts)


def main() -> None:
    """Print the values of all methods as one line of JSON."""
    given = json.load(sys.stdin)
    questions = given["questions"]
    clusters = [[str(label) for label in of] for of in questions["cluster"]]
    logprobs = [[as_tokens(one) for one in of] for of in questions["logprobs"]]
    first, others = [of[0] for of in logprobs], [of[1:] for of in logprobs]
    entropy = SemanticEntropy(nli=NeverEntails(), use_best=False, prompts_in_nli=False)
    semantic = entropy.score(
        responses=[of[0] for of in clusters],
        sampled_responses=[of[1:] for of in clusters],
        logprobs_results=first,
        sampled_logprobs_results=others,
        show_progress_bars=False,
    ).data
    answers = [as_tokens(one) for one in given["answers"]["logprobs"]]
    single = SingleLogprobsScorer().evaluate(answers)
    sampled = SampledLogprobsScorer(["monte_carlo_probability"])
    found = {
        "discrete semantic entropy": semantic["discrete_entropy_values"],
        "token-probability semantic entropy": semantic["tokenprob_entropy_values"],
        "num_semantic_sets": semantic["num_semantic_sets"],
        "min_probability": single["min_probability"],
        "sequence_probability, normalized": single["sequence_probability"],
        "sequence_probability": SingleLogprobsScorer(length_normalize=False).evaluate(answers)["sequence_probability"],
        "monte_carlo_probability": sampled.monte_carlo_probability([""] * len(first), first, others),
        "exact_match of the most frequent answer": MatchScorer().evaluate(
            [max(of, key=of.count) for of in clusters], clusters
        ),
        "cosine_sim, mean over answers": mean_cosines(questions["embedding"]),
    }
    values = {name: np.asarray(values, dtype=float).tolist() for name, values in found.items()}
    print(json.dumps({"version": version("uqlm"), "values": values}))


def as_tokens(logprobs: list[float]) -> list[dict[str, float]]:
    """Return log-probabilities in the format of OpenAI's API."""
    return [{"logprob": one} for one in logprobs]


def mean_cosines(embeddings: list[list[list[float]]]) -> list[float]:
    """For each question, return the mean of (1 + cos) / 2 over all pairs i ≠ j of its answers."""
    ends = np.cumsum([0, *map(len, embeddings)])
    names = [[str(row) for row in range(*between)] for between in itertools.pairwise(ends)]
    others = [[other for other in of if other != name] for of in names for name in of]
    scorer = GivenEmbeddings([row for of in embeddings for row in of])
    scores = scorer.evaluate([name for of in names for name in of], others)
    return [float(np.mean(scores[slice(*between)])) for between in itertools.pairwise(ends)]


if __name__ == "__main__":
    main()
