"""Registry of signals: functions that take a `Pass` and return a dict from ``layer/name`` to tensors.

The modules of these functions import model code, so each is imported only on first use.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from extract.errors import InputError
from extract.registry import Registry, import_object
from extract.store.shards import Scope

#: Data that a signal can need, with the attribute of `Pass` that stores it.
NEEDS = {
    "hidden": "`states`: hidden states at named positions",
    "hidden_tokens": "`token_states`: hidden states of every answer token",
    "logits": "`lens`: log_p, entropy, largest and margin of the model's own distribution",
    "lens": "`lens`: entropies of every layer's distribution",
    "exit": "`lens`: margins, agrees, previous_cosines and last_cosines of every layer",
    "divergence": "`lens`: kl, jsd and early_late",
    "attention_entropy": "`attention.layers`: entropies of attention",
    "attention_blocks": "`attention.layers`: attention among the answer's tokens, averaged over heads",
    "attention_macs": "`attention.floors`: products over layers of the strongest head's attention",
    "mixing": "`attention.dots`: how much attention adds to the residual stream",
}


class Signal(NamedTuple):
    """Registry entry of a signal.

    Attributes:
        function: Import path, ``module:function``.
        description: Description for help and documentation.
        needs: Data that the signal needs besides the decoder's output, as keys of `NEEDS`.
        scopes: Supported scopes: ``question`` (last prompt token), ``sample`` (every answer token), or both.
        per_token: Whether the signal has one value per answer token, rather than one per answer.
        vectors: Whether the values are vectors [d_model].
        by_layer: Whether the caller can choose which layers to read.
        depths: Layers that are read by default, as fractions of the number of blocks. If empty, all layers are read.
        weights: Whether the values measure a token's influence and can be used as token weights.
        rising: Names of the values that tend to be larger for right answers than for wrong ones. All other values tend
            to be smaller for right answers.
        version: Version of the definition, recorded in stores. Increase it if values or names change.
    """

    function: str
    description: str
    needs: tuple[str, ...] = ()
    scopes: tuple[Scope, ...] = ("question", "sample")
    per_token: bool = True
    vectors: bool = False
    by_layer: bool = False
    depths: tuple[float, ...] = ()
    weights: bool = False
    rising: tuple[str, ...] = ()
    version: int = 1

    @property
    def settings(self) -> dict[str, Any]:
        """Settings that a store records with the signal's values."""
        return {"version": self.version}

    def default_layers(self, n_layers: int) -> list[int]:
        """Return the default layers for a model with `n_layers` blocks.

        >>> SIGNALS["hidden_tokens"].default_layers(30)
        [12, 18, 24]
        """
        return sorted({round(depth * n_layers) for depth in self.depths}) or list(range(n_layers + 1))


_influence = partial(Signal, scopes=("sample",), weights=True)

SIGNALS: Registry[Signal] = Registry(
    "signals",
    {
        "hidden": Signal(
            "extract.signals.hidden:hidden",
            "hidden states at named token positions",
            ("hidden",),
            per_token=False,
            vectors=True,
            by_layer=True,
        ),
        "hidden_tokens": Signal(
            "extract.signals.hidden:hidden_tokens",
            "hidden states of every answer token",
            ("hidden_tokens",),
            scopes=("sample",),
            vectors=True,
            by_layer=True,
            depths=(0.4, 0.6, 0.8),
        ),
        "tokens": Signal(
            "extract.signals.lens_signals:tokens",
            "probability of the sampled token; entropy and margin of the next-token distribution",
            ("logits",),
            rising=("margin",),
        ),
        "entropy_profile": Signal(
            "extract.signals.lens_signals:entropy_profile",
            "entropy of the next-token distribution of every layer",
            ("lens",),
        ),
        "evolution": Signal(
            "extract.signals.lens_signals:evolution",
            "divergence between the output distribution and the next-token distributions of the preceding layers",
            ("lens", "divergence"),
        ),
        "early_exit": Signal(
            "extract.signals.lens_signals:early_exit",
            "layer at which the model could have stopped",
            ("lens", "exit"),
            version=2,
        ),
        "attention_entropy": Signal(
            "extract.signals.attention:attention_entropy", "entropy of every layer's attention", ("attention_entropy",)
        ),
        "rollout": _influence(
            "extract.signals.attention:rollout",
            "influence of a token on the answer through all layers (attention rollout)",
            ("attention_blocks", "mixing"),
        ),
        "rollout_max": _influence(
            "extract.signals.attention:rollout_max",
            "largest influence of a token on any answer token (takes O(n³) time for n tokens; rollout: O(n²))",
            ("attention_blocks", "mixing"),
        ),
        "macs": _influence(
            "extract.signals.attention:macs",
            "attention that a token receives from later tokens, maximised over the heads of each layer (MACS)",
            ("attention_macs",),
        ),
    },
)


def signals_of(scope: Scope, **properties: bool) -> list[str]:
    """Return the names of the signals that support a scope and have the given properties.

    >>> signals_of("sample", weights=True)
    ['rollout', 'rollout_max', 'macs']
    """
    return [
        name
        for name, signal in SIGNALS.items()
        if scope in signal.scopes and all(getattr(signal, key) == value for key, value in properties.items())
    ]


def load_signal(name: str, scope: Scope = "question") -> Callable[..., dict[str, Any]]:
    """Load a signal's function. Raises an InputError if the signal does not support the scope."""
    if scope not in SIGNALS[name].scopes:
        raise InputError(
            f"Expected `signals` to be one of {', '.join(signals_of(scope))} for `scope` {scope}, but got {name!r}. "
            f"To read this signal, pass --scope {SIGNALS[name].scopes[0]}."
        )
    return import_object(SIGNALS[name].function)


def descriptions(scope: Scope, besides: Scope | None = None) -> list[str]:
    """Return ``name (description)`` for each signal that supports `scope`.

    Signals that also support `besides` are left out.
    """
    names = [name for name in signals_of(scope) if besides not in SIGNALS[name].scopes]
    return [f"{name} ({SIGNALS[name].description})" for name in names]


def signal_table() -> str:
    """Return the Markdown table of signals for docs/signals.md."""
    lines = ["| signal | read for | layers | description |", "|---|---|---|---|"]
    for name, signal in SIGNALS.items():
        scopes = "questions, answers" if len(signal.scopes) > 1 else "answers"
        layers = "chosen by `--layers`" if signal.by_layer else "all"
        lines.append(f"| `{name}` | {scopes} | {layers} | {signal.description} |")
    return "\n".join(lines)
