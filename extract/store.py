"""The store: a directory with one policy's samples, grades and signals, only ever added to.

Every data file is written beside its final name, renamed, and then vouched for by a small JSON file of its size and
SHA-256; a file without it is unfinished and is written again. Nothing here knows a model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from extract.errors import InputError
from extract.files import is_finished, problem_of, replace_file, write_file
from extract.hashing import canonical_json, sha256_json
from extract.policy import SCHEMA_VERSION, Identity, differences
from extract.questions.question import Question
from extract.tables import (
    GRADES_SCHEMA,
    QUESTIONS_SCHEMA,
    SAMPLES_SCHEMA,
    question_of,
    question_row,
    read_table,
    write_table,
)


@dataclass(frozen=True)
class Part:
    """Samples `start` to `stop` − 1 of the questions of block `block`; the unit in which samples and grades are kept."""

    block: int
    start: int
    stop: int

    @property
    def stem(self) -> str:
        """File name without its ending, for example ``00000.000-010``."""
        return f"{self.block:05d}.{self.start:03d}-{self.stop:03d}"

    @staticmethod
    def of(path: Path) -> Part:
        """The part that a file's name stands for."""
        block, span = path.name.split(".")[:2]
        start, stop = span.split("-")
        return Part(int(block), int(start), int(stop))


class Store:
    """A store on disk. Use `Store.create` or `Store.open`.

    Attributes:
        path: The directory.
        identity: Content of the identity, plain JSON types.
    """

    def __init__(self, path: Path, record: dict[str, Any]) -> None:
        self.path = path
        self.identity: dict[str, Any] = record["of"]
        self.sha256: str = record["identity"]
        self._questions: list[Question] | None = None

    @classmethod
    def create(cls, path: str | Path, identity: Identity, questions: list[Question]) -> Store:
        """Make a store, or open the one at `path` if it has the same identity.

        Raises:
            InputError: There is a store of another identity, or a folder that is no store and not empty.
        """
        path = Path(path)
        if (path / "identity.json").is_file():
            store = cls.open(path)
            store.check_identity(identity.as_dict())
            store._write_questions(questions)
            return store
        if path.exists() and (not path.is_dir() or any(not child.name.startswith(".") for child in path.iterdir())):
            raise InputError(
                f"Expected `store` to be a new folder or a store, but {str(path)!r} is something else and not empty. Give another --store."
            )
        path.mkdir(parents=True, exist_ok=True)
        record = {"format": "confidence-probes store", "identity": identity.sha256, "of": identity.as_dict()}
        store = cls(path, record)
        replace_file(path / "identity.json", json.dumps(record, indent=1, sort_keys=True).encode())
        store._write_questions(questions)
        return store

    def _write_questions(self, questions: list[Question]) -> None:
        """Write the questions, unless an earlier run has: it may have stopped between the identity and them."""
        path = self.path / "questions.parquet"
        if not is_finished(path):
            write_table(path, [question_row(question) for question in questions], QUESTIONS_SCHEMA)

    @classmethod
    def open(cls, path: str | Path) -> Store:
        """Open a store.

        Raises:
            InputError: No store at `path`, or one that this version can't read.
        """
        path = Path(path)
        file = path / "identity.json"
        if not file.is_file():
            raise InputError(
                f"Expected `store` to be the folder of a store, but {str(path)!r} has no identity.json. Make one with `python -m extract sample --store {path}`."
            )
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
            schema, stated, actual = record["of"]["schema"], record["identity"], sha256_json(record["of"])
        except (ValueError, KeyError, TypeError):
            raise InputError(
                f"Expected {str(file)!r} to hold a store's identity, but it can't be read. Restore the file, or make a new store."
            ) from None
        if schema != SCHEMA_VERSION:
            raise InputError(
                f"Expected a store of schema {SCHEMA_VERSION}, but {str(path)!r} has schema {schema}. Use the version of confidence-probes that made it."
            )
        if stated != actual:
            raise InputError(
                f"Expected the identity in {str(file)!r} to be {stated}, but its content gives {actual}: it was altered. Restore the file, or make a new store."
            )
        return cls(path, record)

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
    def questions(self) -> list[Question]:
        """The questions in their order."""
        if self._questions is None:
            rows = read_table(self.path / "questions.parquet", QUESTIONS_SCHEMA).to_pylist()
            self._questions = [question_of(row) for row in rows]
        return self._questions

    @property
    def n_blocks(self) -> int:
        """Number of blocks."""
        return -(-len(self.questions) // self.identity["block_size"])

    def block(self, index: int) -> list[Question]:
        """Questions of a block."""
        size = self.identity["block_size"]
        return self.questions[index * size : (index + 1) * size]

    # Samples and grades

    def parts(self) -> list[Part]:
        """Finished parts of the samples, by block and sample."""
        return self._parts(self.path / "samples")

    def missing_parts(self, k: int) -> list[Part]:
        """Parts that are missing for k samples of every question."""
        have: dict[int, set[int]] = {block: set() for block in range(self.n_blocks)}
        for part in self.parts():
            have.setdefault(part.block, set()).update(range(part.start, part.stop))
        return [Part(block, *gap) for block, samples in have.items() for gap in _gaps(samples, k)]

    def write_samples(self, part: Part, rows: list[dict[str, Any]]) -> None:
        """Keep the samples of a part, one row each."""
        write_table(self.path / "samples" / f"{part.stem}.parquet", rows, SAMPLES_SCHEMA)

    def samples(self, part: Part | None = None) -> pa.Table:
        """Samples of a part, or all of them, by block, part and question."""
        return self._tables(self.path / "samples", part, SAMPLES_SCHEMA)

    def graders(self) -> list[str]:
        """Names of the graders whose grades the store holds."""
        return sorted(folder.name for folder in (self.path / "grades").glob("*") if self._parts(folder))

    def ungraded_parts(self, grader: str) -> list[Part]:
        """Parts with samples and without this grader's grades."""
        graded = set(self.graded_parts(grader))
        return [part for part in self.parts() if part not in graded]

    def graded_parts(self, grader: str) -> list[Part]:
        """Parts with this grader's grades."""
        return self._parts(self.path / "grades" / grader)

    def write_grades(self, grader: str, part: Part, rows: list[dict[str, Any]], rule: str) -> None:
        """Keep a grader's grades of a part, one row a sample, and its rule in words in the table's metadata."""
        schema = GRADES_SCHEMA.with_metadata({"grader": grader, "rule": rule})
        write_table(self.path / "grades" / grader / f"{part.stem}.parquet", rows, schema)

    def grades(self, grader: str) -> pa.Table:
        """All grades of a grader."""
        return self._tables(self.path / "grades" / grader, None, GRADES_SCHEMA)

    # Signals

    def signal_folder(self, signal: str) -> Path:
        """Where a signal's question-scope blocks are."""
        return self.path / "signals" / signal / "question"

    def unread_blocks(self, signal: str) -> list[int]:
        """Blocks without this signal."""
        return [block for block in range(self.n_blocks) if not is_finished(self._signal_file(signal, block))]

    def write_signal(self, signal: str, block: int, tensors: dict[str, Tensor]) -> None:
        """Keep a signal of a block: tensors [question, …] by ``layer/position`` key."""
        # one key: safetensors writes several in an order that changes from run to run
        metadata = {"store": canonical_json({"identity": self.sha256, "signal": signal, "block": block})}
        write_file(
            self._signal_file(signal, block),
            save({key: tensor.contiguous() for key, tensor in tensors.items()}, metadata),
        )

    def signal_keys(self, signal: str) -> list[str]:
        """Keys of a signal's tensors, for example ``["0/last_prompt", …]``.

        Raises:
            InputError: The store does not hold the signal for every block.
        """
        missing = self.unread_blocks(signal)
        if missing:
            held = sorted(folder.name for folder in (self.path / "signals").glob("*"))
            raise InputError(
                f"Expected the store {str(self.path)!r} to hold the signal {signal!r}, but {len(missing)} of {self.n_blocks} blocks lack it (signals there: {', '.join(held) or 'none'}). Run `python -m extract read --store {self.path} --signals [{signal}]`."
            )
        with safe_open(self._signal_file(signal, 0), framework="pt") as file:
            return sorted(file.keys(), key=lambda key: (key.split("/")[1:], int(key.split("/")[0])))

    def read_signal(self, signal: str, key: str) -> Tensor:
        """One tensor [question, …] over all blocks; materialises its bytes and no others."""
        parts = []
        for block in range(self.n_blocks):
            with safe_open(self._signal_file(signal, block), framework="pt") as file:
                parts.append(file.get_tensor(key))
        return torch.cat(parts)

    # Files

    def data_files(self) -> list[Path]:
        """Every Parquet and safetensors file, finished or not."""
        return sorted(path for path in self.path.rglob("*") if path.suffix in (".parquet", ".safetensors"))

    def problems(self) -> Iterator[str]:
        """What is wrong with the store's files, one line each; nothing when it is whole."""
        files = self.data_files()
        for path in files:
            problem = problem_of(path)
            if problem is not None:
                yield f"{path.relative_to(self.path)}: {problem}"
        manifest = self.path / "manifest.json"
        try:
            listed = json.loads(manifest.read_text(encoding="utf-8"))["files"] if manifest.is_file() else {}
        except (ValueError, KeyError, TypeError):
            yield "manifest.json: can't be read"
            return
        for name in sorted(set(listed) - {str(path.relative_to(self.path)) for path in files}):
            yield f"{name}: missing (the manifest lists it)"

    def write_manifest(self) -> dict[str, Any]:
        """Write manifest.json, the index derived from the files, and return it."""
        files = {
            str(path.relative_to(self.path)): json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
            for path in self.data_files()
            if is_finished(path)
        }
        manifest = {
            "identity": self.sha256,
            "n_questions": len(self.questions),
            "n_blocks": self.n_blocks,
            "files": files,
        }
        replace_file(self.path / "manifest.json", json.dumps(manifest, indent=1, sort_keys=True).encode())
        return manifest

    def _signal_file(self, signal: str, block: int) -> Path:
        return self.signal_folder(signal) / f"{block:05d}.safetensors"

    def _parts(self, folder: Path) -> list[Part]:
        return sorted(
            (Part.of(path) for path in folder.glob("*.parquet") if is_finished(path)),
            key=lambda part: (part.block, part.start),
        )

    def _tables(self, folder: Path, part: Part | None, schema: pa.Schema) -> pa.Table:
        parts = self._parts(folder) if part is None else [part]
        return pa.concat_tables(
            [schema.empty_table(), *(read_table(folder / f"{p.stem}.parquet", schema) for p in parts)]
        )


def _gaps(have: set[int], k: int) -> Iterator[tuple[int, int]]:
    """Runs (start, stop) of the numbers below k that are not in `have`."""
    start = None
    for j in range(k + 1):
        missing = j < k and j not in have
        if missing and start is None:
            start = j
        elif not missing and start is not None:
            yield start, j
            start = None
