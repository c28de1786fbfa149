"""Signals: what is read from a model's inside. A new one is one function and one entry in `SIGNALS`.

A signal's function takes a `Pass`, a batch of questions or answers that the model has just read, and returns tensors
[row, …] by ``layer/name`` key; those of the tokens of an answer are [row, token], padded, and are cut to the answers'
lengths by the reader. All signals that are asked for are taken from the same pass. The model code is imported when a
signal is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from extract.errors import InputError, nearest
from extract.store.shards import Scope

#: What a function may find in its `Pass` beside the decoder's output, and where, if its `Signal.needs` name it.
NEEDS = {
    "hidden": "`states`: hidden states at named positions",
    "logits": "`lens`: log_p, entropy, largest, margin of the model's own distribution",
    "lens": "`lens`: entropies of every layer's",
    "exit": "`lens`: margins, agrees, next_cosines, last_cosines of every layer",
    "divergence": "`lens`: kl, jsd, early_late",
    "attention_entropy": "`attention.layers`: entropies of attention",
    "attention_blocks": "`attention.layers`: attention among the answer's tokens, mean over heads",
    "attention_macs": "`attention.floors`: products over layers of the strongest head's attention",
    "mixing": "`attention.dots`: how much attention adds to the residual stream",
}


class Signal(NamedTuple):
    """Where a signal's functions are, as ``module:function``, and what its numbers mean.

    Attributes:
        question: Function at question scope, where the last token of the prompt is looked at; None for none.
        sample: Function at sample scope, where every token of an answer is; None for none.
        needs: What the pass is read for, among `NEEDS`; nothing where the decoder's output is enough.
        per_token: Whether it has a number for every token of an answer, and not one tensor for the answer.
        by_layer: Whether some of its layers can be chosen before reading.
        weights: Whether its numbers say how much a token matters, and not how uncertain the model was.
        rising: Names whose larger numbers speak for a right answer; all others speak for a wrong one.
    """

    question: str | None
    sample: str | None
    needs: tuple[str, ...]
    per_token: bool = True
    by_layer: bool = False
    weights: bool = False
    rising: tuple[str, ...] = ()


def of_tokens(function: str, *needs: str, rising: tuple[str, ...] = ()) -> Signal:
    """A signal of every token, by one function for both scopes."""
    return Signal(function, function, needs, rising=rising)


def of_influence(function: str, *needs: str) -> Signal:
    """A signal that says how much every token of an answer matters."""
    return Signal(None, function, needs, weights=True)


SIGNALS: dict[str, Signal] = {
    "hidden": Signal(
        "extract.signals.hidden:question_signal",
        "extract.signals.hidden:answer_signal",
        ("hidden",),
        per_token=False,
        by_layer=True,
    ),
    "tokens": of_tokens("extract.signals.tokens:tokens", "logits", rising=("margin",)),
    "entropy_profile": of_tokens("extract.signals.profile:entropy_profile", "lens"),
    "evolution": of_tokens("extract.signals.evolution:evolution", "lens", "divergence"),
    "early_exit": of_tokens("extract.signals.early_exit:early_exit", "lens", "exit"),
    "attention_entropy": of_tokens("extract.signals.attention_entropy:attention_entropy", "attention_entropy"),
    "rollout": of_influence("extract.signals.rollout:rollout", "attention_blocks", "mixing"),
    "rollout_max": of_influence("extract.signals.rollout:rollout_max", "attention_blocks", "mixing"),
    "macs": of_influence("extract.signals.macs:macs", "attention_macs"),
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
