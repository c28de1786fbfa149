"""Functions that read the rows of a file, one for each file suffix."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from extract.errors import InputError

Record = Mapping[str, Any]

# `datasets` is not used for JSON and CSV: it reports no line numbers, parses strings as dates, fails on columns that
# mix strings and lists, and pads rows that are too short.


def numbered_lines(path: Path) -> Iterator[tuple[str, Record]]:
    """Yield the objects in a JSON Lines file, each with its location for error messages.

    Raises:
        InputError: If a line is not a JSON object.
    """
    with path.open("rb") as file:
        for i, line in enumerate(file, 1):
            if line.strip():
                where = f"line {i} of {path.name!r}"
                yield where, json_object(line, where)


def _from_jsonl(path: Path, columns: Sequence[str]) -> Sequence[Record]:
    return [record for _, record in numbered_lines(path)]


def json_object(line: bytes, where: str) -> Record:
    """Parse a line of a JSON Lines file, or raise an InputError."""
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(
            f"Expected {where} to be UTF-8, but the byte at offset {error.start} is invalid. Save the file as UTF-8."
        ) from None
    except (ValueError, RecursionError) as error:  # an integer with thousands of digits raises a plain ValueError
        problem = f"it is not valid JSON ({getattr(error, 'msg', error)})"
    else:
        if isinstance(record, dict):
            return record
        problem = f"got a {type(record).__name__}"
    raise InputError(f"Expected {where} to be a JSON object, but {problem}. Write one object per line.")


def _from_json(path: Path, columns: Sequence[str]) -> Sequence[Record]:
    def is_rows(value: Any) -> bool:
        return isinstance(value, list) and all(isinstance(row, dict) for row in value)

    content = json.loads(path.read_text(encoding="utf-8-sig"))
    lists = [value for value in content.values() if value and is_rows(value)] if isinstance(content, dict) else []
    rows = lists[0] if len(lists) == 1 else content  # possibly under a key, next to metadata
    if not is_rows(rows):
        raise InputError(
            f"Expected {path.name!r} to contain exactly one list, with one object per question, but it does not. "
            "Write such a list, or use a .jsonl file with one object per line."
        )
    return rows


def _from_csv(path: Path, columns: Sequence[str]) -> Sequence[Record]:
    """Read the fields of a CSV file as text, so that 145.0, NA and 007 stay unchanged."""
    csv.field_size_limit(2**31 - 1)  # a question can contain a whole document
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        lines = [(reader.line_num, fields) for fields in reader if fields]
    names = columns or (lines.pop(0)[1] if lines else [])
    repeated = [name for name in names if name and names.count(name) > 1]
    if repeated:
        raise InputError(
            f"Expected unique column names in {path.name!r}, but {repeated[0]!r} occurs "
            f"{names.count(repeated[0])} times. Rename the duplicates."
        )
    for number, fields in lines:
        if len(fields) != len(names):
            header = " (the file has no header)" if columns else ""
            raise InputError(
                f"Expected the row that ends on line {number} of {path.name!r} to have {len(names)} fields, but it has "
                f"{len(fields)}. The columns are {', '.join(names)}{header}. Put fields that contain "
                "commas in double quotes."
            )
    return [dict(zip(names, fields, strict=True)) for _, fields in lines]


def _from_parquet(path: Path, columns: Sequence[str]) -> Sequence[Record]:
    from pyarrow.parquet import ParquetFile

    return ParquetFile(path).read().to_pylist()


LOADERS = {".jsonl": _from_jsonl, ".json": _from_json, ".csv": _from_csv, ".parquet": _from_parquet}
