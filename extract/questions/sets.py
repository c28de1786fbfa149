"""Question sets by name. To add a set, add an entry to `SETS`."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from extract.hashing import hash_order
from extract.questions.facts import facts
from extract.questions.fields import Draft, Read, Row, by_fields, own_form, right_option
from extract.questions.numbers import gold_number
from extract.questions.question import Question
from extract.registry import Registry


@dataclass(frozen=True)
class QuestionSet:
    """Location and format of a question set.

    Attributes:
        read: Function that converts a row to question fields, given a seed for shuffling options.
        hub: Hugging Face Hub id, or None.
        config: Hub configuration, or None.
        split: Split of the questions.
        revision: Hub commit; None for the newest commit.
        train: Split that contains the worked examples for few-shot prompts. If None, the examples are taken from
            `split` and excluded from the questions.
        gated: Whether users must accept terms on the Hub. The texts of gated sets are never shown.
        in_csv: Whether the Hub stores the set as CSV.
        columns: Column names of an original CSV file without a header.
        file: Name of the original file, for error messages.
        build: Function that builds all questions, or None.
    """

    read: Read = own_form
    hub: str | None = None
    config: str | None = None
    split: str = "test"
    revision: str | None = None
    train: str | None = None
    gated: bool = False
    in_csv: bool = False
    columns: tuple[str, ...] = ()
    file: str = ""
    build: Callable[[], list[Question]] | None = None


def gsm8k(row: Row, seed: int) -> Draft:
    """Read a GSM8K row. The answer is the number after ``####``. Calculator annotations are removed."""
    worked = re.sub(r"<<.*?>>", "", row.text("answer"))
    gold = gold_number(worked, row.where)
    return {"text": row.text("question"), "references": (gold,), "kind": "number", "meta": {"worked": worked}}


def aime(row: Row, seed: int) -> Draft:
    """Read an AIME row. The answer is a whole number; any unit after it is removed."""
    gold = re.sub(r"\D+$", "", row.text("answer"))
    return {"text": row.text("problem"), "references": (gold_number(gold, row.where),), "kind": "number"}


_SIMPLEQA = by_fields({"id": "original_index", "text": "problem", "references": "answer", "group": "topic"})


def simpleqa(row: Row, seed: int) -> Draft:
    """Read a SimpleQA row.

    If a gold answer ends with "(acceptable range: …)", the text without the range is an additional reference.
    """
    draft = _SIMPLEQA(row, seed)
    bare = [re.sub(r"\s*\(acceptable range:.*\)$", "", gold, flags=re.I) for gold in draft["references"]]
    return {**draft, "references": (*bare, *draft["references"]), "meta": {"answer_type": row.value("answer_type")}}


def mmlu(row: Row, seed: int) -> Draft:
    """Read an MMLU row in the Hub's format, or in the original format with columns A to D."""
    choices = "choices" if "choices" in row.values else ["A", "B", "C", "D"]
    group = {"group": "subject"} if "subject" in row.values else {}
    return by_fields({"text": "question", "choices": choices, "references": "answer", **group})(row, seed)


def gpqa(row: Row, seed: int) -> Draft:
    """Read a GPQA row and shuffle its options. The question is marked as private, as the authors of GPQA request."""
    record = row.text("Record ID")
    answers = [row.text(name) for name in ("Correct Answer", *(f"Incorrect Answer {i}" for i in (1, 2, 3)))]
    order = hash_order([f"{record}/{i}" for i in range(len(answers))], seed)
    choices = tuple(answers[i] for i in order)
    references = right_option(order.index(0), choices, row.where)
    question = {"id": record, "text": row.text("Question"), "choices": choices, "references": references}
    return {**question, "kind": "choice", "group": row.text("Subdomain"), "meta": {"private": True}}


#: Relations that contain "of", "by" or "in". They are listed because a match would otherwise end before that word.
_LONG = (
    "country of citizenship|color of the flag|basic form of government|office held by head of government|place of birth"
    "|place of publication|month of the year"
)
_FORMS = (
    re.compile(rf"The ({_LONG}|.+?) (?:of|by|in) .+ is"),
    re.compile(
        r".+? (is located in or next to body of water|is located in|shares a border with|is capital of|is facet of"
        r"|is indigenous to|is followed by|is territory claimed by|is studied by|is used by|convicted of"
        r"|writing languages|given name|named after|endemic to|follows|influenced by|replaced by|owned by|practiced by"
        r"|programming language|calculated from)"
    ),
)


def qa_wikidata(row: Row, seed: int) -> Draft:
    """Read a QA-Wikidata row.

    The text is an incomplete sentence. The group is the relation in the sentence, such as "is capital of".
    """
    text = row.text("input").removesuffix("[MASK]").strip()
    relation = next((found[1] for form in _FORMS if (found := form.fullmatch(text))), "")
    return {"text": text, "references": row.texts("target"), "kind": "cloze", "group": relation}


_TRIVIAQA = {"id": "question_id", "text": "question", "references": ["answer.value", "answer.aliases"]}
_MATH = {"id": "unique_id", "text": "problem", "references": "answer", "kind": "math", "group": "subject"}
_SVAMP = {"id": "ID", "text": "{Body} {Question}", "references": "Answer", "kind": "number", "group": "Type"}

#: Hub id, configuration, split, and commit (the one that public evaluation code uses, if any).
_HUB: dict[str, tuple[str, str | None, str, str]] = {
    "triviaqa": ("mandarjoshi/trivia_qa", "rc.nocontext", "validation", "0f7faf33a3908546c6fd5b73a660e0f8ff173c2f"),
    "simpleqa": ("google/simpleqa-verified", "simpleqa_verified", "eval", "0dc97e0d28d8233463e005cdc4475cc2a13ba2dc"),
    "gsm8k": ("openai/gsm8k", "main", "test", "cc7b047b6e5bb11b4f1af84efc572db110a51b3c"),
    "math": ("HuggingFaceH4/MATH-500", None, "test", "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be"),
    "aime": ("math-ai/aime25", None, "test", "563bb8404243c5f09de6ec262f2db674fe5bce9b"),
    "mmlu": ("cais/mmlu", "all", "test", "c30699e8356da336a370243923dbaf21066bb9fe"),
    "gpqa": ("Idavidrein/gpqa", "gpqa_diamond", "train", "633f5ee89ab8ad4522a9f850766b73f62147ffdd"),
    "svamp": ("ChilleD/SVAMP", None, "test", "5e0bf1e5e7c0e9c4bc39180d224f41f3f801b7ef"),
}

_ENTRIES = {
    "facts": QuestionSet(build=facts),
    "triviaqa": QuestionSet(by_fields(_TRIVIAQA), *_HUB["triviaqa"], train="train"),
    "simpleqa-verified": QuestionSet(simpleqa, *_HUB["simpleqa"], in_csv=True),
    "gsm8k": QuestionSet(gsm8k, *_HUB["gsm8k"], train="train"),
    "math-500": QuestionSet(by_fields({**_MATH, "meta": {"level": "level", "worked": "solution"}}), *_HUB["math"]),
    "aime25": QuestionSet(aime, *_HUB["aime"]),
    "mmlu": QuestionSet(mmlu, *_HUB["mmlu"], train="dev", columns=("question", "A", "B", "C", "D", "answer")),
    "gpqa": QuestionSet(gpqa, *_HUB["gpqa"], gated=True, in_csv=True),
    "svamp": QuestionSet(by_fields(_SVAMP), *_HUB["svamp"], train="train"),
    "qa_wikidata": QuestionSet(qa_wikidata, file="qa_wikidata.json from BIG-bench"),
}

SETS: Registry[QuestionSet] = Registry("questions", _ENTRIES)
