"""The command ``python -m extract ask``: fill a store with asked baselines."""

from collections.abc import Sequence
from functools import partial

from extract.asking.base import AskContext, AskedBaseline
from extract.asking.registry import ASKED
from extract.errors import InputError
from extract.models.embedded import EMBEDDED_ENCODER
from extract.models.store_model import load_store_model
from extract.registry import fill_names
from extract.running.progress import say
from extract.running.worker import Worker, alone
from extract.store.fill import fill, missing_shards
from extract.store.store import Store
from extract.store.verify import write_manifest


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
) -> Store:
    """Ask models about the questions and answers of a store, where that is missing.

    Args:
        store: Folder of the store.
        baselines: Of {baselines}.
        model: Path of the store's model if it was loaded from a folder, or the local copy of a served model; null
            takes the name in the store.
        device: auto, cpu, cuda or cuda:N.
        device_map: How transformers spreads a large model over devices.
        embedding_model: Sentence encoder of text_embedding: its name, a Hub id or a folder.
        nli_model: Classifier of entailment: a Hub id or a folder.
        grader: Grader whose normalised answers entailment compares; null takes the only one.
        max_new_tokens: Longest reply of verbalized; a model that reasons at length needs more.
        worker: As for `sample`.

    Returns:
        The store.

    Raises:
        InputError: Unknown baseline, no store, another model than the store's, a model that can't be loaded, or
            settings that differ from those in the store.
    """
    if max_new_tokens < 1:
        raise InputError(f"Expected `max_new_tokens` to be at least 1, but got {max_new_tokens}. Give for example 48.")
    entries, opened = {name: ASKED[name] for name in baselines}, Store.open(store)
    if any("sample" in entry.scopes for entry in entries.values()) and not opened.samples.ranges():
        raise InputError(
            f"Expected the store {store!r} to hold answers, but it has none. Run `python -m extract sample`."
        )
    load = partial(load_store_model, opened, model, device, device_map)
    context = AskContext(load, device, embedding_model, nli_model, grader, max_new_tokens)
    worker = worker or Worker.from_environment()
    with worker.writing(opened.path):
        fill_asked(opened, [entry.load()(name, opened, context) for name, entry in entries.items()], worker)
        with alone(opened.path):
            write_manifest(opened)
    return opened


def fill_asked(store: Store, baselines: Sequence[AskedBaseline], worker: Worker) -> None:
    """Ask what is missing. All settings are compared with those in the store before the first model is asked.

    Raises:
        InputError: Settings differ, or a model can't be loaded or asked.
    """
    missing = {}
    for baseline in baselines:
        shards = [shard for scope in baseline.scopes for shard in store.shards(scope)]
        missing[baseline.name] = missing_shards(store, shards, worker, baseline.file, baseline.check_file)
    for baseline in baselines:
        if missing[baseline.name] or baseline.always_compared:
            for scope in baseline.scopes:
                baseline.check_settings(scope)
    for baseline in baselines:
        shards = missing[baseline.name]
        if not shards:
            say(f"ask: {baseline.name} is there for every {' and '.join(baseline.scopes)}")
            continue
        baseline.prepare()
        n_rows = store.questions.n_rows
        n_unusable = sum(fill(f"ask {baseline.name}", "asked", shards, n_rows, baseline.fill, worker))
        say(f"ask: {baseline.name}, {sum(map(n_rows, shards))} asked, {n_unusable} without a usable value")
