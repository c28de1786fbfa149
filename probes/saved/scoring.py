"""The command ``python -m probes score``: confidences for questions or answers as JSON Lines."""

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from tqdm import tqdm

from extract.errors import InputError, at_least_one
from extract.hashing import differences, sha256_json
from extract.running.progress import Progress
from extract.store.files import read_json, replace_file
from extract.text import shown
from probes.saved.artefact import ConfidenceProbe, load_probe
from probes.saved.confidence import ConfidentModel
from probes.saved.score_input import Asked, asked_batches

Record = dict[str, Any]


def score(
    probe: str,
    questions: str = "-",
    out: str | None = None,
    abstain_below: float | None = None,
    backoff: bool = True,
    model: str | None = None,
    revision: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    device_map: str | None = None,
    batch_size: int = 32,
) -> None:
    """Write the confidence for each question, or for each given answer, as JSON Lines. No answers are generated.

    Each line has `id`, `question`, `answer` (if given), `confidence`, `novelty` and `is_novel`. Lines are in input
    order, and are written as soon as their batch is finished. Undefined values are null. If a question cannot be
    scored, for example because it is too long, its line has an `error`. The command then continues, but exits with
    status 2 at the end.

    Args:
        probe: Folder or Hub id of a saved probe.
        questions: File, name of a question set, or Hub id (see docs/questions.md). A .txt file has one question per
            line. Pass - for standard input, with one question or JSON object per line. Each JSON object or row of a
            table has a `question` field (text or chat messages), and optionally `id` and `answer`.
        out: JSON Lines file to write. The default is standard output. If the file contains results of an earlier run of
            the same command, scoring continues after them.
        abstain_below: Threshold between 0 and 1. Each line gets `abstain`: true if the confidence is below the
            threshold or unknown.
        backoff: Whether to shift the confidences of novel questions. They are shifted towards the mean accuracy of the
            training and validation questions. The saved probe may include a broader probe, trained on additional
            stores. If a novel question is close to the broader probe's training questions, its confidence is also
            shifted towards the broader probe's confidence.
        model: Hub id or folder of the probe's model. The default is smollm2-135m-instruct, which `make install`
            installs.
        revision: Commit, branch or tag of a Hub model.
        dtype: auto (the dtype of the probe's model), float32, bfloat16 or float16.
        device: auto, cpu, cuda or cuda:N.
        device_map: How to distribute a large model over several devices, as in transformers (auto, balanced, …).
        batch_size: Maximum number of questions per batch.

    Raises:
        InputError: If the probe, its model or the questions cannot be loaded, `out` contains other results, or at least
            one question cannot be scored.
    """
    if abstain_below is not None and not 0 <= abstain_below <= 1:
        raise InputError(f"Expected `abstain_below` to be between 0 and 1, but got {abstain_below}. Try 0.6.")
    loaded = load_probe(probe)
    batches, total = asked_batches(questions, at_least_one("batch_size", batch_size, 32))
    settings = {"probe": sha256_json(loaded.config), "backoff": backoff, "abstain_below": abstain_below}
    lock = _lock(out)
    finished = [] if out is None else _finished(Path(out), settings)
    confident = loaded.attach(*load_model_of(loaded, model, revision, dtype, device, device_map))
    n_asked, errors = 0, [record["error"] for record in finished if "error" in record]
    with lock, Progress("score", total, "questions") as progress, _writer(out) as write:
        for batch in batches:
            known = finished[n_asked : n_asked + len(batch)]
            _check_same(batch, known, str(out), n_asked)
            n_asked += len(batch)
            rest = batch[len(known) :]
            for record in _records(confident, rest, backoff, abstain_below):
                errors += [record["error"]] if "error" in record else []
                write(json.dumps(record, ensure_ascii=False, allow_nan=False))
            progress(len(batch), 0)
    if len(finished) > n_asked:
        raise InputError(
            f"Expected `questions` to begin with the {len(finished)} questions in {out!r}, but got only "
            f"{n_asked} questions. Pass a different --out."
        )
    if not n_asked:
        raise InputError(
            "Expected `questions` to contain at least one question, but it is empty. Pass a different source."
        )
    if errors:
        raise InputError(
            f"Expected all {n_asked} questions to be valid, but {len(errors)} could not be scored. Each of their "
            f"output lines has an `error` field. The first error is: {errors[0]}"
        )


def load_model_of(
    probe: ConfidenceProbe,
    model: str | None = None,
    revision: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    device_map: str | None = None,
) -> tuple[Any, Any]:
    """Load the model of a probe and its tokenizer. See `score` for the arguments."""
    from extract.models.embedded import EMBEDDED_MODEL
    from extract.models.loading import load_model

    dtype = probe.config["model"]["dtype"] if dtype == "auto" else dtype
    return load_model(model or EMBEDDED_MODEL, revision, dtype, device, device_map)


def _records(
    model: ConfidentModel, batch: Sequence[Asked], backoff: bool, abstain_below: float | None
) -> Iterator[Record]:
    """Yield the output record of each question in a batch."""
    scored = _scored(model, [asked for asked in batch if not asked.problem], backoff)
    for asked in batch:
        record: Record = {"id": asked.id, "question": asked.question}
        if asked.answer is not None:
            record["answer"] = asked.answer
        record |= {"error": asked.problem} if asked.problem else next(scored)
        record = {**record, **{name: record.get(name) for name in ("confidence", "novelty", "is_novel")}}
        if abstain_below is not None:
            record["abstain"] = record["confidence"] is None or record["confidence"] < abstain_below
        yield record


def _scored(model: ConfidentModel, batch: Sequence[Asked], backoff: bool) -> Iterator[Record]:
    """Yield the confidence and novelty of each question. Failing batches are halved to find invalid questions."""
    if not batch:
        return
    answers = [asked.answer for asked in batch if asked.answer is not None]
    try:
        found = model.score([asked.prompt for asked in batch], answers or None, backoff=backoff)
    except InputError as error:
        if len(batch) == 1:
            yield {"error": str(error)}
            return
        half = len(batch) // 2
        yield from _scored(model, batch[:half], backoff)
        yield from _scored(model, batch[half:], backoff)
        return
    for confidence, novelty, is_novel in zip(*(values.tolist() for values in found), strict=True):
        yield {"confidence": _number(confidence), "novelty": _number(novelty), "is_novel": is_novel}


def _number(value: float) -> float | None:
    """Round a float32 number to seven significant digits, or return None for NaN."""
    return None if math.isnan(value) else float(f"{value:.7g}")


@contextmanager
def _writer(out: str | None) -> Iterator[Callable[[str], object]]:
    """Return a function that writes lines to a file or standard output without buffering."""
    if out is None:  # `tqdm.write` keeps the progress bar and the lines apart on a terminal
        yield tqdm.write if sys.stdout.isatty() else partial(print, flush=True)
        return
    with Path(out).open("a", encoding="utf-8", buffering=1) as file:
        yield lambda line: file.write(f"{line}\n")


def _lock(out: str | None) -> AbstractContextManager[Any]:
    """Lock the output file against other commands."""
    if out is None:
        return nullcontext()
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return FileLock(path.with_name(f".{path.name}.lock"), timeout=0).acquire()
    except Timeout:
        raise InputError(
            f"Expected `out` to be used by one command at a time, but another command is writing to {out!r}. Wait "
            "until it has finished, or pass a different --out."
        ) from None


def _finished(out: Path, settings: Record) -> list[Record]:
    """Return the results that an interrupted command wrote to `out`. Remove an incomplete last line.

    The settings of that command were saved next to `out`. Raises an InputError if they differ from `settings`, or if
    another program wrote `out`.
    """
    saved = out.with_name(f"{out.name}.settings.json")
    try:
        content = out.read_bytes() if out.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if content:
            if different := list(differences(read_json(saved, 2**12), settings)):
                raise ValueError(f"its settings differ in {'; '.join(different)}")
            records = [json.loads(line) for line in whole.splitlines()]
            if not all(isinstance(record, dict) for record in records):
                raise ValueError("it has a line that is not a JSON object")
    except (ValueError, OSError) as error:
        raise InputError(
            f"Expected `out` to be a new file, or one written by the same command, but {str(out)!r} is neither: "
            f"{error}. Pass a different --out, or delete the file."
        ) from None
    if not content:
        replace_file(saved, json.dumps(settings).encode())
        return []
    if whole != content:
        os.truncate(out, len(whole))
    return records


def _check_same(batch: Sequence[Asked], finished: Sequence[Record], out: str, n_before: int) -> None:
    """Check that `finished`, the results read from `out`, match the first questions of the batch."""
    for i, (asked, record) in enumerate(zip(batch, finished, strict=False), n_before + 1):
        expected = json.loads(json.dumps([asked.id, asked.question, asked.answer]))
        if expected != [record.get(name) for name in ("id", "question", "answer")]:
            raise InputError(
                f"Expected `out` to be a new file or to contain results for the same questions, but line {i} of "
                f"{out!r} is for {shown(record.get('question'))} instead of {shown(asked.question)}. Pass "
                "a different --out."
            )
