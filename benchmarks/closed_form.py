"""Compare our closed-form solvers with a loop over scikit-learn, for all layers and five penalties.

Both sides fit soft labels on the training split of the default store. For `LogisticRegression`, each soft label becomes
two rows with weights p̂ and 1 − p̂. The ridge penalties are the logistic-regression penalties divided by m(1 − m),
where m is the mean target.

The figures are the ratio of the times (one BLAS thread) and the differences in AUROC on held-out questions.
scikit-learn is timed with its default tolerance. This tolerance changes its AUROC by up to 0.002, so our AUROCs are
compared with its AUROCs at convergence.
"""

from __future__ import annotations

import argparse
import warnings

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits
from torch import Tensor

from benchmarks.quality import default_data
from benchmarks.result import alternating, report
from datamodules import Batch
from probes.fitting import solvers
from probes.fitting.standardiser import standardiser
from probes.fitting.training import PENALTIES
from probes.metrics.functional import capability_auroc

BAR, BAR_AUROC = 0.1, 0.002


def looped(features: Tensor, target: Tensor, **options: float) -> tuple[Tensor, Tensor]:
    """Fit scikit-learn's models one by one. Return weights [penalty, feature, d] and biases [penalty, feature]."""
    share = target.numpy()
    labels = np.repeat([1.0, 0.0], len(share))
    weight = np.concatenate([share, 1 - share])
    counts = weight > 0
    found, biases = [], []
    for penalty in PENALTIES:
        for rows in features.numpy():
            twice = np.concatenate([rows, rows])[counts]
            model = LogisticRegression(C=1 / (penalty * len(share)), **options)
            model.fit(twice, labels[counts], sample_weight=weight[counts])
            found.append(torch.from_numpy(model.coef_[0]))
            biases.append(float(model.intercept_[0]))
    shape = len(PENALTIES), len(features)
    return torch.stack(found).reshape(*shape, -1).float(), torch.tensor(biases).reshape(shape)


def aurocs(features: Tensor, batch: Batch, found: tuple[Tensor, Tensor]) -> Tensor:
    """Return the AUROC [penalty, feature] on the rows of a split, given features [feature, row, d]."""
    scores = torch.einsum("frd,pfd->pfr", features, found[0]) + found[1][..., None]
    return torch.stack([capability_auroc(one, batch.right, batch.known) for one in scores.flatten(0, 1)]).reshape(
        found[1].shape
    )


def main() -> None:
    """Run the benchmark and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    pairs = parser.parse_args().pairs
    warnings.simplefilter("ignore", ConvergenceWarning)
    threadpool_limits(1, user_api="blas")
    data = default_data()
    train, val, test = (data.batch(split) for split in ("train", "val", "test"))
    mean, scale = standardiser(train.features)
    fitted, validation, held_out = (
        ((batch.features - mean) / scale).transpose(0, 1).contiguous() for batch in (train, val, test)
    )
    average = float(train.target.mean())
    softer = [penalty / (average * (1 - average)) for penalty in PENALTIES]
    ways = {
        "ridge": lambda: solvers.ridge(fitted, train.target, softer),
        "logistic": lambda: solvers.logistic(fitted, train.target, PENALTIES),
    }
    reference = looped(fitted, train.target, tol=1e-9, max_iter=10_000)
    there, chosen = aurocs(held_out, test, reference), aurocs(validation, val, reference).argmax()
    value, details = {}, {}
    for name, solve in ways.items():
        ratio, ours, theirs = alternating(solve, lambda: looped(fitted, train.target), pairs, warm=1)
        found = solve()
        here, our_choice = aurocs(held_out, test, found), aurocs(validation, val, found).argmax()
        differences = here - there
        value[name] = {
            "time": ratio,
            "mean AUROC difference": float(differences.mean()),
            "largest AUROC difference": float(differences.abs().max()),
            "AUROC difference of the chosen": float(here.flatten()[our_choice] - there.flatten()[chosen]),
        }
        details |= {f"seconds_{name}": ours, f"seconds_looped_beside_{name}": theirs}
        details[f"standard_deviation_of_auroc_difference_{name}"] = float(differences.std())
    holds = (
        max(of_solver["time"] for of_solver in value.values()) <= BAR
        and abs(value["ridge"]["mean AUROC difference"]) <= BAR_AUROC
        and value["logistic"]["largest AUROC difference"] <= BAR_AUROC
    )
    report(
        "closed_form",
        value,
        f"≤ {BAR} of the time; ridge: mean AUROC within {BAR_AUROC}; logistic: every AUROC within {BAR_AUROC}",
        holds,
        **details,
        n_features=len(fitted),
        penalties=list(PENALTIES),
        rows=len(train.row),
        rows_held_out=len(test.row),
    )


if __name__ == "__main__":
    main()
