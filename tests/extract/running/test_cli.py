"""Tests of command-line errors: one line with the nearest option and the expected type, for all parser errors."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from extract.__main__ import COMMANDS
from extract.running import cli
from extract.running.progress import quiet_loggers


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the line that an invalid command line prints."""
    with pytest.raises(SystemExit) as stopped:
        cli.run(COMMANDS, "extract", list(arguments))
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line.removeprefix("error: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sample", "--stor=s"], "got `--stor`. Did you mean `--store`?"),
        (["sample", "--store=s", "--policy.prompt.templat=x"], "Did you mean `--policy.prompt.template`?"),
        (["sample", "--store=s", "--k=1.5"], "`--k`: Expected a int. Got value: 1.5"),
        (["read", "--store=s", "--scope=x"], "`--scope`: Expected a Literal['question', 'sample']. Got value: x"),
        (
            ["read", "--store=s", "--signals=hidden"],
            "`--signals`: Expected a Sequence. Got value: hidden. Write a list as '[a,b]'.",
        ),
        (
            ["read", "--store=s", "--layers=[a]"],
            "`--layers`: Does not validate against any of the Union subtypes Subtypes: [Sequence[int]",
        ),
        (["inspect"], "required: inspect.store"),
        (["inspect", "--store=s", "extra"], "unrecognized arguments: extra"),
    ],
)
def test_wrong_options_are_named_with_the_expected_value(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in error_of(capsys, *arguments)


@pytest.mark.slow
def test_renamed_options_are_refused_with_their_new_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(cli.RENAMED, "--policy.temp", "--policy.temperature")
    assert "Use `--policy.temperature`." in error_of(capsys, "sample", "--store=s", "--policy.temp=1")
    (tmp_path / "old.yaml").write_text("policy:\n  temp: 1\n")
    assert "but got `--policy.temp`" in error_of(capsys, "sample", "--store=s", f"--config={tmp_path / 'old.yaml'}")
    (tmp_path / "mapping.yaml").write_text("server:\n  extra:\n    top_p: 1\n")
    config = f"--config={tmp_path / 'mapping.yaml'}"
    assert "Use `--server.extra_body" in error_of(capsys, "sample", "--store=s", config)
    nested = "Parser key \"data.recipe\": Problem with given class_path 'extract.StoreRecipe': unrecognized arguments: "
    assert "Use `--data.recipe.policy.temperature`." in cli.explain(nested + "--policy.temp=1", [])


def test_a_class_that_does_not_exist_is_named() -> None:
    line = "Parser key \"model\": Problem with given class_path 'probes.linear.Linea': module has no attribute 'Linea'"
    assert "`--model` to be a class, but got 'probes.linear.Linea'" in cli.explain(line, [])


def test_yaml_keeps_texts_that_are_not_decimal_numbers() -> None:
    assert cli.load_yaml("[007, 0x1F, 1_000, 0:1:0.5, 2024-01-01, -.5e2, no]") == [
        *("007", "0x1F", 1000, "0:1:0.5", "2024-01-01", -50.0, False)
    ]


def test_loggers_can_be_silenced_temporarily() -> None:
    logger = logging.getLogger("made")
    logger.setLevel(logging.INFO)
    with quiet_loggers("made", "transformers"):
        assert logger.level == logging.CRITICAL
    assert logger.level == logging.INFO
