"""The probes of a comparison by name: how each is made, what it is taught and what it reads. A new one is one entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from probes.difference_of_means import DifferenceOfMeans
from probes.fitting.module import ProbeModule
from probes.knn import KNN
from probes.latent import Latent
from probes.linear import Linear
from probes.logistic import Logistic
from probes.mlp import MLP
from probes.ridge import Ridge


@dataclass(frozen=True)
class Method:
    """A probe in a comparison.

    Attributes:
        make: Makes the module.
        target: What it is taught, see `FeatureDataModule`.
        signal: Signal that it reads.
        positions: Positions of the signal.
        epochs: Epochs of training.
        needs: Signal of sample scope that it needs for training, beside the one that it reads.
    """

    make: Callable[[], ProbeModule]
    target: str = "capability"
    signal: str = "hidden"
    positions: tuple[str, ...] = ("last_prompt",)
    epochs: int = 1
    needs: str | None = None


#: Probes that read hidden states; validation chooses the best of them.
PROBES: dict[str, Method] = {
    "linear": Method(Linear, epochs=100),
    "logistic": Method(Logistic),
    "ridge": Method(Ridge),
    "difference_of_means": Method(DifferenceOfMeans),
    "mlp": Method(MLP, epochs=60),
    "knn": Method(KNN),
    "aseu": Method(Latent, epochs=40, needs="text_embedding"),
    "sep": Method(Logistic, target="semantic_entropy"),
    "seu_ridge": Method(Ridge, target="seu", needs="text_embedding"),
}
#: A baseline that is fitted like a probe, on what the question says instead of what the model makes of it.
TEXT_EMBEDDING = Method(Logistic, signal="text_embedding", positions=("question",))
#: A probe that reads an answer with its question.
ANSWER_PROBE = Method(Logistic, target="response", positions=("last_answer", "mean_answer"))
