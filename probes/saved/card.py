"""The model card of a saved probe."""

from typing import Any

from extract.signals.features import TokenFeatures
from probes.registry import chosen_option
from probes.report.templates import render

_TAUGHT = {
    "semantic_entropy": "It was taught whether a question's answers agree; only the calibrator has seen grades.",
    "seu": (
        "It was taught how near the embeddings of a question's answers are to each other; only the calibrator has "
        "seen grades."
    ),
}
_COLUMNS = (
    ("auroc", "AUROC"),
    ("brier", "Brier score (of questions: debiased)"),
    ("brier_skill", "Brier skill over the training mean"),
    ("ece_width", "ECE, 10 bins of equal width"),
)


def model_card(config: dict[str, Any]) -> str:
    """README.md of a saved probe: what it is for, what it reads, how good it is, how to use it."""
    return render(
        "saved/model_card.md.j2",
        config=config,
        features=what_is_read(config["layer"], config["position"], config.get("pooled")),
        taught=config.get("taught") or _TAUGHT.get(config["target"]),
        option=chosen_option(config["training"])[0],
        columns=_COLUMNS,
    )


def what_is_read(layer: int | None, position: str | None, pooled: dict[str, Any] | None) -> str:
    """The features of a probe in words: a hidden state, numbers of token signals, or both.

    >>> what_is_read(3, "last_answer", {"keys": ["tokens/30/nll"], "pooling": ["mean", "max"], "weights": None})
    'the hidden state of layer 3 at `last_answer`, with 2 numbers of `tokens` (mean, max)'
    """
    hidden = "" if layer is None else f"the hidden state of layer {layer} at `{position}`"
    if pooled is None:
        return hidden
    features = TokenFeatures.from_json(pooled)
    signals = ", ".join(f"`{name}`" for name in dict.fromkeys(key.split("/")[0] for key in features.keys))
    weights = f"; weighted by `{features.weights}`" if features.weights else ""
    pooling = f" ({', '.join(features.pooling)}{weights})" if features.pooling else ""
    numbers = f"{len(features.names)} numbers of {signals}{pooling}"
    return f"{hidden}, with {numbers}" if hidden else numbers
