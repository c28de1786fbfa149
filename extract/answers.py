"""The part of a store that all others stand on: questions in blocks, and samples of their answers in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from extract.hashing import sha256_json
from extract.parts import Part, Place, Scope, finished_parts, gaps
from extract.questions.question import Question
from extract.rows import check_prompts, check_samples
from extract.tables import SAMPLES_SCHEMA, Questions, read_questions, read_table, write_table


class Answers:
    """Questions and samples on disk.

    Attributes:
        path: The store's directory.
        identity: Content of the identity, plain JSON types.
        sha256: The identity's hash.
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path, self.identity, self.sha256 = path, identity, sha256_json(identity)
        self._questions: Questions | None = None

    @property
    def questions(self) -> Questions:
        """The questions in their order.

        Raises:
            Damaged: They are not those of the identity.
        """
        if self._questions is None:
            path = self.path / "questions.parquet"
            self._questions = read_questions(path, self.path, self.identity["questions"])
        return self._questions

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return -(-len(self.questions) // self.identity["block_size"])

    def block(self, index: int) -> list[Question]:
        """Questions of a block."""
        size = self.identity["block_size"]
        return self.questions[index * size : (index + 1) * size]

    def ids(self, place: Place) -> list[str]:
        """Question ids of a block, or of a part's block."""
        return [question.id for question in self.block(place.block if isinstance(place, Part) else place)]

    def places(self, scope: Scope) -> list[Place]:
        """What there is a file of, in the order of the rows: every block, or every part of the samples."""
        return list(range(self.n_blocks)) if scope == "question" else list(self.parts())

    def n_rows(self, place: Place) -> int:
        """Questions of a block, or answers of a part."""
        size = self.identity["block_size"]
        block, per_question = (place.block, place.stop - place.start) if isinstance(place, Part) else (place, 1)
        return min(size, len(self.questions) - block * size) * per_question

    def parts(self) -> list[Part]:
        """Finished parts of the samples, by block and sample.

        Raises:
            Damaged: A Parquet file that is no part, or parts that hold the same samples.
        """
        return finished_parts(self.path / "samples", self.n_blocks)

    def missing_parts(self, k: int) -> list[Part]:
        """Parts that are missing for k samples of every question."""
        return gaps(self.parts(), self.n_blocks, k)

    def write_samples(self, part: Part, rows: list[dict[str, Any]], max_rows: int | None = None) -> None:
        """Keep the samples of a part, one row each, and how many were drawn at a time, which their last bits depend on."""
        schema = SAMPLES_SCHEMA.with_metadata({"max_rows": str(max_rows)})
        write_table(self.samples_file(part), rows, schema)

    def samples(self, part: Part | None = None) -> pa.Table:
        """Samples of a part, or all of them, by block, part and question.

        Raises:
            Damaged: A file that is not as it was written, or that holds what no sampler gives.
        """
        tables = {}
        for one in self.parts() if part is None else [part]:
            path = self.samples_file(one)
            tables[path] = read_table(path, self.path, SAMPLES_SCHEMA, self.n_rows(one))
            most = self.identity["policy"]["decoding"]["max_new_tokens"]
            check_samples(tables[path], one, self.ids(one), most, path)
        check_prompts(tables)
        return pa.concat_tables([SAMPLES_SCHEMA.empty_table(), *tables.values()])

    def samples_file(self, part: Part) -> Path:
        """Where the samples of a part are, or will be."""
        return self.path / "samples" / f"{part.stem}.parquet"
