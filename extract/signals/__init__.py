"""Signals: what is read from a model's inside. A new one is one function and one entry in `SIGNALS`.

Of questions, a signal takes a model, the prompts of a block, the layers to keep (None for all), how many tokens to read
at a time and a progress callback, and returns tensors [question, …] by ``layer/position`` key. Of answers, it takes an
`AnswerPass`, a batch of answers that the model has just read, and returns tensors [row, …]; what several signals need is
read in the same pass. The model code is imported when a signal is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from extract.errors import InputError, nearest
from extract.parts import Scope


class Signal(NamedTuple):
    """Where a signal's functions are, as ``module:function``; None for a scope that it does not have.

    Attributes:
        question: Function of the questions.
        sample: Function of the answers.
        by_layer: Whether it has tensors of every layer, of which some can be chosen.
    """

    question: str | None = None
    sample: str | None = None
    by_layer: bool = False


SIGNALS: dict[str, Signal] = {
    "hidden": Signal("extract.signals.hidden:hidden_signal", "extract.signals.hidden:answer_signal", by_layer=True),
    "token_entropy": Signal(sample="extract.signals.entropy:entropy_signal"),
}


def load_signal(name: str, scope: Scope = "question") -> Callable[..., dict[str, Any]]:
    """The function of a signal for a scope.

    Raises:
        InputError: Unknown name, or a signal that the scope does not have.
    """
    if name not in SIGNALS:
        raise InputError(
            f"Expected `signals` to be among {', '.join(SIGNALS)}, but got {name!r}.{nearest(name, SIGNALS)}"
        )
    found = getattr(SIGNALS[name], scope)
    if found is None:
        of_scope = [one for one, signal in SIGNALS.items() if getattr(signal, scope)]
        raise InputError(
            f"Expected `signals` to be among {', '.join(of_scope)} at `scope` {scope}, but got {name!r}. Give the other `scope`, which has it."
        )
    module, function = found.split(":")
    return getattr(import_module(module), function)
