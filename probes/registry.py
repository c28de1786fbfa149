"""Registry of the probes.

To add a probe, write a subclass of `ProbeModule` in a new file and register it here. Classes are imported on first use.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from extract.registry import Registry, import_object

#: Options that accept several values to try, with their names in reports.
OPTIONS = {"l2": "L2", "n_neighbors": "number of neighbours"}


@dataclass(frozen=True)
class ProbeMethod:
    """A probe class with its target and features.

    Attributes:
        path: Module and name of the class, in the form ``module:Name``.
        target: Training target. See `FeatureDataModule`.
        signal: Signal that the probe reads.
        positions: Token positions at which the probe reads the signal.
        join: Token signals whose values are appended to every feature.
        epochs: Number of training epochs in a comparison.
        compared: Whether the probe can be selected as the best probe of a comparison.
    """

    path: str
    target: str = "capability"
    signal: str = "hidden"
    positions: tuple[str, ...] = ("last_prompt",)
    join: tuple[str, ...] = ()
    epochs: int = 1
    compared: bool = True

    @property
    def class_name(self) -> str:
        """Class name, as passed to `train.py --model`."""
        return self.path.partition(":")[2]

    def load(self) -> Any:
        """Import the class and return it."""
        return import_object(self.path)


_of_tokens = partial(
    ProbeMethod, target="response", signal="hidden_tokens", positions=("answer_tokens",), epochs=30, compared=False
)
LAYER_AVERAGE = "probes.layer_average:LayerAverage"
LOGISTIC, RIDGE = "probes.logistic:Logistic", "probes.ridge:Ridge"
#: All methods by name.
METHODS = Registry(
    "probe",
    {
        "layer_average": ProbeMethod(LAYER_AVERAGE),
        "layer_average_tokens": ProbeMethod(LAYER_AVERAGE, join=("tokens",)),
        "linear": ProbeMethod("probes.linear:Linear", epochs=100),
        "logistic": ProbeMethod(LOGISTIC),
        "ridge": ProbeMethod(RIDGE),
        "difference_of_means": ProbeMethod("probes.difference_of_means:DifferenceOfMeans"),
        "counts": ProbeMethod("probes.counts:Counts", epochs=100),
        "mlp": ProbeMethod("probes.mlp:MLP", epochs=60),
        "knn": ProbeMethod("probes.knn:KNN"),
        "latent": ProbeMethod("probes.latent:Latent", epochs=40),
        "sep": ProbeMethod(LOGISTIC, target="semantic_entropy"),
        "seu_ridge": ProbeMethod(RIDGE, target="seu"),
        "response": ProbeMethod(LOGISTIC, target="response", positions=("last_answer", "mean_answer"), compared=False),
        "attention": _of_tokens("probes.attention:Attention"),
        "multimax": _of_tokens("probes.multimax:MultiMax"),
        "rolling": _of_tokens("probes.rolling:Rolling"),
        "softmax_sum": _of_tokens("probes.softmax_sum:SoftmaxSum"),
        # a baseline that reads a sentence embedding of the question
        "text_embedding": ProbeMethod(LOGISTIC, signal="text_embedding", positions=("question",), compared=False),
    },
)
#: Methods that read the hidden states of questions. A comparison selects the best of these methods.
PROBES = Registry(
    "probes", {name: method for name, method in METHODS.items() if method.compared}, renamed={"aseu": "latent"}
)


def chosen_option(chosen: Mapping[str, Any]) -> tuple[str, str]:
    """Return the name and value of the option that was tuned, formatted for reports.

    >>> chosen_option({"layers": [3], "n_neighbors": 25.0})
    ('number of neighbours', '25')
    """
    option = next(name for name in OPTIONS if name in chosen)
    return OPTIONS[option], f"{chosen[option]:.12g}"


def method_name(class_name: str, target: str, signal: str) -> str | None:
    """Return the name of the method with this class, target and signal, or None if there is none.

    >>> method_name("Logistic", "semantic_entropy", "hidden"), method_name("MLP", "response", "hidden")
    ('sep', None)
    """
    names = {
        (method.class_name, method.target, method.signal): name for name, method in METHODS.items() if not method.join
    }
    return names.get((class_name, target, signal))
