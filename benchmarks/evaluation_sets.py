"""The six sets on which the probes are evaluated. A third of each set, chosen by hash, is reserved for the final run.

Four of the sets need ../shared/data and are skipped without it.
"""

from __future__ import annotations

import hashlib
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import wikidata
from benchmarks.quality import recipe_of
from extract import StoreRecipe
from extract.commands import make_store
from extract.policy import Decoding
from extract.prompts import PromptTemplate

DATA = Path(__file__).parents[2] / "shared" / "data"
STORES = Path("stores/evaluation")
K = 10


class EvaluationSet(NamedTuple):
    """An evaluation set: questions (or a function that returns them), decoding settings and grader."""

    questions: Callable[[], list[dict[str, Any]] | str]
    policy: Decoding
    grader: str = "short"


def arithmetic(n: int = 1000) -> list[dict[str, Any]]:
    """Generate distinct sums, differences and products with operands of one to three digits."""
    rng, records = random.Random(0), {}
    while len(records) < n:
        sign = rng.choice("+-×")
        a, b = (rng.randrange(10 ** rng.randrange(1, 3 if sign == "×" else 4)) for _ in range(2))
        text = f"{a} {sign} {b} ="
        value = {"+": a + b, "-": a - b, "×": a * b}[sign]
        records[text] = {"id": text, "text": text, "references": [str(value)], "kind": "number", "group": sign}
    return list(records.values())


def plain(template: str, max_new_tokens: int, stop: tuple[str, ...], **prompt: Any) -> Decoding:
    """Return decoding settings for a plain-text prompt."""
    shown = PromptTemplate(template, chat=False, **prompt)
    return Decoding(temperature=0.7, max_new_tokens=max_new_tokens, stop=stop, prompt=shown)


_OF_FACTS = plain(wikidata.TEMPLATE, 8, (".", "\n"))
_SUMS = (("7 + 12 =", "19"), ("80 - 34 =", "46"), ("6 × 9 =", "54"), ("215 + 48 =", "263"))
SETS = {
    "qa_wikidata": EvaluationSet(lambda: wikidata.facts(wikidata.FREQUENT, 2400), _OF_FACTS),
    "arithmetic": EvaluationSet(arithmetic, plain("{question}", 6, ("\n",), examples=_SUMS), "number"),
    "mmlu": EvaluationSet(
        lambda: f"mmlu={DATA / 'mmlu_miscellaneous.csv'}", plain("{question}\nAnswer:", 4, ("\n",), shots=5), "choice"
    ),
    "wikidata_a": EvaluationSet(
        lambda: wikidata.facts(wikidata.RARE_A, 1200, wikidata.N_PILOT), plain("{question}", 8, (".", "\n"))
    ),
    "wikidata_b": EvaluationSet(lambda: wikidata.facts(wikidata.RARE_B, 1200, wikidata.N_PILOT), _OF_FACTS),
}


def make(name: str) -> str:
    """Make or complete the store of an evaluation set, and return the store's folder."""
    if name == "facts":
        recipe, grader, store = recipe_of("default"), "short", "stores/facts"
        make_store(store, recipe, grader, ["hidden"])
        return store
    entry, store = SETS[name], str(STORES / name)
    questions = entry.questions()
    with tempfile.TemporaryDirectory() as folder:
        if not isinstance(questions, str):
            path = Path(folder) / f"{name}.jsonl"
            path.write_text("\n".join(map(json.dumps, questions)), encoding="utf-8")
            questions = str(path)
        recipe = StoreRecipe(questions=questions, k=K, policy=entry.policy, block_size=100)
        make_store(store, recipe, entry.grader, ["hidden"])
    return store


def available() -> list[str]:
    """Return the names of the evaluation sets whose source data are available."""
    return ["facts", *(name for name in SETS if name == "arithmetic" or DATA.is_dir())]


def is_held_out(question_id: str) -> bool:
    """Return whether a question is reserved for the final run."""
    return hashlib.sha256(f"final/{question_id}".encode()).digest()[0] % 3 == 0
