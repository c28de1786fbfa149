"""Signals: what is read from a model's inside. A new one is one function and one entry in `SIGNALS`.

A signal takes a model, the prompts of a block, how many tokens to read at a time and a progress callback, and returns
tensors [question, …] by ``layer/position`` key. The model code is imported when a signal is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from extract.errors import InputError, nearest

SIGNALS: dict[str, str] = {"hidden": "extract.signals.hidden:hidden_signal"}


def load_signal(name: str) -> Callable[..., dict[str, Any]]:
    """The function of a signal.

    Raises:
        InputError: Unknown name.
    """
    if name not in SIGNALS:
        raise InputError(
            f"Expected `signals` to be among {', '.join(SIGNALS)}, but got {name!r}.{nearest(name, SIGNALS)}"
        )
    module, function = SIGNALS[name].split(":")
    return getattr(import_module(module), function)
