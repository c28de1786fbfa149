"""What the `countryinfo` package says of countries, corrected: other names, disputed or outdated entries left out.

Only what has one undisputed answer is kept. The exclusions were made by reading every entry of countryinfo 1.0.1.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

from extract.errors import InputError

MIN_POPULATION = 300_000


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split(", "))


#: Territories, former states, disputed states, and entries whose name is out of date.
NOT_ASKED = _names(
    "Guadeloupe, Martinique, Réunion, Macau, Hong Kong, Puerto Rico, Western Sahara, Palestine, Taiwan, Swaziland, Burma, Scotland, "
    "Wales, Serbia and Montenegro, Republic of Macedonia, Democratic Republic of the Congo, Republic of the Congo"
)

#: Seat of government disputed, moved, moving, or other than the capital by law.
CAPITAL_NOT_ASKED = _names(
    "Bolivia, Burundi, Israel, Indonesia, Yemen, Benin, Malaysia, Netherlands, Tanzania, South Africa, Sri Lanka, Ivory Coast, "
    "Equatorial Guinea, Kazakhstan"
)

#: On two continents, or counted to different ones by different sources.
CONTINENT_NOT_ASKED = _names(
    "Armenia, Azerbaijan, Cyprus, Egypt, Georgia, Indonesia, Kazakhstan, Russia, Turkey, Australia, Panama, Maldives, Mauritius, "
    "Iceland, Comoros, East Timor, Papua New Guinea, Trinidad and Tobago, New Zealand, Fiji, Solomon Islands"
)

#: Adjectives of several countries, or forms that countryinfo has only in part.
DEMONYM_NOT_ASKED = _names("Guinea, Lesotho, Botswana, Comoros, Bosnia and Herzegovina, Solomon Islands, Guinea-Bissau")

CAPITAL_ALIASES: dict[str, tuple[str, ...]] = {
    "Brazil": ("Brasilia",),
    "Cambodia": ("Phnom-Penh",),
    "Cameroon": ("Yaounde",),
    "Chad": ("Ndjamena", "N’Djamena"),
    "Chile": ("Santiago de Chile",),
    "Colombia": ("Bogota",),
    "Costa Rica": ("San Jose",),
    "Iceland": ("Reykjavík",),
    "India": ("Delhi",),
    "Kuwait": ("Al Kuwait",),
    "Maldives": ("Male",),
    "Moldova": ("Chisinau", "Kishinev"),
    "Mongolia": ("Ulan Bator",),
    "Myanmar": ("Nay Pyi Taw", "Naypyitaw"),
    "Paraguay": ("Asuncion",),
    "Togo": ("Lome",),
    "Ukraine": ("Kiev",),
    "United States": ("Washington, D.C.", "Washington DC", "Washington"),
    "Bhutan": ("Thimpu",),
    "Haiti": ("Port au Prince",),
    "North Korea": ("Pyong Yang", "P'yongyang"),
}

#: Further accepted words for a person of the country; a plural with -s is accepted for every form.
DEMONYM_ALIASES: dict[str, tuple[str, ...]] = {
    "Afghanistan": ("Afghani",),
    "Argentina": ("Argentine", "Argentinian"),
    "Burkina Faso": ("Burkinabé", "Burkinabè"),
    "Cape Verde": ("Cape Verdean", "Cabo Verdean"),
    "Croatia": ("Croat",),
    "Denmark": ("Dane",),
    "Ecuador": ("Ecuadorian",),
    "El Salvador": ("Salvadorian", "Salvadorean"),
    "Finland": ("Finn",),
    "France": ("Frenchman", "Frenchwoman"),
    "Gabon": ("Gabonaise",),
    "Hungary": ("Magyar",),
    "Iceland": ("Icelandic",),
    "Iran": ("Persian",),
    "Ireland": ("Irishman", "Irishwoman"),
    "Ivory Coast": ("Ivoirian", "Ivorien"),
    "Kazakhstan": ("Kazakh",),
    "Kyrgyzstan": ("Kyrgyz", "Kyrgyzstani"),
    "Laos": ("Lao",),
    "Luxembourg": ("Luxembourgish", "Luxembourgeois"),
    "Maldives": ("Maldivian",),
    "Myanmar": ("Myanma", "Myanmarese"),
    "Nepal": ("Nepali",),
    "Netherlands": ("Dutchman", "Dutchwoman", "Netherlander"),
    "New Zealand": ("Kiwi",),
    "Papua New Guinea": ("Papuan",),
    "Philippines": ("Filipina", "Philippine"),
    "Poland": ("Pole",),
    "Saudi Arabia": ("Saudi",),
    "Serbia": ("Serb",),
    "Slovakia": ("Slovakian",),
    "Slovenia": ("Slovenian",),
    "Spain": ("Spaniard",),
    "Suriname": ("Surinamese",),
    "Sweden": ("Swede",),
    "Tajikistan": ("Tajik", "Tajikistani"),
    "Trinidad and Tobago": ("Trinidadian and Tobagonian", "Tobagonian"),
    "Turkey": ("Turk",),
    "United Kingdom": ("Briton", "Brit"),
    "Uzbekistan": ("Uzbek",),
    "Vietnam": ("Viet",),
    "Madagascar": ("Madagascan",),
    "Turkmenistan": ("Turkmenistani",),
}

_NO_PLURAL = ("s", "sh", "ch", "se", "z", "o", "ic", "asy", "man")

_WITH_ARTICLE = _names(
    "Netherlands, Philippines, Maldives, Comoros, Bahamas, Gambia, United States, United Kingdom, United Arab Emirates, "
    "Czech Republic, Dominican Republic, Central African Republic, Solomon Islands"
)


@dataclass(frozen=True)
class Country:
    """A country as it stands in a sentence, with every accepted form of its facts; an empty tuple is not asked for."""

    name: str
    capitals: tuple[str, ...]
    continents: tuple[str, ...]
    demonyms: tuple[str, ...]


def countries() -> list[Country]:
    """Countries of more than `MIN_POPULATION` people, by name.

    Raises:
        InputError: The `countryinfo` package is not installed.
    """
    if importlib.util.find_spec("countryinfo") is None:
        raise InputError(
            "Expected the package `countryinfo` for the question set 'facts', but it is not installed. Run `pip install --no-deps -r requirements-embedded.txt`."
        )
    from countryinfo import all_countries

    found = {}
    for info in all_countries():
        data = info.info()
        name = data["name"].removeprefix("The ")
        if (data.get("population") or 0) > MIN_POPULATION and name not in NOT_ASKED:
            found[name] = _country(name, data)
    return [found[name] for name in sorted(found)]


def _country(name: str, data: dict[str, str]) -> Country:
    capital = () if name in CAPITAL_NOT_ASKED else (data["capital"], *CAPITAL_ALIASES.get(name, ()))
    continent = () if name in CONTINENT_NOT_ASKED else _continent(data)
    demonym = () if name in DEMONYM_NOT_ASKED else (data["demonym"], *DEMONYM_ALIASES.get(name, ()))
    plurals = tuple(form + "s" for form in demonym if not form.endswith(_NO_PLURAL))
    return Country(f"the {name}" if name in _WITH_ARTICLE else name, capital, continent, demonym + plurals)


_ADJECTIVES = {
    "Africa": "African",
    "Asia": "Asian",
    "Europe": "European",
    "South America": "South American",
    "North America": "North American",
    "Central America": "Central American",
    "Oceania": "Oceanian",
}


def _continent(data: dict[str, str]) -> tuple[str, ...]:
    if data["region"] != "Americas":
        return (data["region"],)
    if data["name"] in ("Canada", "Mexico", "United States"):
        return ("North America",)
    return {"South America": ("South America",), "Central America": ("North America", "Central America")}.get(
        data["intermediateregion"], ("North America", "Caribbean")
    )


def continent_forms(continents: tuple[str, ...]) -> tuple[str, ...]:
    """Continents with their other forms, for example "Africa" and "African country"."""
    nouns = ("continent", "country", "nation", "state")
    return (
        *continents,
        *(f"{_ADJECTIVES[name]} {noun}" for name in continents if name in _ADJECTIVES for noun in nouns),
    )


def continent_rivals(continents: tuple[str, ...]) -> tuple[str, ...]:
    """Forms of the other continents, and phrases that hold a continent's name and mean something else."""
    others = tuple(name for name in _ADJECTIVES if name not in continents)
    phrases = ("South Africa", "north of Africa", "Asia Minor")
    americas = () if any(name.endswith(("America", "Caribbean")) for name in continents) else ("America", "Americas")
    # what is said of Central America is no denial of North America
    return (
        *continent_forms(
            tuple(name for name in others if "North America" not in continents or name != "Central America")
        ),
        *phrases,
        *americas,
    )
