"""Out-of-fold ridge regression of accuracies on fixed features, for many permutations of the accuracies."""

import torch
from torch import Tensor

#: Candidate penalties, relative to the sum of squares of the centred features.
_PENALTIES = torch.logspace(-4, 1, 11, dtype=torch.float64)
#: Maximum number of elements (draws × questions) in memory at once.
_CHUNK = 2**22


def out_of_fold(features: Tensor, accuracy: Tensor, fold: Tensor) -> Tensor:
    r"""Predict the accuracies of each fold with a ridge regression fitted to the other folds.

    The penalty λ minimises the generalised cross-validation score ‖y − ŷ‖² / (n − 1 − tr H)² (Golub, Heath and Wahba,
    Technometrics 21, 1979). Here, y contains the n training accuracies, and X the centred features. The fit is ŷ = ȳ +
    H (y − ȳ), where H = X (XᵀX + λI)⁻¹ Xᵀ.

    Args:
        features: Features, [question, feature] float64.
        accuracy: Accuracies, [draw, question] float64.
        fold: Fold of each question, [question] int64.

    Returns:
        Predictions, [draw, question] float64.
    """
    predicted = torch.empty_like(accuracy)
    for test in (fold == number for number in fold.unique()):
        mean, y = features[~test].mean(0), accuracy[:, ~test]
        y_mean = y.mean(1, keepdim=True)
        x = features[~test] - mean
        squares, v = torch.linalg.eigh(x.T @ x)
        kept = squares > 1e-10 * features.square().sum()  # drops directions that are constant up to rounding
        squares, v = squares[kept], v[:, kept]
        projected = (y - y_mean) @ (x @ v / squares.sqrt())
        shrinkage = squares / (squares + _PENALTIES[:, None] * squares.sum())  # [penalty, component]
        outside = (y - y_mean).square().sum(1, keepdim=True) - projected.square().sum(1, keepdim=True)
        residual = outside + projected.square() @ (1 - shrinkage).square().T
        chosen = (residual / (len(x) - 1 - shrinkage.sum(1)).square()).argmin(1)
        predicted[:, test] = y_mean + projected * (shrinkage / squares.sqrt())[chosen] @ v.T @ (features[test] - mean).T
    return predicted


def aurocs(predicted: Tensor, accuracy: Tensor, fold: Tensor) -> Tensor:
    """Compute the `capability_auroc` of each row of predictions. Only questions from the same fold are compared.

    `predicted` and `accuracy` have shape [draw, question], and `fold` has shape [question]. The result has shape
    [draw]. A value is ½ if there is no pair of a right and a wrong answer to compare.
    """
    won, pairs = torch.zeros(2, len(predicted), dtype=torch.float64)
    for test in (fold == number for number in fold.unique()):
        score, order = predicted[:, test].sort(1)
        right = accuracy[:, test].gather(1, order)
        same_question = (right * (1 - right)).sum(1)
        n_wrong = torch.nn.functional.pad((1 - right).cumsum(1), (1, 0))  # column i: among the i lowest scores
        below, up_to = (n_wrong.gather(1, torch.searchsorted(score, score, right=last)) for last in (False, True))
        won += (right * (below + up_to) / 2).sum(1) - same_question / 2
        pairs += right.sum(1) * (1 - right).sum(1) - same_question
    return torch.where(pairs > 1e-12, won / pairs, 0.5)


def cross_validate(features: Tensor, accuracy: Tensor, fold: Tensor, n_draws: int, seed: int) -> tuple[Tensor, Tensor]:
    """Compute out-of-fold predictions of the observed accuracies and of random permutations of them.

    Returns:
        - Predictions of the observed accuracies, [question] float64.
        - AUROCs of the predictions of the permuted accuracies, [draw] float64.
    """
    generator, step = torch.Generator().manual_seed(seed), max(1, _CHUNK // len(accuracy))
    values = []
    for start in range(0, n_draws, step):
        orders = torch.rand(min(step, n_draws - start), len(accuracy), generator=generator).argsort(1)
        drawn = torch.cat([accuracy[None], accuracy[orders]])
        predicted = out_of_fold(features, drawn, fold)
        values.append(aurocs(predicted[1:], drawn[1:], fold))
    return predicted[0], torch.cat(values)
