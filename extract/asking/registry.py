"""Registry of the asked baselines. A new one is a file with a subclass of `AskedTable`, and an entry here."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from extract.registry import Registry, import_object
from extract.store.shards import Scope


class AskedEntry(NamedTuple):
    """An asked baseline.

    Attributes:
        implementation: Its class as ``module:class``, which is imported when it is used.
        scopes: What it asks about: questions, answers or both.
        summary: What it does, for the help.
        confidences: Baselines of `probes` that its values become, one value a row of its only scope. By name: the
            calibrator that makes the value a confidence (``"platt"`` or ``"isotonic"``), or None where the value is
            a probability already. Empty where the values are no scores.
        options: Further options that `ask` requires for it, as a user types them.
    """

    implementation: str
    scopes: tuple[Scope, ...]
    summary: str
    confidences: Mapping[str, str | None] = MappingProxyType({})
    options: str = ""

    def load(self) -> Any:
        """The class, a subclass of `AskedBaseline`."""
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
    """The command that fills a store with an asked baseline.

    >>> ask_command("p_true")
    'python -m extract ask --store STORE --baselines [p_true]'
    """
    return f"python -m extract ask --store {store} --baselines [{name}]{ASKED[name].options}"
