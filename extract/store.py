"""The store: a directory with one policy's samples, grades and signals, only ever added to.

Every data file is written beside its final name, renamed, and then vouched for by a small JSON file of its size and
SHA-256; a file without it is unfinished and is written again. Nothing here knows a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from extract.errors import InputError
from extract.files import is_finished, is_whole, shown
from extract.hashing import sha256_json
from extract.identity import check_place, read_identity, write_identity
from extract.parts import Part, block_stem, check_name, finished_parts, folder_names, gaps
from extract.policy import Identity, differences
from extract.questions.question import Question
from extract.rows import check_grades, check_prompts, check_samples
from extract.tables import (
    GRADES_SCHEMA,
    SAMPLES_SCHEMA,
    Questions,
    read_questions,
    read_table,
    write_table,
)
from extract.tensors import Layout, check_block, common_layout, read_block, write_block
from extract.verification import find_problems, write_manifest


class Store:
    """A store on disk. Use `Store.create` or `Store.open`.

    Attributes:
        path: The directory.
        identity: Content of the identity, plain JSON types.
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path, self.identity, self.sha256 = path, identity, sha256_json(identity)
        self._questions: Questions | None = None
        self._layouts: dict[Path, Layout] = {}  # of the blocks that were checked
        self._keys: dict[str, list[str]] = {}  # of the signals that were found whole

    @classmethod
    def create(cls, path: str | Path, identity: Identity, questions: Iterable[Question]) -> Store:
        """Make a store, or open the one at `path` if it has the same identity.

        Raises:
            InputError: There is a store of another identity, or a folder that is no store and not empty.
        """
        path = Path(path)
        check_place(path)
        if (path / "identity.json").is_file():
            store = cls.open(path)
            store.check_identity(identity.as_dict())
        else:
            path.mkdir(parents=True, exist_ok=True)
            store = cls(path, identity.as_dict())
            write_identity(path, store.identity)
        if not is_whole(
            path / "questions.parquet", path
        ):  # an earlier run may have stopped between the identity and them
            store._questions = questions if isinstance(questions, Questions) else Questions.of(questions)
            store._questions.write(path / "questions.parquet")
        return store

    @classmethod
    def open(cls, path: str | Path) -> Store:
        """Open a store.

        Raises:
            InputError: No store at `path`, or one that this version can't read.
        """
        return cls(Path(path), read_identity(Path(path)))

    def check_identity(self, wanted: dict[str, Any]) -> None:
        """Refuse another identity, saying both values of whatever differs.

        Raises:
            InputError: The identities differ.
        """
        found = list(differences(self.identity, wanted))
        if found:
            raise InputError(
                f"Expected the store {str(self.path)!r} to have the identity of this run, but they differ in {'; '.join(found)}. Give another --store, or the settings of that store."
            )

    # Questions and blocks

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

    def _ids(self, block: int) -> list[str]:
        return [question.id for question in self.block(block)]

    # Samples and grades

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
            path, ids = self.samples_file(one), self._ids(one.block)
            tables[path] = read_table(path, self.path, SAMPLES_SCHEMA, len(ids) * (one.stop - one.start))
            check_samples(tables[path], one, ids, self.identity["policy"]["decoding"]["max_new_tokens"], path)
        check_prompts(tables)
        return pa.concat_tables([SAMPLES_SCHEMA.empty_table(), *tables.values()])

    def samples_file(self, part: Part) -> Path:
        """Where the samples of a part are, or will be."""
        return self.path / "samples" / f"{part.stem}.parquet"

    def graders(self) -> list[str]:
        """Names of the graders whose grades the store holds."""
        return [name for name in folder_names(self.path / "grades", "grader") if self.graded_parts(name)]

    def ungraded_parts(self, grader: str) -> list[Part]:
        """Parts with samples and without this grader's grades."""
        graded = set(self.graded_parts(grader))
        return [part for part in self.parts() if part not in graded]

    def graded_parts(self, grader: str) -> list[Part]:
        """Parts with this grader's grades.

        Raises:
            InputError: As `parts`, or the grader's name is none.
        """
        return finished_parts(self._grades_folder(grader), self.n_blocks)

    def write_grades(self, grader: str, part: Part, rows: list[dict[str, Any]], rule: str) -> None:
        """Keep a grader's grades of a part, one row a sample, and its rule in words in the table's metadata."""
        schema = GRADES_SCHEMA.with_metadata({"grader": grader, "rule": rule})
        write_table(self.grades_file(grader, part), rows, schema)

    def grades(self, grader: str, part: Part | None = None) -> pa.Table:
        """A grader's grades of a part, or all of them.

        Raises:
            InputError: As `samples`, or the grader's name is none.
        """
        tables = []
        for one in self.graded_parts(grader) if part is None else [part]:
            path, ids = self.grades_file(grader, one), self._ids(one.block)
            tables.append(read_table(path, self.path, GRADES_SCHEMA, len(ids) * (one.stop - one.start)))
            check_grades(tables[-1], one, ids, grader, path)
        return pa.concat_tables([GRADES_SCHEMA.empty_table(), *tables])

    def grades_file(self, grader: str, part: Part) -> Path:
        """Where a grader's grades of a part are, or will be."""
        return self._grades_folder(grader) / f"{part.stem}.parquet"

    def _grades_folder(self, grader: str) -> Path:
        return self.path / "grades" / check_name(grader, "grader")

    # Signals

    def signals(self) -> list[str]:
        """Names of the signals of which the store holds at least a folder."""
        return folder_names(self.path / "signals", "signal")

    def unread_blocks(self, signal: str) -> list[int]:
        """Blocks without this signal."""
        return [block for block in range(self.n_blocks) if not is_finished(self.signal_file(signal, block))]

    def write_signal(
        self, signal: str, block: int, tensors: dict[str, Tensor], batch_tokens: int | None = None
    ) -> None:
        """Keep a signal of a block, and how many tokens were read at a time, which its last bits depend on.

        Args:
            signal: Name of the signal.
            block: Number of the block.
            tensors: [question, …] by ``layer/position`` key.
            batch_tokens: Prompt tokens that were read at a time.
        """
        path, stamp = self.signal_file(signal, block), self._stamp(signal, block)
        write_block(path, tensors, stamp, batch_tokens)
        self._layouts.pop(path, None)
        self._keys.pop(signal, None)

    def _stamp(self, signal: str, block: int) -> dict[str, Any]:
        return {"identity": self.sha256, "signal": signal, "block": block}

    def signal_keys(self, signal: str) -> list[str]:
        """Keys of a signal's tensors, for example ``["0/last_prompt", …]``, by position and layer.

        Raises:
            InputError: The store does not hold the signal for every block, or a block is damaged or unlike the others.
        """
        if signal in self._keys:
            return self._keys[signal]
        missing = self.unread_blocks(signal)
        if missing:
            raise InputError(
                f"Expected the store {str(self.path)!r} to hold the signal {signal!r}, but {len(missing)} of {self.n_blocks} blocks lack it (signals there: {', '.join(self.signals()) or 'none'}). Run `python -m extract read --store {self.path} --signals [{signal}]`."
            )
        by_layer = sorted(self.layout(signal), key=lambda key: (key.split("/")[1:], int(key.split("/")[0])))
        self._keys[signal] = by_layer
        return by_layer

    def read_signal(self, signal: str, key: str) -> Tensor:
        """One tensor [question, …] over all blocks; a row that is missing is NaN as a whole.

        The files are checked when the first key is read; after that, a key's own bytes are read and no others.

        Raises:
            InputError: As `signal_keys`, no such key, or a row that is infinite or NaN in part.
        """
        held = self.signal_keys(signal)
        if key not in held:
            raise InputError(
                f"Expected `key` to be one that the signal {signal!r} of {str(self.path)!r} has ({held[0]} to {held[-1]}), but got {shown(key)}. Choose one of them."
            )
        return torch.cat([self.read_block(signal, block, key) for block in range(self.n_blocks)])

    def read_block(self, signal: str, block: int, key: str) -> Tensor:
        """One tensor [question, …] of a block whose layout was read.

        Raises:
            Damaged: A row is infinite or NaN in part.
        """
        return read_block(self.signal_file(signal, block), key, self._ids(block))

    def block_layout(self, signal: str, block: int) -> Layout:
        """What a block's tensors are, by key; its file is read and checked once.

        Raises:
            Damaged: The file is not as it was written, or is none of this block.
        """
        path, stamp = self.signal_file(signal, block), self._stamp(signal, block)
        if path not in self._layouts:
            self._layouts[path] = check_block(path, self.path, len(self.block(block)), stamp)
        return self._layouts[path]

    def layout(self, signal: str) -> Layout:
        """What the tensors of all finished blocks of a signal are, by key; nothing when there is no such block.

        Raises:
            Damaged: As `block_layout`, or a block is unlike the others.
        """
        finished = sorted(set(range(self.n_blocks)) - set(self.unread_blocks(signal)))
        return common_layout({self.signal_file(signal, block): self.block_layout(signal, block) for block in finished})

    def signal_file(self, signal: str, block: int) -> Path:
        """Where a signal of a block is, or will be."""
        return self.path / "signals" / check_name(signal, "signal") / "question" / f"{block_stem(block)}.safetensors"

    # Files

    def problems(self) -> Iterator[str]:
        """What is wrong with the store's files, one line each; nothing when it is whole."""
        return find_problems(self)

    def write_manifest(self) -> dict[str, Any]:
        """Write manifest.json, the index derived from the files, and return it."""
        return write_manifest(self)
