"""Verification of a store's files, and the manifest, an index derived from them."""

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
    """All Parquet and safetensors files, finished or not."""
    return sorted(path for path in folder.rglob("*") if path.suffix in _DATA)


def find_problems(store: Store) -> Iterator[str]:
    """Problems of a store's files, one line each. Reads all files."""
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
    """Read one data file with its reader, or check that the files of a folder are consistent."""
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
                raise Damaged(path, f"its name is not the name of a shard of {scope}s")
            store.signals.shard_layout(signal, shard)
        case ("asked", baseline, name) if name.endswith(".parquet"):
            store.asked.read_shard(baseline, shard_of(path, store.questions.n_blocks))
        case _ if path.suffix in _DATA:
            raise Damaged(path, "it is not a file of a store")


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
        yield f"manifest.json: it is not a list of the files of the store {store.sha256}"
        return
    for name in sorted(name for name in listed if not (store.path / name).is_file()):
        yield f"{one_line(name)}: missing (the manifest lists it)"


def write_manifest(store: Store) -> dict[str, Any]:
    """Write manifest.json, the index of the finished files, and return it.

    Raises:
        Damaged: If a sidecar is damaged.
    """
    finished = filter(is_finished, data_files(store.path))
    files = {str(path.relative_to(store.path)): read_sidecar(path)._asdict() for path in finished}
    sizes = {"n_questions": len(store.questions), "n_blocks": store.questions.n_blocks}
    manifest = {"identity": store.sha256, **sizes, "files": files}
    replace_file(store.path / "manifest.json", json.dumps(manifest, indent=1, sort_keys=True).encode())
    return manifest
