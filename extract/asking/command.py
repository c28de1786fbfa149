"""The command ``python -m extract ask``."""

from __future__ import annotations

from collections.abc import Sequence

from extract.asking import load_baseline
from extract.asking.readers import EMBEDDED_ENCODER
from extract.commands import write_manifest
from extract.errors import InputError
from extract.models.store_model import model_of
from extract.running.worker import Worker
from extract.store.store import Store


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
    """Ask models about the questions and answers of a store, for the blocks and parts that lack it.

    Args:
        store: Folder of the store.
        baselines: verbalized, p_true, p_true_answer, text_embedding, entailment.
        model: Where the store's model is, if it was a folder, or the local copy of a served one; null takes the name that the store holds.
        device: auto, cpu, cuda or cuda:N.
        device_map: How transformers spreads a large model over devices.
        embedding_model: Sentence encoder of text_embedding: its name, a Hub id or a folder.
        nli_model: Classifier of entailment: a Hub id or a folder.
        grader: Whose normalised answers entailment compares; null takes the only grader there is.
        max_new_tokens: Longest reply of verbalized; a model that reasons at length needs more.
        worker: As for `sample`.

    Returns:
        The store.

    Raises:
        InputError: Unknown baseline, no store, another model than the store's, a model that can't be loaded, or settings that differ from those the store was asked with.
    """
    from extract.asking.base import Means
    from extract.asking.run import fill_asked

    if max_new_tokens < 1:
        raise InputError(
            f"Expected `max_new_tokens` to be at least 1, but got {max_new_tokens}. 48 suits a small model."
        )
    worker, kinds = worker or Worker.from_environment(), [load_baseline(name) for name in dict.fromkeys(baselines)]
    kept = Store.open(store)
    if any("sample" in kind.scopes for kind in kinds) and not kept.samples.ranges():
        raise InputError(
            f"Expected the store {store!r} to hold answers, but it has none. Run `python -m extract sample --store {store}`."
        )
    means = Means(
        lambda: model_of(kept, model, device, device_map), device, embedding_model, nli_model, grader, max_new_tokens
    )
    with worker.writing(kept.path):
        fill_asked(kept, [kind(kept, means) for kind in kinds], worker)
        write_manifest(kept)
    return kept
