"""Model card of a saved probe."""

from collections.abc import Sequence
from typing import Any

from extract.signals.features import TokenFeatures
from probes.registry import chosen_option
from probes.report.templates import render, spans

_TAUGHT = {
    "semantic_entropy": "It was trained to predict whether the answers to a question agree. Only the calibrator uses "
    "grades.",
    "seu": "It was trained to predict how similar the answers to a question are. Only the calibrator uses grades.",
}
_COLUMNS = (
    ("auroc", "AUROC"),
    ("brier", "Brier score (debiased for questions)"),
    ("brier_skill", "Brier skill over the training mean"),
    ("ece_width", "ECE, 10 bins of equal width"),
)


def model_card(config: dict[str, Any]) -> str:
    """Render a model card from config.json: purpose, features, usage and test metrics."""
    return render(
        "saved/model_card.md.j2",
        config=config,
        features=what_is_read(config["layers"], config["position"], config.get("pooled")),
        taught=config.get("taught") or _TAUGHT.get(config["target"]),
        option=chosen_option(config["training"])[0],
        columns=_COLUMNS,
    )


def what_is_read(layers: Sequence[int], position: str | None, pooled: dict[str, Any] | None) -> str:
    """Describe a probe's features in words: hidden states, pooled token signals, or both.

    >>> what_is_read([3], "last_answer", {"keys": ["tokens/30/nll"], "pooling": ["mean", "max"], "weights": None})
    'the hidden state of layer 3 at `last_answer` and 2 features of `tokens` (mean, max)'
    """
    hidden = f"the hidden state{'s' * (len(layers) > 1)} of {spans(layers)} at `{position}`" if layers else ""
    if pooled is None:
        return hidden
    features = TokenFeatures.from_json(pooled)
    signals = ", ".join(f"`{name}`" for name in dict.fromkeys(key.split("/")[0] for key in features.keys))
    weights = f"; weighted by `{features.weights}`" if features.weights else ""
    pooling = f" ({', '.join(features.pooling)}{weights})" if features.pooling else ""
    numbers = f"{len(features.names)} features of {signals}{pooling}"
    return f"{hidden} and {numbers}" if hidden else numbers
