"""The rows of a dataset: of the Hugging Face Hub, of a folder that is laid out as one there, or of a file."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from extract.errors import InputError
from extract.running.progress import quiet_loggers
from extract.text import one_line

if TYPE_CHECKING:
    from extract.questions.sets import QuestionSet

Record = Mapping[str, Any]


def load_rows(name: str, dataset: QuestionSet, path: Path | None, split: str) -> Sequence[Record]:
    """All rows of a split; a file has one split, whatever it is called.

    Args:
        name: What the dataset is called, for messages.
        dataset: Where it is on the Hub, and how its files are read.
        path: A file, or a folder that is laid out as a dataset on the Hub; None for the Hub.
        split: The split.

    Raises:
        InputError: The file, dataset or split can't be found, read or reached, or takes a token.
    """
    if path is not None and not path.is_dir() and not (path.suffix in LOADERS and path.is_file()):
        raise InputError(
            f"Expected `questions` to be a set, an id on the Hugging Face Hub, or a file of {', '.join(LOADERS)}, but "
            f"{str(path)!r} is {'another file' if path.is_file() else 'no file'}. Check the path."
        )
    try:
        if path is None or path.is_dir():
            return _load_dataset(dataset, path, split)
        return LOADERS[path.suffix](path, dataset.columns)
    except InputError:
        raise
    except Exception as error:  # of many kinds: those of `datasets`, pandas, pyarrow and the Hub's client
        raise InputError(_unreadable(name, dataset, path, error)) from None


def _load_dataset(dataset: QuestionSet, folder: Path | None, split: str) -> Sequence[Record]:
    from datasets import load_dataset

    hub, config = str(dataset.hub), dataset.config
    in_csv = dataset.in_csv if folder is None else any(folder.rglob("*.csv"))
    as_text = {"keep_default_na": False, "index_col": False} if in_csv else {}  # "None" and "NA" are answers
    with quiet_loggers("datasets", "huggingface_hub"), warnings.catch_warnings():
        warnings.filterwarnings("error", "Length of header or names")  # fields without a column
        if folder is None:  # kept in the cache, where rows have places
            return load_dataset(hub, name=config, split=split, revision=dataset.revision, **as_text)
        return list(load_dataset(str(folder), name=config, split=split, streaming=True, **as_text))


# JSON and CSV are not read by `datasets`: it knows no line numbers, takes texts that look like dates for dates, gives
# up where a column holds now a text and now a list, and fills rows of a table that are too short.


def _from_jsonl(path: Path, columns: Sequence[str]) -> Sequence[Record]:
    with path.open("rb") as file:
        return [_json_object(line, f"line {i} of {path.name!r}") for i, line in enumerate(file, 1) if line.strip()]


def _json_object(line: bytes, where: str) -> Record:
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(f"Expected {where} to be UTF-8, but byte {error.start} is not. Save it as UTF-8.") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError of another kind
        problem = f"it does not parse ({getattr(error, 'msg', error)})"
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
    rows = lists[0] if len(lists) == 1 else content  # the list may be under a key, beside what is said of the rows
    if not is_rows(rows):
        raise InputError(
            f"Expected {path.name!r} to hold one list of objects, one a question, but it holds something else. "
            "Write such a list, or one object a line into a .jsonl file."
        )
    return rows


def _from_csv(path: Path, columns: Sequence[str]) -> Sequence[Record]:
    """Every field as text, just as it stands there: 145.0 stays, and so do NA and 007."""
    csv.field_size_limit(2**31 - 1)  # a question may hold a whole document
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        lines = [(reader.line_num, fields) for fields in reader if fields]
    if not lines:
        raise InputError(f"Expected {path.name!r} to have a header and a row for each question, but it is empty.")
    names = columns or lines.pop(0)[1]
    repeated = [name for name in names if name and names.count(name) > 1]
    if repeated:
        raise InputError(
            f"Expected the columns of {path.name!r} to have a name each, but {repeated[0]!r} is there "
            f"{names.count(repeated[0])} times. Rename them."
        )
    for number, fields in lines:
        if len(fields) != len(names):
            header = " without a header" if columns else ""
            raise InputError(
                f"Expected the row that ends in line {number} of {path.name!r} to have {len(names)} fields, of the "
                f"columns {', '.join(names)}{header}, but it has {len(fields)}. Put texts with commas in double quotes."
            )
    return [dict(zip(names, fields, strict=True)) for _, fields in lines]


def _from_parquet(path: Path, columns: Sequence[str]) -> Sequence[Record]:
    from pyarrow.parquet import ParquetFile

    return ParquetFile(path).read().to_pylist()


#: Functions that read a file, by its suffix.
LOADERS = {".jsonl": _from_jsonl, ".json": _from_json, ".csv": _from_csv, ".parquet": _from_parquet}


def _unreadable(name: str, dataset: QuestionSet, path: Path | None, error: Exception) -> str:
    """The message about a dataset that can't be read or reached."""
    from huggingface_hub import get_token

    hub, reason = dataset.hub, one_line(error, 300).rstrip(".")
    if path is not None:
        return f"Expected {str(path)!r} to be a dataset that can be read, but it is not ({reason}). Correct it."
    if "gated" in reason or (dataset.gated and get_token() is None):
        problem = "HF_TOKEN is not set" if get_token() is None else f"that of HF_TOKEN may not ({reason})"
        return (
            f"Expected a token for {hub!r}, which only accounts that accepted its terms may read, but {problem}. "
            f"Accept them at https://huggingface.co/datasets/{hub}, and set HF_TOKEN to a token of the account."
        )
    if isinstance(error, ConnectionError):
        file = "PATH" if name == hub else f"{name}=PATH"
        return (
            f"Expected the Hugging Face Hub to be reachable for {hub!r}, but it is not ({reason}). Connect, unset "
            f"HF_HUB_OFFLINE, or give a file of your own, as in --questions {file}."
        )
    return (
        f"Expected {hub!r} to be a dataset on the Hugging Face Hub that can be read, but it is not ({reason}). "
        "Check its id, configuration, split and revision."
    )
