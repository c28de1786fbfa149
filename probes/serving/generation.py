"""Generate many answers in one batch. Answers can join and leave the batch between forward passes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from extract.errors import InputError
from probes.saved.running_confidence import add_prompts, add_tokens
from probes.serving.jobs import end_jobs
from probes.serving.rows import Row

if TYPE_CHECKING:
    from probes.saved.confidence import ConfidentModel
    from probes.serving.jobs import Job

#: Maximum number of tokens, including padding, in a forward pass over several new prompts.
_PROMPT_TOKENS = 2048
#: Number of rows whose entropies are computed at a time.
_ROWS = 32


class Batch:
    """Answers that are generated together. `rows` lists them in the order of the cache rows.

    Some models cache more than keys and values, or have chunked attention. For these models, no row can join a running
    batch, and all prompts in a new batch have the same length.
    """

    def __init__(self, model: ConfidentModel, max_rows: int) -> None:
        from extract.models.loading import end_tokens
        from extract.sampling.local.row_cache import FixedCache, RowCache, can_merge

        self._model, self._hf_model, self._max_rows = model, model._model, max_rows
        self._ends = frozenset(end_tokens(self._hf_model, model.tokenizer))
        config = self._hf_model.config.get_text_config()
        self._context = getattr(config, "max_position_embeddings", None) or math.inf
        self._can_merge = can_merge(self._hf_model)
        self._cache_class: Any = RowCache if self._can_merge else FixedCache
        # on a single device, the confidences reach the CPU before any token drawn later, so no wait is needed
        self._wait = len({parameter.device for parameter in self._hf_model.parameters()}) > 1
        self.clear()

    def clear(self) -> None:
        """Remove all answers and free the cache."""
        self.rows, self._cache = list[Row](), self._cache_class(self._hf_model)

    def fail(self, error: BaseException) -> None:
        """Make all jobs fail with `error`, and clear the batch."""
        rows = self.rows
        self.clear()
        for row in rows:
            row.job.end(error)

    def fitting(self, waiting: Iterable[Job]) -> list[Job]:
        """Select the waiting jobs that can join the batch in the next pass."""
        if self.rows and not self._can_merge:
            return []
        chosen: list[Job] = []
        n_tokens = 0  # in the longest prompt
        for job in waiting:
            if chosen and not self._can_merge and len(job.prompt) != n_tokens:
                continue
            n_tokens = max(n_tokens, len(job.prompt))
            if len(self.rows) + len(chosen) == self._max_rows or (
                chosen and n_tokens * (len(chosen) + 1) > _PROMPT_TOKENS
            ):
                break
            chosen.append(job)
        return chosen

    @torch.inference_mode()
    def join(self, jobs: Sequence[Job]) -> None:
        """Prefill the prompts of new jobs in one forward pass, and draw the first token of each answer."""
        from extract.signals.reader import right_padded

        probe, features = self._model.probe, self._model._prompt_features
        rows = [Row(self._model, job, self._ends, self._context) for job in jobs]
        prompts = [job.prompt for job in jobs]
        start = self._model.starts.of(prompts)
        n_start = 0 if start is None else len(start.tokens)
        # A causal model needs no mask for padding on the right.
        ids = right_padded([prompt[n_start:] for prompt in prompts], self._hf_model.device)
        positions = torch.arange(n_start, n_start + ids.shape[1], device=ids.device).expand(ids.shape)
        read = start.cache(len(prompts)) if start is not None else self._cache_class.for_prompts(self._hf_model)
        last = [len(prompt) - n_start - 1 for prompt in prompts]
        layers = None if features is None else features.layers
        logits, states = self._pass(ids, None, positions, read, layers, last)
        if probe.reads_answers:
            add_prompts([row.confidence for row in rows], None)
        else:
            # a probe whose signals are not captured needs another pass
            values = self._model._features(prompts, None) if features is None else features(states)
            for backoff in {job.backoff for job in jobs}:
                found = probe.confidences(values, backoff)
                chosen = [i for i, job in enumerate(jobs) if job.backoff == backoff]
                of_rows = type(found)(*(value[chosen] for value in found))
                add_prompts([rows[i].confidence for i in chosen], of_rows, self._wait)
        ended = self._advance(rows, logits)
        if remaining := [i for i in range(len(rows)) if i not in ended]:
            try:
                self._cache.join(read, [len(prompt) for prompt in prompts], remaining)
            except Exception as error:  # the cache may be inconsistent
                self.fail(error)
                raise
            self.rows += [rows[i] for i in remaining]

    def drop_cancelled(self) -> None:
        """Remove the answers of cancelled jobs."""
        cancelled = [i for i, row in enumerate(self.rows) if row.job.is_cancelled]
        for i in cancelled:
            self.rows[i].job.end("cancelled")
        self._drop(cancelled)

    @torch.inference_mode()
    def step(self) -> None:
        """Run the model on the last token of each answer, and draw the next token."""
        mask, positions = self._cache.before_pass()
        ids = torch.tensor([row.drawn[-1:] for row in self.rows], device=mask.device)
        layers = self._model.probe.layers if self._model.probe.reads_answers else None
        logits, states = self._pass(ids, mask, positions, self._cache.cache, layers, [0] * len(ids))
        self._cache.after_pass()
        if layers is not None:
            add_tokens([row.confidence for row in self.rows], states, self._wait)
        self._drop(self._advance(self.rows, logits))

    @torch.inference_mode()
    def _drop(self, rows: Sequence[int]) -> None:
        if rows:
            self.rows = [self.rows[i] for i in self._cache.drop(rows)]

    def _pass(
        self,
        ids: Tensor,
        mask: Tensor | None,
        positions: Tensor,
        cache: Any,
        layers: Sequence[int] | None,
        last: Sequence[int],
    ) -> tuple[Tensor, Mapping[int, Tensor]]:
        """Run a forward pass.

        Returns logits [row, vocab] and a dict from layer to states [row, d_model]. For row i, both are taken at the
        token with index `last[i]`.
        """
        from extract.signals.hidden import HiddenCapture

        kept = sorted(set(last))
        with HiddenCapture(self._hf_model, layers or ()) as capture:
            capture.start([[range(i, i + 1) for i in last]])
            output = self._hf_model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=torch.tensor(kept, device=ids.device),
            )
            states = capture.finish()
        if getattr(output, "past_key_values", None) is None:
            raise InputError(
                f"Expected a model with a key/value cache, but {type(self._hf_model).__name__} has none. Its answers "
                "can't be generated in batches. Use another model."
            )
        place = torch.tensor([kept.index(i) for i in last], device=output.logits.device)
        logits = output.logits[torch.arange(len(last), device=place.device), place]
        return logits, {layer: of_rows[:, 0] for layer, of_rows in states.items()}

    def _advance(self, rows: Sequence[Row], logits: Tensor) -> list[int]:
        """Draw a token for each row, and return the indices of rows that have ended."""
        tokens, logprobs = _draw(rows, logits)
        entropies = _entropies(rows, logits)
        ended = []
        for i, (row, token, is_nan) in enumerate(zip(rows, *_lists(tokens, logprobs.isnan()), strict=True)):
            try:
                if is_nan:
                    dtype = str(self._hf_model.dtype).removeprefix("torch.")
                    raise InputError(
                        f"Expected finite logits, but the model returned NaN in {dtype}. Pass --dtype float32 or "
                        "bfloat16."
                    )
                reason = row.add(token, entropies.get(i))
            except Exception as error:  # the other answers continue
                end_jobs([row.job], error, "Generating an answer")
                ended.append(i)
                continue
            if reason is not None:
                row.job.end(reason)
                ended.append(i)
        return ended


def _draw(rows: Sequence[Row], logits: Tensor) -> tuple[Tensor, Tensor]:
    """Draw tokens [row] from logits [row, vocab], and return them with their log-probabilities [row]."""
    from extract.sampling.local.draws import draw

    settings, device = [row.job.settings for row in rows], logits.device
    if not any(each.temperature for each in settings):
        return draw(logits, torch.zeros(len(rows), device=device), 0.0)
    uniforms = torch.tensor([row.uniform() for row in rows], dtype=torch.float64, device=device)
    temperatures = torch.tensor([each.temperature for each in settings], dtype=torch.float32, device=device)
    tokens, logprobs = torch.zeros_like(uniforms, dtype=torch.int64), torch.zeros_like(temperatures)
    for cut in {(each.top_p, each.top_k) for each in settings}:
        same = [i for i, each in enumerate(settings) if (each.top_p, each.top_k) == cut]
        chosen = torch.tensor(same, device=device)
        tokens[chosen], logprobs[chosen] = draw(logits[chosen], uniforms[chosen], temperatures[chosen], *cut)
    return tokens, logprobs


def _entropies(rows: Sequence[Row], logits: Tensor) -> dict[int, float]:
    """Return a dict from row index to next-token entropy in nats, for the rows that request it."""
    from extract.signals.lens import entropy, softmax

    chosen = [i for i, row in enumerate(rows) if row.job.settings.entropy]
    values = [entropy(softmax(logits[chosen[k : k + _ROWS]])) for k in range(0, len(chosen), _ROWS)]
    return dict(zip(chosen, torch.cat(values).tolist(), strict=True)) if values else {}


def _lists(tokens: Tensor, flags: Tensor) -> list[list[int]]:
    return torch.stack([tokens, flags.to(tokens)]).tolist()  # waits for the device only once
