"""README says what is there: its commands parse, those that a tiny model can are run, its Python runs, its paths exist."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Iterator
from functools import partial, wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from wandb.cli.cli import cli as wandb_cli

import extract.models.loading
import train
from extract.__main__ import COMMANDS
from extract.running.cli import run
from probes.__main__ import COMMANDS as PROBE_COMMANDS
from tests.test_train import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PROGRAMS = ("python", "make", "pip", "torchrun", "wandb")


def blocks(text: str, language: str) -> list[str]:
    """Fenced code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def spans(text: str) -> list[str]:
    """Code between backticks in the running text."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def commands(text: str) -> list[str]:
    """Every line of the shell blocks, and every command in the running text."""
    lines = [line for block in blocks(text, "bash") for line in block.splitlines() if line.strip()]
    return lines + [span for span in spans(text) if re.match(rf"({'|'.join(PROGRAMS)}) ", span)]


def accept(command: str) -> None:
    """Give a command to the parser that would get it; nothing is run.

    Raises:
        AssertionError: There is no such command.
    """
    program, *rest = shlex.split(command, comments=True)
    match (Path(program).name, *rest):
        case ("make", *targets):
            assert set(targets) <= set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        case ("python", "train.py", *options):
            assert status(train.run, [*options, "--print_config"]) == 0
        case ("python", "-m", "extract", *options):
            assert status(partial(run, PARSED_ONLY, "extract"), options) == 0
        case ("python", "-m", "probes", *options):
            assert status(partial(run, PARSED_ONLY_PROBES, "probes"), options) == 0
        case ("torchrun", "--nproc-per-node", n, "-m", "extract", *options):
            assert n.isdecimal()
            assert status(partial(run, PARSED_ONLY, "extract"), options) == 0
        case ("python", "-m", module):
            assert find_spec(module), f"no module {module}"
        case ("pip", "install", *options):
            accept_pip(options)
        case ("wandb", subcommand, *options):
            wandb_cli.commands[subcommand].make_context(subcommand, list(options))
            assert all((ROOT / option).is_file() for option in options)
        case _:
            raise AssertionError(f"no such command: {command}")


def status(entry: Callable[[list[str]], Any], options: list[str]) -> Any:
    """Exit status of a command line."""
    try:
        return entry(options)
    except SystemExit as stopped:
        return stopped.code


def parsed_only(command: Callable[..., Any]) -> Callable[..., None]:
    """A command with the options of another that does nothing."""

    @wraps(command)
    def nothing(**_: Any) -> None:
        pass

    return nothing


PARSED_ONLY = {name: parsed_only(command) for name, command in COMMANDS.items()}
PARSED_ONLY_PROBES = {name: parsed_only(command) for name, command in PROBE_COMMANDS.items()}


def accept_pip(options: list[str]) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("-e", dest="project", default=".")
    for flag in ("--no-deps", "--require-hashes"):
        parser.add_argument(flag, action="store_true")
    for flag in ("-c", "-r"):
        parser.add_argument(flag, dest="files", action="append", default=[])
    given = parser.parse_args(options)
    assert all((ROOT / name).is_file() for name in given.files)
    extras = re.findall(r"\w+", given.project)
    assert set(extras) <= set(PYPROJECT["optional-dependencies"]), extras


@pytest.mark.parametrize("command", commands(README))
def test_every_command_is_one_that_exists(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    accept(command)


@pytest.mark.parametrize(
    "command",
    [
        "make trian",
        "python trian.py",
        "python train.py --model.lrr=0.1",
        "python train.py --config configs/nowhere.yaml",
        ".venv/bin/python -m extract smaple --store s",
        "python -m probes compare",
        "python -m probes compare --store s --nothing 3",
        "python -m extract sample --store s --kk 20",
        "python -m extract sample --k 20",
        "python -m benchmarks.nothing",
        'pip install -e ".[nothing]"',
        "pip install -r nowhere.txt",
        "wandb sweep configs/sweeps/nowhere.yaml",
    ],
)
def test_a_command_that_does_not_exist_would_be_noticed(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (found,) = commands(f"```bash\n{command}  # what it does\n```")
    with pytest.raises((AssertionError, KeyError)):
        accept(found)


def test_commands_in_the_running_text_are_found_too() -> None:
    assert commands("Run `make trian` or `train.py`.\n\n```python\nx = `make x`\n```") == ["make trian"]
    assert {"make train", "python train.py"} < set(commands(README))


@pytest.mark.parametrize("option", [span for span in spans(README) if span.startswith("--")])
def test_every_option_in_the_text_is_one_of_a_command(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    refused = []
    of = ("python train.py", "python -m extract sample --store s", "python -m extract grade --store s")
    for command in of:
        try:
            accept(f"{command} {option}")
        except AssertionError as error:
            refused.append(error)
    assert len(refused) < len(of), refused


@pytest.fixture(scope="module")
def workplace(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which the commands of "Your own model and questions" were run, with the tiny model for every other."""
    folder = tmp_path_factory.mktemp("readme")
    block = next(block for block in blocks(README, "bash") if "extract sample" in block)
    (line,) = blocks(README, "json")
    questions = [json.loads(line) | {"id": f"q{i}", "text": f"Say {i}", "references": list("aeiou")} for i in range(60)]
    load_model = extract.models.loading.load_model
    (folder / tiny_folder.name).symlink_to(tiny_folder)  # the store's model has a folder's name, not the Hub's
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(extract.models.loading, "load_model", lambda *_, **__: load_model(str(tiny_folder)))
        Path("mine.jsonl").write_text("\n".join(map(json.dumps, [json.loads(line), *questions])), encoding="utf-8")
        for command in block.splitlines():
            match shlex.split(command)[1:]:
                case ["-m", "extract", *options]:
                    assert run(COMMANDS, "extract", options) == 0, command
                case ["train.py", *options]:
                    train.run([*options, "--name=NAME"])
                case other:
                    raise AssertionError(f"not run: {other}")
        yield folder


def test_the_commands_lead_from_questions_to_a_run_with_every_file_that_is_named(workplace: Path) -> None:
    (files,) = re.findall(r"^    runs/NAME/ (.*)$", README, re.MULTILINE)
    for name in files.split():
        assert list((workplace / "runs/NAME").glob(name)), name
    policy = yaml.safe_load((workplace / "stores/mine/identity.json").read_text())["of"]["policy"]
    assert policy["decoding"]["max_new_tokens"] == 64


def test_the_python_gives_every_answer_with_its_confidence(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks(README, "python")
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert len(re.findall(r"^[01]\.\d\d  ", capsys.readouterr().out, re.MULTILINE)) >= 2
    alone = names["probe"].score(names["hf_model"], names["tokenizer"], ["What is the capital of Peru?"])
    assert torch.allclose(alone, names["answers"].confidence[:1], atol=1e-5)


def test_the_model_cards_python_runs_too(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    probe = workplace / "runs/NAME/probe"
    (code,) = blocks((probe / "README.md").read_text(encoding="utf-8"), "python")
    exec(compile(code.replace("path/of/this/folder", str(probe)), "model card", "exec"), {})
    assert re.match(r"tensor\(\[[01]\.\d+\]\)", capsys.readouterr().out)


def test_the_debug_config_is_a_whole_experiment(small_store: Path, tmp_path: Path) -> None:
    store = [f"--data.store={small_store}", "--data.recipe=null", "--data.grader=planted"]
    folder = train.run([f"--config={ROOT / 'configs/debug.yaml'}", f"--runs={tmp_path}", *store])
    assert yaml.safe_load((folder / "config.yaml").read_text())["trainer"]["max_epochs"] == 20


def test_every_path_and_link_is_there() -> None:
    (tree,) = re.findall(r"## Where things are\n\n(.*?)\n\n", README, re.DOTALL)
    places = [line.split()[0] for line in tree.splitlines()] + re.findall(r"\]\(([^)]+)\)", README)
    assert len(places) > 8
    assert [place for place in places if not (ROOT / place).exists()] == []


def test_the_citation_names_the_version_and_licence_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["title"], citation["version"], citation["license"]) == (
        PYPROJECT["name"],
        PYPROJECT["version"],
        PYPROJECT["license"],
    )
