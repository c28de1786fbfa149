"""Going on with half as much at a time when the accelerator's memory is full."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

import torch
from tqdm import tqdm

from extract.errors import InputError
from extract.running.progress import Counted

Result = TypeVar("Result")


def halving(
    work: Callable[[int, Counted], Result], size: int, what: str, progress: Callable[[int, int], None]
) -> tuple[Result, int]:
    """Do work with `size` things at a time, and again with half as many while memory runs out.

    Args:
        work: Called with the number of things at a time and a progress callback; starts from the beginning each time.
        size: How many to begin with.
        what: What is counted, for the message.
        progress: Told of what is done; what has to be done again is taken back.

    Returns:
        The result, and how many at a time it was done with.

    Raises:
        InputError: Memory is too small for one at a time.
    """
    while True:
        counted = Counted(progress)
        try:
            return work(size, counted), size
        except torch.OutOfMemoryError as error:
            counted.take_back()
            if size == 1:
                raise InputError(
                    f"Expected a device with memory for the model and one of its {what} at a time, but it is too small: {str(error).splitlines()[0]} Use --device cpu, --device_map auto, or shorter prompts and answers."
                ) from None
        size //= 2  # outside `except`, whose traceback holds the tensors
        torch.cuda.empty_cache()
        tqdm.write(f"out of memory: going on with {size} {what} at a time", file=sys.stderr)
