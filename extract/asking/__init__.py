"""Baselines that ask a model: in words, by Yes or No, by embedding texts, by comparing answers.

A new one is one subclass of `Baseline` and one entry in `BASELINES`. The model code is imported when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from extract.errors import InputError, nearest

if TYPE_CHECKING:
    from extract.asking.base import Baseline

BASELINES: dict[str, str] = {
    "verbalized": "extract.asking.verbalized:Verbalized",
    "p_true": "extract.asking.p_true:PTrue",
    "p_true_answer": "extract.asking.p_true:PTrueAnswer",
    "text_embedding": "extract.asking.embedding:TextEmbedding",
    "entailment": "extract.asking.clusters:Entailment",
}


def load_baseline(name: str) -> type[Baseline]:
    """The class of a baseline.

    Raises:
        InputError: Unknown name.
    """
    if name not in BASELINES:
        raise InputError(
            f"Expected `baselines` to be among {', '.join(BASELINES)}, but got {name!r}.{nearest(name, BASELINES)}"
        )
    module, attribute = BASELINES[name].split(":")
    loaded: type[Baseline] = getattr(import_module(module), attribute)
    return loaded
