"""The model of a store, loaded: the one that answered, or the local copy of one that answered behind a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from extract.errors import InputError
from extract.models.embedded import EMBEDDED_MODEL
from extract.running.progress import say
from extract.running.worker import alone
from extract.sampling.run import encode_questions, prompt_of
from extract.store.reader import write_reader
from extract.store.store import Store


def model_of(store: Store, model: str | None, device: str, device_map: str | None) -> tuple[Any, Any]:
    """The model and tokenizer that a store is read with.

    Of a served model, the first local copy that fits the prompts is the one that the store keeps to: its identity is
    written to reader.json.

    Args:
        store: The store.
        model: Hub id or folder; None takes the name that the store holds.
        device: auto, cpu, cuda or cuda:N.
        device_map: How transformers spreads a large model over devices.

    Raises:
        InputError: It can't be loaded, or is another one.
    """
    from extract.models.loading import check_model, load_model, model_identity

    place, wanted = place_of_model(store, model), store.reader if store.served else store.model
    revision, dtype = (None, "auto") if wanted is None else (wanted["revision"], wanted["dtype"])
    loaded, tokenizer = load_model(place, revision, dtype, device, device_map)
    if wanted is None:
        _check_prompts(store, tokenizer)
        with alone(store.path):  # of several workers the first one says which
            if store.reader is None:
                write_reader(store.path, store.sha256, asdict(model_identity(loaded, tokenizer)))
                say(f"read: {store.model_id!r} behind a server is read with {loaded.name_or_path!r}, see reader.json")
        wanted = store.model
    check_model(loaded, tokenizer, wanted, f"the store {str(store.path)!r}")
    return loaded, tokenizer


def place_of_model(store: Store, model: str | None) -> str:
    """Where a store's model is: what is given, or the name that the store holds.

    Raises:
        InputError: It was a folder, or a server's, and it is not said where.
    """
    if model is not None:
        return model
    wanted = store.model
    name: str = wanted["id"]
    if wanted["revision"] is None and name != EMBEDDED_MODEL and not Path(name).is_dir():
        raise InputError(
            f"Expected `model` to say where the store's model is, a folder called {name!r}: a store keeps no paths. Give --model PATH."
        )
    return name


def _check_prompts(store: Store, tokenizer: Any) -> None:
    """Compare prompts with what the server said of their lengths, in the first part of the answers.

    Raises:
        InputError: They differ.
    """
    for part in store.samples.ranges()[:1]:
        encoded = encode_questions(tokenizer, prompt_of(store), store.questions.block(part))
        check_lengths(
            store, dict(zip(store.questions.ids(part), encoded, strict=True)), store.samples.read(part).to_pylist()
        )


def check_lengths(store: Store, prompts: Mapping[str, Sequence[int]], answers: Sequence[Mapping[str, Any]]) -> None:
    """Refuse prompts of other lengths than those that were answered; what a server did not tell is passed over.

    Args:
        store: The store.
        prompts: Prompt token ids by question.
        answers: Rows of its samples.

    Raises:
        InputError: There is one.
    """
    for row in answers:
        found, stated = len(prompts[row["question_id"]]), row["prompt_tokens"]
        if stated is None or found == stated:
            continue
        if store.served:
            raise InputError(
                f"Expected the prompt of question {row['question_id']!r} to have the {stated} tokens that the server of {store.model_id!r} counted, but this model's tokenizer makes {found} of it: the server has another model or chat template. Give the model that it serves by --model."
            )
        raise InputError(
            f"Expected the prompt of question {row['question_id']!r} to have the {stated} tokens that it was answered with, but this version of the tokenizer makes {found} of it. Use the version of transformers that sampled {str(store.path)!r}."
        )
