"""The `facts` question set: short questions that are moderately difficult for a small model.

Countries come from the `countryinfo` package (MIT). ``facts.json`` contains chemical elements, alternative names,
number words and exclusions. Disputed, outdated and ambiguous answers in countryinfo 1.0.1 are excluded.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import chain, product
from pathlib import Path
from typing import Any

from extract.errors import InputError
from extract.questions.question import Question
from extract.text import contains_answer

_NO_PLURAL = ("s", "sh", "ch", "se", "z", "o", "ic", "asy", "man")


def facts() -> list[Question]:
    """Build the question set: about 770 questions on countries, chemical elements, sums and products.

    Raises:
        InputError: If the `countryinfo` package is not installed.
    """
    tables = json.loads(Path(__file__).with_name("facts.json").read_text(encoding="utf-8"))
    about = (_about_countries(tables["countries"]), _about_elements(tables["elements"]), _arithmetic(tables["numbers"]))
    questions = chain.from_iterable(about)
    # if a question contains its answer, a reply that only repeats the question would be graded as right
    return [q for q in questions if not contains_answer(q.text, q.references, "case_sensitive" in q.meta)]


def _about_countries(tables: dict[str, Any]) -> Iterator[Question]:
    for name, data in sorted(_countries(tables).items()):
        title = f"the {name}" if name in tables["with article"] else name
        if name not in tables["capital left out"]:
            capitals = (data["capital"], *tables["capital aliases"].get(name, ()))
            yield _question("capital", title, f"What is the capital of {title}?", capitals)
        if name not in tables["continent left out"]:
            known, adjectives = tables["continents of countries and regions"], tables["continent adjectives"]
            continents = known.get(name) or known.get(data.get("intermediateregion"), [data["region"]])
            forms, rivals = _continent_forms(continents, adjectives), _continent_rivals(continents, adjectives)
            yield _question("continent", title, f"Which continent is {title} in?", forms, rivals=rivals)
        if name not in tables["demonym left out"]:
            demonyms = (data["demonym"], *tables["demonym aliases"].get(name, ()))
            plurals = (demonym + "s" for demonym in demonyms if not demonym.endswith(_NO_PLURAL))
            yield _question("demonym", title, f"What nationality is someone from {title}?", (*demonyms, *plurals))


def _countries(tables: dict[str, Any]) -> dict[str, dict[str, str]]:
    try:
        from countryinfo import all_countries
    except ImportError:
        raise InputError(
            "Expected the `countryinfo` package to be installed for the 'facts' question set, but it is not. "
            "Run `pip install --no-deps -r requirements-embedded.txt`."
        ) from None
    entries = (country.info() for country in all_countries())
    large = {data["name"].removeprefix("The "): data for data in entries if (data.get("population") or 0) > 300_000}
    return {name: data for name, data in large.items() if name not in tables["left out"]}


def _continent_forms(continents: list[str], adjectives: dict[str, str]) -> list[str]:
    """List phrases that name one of the continents, such as "Africa" and "African country"."""
    known = [adjectives[name] for name in continents if name in adjectives]
    return [*continents, *(" ".join(form) for form in product(known, ("continent", "country", "nation", "state")))]


def _continent_rivals(continents: list[str], adjectives: dict[str, str]) -> list[str]:
    """List wrong answers: continents that are not in `continents`, and non-continents such as "South Africa"."""
    # "Central America" does not contradict "North America"
    related = {*continents, "Central America"} if "North America" in continents else {*continents}
    others = _continent_forms([name for name in adjectives if name not in related], adjectives)
    americas = () if any(name.endswith(("America", "Caribbean")) for name in continents) else ("America", "Americas")
    return [*others, "South Africa", "north of Africa", "Asia Minor", *americas]


def _about_elements(tables: dict[str, Any]) -> Iterator[Question]:
    for name, symbol in tables["symbols"].items():
        if symbol not in tables["ambiguous symbols"]:  # these look like words
            yield _question("symbol", name, f"What is the chemical symbol of {name}?", (symbol,), case_sensitive=True)
        names = (name, *tables["aliases"].get(name, ()))
        yield _question("element", symbol, f"Which chemical element has the symbol {symbol}?", names)


def _arithmetic(words: dict[str, list[str]]) -> Iterator[Question]:
    for a, b in product(range(2, 10), repeat=2):
        for group, sign, name, number in (("sum", "+", "plus", a + b), ("product", "x", "times", a * b)):
            ten, one = words["tens"][number // 10], words["ones"][number % 10]
            word = words["ones"][number] if number < 20 else f"{ten}-{one}" if number % 10 else ten
            yield _question(group, f"{a}{sign}{b}", f"What is {a} {name} {b}?", (str(number), word))


def _question(group: str, item: str, text: str, references: Iterable[str], **meta: Any) -> Question:
    different = tuple(dict.fromkeys(references))
    return Question(f"{group}/{item}", "facts", text, references=different, group=group, meta=meta)
