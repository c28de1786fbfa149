"""Make stores without a model, with given accuracies and hidden states, for simulations with a known truth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from extract import Decoding, Question, Store
from extract.policy import Identity, ModelIdentity, Policy
from extract.questions import questions_hash
from extract.sampling.temperature_grid import member_name
from extract.store.ragged import Ragged
from extract.store.shards import Block, SampleRange
from extract.store.verify import write_manifest

WORDS = ("ash", "birch", "cedar", "elm", "fir", "larch", "oak", "pine")
#: The last layer of the token signals.
LAST = 3


def make_store(
    folder: Path,
    features: NDArray[np.float32],
    accuracy: NDArray[np.float64],
    k: int = 10,
    n_groups: int = 4,
    seed: int = 0,
    block_size: int = 64,
    name: str = "q",
    longest: int = 1,
    questions: Sequence[Question] = (),
    temperature: float = 0.7,
) -> Store:
    """Make a store of questions whose answers are right with the given probabilities.

    The text of a right answer is "right". A wrong answer is one of several other words, and its tokens are less likely.
    If answers have several tokens, wrong answers are longer, answers of `longest` tokens are truncated, and one answer
    in fifty is empty.

    Args:
        folder: Folder of the store.
        features: [question, layer, d_model] hidden states at `last_prompt`.
        accuracy: [question] probability that an answer is right.
        k: Number of answers per question.
        n_groups: Number of groups, assigned to the questions in turn.
        seed: Seed of the answers.
        block_size: Number of questions per block.
        name: Prefix of the question ids.
        longest: Maximum number of content tokens per answer. If it is 1, all answers have one token.
        questions: The questions. By default, they are generated.
        temperature: Temperature of the policy. It does not affect the answers.
    """
    rng, of_lengths = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    n, layers, _ = features.shape
    questions = questions or [
        Question(
            id=f"{name}{i}", dataset="made", text=f"Say {i}.", references=("right",), group=f"group {i % n_groups}"
        )
        for i in range(n)
    ]
    model = ModelIdentity("made", None, "a" * 64, "float32", "b" * 64, "c" * 64)
    identity = Identity(
        Policy(model, Decoding(temperature, max_new_tokens=max(4, longest))), questions_hash(questions), block_size
    )
    store = Store.create(folder, identity, questions)
    for block in range(store.questions.n_blocks):
        held = range(block * block_size, min((block + 1) * block_size, n))
        rows = [_answer(questions[i].id, j, bool(rng.random() < accuracy[i]), rng) for i in held for j in range(k)]
        if longest > 1:
            for sample, grade in rows:
                sample |= _tokens(grade["right"], longest, of_lengths)
        part = SampleRange(block, 0, k)
        store.samples.write(part, [sample for sample, _ in rows])
        store.grades.write("made", part, [grade for _, grade in rows], "as it was drawn")
        states = torch.from_numpy(features[held.start : held.stop])
        store.signals.write("hidden", Block(block), {f"{i}/last_prompt": states[:, i] for i in range(layers)})
    write_manifest(store)
    return store


def make_grid(folder: Path, accuracy: NDArray[np.float64], temperatures: Sequence[float], k: int = 4) -> Path:
    """Make a temperature grid with the same accuracies at all temperatures, and one answer at temperature 0."""
    states = np.zeros((len(accuracy), 1, 2), np.float32)
    for seed, t in enumerate(temperatures):
        make_store(folder / member_name(t), states, accuracy, k if t else 1, seed=seed, temperature=t)
    return folder


def add_answer_signals(store: Store, seed: int = 0, width: int = 8) -> None:
    """Add hidden states, token signals and embeddings of the answers, and model-based baselines.

    The first coordinate of `last_answer` is higher for right answers, and identical texts have similar embeddings.
    """
    rng, of_tokens = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    of_text = {text: _unit(rng.normal(size=(1, width)))[0] for text in ("right", *WORDS)}
    right_of: dict[str, list[bool]] = {}
    for part in store.samples.ranges():
        samples, grades = store.samples.read(part).to_pylist(), store.grades.read("made", part).to_pylist()
        right = np.array([grade["right"] for grade in grades])
        for grade in grades:
            right_of.setdefault(grade["question_id"], []).append(grade["right"])
        hidden = rng.normal(size=(2, len(samples), width))
        hidden[1, :, 0] += 2 * right
        keys = [(layer, name) for layer in range(2) for name in ("last_answer", "mean_answer")]
        store.signals.write("hidden", part, {f"{i}/{name}": torch.from_numpy(hidden[i]).float() for i, name in keys})
        entropy = rng.exponential(np.where(right, 0.3, 0.8))
        lengths = np.array([len(one["token_ids"]) - (one["finish_reason"] == "stop") for one in samples])
        for signal, tensors in _token_signals(entropy, lengths, of_tokens).items():
            store.signals.write(signal, part, tensors)
        vectors = _unit(
            np.stack([of_text[one["text"]] for one in samples]) + 0.1 * rng.normal(size=(len(samples), width))
        )
        how = {"model": "made", "weights": "a" * 64}
        store.signals.write("text_embedding", part, {"0/answer": torch.from_numpy(vectors).float()}, settings=how)
    for block in range(store.questions.n_blocks):
        ids = store.questions.ids(Block(block))
        vectors = _unit(rng.normal(size=(len(ids), width)))
        store.signals.write(
            "text_embedding", Block(block), {"0/question": torch.from_numpy(vectors).float()}, settings=how
        )
        entropy = of_tokens.exponential([0.8 - 0.5 * np.mean(right_of[one]) for one in ids])
        for signal, held in _first_token(entropy, of_tokens).items():
            store.signals.write(signal, Block(block), {key: torch.from_numpy(one).float() for key, one in held.items()})
        for name in ("verbalized", "p_true"):
            rows = [_said(one, float(np.mean(right_of[one])), rng) for one in ids]
            store.asked.write(name, Block(block), rows, {"model": "made"})
    write_manifest(store)


def _token_signals(
    level: NDArray[np.float64], lengths: NDArray[np.int64], rng: np.random.Generator
) -> dict[str, dict[str, Ragged]]:
    """Return token signals of answers [row] with entropies around the `level` [row] of each answer, in nats."""
    offsets = torch.from_numpy(np.concatenate([[0], lengths.cumsum()]))
    entropy = np.repeat(level, lengths) * rng.gamma(4, 1 / 4, size=lengths.sum())
    nll = rng.exponential(entropy)
    signals = _first_token(entropy, rng)
    signals["tokens"] |= {f"{LAST}/nll": nll, f"{LAST}/plogp": nll * np.exp(-nll)}
    signals["rollout"] = {
        f"{LAST}/norm_element_mean_token": rng.exponential(0.1 + entropy),
        f"{LAST}/share_50_none_mean_emit": rng.exponential(size=len(entropy)),
    }
    return {
        signal: {key: Ragged(torch.from_numpy(values).float(), offsets) for key, values in held.items()}
        for signal, held in signals.items()
    }


def _first_token(entropy: NDArray[np.float64], rng: np.random.Generator) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Return first-token signals with the given entropies. The first layer contains no information about them."""
    weight = np.arange(LAST)[:, None] / (LAST - 1)
    profile = weight * entropy + (1 - weight) * rng.gamma(9, 1 / 2, size=(LAST, len(entropy)))
    rest = 1 - np.exp(-entropy)
    return {
        "tokens": {f"{LAST}/entropy": entropy, f"{LAST}/one_minus_pmax": rest, f"{LAST}/margin": (1 - rest) ** 2},
        "entropy_profile": {f"{layer}/entropy": profile[layer - 1] for layer in range(1, LAST + 1)},
    }


def _unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def _said(question: str, accuracy: float, rng: np.random.Generator) -> dict[str, Any]:
    """Return a row of a baseline at question scope: the accuracy with noise, or null in one of ten cases."""
    value = float(np.clip(accuracy + 0.3 * rng.normal(), 0, 1)) if rng.random() < 0.9 else None
    told = {"text": "", "mass": None, "prompt_tokens": 30, "completion_tokens": 5, "attempts": 1}
    return {"question_id": question, "value": value, **told}


def _answer(question: str, sample: int, right: bool, rng: np.random.Generator) -> tuple[dict[str, Any], dict[str, Any]]:
    text = "right" if right else str(rng.choice(WORDS))
    key = {"question_id": question, "sample": sample}
    drawn = -rng.exponential(0.3 if right else 0.8, size=2)
    told = {"token_ids": [5, 0], "text": text, "logprobs": drawn.tolist(), "finish_reason": "stop", "prompt_tokens": 9}
    return {**key, **told}, {**key, "right": right, "answer": text}


def _tokens(right: bool, longest: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return the tokens of an answer. The longest answers have no end token."""
    n = 0 if rng.random() < 0.02 else 1 + int(longest * rng.random() ** (1.5 if right else 1))
    whole = n < longest
    drawn = -rng.exponential(0.3 if right else 0.8, size=n + whole)
    ended = {"token_ids": [5] * n + [0] * whole, "finish_reason": "stop" if whole else "length"}
    return {**ended, "logprobs": drawn.tolist()}
