"""`Sampler`, the interface of all samplers, and `sample_stores`, which runs a sampler."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from extract.errors import InputError
from extract.policy import Decoding, Identity, Policy
from extract.questions.question import Question, questions_hash
from extract.running.progress import Progress, say
from extract.running.worker import Worker, alone
from extract.samplers import SAMPLERS, sampler_name
from extract.sampling.rounds import StoreRange, reopen_ranges, sample_in_rounds
from extract.sampling.server.policy import Server
from extract.sampling.stopping_settings import Stopping
from extract.store.answer_log import Row
from extract.store.identity import check_folder
from extract.store.questions import Questions
from extract.store.store import Store
from extract.store.verify import write_manifest


@dataclass(frozen=True)
class SamplingOptions:
    """Options of a sampler. See `StoreRecipe` for their meaning."""

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
    """Interface of samplers. A sampler fills one store, or all stores of a temperature grid.

    An implementation inherits from this class and has a `Declaration` in `extract.samplers`. The methods are called in
    the order in which they are defined. `known_policy`, `prepare` and `draw` are optional. `draw` is called instead of
    `fill` if sampling may stop early.

    Args:
        options: Model, number of samples and other options.
        decoding: Decoding options, including all temperatures of a grid.
        worker: Worker whose blocks the sampler fills.
    """

    def __init__(self, options: SamplingOptions, decoding: Decoding, worker: Worker) -> None: ...

    def known_policy(self, decoding: Decoding, model: Mapping[str, Any]) -> Policy:
        """Return the policy. This method is called before `prepare`, so some values may be unknown.

        `decoding` must have a single temperature. `model` is the `ModelIdentity` of an existing store as a dict.
        Unknown values are copied from `model`. The result is compared with the policy of the existing store.
        """
        return self.policy(decoding)

    def prepare(self, questions: Questions, new: Sequence[Decoding]) -> None:
        """Load the model or test the server before any store is created.

        `new` contains the decoding options of each store that does not exist yet.

        Raises:
            InputError: If the model or the server can't be used.
        """

    def policy(self, decoding: Decoding) -> Policy:
        """Return the policy to record in a store's identity. `decoding` must have a single temperature."""

    def fill(self, stores: Mapping[float, Store], k: int) -> None:
        """Add the missing samples to the stores, so that each question has `k` samples.

        The stores differ only in temperature.

        Raises:
            InputError: If some samples could not be drawn. Samples drawn so far are kept.
        """

    def draw(
        self, ranges: Mapping[float, StoreRange], question_ids: Sequence[str], samples: range, progress: Progress
    ) -> dict[float, list[Row]]:
        """Draw samples for some questions of a block, and append them to the answer logs of `ranges`.

        Args:
            ranges: Dict from temperature to a tuple of a store and one of its sample ranges. The range must include all
                of `samples`.
            question_ids: Ids of the questions.
            samples: Indices of the samples to draw.
            progress: Progress bar that counts the answers.

        Returns:
            Dict from temperature to the rows of the samples table. Questions that a server rejected have no rows.

        Raises:
            InputError: If some samples could not be drawn, or if the sampler does not override this method.
        """
        raise InputError(
            f"Expected a sampler that can stop early, but {type(self).__name__} has no `draw` method. Omit --stop."
        )


def sample_stores(
    folders: Mapping[float, Path],
    name: str,
    options: SamplingOptions,
    questions: Sequence[Question],
    decoding: Decoding,
    worker: Worker,
    stopping: Stopping | None = None,
) -> list[Store]:
    """Create or resume one store per temperature. `folders` maps each temperature, in ascending order, to a folder."""
    prompt = decoding.prompt
    if prompt.shots and not prompt.chat and not decoding.stop:
        say(
            "sample: the prompt has worked examples, but no stop string is set. The model may append further questions "
            "to its answer, and they would be graded too. To prevent this, set --policy.stop "
            f"'{json.dumps([prompt.next_question])}'"
        )
    sampler: Sampler = SAMPLERS[name].load()(options, decoding, worker)
    table = Questions.of(questions, options.block_size)
    sha256, version, new = questions_hash(table), SAMPLERS[name].version, []
    for temperature, folder in folders.items():  # before loading a model or contacting a server
        check_folder(folder)
        if (folder / "identity.json").is_file():
            check_identity(Store.open(folder), name, options, sha256, decoding.at(temperature))
        else:
            new.append(decoding.at(temperature))
    with ExitStack() as locks:
        for folder in folders.values():
            locks.enter_context(worker.writing(folder))
        sampler.prepare(table, new)
        stores = {}
        for temperature, folder in folders.items():
            identity = Identity(sampler.policy(decoding.at(temperature)), sha256, options.block_size, version)
            with alone(folder):
                stores[temperature] = Store.create(folder, identity, table)
        reopen_ranges(stores, options.k, stopping, worker)
        if stopping is None:
            sampler.fill(stores, options.k)
        else:
            sample_in_rounds(sampler.draw, stores, options.k, stopping, worker)
        for store in stores.values():
            with alone(store.path):
                write_manifest(store)
    return list(stores.values())


def check_identity(
    store: Store, name: str, options: SamplingOptions, questions_sha256: str, decoding: Decoding
) -> None:
    """Raise an `InputError` if the identity of a store does not match this run.

    `decoding` must have a single temperature, and its prompt must include the worked examples.
    """
    held, declaration = store.identity, SAMPLERS[name]
    sampler: Sampler = declaration.load()(options, decoding, Worker())
    policy = sampler.known_policy(decoding, held["policy"]["model"])
    version = held["sampler"] if sampler_name(held["sampler"]) == name else declaration.version
    store.check_identity(Identity(policy, questions_sha256, options.block_size, version).as_dict())
