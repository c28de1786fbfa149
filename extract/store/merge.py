"""`python -m extract merge`, which merges stores with the same identity."""

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, get_args

from extract.errors import InputError
from extract.running.progress import say
from extract.running.worker import Worker, alone
from extract.store.answer_log import AnswerLog, logged_ranges, read_log
from extract.store.files import check_file, check_size, is_finished, is_whole, read_sidecar, write_file
from extract.store.fill import is_damaged
from extract.store.identity import check_folder, member_stores, write_identity, write_reader
from extract.store.shards import SampleRange, Scope, overlap, shard_of
from extract.store.store import Store
from extract.store.verify import data_files, write_manifest


def merge(store: str, others: Sequence[str], worker: Worker | None = None) -> list[Store]:
    """Merge other stores with the same identity into a store. Existing files are kept.

    Args:
        store: Target folder: a store, a temperature grid or a new folder.
        others: Folders of the other stores or grids. They are not changed.
        worker: Rank of this process and number of workers. By default, both are read from the environment.

    Returns:
        The merged store, or all merged stores of a grid.

    Raises:
        InputError: If identities differ, files are damaged, or the same samples have different answers.
    """
    if not others:
        raise InputError("Expected `others` to contain at least one store, but it is empty. Example: --others '[A,B]'.")
    worker, merged = worker or Worker.from_environment(), {}
    for folder, other in _pairs(Path(store), [Path(name) for name in others]):
        merged[folder] = _merge_into(folder, Store.open(other), worker)
    return list(merged.values())


def _pairs(into: Path, others: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Return pairs of a target folder and a store to merge into it. Stores in grids are matched by name."""
    pairs = []
    for other in others:
        if other.resolve() == into.resolve():
            raise InputError(
                f"Expected `others` not to contain the target store, but it contains {str(into)!r}. "
                "Leave it out of --others."
            )
        members = member_stores(other)
        if members and (into / "identity.json").is_file():
            raise InputError(
                f"Expected `store` to be a grid folder, like {str(other)!r} in `others`, but {str(into)!r} is a single "
                "store. Pass a grid folder as --store, or replace the grid in --others with one of its stores."
            )
        pairs += [(into / member.name, member) for member in members] or [(into, other)]
    first: dict[Path, Store] = {}
    for folder, other in pairs:  # check everything before writing
        check_folder(folder)
        opened = Store.open(other)
        is_there = (folder / "identity.json").is_file()
        first.setdefault(folder, Store.open(folder) if is_there else opened).check_identity(opened.identity)
    return pairs


def _merge_into(folder: Path, other: Store, worker: Worker) -> Store:
    _ = other.questions  # raises an error if the questions are damaged
    with worker.writing(folder):
        with alone(folder):
            if not (folder / "identity.json").is_file():
                write_identity(folder, other.identity)
            if not is_whole(folder / "questions.parquet", folder):
                _copy("questions.parquet", other.path, folder)
        into = Store.open(folder)
        unfinished = (part for part in logged_ranges(other) if not is_finished(other.samples.file(part)))
        logs = [part for part in unfinished if worker.has(part.block)]
        _check_alike(into, other, logs)
        missing, n_there = _files_to_copy(into, other, worker)
        for name in missing:
            _copy(name, other.path, folder)
        if other.reader is not None and into.reader is None:
            write_reader(folder, into.sha256, other.reader)
        n_answers = sum(_merge_log(into, other, samples) for samples in logs)
        for part in logged_ranges(into):
            if is_finished(into.samples.file(part)):
                log = str(into.samples.log_file(part))
                say(f"merge: {part.stem} is now finished, so the answers in {log!r} are ignored")
        with alone(folder):
            write_manifest(into)
    logged = f" and {n_answers:,} answers in unfinished ranges" if logs else ""
    copied = f"copied {len(missing):,} files{logged} from {str(other.path)!r} to {str(folder)!r}"
    say(f"merge: {copied} ({n_there:,} files already existed)")
    return Store.open(folder)


def _copy(name: str, source: Path, to: Path) -> None:
    """Verify a file and copy it to another store."""
    check_file(source / name, source)
    write_file(to / name, (source / name).read_bytes())


def _files_to_copy(into: Store, other: Store, worker: Worker) -> tuple[list[str], int]:
    """Return the names of the files to copy (samples first), and the number of files that already exist."""
    missing, different, n_there = [], [], 0
    for file in sorted(data_files(other.path), key=lambda file: (file.parent.name != "samples", file)):
        name = str(file.relative_to(other.path))
        if name == "questions.parquet" or not is_finished(file):
            continue
        if not worker.has(shard_of(file, other.questions.n_blocks).block):
            continue
        there, sidecar = into.path / name, check_size(file, other.path)  # `_copy` verifies the content
        if not is_finished(there) or is_damaged(into, there, partial(check_size, there, into.path)):
            missing.append(name)
        elif read_sidecar(there) == sidecar:
            n_there += 1
        else:
            different.append(name)
    if different:
        names = ", ".join(different[:5]) + ", …" * (len(different) > 5)
        raise InputError(
            f"Expected files with the same name in {str(into.path)!r} and {str(other.path)!r} to be identical, but "
            f"{len(different)} differ: {names}. In one of the stores, delete these files and the files derived from "
            "them. Then merge again."
        )
    return missing, n_there


def _check_alike(into: Store, other: Store, logs: list[SampleRange]) -> None:
    """Check that two stores can be merged. For each signal, only the first file is checked."""
    stores = f"{str(into.path)!r} and {str(other.path)!r}"
    if clash := overlap([*into.samples.ranges(), *other.samples.ranges(), *logged_ranges(into), *logs]):
        raise InputError(
            f"Expected {stores} to have identical or disjoint ranges of samples, but {clash[0].stem} and "
            f"{clash[1].stem} overlap. Delete one of these ranges and the files derived from it. Then merge again."
        )
    if None not in (into.reader, other.reader) and into.reader != other.reader:
        raise InputError(
            f"Expected the signals in {stores} to come from the same model, but their reader.json files differ. Merge "
            "only stores whose signals come from the same model."
        )
    for scope in get_args(Scope):
        for signal in {*into.signals.names()} & {*other.signals.names()}:
            here, there = (_headers(store, signal, scope) for store in (into, other))
            if here and there and here != there:
                raise InputError(
                    f"Expected the {signal!r} signal to have the same layers and settings in {stores}, but they "
                    f"differ. Delete {str(other.path / 'signals' / signal)!r}, or read the signal again with the same "
                    "--layers."
                )
        for baseline in {*into.asked.names(scope)} & {*other.asked.names(scope)}:
            if (settings := other.asked.settings(baseline, scope)) is not None:
                into.asked.check_settings(baseline, scope, settings)


def _headers(store: Store, signal: str, scope: Scope) -> list[Any]:
    """Return the layout and settings of a signal's first finished file, if any."""
    first = store.signals.finished(signal, scope)[:1]
    return [(store.signals.shard_layout(signal, shard), store.signals.settings(signal, scope)) for shard in first]


def _merge_log(into: Store, other: Store, part: SampleRange) -> int:
    """Append the new answers in a log of `other` to the log of `into`. Return the number of appended answers."""
    rows = read_log(other, part)
    if is_finished(into.samples.file(part)):
        log_file = str(other.samples.log_file(part))
        reason = f"{part.stem} is finished in {str(into.path)!r}"
        say(f"merge: ignored {len(rows):,} answers in {log_file!r}, because {reason}")
        return 0
    with closing(AnswerLog(into, part)) as log:
        new = [row for row in rows if (row["question_id"], row["sample"]) not in log.answered]
        for row in new:
            log.append([row])
    return len(new)
