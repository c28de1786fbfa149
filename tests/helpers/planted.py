"""Make stores and features with a planted truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from extract.signals.reading import read_questions


def plant_grades(store: Any, seed: int) -> None:
    """Draw grades with probabilities given by a direction of layer 2."""
    hidden = store.signals.read("hidden", "2/last_prompt").numpy()
    rng = np.random.default_rng(seed)
    standardised = (hidden - hidden.mean(0)) / hidden.std(0)
    logit = standardised @ rng.normal(size=hidden.shape[1]) / 2
    probability = dict(zip((q.id for q in store.questions), 1 / (1 + np.exp(-logit)), strict=True))
    for part in store.samples.ranges():
        rows = [
            {
                "question_id": row["question_id"],
                "sample": row["sample"],
                "right": bool(rng.random() < probability[row["question_id"]]),
                "answer": row["text"][:1],
            }
            for row in store.samples.read(part).to_pylist()
        ]
        store.grades.write("planted", part, rows, "a biased coin")


def read_hidden(
    model: Any, prompts: Sequence[Sequence[int]], layers: Sequence[int] | None = None, batch_tokens: int = 2048
) -> torch.Tensor:
    """Return hidden states [question, layer, d_model] at `last_prompt`, of every layer if `layers` is None."""
    wanted = range(model.config.num_hidden_layers + 1) if layers is None else layers
    return torch.stack(list(read_questions(model, prompts, ["hidden"], wanted, batch_tokens)["hidden"].values()), dim=1)


def planted(n: int = 120, layers: int = 3, width: int = 8, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return the accuracies, and features in which a direction of the last layer is their log-odds."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, layers, width)).astype(np.float32)
    accuracy = 1 / (1 + np.exp(-2 * features[:, layers - 1, 0]))
    return features, accuracy


def simulated(n: int = 60, k: int = 10, seed: int = 0, ties: bool = True) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the confidence, right and known counts, and the true p."""
    rng = np.random.default_rng(seed)
    p = rng.beta(0.8, 1.2, n)
    f = np.clip(p + rng.normal(0, 0.2, n), 0.01, 0.99)
    known = rng.integers(2, k + 1, n)
    right = rng.binomial(known, p)
    return torch.tensor(np.round(f, 1) if ties else f), torch.tensor(right), torch.tensor(known), torch.tensor(p)
