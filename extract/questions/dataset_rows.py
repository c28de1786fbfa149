"""The rows of a dataset: of the Hugging Face Hub, or of a folder or a file that is laid out as one there."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from extract.errors import InputError
from extract.questions.files import json_lines
from extract.running.progress import quiet_loggers
from extract.text import one_line

#: Files whose rows can be read.
SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
#: What `datasets`, pandas, pyarrow and the Hub's client raise about what can't be read or reached.
_UNREADABLE = (OSError, ValueError, TypeError, LookupError, RuntimeError, Warning)
#: Characters in a field of a CSV file; a question may hold a whole document.
_LONGEST_FIELD = 2**31 - 1


@dataclass(frozen=True)
class Place:
    """Where rows are.

    Attributes:
        name: What the dataset is called, for messages.
        path: A file, or a folder that is laid out as a dataset on the Hub; None for the Hub.
        hub: Its id on the Hub, where it has one.
        config: Its configuration there; None takes the only one.
        revision: Commit there; None takes the newest.
        gated: Whether it is given out only to accounts that accepted its terms.
        in_csv: Whether it is a table in CSV there.
        columns: Columns of its CSV file where that has no header.
    """

    name: str
    path: Path | None = None
    hub: str | None = None
    config: str | None = None
    revision: str | None = None
    gated: bool = False
    in_csv: bool = False
    columns: tuple[str, ...] = ()

    def rows(self, split: str) -> Sequence[Mapping[str, Any]]:
        """All rows of a split; a file has one split, whatever it is called.

        Raises:
            InputError: There is no such file, dataset or split, it can't be read or reached, or it takes a token that is
                not there.
        """
        if self.path is None:
            return self._loaded(str(self.hub), name=self.config, split=split, revision=self.revision, **self._texts())
        if self.path.is_dir():
            return self._loaded(str(self.path), name=self.config, split=split, streaming=True, **self._texts())
        if self.path.suffix not in SUFFIXES or not self.path.is_file():
            raise InputError(
                f"Expected `questions` to be a file of {', '.join(SUFFIXES)}, but {str(self.path)!r} is {'another one' if self.path.is_file() else 'no file'}. Check the path."
            )
        if self.path.suffix == ".jsonl":
            return [record for record, _ in json_lines(self.path)]
        if self.path.suffix == ".json":
            return self._json(self.path)
        if self.path.suffix == ".csv":
            return self._csv(self.path)
        return self._parquet(self.path)

    def _loaded(self, *names: str, **options: Any) -> Sequence[Mapping[str, Any]]:
        import datasets

        # A stream is read straight from its file; what comes from the Hub is kept in the cache, where rows have places
        try:
            with quiet_loggers("datasets", "huggingface_hub"), warnings.catch_warnings():
                warnings.filterwarnings("error", "Length of header or names")  # fields that no column is there for
                loaded = datasets.load_dataset(*names, **options)
                return list(loaded) if options.get("streaming") else loaded
        except (*_UNREADABLE, datasets.exceptions.DatasetsError) as error:
            raise self._refused(error) from None

    def _texts(self) -> dict[str, Any]:
        """What keeps answers such as "None" and "NA" texts, and fields in their columns, where the dataset is a table in CSV."""
        if self.path is None:
            return {"keep_default_na": False} if self.in_csv else {}
        return {"keep_default_na": False, "index_col": False} if any(self.path.rglob("*.csv")) else {}

    def _csv(self, path: Path) -> list[dict[str, Any]]:
        """Every field as text, just as it stands there: 145.0 stays, and so do NA and 007.

        Not by `datasets`: it takes the first column for an index where every row has one field too many, so that all
        others move on by one, and fills rows that are too short.
        """
        csv.field_size_limit(_LONGEST_FIELD)
        try:
            with path.open(encoding="utf-8-sig", newline="") as file:
                reader = csv.reader(file, strict=True)
                lines = [(reader.line_num, fields) for fields in reader if fields]
        except (OSError, ValueError, csv.Error) as error:
            raise self._refused(error) from None
        first = lines[0][1] if lines else []
        if self.columns and len(first) != len(self.columns):
            raise InputError(
                f"Expected {path.name!r} to have the columns {', '.join(self.columns)} without a header, but it has {len(first)} of them. Give the file of {self.name}, or name its columns in --fields."
            )
        if not lines:
            raise InputError(
                f"Expected {path.name!r} to have a header and a row for each question, but it is empty. Give another file."
            )
        names, rows = (self.columns, lines) if self.columns else (tuple(first), lines[1:])
        twice = [name for name in names if name and names.count(name) > 1]
        if twice:
            raise InputError(
                f"Expected the columns of {path.name!r} to have a name each, but {twice[0]!r} is there {names.count(twice[0])} times. Rename them."
            )
        for number, fields in rows:
            if len(fields) != len(names):
                raise InputError(
                    f"Expected the row that ends in line {number} of {path.name!r} to have {len(names)} fields, as many as there are columns, but it has {len(fields)}. Write a text that has a comma in it between double quotes."
                )
        return [dict(zip(names, fields, strict=True)) for _, fields in rows]

    def _parquet(self, path: Path) -> Sequence[Mapping[str, Any]]:
        from pyarrow.parquet import read_metadata

        try:
            if read_metadata(path).num_rows == 0:  # which `datasets` stumbles over
                return []
        except (OSError, ValueError) as error:
            raise self._refused(error) from None
        return self._loaded("parquet", data_files=str(path), split="train", streaming=True)

    def _json(self, path: Path) -> list[dict[str, Any]]:
        # not by `datasets`, for the reasons of `json_lines`
        try:
            held = json.loads(path.read_text(encoding="utf-8-sig"))
        except (OSError, ValueError, RecursionError) as error:
            raise self._refused(error) from None
        if isinstance(held, dict):  # the rows are then under a key, beside what is said of them
            lists = [value for value in held.values() if _is_rows(value) and value]
            held = lists[0] if len(lists) == 1 else None
        if not _is_rows(held):
            raise InputError(
                f"Expected {path.name!r} to hold one list of objects, one a question, but it holds something else. Write such a list, or one object a line into a .jsonl file."
            )
        return held

    def _refused(self, error: Exception) -> InputError:
        from huggingface_hub import get_token

        reason = one_line(error, 300).rstrip(".")
        if self.path is not None:
            return InputError(
                f"Expected {str(self.path)!r} to be a dataset that can be read, but it is not ({reason}). Correct it, or give another one."
            )
        if self.gated or "gated" in reason:
            if get_token() is None:
                return InputError(
                    f"Expected a token for {self.hub!r}, which is given only to accounts that accepted its terms, but HF_TOKEN is not set. Accept them at https://huggingface.co/datasets/{self.hub}, and set HF_TOKEN to a token of the account."
                )
            if "gated" in reason:
                return InputError(
                    f"Expected HF_TOKEN to be of an account that may read {self.hub!r}, but it may not ({reason}). Accept the terms at https://huggingface.co/datasets/{self.hub}."
                )
        if isinstance(error, ConnectionError):
            file = "PATH" if self.name == self.hub else f"{self.name}=PATH"
            return InputError(
                f"Expected the Hugging Face Hub to be reachable for {self.hub!r}, but it is not ({reason}). Connect, unset HF_HUB_OFFLINE, or give a file of your own, as in --questions {file}."
            )
        return InputError(
            f"Expected {self.hub!r} to be a dataset on the Hugging Face Hub that can be read, but it is not ({reason}). Check its id, configuration, split and revision."
        )


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(row, dict) for row in value)
