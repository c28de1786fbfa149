"""Command-line interfaces built from function signatures, with one-line error messages."""

import difflib
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from inspect import isabstract, signature
from pydoc import locate
from typing import Any, NoReturn, get_type_hints

import yaml
from jsonargparse import ArgumentParser, set_loader

from extract.errors import nearest
from extract.running.exit import exit_status

#: Renamed options, from old to new name. The old name can also follow a prefix, as in --data.recipe.…
RENAMED: dict[str, str] = {
    "--server.in_flight": "--server.max_concurrency",
    "--server.per_request": "--server.n",
    "--server.extra": "--server.extra_body",
    "--server.key_variable": "--server.api_key_env",
}
_FLOAT = r"[-+]?(\d[\d_]*\.[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?|[-+]?\d+[eE][-+]?\d+|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"


#: The C loader, if it is installed, is several times as fast.
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):
    """YAML loader that recognises only decimal numbers. YAML 1.1 reads 0:1:0.5 in base 60 and 010 in base 8."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        """Return the YAML tag of a value."""
        tag = super().resolve(kind, value, implicit)
        if kind is not yaml.ScalarNode or not implicit[0] or tag.endswith((":bool", ":null", ":merge")):
            return tag
        forms = {"int": r"[-+]?(0|[1-9][\d_]*)", "float": _FLOAT, "str": "(?s:.*)"}
        return "tag:yaml.org,2002:" + next(name for name, form in forms.items() if re.fullmatch(form, value))


def load_yaml(text: str) -> Any:
    """Parse a YAML string. Dates, and grids such as 0:1:0.5, are returned as strings.

    >>> [load_yaml(text) for text in ("0:1:0.5", "1:2:1", "60.5", "1e-3", "[7, 2024-01-01]")]
    ['0:1:0.5', '1:2:1', 60.5, 0.001, [7, '2024-01-01']]
    """
    return yaml.load(text, Loader=_Loader)


set_loader("yaml", load_yaml, exceptions=(yaml.YAMLError,))


class OneLineErrors:
    """Parser mixin that prints errors on one line and requires full option names.

    It must be the first base class.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.allow_abbrev = False

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print a one-line error and exit with status 2. A nested parser raises the error instead."""
        if not self.exit_on_error:  # type: ignore[attr-defined]
            super().error(message, ex)  # type: ignore[misc]
        print(f"error: {self.explain(message)}", file=sys.stderr)
        raise SystemExit(2)

    def explain(self, message: str) -> str:
        """Convert an error message to one line."""
        return explain(message, known_options(self))


class OneLineParser(OneLineErrors, ArgumentParser):
    """Argument parser that prints errors on one line and requires full option names."""


def known_options(parser: Any) -> list[str]:
    """Return all options of a parser and its subcommands."""
    options = [option for action in parser._actions for option in action.option_strings if option.startswith("--")]
    subparsers = [parser for a in parser._actions if isinstance(a.choices, dict) for parser in a.choices.values()]
    return options + [option for subparser in subparsers for option in known_options(subparser)]


def explain(message: str, known: list[str], prefix: str = "--") -> str:
    """Convert a parser's error message to one line. For an unknown option, suggest the closest known option."""
    line = " ".join(message.split())
    if nested := re.search(r"Parser key \"([\w.]+)\":.*?given class_path '([\w.]+)': (.*)", line):
        key, given = prefix + nested[1], locate(nested[2])
        if given is None:
            return f"Expected `{key}` to be a class, but got {nested[2]!r}: {nested[3].split(' - Expected')[0]}."
        parser = ArgumentParser(exit_on_error=False)
        parser.add_class_arguments(given, key.removeprefix("--"))
        return explain(nested[3], known_options(parser), f"{key}.")
    unknown = re.search(
        r"unrecognized arguments: --([^\s=]+)|(?:Group '([\w.]+)' does not accept o|Subcommand.*? o|O)ption '([\w.]+)'",
        line,
    )
    if unknown:
        option = prefix + ".".join(name for name in unknown.groups() if name)
        for old, new in RENAMED.items():
            renamed = re.sub(rf"(?<=[-.]){re.escape(old[2:])}(?=\.|$)", new[2:], option)
            if renamed != option:
                return f"Expected `{renamed}`, but got `{option}`, its name in earlier versions. Use `{renamed}`."
        hint = nearest_option(option, known)
        return f"Expected an option of this command, but got `{option}`.{hint} See --help for a list."
    given_path = r"(?:import path string|[Ii]mport path .*Given value): (\S+)"
    if subclass := re.search(rf"Parser key \"([\w.]+)\".*?<class '(\w+\.[\w.]+)'>.*{given_path}", line):
        names = [one.__name__ for one in _concrete(locate(subclass[2]))]
        key, name = prefix + subclass[1], subclass[3]
        return f"Expected `{key}` to be one of {', '.join(names)}, but got {name!r}.{nearest(name, names)}"
    line = re.sub(r"^Parser key \"([\w.]+)\"", rf"`{prefix}\1`", line)
    line = re.sub(r"<class '(?:\w+\.)*(\w+)'>|typing\.|collections\.abc\.", r"\1", line)
    return f"{line}. Write a list as '[a,b]'." if re.search(r"Expected an? \S*(list|Sequence)", line) else line


def nearest_option(option: str, known: Sequence[str]) -> str:
    """Return a hint with the known option whose last component is most similar, or "" if none is similar.

    >>> nearest_option("--temp", ["--policy.prompt.template", "--policy.temperature", "--help"])
    ' Did you mean `--policy.temperature`?'
    """
    name, *names_of_known = (one.removeprefix("--").rpartition(".")[2] for one in (option, *known))
    names = dict(zip(known, names_of_known, strict=True))
    close = difflib.get_close_matches(name, names.values(), n=1, cutoff=0.65)
    alike = [one for one in known if (name and names[one].startswith(name)) or names[one] in close]
    best = max(alike, key=lambda one: difflib.SequenceMatcher(None, one, option).ratio(), default=None)
    return "" if best is None else f" Did you mean `{best}`?"


def _concrete(base: Any) -> list[type]:
    """Return all subclasses of `base` that are not abstract."""
    below = [one for child in base.__subclasses__() for one in (child, *_concrete(child))]
    return [one for one in dict.fromkeys(below) if not isabstract(one)]


def run(commands: dict[str, Callable[..., Any]], program: str, arguments: list[str] | None = None) -> int:
    """Parse a command line and run its subcommand.

    Args:
        commands: Dict from command names to functions. The first line of a function's docstring is the help text of its
            command. The fields of a `recipe` parameter become options without a prefix.
        program: Program name shown in the help.
        arguments: Command line without the program name. By default, ``sys.argv``.

    Returns:
        Exit status (see `exit_status`).
    """
    parser = OneLineParser(
        program, "%(prog)s COMMAND [options]", "See `%(prog)s COMMAND --help` for the options of a command."
    )
    subcommands = parser.add_subcommands(required=True)
    recipes = {name: get_type_hints(function).get("recipe") for name, function in commands.items()}
    for name, function in commands.items():
        summary = (function.__doc__ or "").strip().split("\n", 1)[0]
        subparser = OneLineParser(usage="%(prog)s [options]", description=summary)
        subparser.add_argument("--config", action="config", help="YAML file with options")
        subparser.add_function_arguments(function, as_group=False, skip={"recipe", "worker"})
        if recipe := recipes[name]:
            subparser.add_class_arguments(recipe, as_group=False)
        subcommands.add_subcommand(name, subparser, help=summary)
        subparser.prog = f"{program} {name}"

    def parse_and_run() -> None:
        parsed = parser.parse_args(arguments)
        options = vars(parser.instantiate(parsed)[parsed.subcommand])
        if recipe := recipes[parsed.subcommand]:
            options["recipe"] = recipe(**{field.name: options[field.name] for field in fields(recipe)})
        function = commands[parsed.subcommand]
        function(**{name: options[name] for name in signature(function).parameters if name in options})

    return exit_status(parse_and_run)
