"""Read a system's outputs from a store, a JSON file or a CSV file."""

import csv
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from applications.background.variability import Output
from extract.errors import InputError
from extract.hashing import canonical_json
from extract.store.samples import WITHOUT_ANSWER
from extract.store.store import Store

Unit = Literal["tokens", "words"]
_WORD = re.compile(r"\w+|[^\w\s]")
_FORMAT = (
    "Use a JSON object that maps each prompt to a list of outputs (texts or lists of token ids), or a CSV file with "
    "the columns prompt and output."
)


@dataclass(frozen=True)
class Source:
    """Outputs of a tested system, or of a reference at one temperature.

    Attributes:
        name: Name in messages and tables.
        units: Units in which the outputs can be read.
        read: Function that takes a unit and returns the outputs for each prompt, without end-of-sequence tokens.
        store: The store; None if the source is a file.
    """

    name: str
    units: tuple[Unit, ...]
    read: Callable[[Unit], dict[str, list[Output]]]
    store: Store | None = None

    @property
    def tokenizer(self) -> str | None:
        """SHA-256 of the tokenizer; None if it is unknown."""
        return None if self.store is None else self.store.identity["policy"]["model"]["tokenizer"]


def split_words(text: str) -> list[str]:
    """Split a string into words and punctuation marks.

    >>> split_words("It isn't Lima.")
    ['It', 'isn', "'", 't', 'Lima', '.']
    """
    return _WORD.findall(text)


def of_store(store: Store) -> Source:
    """Return a source that reads the outputs in a store."""

    def read(unit: Unit) -> dict[str, list[Output]]:
        outputs: dict[str, list[Output]] = {}
        prompts, column = prompts_of(store), "token_ids" if unit == "tokens" else "text"
        for part in store.samples.ranges():
            table = store.samples.read(part).select(["question_id", "finish_reason", column])
            for id_, reason, output in zip(*(one.to_pylist() for one in table.columns), strict=True):
                if reason not in WITHOUT_ANSWER:
                    ended = reason == "stop" and store.samples.provides.end_token
                    content = split_words(output) if unit == "words" else output[:-1] if ended else output
                    outputs.setdefault(prompts[id_], []).append(content)
        return outputs

    has_tokens = "token_ids" not in store.samples.provides.nullable
    return Source(str(store.path), ("tokens", "words") if has_tokens else ("words",), read, store)


def prompts_of(store: Store) -> dict[str, str]:
    """Return a dict from question id to prompt.

    A prompt is a question with its answer choices, or a list of chat messages as JSON.
    """
    prompts = {one.id: one.prompt for one in store.questions}
    return {id_: one if isinstance(one, str) else canonical_json([*one]) for id_, one in prompts.items()}


def of_lists(name: str, listed: Any) -> Source:
    """Return a source for a dict that maps prompts to lists of outputs (texts or lists of token ids)."""
    found = [*listed.values()] if isinstance(listed, dict) else []
    outputs = [one for of_prompt in found if isinstance(of_prompt, list) for one in of_prompt]
    texts = all(isinstance(one, str) for one in outputs)
    ids = all(isinstance(one, list) and all(isinstance(token, int) for token in one) for one in outputs)
    if not (outputs and all(isinstance(one, list) for one in found) and (texts or ids)):
        raise InputError(f"Expected {name!r} to list outputs for each prompt, but it has a different format. {_FORMAT}")

    def read(unit: Unit) -> dict[str, list[Output]]:
        return {
            prompt: [split_words(one) if unit == "words" else one for one in of_prompt]
            for prompt, of_prompt in listed.items()
        }

    return Source(name, ("words",) if texts else ("tokens",), read)


def read_source(path: str) -> Source:
    """Open a store, or read a JSON or CSV file of outputs."""
    file = Path(path)
    suffix = file.suffix.lower()
    if suffix == ".json":
        return of_lists(path, read_json(file))
    return of_lists(path, _read_csv(file)) if suffix == ".csv" else of_store(Store.open(file))


def read_json(file: Path) -> Any:
    """Read a JSON file. Raises InputError if it can't be read or contains an object with duplicate keys."""
    try:
        return json.loads(file.read_text(encoding="utf-8-sig"), object_pairs_hook=_without_repeated_keys)
    except (OSError, ValueError) as error:
        raise InputError(
            f"Expected {str(file)!r} to be a JSON file, but reading it failed: {error}. {_FORMAT}"
        ) from error


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice in the same object")
    return found


def _read_csv(file: Path) -> dict[str, list[str]]:
    outputs: dict[str, list[str]] = {}
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            for row in csv.DictReader(lines, strict=True):
                outputs.setdefault(row["prompt"], []).append(row["output"])
    except (OSError, ValueError, csv.Error) as error:
        raise InputError(
            f"Expected {str(file)!r} to be a CSV file, but reading it failed: {error}. {_FORMAT}"
        ) from error
    except KeyError as error:
        raise InputError(f"Expected {str(file)!r} to have a column {error}, but it does not. {_FORMAT}") from error
    return outputs
