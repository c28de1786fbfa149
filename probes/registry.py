"""The probes by name: what each is taught, what it reads, and how a comparison fits it.

A new probe is one file with a `ProbeModule`, and one entry here. Classes are imported when they are used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from extract.registry import Registry, import_object

#: Options whose values a probe tries, so that validation can choose one: in words, for reports.
OPTIONS = {"l2": "L2", "n_neighbors": "number of neighbours"}


@dataclass(frozen=True)
class ProbeMethod:
    """A probe class with what it is taught and what it reads.

    Attributes:
        path: Module and name of the class, ``module:Name``.
        target: Target of the `FeatureDataModule`: what the probe is taught.
        signal: Signal that it reads.
        positions: Positions of the signal.
        epochs: Epochs of training in a comparison.
        compared: Whether validation may choose it as the best probe of a comparison.
    """

    path: str
    target: str = "capability"
    signal: str = "hidden"
    positions: tuple[str, ...] = ("last_prompt",)
    epochs: int = 1
    compared: bool = True

    @property
    def class_name(self) -> str:
        """Name of the class, as `train.py --model` takes it."""
        return self.path.partition(":")[2]

    def load(self) -> Any:
        """The class, a `ProbeModule`."""
        return import_object(self.path)


LOGISTIC, RIDGE = "probes.logistic:Logistic", "probes.ridge:Ridge"
#: Every method.
METHODS = Registry(
    "probe",
    {
        "linear": ProbeMethod("probes.linear:Linear", epochs=100),
        "logistic": ProbeMethod(LOGISTIC),
        "ridge": ProbeMethod(RIDGE),
        "difference_of_means": ProbeMethod("probes.difference_of_means:DifferenceOfMeans"),
        "mlp": ProbeMethod("probes.mlp:MLP", epochs=60),
        "knn": ProbeMethod("probes.knn:KNN"),
        "latent": ProbeMethod("probes.latent:Latent", epochs=40),
        "sep": ProbeMethod(LOGISTIC, target="semantic_entropy"),
        "seu_ridge": ProbeMethod(RIDGE, target="seu"),
        "response": ProbeMethod(LOGISTIC, target="response", positions=("last_answer", "mean_answer"), compared=False),
        # a baseline that is fitted like a probe, on a sentence embedding of the question
        "text_embedding": ProbeMethod(LOGISTIC, signal="text_embedding", positions=("question",), compared=False),
    },
)
#: Those that read hidden states of questions; validation chooses the best of them in a comparison.
PROBES = Registry(
    "probes", {name: method for name, method in METHODS.items() if method.compared}, renamed={"aseu": "latent"}
)


def chosen_option(chosen: Mapping[str, Any]) -> tuple[str, str]:
    """The option of which validation chose a value, in words, and the value.

    >>> chosen_option({"layer": 3, "n_neighbors": 25.0})
    ('number of neighbours', '25')
    """
    option = next(name for name in OPTIONS if name in chosen)
    return OPTIONS[option], f"{chosen[option]:.12g}"


def method_name(class_name: str, target: str, signal: str) -> str | None:
    """Name of the method that a class is with a target and a signal; None where no entry is of these.

    >>> method_name("Logistic", "semantic_entropy", "hidden"), method_name("MLP", "response", "hidden")
    ('sep', None)
    """
    names = {(method.class_name, method.target, method.signal): name for name, method in METHODS.items()}
    return names.get((class_name, target, signal))
