"""`Sampler`: the interface of what fills stores with samples, and one run of a sampler."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from extract.policy import Decoding, Identity, Policy
from extract.questions.question import Question, questions_hash
from extract.running.progress import say
from extract.running.worker import Worker, alone
from extract.samplers import SAMPLERS, sampler_name
from extract.sampling.server.policy import Server
from extract.store.identity import check_folder
from extract.store.questions import Questions
from extract.store.store import Store
from extract.store.verify import write_manifest


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


def sample_stores(
    folders: Mapping[float, Path],
    name: str,
    options: SamplingOptions,
    questions: Sequence[Question],
    decoding: Decoding,
    worker: Worker,
) -> list[Store]:
    """Make or continue the stores of some temperatures; returns them in the order of `folders`.

    Args:
        folders: Folder of the store of each temperature, ascending.
        name: Name of the sampler.
        decoding: How answers are drawn, with the prompt's examples.

    Raises:
        InputError: As `Sampler.prepare` and `Sampler.fill`, or a folder holds a store of another identity.
    """
    prompt = decoding.prompt
    if prompt.shots and not prompt.chat and not decoding.stop:
        say(
            "sample: worked examples in plain text and no stop: a model goes on with the next question, and what it "
            f"makes up is graded too. Give for example --policy.stop '{json.dumps([prompt.next_question])}'"
        )
    sampler: Sampler = SAMPLERS[name].load()(options, decoding, worker)
    table = Questions.of(questions, options.block_size)
    sha256, version, new = questions_hash(table), SAMPLERS[name].version, []
    for temperature, folder in folders.items():  # before a model is loaded or asked
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
        sampler.fill(stores, options.k)
        for store in stores.values():
            with alone(store.path):
                write_manifest(store)
    return list(stores.values())


def check_identity(
    store: Store, name: str, options: SamplingOptions, questions_sha256: str, decoding: Decoding
) -> None:
    """Refuse a store that a run would not make, as far as that is known before a model is loaded or asked.

    The `decoding` has one temperature and the prompt's examples.

    Raises:
        InputError: Decoding, questions, model, block size or sampler differ.
    """
    held, declaration = store.identity, SAMPLERS[name]
    sampler: Sampler = declaration.load()(options, decoding, Worker())
    policy = sampler.known_policy(decoding, held["policy"]["model"])
    version = held["sampler"] if sampler_name(held["sampler"]) == name else declaration.version
    store.check_identity(Identity(policy, questions_sha256, options.block_size, version).as_dict())
