"""SHA-256 hashes of strings, files and JSON values, and differences between nested dicts."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def canonical_json(value: Any) -> str:
    """Serialise a value as JSON with sorted keys and no spaces. NaN is rejected.

    >>> canonical_json({"k": 10, "a": ["é", None]})
    '{"a":["é",null],"k":10}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256_json(value: Any) -> str:
    """SHA-256 (hex) of the canonical JSON of `value`."""
    return sha256_text(canonical_json(value))


def sha256_json_list(values: Iterable[Any]) -> str:
    """SHA-256 (hex) of the canonical JSON of a list. Only one value is in memory at a time.

    >>> sha256_json_list(iter([1, "b"])) == sha256_json([1, "b"])
    True
    """
    digest = hashlib.sha256(b"[")
    for i, value in enumerate(values):
        digest.update(("," * (i > 0) + canonical_json(value)).encode())
    digest.update(b"]")
    return digest.hexdigest()


def sha256_text(text: str) -> str:
    """SHA-256 (hex) of a string's UTF-8 bytes."""
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_order(ids: list[str], seed: int) -> list[int]:
    """Return the indices of `ids`, sorted by a hash of seed and id.

    >>> hash_order(["lima", "oslo", "rome"], seed=0)
    [1, 0, 2]
    >>> hash_order(["rome", "lima"], seed=0)  # lima comes before rome here too
    [1, 0]
    """
    return sorted(range(len(ids)), key=lambda i: hashlib.sha256(f"{seed}\0{ids[i]}".encode()).digest())


def differences(found: dict[str, Any], wanted: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the differences between nested dicts, as strings such as ``a.b: found 1, expected 2``."""
    for key in sorted(found.keys() | wanted.keys()):
        left, right = found.get(key), wanted.get(key)
        if isinstance(left, dict) and isinstance(right, dict):
            yield from differences(left, right, f"{prefix}{key}.")
        elif left != right:
            yield f"{prefix}{key}: found {_brief(left)}, expected {_brief(right)}"


def _brief(value: Any) -> str:
    text = repr(value)  # worked examples can be long
    return text if len(text) <= 400 else f"{text[:100]}… (SHA-256 {sha256_text(text)[:12]})"
