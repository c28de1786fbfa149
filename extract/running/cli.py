"""Command lines out of function signatures: one line for what a user can put right, the nearest name for a typo."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from inspect import signature
from typing import Any, NoReturn

import yaml
from jsonargparse import ArgumentParser, set_loader

from extract.errors import nearest
from extract.recipe import StoreRecipe
from extract.running.config_files import check_config, config_files, load_yaml
from extract.running.exit import exit_status

set_loader("yaml", load_yaml, exceptions=(yaml.YAMLError,))


class OneLineErrors:
    """For a parser: errors of one line with the nearest known option, and no guessing of options from their beginning.

    What it calls of `super` is the parser's that stands beside it among the bases, which mypy can't see: hence the ignores.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.allow_abbrev = False

    def parse_args(self, args: Any = None, *others: Any, **options: Any) -> Any:
        """Parse a command line, after a look at the config files that it names."""
        for path in config_files(sys.argv[1:] if args is None else [str(one) for one in args]):
            check_config(path)
        return super().parse_args(args, *others, **options)  # type: ignore[misc]

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print one line on standard error and exit with 2; a parser inside another one leaves that to the outer."""
        if not self.exit_on_error:  # type: ignore[attr-defined]
            super().error(message, ex)  # type: ignore[misc]
        print(f"error: {explain(message, known_options(self))}", file=sys.stderr)
        raise SystemExit(2)


class OneLineParser(OneLineErrors, ArgumentParser):
    """The parser of our commands."""


def known_options(parser: Any) -> list[str]:
    """Every option of a parser and its subcommands, for example ``--policy.temperature``."""
    own = [option for action in parser._actions for option in action.option_strings if option.startswith("--")]
    choices = [action.choices for action in parser._actions if isinstance(action.choices, dict)]
    return own + [option for one in choices for subparser in one.values() for option in known_options(subparser)]


def explain(message: str, known: list[str]) -> str:
    """A parser's message as one line that names the nearest of the `known` options where one was unknown."""
    line = " ".join(message.split())
    of_class = re.search(r"Parser key \"([\w.]+)\".*given class_path '([\w.]+)'", line)
    given = re.search(r"NestedArg\(key='([\w.]+)', val=(.*)\)", line)
    name = given or re.search(r"Option '([\w.]+)' is not accepted", line)
    if of_class and name:
        option, known = f"--{of_class[1]}.{name[1]}", options_of(of_class[2], of_class[1])
        if given and option in known:  # the name is right, so its value is not
            return f"Expected `{option}` to have the type that --help gives, but got {given[2]}."
        return _unknown(option, known)
    for pattern in (
        r"[Uu]nrecognized arguments: --([^\s=]+)",
        r"Subcommand '\w+' does not accept option '([\w.]+)'",
        r"^Option '([\w.]+)' is not accepted",
    ):
        if found := re.search(pattern, line):
            return _unknown(f"--{found[1]}", known)
    if found := re.search(r"Group '([\w.]+)' does not accept option '([\w.]+)'", line):
        return _unknown(f"--{found[1]}.{found[2]}", known)
    if found := re.search(r"Parser key \"([\w.]+)\".*?<class '(\w+[.][\w.]+)'>.*dot import path string: (\S+)", line):
        classes = [one.__name__ for one in _leaves(_import(found[2]))]
        return f"Expected `--{found[1]}` to be one of {', '.join(classes)}, but got {found[3]!r}.{nearest(found[3], classes)}"
    if found := re.match(
        r"Parser key \"([\w.]+)\": (?:Does not validate|Expected a typing\.Literal|Expected a <class 'collections).*(?:Got value|value): (\S+)",
        line,
    ):
        return f"Expected `--{found[1]}` to have the type that --help gives, but got {found[2]}. A list is written '[a,b]'."
    if found := re.fullmatch(r"Parser key \"([\w.]+)\": Expected a <class '(\w+)'>\. Got value: (.*)", line):
        return f"Expected `--{found[1]}` to be of type {found[2]}, but got {found[3]!r}."
    return line


def _leaves(base: type) -> list[type]:
    """Classes under a base that are themselves no base, each once."""
    under: list[type] = base.__subclasses__()
    return list(dict.fromkeys(leaf for one in under for leaf in (_leaves(one) or [one])))


def _unknown(option: str, known: list[str]) -> str:
    hint = nearest(option, known)
    return f"Expected an option of this command, but got `{option}`.{hint} Run with --help for the list."


def _import(path: str) -> Any:
    module, name = path.rsplit(".", 1)
    return getattr(import_module(module), name)


def options_of(class_path: str, key: str) -> list[str]:
    """Options of a class that is given under a key, for example ``--model.lr`` of a probe."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(_import(class_path), key)
    return known_options(parser)


def run(commands: dict[str, Callable[..., Any]], program: str, arguments: list[str] | None = None) -> int:
    """Parse a command line of subcommands and run one. A parameter `recipe` is given by its own options, unnested.

    Args:
        commands: Functions by command name; the first line of a docstring is the command's help.
        program: Name shown in the help.
        arguments: Command line without the program; None takes the process's own.

    Returns:
        Exit status, see `exit_status`.
    """
    parser = OneLineParser(prog=program, description="See `%(prog)s COMMAND --help` for the options of a command.")
    subcommands = parser.add_subcommands(required=True)
    for name, function in commands.items():
        summary = (function.__doc__ or "").strip().split("\n", 1)[0]
        subparser = OneLineParser(prog=f"{program} {name}", description=summary)
        subparser.add_argument("--config", action="config", help="YAML file with options")
        subparser.add_function_arguments(function, as_group=False, skip={"recipe", "worker"})
        if "recipe" in signature(function).parameters:
            subparser.add_class_arguments(StoreRecipe, as_group=False)
        subcommands.add_subcommand(name, subparser, help=summary)

    def parse_and_run() -> None:
        parsed = parser.parse_args(arguments)
        options = vars(parser.instantiate(parsed)[parsed.subcommand])
        commands[parsed.subcommand](**_arguments(commands[parsed.subcommand], options))

    return exit_status(parse_and_run)


def _arguments(function: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    names = signature(function).parameters
    given = {name: options[name] for name in names if name in options}
    if "recipe" in names:
        given["recipe"] = StoreRecipe(**{field.name: options[field.name] for field in fields(StoreRecipe)})
    return given
