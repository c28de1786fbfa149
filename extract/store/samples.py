"""The part of a store that all others stand on: questions in blocks, and samples of their answers in parts."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from extract.errors import InputError
from extract.hashing import sha256_json
from extract.questions.question import Question
from extract.store.parquet import (
    SAMPLES_SCHEMA,
    SERVED_NULLABLE,
    SERVED_SAMPLES_SCHEMA,
    Questions,
    read_questions,
    read_table,
    write_table,
)
from extract.store.reader import read_reader
from extract.store.shards import Part, Place, Scope, finished_parts, gaps
from extract.store.validate import check_prompts, check_samples, check_served_samples


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
    def served(self) -> bool:
        """Whether the answers are by a model behind a server, of which nothing but its name is known."""
        return str(self.identity["sampler"]).startswith("server")

    @property
    def model_id(self) -> str:
        """What the model that answered is called."""
        return str(self.identity["policy"]["model"]["id"])

    @property
    def reader(self) -> dict[str, Any] | None:
        """The local copy of a served model that the store is read with; None before it is, and for other stores.

        Raises:
            InputError: reader.json is not as it was written.
        """
        return read_reader(self.path, self.sha256) if self.served else None

    @property
    def model(self) -> dict[str, Any]:
        """The model whose inside is read, a `ModelIdentity` as a dict: the one that answered, or its local copy.

        Raises:
            InputError: A server answered, and no local copy of its model was read yet.
        """
        reader: dict[str, Any] | None = self.reader if self.served else self.identity["policy"]["model"]
        if reader is None:
            raise InputError(
                f"Expected a local copy of {self.model_id!r}, whose answers the store {str(self.path)!r} holds, because a server shows nothing of a model's inside. Run `python -m extract read --store {self.path} --model PATH_OR_HUB_ID`."
            )
        return reader

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
        size, block = self.identity["block_size"], place.block if isinstance(place, Part) else place
        return self.questions.ids(block * size, (block + 1) * size)

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
        schema = SERVED_SAMPLES_SCHEMA if self.served else SAMPLES_SCHEMA.with_metadata({"max_rows": str(max_rows)})
        write_table(self.samples_file(part), rows, schema)

    def samples(self, part: Part | None = None) -> pa.Table:
        """Samples of a part, or all of them, by block, part and question.

        Of a model in this process and of a served one the columns `question_id`, `sample`, `text`, `token_ids`, `logprobs`,
        `n_tokens`, `finish_reason` and `prompt_tokens`; of a served one also `reasoning`, and null where its server told
        nothing.

        Raises:
            Damaged: A file that is not as it was written, or that holds what no sampler gives.
        """
        tables = {self.samples_file(one): self._read_samples(one) for one in (self.parts() if part is None else [part])}
        if self.served:
            return pa.concat_tables([SERVED_SAMPLES_SCHEMA.empty_table(), *tables.values()])
        check_prompts(tables)
        table = pa.concat_tables([SAMPLES_SCHEMA.empty_table(), *tables.values()])
        counts = pc.list_value_length(table["token_ids"]).cast(pa.int32())
        return table.append_column(SERVED_SAMPLES_SCHEMA.field("n_tokens"), counts)

    def check_samples(self) -> None:
        """See that the parts of the samples agree with each other, holding those of a block at a time.

        Raises:
            Damaged: As `samples` of all parts.
        """
        for _, parts in groupby(self.parts(), key=lambda part: part.block):
            tables = {self.samples_file(part): self._read_samples(part) for part in parts}
            if not self.served:
                check_prompts(tables)

    def _read_samples(self, part: Part) -> pa.Table:
        path, ids = self.samples_file(part), self.ids(part)
        if self.served:
            table = read_table(path, self.path, SERVED_SAMPLES_SCHEMA, self.n_rows(part), SERVED_NULLABLE)
            check_served_samples(table, part, ids, path)
            return table
        table = read_table(path, self.path, SAMPLES_SCHEMA, self.n_rows(part))
        check_samples(table, part, ids, self.identity["policy"]["decoding"]["max_new_tokens"], path)
        return table

    def samples_file(self, part: Part) -> Path:
        """Where the samples of a part are, or will be."""
        return self.path / "samples" / f"{part.stem}.parquet"

    def log_file(self, part: Part) -> Path:
        """Where the answers of a part of a served model are until they are all there."""
        return self.samples_file(part).with_suffix(".jsonl")
