"""Tests of the documentation: commands parse, those in guides run on a tiny model, Python code runs, and links work."""

from __future__ import annotations

import argparse
import json
import re
import runpy
import shlex
import tomllib
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from functools import partial, wraps
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from openai import OpenAI
from torch.distributed.run import get_args_parser as torchrun_parser
from wandb.cli.cli import cli as wandb_cli

import extract.models.loading
import train
from applications.__main__ import COMMANDS as APPLICATION_COMMANDS
from extract.__main__ import COMMANDS
from extract.running.cli import run
from probes import load_probe
from probes.__main__ import COMMANDS as PROBE_COMMANDS
from probes.serving.engine import Engine
from tests.helpers.experiments import ROOT
from tests.helpers.hub_stub import hub_stub, use_in_this_process
from tests.helpers.notebook import execute
from tests.helpers.probe_server import served

PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    *(str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").glob("*.md"))),
]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
#: Required options that commands in the running text may omit.
REQUIRED = (
    "compare --store s",
    "--probe p",
    "--store s",
    "--stores [s]",
    "--store s --others [o]",
    "--store s --baselines [p_true]",
)
PROGRAMS = ("python", ".venv/bin/python", "make", "pip", "torchrun", "wandb")


def text_of(page: str) -> str:
    """Return the text of a documentation page."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def spans(text: str) -> list[str]:
    """Return the code between backticks in the running text."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def commands(text: str) -> list[str]:
    """Return the commands in shell blocks, without comments and with continued lines joined."""
    lines = "\n".join(blocks(text, "bash")).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def commands_in_text(text: str) -> list[str]:
    """Return the commands between backticks in the running text, except those with placeholders."""
    found = [span for span in spans(text) if re.match(rf"({'|'.join(PROGRAMS)}) ", span)]
    return [span for span in found if not re.search(r"…|\bN\b|NAME|STORE|\|", span)]


def accept(command: str) -> None:
    """Parse a command without running it.

    Raises:
        AssertionError: If the command does not exist.
    """
    without_variables = re.sub(r"^(\w+=\S+\s+)+", "", command)
    program, *rest = shlex.split(without_variables, comments=True)
    match (Path(program).name, *rest):
        case ("make", *targets):
            assert set(targets) <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        case ("python", "train.py", *options):
            assert status(train.run, [*options, "--print_config"]) == 0
        case ("python", "-m", "extract", *options):
            assert parse(PARSED_ONLY, "extract", options) == 0
        case ("python", "-m", "probes", *options):
            assert parse(PARSED_ONLY_PROBES, "probes", options) == 0
        case ("python", "-m", "applications", *options):
            assert parse(PARSED_ONLY_APPLICATIONS, "applications", options) == 0
        case ("torchrun", *options):
            given = torchrun_parser().parse_args(options)
            assert (given.module, given.training_script) == (True, "extract")
            assert parse(PARSED_ONLY, "extract", given.training_script_args) == 0
        case ("srun", *_, "bash", "-c", script):
            accept(script)
        case ("python", "-c", code):
            exec(compile(code, command, "exec"), {})
        case ("python", "-m", module, *_) if module.startswith("benchmarks."):
            assert find_spec(module), f"no module {module}"
        case ("pip", "install", *options):
            accept_pip(options)
        case ("wandb", subcommand, *options):
            wandb_cli.commands[subcommand].make_context(subcommand, list(options))
            assert all((ROOT / option).is_file() for option in options)
        case _:
            raise AssertionError(f"no such command: {command}")


def is_accepted(command: str) -> bool:
    """Return whether a command exists. Commands in the running text may omit required options."""
    with suppress(AssertionError, KeyError):
        return accept(command) is None
    return False


def parse(commands: dict[str, Callable[..., None]], program: str, options: list[str]) -> Any:
    """Return the exit status of a command line. Only the parser of its own command is created."""
    own = {name: command for name, command in commands.items() if name in options[:1]}
    return status(partial(run, own or commands, program), options)


def status(entry: Callable[[list[str]], Any], options: list[str]) -> Any:
    """Return the exit status of a command line."""
    try:
        return entry(options)
    except SystemExit as stopped:
        return stopped.code


def parsed_only(command: Callable[..., Any]) -> Callable[..., None]:
    """Return a function that has the options of a command but does nothing."""

    @wraps(command)
    def nothing(**_: Any) -> None:
        pass

    return nothing


PARSED_ONLY = {name: parsed_only(command) for name, command in COMMANDS.items()}
PARSED_ONLY_APPLICATIONS = {name: parsed_only(command) for name, command in APPLICATION_COMMANDS.items()}
PARSED_ONLY_PROBES = {name: parsed_only(command) for name, command in PROBE_COMMANDS.items()}


def accept_pip(options: list[str]) -> None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("-e", dest="project", default=".")
    parser.add_argument("name", nargs="?", default=PYPROJECT["name"])
    for flag in ("--no-deps", "--require-hashes"):
        parser.add_argument(flag, action="store_true")
    for flag in ("-c", "-r"):
        parser.add_argument(flag, dest="files", action="append", default=[])
    given = parser.parse_args(options)
    assert all((ROOT / name).is_file() for name in given.files)
    if given.name in re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE):
        return  # a dependency
    assert given.name.partition("[")[0] == PYPROJECT["name"]
    extras = re.findall(r"\w+", given.project + given.name.removeprefix(PYPROJECT["name"]))
    assert set(extras) <= set(PYPROJECT["optional-dependencies"]), extras


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted({command for page in PAGES for command in commands(text_of(page))}))
def test_every_command_in_a_code_block_exists(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    accept(command)


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted({command for page in PAGES for command in commands_in_text(text_of(page))}))
def test_every_command_in_the_text_exists(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert any(is_accepted(f"{command} {more}") for more in ("", *REQUIRED)), command


@pytest.mark.slow
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
def test_a_command_that_does_not_exist_is_detected(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (found,) = commands(f"```bash\n{command}  # what it does\n```")
    with pytest.raises((AssertionError, KeyError)):
        accept(found)


@pytest.mark.parametrize("page", PAGES)
def test_lists_in_commands_are_quoted(page: str) -> None:
    """Shells expand unquoted square brackets, and zsh stops with an error if no file matches."""
    code = [*commands(text_of(page)), *spans(text_of(page))]
    assert [command for command in code if re.search(r"--[\w.]+[= ]\[", command)] == []


def test_commands_in_the_running_text_are_found() -> None:
    page = "Run `make trian` or `train.py`, and `python -m extract read --store STORE`.\n\n```python\nx = `make x`\n```"
    assert commands_in_text(page) == ["make trian"]
    assert "make train" in commands_in_text(text_of("README.md"))


OPTIONS = sorted({span for page in PAGES for span in spans(text_of(page)) if re.match(r"--\w[\w.-]*", span)})


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Return the options of all commands and benchmarks."""
    lists = [PARSED_ONLY, "extract"], [PARSED_ONLY_PROBES, "probes"], [PARSED_ONLY_APPLICATIONS, "applications"]
    entries = [(partial(run, *of), [name]) for of in lists for name in of[0]]
    with redirect_stdout(StringIO()) as printed:
        for entry, command in [*entries, (train.run, [])]:
            assert status(entry, [*command, "--help"]) == 0
    benchmarks = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "benchmarks").glob("*.py"))
    return set(re.findall(r"--[\w.]+", printed.getvalue())) | set(re.findall(r'add_argument\("(--\w+)', benchmarks))


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_in_the_text_belongs_to_a_command(
    option: str, known: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    name = re.match(r"--[\w.]*\w", option)
    assert name
    is_group = any(other.startswith(f"{name[0]}.") for other in known)
    of_probe = (f"python train.py {option}", f"python train.py {option}=1")  # help does not list a probe's options
    assert name[0] in known or is_group or any(map(is_accepted, of_probe)), option


@pytest.fixture(scope="module")
def workplace(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder in which the guides' first commands were run, with the tiny model in place of all others."""
    folder = tmp_path_factory.mktemp("guides")
    of_guides = [commands(text_of("docs/measure.md"))[:3], commands(text_of("docs/train.md"))[1:3]]
    (line,) = blocks(text_of("docs/measure.md"), "json")
    questions = [json.loads(line) | {"id": f"q{i}", "text": f"Say {i}", "references": list("aeiou")} for i in range(50)]
    load_model = extract.models.loading.load_model
    (folder / tiny_folder.name).symlink_to(tiny_folder)  # the store's model is named after a folder
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(extract.models.loading, "load_model", lambda *_, **__: load_model(str(tiny_folder)))
        Path("mine.jsonl").write_text("\n".join(map(json.dumps, [json.loads(line), *questions])), encoding="utf-8")
        for command in [*of_guides[0], *of_guides[1], *commands(text_of("docs/inference.md"))]:
            match shlex.split(command, comments=True)[1:]:
                case ["-m", "extract", *options]:
                    assert run(COMMANDS, "extract", options) == 0, command
                case ["-m", "probes", *options]:
                    assert run(PROBE_COMMANDS, "probes", options) == 0, command
                case ["train.py", *options]:
                    named = any(option.startswith("--name") for option in options)
                    train.run(
                        [str(ROOT / option) if option.startswith("configs/") else option for option in options]
                        + ["--name=NAME"] * (not named)
                        + ["--n_resamples=100", "--trainer.max_epochs=20"]  # for speed
                    )
                case other:
                    raise AssertionError(f"not run: {other}")
        yield folder


def test_the_commands_give_a_run_with_every_named_file(workplace: Path) -> None:
    (files,) = re.findall(r"^    runs/NAME/ (.*)$", text_of("docs/train.md"), re.MULTILINE)
    for name in files.split():
        assert list((workplace / "runs/NAME").glob(name)), name
    policy = yaml.safe_load((workplace / "stores/mine/identity.json").read_text())["of"]["policy"]
    assert policy["decoding"]["max_new_tokens"] == 64


def test_the_python_code_in_the_readme_prints_answers_with_confidences(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = blocks(text_of("README.md"), "python")
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert len(re.findall(r"^[01]\.\d\d  ", capsys.readouterr().out, re.MULTILINE)) >= 2
    alone = names["probe"].score(names["hf_model"], names["tokenizer"], ["What is the capital of Peru?"])
    assert torch.allclose(alone.confidence, names["answers"].confidence[:1], atol=1e-5)


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub 2.4 on httpx2
@pytest.mark.parametrize("page", ["docs/measure.md", "docs/inference.md"])
def test_the_python_code_in_a_guide_runs(
    page: str, workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {}
    with hub_stub() as hub:
        use_in_this_process(hub, tmp_path, monkeypatch)
        for code in blocks(text_of(page), "python"):
            exec(compile(code, page, "exec"), names)
    assert len(names) > 3
    assert list(hub.commits) == (["ORG/NAME"] if page == "docs/inference.md" else [])


@pytest.mark.slow
def test_the_python_code_in_the_guide_to_the_server_runs(
    workplace: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probe, printed = load_probe(workplace / "runs/NAME/probe"), []
    engine = Engine(probe, *extract.models.loading.load_model(str(tiny_folder)))
    with served(engine, probe, "served") as url:  # in place of all servers
        for code in blocks(text_of("docs/serving.md"), "python"):
            code = re.sub(r"http://localhost:\d+", url, code)
            code = re.sub(r"smollm2-135m-instruct|large-model|Qwen/Qwen3-8B", "served", code)
            names: dict[str, Any] = {}
            exec(compile(code, "docs/serving.md", "exec"), names)
            for client in (value for value in names.values() if isinstance(value, OpenAI)):
                client.close()
            printed.append(capsys.readouterr().out)
    first, _, last = printed
    assert re.search(r" 0\.\d+ [01]\.\d+ (True|False)\n$", first)
    assert re.match(r"0\.\d+ ", last)


@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_every_example_runs(
    example: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [str(example)])
    runpy.run_path(str(example))
    assert len(re.findall(r"\b[01]\.\d\d\b", capsys.readouterr().out)) >= 3


def test_the_notebook_runs_and_is_stored_with_the_outputs_of_every_cell(workplace: Path) -> None:
    path = ROOT / "examples/quickstart.ipynb"
    content = path.read_text(encoding="utf-8")
    stored, run = json.loads(content), json.loads(content)
    execute(run)
    kinds = [
        [(i, output["output_type"]) for i, cell in enumerate(nb["cells"]) for output in cell.get("outputs", [])]
        for nb in (stored, run)
    ]
    assert kinds[0] == kinds[1]
    assert [kind for _, kind in kinds[0]].count("display_data") == 1
    assert path.stat().st_size < 300_000
    assert not re.search(r"/(home|root|tmp|work|Users)/", content)


def test_the_python_code_in_the_model_card_runs(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    probe = workplace / "runs/NAME/probe"
    (code,) = blocks((probe / "README.md").read_text(encoding="utf-8"), "python")
    exec(compile(code.replace("path/of/this/folder", str(probe)), "model card", "exec"), {})
    assert re.match(r"tensor\(\[[01]\.\d+\]\)", capsys.readouterr().out)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub generates for the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, "docs/comparison/README.md"])
def test_every_link_leads_to_a_file_and_a_heading(page: str) -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text_of(page)) if "://" not in link]
    for place, _, anchor in (link.partition("#") for link in links):
        target = (ROOT / page).parent / place if place else ROOT / page
        assert target.exists(), place
        assert not anchor or anchor in anchors(target), f"{place}#{anchor}"


def test_the_readme_is_short() -> None:
    readme = text_of("README.md")
    prose = re.sub(r"^```.*?^```", "", readme, flags=re.MULTILINE | re.DOTALL)
    assert readme.count("\n") <= 120
    assert len(readme.split()) <= 1200
    assert [line for line in prose.splitlines() if len(line) > 120 and not line.startswith("|")] == []


def test_the_citation_names_the_version_and_licence_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["title"], citation["version"], citation["license"]) == (
        PYPROJECT["name"],
        PYPROJECT["version"],
        PYPROJECT["license"],
    )
