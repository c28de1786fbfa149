"""Tests of the code structure: allowed imports, no import cycles, short import chains, and file sizes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

ROOT = Path(__file__).parents[1]
FILES = [
    ROOT / "train.py",
    *(
        path
        for name in ("extract", "datamodules", "probes", "applications", "examples")
        for path in (ROOT / name).rglob("*.py")
    ),
]
#: Maximum number of modules on a path of module-level imports from train.py.
CHAIN = 12
#: Modules that import each other in functions. One is a facade that loads the other on first use.
FACADES = {
    frozenset(
        f"probes.saved.{name}"
        for name in ("artefact", "confidence", "prompt_states", "running_confidence", "streaming")
    ),
}
#: Layers from bottom to top. A module may import from its own layer and from lower ones.
LAYERS = [
    ("extract.errors", "extract.text", "extract.hashing", "extract.registry", "extract.running"),
    ("extract.schemas", "extract.samplers", "extract.prompts", "extract.policy", "extract.questions"),
    ("extract.store",),
    tuple(
        f"extract.{name}" for name in ("sampling", "grading", "signals", "asking", "likelihood", "models", "viewing")
    ),
    ("extract",),
    ("datamodules",),
    ("probes",),
    ("applications",),
    ("train", "examples"),
]
#: Modules that code for reading a store must not import at module level, because they load or run models.
MODEL_CODE = (
    "transformers",
    *(f"extract.{name}" for name in ("models", "sampling", "signals", "asking", "likelihood", "commands", "prompts")),
)
#: Modules for the names and values of signals and model-based baselines, and stopping rules, which need no model.
WITHOUT_MODEL = (
    "extract.sampling.prior",
    "extract.sampling.stopping",
    "extract.asking.registry",
    "extract.likelihood.options",
    "extract.signals.registry",
    "extract.signals.features",
    "extract.signals.pooling",
)


def module_of(path: Path) -> str:
    """Return the dotted name of a file's module."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


@cache
def imported_names(module: str, deferred: bool) -> list[tuple[str, ...]]:
    """Return the names that a module imports, as both an object's dotted name and the module that contains it."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    names: list[tuple[str, ...]] = []
    for node in ast.walk(tree) if deferred else tree.body:
        if isinstance(node, ast.Import):
            names += [(alias.name,) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} has a relative import"
            names += [(f"{node.module}.{alias.name}", str(node.module)) for alias in node.names]
    return names


@cache
def imports(module: str, deferred: bool) -> set[str]:
    """Return the project modules that a module imports, at module level or anywhere."""
    found = (next((name for name in names if name in MODULES), None) for names in imported_names(module, deferred))
    return {name for name in found if name is not None and name != module}


def layer_of(module: str) -> int:
    """Return the layer with the longest matching prefix of the module's name."""
    prefixes = [(len(prefix), i) for i, layer in enumerate(LAYERS) for prefix in layer if within(module, prefix)]
    return max(prefixes)[1]


def within(module: str, *prefixes: str) -> bool:
    """Return whether a module is one of these modules or inside one of them."""
    return any(f"{module}.".startswith(f"{prefix}.") for prefix in prefixes)


def upward_imports() -> Iterator[str]:
    """Return imports of a higher layer in a lower one, including deferred ones."""
    for module in MODULES:
        for other in imports(module, deferred=True):
            if layer_of(other) > layer_of(module):
                yield f"{module} -> {other}"


@pytest.mark.slow
def test_there_are_no_import_cycles() -> None:
    names = sorted(MODULES)
    matrix = np.array([[other in imports(module, deferred=True) for other in names] for module in names])
    n_components, component = connected_components(csr_matrix(matrix), connection="strong")
    members = (frozenset(names[i] for i in np.flatnonzero(component == c)) for c in range(n_components))
    assert {cycle for cycle in members if len(cycle) > 1} <= FACADES


@pytest.mark.slow
def test_imports_follow_the_layers() -> None:
    assert not list(upward_imports())


def test_modules_that_only_read_stores_import_no_model_code_at_module_level() -> None:
    for module in (module for module in MODULES if within(module, "datamodules", "probes", "applications")):
        names = {name for possible in imported_names(module, deferred=False) for name in possible}
        found = [name for name in names if within(name, *MODEL_CODE) and not within(name, *WITHOUT_MODEL)]
        assert found == [], module


@pytest.mark.slow
def test_import_chains_are_short() -> None:
    graph = {module: imports(module, deferred=False) for module in MODULES}
    longest: dict[str, list[str]] = {}
    for module in TopologicalSorter(graph).static_order():
        longest[module] = [module, *max((longest[other] for other in graph[module]), key=len, default=[])]
    assert len(longest["train"]) <= CHAIN, " -> ".join(longest["train"])


def test_no_file_has_more_than_300_lines() -> None:
    assert [path for path in FILES if path.read_text(encoding="utf-8").count("\n") > 300] == []


def test_templates_and_data_files_are_package_data() -> None:
    for name in ("extract", "datamodules", "probes", "applications"):
        for path in (path for ending in ("j2", "json") for path in (ROOT / name).rglob(f"*.{ending}")):
            package = module_of(path.parent / "__init__.py")
            assert files(package).joinpath(path.name).is_file(), path
            assert (path.parent / "__init__.py").is_file(), f"{path} is in no package"
