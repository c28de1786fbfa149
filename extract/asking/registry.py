"""Registry of asked baselines. A new baseline is a file with a subclass of `AskedTable`, and an entry here."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from extract.registry import Registry, import_object
from extract.store.shards import Scope


class AskedEntry(NamedTuple):
    """Registry entry of an asked baseline.

    Attributes:
        implementation: Class as ``module:class``, imported on first use.
        scopes: Scopes of its values: question, sample or both.
        summary: Description for the help.
        confidences: Baselines of `probes` that use its values, with one value per row of its only scope. Maps each
            name to its calibrator (``"platt"`` or ``"isotonic"``), or to None if the value already is a probability.
            Empty if the values are not scores.
        options: Further required options of `ask`, as typed on the command line.
    """

    implementation: str
    scopes: tuple[Scope, ...]
    summary: str
    confidences: Mapping[str, str | None] = MappingProxyType({})
    options: str = ""

    def load(self) -> Any:
        """Import the class, a subclass of `AskedBaseline`."""
        return import_object(self.implementation)


ASKED: Registry[AskedEntry] = Registry(
    "baselines",
    {
        "verbalized": AskedEntry(
            "extract.asking.verbalized:Verbalized",
            ("question",),
            "the model states a probability",
            {"verbalized": None, "verbalized_isotonic": "isotonic"},
        ),
        "p_true": AskedEntry(
            "extract.asking.p_true:PTrue",
            ("question",),
            "Yes against No: can the model answer the question",
            {"p_true": None, "p_true_isotonic": "isotonic"},
        ),
        "p_true_answer": AskedEntry(
            "extract.asking.p_true:PTrueAnswer",
            ("sample",),
            "Yes against No: is the answer right",
            {"p_true_answer": "platt"},
        ),
        "text_embedding": AskedEntry(
            "extract.asking.embedding:TextEmbedding",
            ("question", "sample"),
            "a sentence encoder embeds questions and answers",
        ),
        "entailment": AskedEntry(
            "extract.asking.entailment:Entailment",
            ("sample",),
            "an entailment classifier clusters the answers to a question",
            options=" --nli_model NAME",
        ),
    },
)


def ask_command(name: str, store: object = "STORE") -> str:
    """Command that adds an asked baseline to a store.

    >>> ask_command("p_true")
    'python -m extract ask --store STORE --baselines [p_true]'
    """
    return f"python -m extract ask --store {store} --baselines [{name}]{ASKED[name].options}"
