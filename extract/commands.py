"""The commands of ``python -m extract``, as plain functions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from extract.errors import InputError
from extract.grading import GRADERS, Judge, grader_of_kinds, load_grader
from extract.grading.run import fill_grades
from extract.models.store_model import load_store_model
from extract.questions import questions_hash
from extract.recipe import StoreRecipe
from extract.registry import fill_names
from extract.running.worker import Worker, alone
from extract.sampling.run import say_if_endless
from extract.signals.registry import descriptions, load_signal
from extract.signals.run import fill_signals
from extract.store import verify as verify_module
from extract.store.identity import check_place
from extract.store.questions import Questions
from extract.store.shards import Scope
from extract.store.store import Store

#: Where no judge is given, which only the grader judge minds.
NO_JUDGE = Judge()


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
    from extract.sampling.temperature_grid import sample_grid

    worker, temperature = worker or Worker.from_environment(), recipe.policy.temperature
    if isinstance(temperature, str):
        raise InputError(
            f"Expected `policy.temperature` to be a number, because this makes one store, but got the grid {temperature!r}. Use `sample_family`, as the command line does."
        )
    if recipe.sampler == "server":
        return sample_served(Path(store), recipe, worker)
    return sample_grid({temperature: Path(store)}, recipe, worker)[0]


def sample_served(folder: Path, recipe: StoreRecipe, worker: Worker) -> Store:
    """Make or go on with a store of a model behind a server.

    Args:
        folder: The store.
        recipe: What it is made from.
        worker: This process among several.

    Raises:
        InputError: As `sample`, or the server can't be used as asked.
    """
    from extract.sampling.server.preflight import try_new
    from extract.sampling.server.sampler import fill_served_samples

    loaded, decoding = recipe.load()
    say_if_endless(decoding)
    questions, server, tried = Questions.of(loaded, recipe.block_size), recipe.server, None
    check_place(folder)
    identity = recipe.served_identity(questions_hash(questions), decoding)
    with worker.writing(folder):
        if (folder / "identity.json").is_file():
            Store.open(folder).check_identity(identity.as_dict())
        else:
            tried = try_new(loaded, recipe.k, recipe.block_size, recipe.model, decoding, server, worker)
        with alone(folder):
            kept = Store.create(folder, identity, questions)
        fill_served_samples(kept, recipe.k, decoding, server, worker, tried)
        write_manifest(kept)
    return kept


def write_manifest(store: Store) -> None:
    """Index what a command added, one worker at a time."""
    with alone(store.path):
        verify_module.write_manifest(store)


def make_store(
    store: str, recipe: StoreRecipe, grader: str | None, signals: Sequence[str], scope: Scope = "question"
) -> Store:
    """Sample, grade and read whatever a store still lacks. A whole store is left alone, and no model is loaded.

    Args:
        store: Folder of the store.
        recipe: What it is made from.
        grader: Name of the grader; None takes that of the questions' kind.
        signals: Names of the signals.
        scope: Whether they are read of the questions or of their answers.

    Raises:
        InputError: As `sample`, `grade` and `read`.
    """
    for signal in signals:
        load_signal(signal, scope)
    if (Path(store) / "identity.json").is_file():
        kept = Store.open(store)
        recipe.check_store(kept)
        grader = grader or next(iter(kept.grades.names()), None) or grader_of_kinds(one.kind for one in kept.questions)
        if not (
            kept.samples.missing(recipe.k)
            or kept.grades.missing(grader)
            or any(kept.signals.missing(signal, scope) for signal in signals)
        ):
            return kept
    if grader is not None:
        load_grader(grader)  # before anything is sampled
    only = Worker()  # trainers start workers of their own, and one of them makes the store
    sample(store, recipe, only)
    grade(store, grader, only)
    place = None if recipe.sampler == "server" else recipe.model  # what a server calls it is no place
    return read(store, signals, scope, None, place, recipe.device, recipe.device_map, only)


@fill_names(graders=GRADERS)
def grade(store: str, grader: str | None = None, worker: Worker | None = None, judge: Judge = NO_JUDGE) -> Store:
    """Grade the answers that this grader has not graded yet, and those that it could not decide. Never samples.

    Args:
        store: Folder of the store.
        grader: One of {graders}; null takes that of the questions' kind.
        worker: As for `sample`.
        judge: The model that grades, for the grader judge.

    Returns:
        The store.

    Raises:
        InputError: Unknown grader, questions that it can't grade, no store, or a judge that can't be asked.
    """
    worker = worker or Worker.from_environment()
    rule = None if grader is None else load_grader(grader, judge)
    kept = Store.open(store)
    with worker.writing(kept.path):
        fill_grades(kept, rule or load_grader(grader_of_kinds(one.kind for one in kept.questions)), worker)
        write_manifest(kept)
    return kept


@fill_names(signals=descriptions("question"), answer_signals=descriptions("sample", besides="question"))
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
    """Read signals of a store's questions or answers from the model, where they are missing.

    Args:
        store: Folder of the store.
        signals: Signals to read. Of questions and answers: {signals}. Of answers only: {answer_signals}.
        scope: question reads the questions; sample reads their answers.
        layers: Layers to keep, from 0 (embeddings) to the number of blocks; null goes on with those that there are, or keeps all.
        model: Where the store's model is, if it was a folder, or the local copy of a served one; null takes the name that the store holds.
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
        fill_signals(kept, signals, lambda: load_store_model(kept, model, device, device_map), worker, scope, layers)
        write_manifest(kept)
    return kept


def inspect(store: str, grader: str | None = None, answers: int = 10) -> None:
    """Show what is in a store: policy, counts, accuracy by grader and group with its interval, and answers to read.

    Args:
        store: Folder of the store.
        grader: Whose grades are shown in detail; null takes that of the questions' kind, else the first there are.
        answers: How many answers to show, right, wrong and unknown ones.
    """
    from extract.viewing.inspection import describe

    print(describe(Store.open(store), grader, answers))


def verify(store: str) -> None:
    """Check every file of a store against its recorded size and checksum, and rebuild the manifest.

    Args:
        store: Folder of the store.

    Raises:
        InputError: A file is damaged or unfinished; the message lists all of them.
    """
    kept = Store.open(store)
    problems = list(verify_module.find_problems(kept))
    if problems:
        raise InputError(
            f"Expected the files of {store!r} to be whole, but {len(problems)} are not: {'; '.join(problems)}. Run the command that made them (sample, grade, read or ask) again, which makes them anew, and delete what no command made."
        )
    manifest = verify_module.write_manifest(kept)
    print(
        f"{store}: {len(manifest['files'])} files whole, identity {kept.sha256[:12]}, {len(kept.questions)} questions in {kept.questions.n_blocks} blocks"
    )
