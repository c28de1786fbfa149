"""`facts`: short questions that a small model gets right some of the time; built at run time, no download.

Countries come from the `countryinfo` package (MIT), elements from a table of our own, sums and products from
arithmetic. A question whose answer stands in its own text is left out: an echo would be graded right.
"""

from __future__ import annotations

from collections.abc import Iterator

from extract.questions.countries import continent_forms, continent_rivals, countries
from extract.questions.elements import AMBIGUOUS_SYMBOLS, ELEMENTS, NAME_ALIASES
from extract.questions.question import Question
from extract.text import contains_answer

_NUMBER_WORDS = {
    **dict(
        enumerate(
            "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
        )
    ),
    **{10 * tens: word for tens, word in enumerate("twenty thirty forty fifty sixty seventy eighty".split(), 2)},
}


def facts() -> list[Question]:
    """All questions of the set, about 770: capital, continent, demonym, symbol, element, sum, product."""
    questions = [*_about_countries(), *_about_elements(), *_arithmetic()]
    return [
        q
        for q in questions
        if not contains_answer(q.text, q.references, case_sensitive=bool(q.meta.get("case_sensitive")))
    ]


def _about_countries() -> Iterator[Question]:
    for country in countries():
        if country.capitals:
            yield _question("capital", country.name, f"What is the capital of {country.name}?", country.capitals)
        if country.continents:
            yield _question(
                "continent",
                country.name,
                f"Which continent is {country.name} in?",
                continent_forms(country.continents),
                rivals=continent_rivals(country.continents),
            )
        if country.demonyms:
            yield _question(
                "demonym", country.name, f"What nationality is someone from {country.name}?", country.demonyms
            )


def _about_elements() -> Iterator[Question]:
    for name, symbol in ELEMENTS:
        if symbol not in AMBIGUOUS_SYMBOLS:
            yield _question("symbol", name, f"What is the chemical symbol of {name}?", (symbol,), case_sensitive=True)
        yield _question(
            "element", symbol, f"Which chemical element has the symbol {symbol}?", (name, *NAME_ALIASES.get(name, ()))
        )


def _arithmetic() -> Iterator[Question]:
    for a in range(2, 10):
        for b in range(2, 10):
            yield _question("sum", f"{a}+{b}", f"What is {a} plus {b}?", _number_forms(a + b))
            yield _question("product", f"{a}x{b}", f"What is {a} times {b}?", _number_forms(a * b))


def _number_forms(number: int) -> tuple[str, ...]:
    tens, ones = number - number % 10, number % 10
    words = _NUMBER_WORDS[number] if number in _NUMBER_WORDS else f"{_NUMBER_WORDS[tens]}-{_NUMBER_WORDS[ones]}"
    return str(number), words


def _question(
    group: str, item: str, text: str, references: tuple[str, ...], **meta: bool | tuple[str, ...]
) -> Question:
    return Question(
        id=f"{group}/{item}",
        dataset="facts",
        text=text,
        references=tuple(dict.fromkeys(references)),
        group=group,
        meta={key: list(value) if isinstance(value, tuple) else value for key, value in meta.items()},
    )
