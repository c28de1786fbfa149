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
        InputError: There is no such file, dataset or split, it can't be read or reached, or it takes a token that is
            not there.
    """
    if path is not None and not path.is_dir() and not (path.suffix in LOADERS and path.is_file()):
        raise InputError(
            f"Expected `questions` to be a set's name, an id on the Hugging Face Hub, or a file of "
            f"{', '.join(LOADERS)}, but {str(path)!r} is {'another file' if path.is_file() else 'no file'}. "
            "Check the path."
        )
    try:
        if path is None:
            return _from_hub(dataset, split)
        return _from_folder(dataset, path, split) if path.is_dir() else LOADERS[path.suffix](dataset, path)
    except InputError:
        raise
    except Exception as error:  # of many kinds: those of `datasets`, pandas, pyarrow and the Hub's client
        raise InputError(_unreadable(name, dataset, path, error)) from None


def _from_hub(dataset: QuestionSet, split: str) -> Sequence[Record]:
    options = {"keep_default_na": False} if dataset.in_csv else {}  # "None" and "NA" are answers
    return _load(str(dataset.hub), name=dataset.config, split=split, revision=dataset.revision, **options)


def _from_folder(dataset: QuestionSet, path: Path, split: str) -> Sequence[Record]:
    options = {"keep_default_na": False, "index_col": False} if any(path.rglob("*.csv")) else {}
    return _load(str(path), name=dataset.config, split=split, streaming=True, **options)


def _load(*names: str, **options: Any) -> Sequence[Record]:
    import datasets

    # A stream is read straight from its file; what comes from the Hub is kept in the cache, where rows have places
    with quiet_loggers("datasets", "huggingface_hub"), warnings.catch_warnings():
        warnings.filterwarnings("error", "Length of header or names")  # fields without a column
        loaded = datasets.load_dataset(*names, **options)
        return list(loaded) if options.get("streaming") else loaded


def _from_jsonl(dataset: QuestionSet, path: Path) -> Sequence[Record]:
    # Not by `datasets`: it knows no line numbers, takes texts that look like dates for dates, and gives up where a
    # column holds now a text and now a list
    records = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                records.append(_json_object(line, f"line {number} of {path.name!r}"))
    return records


def _json_object(line: bytes, where: str) -> Record:
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise InputError(
            f"Expected {where} to be UTF-8, but byte {error.start} of it is not. Save the file as UTF-8."
        ) from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError of another kind
        raise InputError(
            f"Expected {where} to be a JSON object, but it does not parse ({getattr(error, 'msg', error)}). "
            "Write one object per line."
        ) from None
    if not isinstance(record, dict):
        raise InputError(
            f"Expected {where} to be a JSON object, but got a {type(record).__name__}. Write one object per line."
        )
    return record


def _from_json(dataset: QuestionSet, path: Path) -> Sequence[Record]:
    content = json.loads(path.read_text(encoding="utf-8-sig"))
    lists = [value for value in content.values() if _is_rows(value) and value] if isinstance(content, dict) else []
    if len(lists) == 1:  # the rows are under a key, beside what is said of them
        content = lists[0]
    if not _is_rows(content):
        raise InputError(
            f"Expected {path.name!r} to hold one list of objects, one a question, but it holds something else. "
            "Write such a list, or one object a line into a .jsonl file."
        )
    return content


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(row, dict) for row in value)


def _from_csv(dataset: QuestionSet, path: Path) -> Sequence[Record]:
    """Every field as text, just as it stands there: 145.0 stays, and so do NA and 007.

    Not by `datasets`: it takes the first column for an index where every row has one field too many, so that all
    others move on by one, and fills rows that are too short.
    """
    csv.field_size_limit(2**31 - 1)  # a question may hold a whole document
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        lines = [(reader.line_num, fields) for fields in reader if fields]
    names = dataset.columns or tuple(lines[0][1] if lines else ())
    if lines and dataset.columns and len(lines[0][1]) != len(names):
        raise InputError(
            f"Expected {path.name!r} to have the columns {', '.join(names)} without a header, but it has "
            f"{len(lines[0][1])} of them. Give the set's own file, or name its columns in --fields."
        )
    if not lines:
        raise InputError(
            f"Expected {path.name!r} to have a header and a row for each question, but it is empty. Give another file."
        )
    repeated = [name for name in names if name and names.count(name) > 1]
    if repeated:
        raise InputError(
            f"Expected the columns of {path.name!r} to have a name each, but {repeated[0]!r} is there "
            f"{names.count(repeated[0])} times. Rename them."
        )
    rows = lines if dataset.columns else lines[1:]
    for number, fields in rows:
        if len(fields) != len(names):
            raise InputError(
                f"Expected the row that ends in line {number} of {path.name!r} to have {len(names)} fields, as many as "
                f"there are columns, but it has {len(fields)}. Write a text with a comma in it between double quotes."
            )
    return [dict(zip(names, fields, strict=True)) for _, fields in rows]


def _from_parquet(dataset: QuestionSet, path: Path) -> Sequence[Record]:
    from pyarrow.parquet import read_metadata

    if read_metadata(path).num_rows == 0:  # which `datasets` stumbles over
        return []
    return _load("parquet", data_files=str(path), split="train", streaming=True)


#: Functions that read a file, by its suffix.
LOADERS = {".jsonl": _from_jsonl, ".json": _from_json, ".csv": _from_csv, ".parquet": _from_parquet}


def _unreadable(name: str, dataset: QuestionSet, path: Path | None, error: Exception) -> str:
    """The message about a dataset that can't be read or reached."""
    from huggingface_hub import get_token

    hub, reason = dataset.hub, one_line(error, 300).rstrip(".")
    terms = f"https://huggingface.co/datasets/{hub}"
    if path is not None:
        return (
            f"Expected {str(path)!r} to be a dataset that can be read, but it is not ({reason}). "
            "Correct it, or give another one."
        )
    if (dataset.gated or "gated" in reason) and get_token() is None:
        return (
            f"Expected a token for {hub!r}, which is given only to accounts that accepted its terms, but HF_TOKEN is "
            f"not set. Accept them at {terms}, and set HF_TOKEN to a token of the account."
        )
    if "gated" in reason:
        return (
            f"Expected HF_TOKEN to be of an account that may read {hub!r}, but it may not ({reason}). "
            f"Accept the terms at {terms}."
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
