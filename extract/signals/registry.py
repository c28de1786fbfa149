"""Signals by name. A signal is a function from a `Pass` to tensors by ``layer/name``, [row, token] for token signals.

The module of a signal, and with it the model code, is imported when the signal is loaded.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from extract.errors import InputError
from extract.registry import Registry, import_object
from extract.store.shards import Scope

#: Data of a pass in addition to the decoder's output, and the attribute of the `Pass` that holds it.
NEEDS = {
    "hidden": "`states`: hidden states at named positions",
    "logits": "`lens`: log_p, entropy, largest, margin of the model's own distribution",
    "lens": "`lens`: entropies of every layer's distribution",
    "exit": "`lens`: margins, agrees, next_cosines, last_cosines of every layer",
    "divergence": "`lens`: kl, jsd, early_late",
    "attention_entropy": "`attention.layers`: entropies of attention",
    "attention_blocks": "`attention.layers`: attention among the answer's tokens, mean over heads",
    "attention_macs": "`attention.floors`: products over layers of the strongest head's attention",
    "mixing": "`attention.dots`: how much attention adds to the residual stream",
}


class Signal(NamedTuple):
    """Function of a signal and the meaning of its numbers.

    Attributes:
        function: Import path, ``module:function``.
        description: Short description for help and documentation.
        needs: Data required from the pass, among `NEEDS`; empty if the decoder's output is enough.
        scopes: Supported scopes: questions (last token of the prompt), answers (every token), or both.
        per_token: Whether it has one number per token of an answer instead of one tensor per answer.
        by_layer: Whether layers can be chosen before reading.
        weights: Whether its numbers measure how much a token matters, not how uncertain the model was.
        rising: Names whose larger numbers indicate a right answer. Larger numbers of all others indicate a wrong one.
    """

    function: str
    description: str
    needs: tuple[str, ...] = ()
    scopes: tuple[Scope, ...] = ("question", "sample")
    per_token: bool = True
    by_layer: bool = False
    weights: bool = False
    rising: tuple[str, ...] = ()


_influence = partial(Signal, scopes=("sample",), weights=True)

SIGNALS: Registry[Signal] = Registry(
    "signals",
    {
        "hidden": Signal(
            "extract.signals.hidden:hidden",
            "hidden states of every layer at named positions",
            ("hidden",),
            per_token=False,
            by_layer=True,
        ),
        "tokens": Signal(
            "extract.signals.lens_signals:tokens",
            "probability of the drawn token, entropy and margin of its distribution",
            ("logits",),
            rising=("margin",),
        ),
        "entropy_profile": Signal(
            "extract.signals.lens_signals:entropy_profile", "entropy of every layer's distribution", ("lens",)
        ),
        "evolution": Signal(
            "extract.signals.lens_signals:evolution",
            "divergence of the last layers' distributions from the final one",
            ("lens", "divergence"),
        ),
        "early_exit": Signal(
            "extract.signals.lens_signals:early_exit", "layer at which the model could have stopped", ("lens", "exit")
        ),
        "attention_entropy": Signal(
            "extract.signals.attention:attention_entropy", "entropy of every layer's attention", ("attention_entropy",)
        ),
        "rollout": _influence(
            "extract.signals.attention:rollout",
            "influence of a token through all layers (attention rollout)",
            ("attention_blocks", "mixing"),
        ),
        "rollout_max": _influence(
            "extract.signals.attention:rollout_max",
            "largest influence of a token on any answer token; costs n³ instead of n²",
            ("attention_blocks", "mixing"),
        ),
        "macs": _influence(
            "extract.signals.attention:macs",
            "attention of later tokens to a token, strongest head of every layer (MACS)",
            ("attention_macs",),
        ),
    },
)


def signals_of(scope: Scope, **properties: bool) -> list[str]:
    """Names of the signals of a scope with the given properties.

    >>> signals_of("sample", weights=True)
    ['rollout', 'rollout_max', 'macs']
    """
    return [
        name
        for name, signal in SIGNALS.items()
        if scope in signal.scopes and all(getattr(signal, key) == value for key, value in properties.items())
    ]


def load_signal(name: str, scope: Scope = "question") -> Callable[..., dict[str, Any]]:
    """Load the function of a signal.

    Raises:
        InputError: If the name is unknown, or the signal does not support the scope.
    """
    if scope not in SIGNALS[name].scopes:
        raise InputError(
            f"Expected `signals` to be among {', '.join(signals_of(scope))} at `scope` {scope}, but got {name!r}. Give "
            "the other `scope`."
        )
    return import_object(SIGNALS[name].function)


def descriptions(scope: Scope, besides: Scope | None = None) -> list[str]:
    """``name (description)`` of the signals of a scope, without those of the scope `besides`, for help."""
    names = [name for name in signals_of(scope) if besides not in SIGNALS[name].scopes]
    return [f"{name} ({SIGNALS[name].description})" for name in names]


def signal_table() -> str:
    """Markdown table of the signals for docs/signals.md."""
    lines = ["| signal | read for | layers | description |", "|---|---|---|---|"]
    for name, signal in SIGNALS.items():
        scopes = "questions, answers" if len(signal.scopes) > 1 else "answers"
        layers = "chosen by `--layers`" if signal.by_layer else "all"
        lines.append(f"| `{name}` | {scopes} | {layers} | {signal.description} |")
    return "\n".join(lines)
