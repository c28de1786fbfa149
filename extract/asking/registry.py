"""Registry of model-based baselines. To add a baseline, register a subclass of `AskedTable` here."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from extract.registry import Registry, import_object
from extract.store.shards import Scope


class AskedEntry(NamedTuple):
    """Registry entry of a model-based baseline.

    Attributes:
        implementation: Import path ``module:class``.
        scopes: Scopes that the baseline supports: question, sample or both.
        summary: Description for the help message.
        confidences: Baselines in `probes` that use the stored values as scores, each with its calibrator. The
            calibrator is ``"platt"``, ``"isotonic"``, or None if the values are probabilities. If the dict is not
            empty, the model-based baseline must have a single scope and one value per row.
        options: Additional options that `ask` requires, as typed on the command line.
    """

    implementation: str
    scopes: tuple[Scope, ...]
    summary: str
    confidences: Mapping[str, str | None] = MappingProxyType({})
    options: str = ""

    def load(self) -> Any:
        """Import and return the class, a subclass of `AskedBaseline`."""
        return import_object(self.implementation)


ASKED: Registry[AskedEntry] = Registry(
    "baselines",
    {
        "verbalized": AskedEntry(
            "extract.asking.verbalized:Verbalized",
            ("question",),
            "the model states the probability that its answer will be right",
            {"verbalized": None, "verbalized_isotonic": "isotonic"},
        ),
        "p_true": AskedEntry(
            "extract.asking.p_true:PTrue",
            ("question",),
            "probability that the model replies Yes when asked whether it can answer the question",
            {"p_true": None, "p_true_isotonic": "isotonic"},
        ),
        "p_true_answer": AskedEntry(
            "extract.asking.p_true:PTrueAnswer",
            ("sample",),
            "probability that the model replies Yes when asked whether its answer is right",
            {"p_true_answer": "platt"},
        ),
        "likelihood": AskedEntry(
            "extract.likelihood.baseline:Likelihood",
            ("question",),
            "probability of the most likely option",
            {"likelihood": None, "likelihood_isotonic": "isotonic"},
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
    """Return the command that adds a model-based baseline to a store.

    >>> ask_command("p_true")
    "python -m extract ask --store STORE --baselines '[p_true]'"
    """
    return f"python -m extract ask --store {store} --baselines '[{name}]'{ASKED[name].options}"
