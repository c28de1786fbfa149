"""Score samples with lm-polygraph's own estimators and metrics.

`benchmarks.parity` runs this script in the environment .peers/lm-polygraph. The script reads JSON from standard
input and writes {method: values} to standard output.
"""

import json
import sys
from importlib.metadata import version

import numpy as np
from lm_polygraph import estimators, ue_metrics
from rouge_score.rouge_scorer import RougeScorer


def main() -> None:
    """Print the values of all methods as one line of JSON."""
    given = json.load(sys.stdin)
    questions, answers = given["questions"], given["answers"]
    stats = {
        "sample_texts": questions["text"],
        "sample_log_probs": [[sum(one) for one in of_question] for of_question in questions["logprobs"]],
        "sample_tokens": questions["logprobs"],  # of which only the lengths are used
        "sample_embeddings": questions["states"],
        "greedy_log_likelihoods": answers["logprobs"],
        "entropy": answers["entropy"],
        "semantic_classes_entail": classes(questions["cluster"]),
    }
    equal = np.array([np.equal.outer(cluster, cluster) for cluster in questions["cluster"]], dtype=float)
    unstemmed = estimators.LexicalSimilarity("rougeL")
    unstemmed.scorer = RougeScorer(["rougeL"], use_stemmer=False)
    jaccard = {"similarity_score": "Jaccard_score"}
    found = {
        "Perplexity": estimators.Perplexity()(stats),
        "MaximumSequenceProbability": estimators.MaximumSequenceProbability()(stats),
        "MeanTokenEntropy": estimators.MeanTokenEntropy()(stats),
        "MonteCarloSequenceEntropy": estimators.MonteCarloSequenceEntropy()(stats),
        "MonteCarloNormalizedSequenceEntropy": estimators.MonteCarloNormalizedSequenceEntropy()(stats),
        "LexicalSimilarity": unstemmed(stats),
        "LexicalSimilarity, stemmed": estimators.LexicalSimilarity("rougeL")(stats),
        "NumSemSets": estimators.NumSemSets()({**stats, **entailment(equal)}),
        "SemanticEntropyEmpirical": estimators.SemanticEntropy(class_probability_estimation="frequency")(stats),
        "SemanticEntropy": estimators.SemanticEntropy()(stats),
        "DegMat, Jaccard": estimators.DegMat(**jaccard)(stats),
        "Eccentricity, Jaccard": estimators.Eccentricity(**jaccard)(stats),
        "EigValLaplacian, Jaccard": estimators.EigValLaplacian(**jaccard)(stats),
        "EigenScore": estimators.EigenScore()(stats),
    }
    for name in ("jaccard", "embedding"):
        similarity = {**stats, **entailment(np.array(questions[f"similarity_{name}"]))}
        found[f"KernelLanguageEntropy, {name}"] = estimators.KernelLanguageEntropy()(similarity)
        found[f"DegMat, {name}"] = estimators.DegMat()(similarity)
        found[f"Eccentricity, {name}"] = estimators.Eccentricity()(similarity)
        found[f"EigValLaplacian, {name}"] = estimators.EigValLaplacian()(similarity)
    found |= metrics(**given["metrics"])
    values = {name: np.atleast_1d(np.asarray(values, dtype=float)).tolist() for name, values in found.items()}
    print(json.dumps({"version": version("lm-polygraph"), "values": values}))


def classes(clusters: list[list[int]]) -> dict[str, dict[int, list[list[int]]] | dict[int, list[int]]]:
    """Return clusters of answers in the format of lm-polygraph's semantic classes."""
    members = {
        i: [[j for j, one in enumerate(of) if one == label] for label in sorted(set(of))]
        for i, of in enumerate(clusters)
    }
    order = {i: [sorted(set(of)).index(label) for label in of] for i, of in enumerate(clusters)}
    return {"sample_to_class": order, "class_to_sample": members}


def entailment(similarity: np.ndarray) -> dict[str, np.ndarray]:
    """Treat similarities as probabilities of entailment, and the remainder as contradiction."""
    return {"semantic_matrix_entail": similarity, "semantic_matrix_contra": 1 - similarity}


def metrics(uncertainty: list[float], accuracy: list[float], nll: list[float], right: list[float]) -> dict[str, float]:
    """Compute metrics of `uncertainty` against `accuracy` for questions, and of `nll` against `right` for answers."""
    found, normalised = {}, ue_metrics.ue_metric.normalize(accuracy)
    for share in (1.0, 0.5):
        area = ue_metrics.PredictionRejectionArea(share)
        oracle = area(-np.array(accuracy), accuracy)
        expected, drawn = normalised.mean(), ue_metrics.ue_metric.get_random_scores(area, np.array(accuracy))
        for name, random in ((f"prr {share}", expected), (f"prr {share}, random orders drawn", drawn)):
            found[name] = ue_metrics.ue_metric.normalize_metric(area(uncertainty, accuracy), oracle, random)
    wrong = [1 - one for one in right]
    return found | {
        "spearmanr": ue_metrics.SpearmanRankCorrelation()(uncertainty, accuracy),
        "roc-auc": ue_metrics.ROCAUC()(np.array(nll), wrong),
        "pr-auc": ue_metrics.PRAUC()(np.array(nll), wrong),
        "rcc-auc": ue_metrics.RiskCoverageCurveAUC()(nll, right),
    }


if __name__ == "__main__":
    main()
