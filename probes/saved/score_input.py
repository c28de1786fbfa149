"""Read questions to score, with optional answers. Reading continues after an invalid question."""

import codecs
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from extract.errors import InputError
from extract.hashing import canonical_json
from extract.questions.fields import Row, own_form
from extract.questions.loaders import json_object
from extract.questions.question import Question
from extract.questions.source import check_questions, find_source

#: Suffixes of files that are read line by line.
_LINES = (".jsonl", ".txt")


@dataclass(frozen=True)
class Asked:
    """A question to score, or the reason why it is invalid.

    Attributes:
        id: The question's id, by default its number in the input, starting at 1.
        question: Text or messages as shown in the output; None if they are invalid.
        prompt: Text or messages for the probe.
        answer: An answer to the question, or None.
        problem: Why the question is invalid; empty if it is valid.
    """

    id: str | int
    question: Any = None
    prompt: Any = None
    answer: str | None = None
    problem: str = ""


def asked_batches(questions: str, size: int) -> tuple[Iterator[list[Asked]], int | None]:
    """Read questions in batches of at most `size`. Returns the batches and the number of questions (None if unknown).

    A batch from standard input contains only lines that can be read without waiting.

    Raises:
        InputError: If a CSV or Parquet file has no column with the questions, or `find_source` fails.
    """
    path = Path(questions).expanduser()
    if questions == "-":
        return _from_lines(None, size), None
    if path.is_file() and path.suffix in _LINES:
        with path.open("rb") as file:
            total = sum(bool(line.strip()) for line in file)
        return _from_lines(path, size), total
    source = find_source(questions)
    if path.is_file():
        rows = source.rows(source.set.split)
        if path.suffix in (".csv", ".parquet") and len(rows) and not {"question", "text", "messages"} & {*rows[0]}:
            raise InputError(_from_row(rows[0], 1, repr(path.name)).problem)
        found = (_from_row(row, i, f"row {i} of {path.name!r}") for i, row in enumerate(rows, 1))
        return _batched(found, size), len(rows)
    loaded = source.questions(seed=0)
    named = (Asked(one.id, one.public_prompt if one.private else one.prompt, one.prompt) for one in loaded)
    return _batched(named, size), len(loaded)


def _batched(asked: Iterable[Asked], size: int) -> Iterator[list[Asked]]:
    rest = iter(asked)
    while batch := list(islice(rest, size)):
        yield batch


def _from_lines(path: Path | None, size: int) -> Iterator[list[Asked]]:
    """Read one question per line from a file, or from standard input if `path` is None."""
    name = "standard input" if path is None else repr(path.name)

    def parsed(line: bytes, i: int) -> Asked:
        where = f"line {i} of {name}"
        line = line.removeprefix(codecs.BOM_UTF8)
        if line.lstrip().startswith(b"{") if path is None else path.suffix == ".jsonl":
            try:
                return _from_row(json_object(line, where), i, where)
            except InputError as error:
                return Asked(i, problem=str(error))
        return _from_row({"question": line.decode("utf-8", "surrogateescape").strip()}, i, where)

    with sys.stdin.buffer if path is None else path.open("rb") as stream:
        n_lines = 0
        for lines in _available_lines(stream):
            numbered = enumerate(lines, n_lines + 1)
            n_lines += len(lines)
            yield from _batched((parsed(line, i) for i, line in numbered if line.strip()), size)


def _available_lines(stream: Any) -> Iterator[list[bytes]]:
    """Yield lists of lines from a binary stream. Each list contains the lines that can be read without waiting."""
    rest = b""
    while chunk := stream.read1(2**16):
        *lines, rest = (rest + chunk).split(b"\n")
        yield lines
    yield [rest]


def _from_row(row: Mapping[str, Any], i: int, where: str) -> Asked:
    """Convert a row of the input to an `Asked`."""
    given = row.get("id")
    id_ = i if given is None else given if isinstance(given, str | int) else str(given)
    try:
        fields = {name: row[name] for name in ("text", "messages", "kind", "choices") if name in row}
        if "question" in row:
            fields["messages" if isinstance(row["question"], list) else "text"] = row["question"]
        asked, answer = fields.get("messages") or fields.get("text"), row.get("answer")
        if not asked or (isinstance(asked, str) and not asked.strip()):
            if fields.keys() & {"text", "messages"}:
                problem = "it is empty. Set it to a string or a list of chat messages"
            else:
                named = ", ".join(map(str, row)) or "missing"
                problem = f"its fields are {named}. Rename the field with the text or messages to `question`"
            raise InputError(f"Expected {where} to have a `question`, but {problem}.")
        if not (answer is None or isinstance(answer, str)):
            raise InputError(f"Expected `answer` in {where} to be a string, but got {answer!r}. Put it in quotes.")
        try:
            canonical_json([id_, asked, answer]).encode()
        except (TypeError, ValueError):
            raise InputError(f"Expected {where} to be UTF-8 text, but it is not. Save it as UTF-8.") from None
        draft = own_form(Row(fields, where))
        (question,) = check_questions([Question(**{**draft, "id": where, "dataset": ""})], where, need_references=False)
        return Asked(id_, question.prompt, question.prompt, answer)
    except InputError as error:
        return Asked(id_, problem=str(error))
