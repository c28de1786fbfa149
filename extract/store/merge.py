"""`python -m extract merge`: stores of one identity, made by machines that share no disk, become one.

Names and checksums are compared before anything is copied. A file that is there already is left alone, so a merge that
was ended goes on when it is run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from extract.errors import InputError
from extract.running.progress import say
from extract.running.worker import Worker, alone
from extract.store.answer_log import AnswerLog, logged_ranges, read_log
from extract.store.files import check_size, copy_data_file, is_finished, is_whole, read_sidecar
from extract.store.fill import is_damaged
from extract.store.identity import check_place, member_stores, write_identity
from extract.store.reader import write_reader
from extract.store.shards import SampleRange, Scope, overlap, shard_of
from extract.store.store import Store
from extract.store.verify import data_files, write_manifest

_SCOPES: tuple[Scope, Scope] = ("question", "sample")


def merge(store: str, others: Sequence[str], worker: Worker | None = None) -> list[Store]:
    """Put the files of other stores of the same identity into one; what it has already stays as it is.

    Args:
        store: Folder that gets them: a store, the folder of a grid's stores, or a new folder.
        others: Folders of the other stores, or of other grids' stores. They are only read, and may be deleted afterwards.
        worker: As for `sample`.

    Returns:
        The store, or each store of the grid.

    Raises:
        InputError: Stores of different identities, damaged files, or two stores with different answers to the same samples.
    """
    if not others:
        raise InputError("Expected `others` to name at least one store, but it is empty. Give --others '[A,B]'.")
    worker, into = worker or Worker.from_environment(), Path(store)
    merged: dict[Path, Store] = {}
    for place, other in _pairs(into, [Path(one) for one in others]):
        merged[place] = _merge_one(place, Store.open(other), worker)
    return list(merged.values())


def _pairs(into: Path, others: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Each store that is put into another, with where it goes: a grid's stores go to those of the same name."""
    pairs = []
    for other in others:
        if other.resolve() == into.resolve():
            raise InputError(f"Expected `others` to be other stores than {str(into)!r}, but it is among them.")
        members = member_stores(other)
        if members and (into / "identity.json").is_file():
            raise InputError(
                f"Expected a grid's stores to be merged into the folder of a grid's stores, but {str(into)!r} is a store. Give one of {str(other)!r} in --others, or another --store."
            )
        pairs += [(into / member.name, member) for member in members] or [(into, other)]
    first: dict[Path, Store] = {}
    for place, other in pairs:  # before anything is written
        check_place(place)
        kept = Store.open(other)
        is_there = (place / "identity.json").is_file()
        first.setdefault(place, Store.open(place) if is_there else kept).check_identity(kept.identity)
    return pairs


def _merge_one(place: Path, other: Store, worker: Worker) -> Store:
    _ = other.questions  # refused here if they are not those of the identity
    with worker.writing(place):
        with alone(place):
            into = _opened(place, other)
        copied, n_there = _copied_files(into, other, worker)
        logs = _logs_to_merge(into, other, worker)
        _check_alike(into, other)
        for file in copied:
            copy_data_file(file, into.path / file.relative_to(other.path))
        if other.reader is not None and into.reader is None:
            write_reader(into.path, into.sha256, other.reader)
        n_answers = sum(_merge_log(into, other, part) for part in logs)
        for part in (part for part in logged_ranges(into) if is_finished(into.samples.file(part))):
            say(f"merge: {part.stem} is finished now; what {str(into.samples.log_file(part))!r} held of it is left out")
        with alone(place):
            write_manifest(into)
    logged = f", {n_answers:,} answers of unfinished parts" if logs else ""
    say(
        f"merge: {len(copied):,} files of {str(other.path)!r} copied into {str(place)!r}{logged}; {n_there:,} were there"
    )
    return Store.open(place)


def _opened(place: Path, other: Store) -> Store:
    """The store that is merged into, made anew where there is none."""
    if not (place / "identity.json").is_file():
        write_identity(place, other.identity)
    into = Store.open(place)
    into.check_identity(other.identity)
    if not is_whole(place / "questions.parquet", place):
        copy_data_file(other.path / "questions.parquet", place / "questions.parquet")
    return into


def _copied_files(into: Store, other: Store, worker: Worker) -> tuple[list[Path], int]:
    """Finished files of the other store that this one lacks, samples first, and how many are there already.

    Raises:
        InputError: Files that both hold and that differ, or samples that both hold in other parts.
    """
    _check_apart(into, [*into.samples.ranges(), *logged_ranges(into)], other, other.samples.ranges())
    copied, differing, n_there = [], [], 0
    for file in sorted(data_files(other.path), key=lambda file: (file.parent.name != "samples", file)):
        name = file.relative_to(other.path)
        if name.parts == ("questions.parquet",) or not is_finished(file):
            continue
        place = shard_of(file, other.questions.n_blocks)
        if not worker.has(place.block):
            continue
        there = into.path / name
        check_size(file, other.path)  # its content is compared while it is copied
        if not is_finished(there) or is_damaged(into, there, partial(check_size, there, into.path)):
            copied.append(file)
        elif read_sidecar(there) == read_sidecar(file):
            n_there += 1
        else:
            differing.append(str(name))
    if differing:
        raise InputError(
            f"Expected {str(into.path)!r} and {str(other.path)!r} to agree where both hold a file, but {len(differing)} differ: {', '.join(differing[:5])}{', …' * (len(differing) > 5)}. Delete them, with what was made of them, in the store that is to give way, and merge again."
        )
    return copied, n_there


def _check_apart(into: Store, held: Iterable[SampleRange], other: Store, coming: Iterable[SampleRange]) -> None:
    """Refuse parts that share samples without being the same part.

    Raises:
        InputError: There are some.
    """
    if clash := overlap([*held, *coming]):
        raise InputError(
            f"Expected {str(into.path)!r} and {str(other.path)!r} to hold different samples or the same parts, but "
            f"{clash[0].stem} and {clash[1].stem} share some. Delete one of the two, with what was made of it, and "
            "merge again."
        )


def _check_alike(into: Store, other: Store) -> None:
    """Refuse signals and asked tables that were made otherwise; of each, one file of both stores is looked at.

    Raises:
        InputError: There are some.
    """
    if None not in (into.reader, other.reader) and into.reader != other.reader:
        raise InputError(
            f"Expected {str(into.path)!r} and {str(other.path)!r} to be read with the same model, but their reader.json differ. Merge stores that one model read."
        )
    for scope in _SCOPES:
        for name in {*into.signals.names()} & {*other.signals.names()}:
            here, there = _first_signal(into, name, scope), _first_signal(other, name, scope)
            if here and there and here != there:
                raise InputError(
                    f"Expected the signal {name!r} of {str(into.path)!r} and {str(other.path)!r} to have the same layers and settings, but they differ. Delete {str(other.path / 'signals' / name)!r}, or read it again with the same --layers."
                )
        for name in {*into.asked.names(scope)} & {*other.asked.names(scope)}:
            how = other.asked.settings(name, scope)
            if how is not None:
                into.asked.check_settings(name, scope, how)


def _first_signal(store: Store, name: str, scope: Scope) -> Any:
    places = (place for place in store.shards(scope) if is_finished(store.signals.file(name, place)))
    first = next(places, None)
    return None if first is None else (store.signals.shard_layout(name, first), store.signals.settings(name, first))


def _logs_to_merge(into: Store, other: Store, worker: Worker) -> list[SampleRange]:
    """Unfinished parts of the other store whose answers are to be kept.

    Raises:
        InputError: Their samples are held here in other parts.
    """
    coming = [
        part for part in logged_ranges(other) if worker.has(part.block) and not is_finished(other.samples.file(part))
    ]
    held = [*into.samples.ranges(), *other.samples.ranges(), *logged_ranges(into)]
    _check_apart(into, held, other, coming)
    return coming


def _merge_log(into: Store, other: Store, part: SampleRange) -> int:
    """Append what an unfinished part of the other store holds to the log of this one; returns how many answers."""
    rows = read_log(other, part)
    if is_finished(into.samples.file(part)):
        say(
            f"merge: {len(rows):,} answers in {str(other.samples.log_file(part))!r} left out: {part.stem} is finished in {str(into.path)!r}"
        )
        return 0
    log = AnswerLog(into, part)
    try:
        new = [row for row in rows if (row["question_id"], row["sample"]) not in log.answered]
        for row in new:
            log.append([row])
    finally:
        log.close()
    if len(new) < len(rows):
        say(f"merge: {len(rows) - len(new):,} answers in {str(other.samples.log_file(part))!r} were there already")
    return len(new)
