"""Verify the files of a store, and write the manifest that lists them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from extract.errors import Damaged, InputError
from extract.store.answer_log import read_log
from extract.store.files import is_finished, is_inside, read_json, read_sidecar, replace_file
from extract.store.shards import range_of, shard_of
from extract.store.store import Store
from extract.text import one_line

_DATA = (".parquet", ".safetensors")
_LARGEST_MANIFEST = 2**28  # bytes


def data_files(folder: Path) -> list[Path]:
    """Return all Parquet and safetensors files in a folder, including unfinished files."""
    return sorted(path for path in folder.rglob("*") if path.suffix in _DATA)


def find_problems(store: Store) -> Iterator[str]:
    """Read all files of a store and yield one line per problem."""
    found: dict[Path, str] = {}
    for path in [store.path / "questions.parquet", *sorted(store.path.rglob("*"), reverse=True)]:
        try:
            if path.is_symlink() and not is_inside(path, store.path):
                raise Damaged(path, "it is a link to a file outside the store")
            _check(store, path)
        except Damaged as error:
            found.setdefault(error.path, error.problem)
        except InputError as error:
            found.setdefault(path, str(error))
    for path, problem in sorted(found.items()):
        yield f"{one_line(path.relative_to(store.path))}: {problem}"
    yield from _manifest_problems(store)


def _check(store: Store, path: Path) -> None:
    """Check a data file by reading it, or check that the files of a folder are consistent."""
    match path.relative_to(store.path).parts:
        case ("questions.parquet",):
            _ = store.questions
        case ("samples",):
            store.samples.ranges()
        case ("samples", name) if name.endswith(".parquet"):
            store.samples.read(range_of(path, store.questions.n_blocks))
        case ("samples", name) if name.endswith(".jsonl"):
            read_log(store, range_of(path, store.questions.n_blocks))
        case ("reader.json",):
            _ = store.model
        case ("grades", grader) if path.is_dir():
            store.grades.ranges(grader)
        case ("grades", grader, name) if name.endswith(".parquet"):
            store.grades.read(grader, range_of(path, store.questions.n_blocks))
        case ("signals", signal, "question" | "sample" as scope):
            store.signals.layout(signal, scope)
        case ("signals", signal, "question" | "sample" as scope, name) if name.endswith(".safetensors"):
            shard = shard_of(path, store.questions.n_blocks)
            if shard.scope != scope:
                raise Damaged(path, f"its name does not match the scope {scope}")
            store.signals.shard_layout(signal, shard)
        case ("asked", baseline, name) if name.endswith(".parquet"):
            store.asked.read_shard(baseline, shard_of(path, store.questions.n_blocks))
        case _ if path.suffix in _DATA:
            raise Damaged(path, "it does not belong in a store")


def _manifest_problems(store: Store) -> Iterator[str]:
    path = store.path / "manifest.json"
    if not path.is_file():
        return
    try:
        manifest = read_json(path, _LARGEST_MANIFEST)
    except ValueError as error:
        yield f"manifest.json: {error}"
        return
    listed = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(listed, dict) or manifest.get("identity") != store.sha256:
        yield f"manifest.json: it does not list the files of the store with the identity {store.sha256}"
        return
    for name in sorted(name for name in listed if not (store.path / name).is_file()):
        yield f"{one_line(name)}: it is missing, but the manifest lists it"


def write_manifest(store: Store) -> dict[str, Any]:
    """Write manifest.json, an index of the finished files, and return its content.

    Raises `Damaged` if a sidecar is invalid or the questions are damaged.
    """
    finished = filter(is_finished, data_files(store.path))
    files = {str(path.relative_to(store.path)): read_sidecar(path)._asdict() for path in finished}
    sizes = {"n_questions": len(store.questions), "n_blocks": store.questions.n_blocks}
    manifest = {"identity": store.sha256, **sizes, "files": files}
    replace_file(store.path / "manifest.json", json.dumps(manifest, indent=1, sort_keys=True).encode())
    return manifest


def verify(store: str) -> None:
    """Check the size and checksum of every file of a store, and rebuild the manifest.

    Args:
        store: Folder of the store.

    Raises:
        InputError: If any files are damaged or unfinished.
    """
    opened = Store.open(store)
    if problems := list(find_problems(opened)):
        raise InputError(
            f"Expected the files of {store!r} to be intact, but {len(problems)} are not: {'; '.join(problems)}. Rerun "
            "the commands that wrote them (sample, grade, read or ask), and delete files that no command wrote."
        )
    n_files = len(write_manifest(opened)["files"])
    print(
        f"{store}: {n_files} files intact, identity {opened.sha256[:12]}, {len(opened.questions)} questions in "
        f"{opened.questions.n_blocks} blocks"
    )
