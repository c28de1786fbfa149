"""Datamodule with the questions of several stores."""

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from datamodules.batches import Batch
from datamodules.features import FeatureDataModule
from datamodules.table import AnswerTable, QuestionTable
from extract.errors import InputError


class UnionDataModule(FeatureDataModule):
    """Questions of several stores with the same model, features and target. The group of a question is its store.

    Args:
        parts: Loaded datamodules without common questions.

    Raises:
        InputError: If the target is `seu`, whose embeddings are read from a single store.
    """

    def __init__(self, parts: Sequence[FeatureDataModule]) -> None:
        first = parts[0]
        if first.target == "seu":
            raise InputError("Expected a target that is computed from grades or answers, but got 'seu'. Use one store.")
        super().__init__(first.store_path, grader=first.grader, target=first.target, signal=first.signal)
        self.feature_spec, self.feature_names, self.pooled = first.feature_spec, first.feature_names, first.pooled
        self.store, self.table = first.store, _concatenated([(Path(one.store_path).name, one.table) for one in parts])
        batches, n_questions, n_answers = list[Batch](), 0, 0
        for one in parts:
            batch, shift = one.every(), n_questions if one.scope == "question" else n_answers
            batches.append(batch._replace(row=batch.row + shift, question=batch.question + n_questions))
            n_questions, n_answers = n_questions + len(one.table.ids), n_answers + len(one.table.answers.question)
        self._batches = {"train": Batch.cat(batches)}


def _concatenated(tables: Sequence[tuple[str, QuestionTable]]) -> QuestionTable:
    """Concatenate question tables, given with the names of their stores. Texts and model-based baselines are lost."""
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
    """Concatenate the columns of tables that are arrays."""
    names = [field.name for field in fields(kind) if isinstance(getattr(tables[0], field.name), np.ndarray)]
    return {name: np.concatenate([getattr(table, name) for table in tables]) for name in names}
