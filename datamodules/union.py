"""Combine the questions of several stores."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from datamodules.batches import Batch
from datamodules.features import FeatureDataModule
from datamodules.table import AnswerTable, QuestionTable
from extract.errors import InputError
from extract.hashing import differences
from extract.questions.rewording import ORIGINAL
from extract.store.store import Store


class UnionDataModule(FeatureDataModule):
    """Datamodule for the questions of several stores. The stores must have the same model, features and target.

    The questions of each store form one group.

    Args:
        parts: Loaded datamodules that have no questions in common.

    Raises:
        InputError: If the target is `seu`, which is supported only for a single store.
    """

    def __init__(self, parts: Sequence[FeatureDataModule]) -> None:
        first = parts[0]
        if first.target == "seu":
            raise InputError(
                "Expected `target` to be computed from grades or answers if there are several stores, but got 'seu', "
                "which reads embeddings from a single store. Pass a single store, or choose a different target."
            )
        super().__init__(first.store_path, grader=first.grader, target=first.target, signal=first.signal)
        self.feature_spec, self.feature_names, self.pooled = first.feature_spec, first.feature_names, first.pooled
        self.store, self.table = first.store, _concatenated([(Path(one.store_path).name, one.table) for one in parts])
        batches, n_questions, n_answers = list[Batch](), 0, 0
        for one in parts:
            batch, shift = one.every(), n_questions if one.scope == "question" else n_answers
            batches.append(batch._replace(row=batch.row + shift, question=batch.question + n_questions))
            n_questions, n_answers = n_questions + len(one.table.ids), n_answers + len(one.table.answers.question)
        self._batches = {"train": Batch.cat(batches)}


def broader_rows(data: FeatureDataModule) -> tuple[Batch, list[str], list[str]]:
    """Return the rows of all stores in `data.broader`, with each row's group and question id (see `original_ids`).

    Test questions of `data` and their rewordings are left out. A store without grades from the grader of `data` must
    have a single grader, which is used instead.

    Raises:
        InputError: If a store's model or features differ from those of `data`, if it has no rows left, or if it has
            several graders but not the grader of `data`.
    """
    own = original_ids(data)
    held_out = {own[row] for row in data.question_rows["test"].tolist()}
    batches, groups, ids = list[Batch](), list[str](), list[str]()
    for path in data.broader:
        grader = data.table.grader if data.table.grader in Store.open(path).grades.names() else None
        part = FeatureDataModule(path, grader=grader, target="response" if data.scope == "sample" else "capability")
        part.feature_spec = replace(data.feature_spec, in_memory=True)
        part.load()
        check_features(data, part, "broader")
        batch, originals = part.every(prefixes=True), original_ids(part)
        batches.append(batch.take(torch.tensor([originals[row] not in held_out for row in batch.question.tolist()])))
        if not len(batches[-1].row):
            raise InputError(
                f"Expected every store in `broader` to have questions other than the test questions and their "
                f"rewordings, but {path!r} has none. Leave this store out."
            )
        rows = batches[-1].question.tolist()
        groups += [f"{path}/{part.table.groups[row]}" for row in rows]
        ids += [originals[row] for row in rows]
    return Batch.cat(batches), groups, ids


def original_ids(data: FeatureDataModule) -> list[str]:
    """Return the id of each question in a datamodule's store. A reworded question gets the id of the original."""
    return [question.meta.get(ORIGINAL, question.id) for question in data.store.questions]


def check_features(first: FeatureDataModule, other: FeatureDataModule, option: str) -> None:
    """Raise an InputError if two stores have different models or different features."""
    pair = f"{other.store_path!r} and {first.store_path!r}"
    if wrong := list(differences(other.store.model, first.store.model)):
        raise InputError(
            f"Expected the stores in `{option}` to come from the same model, but {pair} differ in {'; '.join(wrong)}. "
            "A probe works only with the model that it was trained on. Pass stores with answers from the same model."
        )
    if (other.feature_names, other.pooled) != (first.feature_names, first.pooled):
        raise InputError(
            f"Expected the stores in `{option}` to have the same layers and positions, but {pair} have different "
            "features. Run `extract read` on both stores with the same --layers."
        )


def _concatenated(tables: Sequence[tuple[str, QuestionTable]]) -> QuestionTable:
    """Concatenate question tables, leaving out the texts and the model-based baselines."""
    starts = np.cumsum([0, *(len(table.ids) for _, table in tables)])
    answers = [
        replace(table.answers, question=table.answers.question + start)
        for (_, table), start in zip(tables, starts, strict=False)
    ]
    groups = [name for name, table in tables for _ in table.ids]
    every = _columns([table for _, table in tables], QuestionTable)
    return replace(
        tables[0][1],
        **every,
        ids=[id_ for _, table in tables for id_ in table.ids],
        groups=groups,
        answers=replace(answers[0], **_columns(answers, AnswerTable)),
        asked={},
    )


def _columns(tables: Sequence[Any], kind: type) -> dict[str, Any]:
    """Concatenate the array attributes of tables."""
    names = [field.name for field in fields(kind) if isinstance(getattr(tables[0], field.name), np.ndarray)]
    return {name: np.concatenate([getattr(table, name) for table in tables]) for name in names}
