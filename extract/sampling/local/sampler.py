"""Local sampler: a transformers model in this process, which reads each prompt once for all temperatures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extract.models.store_model import encode_questions
from extract.policy import Decoding, ModelIdentity, Policy
from extract.running.progress import Count, Progress, say
from extract.running.worker import Worker
from extract.sampling.base import Sampler, SamplingOptions
from extract.store.fill import fill, missing_shards
from extract.store.questions import Questions
from extract.store.shards import SampleRange
from extract.store.store import Store

if TYPE_CHECKING:
    from extract.sampling.local.token_sampler import Sample, TokenSampler


class LocalSampler(Sampler):
    """Draws answers with a model in this process. See `Sampler` for the interface."""

    _sampler: TokenSampler
    _model: ModelIdentity

    def __init__(self, options: SamplingOptions, decoding: Decoding, worker: Worker) -> None:
        self.options, self.decoding, self.worker = options, decoding, worker

    def known_policy(self, decoding: Decoding, model: Mapping[str, Any]) -> Policy:
        """Return a policy with the store's `model`, but with the name, dtype and commit requested by this run."""
        folder, options = Path(self.options.model), self.options
        known: dict[str, Any] = {"id": folder.resolve().name if folder.is_dir() else options.model}
        if options.dtype != "auto":
            known["dtype"] = options.dtype
        if options.revision is not None and len(options.revision) == 40:  # a commit, because a branch may move
            known["revision"] = options.revision
        return Policy(ModelIdentity(**{**model, **known}), decoding)

    def prepare(self, questions: Questions, new: Sequence[Decoding]) -> None:
        """Load the model."""
        from extract.models.loading import load_model, model_identity
        from extract.sampling.local.token_sampler import TokenSampler

        options = self.options
        model, tokenizer = load_model(
            options.model, options.revision, options.dtype, options.device, options.device_map
        )
        self._model = model_identity(model, tokenizer)
        self._sampler = TokenSampler(model, tokenizer, self.decoding, options.max_rows)

    def policy(self, decoding: Decoding) -> Policy:
        """Return the policy of the loaded model."""
        return Policy(self._model, decoding)

    def fill(self, stores: Mapping[float, Store], k: int) -> None:
        """Draw the missing samples. Each range is drawn in one pass for all temperatures at which it is missing."""
        lacking: dict[SampleRange, dict[float, Store]] = defaultdict(dict)
        for temperature, store in stores.items():
            own = [samples for samples in store.samples.missing(k) if self.worker.has(samples.block)]
            damaged = missing_shards(store, store.samples.ranges(), self.worker, store.samples.file)
            for samples in [*damaged, *own]:
                lacking[samples][temperature] = store
        if not lacking:
            say(f"sample: all {k} answers to each question already exist")
            return

        def n_rows(samples: SampleRange) -> int:
            return sum(store.questions.n_rows(samples) for store in lacking[samples].values())

        def draw(samples: SampleRange, progress: Progress) -> None:
            self._draw(lacking[samples], samples, progress)

        fill("sample", "answers", sorted(lacking), n_rows, draw, self.worker)

    def _draw(self, stores: Mapping[float, Store], samples: SampleRange, progress: Progress) -> None:
        from extract.running.memory import retry_with_smaller_batch

        sampler, questions = self._sampler, next(iter(stores.values())).questions.block(samples)
        prompts = encode_questions(sampler.tokenizer, self.decoding.prompt, questions)
        ids, indices = [question.id for question in questions], range(samples.start, samples.stop)

        def draw(max_rows: int, counted: Count) -> dict[float, list[Sample]]:
            sampler.max_rows = max_rows
            return sampler.sample_grid(ids, prompts, indices, list(stores), counted)

        drawn, max_rows = retry_with_smaller_batch(draw, sampler.max_rows, "answers", progress)
        for temperature, answers in drawn.items():
            stores[temperature].samples.write(samples, [asdict(answer) for answer in answers], max_rows)
