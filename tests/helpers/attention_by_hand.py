"""Reference implementations of all attention signals, from eager attention with full T × T matrices in float64."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import numpy as np
import torch

from extract.signals.base import Answer
from extract.signals.reading import read_answers
from tests.helpers.tiny import tiny_model

Array = np.ndarray

#: Config changes for each model family. Sliding windows are shorter than the texts.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "gpt2": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": {"sliding_window": 4},
    "phi3": {},
    "gemma2": {"sliding_window": 4, "attn_logit_softcapping": 2.0},
    "gemma3": {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
}

#: Two answers to the same prompt, an answer of one token, a prompt of one token, and a long prompt with a long answer.
ANSWERS = [
    Answer((5, 6, 7), (40, 41, 42, 43)),
    Answer((8, 9, 10, 11, 12), (50,)),
    Answer((5, 6, 7), (40, 99)),
    Answer((20,), (60, 61, 62)),
    Answer((5, 6, 7, 8, 30, 31), (70, 71, 72, 73, 74, 75, 76)),
]

SHARES = {"share_50": 0.5, "share_70": 0.7, "share_90": 0.9}


def family_model(family: str, **changes: Any) -> Any:
    return tiny_model(family, **(FAMILIES[family] | changes))


@torch.no_grad()
def seen_eagerly(model: Any, ids: list[int]) -> tuple[Array, Array, Array]:
    """Return attention weights [layer, head, token, token], and float64 residuals and updates [layer, token, d_model].

    The residuals are those before attention. The update is the output of the attention module, or of the norm after it.
    `model` must use eager attention.
    """
    added: list[Array] = []
    handles = []
    decoder = model.get_decoder()
    for block in getattr(decoder, "layers", None) or decoder.h:
        if hasattr(block, "pre_feedforward_layernorm"):
            module = block.post_attention_layernorm
        else:
            module = getattr(block, "self_attn", None) or block.attn
        handles.append(
            module.register_forward_hook(
                lambda module, args, out: added.append((out[0] if isinstance(out, tuple) else out)[0].double().numpy())
            )
        )
    out = model(torch.tensor([ids]), output_attentions=True, output_hidden_states=True, use_cache=False)
    for handle in handles:
        handle.remove()
    attention = np.stack([one[0].double().numpy() for one in out.attentions])
    attention /= attention.sum(-1, keepdims=True)  # GPT-OSS omits the attention of its sinks
    residuals = np.stack([one[0].double().numpy() for one in out.hidden_states[:-1]])
    return attention, residuals, np.stack(added)


def entropies_by_hand(model: Any, answer: Answer) -> dict[str, Array]:
    attention, _, _ = seen_eagerly(model, [*answer.prompt, *answer.content])
    found = {}
    for layer, heads in enumerate(attention, start=1):
        whole, rest = [], []
        for t in range(1, len(answer.content) + 1):
            rows = heads[:, len(answer.prompt) + t - 2]
            seen = (rows > 0).any(0)
            whole.append([spread(row[seen]) for row in rows])
            seen[0] = False
            rest.append([spread(row[seen]) for row in rows])
        found[f"{layer}/normalised"] = np.mean(whole, axis=1)
        found[f"{layer}/sink_free"] = np.mean(rest, axis=1)
        found[f"{layer}/smallest_head"] = np.min(whole, axis=1)
    return found


def spread(weights: Array) -> float:
    """Return the entropy divided by its maximum."""
    if len(weights) < 2:
        return 0.0
    p = weights / weights.sum()
    return float(-sum(one * np.log(one) for one in p if one > 0) / np.log(len(p)))


def shares_by_hand(h: Array, o: Array) -> dict[str, Array]:
    """Return the share of the attention update in each token's residual, as a dict from mix to [token]."""
    s = h + o

    def length(x: Array) -> Array:
        return np.asarray(np.sqrt((x * x).sum(-1)))

    def cosine(x: Array) -> Array:
        return np.asarray((x * s).sum(-1) / length(x) / length(s))

    found = {name: np.full(len(h), 1 - rho) for name, rho in SHARES.items()}
    found["norm"] = length(o) / (length(o) + length(h))
    found["cosine"] = cosine(o) / (cosine(o) + cosine(h))
    found["projection"] = (o * s).sum(-1) / (s * s).sum(-1)
    return {name: np.clip(share, 0, 1) for name, share in found.items()}


def with_field(mean: Array, field: str) -> Array:
    """Return the attention matrix Ã [T, T] of a rollout with this field, given the mean attention over heads."""
    T = len(mean)
    out = np.zeros_like(mean)
    for i in range(T):
        for j in range(i + 1):
            weight = {"none": 1.0, "column": 1 / (T - j), "element": 1 / (i - j + 1)}[field]
            out[i, j] = mean[i, j] * weight
        out[i] /= out[i].sum()
    return out


def product_by_hand(attention: Array, residuals: Array, added: Array, T: int, mix: str, field: str) -> Array:
    """Return R = Â_L … Â_1 [T, T] for the first T tokens."""
    product = np.eye(T)
    for heads, h, o in zip(attention, residuals, added, strict=True):
        a = shares_by_hand(h, o)[mix][:T, None]
        product = (a * with_field(heads.mean(0)[:T, :T], field) + (1 - a) * np.eye(T)) @ product
    return product


def rollout_by_hand(model: Any, answer: Answer) -> dict[str, Array]:
    """Return `rollout` and `rollout_max` of one answer."""
    P, N = len(answer.prompt), len(answer.prompt) + len(answer.content)
    seen = seen_eagerly(model, [*answer.prompt, *answer.content])
    found = {}
    for align, T, first in (("emit", N - 1, P - 1), ("token", N, P)):
        for mix in (*SHARES, "norm", "cosine", "projection"):
            for field in ("none", "column", "element"):
                R = product_by_hand(*seen, T, mix, field)
                np.testing.assert_allclose(R.sum(1), 1)
                of_name = {
                    "mean": R.sum(0) / T,
                    "rf_mean": R.sum(0) / (T - np.arange(T)),
                    "last": R[-1],
                    "max": R.max(0),
                }
                for name, values in of_name.items():
                    found[f"{len(seen[0])}/{mix}_{field}_{name}_{align}"] = values[first:]
    return found


def macs_by_hand(model: Any, answer: Answer) -> dict[str, Array]:
    P, N = len(answer.prompt), len(answer.prompt) + len(answer.content)
    attention, _, _ = seen_eagerly(model, [*answer.prompt, *answer.content])
    last, found = len(attention), {}
    for floor in (1, 20):
        eps = floor / 100
        kept = np.prod([(1 - eps) * heads.max(0) + eps for heads in attention], axis=0) ** (1 / last)
        for align, first, stop in (("emit", P - 1, N - 1), ("token", P, N)):
            received = [[kept[i, j] for i in range(j, stop)] for j in range(first, stop)]
            for name, of in {"rf_mean": np.mean, "max": np.max, "last": lambda one: one[-1]}.items():
                found[f"{last}/floor_{floor}_{name}_{align}"] = np.array([of(one) for one in received])
    return found


def read_rows(model: Any, answers: list[Answer], signal: str, **options: Any) -> list[dict[str, np.ndarray]]:
    """Return the values of a signal by key, for each answer."""
    read = read_answers(model, answers, [signal], **options)[signal]
    rows = {key: [one.numpy() for one in ragged.rows()] for key, ragged in read.items()}
    return [{key: of_rows[i] for key, of_rows in rows.items()} for i in range(len(answers))]


def eager(model: Any) -> Any:
    copy = deepcopy(model)
    copy.set_attn_implementation("eager")
    return copy


def assert_rows(found: list[dict[str, np.ndarray]], expected: list[dict[str, np.ndarray]], atol: float) -> None:
    for row, wanted in zip(found, expected, strict=True):
        assert row.keys() == wanted.keys()
        for key, values in wanted.items():
            np.testing.assert_allclose(row[key], values, rtol=1e-4, atol=atol, err_msg=key)
