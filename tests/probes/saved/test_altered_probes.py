"""Test that altered probes are refused with one line that names the problem, and that they run no code."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from extract import InputError
from probes import load_probe
from tests.helpers.altered_probes import ALTERATIONS, make_probe


@pytest.mark.slow
def test_intact_probes_are_read(tmp_path: Path) -> None:
    for seed in range(12):
        probe = load_probe(make_probe(tmp_path / str(seed), random.Random(seed)))
        assert 0 < float(probe.confidences(torch.zeros(8)).confidence) < 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ALTERATIONS)
def test_an_altered_probe_is_refused(tmp_path: Path, name: str) -> None:
    for seed in range(6):
        probe = make_probe(tmp_path / str(seed) / "probe", random.Random(seed))
        named = ALTERATIONS[name](probe, random.Random(seed))
        with pytest.raises(InputError) as refused:
            load_probe(probe)
        message = str(refused.value)
        assert message.isprintable()
        assert named in message, f"seed {seed} does not name {named!r}: {message}"
        assert len(message) < 2000
        assert not (probe.parent / "executed").exists(), f"seed {seed}: the pickle was run"


@pytest.mark.parametrize("probe", ["a/b c", "../x/y", "a//b", "a/..", "-a/b", "a/b\0c", "x" * 5000, ""])
def test_a_path_that_is_neither_a_folder_nor_a_hub_id_is_refused(probe: str) -> None:
    with pytest.raises(InputError, match="Expected `probe` to be"):
        load_probe(probe)
