"""A family: a folder with one store for each temperature of a grid, made together and looked at one after the other."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from decimal import Decimal
from functools import wraps
from pathlib import Path
from typing import Any

from extract.commands import inspect, sample, write_manifest
from extract.errors import InputError
from extract.policy import Identity, Policy
from extract.questions import questions_hash
from extract.recipe import StoreRecipe
from extract.running.worker import Worker, alone
from extract.sampling.run import fill_samples, say_if_endless
from extract.store.identity import check_place, member_stores
from extract.store.questions import Questions
from extract.store.store import Store


def member_name(temperature: float) -> str:
    """Name of a temperature's store in its family: the same in every grid, and in the order of the temperatures below 10.

    >>> [member_name(one) for one in (0, 0.05, 0.1, 1.0, 1e-05)]
    ['t0.0', 't0.05', 't0.1', 't1.0', 't0.00001']
    """
    return f"t{Decimal(repr(float(temperature))):f}"


def sample_family(store: str, recipe: StoreRecipe, worker: Worker | None = None) -> list[Store]:
    """Ask a model each question k times and keep the answers; goes on where an earlier run stopped.

    Args:
        store: Folder of the store, new or made with the same settings; of a grid of temperatures, the folder of their stores.
        recipe: Questions, model and policy.
        worker: This process among several that share the work; None takes what `torchrun` says.

    Returns:
        The store, or that of each temperature.

    Raises:
        InputError: Bad options, unreadable questions or model, or a store of another identity.
    """
    worker, folder, decoding = worker or Worker.from_environment(), Path(store), recipe.policy
    if not isinstance(decoding.temperature, str):
        return [sample(store, recipe, worker)]
    if (folder / "identity.json").is_file():
        raise InputError(
            f"Expected `store` to be a folder for one store of each temperature, but {store!r} is a store itself. Give another --store."
        )
    places = {temperature: folder / member_name(temperature) for temperature in decoding.temperatures}
    if recipe.sampler == "local":
        return sample_grid(places, recipe, worker)
    made = []
    for temperature, place in places.items():
        _head(place)
        made.append(sample(str(place), replace(recipe, policy=decoding.at(temperature)), worker))
    return made


def sample_grid(places: Mapping[float, Path], recipe: StoreRecipe, worker: Worker) -> list[Store]:
    """Make or go on with the stores of several temperatures with a model in this process, which reads each prompt once.

    Args:
        places: Folder of the store of each temperature, ascending.
        recipe: Everything else.
        worker: This process among several.

    Returns:
        The stores in the order of `places`.

    Raises:
        InputError: As `sample`.
    """
    from extract.models.loading import load_model, model_identity
    from extract.sampling.local.sampler import LocalSampler

    loaded, decoding = recipe.load()
    say_if_endless(decoding)
    questions = Questions.of(loaded, recipe.block_size)
    for temperature, place in places.items():  # before the model is loaded
        check_place(place)
        if (place / "identity.json").is_file():
            replace(recipe, policy=decoding.at(temperature)).check_store(Store.open(place), questions)
    model, tokenizer = load_model(recipe.model, recipe.revision, recipe.dtype, recipe.device, recipe.device_map)
    of_model, of_questions = model_identity(model, tokenizer), questions_hash(questions)
    sampler = LocalSampler(model, tokenizer, decoding, recipe.max_rows)
    with ExitStack() as writing:
        stores = {}
        for temperature, place in places.items():
            writing.enter_context(worker.writing(place))
            identity = Identity(Policy(of_model, decoding.at(temperature)), of_questions, recipe.block_size)
            with alone(place):
                stores[temperature] = Store.create(place, identity, questions)
        fill_samples(stores, recipe.k, sampler, worker)
        for store in stores.values():
            write_manifest(store)
    return list(stores.values())


def each_member(command: Callable[..., Any]) -> Callable[..., None]:
    """A command on a store that, given a family, is run on each of its stores in turn; what fails for one stops no other.

    Where a store's command writes a file `out`, each gets one of its own, with the store's name at its end.
    """

    @wraps(command)
    def on_each(store: str, **options: Any) -> None:
        members = member_stores(Path(store))
        if not members:
            command(store=store, **options)
            return
        failed = []
        for member in members:
            _head(member)
            try:
                command(store=str(member), **_of_member(options, member))
            except InputError as error:
                print(f"error: {error}", file=sys.stderr)
                failed.append(member)
        if failed:
            raise InputError(
                f"Expected this to succeed for each of the {len(members)} stores in {store!r}, but it failed for {', '.join(one.name for one in failed)}, as said above."
            )

    return on_each


def inspect_all(store: str, grader: str | None = None, answers: int = 10) -> None:
    """Show what is in a store: policy, counts, accuracy by grader and group with its interval, and answers to read.

    Args:
        store: Folder of the store, or of the stores of a grid, which are shown one after the other and then compared.
        grader: Whose grades are shown in detail; null takes that of the questions' kind, else the first there are.
        answers: How many answers to show, right, wrong and unknown ones.
    """
    from extract.viewing.inspection import compared

    each_member(inspect)(store=store, grader=grader, answers=answers)
    members = member_stores(Path(store))
    if members:
        print(f"\n== {store}, by temperature\n{compared([Store.open(member) for member in members], grader)}")


def _of_member(options: dict[str, Any], member: Path) -> dict[str, Any]:
    if "out" not in options:
        return options
    out = Path(options["out"])
    return {**options, "out": str(out.with_name(f"{out.stem}-{member.name}{out.suffix}"))}


def _head(member: Path) -> None:
    sys.stdout.flush()
    print(f"== {member}", file=sys.stderr, flush=True)
