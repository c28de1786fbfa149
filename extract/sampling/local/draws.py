"""Draw tokens by inverting the cumulative softmax at uniform random numbers.

Each random number is a hash of (seed, question, sample, step), so a draw does not depend on the batch.
"""

import hashlib
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_CHUNK = 128  # tokens per chunk in `inverse_cdf`
_LOGITS = {"cpu": 3 * 2**19, "cuda": 2**26}  # maximum number of logits per chunk in `draw`, by device type
_LEAST_TEMPERATURE = 1e-6  # at lower temperatures, logits would overflow


def question_key(seed: int, question_id: str) -> int:
    """Compute a 64-bit key from the seed and the question id."""
    return int.from_bytes(hashlib.sha256(f"{seed}\0{question_id}".encode()).digest()[:8], "little")


def keyed_uniforms(keys: NDArray[np.uint64], samples: NDArray[np.uint64], n_steps: int) -> NDArray[np.float64]:
    """Compute uniform random numbers in [0, 1) with 53 random bits, [row, step] float64.

    Each number is a hash of the `question_key`, the sample index and the step.
    """
    steps = np.arange(n_steps, dtype=np.uint64)
    with np.errstate(over="ignore"):
        row_state = _mix(keys + _mix(samples + np.uint64(1)))
        bits = _mix(row_state[:, None] + _mix((steps + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))[None, :])
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finaliser of SplitMix64 (Steele, Lea and Flood 2014) to 64-bit integers. It is a bijection."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class Drawn(NamedTuple):
    """One token per answer. `tokens` is [answer] int64. `logprobs` is [answer] float32, in nats at temperature 1."""

    tokens: Tensor
    logprobs: Tensor


def draw(
    logits: Tensor,
    uniforms: Tensor,
    temperature: float | Tensor,
    top_p: float = 1.0,
    top_k: int = 0,
    rows: Tensor | None = None,
) -> Drawn:
    """Draw the next token of each answer.

    Args:
        logits: [row, vocab] raw logits of any float dtype.
        uniforms: [answer] float64 in [0, 1).
        temperature: One value for all answers, or a tensor [answer].
        top_p, top_k: See `Decoding`.
        rows: [answer] int64, row of logits for each answer. By default, answer i is drawn from row i.

    Returns:
        Tokens, and their log-probabilities under the raw distribution (before temperature, top-p and top-k).
    """
    rows = torch.arange(len(logits), device=logits.device) if rows is None else rows
    n_rows = min(len(logits), max(1, _LOGITS.get(logits.device.type, _LOGITS["cpu"]) // logits.shape[1]))
    # allocated only once, because allocating memory for each chunk would be slow
    buffers = logits.new_empty(2, n_rows, logits.shape[1], dtype=torch.float32)
    if n_rows == len(logits):
        return _draw_chunk(logits, rows, uniforms, temperature, top_p, top_k, buffers)
    order = rows.argsort(stable=True)
    starts = torch.arange(0, len(logits), n_rows, device=rows.device)
    of_chunks = order.tensor_split(torch.searchsorted(rows[order], starts[1:]).cpu())
    tokens, logprobs = torch.empty_like(rows), torch.empty_like(uniforms, dtype=torch.float32)
    for i, (chunk, answers) in enumerate(zip(logits.split(n_rows), of_chunks, strict=True)):
        of_answers = temperature[answers] if isinstance(temperature, Tensor) else temperature
        drawn = _draw_chunk(
            chunk, rows[answers] - i * n_rows, uniforms[answers], of_answers, top_p, top_k, buffers[:, : len(chunk)]
        )
        tokens[answers], logprobs[answers] = drawn
    return Drawn(tokens, logprobs)


def _draw_chunk(
    logits: Tensor,
    rows: Tensor,
    uniforms: Tensor,
    temperature: float | Tensor,
    top_p: float,
    top_k: int,
    buffers: Tensor,
) -> Drawn:
    """Draw the next token of each answer from a chunk of logits. `buffers` [2, row, vocab] float32 is overwritten."""
    shifted, weights = buffers
    torch.sub(logits, logits.amax(-1, keepdim=True).float(), out=shifted)
    log_total = torch.exp(shifted, out=weights).sum(-1).log()
    if isinstance(temperature, Tensor):
        tokens = torch.empty_like(rows)
        for value in temperature.unique().tolist():
            answers = (temperature == value).nonzero()[:, 0]
            needed, of_answers = rows[answers].unique(return_inverse=True)
            tokens[answers] = _tokens(
                shifted[needed], of_answers, uniforms[answers], value, top_p, top_k, weights[: len(needed)]
            )
    else:
        tokens = _tokens(shifted, rows, uniforms, temperature, top_p, top_k, weights)
    return Drawn(tokens, shifted[rows, tokens] - log_total[rows])


def _tokens(
    shifted: Tensor, rows: Tensor, uniforms: Tensor, temperature: float, top_p: float, top_k: int, weights: Tensor
) -> Tensor:
    """Draw the next token of each answer.

    `shifted` [row, vocab] contains the logits minus the maximum of each row. `weights` [row, vocab] float32 is
    overwritten.
    """
    if temperature == 0:
        return shifted.argmax(-1)[rows]
    torch.div(shifted, max(temperature, _LEAST_TEMPERATURE), out=weights)
    return inverse_cdf(truncate(weights, top_p, top_k).exp_(), uniforms, rows)


def truncate(logits: Tensor, top_p: float, top_k: int) -> Tensor:
    """Apply top-k, then top-p. Logits [row, vocab] of excluded tokens become −inf.

    Tokens with the same logit as the last kept token are kept, too.
    """
    if 0 < top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
    if top_p < 1:
        ordered = logits.sort(-1, descending=True).values
        probabilities = ordered.softmax(-1)
        kept = probabilities.cumsum(-1) - probabilities < top_p
        n_kept = kept.sum(-1, keepdim=True).clamp_min(1)  # `top_p` can be 0 in float32
        threshold = ordered.gather(-1, n_kept - 1)
        logits = logits.masked_fill(logits < threshold, -torch.inf)
    return logits


def inverse_cdf(weights: Tensor, uniforms: Tensor, rows: Tensor) -> Tensor:
    """Find the first token at which the cumulative normalised weight exceeds a uniform random number.

    `weights` has shape [row, vocab]. `uniforms`, `rows` (the row of each answer) and the result have shape [answer].
    Tokens with weight 0 are never drawn.
    """
    last = weights.shape[-1] - 1
    if n_missing := -weights.shape[-1] % _CHUNK:
        weights = torch.nn.functional.pad(weights, (0, n_missing))
    weights = weights.unflatten(-1, (-1, _CHUNK))
    chunk_ends = weights.sum(-1, dtype=torch.float32).double().cumsum(-1)[rows]
    targets = uniforms[:, None] * chunk_ends[:, -1:]
    chunk = _first_above(chunk_ends, targets).clamp_max(weights.shape[1] - 1)  # searches in NaN are out of range
    start = torch.where(chunk > 0, chunk_ends.gather(-1, (chunk - 1).clamp_min(0)), 0.0)
    inside = weights[rows, chunk[:, 0]].double()
    token = _first_above(inside.cumsum(-1), targets - start)
    return (chunk * _CHUNK + token)[:, 0].clamp_max(last)


def _first_above(ends: Tensor, targets: Tensor) -> Tensor:
    """Return the index [row, 1] of the first cumulative sum above each row's target.

    `ends` contains the cumulative sums of each row. `targets` has shape [row, 1]. If no sum is above the target, return
    the last index at which the sum increases.
    """
    last_step_up = torch.searchsorted(ends, ends[:, -1:].contiguous(), right=False)
    return torch.minimum(torch.searchsorted(ends, targets, right=True), last_step_up)
