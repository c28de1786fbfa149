"""Conversion of a dataset row to the fields of a question."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from string import ascii_uppercase
from typing import Any, get_args

from extract.errors import InputError, nearest
from extract.questions.numbers import gold_number
from extract.questions.question import Kind

#: Fields of a question in the package's own format. `by_fields` can set all of them except `messages`.
FIELDS = ("id", "text", "messages", "references", "kind", "choices", "group", "meta")
MAPPED = tuple(name for name in FIELDS if name != "messages")
_COLUMN = re.compile(r"\{([^{}]+)\}")

#: Fields of a question, read from one row.
Draft = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A row of a dataset. `values` maps columns to values, and `where` names the row in error messages."""

    values: Mapping[str, Any]
    where: str

    def value(self, column: str) -> Any:
        """Return the value of a column or a path such as ``answer.aliases``, or raise an InputError."""
        value: Any = self.values
        try:
            for name in [column] if column in value else column.split("."):
                value = value[name]
        except (KeyError, TypeError):
            known = list(map(str, self.values))
            raise InputError(
                f"Expected {self.where} to have the column {column!r}, but its columns are {', '.join(known)}."
                f"{nearest(column, known)} Specify the columns of this dataset in --fields."
            ) from None
        return value

    def text(self, given: str) -> str:
        """Return the text of a column, or fill a template such as ``{Body} {Question}``. An empty cell becomes ""."""
        if _COLUMN.search(given):
            return _COLUMN.sub(lambda match: self.text(match[1]), given).strip()
        return self._text(self.value(given), given)

    def texts(self, given: str | Sequence[str]) -> tuple[str, ...]:
        """Return the strings in one or more columns. A cell can contain a list of strings."""
        if not isinstance(given, str):
            return tuple(text for column in given for text in self.texts(column))
        if _COLUMN.search(given):
            return (self.text(given),)
        value = self.value(given)
        return tuple(self._text(item, given) for item in (value if isinstance(value, list | tuple) else [value]))

    def plain(self, column: str) -> Any:
        """Convert a column's value to JSON types. Dates become strings, and NaN and infinity become None."""

        def convert(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {str(name): convert(item) for name, item in value.items()}
            if isinstance(value, list | tuple):
                return [convert(item) for item in value]
            if _is_missing(value):
                return None
            return value if isinstance(value, str | int | float) else self._text(value, column)

        return convert(self.value(column))

    def _text(self, value: Any, column: str) -> str:
        if _is_missing(value):
            return ""
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, float) and value.is_integer():
            return str(int(value))
        if isinstance(value, datetime):  # `datasets` parses dates in JSON files as times
            return value.date().isoformat() if value == datetime(*value.timetuple()[:3]) else value.isoformat()
        if isinstance(value, str | int | float | Decimal | date):
            return str(value).replace("\r\n", "\n").strip()
        raise InputError(
            f"Expected the column {column!r} of {self.where} to contain text or a number, but got a "
            f"{type(value).__name__}. Specify a different column, or a path inside this column, such as {column}.NAME."
        )


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float | Decimal) and not math.isfinite(value))


#: Function that reads the fields of a question from a row, given a seed for shuffling options.
Read = Callable[[Row, int], Draft]


def by_fields(fields: Mapping[str, Any]) -> Read:
    r"""Build a function that reads question fields, given a mapping from fields to columns.

    A column is a name, a path such as ``answer.aliases``, or a template such as ``{Body} {Question}``. `references` and
    `choices` also accept a list of columns. `kind` is a literal value. `meta` maps keys to columns. For kind `number`,
    text up to the last ``####`` in a reference is ignored. For kind `choice`, see `right_option`.

    Raises:
        InputError: If the mapping is invalid. The returned function raises `InputError` for invalid rows.

    >>> row = Row({"q": "1 + 1?", "a": "It is\n#### 1,002.0", "level": 3}, "row 1")
    >>> by_fields({"text": "{q} Say it.", "references": "a", "kind": "number", "meta": {"level": "level"}})(row, 0)
    {'text': '1 + 1? Say it.', 'meta': {'level': 3}, 'references': ('1002',), 'kind': 'number'}
    """
    _check_fields(fields)
    kind = fields.get("kind", "choice" if "choices" in fields else "short")

    def read(row: Row, seed: int) -> Draft:
        draft: Draft = {name: row.text(fields[name]) for name in ("id", "text", "group") if name in fields}
        if not draft["text"]:
            raise InputError(
                f"Expected {row.where} to contain a question, but {fields['text']!r} is empty. Remove the row."
            )
        references = tuple(text for text in row.texts(fields["references"]) if text)
        if kind == "number":
            references = tuple(gold_number(text, row.where) for text in references)
        if "choices" in fields:
            draft["choices"] = row.texts(fields["choices"])
        if kind == "choice" and references:
            column = fields["references"]
            value = None if isinstance(column, list) or _COLUMN.search(column) else row.value(column)
            answer = value if type(value) is int else references[0]
            references = right_option(answer, draft["choices"], row.where)
        if "meta" in fields:
            draft["meta"] = {name: row.plain(column) for name, column in fields["meta"].items()}
        return {**draft, "references": references, "kind": kind}

    return read


def _check_fields(fields: Mapping[str, Any]) -> None:
    kinds = get_args(Kind)
    for name, value in fields.items():
        if name not in MAPPED:
            hint = nearest(name, MAPPED)
            raise InputError(f"Expected the keys of `fields` to be among {', '.join(MAPPED)}, but got {name!r}.{hint}")
        if name == "kind" and value not in kinds:
            raise InputError(f"Expected `fields.kind` to be one of {', '.join(kinds)}, but got {value!r}.")
        columns = [value]
        if name == "meta":
            columns = list(value.values()) if isinstance(value, Mapping) else [None]
        elif name in ("references", "choices") and isinstance(value, list) and value:
            columns = value
        if not all(isinstance(column, str) and column for column in columns):
            raise InputError(
                f"Expected `fields.{name}` to specify columns, but got {value!r}. Pass a column name, a path such "
                "as answer.aliases, or a template such as '{Body} {Question}'."
            )
    missing = [name for name in ("text", "references") if name not in fields]
    if missing or (fields.get("kind") == "choice" and "choices" not in fields):
        raise InputError(
            f"Expected `fields` to specify a column for {' and '.join(missing) or 'choices'}, but got "
            f"{dict(fields)!r}. For example, pass --fields '{{text: question, references: answer}}'."
        )


def own_form(row: Row, seed: int = 0) -> Draft:
    """Read question fields from a row in the package's own format. Null fields count as missing.

    For kind `choice`, see `right_option`.

    Raises:
        InputError: If a field is unknown or has the wrong type.
    """
    draft: Draft = {"id": "", "references": (), "choices": ()}
    for name, value in row.values.items():
        if name not in FIELDS:
            raise InputError(
                f"Expected the fields of {row.where} to be among {', '.join(FIELDS)}, but got {name!r}."
                f"{nearest(name, FIELDS)} Map other columns with --fields '{{text: COLUMN, references: COLUMN}}'."
            )
        if value is None:
            continue
        if name in ("references", "choices"):
            value, expected = [value] if isinstance(value, str) else value, "string or a list of strings, all non-empty"
            is_valid = isinstance(value, list) and all(isinstance(text, str) and text.strip() for text in value)
        else:
            type_ = {"id": object, "messages": list, "meta": dict}.get(name, str)
            is_valid, expected = isinstance(value, type_), type_.__name__
        if not is_valid:
            raise InputError(
                f"Expected `{name}` in {row.where} to be a {expected}, but got {value!r}. Fix the value and try again."
            )
        draft[name] = str(value) if name == "id" else tuple(value) if isinstance(value, list) else value
    if draft.get("kind") == "choice" and draft["references"] and draft["choices"]:
        draft["references"] = right_option(draft["references"][0], draft["choices"], row.where)
    return draft


def right_option(answer: int | str, choices: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the letter and the text of the correct option.

    Args:
        answer: 0-based index of the option, or a string. A string is compared with the letters, texts and indices of
            the options, in that order.

    Raises:
        InputError: If the answer does not identify exactly one option, or if there are more than 26 options.

    >>> right_option("B", ["Oslo", "Lima"], "row 1"), right_option(0, ["Oslo", "Lima"], "row 1")
    (('B', 'Lima'), ('A', 'Oslo'))
    """
    letters = list(ascii_uppercase[: len(choices)])
    places = [str(place) for place in range(len(choices))]
    forms = (places,) if isinstance(answer, int) else (letters, list(choices), places)
    place = next((form.index(str(answer)) for form in forms if str(answer) in form), None)
    n_equal = sum(answer == choice for choice in choices)
    is_text_of_several = n_equal > 1 and answer not in letters
    if place is None or is_text_of_several or len(choices) > len(ascii_uppercase):
        problem = f"{n_equal} options have this text" if is_text_of_several else f"got {str(answer)[:40]!r}"
        raise InputError(
            f"Expected the answer in {where} to be one of the {len(choices)} options, but {problem}. "
            "Write the letter, the text or the 0-based index of the correct option. At most 26 options are supported."
        )
    return (letters[place], choices[place]) if choices[place] else (letters[place],)
