"""Load the model of a store, and encode the store's prompts."""

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
    """Return the prompt token ids of each question."""
    return [prompt.encode(tokenizer, question.prompt) for question in questions]


def prompt_of(store: Store) -> PromptTemplate:
    """Return the prompt template of a store."""
    return PromptTemplate(**store.identity["policy"]["decoding"]["prompt"])


def load_store_model(store: Store, model: str | None, device: str, device_map: str | None) -> tuple[Any, Any]:
    """Load the model and tokenizer of a store. For a served model, load a local copy.

    The first local copy of a served model must reproduce the recorded prompt lengths. Its identity is written to
    reader.json, and later copies must have the same identity.

    Args:
        model: Hub id or folder, by default the name recorded in the store.
        device: See `load_model`.
        device_map: See `load_model`.

    Raises:
        InputError: If the model can't be loaded, or differs from the store's model.
    """
    from extract.models.loading import check_model, load_model, model_identity

    source, expected = model_source(store, model), store.model if store.samples.provides.weights else store.reader
    revision, dtype = (None, "auto") if expected is None else (expected["revision"], expected["dtype"])
    loaded, tokenizer = load_model(source, revision, dtype, device, device_map)
    if expected is None:
        for part in store.samples.ranges()[:1]:
            encode_prompts(store, tokenizer, part, store.samples.read(part).to_pylist())
        with alone(store.path):  # the first worker records its copy
            if store.reader is None:
                write_reader(store.path, store.sha256, asdict(model_identity(loaded, tokenizer)))
                say(f"read: recorded {loaded.name_or_path!r} in reader.json as the local copy of {store.model_id!r}")
        expected = store.model
    check_model(loaded, tokenizer, expected, f"the store {str(store.path)!r}")
    return loaded, tokenizer


def model_source(store: Store, model: str | None) -> str:
    """Return `model`, or the name recorded in the store if `model` is None.

    Raises:
        InputError: If the recorded name is not enough to load the model.
    """
    if model is not None:
        return model
    name: str = store.model["id"]
    if store.model["revision"] is None and name != EMBEDDED_MODEL and not Path(name).is_dir():
        raise InputError(
            f"Expected `model` to be the path of the store's model {name!r}, but got None. Stores do "
            "not record paths. Pass --model PATH."
        )
    return name


def encode_prompts(
    store: Store, tokenizer: Any, shard: Shard, samples: Sequence[Mapping[str, Any]] = ()
) -> dict[str, list[int]]:
    """Return the prompt token ids of each question in a shard's block, by question id.

    Raises an `InputError` if the length of a prompt differs from the one recorded in `samples`.
    """
    encoded = encode_questions(tokenizer, prompt_of(store), store.questions.block(shard))
    prompts = dict(zip(store.questions.ids(shard), encoded, strict=True))
    for sample in samples:
        id_, recorded = sample["question_id"], sample["prompt_tokens"]
        if recorded is not None and len(prompts[id_]) != recorded:
            fix = f"Use the version of transformers that {str(store.path)!r} was sampled with."
            if not store.samples.provides.weights:
                fix = (
                    f"The local copy is not the model served as {store.model_id!r}, or has a different chat template. "
                    "Pass the served model as --model."
                )
            raise InputError(
                f"Expected the prompt of question {id_!r} to have the recorded length of {recorded} tokens, but "
                f"got {len(prompts[id_])} from this tokenizer. {fix}"
            )
    return prompts
