"""Hidden states of all tokens of the answers in a made store, with evidence planted in single tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from extract import Store
from extract.store.ragged import Ragged
from tests.helpers.synthetic import make_store

LAYERS, WIDTH = 3, 8


def token_store(folder: Path, n: int = 120, k: int = 4, longest: int = 12, seed: int = 0, size: float = 5.0) -> Store:
    """Make a store in which single tokens of layer 1 reveal wrong answers, but means over tokens do not.

    If an answer is wrong, coordinate 0 is higher by `size` at one of its tokens, and lower by `size` at another token.
    Answers have from 2 to `longest` tokens.
    """
    rng = np.random.default_rng([seed, 2])
    store = make_store(folder, rng.normal(size=(n, 1, 2)).astype(np.float32), rng.uniform(0.2, 0.8, n), k, seed=seed)
    for part in store.samples.ranges():
        rights = [grade["right"] for grade in store.grades.read("made", part).to_pylist()]
        rows = [_row(right, int(rng.integers(2, longest + 1)), size, rng) for right in rights]
        tensors = {f"{layer}/answer_tokens": Ragged.of([row[layer] for row in rows]) for layer in range(LAYERS)}
        store.signals.write("hidden_tokens", part, tensors)
    return store


def _row(right: bool, n_tokens: int, size: float, rng: np.random.Generator) -> torch.Tensor:
    """Return the states of an answer, [layer, token, d_model]."""
    states = rng.normal(size=(LAYERS, n_tokens, WIDTH))
    if not right:
        states[1, rng.choice(n_tokens, 2, replace=False), 0] += [size, -size]
    return torch.from_numpy(states).float()
