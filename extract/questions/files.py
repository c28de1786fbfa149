"""Questions from a JSON Lines file: one object a line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from extract.errors import InputError, nearest
from extract.questions.question import Question, check_questions

FIELDS = ("id", "text", "messages", "references", "kind", "choices", "group", "meta")


def read_jsonl(path: Path) -> list[Question]:
    """Read questions from `path`; fields are those of `Question`, of which `id`, `references` and `text` or `messages` are needed.

    Raises:
        InputError: The file is missing, a line is no JSON object, a field is unknown or of the wrong type, or the
            questions break a rule of `check_questions`.
    """
    if not path.is_file():
        raise InputError(
            f"Expected `questions` to be a built-in set or a .jsonl file, but {str(path)!r} is no file. Check the path."
        )
    with path.open("rb") as file:
        lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
        read = (_question(_text(line, number, path), number, path) for number, line in lines)
        return list(check_questions(read, f"{path.name!r}"))


def _text(line: bytes, number: int, path: Path) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"Expected line {number} of {path.name!r} to be UTF-8, but byte {error.start} of it is not. Save the file as UTF-8."
        ) from None


def _question(line: str, number: int, path: Path) -> Question:
    where = f"line {number} of {path.name!r}"
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(
            f"Expected {where} to be a JSON object, but it does not parse ({error.msg}). Write one object per line."
        ) from None
    if not isinstance(record, dict):
        raise InputError(
            f"Expected {where} to be a JSON object, but got a {type(record).__name__}. Write one object per line."
        )
    for key in record:
        if key not in FIELDS:
            raise InputError(
                f"Expected the fields of {where} to be among {', '.join(FIELDS)}, but got {key!r}.{nearest(key, FIELDS)}"
            )
    return Question(
        id=str(record.get("id", "")),
        dataset=sys.intern(path.stem),
        text=_typed(record, "text", str, "", where),
        messages=tuple(_typed(record, "messages", list, [], where)),
        references=_strings(record, "references", where),
        kind=_typed(record, "kind", str, "short", where),
        choices=_strings(record, "choices", where),
        group=_typed(record, "group", str, "", where),
        meta=_typed(record, "meta", dict, {}, where),
    )


def _typed(record: dict[str, Any], key: str, kind: type, default: Any, where: str) -> Any:
    value = record.get(key, default)
    if not isinstance(value, kind):
        raise InputError(f"Expected `{key}` in {where} to be a {kind.__name__}, but got {value!r}. Correct the field.")
    return value


def _strings(record: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    value = record.get(key, [])
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(item, str) and item.strip() for item in values):
        raise InputError(
            f"Expected `{key}` in {where} to be a text or a list of texts, none empty, but got {value!r}. Correct the field."
        )
    return tuple(values)
