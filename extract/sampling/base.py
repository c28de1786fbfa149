"""`Sampler`: the interface of what fills stores with samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from extract.policy import Decoding, Policy
from extract.running.worker import Worker
from extract.sampling.server.policy import Server
from extract.store.questions import Questions
from extract.store.store import Store


@dataclass(frozen=True)
class SamplingOptions:
    """The options of a `StoreRecipe` for its sampler; `StoreRecipe` documents them."""

    model: str
    k: int
    block_size: int = 32
    revision: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    device_map: str | None = None
    max_rows: int = 320
    server: Server = field(default_factory=Server)


class Sampler(Protocol):
    """Fills the store, or the stores of a temperature grid, in one run of ``python -m extract sample``.

    Implementations inherit from it, and have a `Declaration` in `extract.samplers`. The methods are called in this
    order; `known_policy` and `prepare` may be left out.

    Args:
        options: Model, number of samples, and how the sampler runs.
        decoding: How answers are drawn; of a grid, at all its temperatures.
        worker: Whose blocks are filled.
    """

    def __init__(self, options: SamplingOptions, decoding: Decoding, worker: Worker) -> None: ...

    def known_policy(self, decoding: Decoding, model: Mapping[str, Any]) -> Policy:
        """The policy as far as it is known before `prepare`, to compare it with that of an existing store.

        Args:
            decoding: How answers are drawn; one temperature.
            model: `ModelIdentity` of the store as a dict; whatever is not known yet is taken from it.
        """
        return self.policy(decoding)

    def prepare(self, questions: Questions, new: Sequence[Decoding]) -> None:
        """Load a model or try a server, before stores are made.

        Args:
            questions: All questions.
            new: Decoding of each store that does not exist yet.

        Raises:
            InputError: The model can't be used.
        """

    def policy(self, decoding: Decoding) -> Policy:
        """The policy of a store, which its identity holds. `decoding` has one temperature."""

    def fill(self, stores: Mapping[float, Store], k: int) -> None:
        """Add the samples that the stores lack.

        Args:
            stores: The store of each temperature. They differ in nothing else.
            k: Samples of every question.

        Raises:
            InputError: Some samples could not be made. Those that were made are kept.
        """
