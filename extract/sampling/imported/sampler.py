"""Sampler for stores that `python -m extract import` creates. It cannot draw answers and always raises an error."""

from extract.errors import InputError
from extract.policy import Decoding
from extract.running.worker import Worker
from extract.sampling.base import Sampler, SamplingOptions


class ImportedSampler(Sampler):
    """Sampler that refuses to draw answers, because imported answers come from another tool.

    Raises:
        InputError: Always.
    """

    def __init__(self, options: SamplingOptions, decoding: Decoding, worker: Worker) -> None:
        raise InputError(
            "Expected `sampler` to draw answers, but got 'imported', which is only for stores that were imported from "
            "a log. Pass local or server, or import a log with `python -m extract import`."
        )
