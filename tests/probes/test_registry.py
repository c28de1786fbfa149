"""Tests of the registry of probes: names, classes, requirements, and everything generated from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import probes
from extract import InputError
from probes.baselines.registry import BASELINES
from probes.registry import METHODS, OPTIONS, PROBES, method_name
from probes.report.templates import _environment

ROOT = Path(__file__).parents[2]


def test_every_entry_is_a_public_class_with_the_name_of_the_entry() -> None:
    for name, method in METHODS.items():
        probe = method.load()
        assert getattr(probes, method.class_name) is probe
        assert probe.option in OPTIONS
        if method.join:
            continue
        assert method_name(method.class_name, method.target, method.signal) == name
        if (method.target, method.signal) == ("capability", "hidden"):
            assert probe.name == name


def test_the_documented_probes_are_those_of_the_registry() -> None:
    page = (ROOT / "docs/methods.md").read_text(encoding="utf-8")
    section = page.split("\n## Probes\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == [
        name for name in METHODS if name != "text_embedding"
    ]


def test_configs_and_sweeps_name_probes_of_the_registry() -> None:
    classes = {method.path.replace(":", ".") for method in METHODS.values()}
    configs = {path.name: yaml.safe_load(path.read_text()) for path in (ROOT / "configs").glob("*.yaml")}
    assert {config["model"]["class_path"] for config in configs.values() if "model" in config} <= classes
    for path in (ROOT / "configs/sweeps").glob("*.yaml"):
        (base,) = re.findall(r"--config=configs/([\w.]+)", path.read_text())
        option = configs[base]["model"]["class_path"].rsplit(".", 1)[0].rsplit(".", 1)[1]
        assert path.stem == option


def test_the_names_on_pages_are_of_registered_methods() -> None:
    macros = _environment().get_template("report/macros.md.j2").module
    assert set(macros.labels) <= {*METHODS, *BASELINES}
    assert macros.method("mlp") == "MLP probe (`mlp`)"
    assert macros.method("of_a_plugin") == "of a plugin (`of_a_plugin`)"


def test_an_earlier_name_of_a_probe_is_refused_with_the_current_one() -> None:
    with pytest.raises(InputError, match="but got 'aseu'. It was renamed to `latent`."):
        PROBES["aseu"]
