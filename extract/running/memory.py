"""Retry with smaller batches when the accelerator runs out of memory."""

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
    """Run `work`. Whenever memory runs out, halve the batch size and start again.

    `what` names the items of a batch in messages, for example ``"answers"``. Items and tokens counted in a
    failed attempt are subtracted from `progress`. Returns the result and the last batch size. Raises an `InputError` if
    even batches of 1 are too large.
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
                    f"Expected enough memory to process {what} one at a time, but memory ran out: "
                    f"{str(error).splitlines()[0]} Use --device cpu, --device_map auto, or shorter prompts and answers."
                ) from None
        size //= 2  # outside `except`, because its traceback keeps the tensors alive
        torch.cuda.empty_cache()
        tqdm.write(f"out of memory: continuing with {size} {what} at a time", file=sys.stderr)
