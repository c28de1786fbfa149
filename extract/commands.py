"""The commands of ``python -m extract``, as plain functions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from extract.embedded import EMBEDDED_MODEL
from extract.errors import InputError
from extract.fill import fill_grades, fill_samples
from extract.grading import load_grader
from extract.identity import check_place
from extract.parts import Scope
from extract.policy import Identity, Policy
from extract.questions import questions_hash
from extract.reading import fill_signals
from extract.recipe import StoreRecipe
from extract.signals import load_signal
from extract.store import Store
from extract.tables import Questions
from extract.workers import Worker, alone


def sample(store: str, recipe: StoreRecipe, worker: Worker | None = None) -> Store:
    """Ask a model each question k times and keep the answers; goes on where an earlier run stopped.

    Args:
        store: Folder of the store, new or made with the same settings.
        recipe: Questions, model and policy.
        worker: This process among several that share the work; None takes what `torchrun` says.

    Returns:
        The store.

    Raises:
        InputError: Bad options, unreadable questions or model, or a store of another identity.
    """
    from extract.models import load_model, model_identity
    from extract.sampling.local import LocalSampler

    worker, questions = worker or Worker.from_environment(), Questions.of(recipe.load_questions())
    check_place(Path(store))
    if (Path(store) / "identity.json").is_file():
        recipe.check_store(Store.open(store), questions)  # before the model is loaded
    model, tokenizer = load_model(recipe.model, recipe.revision, recipe.dtype, recipe.device, recipe.device_map)
    identity = Identity(
        Policy(model_identity(model, tokenizer), recipe.policy), questions_hash(questions), recipe.block_size
    )
    sampler = LocalSampler(model, tokenizer, recipe.policy, recipe.max_rows)
    with worker.writing(Path(store)):
        with alone(Path(store)):
            kept = Store.create(store, identity, questions)
        fill_samples(kept, recipe.k, sampler, worker)
        write_manifest(kept)
    return kept


def write_manifest(store: Store) -> None:
    """Index what a command added, one worker at a time."""
    with alone(store.path):
        store.write_manifest()


def make_store(
    store: str, recipe: StoreRecipe, grader: str, signals: Sequence[str], scope: Scope = "question"
) -> Store:
    """Sample, grade and read whatever a store still lacks. A whole store is left alone, and no model is loaded.

    Args:
        store: Folder of the store.
        recipe: What it is made from.
        grader: Name of the grader.
        signals: Names of the signals.
        scope: Whether they are read of the questions or of their answers.

    Raises:
        InputError: As `sample`, `grade` and `read`.
    """
    load_grader(grader)
    for signal in signals:
        load_signal(signal, scope)
    if (Path(store) / "identity.json").is_file():
        kept = Store.open(store)
        recipe.check_store(kept)
        if not (
            kept.missing_parts(recipe.k)
            or kept.ungraded_parts(grader)
            or any(kept.unread(signal, scope) for signal in signals)
        ):
            return kept
    only = Worker()  # trainers start workers of their own, and one of them makes the store
    sample(store, recipe, only)
    grade(store, grader, only)
    return read(store, signals, scope, None, recipe.model, recipe.device, recipe.device_map, only)


def grade(store: str, grader: str = "short", worker: Worker | None = None) -> Store:
    """Grade the answers that this grader has not graded yet. Never samples.

    Args:
        store: Folder of the store.
        grader: Name of the grader.
        worker: As for `sample`.

    Returns:
        The store.

    Raises:
        InputError: Unknown grader, or no store.
    """
    worker, rule = worker or Worker.from_environment(), load_grader(grader)
    kept = Store.open(store)
    with worker.writing(kept.path):
        fill_grades(kept, grader, rule, worker)
        write_manifest(kept)
    return kept


def read(
    store: str,
    signals: Sequence[str] = ("hidden",),
    scope: Scope = "question",
    layers: Sequence[int] | None = None,
    model: str | None = None,
    device: str = "auto",
    device_map: str | None = None,
    worker: Worker | None = None,
) -> Store:
    """Read signals from the model's inside, for the blocks or parts that lack them.

    Args:
        store: Folder of the store.
        signals: Of hidden, tokens, entropy_profile, evolution, early_exit, attention_entropy; of answers also rollout, rollout_max, macs.
        scope: question reads the questions; sample reads their answers.
        layers: Layers to keep, from 0 (embeddings) to the number of blocks; null goes on with those that there are, or keeps all.
        model: Where the store's model is, if it was a folder; null takes the name that the store holds.
        device: auto, cpu, cuda or cuda:N.
        device_map: How transformers spreads a large model over devices.
        worker: As for `sample`.

    Returns:
        The store.

    Raises:
        InputError: Unknown signal, no store, other layers than those that there are, or another model than the store's.
    """
    worker = worker or Worker.from_environment()
    for signal in signals:
        load_signal(signal, scope)
    kept = Store.open(store)
    with worker.writing(kept.path):
        fill_signals(kept, signals, lambda: model_of(kept, model, device, device_map), worker, scope, layers)
        write_manifest(kept)
    return kept


def model_of(store: Store, model: str | None, device: str, device_map: str | None) -> tuple[Any, Any]:
    """The model and tokenizer that a store's answers are by.

    Raises:
        InputError: It can't be loaded, or is another one.
    """
    from extract.models import check_model, load_model

    wanted = store.identity["policy"]["model"]
    place = place_of_model(store, model)
    loaded, tokenizer = load_model(place, wanted["revision"], wanted["dtype"], device, device_map)
    check_model(loaded, tokenizer, wanted, f"the store {str(store.path)!r}")
    return loaded, tokenizer


def place_of_model(store: Store, model: str | None) -> str:
    """Where a store's model is: what is given, or the name that the store holds.

    Raises:
        InputError: It was a folder, and it is not said where.
    """
    wanted = store.identity["policy"]["model"]
    name: str = wanted["id"]
    if model is None and wanted["revision"] is None and name != EMBEDDED_MODEL and not Path(name).is_dir():
        raise InputError(
            f"Expected `model` to say where the store's model is, a folder called {name!r}: a store keeps no paths. Give --model PATH."
        )
    return model or name


def inspect(store: str, grader: str | None = None, answers: int = 5) -> None:
    """Show what is in a store: policy, counts, accuracy by group, and some answers to read.

    Args:
        store: Folder of the store.
        grader: Whose grades; null takes the only grader there is.
        answers: How many answers to show.
    """
    from extract.inspection import describe

    print(describe(Store.open(store), grader, answers))


def verify(store: str) -> None:
    """Check every file of a store against its recorded size and checksum, and rebuild the manifest.

    Args:
        store: Folder of the store.

    Raises:
        InputError: A file is damaged or unfinished; the message lists all of them.
    """
    kept = Store.open(store)
    problems = list(kept.problems())
    if problems:
        raise InputError(
            f"Expected the files of {store!r} to be whole, but {len(problems)} are not: {'; '.join(problems)}. Run the command that made them (sample, grade, read or ask) again, which makes them anew, and delete what no command made."
        )
    manifest = kept.write_manifest()
    print(
        f"{store}: {len(manifest['files'])} files whole, identity {kept.sha256[:12]}, {len(kept.questions)} questions in {kept.n_blocks} blocks"
    )
