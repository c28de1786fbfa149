"""Score questions or answers in batches shared by many requests."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from probes.saved.novelty import Confidences
from probes.serving.jobs import end_jobs

if TYPE_CHECKING:
    from probes.saved.confidence import ConfidentModel
    from probes.serving.jobs import ScoreJob


class Scorer:
    """Reads rows from all requests in turn, so that a long request does not delay the others.

    Attributes:
        jobs: Requests that still have unread rows.
    """

    def __init__(self, model: ConfidentModel, max_rows: int) -> None:
        self._model, self._max_rows = model, max_rows
        self.jobs: deque[ScoreJob] = deque()

    def step(self) -> int:
        """Read one batch and return its number of rows. An error ends all requests that have rows in the batch."""
        rows: list[tuple[ScoreJob, int]] = []
        while self.jobs and len(rows) < self._max_rows:
            job = self.jobs.popleft()
            if job.has_ended:  # cancelled
                continue
            rows.append((job, job.rows.pop()))
            if job.rows:
                self.jobs.append(job)
        if not rows:
            return 0
        probe, prompts = self._model.probe, [job.prompts[i] for job, i in rows]
        answers = [job.answers[i] for job, i in rows if job.answers is not None] if probe.reads_answers else None
        try:
            features = self._model._features(prompts, answers)
            found = {backoff: probe.confidences(features, backoff) for backoff in {job.backoff for job, _ in rows}}
        except Exception as error:  # ends only the requests of this batch; the engine continues
            end_jobs([job for job, _ in rows], error, f"Scoring {len(rows)} rows")
            self.jobs = deque(job for job in self.jobs if job.rows)
            return len(rows)
        for k, (job, i) in enumerate(rows):
            job.add(i, Confidences(*(values[k : k + 1] for values in found[job.backoff])))
        return len(rows)

    def fail(self, error: BaseException) -> None:
        """End all requests with an exception."""
        for job in self.jobs:
            job.end(error)
        self.jobs.clear()
