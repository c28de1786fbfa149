"""Command lines out of function signatures: one line for what a user can put right, the nearest name for a typo."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from inspect import signature
from typing import Any, NoReturn

from jsonargparse import ArgumentParser

from extract.errors import InputError, nearest
from extract.recipe import StoreRecipe


class OneLineErrors:
    """For a parser: errors of one line with the nearest known option, and no guessing of options from their beginning."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.allow_abbrev = False

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print one line on standard error and exit with 2; a parser inside another one leaves that to the outer."""
        if not self.exit_on_error:  # type: ignore[attr-defined]
            super().error(message, ex)  # type: ignore[misc]
        print(f"error: {explain(message, known_options(self))}", file=sys.stderr)
        raise SystemExit(2)


class OneLineParser(OneLineErrors, ArgumentParser):
    """The parser of our commands."""


def known_options(parser: Any) -> list[str]:
    """Every option string of a parser, for example ``--policy.temperature``."""
    return [option for action in parser._actions for option in action.option_strings if option.startswith("--")]


def explain(message: str, known: list[str]) -> str:
    """A parser's message as one line that names the nearest of the `known` options where one was unknown."""
    nested = re.search(
        r"Parser key \"([\w.]+)\".*given class_path '([\w.]+)'.*NestedArg\(key='([\w.]+)'", message, re.DOTALL
    )
    plain = re.search(r"[Uu]nrecognized arguments: (--[^\s=]+)", message)
    if nested:
        key, class_path, name = nested.groups()
        option, known = f"--{key}.{name}", options_of(class_path, key)
        if option in known:  # the name is right, so its value is not
            return f"Expected `{option}` to have the type that --help gives, but got {message.rsplit('val=', 1)[-1].rstrip(')')}."
    elif plain:
        option = plain[1]
    else:
        line = " ".join(message.split())
        wrong = re.fullmatch(r"Parser key \"([\w.]+)\": Expected a <class '(\w+)'>\. Got value: (.*)", line)
        return f"Expected `--{wrong[1]}` to be of type {wrong[2]}, but got {wrong[3]!r}." if wrong else line
    return (
        f"Expected an option of this command, but got `{option}`.{nearest(option, known)} Run with --help for the list."
    )


def options_of(class_path: str, key: str) -> list[str]:
    """Options of a class that is given under a key, for example ``--model.lr`` of a probe."""
    module, name = class_path.rsplit(".", 1)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(getattr(import_module(module), name), key)
    return known_options(parser)


def run(commands: dict[str, Callable[..., Any]], program: str, arguments: list[str] | None = None) -> int:
    """Parse a command line of subcommands and run one. A parameter `recipe` is given by its own options, unnested.

    Args:
        commands: Functions by command name; the first line of a docstring is the command's help.
        program: Name shown in the help.
        arguments: Command line without the program; None takes the process's own.

    Returns:
        Exit status: 0, or 2 after a message on standard error.
    """
    parser = OneLineParser(prog=program, description="See `%(prog)s COMMAND --help` for the options of a command.")
    subcommands = parser.add_subcommands(required=True)
    for name, function in commands.items():
        summary = (function.__doc__ or "").strip().split("\n", 1)[0]
        subparser = OneLineParser(prog=f"{program} {name}", description=summary)
        subparser.add_argument("--config", action="config", help="YAML file with options")
        subparser.add_function_arguments(function, as_group=False, skip={"recipe"})
        if "recipe" in signature(function).parameters:
            subparser.add_class_arguments(StoreRecipe, as_group=False)
        subcommands.add_subcommand(name, subparser, help=summary)
    try:
        parsed = parser.parse_args(arguments)
        name = parsed.subcommand
        options = vars(parser.instantiate(parsed)[name])
        commands[name](**_arguments(commands[name], options))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _arguments(function: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    names = signature(function).parameters
    given = {name: options[name] for name in names if name in options}
    if "recipe" in names:
        given["recipe"] = StoreRecipe(**{field.name: options[field.name] for field in fields(StoreRecipe)})
    return given
