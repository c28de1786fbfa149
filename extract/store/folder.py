"""`StoreFolder`: what the samples, grades, signals and asked tables of a store share."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from extract.errors import InputError
from extract.hashing import canonical_json, sha256_json
from extract.policy import differences
from extract.store.files import Damaged, is_finished, read_sidecar
from extract.store.questions import Questions, read_questions
from extract.store.shards import Block, SampleRange, Scope, Shard, finished_ranges


class StoreFolder:
    """The directory of a store.

    Attributes:
        path: The directory.
        identity: Content of the identity, plain JSON types.
        sha256: SHA-256 of the identity.
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path, self.identity, self.sha256 = path, identity, sha256_json(identity)

    @cached_property
    def questions(self) -> Questions:
        """The questions in their order, read once.

        Raises:
            Damaged: They are not those of the identity.
        """
        file = self.path / "questions.parquet"
        return read_questions(file, self.path, self.identity["questions"], self.identity["block_size"])

    def ranges(self) -> list[SampleRange]:
        """Finished ranges of samples, by block and sample.

        Raises:
            Damaged: As `finished_ranges`.
        """
        return finished_ranges(self.path / "samples", self.questions.n_blocks)

    def shards(self, scope: Scope) -> list[Shard]:
        """Every block, or every finished range of samples, in the order of the rows."""
        return [*map(Block, range(self.questions.n_blocks))] if scope == "question" else [*self.ranges()]

    def samples_file(self, samples: SampleRange) -> Path:
        """Where a range of samples is, or will be."""
        return self.path / "samples" / f"{samples.stem}.parquet"

    def provenance(self, shard: Shard, file: Path, **content: str) -> dict[str, Any]:
        """Provenance record that ties a file to its store, block and samples.

        Samples that were lost and drawn again may differ, and what was computed from the earlier ones no longer fits.

        Args:
            shard: What the file's rows are.
            file: The file, for the message.
            **content: For example ``signal="hidden"``.

        Raises:
            Damaged: The store has no such samples.
        """
        if isinstance(shard, Block):
            return {"identity": self.sha256, **content, "block": shard.block}
        samples = self.samples_file(shard)
        if not is_finished(samples):
            raise Damaged(file, "the store has no such samples")
        record = {"identity": self.sha256, **content, "block": shard.block, "scope": "sample"}
        return {**record, "part": [shard.start, shard.stop], "samples": read_sidecar(samples).sha256}

    def check_settings(self, files: str, found: dict[str, Any] | None, expected: dict[str, Any]) -> None:
        """Refuse settings other than those of the files that are there.

        Args:
            files: Folder of the files in the store, for example ``"asked/p_true"``.
            found: Settings of the files; None without any.
            expected: Settings of this run.

        Raises:
            InputError: The settings differ.
        """
        if found is not None and (different := list(differences(found, json.loads(canonical_json(expected))))):
            raise InputError(
                f"Expected this run to have the settings of the files in {str(self.path / files)!r}, but it differs in "
                f"{'; '.join(different)}. Use the same settings, or delete that folder to begin anew."
            )
