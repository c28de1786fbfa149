"""Command lines out of function signatures: one line for what a user can put right, the nearest name for a typo."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from dataclasses import fields
from inspect import signature
from typing import Any, NoReturn

from jsonargparse import ArgumentParser

from extract.errors import InputError, nearest
from extract.recipe import StoreRecipe


class OneLineParser(ArgumentParser):
    """An argument parser whose errors are one line, with the nearest known option for an unknown one."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print one line on standard error and exit with 2."""
        print(f"error: {explain(message, known_options(self))}", file=sys.stderr)
        raise SystemExit(2)


def known_options(parser: ArgumentParser) -> list[str]:
    """Every option string of a parser, for example ``--policy.temperature``."""
    return [option for action in parser._actions for option in action.option_strings if option.startswith("--")]


def explain(message: str, known: list[str]) -> str:
    """A parser's message as one line that names the nearest of the `known` options where one was unknown."""
    unknown = re.search(r"[Uu]nrecognized arguments: (--[^\s=]+)", message) or re.search(
        r"[Oo]ption '?([\w.]+)'? is not accepted|NestedArg\(key='([^']+)'", message
    )
    if unknown:
        name = next(group for group in unknown.groups() if group)
        option = name if name.startswith("--") else f"--{name}"
        return f"Expected an option of this command, but got `{option}`.{nearest(option, known)} Run with --help for the list."
    return " ".join(message.split())


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
