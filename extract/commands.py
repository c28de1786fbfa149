"""The commands of ``python -m extract``, as plain functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from extract.errors import InputError
from extract.grading import load_grader
from extract.policy import Identity, Policy
from extract.progress import Progress
from extract.prompts import PromptTemplate
from extract.questions import questions_hash
from extract.questions.question import Question
from extract.recipe import StoreRecipe
from extract.signals import load_signal
from extract.store import Store


def sample(store: str, recipe: StoreRecipe) -> Store:
    """Ask a model each question k times and keep the answers; goes on where an earlier run stopped.

    Args:
        store: Folder of the store, new or made with the same settings.
        recipe: Questions, model and policy.

    Returns:
        The store.

    Raises:
        InputError: Bad options, unreadable questions or model, or a store of another identity.
    """
    from extract.models import load_model, model_identity
    from extract.sampling.local import LocalSampler

    questions = recipe.load_questions()
    if (Path(store) / "identity.json").is_file():
        recipe.check_store(Store.open(store))  # before the model is loaded
    model, tokenizer = load_model(recipe.model, recipe.revision, recipe.dtype, recipe.device, recipe.device_map)
    policy = Policy(model_identity(model, tokenizer), recipe.policy)
    kept = Store.create(store, Identity(policy, questions_hash(questions), recipe.block_size), questions)
    missing = kept.missing_parts(recipe.k)
    sampler = LocalSampler(model, tokenizer, recipe.policy)
    total = sum((part.stop - part.start) * len(kept.block(part.block)) for part in missing)
    with Progress("sample", total, "answers") as progress:
        for part in missing:
            block = kept.block(part.block)
            prompts = encode_questions(tokenizer, recipe.policy.prompt, block)
            samples = sampler.sample(
                [question.id for question in block], prompts, range(part.start, part.stop), progress
            )
            kept.write_samples(part, [asdict(one) for one in samples])
    kept.write_manifest()
    return kept


def make_store(store: str, recipe: StoreRecipe, grader: str, signals: Sequence[str]) -> Store:
    """Sample, grade and read whatever a store still lacks. A whole store is left alone, and no model is loaded.

    Raises:
        InputError: As `sample`, `grade` and `read`.
    """
    load_grader(grader)
    for signal in signals:
        load_signal(signal)
    if (Path(store) / "identity.json").is_file():
        kept = Store.open(store)
        recipe.check_store(kept)
        if not (
            kept.missing_parts(recipe.k)
            or kept.ungraded_parts(grader)
            or any(kept.unread_blocks(signal) for signal in signals)
        ):
            return kept
    sample(store, recipe)
    grade(store, grader)
    return read(store, signals, recipe.model, recipe.device, recipe.device_map)


def encode_questions(tokenizer: Any, prompt: PromptTemplate, questions: Sequence[Question]) -> list[list[int]]:
    """Prompt token ids of each question."""
    return [prompt.encode(tokenizer, question.text or question.messages) for question in questions]


def grade(store: str, grader: str = "short") -> Store:
    """Grade the answers that this grader has not graded yet. Never samples.

    Args:
        store: Folder of the store.
        grader: Name of the grader.

    Returns:
        The store.

    Raises:
        InputError: Unknown grader, or no store.
    """
    rule = load_grader(grader)
    kept = Store.open(store)
    questions = {question.id: question for question in kept.questions}
    for part in kept.ungraded_parts(grader):
        rows = []
        for answer in kept.samples(part).to_pylist():
            right, parsed = rule.grade(questions[answer["question_id"]], answer["text"])
            rows.append(
                {"question_id": answer["question_id"], "sample": answer["sample"], "right": right, "answer": parsed}
            )
        kept.write_grades(grader, part, rows, rule.rule)
    kept.write_manifest()
    return kept


def read(
    store: str,
    signals: Sequence[str] = ("hidden",),
    model: str | None = None,
    device: str = "auto",
    device_map: str | None = None,
) -> Store:
    """Read signals from the model's inside, for the blocks that lack them.

    Args:
        store: Folder of the store.
        signals: Names of the signals.
        model: Where the store's model is, if it was a folder; null takes the name that the store holds.
        device: auto, cpu, cuda or cuda:N.
        device_map: How transformers spreads a large model over devices.

    Returns:
        The store.

    Raises:
        InputError: Unknown signal, no store, or another model than the store's.
    """
    functions = {name: load_signal(name) for name in signals}
    kept = Store.open(store)
    missing = {name: kept.unread_blocks(name) for name in functions}
    if any(missing.values()):
        loaded, tokenizer = _model_of(kept, model, device, device_map)
        prompt = PromptTemplate(**kept.identity["policy"]["decoding"]["prompt"])
        total = sum(len(kept.block(block)) for blocks in missing.values() for block in blocks)
        with Progress("read", total, "questions") as progress:
            for name, blocks in missing.items():
                for block in blocks:
                    prompts = encode_questions(tokenizer, prompt, kept.block(block))
                    kept.write_signal(name, block, functions[name](loaded, prompts, progress=progress))
    kept.write_manifest()
    return kept


def _model_of(store: Store, model: str | None, device: str, device_map: str | None) -> tuple[Any, Any]:
    from extract.models import check_model, load_model

    wanted = store.identity["policy"]["model"]
    loaded, tokenizer = load_model(model or wanted["id"], wanted["revision"], wanted["dtype"], device, device_map)
    check_model(loaded, tokenizer, wanted, f"the store {str(store.path)!r}")
    return loaded, tokenizer


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
            f"Expected the files of {store!r} to be whole, but {len(problems)} are not: {'; '.join(problems)}. Delete what is named, with the .json beside it, and run the command that made it (sample, grade or read) again."
        )
    manifest = kept.write_manifest()
    print(
        f"{store}: {len(manifest['files'])} files whole, identity {kept.sha256[:12]}, {len(kept.questions)} questions in {kept.n_blocks} blocks"
    )
