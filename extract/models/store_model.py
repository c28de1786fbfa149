"""The model that a store is read with: the model that answered, or a local copy of a served model."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from extract.errors import InputError
from extract.models.embedded import EMBEDDED_MODEL
from extract.prompts import PromptTemplate
from extract.questions.question import Question
from extract.running.progress import say
from extract.running.worker import alone
from extract.store.identity import write_reader
from extract.store.shards import Shard
from extract.store.store import Store


def encode_questions(tokenizer: Any, prompt: PromptTemplate, questions: Sequence[Question]) -> list[list[int]]:
    """Prompt token ids of each question."""
    return [prompt.encode(tokenizer, question.prompt) for question in questions]


def prompt_of(store: Store) -> PromptTemplate:
    """Prompt template of a store."""
    return PromptTemplate(**store.identity["policy"]["decoding"]["prompt"])


def load_store_model(store: Store, model: str | None, device: str, device_map: str | None) -> tuple[Any, Any]:
    """Load the model and tokenizer that a store is read with.

    For a served model, the first local copy that fits the prompts is written to reader.json, and later ones must match.

    Args:
        model: Hub id or folder; None uses the name in the store.
        device: As for `load_model`, as is `device_map`.

    Raises:
        InputError: If it can't be loaded, or differs from the store's model.
    """
    from extract.models.loading import check_model, load_model, model_identity

    source, expected = model_source(store, model), store.model if store.samples.provides.weights else store.reader
    revision, dtype = (None, "auto") if expected is None else (expected["revision"], expected["dtype"])
    loaded, tokenizer = load_model(source, revision, dtype, device, device_map)
    if expected is None:
        for part in store.samples.ranges()[:1]:
            encode_prompts(store, tokenizer, part, store.samples.read(part).to_pylist())
        with alone(store.path):  # the first of several workers decides
            if store.reader is None:
                write_reader(store.path, store.sha256, asdict(model_identity(loaded, tokenizer)))
                say(f"read: the served model {store.model_id!r} is read with {loaded.name_or_path!r}, see reader.json")
        expected = store.model
    check_model(loaded, tokenizer, expected, f"the store {str(store.path)!r}")
    return loaded, tokenizer


def model_source(store: Store, model: str | None) -> str:
    """Name or folder of a store's model: `model`, or the name in the store.

    Raises:
        InputError: If `model` is None, and the model was loaded from a folder or is served.
    """
    if model is not None:
        return model
    name: str = store.model["id"]
    if store.model["revision"] is None and name != EMBEDDED_MODEL and not Path(name).is_dir():
        raise InputError(
            f"Expected `model` to be the path of the store's model {name!r}, because a store keeps no paths, but got "
            "none. Give --model PATH."
        )
    return name


def encode_prompts(
    store: Store, tokenizer: Any, shard: Shard, samples: Sequence[Mapping[str, Any]] = ()
) -> dict[str, list[int]]:
    """Prompt token ids of the questions of a shard's block, by question id.

    Known prompt lengths of `samples`, which belong to these questions, are checked.

    Raises:
        InputError: If a prompt has another length than when it was answered.
    """
    encoded = encode_questions(tokenizer, prompt_of(store), store.questions.block(shard))
    prompts = dict(zip(store.questions.ids(shard), encoded, strict=True))
    for sample in samples:
        id_, recorded = sample["question_id"], sample["prompt_tokens"]
        if recorded is not None and len(prompts[id_]) != recorded:
            fix = f"Use the version of transformers that sampled {str(store.path)!r}."
            if not store.samples.provides.weights:
                fix = f"The server of {store.model_id!r} has another model or chat template. Give --model its model."
            raise InputError(
                f"Expected the prompt of question {id_!r} to have {recorded} tokens, as when it was answered, but got "
                f"{len(prompts[id_])} from this tokenizer. {fix}"
            )
    return prompts
