"""Retrying with smaller batches when the accelerator runs out of memory."""

import sys
from collections.abc import Callable
from typing import TypeVar

import torch
from tqdm import tqdm

from extract.errors import InputError
from extract.running.progress import Count

Result = TypeVar("Result")


def retry_with_smaller_batch(
    work: Callable[[int, Count], Result], size: int, what: str, progress: Count
) -> tuple[Result, int]:
    """Run `work` with batches of `size`. Halve the size and restart whenever memory runs out.

    Args:
        work: Called with the batch size and a progress callback. Each call starts from the beginning.
        size: First batch size.
        what: Items of a batch, for messages, for example ``"answers"``.
        progress: Progress callback. Counts of failed attempts are subtracted.

    Returns:
        The result, and the batch size of the successful attempt.

    Raises:
        InputError: If memory is too small for a batch of one.
    """
    done = [0, 0]

    def counted(items: int, tokens: int) -> None:
        done[:] = done[0] + items, done[1] + tokens
        progress(items, tokens)

    while True:
        try:
            return work(size, counted), size
        except torch.OutOfMemoryError as error:
            counted(-done[0], -done[1])
            if size == 1:
                raise InputError(
                    f"Expected memory for one of the {what} at a time, but got: {str(error).splitlines()[0]} "
                    "Use --device cpu, --device_map auto, or shorter prompts and answers."
                ) from None
        size //= 2  # outside `except`, whose traceback holds the tensors
        torch.cuda.empty_cache()
        tqdm.write(f"out of memory: continuing with {size} {what} at a time", file=sys.stderr)
