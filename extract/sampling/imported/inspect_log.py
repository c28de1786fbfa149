"""Reader of Inspect logs: `.json` files, or `.eval` files, which are zip archives of JSON files."""

import json
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from extract.errors import InputError
from extract.grading.base import Grade
from extract.policy import KnownDecoding
from extract.questions.fields import right_option
from extract.questions.question import Kind, Question
from extract.sampling.imported.log import (
    Answer,
    Log,
    add_grade,
    check_new,
    check_same,
    checked_questions,
    grade_of,
    grader_name,
    readable,
    safe_name,
)
from extract.sampling.server.protocol import FINISH_REASONS, split_content
from extract.schemas import whole
from extract.text import shown, valid_text

VERSION = 2
_EPOCH = whole(1, 10_000)
_ZSTD = 93  # compression method that zipfile supports only in Python 3.14 and later
_FINISH_REASONS = {**FINISH_REASONS, "model_length": "length"}
_ROLES = ("system", "user", "assistant")


def read_inspect(path: Path, kind: Kind | None) -> Log:
    """Read a log. In Inspect, a sample is a question, and each of its epochs is an answer.

    Raises:
        InputError: If the file is damaged or has an unsupported version, if an epoch occurs twice, if the epochs of a
            sample have different prompts, or if a prompt is not a chat of text messages.
    """
    with readable(path, f"an Inspect log in format version {VERSION}"):
        header, samples = _read(path)
        if header["version"] != VERSION:
            raise InputError(
                f"Expected {str(path)!r} to be an Inspect log in format version {VERSION}, but it has version "
                f"{shown(header['version'])}. Convert it with `inspect log convert`."
            )
        return _log(path, kind, header["eval"], header["plan"], samples)


def _read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a log's header and its samples."""
    if path.suffix == ".json":
        header = json.loads(path.read_bytes())
        return header, header.get("samples") or []
    with zipfile.ZipFile(path) as archive:
        finished = "header.json" in archive.namelist()
        header = archive.getinfo("header.json" if finished else "_journal/start.json")
        members = [member for member in archive.infolist() if _is_sample(member)]
        return json.loads(_content(archive, header)), [json.loads(_content(archive, member)) for member in members]


def _is_sample(member: zipfile.ZipInfo) -> bool:
    return member.filename.startswith("samples/") and not member.is_dir()


def _content(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Return the content of a file in an archive."""
    if member.compress_type != _ZSTD:
        return archive.read(member)
    assert archive.fp is not None
    archive.fp.seek(member.header_offset + 26)  # seek to the lengths of the file name and the extra field
    archive.fp.seek(sum(struct.unpack("<HH", archive.fp.read(4))), 1)
    with pa.CompressedInputStream(pa.BufferReader(archive.fp.read(member.compress_size)), "zstd") as stream:
        content = bytes(stream.read())
    if zlib.crc32(content) != member.CRC:
        raise zipfile.BadZipFile(f"bad CRC-32 of {member.filename!r}")
    return content


def _log(
    path: Path, kind: Kind | None, run: Mapping[str, Any], plan: Mapping[str, Any], samples: Sequence[Mapping[str, Any]]
) -> Log:
    options, task = {**run["model_generate_config"], **plan["config"]}, safe_name(run["task"])
    questions: dict[str, Question] = {}
    answers: dict[tuple[str, int], Answer] = {}
    epochs: set[tuple[str, object]] = set()
    for sample in sorted(samples, key=_has_failed):  # failed samples last, because they can lack messages
        key = (str(sample["id"]), sample["epoch"])
        where = f"epoch {sample['epoch']} of sample {key[0]!r}"
        if not _EPOCH.holds(sample["epoch"]):
            raise InputError(
                f"Expected `epoch` of sample {key[0]!r} to be {_EPOCH.expected}, but got {shown(key[1])}. "
                "Fix the value and try again."
            )
        check_new(key, epochs, where)
        epochs.add(key)
        question = _question(sample, options.get("system_message"), task, where)
        if _has_failed(sample):
            questions.setdefault(question.id, question)
        else:
            questions[question.id] = check_same(questions.get(question.id), question, where)
            answers[question.id, sample["epoch"] - 1] = _answer(sample)
    order = {str(id_): i for i, id_ in enumerate(run["dataset"].get("sample_ids") or ())}
    ordered = sorted(questions.values(), key=lambda question: order.get(question.id, len(order)))
    decoding = {**options, "max_new_tokens": options.get("max_tokens"), "stop": options.get("stop_seqs")}
    version = run["packages"].get("inspect_ai")
    rule = f"score by Inspect {version} (C or 1: right, I, N or 0: wrong, others: unknown)"
    return Log(
        {"tool": "inspect_ai", "version": version, "task": task},
        safe_name(run["model_args"].get("model_path") or run["model"]),
        KnownDecoding.of(decoding, chat=True),
        checked_questions(ordered, kind, path),
        answers,
        max([run["config"].get("epochs") or 1, *(sample["epoch"] for sample in samples)]),
        {name: rule for answer in answers.values() for name in answer.grades},
    )


def _has_failed(sample: Mapping[str, Any]) -> bool:
    """Whether the sample has no answer because of an error."""
    return not sample["output"]["choices"]


def _question(sample: Mapping[str, Any], system: str | None, task: str, where: str) -> Question:
    """Return the question of a sample. It consists of all messages before the last answer."""
    messages = sample["messages"]
    ends = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if not ends:
        given = sample["input"]
        messages = [{"role": "user", "content": given}] if isinstance(given, str) else given
    turns = [] if system is None else [{"role": "system", "content": system}]
    for message in messages[: ends[-1] if ends else None]:
        if message["role"] not in _ROLES or message.get("tool_calls"):
            raise InputError(
                f"Expected the prompt of {where} to be a chat of system, user and assistant messages, but it has a "
                "tool call. Agent logs can't be imported."
            )
        turns.append({"role": message["role"], "content": split_content(message["content"])[0]})
    targets, group = sample["target"], (sample.get("metadata") or {}).get("group")
    targets = [targets] if isinstance(targets, str) else targets
    choices = sample.get("choices")
    if choices:
        targets = right_option(targets[0], choices, where) if len(targets) == 1 else ()
    return Question(
        id=str(sample["id"]),
        dataset=task,
        messages=tuple(turns),
        references=tuple(targets),
        kind="choice" if choices else "short",
        choices=tuple(choices or ()),
        group=group if isinstance(group, str) else "",
    )


def _answer(sample: Mapping[str, Any]) -> Answer:
    choice = sample["output"]["choices"][0]
    text, reasoning = map(valid_text, split_content(choice["message"]["content"]))
    grades: dict[str, Grade] = {}
    for name, score in (sample.get("scores") or {}).items():
        value, answer = score["value"], score.get("answer") or text
        for part, of_part in value.items() if isinstance(value, dict) else [("", value)]:
            add_grade(grades, grader_name("inspect", name, *filter(None, [part])), grade_of(of_part, answer))
    return Answer(text, reasoning or None, _FINISH_REASONS.get(choice["stop_reason"]), grades)
