"""Load questions, sample and grade answers, read signals from the model, and store the results.

Public names are imported on first use.
"""

from importlib import import_module
from typing import Any

_PUBLIC = {
    "InputError": "extract.errors",
    "Decoding": "extract.policy",
    "PromptTemplate": "extract.prompts",
    "Question": "extract.questions",
    "Store": "extract.store.store",
    "StoreRecipe": "extract.recipe",
    "load_model": "extract.models.loading",
    "load_questions": "extract.questions",
    "grade": "extract.commands",
    "merge": "extract.store.merge",
    "read": "extract.commands",
    "sample": "extract.commands",
    "sample_family": "extract.commands",
}


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'extract' has no attribute {name!r}")


__all__ = sorted(_PUBLIC)
