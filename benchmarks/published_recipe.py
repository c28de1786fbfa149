"""The published probe that is most similar to the default probe.

The probe (capability calibration, arXiv 2602.13540) averages the hidden states over all layers, and then applies a
linear layer and a sigmoid. It is trained with SGD to predict the expected accuracy. The hyperparameters are chosen by
the squared error on the validation split.
"""

import torch
from torch import Tensor

from probes.comparison.out_of_fold import Comparison

LEARNING_RATES = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3)
MOMENTUM, WEIGHT_DECAY, BATCH, EPOCHS = 0.9, 0.01, 32, 100


def train(
    features: Tensor, target: Tensor, val_features: Tensor, val_target: Tensor, seed: int
) -> tuple[Tensor, Tensor]:
    """Train one probe per learning rate on features [row, d_model] float32.

    The best probe has the lowest squared error on the validation rows. Returns this error, and the weights and bias
    [d_model + 1] of the best probe.
    """
    rates = torch.tensor(LEARNING_RATES)[:, None]
    parameters = torch.zeros(len(rates), features.shape[1] + 1)
    velocity = torch.zeros_like(parameters)
    rows, val_rows = (torch.cat([x, torch.ones(len(x), 1)], 1) for x in (features, val_features))
    generator = torch.Generator().manual_seed(seed)
    best = torch.full((len(rates),), torch.inf), parameters.clone()
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(rows), generator=generator).split(BATCH):
            error = torch.sigmoid(parameters @ rows[batch].T) - target[batch]
            gradient = error @ rows[batch] / len(batch) + WEIGHT_DECAY * parameters
            velocity = MOMENTUM * velocity + gradient
            parameters = parameters - rates * velocity
        loss = (torch.sigmoid(parameters @ val_rows.T) - val_target).square().mean(1).nan_to_num(torch.inf)
        better = loss < best[0]
        best = torch.where(better, loss, best[0]), torch.where(better[:, None], parameters, best[1])
    chosen = int(best[0].argmin())
    return best[0][chosen], best[1][chosen]


def published_recipe(comparison: Comparison) -> Tensor:
    """Train the published probe in each fold, and return the out-of-fold confidences, [question] float64.

    The confidence is NaN for questions that are in no test fold.
    """
    data = comparison.data
    every = data.every()
    mean = torch.full((len(data.table.ids), every.features.shape[2]), torch.nan)
    mean[every.row] = every.features.mean(1)
    accuracy = torch.from_numpy(data.table.right / data.table.known).float()
    confidence = torch.full((len(data.table.ids),), torch.nan, dtype=torch.float64)
    for number, rows in enumerate(comparison.folds):
        found = []
        centre, scale = mean[rows["train"]].mean(0), mean[rows["train"]].std(0).clamp_min(1e-6)
        for scaled in (mean, (mean - centre) / scale):
            splits = [part for split in ("train", "val") for part in (scaled[rows[split]], accuracy[rows[split]])]
            loss, parameters = train(*splits, seed=number)
            found.append((float(loss), torch.sigmoid(scaled[rows["test"]] @ parameters[:-1] + parameters[-1])))
        confidence[rows["test"]] = min(found, key=lambda pair: pair[0])[1].double()
    return confidence
