"""Schemas of options and JSON files: allowed keys, types and ranges."""

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from extract.errors import InputError
from extract.text import shown


class Field(NamedTuple):
    """Requirement for a JSON value: a test, and a description for error messages."""

    expected: str
    holds: Callable[[Any], bool]


#: Dict from keys to fields, or to schemas of nested records.
Schema = Mapping[str, "Field | Maybe | Schema"]


class Maybe(NamedTuple):
    """An optional field or nested record."""

    field: "Field | Schema"


def whole(low: int, high: int, expected: str | None = None) -> Field:
    """Field for a whole number from `low` to `high`. Booleans are rejected."""
    return Field(
        expected or f"a whole number from {low} to {high}", lambda value: type(value) is int and low <= value <= high
    )


def number(expected: str, holds: Callable[[float], bool]) -> Field:
    """Field for a finite number that satisfies `holds`."""
    largest = sys.float_info.max  # rejects integers that are too large for a float
    return Field(expected, lambda value: type(value) in (int, float) and abs(value) <= largest and holds(value))


def or_null(field: Field) -> Field:
    """Field that accepts null or any value that `field` accepts."""
    return Field(f"null, or {field.expected}", lambda value: value is None or field.holds(value))


def one_of(known: Iterable[str]) -> Field:
    """Field for one of a fixed set of names."""
    names = tuple(known)
    return Field(f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names)


def _is_text(value: Any) -> bool:
    """Whether a value is a string that UTF-8 can encode."""
    return isinstance(value, str) and re.search("[\ud800-\udfff]", value) is None


def _is_list(value: Any, holds: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and all(map(holds, value))


def _is_model_id(value: Any) -> bool:
    """Whether a value is a Hub id or a folder name and has no components such as ``..``."""
    parts = value.split("/") if isinstance(value, str) and value.isprintable() else []
    return 1 <= len(parts) <= 2 and not any(part in ("", ".", "..", "~") for part in parts)


TEXT = Field("a string", _is_text)
TEXT_OR_NULL = Field("a string or null", lambda value: value is None or _is_text(value))
TEXTS = Field("a list of non-empty strings", lambda value: _is_list(value, lambda item: _is_text(item) and item != ""))
FLAG = Field("true or false", lambda value: isinstance(value, bool))
OBJECT = Field("an object", lambda value: isinstance(value, dict))
SHA256 = Field(
    "a SHA-256 in hex", lambda value: isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None
)
TEMPLATE = Field(
    "a string that contains {question} exactly once", lambda value: _is_text(value) and value.count("{question}") == 1
)

MODEL: Schema = {
    "id": Field("a Hub id or the name of a folder, never a path", _is_model_id),
    "revision": TEXT_OR_NULL,
    "fingerprint": SHA256,
    "dtype": one_of(("float32", "bfloat16", "float16", "float64")),
    "tokenizer": SHA256,
    "chat_template": SHA256,
}
#: Schema of a served model, of which only the name is known.
NAMED_MODEL: Schema = {**dict.fromkeys(MODEL, Field("null", lambda value: value is None)), "id": TEXT}
EXAMPLES = Field(
    "a list of pairs of strings",
    lambda value: _is_list(value, lambda pair: _is_list(pair, _is_text) and len(pair) == 2),
)
PROMPT: Schema = {
    "template": TEMPLATE,
    "system": TEXT_OR_NULL,
    "chat": FLAG,
    "thinking": Maybe(FLAG),
    "examples": Maybe(EXAMPLES),
}
DECODING = {
    "temperature": number("0 or a finite number of at least 1e-6", lambda value: value == 0 or value >= 1e-6),
    "top_p": number("above 0 and at most 1", lambda value: 0 < value <= 1),
    "top_k": whole(0, 2**31, "at least 0 (0 keeps all tokens) and below 2 billion"),
    "max_new_tokens": whole(1, 2**31, "at least 1 and below 2 billion"),
    "stop": TEXTS,
    "seed": whole(-(2**63), 2**64),
}
#: Schema of decoding options that may be unknown.
KNOWN_DECODING = {name: or_null(field) for name, field in DECODING.items()}
BLOCK_SIZE = whole(1, 1_000_000)
#: Schema of the key `of` in identity.json.
IDENTITY: Schema = {
    "policy": {"model": OBJECT, "decoding": OBJECT, "request": Maybe(OBJECT)},
    "questions": SHA256,
    "block_size": BLOCK_SIZE,
    "sampler": TEXT,
    "schema": whole(1, 2**31),
}


def check_options(options: object, fields: Mapping[str, Field], prefix: str = "") -> None:
    """Check the attributes of an options object.

    Raises an `InputError` that names the option, preceded by `prefix` (for example ``"policy."``).
    """
    for name, field in fields.items():
        value = getattr(options, name, None)
        value = list(value) if isinstance(value, tuple) else value
        if not field.holds(value):
            raise InputError(f"Expected `{prefix}{name}` to be {field.expected}, but got {shown(value)}.")


def check_record(record: Any, schema: Schema, path: Path, prefix: str = "") -> None:
    """Check a JSON value against its schema.

    Raises an `InputError` that names `path` and the key. The key is preceded by `prefix` (for example
    ``"of.policy."``).
    """
    where = repr(str(path))
    if not isinstance(record, dict):
        name = f"`{prefix.removesuffix('.')}` in {where}" if prefix else where
        raise InputError(f"Expected {name} to be an object, but got {shown(record)}. Restore the file.")
    lacking = [prefix + key for key, field in schema.items() if key not in record and not isinstance(field, Maybe)]
    unknown = [prefix + key for key in record if key not in schema]
    if lacking or unknown:
        found = f"lacks {', '.join(lacking)}" if lacking else f"has the unknown key {shown(unknown[0])}"
        fields = ", ".join(f"{prefix}{key}{' (optional)' * isinstance(field, Maybe)}" for key, field in schema.items())
        raise InputError(f"Expected {where} to have the keys {fields}, but it {found}. Restore the file.")
    for key, value in record.items():
        field = schema[key]
        field = field.field if isinstance(field, Maybe) else field
        if not isinstance(field, Field):
            check_record(value, field, path, f"{prefix}{key}.")
        elif not field.holds(value):
            raise InputError(
                f"Expected `{prefix}{key}` in {where} to be {field.expected}, but got {shown(value)}. Restore the file."
            )
