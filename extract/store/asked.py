"""Results of `python -m extract ask`, in one Parquet file per baseline and shard."""

from typing import Any

import pyarrow as pa

from extract.errors import Damaged
from extract.hashing import canonical_json, differences
from extract.store.files import parse_metadata
from extract.store.folder import ShardFiles, StoreFolder
from extract.store.parquet import asked_schema, write_table
from extract.store.shards import Scope, Shard
from extract.text import shown


class Asked(ShardFiles):
    """Results of ``python -m extract ask`` on disk. All tables of a baseline were computed with the same settings."""

    def __init__(self, folder: StoreFolder) -> None:
        super().__init__(folder, "asked/{name}", "baseline")

    def names(self, scope: Scope = "question") -> list[str]:
        """Return the names of all baselines with a finished table for a scope."""
        return [name for name in super().names() if self.finished(name, scope)]

    def write(self, baseline: str, shard: Shard, rows: list[dict[str, Any]], settings: dict[str, Any]) -> None:
        """Write a baseline's table for a shard.

        Args:
            shard: Block of questions, or range of samples.
            rows: One row per question or answer, with the columns of `asked_schema`.
            settings: Model, prompts and options, as plain JSON types.

        Raises:
            InputError: If existing tables of the baseline have different settings.
        """
        self.check_settings(baseline, shard.scope, settings)
        metadata = {"how": canonical_json(settings), "of": canonical_json(self._provenance(baseline, shard))}
        table = pa.Table.from_pylist(rows, asked_schema(baseline, shard.scope).with_metadata(metadata))
        write_table(self.file(baseline, shard), table)

    def read(self, baseline: str, scope: Scope = "question") -> pa.Table:
        """Read a baseline's results for all questions or all answers, sorted by block, range and question.

        Raises:
            InputError: If a table is missing or damaged, or two tables have different settings.
        """
        self.check_complete(baseline, scope, f"ask --store {self._folder.path} --baselines '[{baseline}]'")
        return pa.concat_tables([self.read_shard(baseline, shard) for shard in self._folder.shards(scope)])

    def read_shard(self, baseline: str, shard: Shard) -> pa.Table:
        """Read a baseline's table for a shard.

        Raises `Damaged` if the file is damaged, or if its settings differ from those of the baseline's other files.
        """
        table, settings = self._read(baseline, shard)
        if different := "; ".join(differences(settings, self._settings.setdefault((baseline, shard.scope), settings))):
            raise Damaged(self.file(baseline, shard), f"its settings differ from those of another table ({different})")
        return table

    def _read_settings(self, name: str, shard: Shard) -> dict[str, Any]:
        return self._read(name, shard)[1]

    def _read(self, baseline: str, shard: Shard) -> tuple[pa.Table, dict[str, Any]]:
        file = self.file(baseline, shard)
        table = self._folder.read_table(file, shard, asked_schema(baseline, shard.scope))
        expected, metadata = self._provenance(baseline, shard), table.schema.metadata or {}
        settings, stated = (parse_metadata(file, metadata.get(key)) for key in (b"how", b"of"))
        if stated != expected:
            raise Damaged(file, f"its metadata is {shown(stated)} instead of {canonical_json(expected)}")
        return table.replace_schema_metadata(None), settings
