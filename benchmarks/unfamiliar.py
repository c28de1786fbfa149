"""Questions unlike the training questions of the default store: rewordings, and other kinds of questions.

The kinds `cloze` and `word problem` need ../shared/data.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.evaluation_sets import DATA

#: Templates for rewordings of the whole question, by group of `facts`.
_NAME = {
    "capital": "Name the capital city of {0}.",
    "continent": "Name the continent where {0} is located.",
    "demonym": "Name the nationality of a person who comes from {0}.",
    "symbol": "Give the symbol of the element {0}.",
    "element": "Give the name of the element written as {0}.",
    "sum": "Add {0} and {1}.",
    "product": "Multiply {0} by {1}.",
}
_CLOZE = {
    "capital": "The capital of {0} is",
    "continent": "The continent of {0} is",
    "demonym": "The people of {0} are called",
    "symbol": "The chemical symbol of {0} is",
    "element": "The chemical element with the symbol {0} is",
    "sum": "{0} plus {1} is",
    "product": "{0} times {1} is",
}
_FIRST = {
    "capital": "{0}: which city is its capital?",
    "continent": "{0}: on which continent does it lie?",
    "demonym": "{0}: what do we call the people who live there?",
    "symbol": "{0}: what is this element's symbol?",
    "element": "{0}: which element does this symbol stand for?",
    "sum": "{0} + {1} = ?",
    "product": "{0} x {1} = ?",
}

#: Rewordings: functions of a question's text, group and subjects.
REWORDINGS: dict[str, Callable[[str, str, Sequence[str]], str]] = {
    "only the name": lambda text, group, about: f"{text} Answer with only the name.",
    "please": lambda text, group, about: f"Could you please tell me the answer to this question? {text}",
    "quiz": lambda text, group, about: f"Here is the next question of our pub quiz: {text} Think carefully.",
    "lower case": lambda text, group, about: text.lower().rstrip("?"),
    "upper case": lambda text, group, about: text.upper(),
    "forgotten": lambda text, group, about: f"I used to know this but forgot it. {text}",
    "brief": lambda text, group, about: f"Answer briefly and without explanation: {text}",
    "student": lambda text, group, about: f'A student asked her teacher: "{text}" What did the teacher reply?',
    "thanks": lambda text, group, about: f"Hello! {text} Thank you very much for your help.",
    "name": lambda text, group, about: _NAME[group].format(*about),
    "cloze": lambda text, group, about: _CLOZE[group].format(*about),
    "subject first": lambda text, group, about: _FIRST[group].format(*about),
}


def reworded(questions: Sequence[Any]) -> list[dict[str, Any]]:
    """Apply every rewording to `facts` questions, and return the records, grouped by rewording."""
    records = []
    for name, reword in REWORDINGS.items():
        for question in questions:
            subject = question.id.split("/", 1)[1]
            about = subject.replace("x", "+").split("+") if question.group in ("sum", "product") else [subject]
            text = reword(question.text, question.group, about)
            record = {"id": f"{name}: {question.id}", "text": text, "references": question.references, "group": name}
            records.append(record | {"meta": question.meta, "kind": question.kind})
    return records


def unseen(n: int = 40) -> list[dict[str, Any]]:
    """Return `n` question records for each kind of question that `facts` lacks, grouped by kind."""
    rng = random.Random(0)
    problems = json.loads((DATA / "svamp.json").read_text(encoding="utf-8"))
    clozes = json.loads((DATA / "qa_wikidata.json").read_text(encoding="utf-8"))["examples"]
    of_kind: dict[str, list[tuple[str, list[str]]]] = {
        "word problem": [(f"{row['Body']}. {row['Question']}", [f"{row['Answer']:g}"]) for row in problems],
        "cloze": [
            (row["input"], [row["target"]] if isinstance(row["target"], str) else row["target"]) for row in clozes
        ],
        "translation": [
            (f"Translate '{word}' to {language}.", [translated])
            for word, row in TRANSLATIONS.items()
            for language, translated in zip(LANGUAGES, row, strict=True)
        ],
        "spelling": [(f"Spell the word '{word}' backwards.", [word[::-1]]) for word in WORDS],
        "opposite": [(f"What is the opposite of '{a}'?", [b]) for pair in OPPOSITES for a, b in (pair, pair[::-1])],
    }
    return [
        {"id": f"{kind}: {text}", "text": text, "references": references, "group": kind}
        for kind, rows in of_kind.items()
        for text, references in rng.sample(rows, n)
    ]


LANGUAGES = ("French", "Spanish", "German", "Italian")
TRANSLATIONS = {
    "good morning": ("bonjour", "buenos días", "guten Morgen", "buongiorno"),
    "house": ("maison", "casa", "Haus", "casa"),
    "water": ("eau", "agua", "Wasser", "acqua"),
    "book": ("livre", "libro", "Buch", "libro"),
    "dog": ("chien", "perro", "Hund", "cane"),
    "cat": ("chat", "gato", "Katze", "gatto"),
    "bread": ("pain", "pan", "Brot", "pane"),
    "friend": ("ami", "amigo", "Freund", "amico"),
    "night": ("nuit", "noche", "Nacht", "notte"),
    "thank you": ("merci", "gracias", "danke", "grazie"),
}
WORDS = (
    "apple river table music garden window planet silver orange bottle candle doctor engine flower guitar hammer island "
    "jacket kitten ladder market needle office pencil rabbit school ticket uncle valley winter yellow zebra bridge camera "
    "dinner eleven finger ginger harbor insect"
).split()
OPPOSITES = (
    ("hot", "cold"),
    ("big", "small"),
    ("up", "down"),
    ("left", "right"),
    ("early", "late"),
    ("fast", "slow"),
    ("full", "empty"),
    ("happy", "sad"),
    ("hard", "soft"),
    ("heavy", "light"),
    ("long", "short"),
    ("new", "old"),
    ("open", "closed"),
    ("rich", "poor"),
    ("strong", "weak"),
    ("thick", "thin"),
    ("true", "false"),
    ("wet", "dry"),
    ("buy", "sell"),
    ("day", "night"),
)
