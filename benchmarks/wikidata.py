"""Facts from BIG-bench's `qa_wikidata` as cloze questions, with few-shot prompts.

Needs ../shared/data/qa_wikidata.json. This file contains a canary string and must not be copied into the project.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from extract import StoreRecipe
from extract.commands import make_store
from extract.policy import Decoding
from extract.prompts import PromptTemplate
from extract.questions import load_questions

DATA = Path(__file__).parents[2] / "shared" / "data" / "qa_wikidata.json"
#: Relations for which SmolLM2-135M-Instruct knows some facts.
FREQUENT = (
    "basin country",
    "capital",
    "color",
    "continent",
    "country",
    "country of citizenship",
    "currency",
    "eye color",
    "headquarters location",
    "instrument",
    "language",
    "native language",
    "official language",
    "original country",
    "religion",
)
#: Relations whose facts the model rarely knows: in a pilot with 24 other facts of each, its accuracy was at most 0.08
#: without worked examples (A) or with them (B).
RARE_A = (
    "country for sport played",
    "genre",
    "is followed by",
    "is indigenous to",
    "is located in",
    "material used",
)
RARE_B = (
    "academic degree",
    "emergency phone number",
    "given name",
    "health specialty",
    "historic county",
    "is facet of",
    "main subject",
    "named after",
    "noble title",
    "office held by head of government",
    "record label",
    "team position",
    "voice type",
)
N_PILOT = 24
#: Facts of the worked examples. There are no questions about their subjects.
SHOWN = {
    "The capital of Spain is": "Madrid",
    "The native language of Victor Hugo is": "French",
    "The religion of Malcolm X is": "Islam",
    "The continent of Kenya is": "Africa",
    "The country of citizenship of Charles Dickens is": "United Kingdom",
    "The instrument of Miles Davis is": "trumpet",
    "The color of coal is": "black",
}
TEMPLATE = "".join(f"{asked} {answer}.\n" for asked, answer in SHOWN.items()) + "{question}"


def facts(relations: Sequence[str], n_facts: int | None, skipped: int = 0, data: Path = DATA) -> list[dict[str, Any]]:
    """Return question records for `n_facts` facts, spread as evenly as possible over the relations.

    The facts of a relation are ordered by a hash of their text. The first `skipped` facts of each relation are left
    out. None for `n_facts` means all remaining facts.
    """
    by_relation = defaultdict(list)
    subjects = tuple(re.sub(r"^The .*? of (?:citizenship of )?", " of ", asked) for asked in SHOWN)
    for fact in load_questions(f"qa_wikidata={data}"):
        if not str(fact.text).endswith(subjects):
            by_relation[fact.group].append(fact)
    for asked in by_relation.values():
        asked.sort(key=lambda fact: hashlib.sha256(str(fact.text).encode()).digest())
    in_turn = zip_longest(*(by_relation[relation][skipped:] for relation in relations))
    chosen = [fact for turn in in_turn for fact in turn if fact is not None][:n_facts]
    return [
        {
            "id": hashlib.sha256(str(fact.text).encode()).hexdigest()[:16],
            "text": fact.text,
            "references": list(fact.references),
            "kind": "cloze",
            "group": fact.group,
        }
        for fact in chosen
    ]


def make(store: str, k: int, n_questions: int) -> None:
    """Create or complete a store with hidden states and `k` graded answers per question.

    The `n_questions` questions are taken from 600 facts about the relations in `FREQUENT`.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "qa_wikidata.jsonl"
        path.write_text("\n".join(map(json.dumps, facts(FREQUENT, 600))), encoding="utf-8")
        decoding = Decoding(
            temperature=0.7, max_new_tokens=8, stop=(".", "\n"), prompt=PromptTemplate(TEMPLATE, chat=False)
        )
        make_store(
            store, StoreRecipe(questions=str(path), n_questions=n_questions, k=k, policy=decoding), "short", ["hidden"]
        )
