"""Tests of question sets by name, file and folder, with small files that have the original columns."""

from __future__ import annotations

import csv
import doctest
import json
from collections import Counter
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from datamodules import load_table
from extract.__main__ import COMMANDS
from extract.commands import grade, read, sample
from extract.errors import InputError
from extract.prompts import TEMPLATES
from extract.questions import SETS, Question, load_questions
from extract.questions.numbers import gold_number
from extract.questions.question import HIDDEN
from extract.questions.source import find_source
from extract.questions.subset import subset
from extract.recipe import StoreRecipe
from extract.running.cli import run
from extract.viewing.answers import read_answers

DATA = Path(__file__).parents[4] / "shared" / "data"
CONFIGS = sorted((Path(__file__).parents[3] / "configs" / "sets").glob("*.yaml"))

TRIVIA = {
    "question": "Which animal says moo?",
    "question_id": "tc_1",
    "question_source": "http://www.example.org/",
    "entity_pages": {"title": [], "wiki_context": []},
    "search_results": {"title": [], "url": []},
    "answer": {
        "value": "Cow",
        "aliases": ["Cattle", "Cow", "🐄"],
        "normalized_aliases": ["cattle", "cow"],
        "normalized_value": "cow",
        "type": "WikipediaEntity",
        "matched_wiki_entity_name": "",
        "normalized_matched_wiki_entity_name": "",
    },
}
SIMPLE = {
    "original_index": 7,
    "problem": "How many stones lie in the yard?",
    "answer": "120 (acceptable range: anything between 118 and 122)",
    "topic": "Yards",
    "answer_type": "Number",
    "multi_step": False,
    "requires_reasoning": False,
    "urls": "https://example.org/a,https://example.org/b",
}
GSM = {"question": "Two boxes of 603 pens?", "answer": "There are 2 * 603 = <<2*603=1206>>1206 pens.\n#### 1,206"}
MATH = {
    "problem": "What is $1/2$?",
    "solution": "It is $\\boxed{\\frac{1}{2}}$.",
    "answer": "\\frac{1}{2}",
    "subject": "Prealgebra",
    "level": 2,
    "unique_id": "test/prealgebra/1.json",
}
AIME = {"problem": "Find the angle.", "answer": "036^\\circ", "id": "0"}
MMLU = {"question": "Which is a bird?", "subject": "zoology", "choices": ["Cow", "Owl", "Ant", "NA"], "answer": 1}
GPQA = {
    "Record ID": "rec1",
    "Question": "An invented question?\n",
    "Correct Answer": "right one",
    "Incorrect Answer 1": "None",
    "Incorrect Answer 2": "wrong two",
    "Incorrect Answer 3": " wrong three",
    "Subdomain": "Inventions",
    "High-level domain": "Made up",
    "Writer's Difficulty Estimate": "Easy",
}
SVAMP = {
    "ID": "chal-1",
    "Body": "Ann has 150 pens.",
    "Question": "5 are lost. How many are left?",
    "Equation": "( 150.0 - 5.0 )",
    "Answer": "145",
    "Type": "Subtraction",
    "question_concat": "Ann has 150 pens. 5 are lost. How many are left?",
}


def write(path: Path, *rows: dict[str, Any]) -> Path:
    """Write rows to a file in the format given by its suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    else:
        path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def hub_folder(folder: Path, config: str, **splits: Path) -> Path:
    """Make a folder that `datasets` loads like a dataset on the Hub."""
    files = [{"split": split, "path": str(path.relative_to(folder))} for split, path in splits.items()]
    card = {"configs": [{"config_name": config, "data_files": files}]}
    (folder / "README.md").write_text(f"---\n{yaml.safe_dump(card)}---\n", encoding="utf-8")
    return folder


EXPECTED = {
    "triviaqa": (TRIVIA, {"id": "tc_1", "text": "Which animal says moo?", "references": ("Cow", "Cattle")}),
    "simpleqa-verified": (SIMPLE, {"id": "7", "references": ("120", SIMPLE["answer"]), "group": "Yards"}),
    "gsm8k": (
        GSM,
        {"kind": "number", "references": ("1206",), "meta": {"worked": "There are 2 * 603 = 1206 pens.\n#### 1,206"}},
    ),
    "math-500": (
        MATH,
        {
            "id": "test/prealgebra/1.json",
            "kind": "math",
            "references": ("\\frac{1}{2}",),
            "group": "Prealgebra",
            "meta": {"level": 2, "worked": MATH["solution"]},
        },
    ),
    "aime25": (AIME, {"kind": "number", "references": ("36",)}),
    "mmlu": (
        MMLU,
        {"kind": "choice", "references": ("B", "Owl"), "choices": ("Cow", "Owl", "Ant", "NA"), "group": "zoology"},
    ),
    "gpqa": (GPQA, {"id": "rec1", "kind": "choice", "text": "An invented question?", "group": "Inventions"}),
    "svamp": (SVAMP, {"id": "chal-1", "kind": "number", "text": SVAMP["question_concat"], "references": ("145",)}),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_hub_set_is_read_from_its_real_columns(name: str, tmp_path: Path) -> None:
    row, expected = EXPECTED[name]
    of, suffix = SETS[name], ".csv" if SETS[name].in_csv else ".jsonl" if name in ("math-500", "aime25") else ".parquet"
    folder = hub_folder(tmp_path, of.config or "default", **{of.split: write(tmp_path / f"data/1{suffix}", row)})
    (question,) = load_questions(f"{name}={folder}")
    assert question.dataset == name
    assert {field: getattr(question, field) for field in expected} == expected


def test_every_set_on_the_hub_has_a_commit_and_a_config_file() -> None:
    assert set(EXPECTED) <= {name for name, one in SETS.items() if one.hub}
    assert all(len(one.revision or "") == 40 for one in SETS.values() if one.hub)
    assert {path.stem for path in CONFIGS} == set(SETS)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_command_accepts_the_config_file_of_a_set(path: Path) -> None:
    given: list[StoreRecipe] = []

    def sample(store: str, recipe: StoreRecipe) -> None:
        given.append(recipe)

    assert "sample" in COMMANDS
    assert run({"sample": sample}, "extract", ["sample", "--config", str(path), "--store", "new"]) == 0
    assert given[0].questions == path.stem
    assert given[0].policy.prompt.template.count("{question}") == 1
    assert given[0].policy.prompt.chat or not given[0].policy.prompt.shots or given[0].policy.stop, "it would run on"


def test_the_order_of_gpqa_options_depends_only_on_record_and_seed(tmp_path: Path) -> None:
    rows = [{**GPQA, "Record ID": f"rec{i}"} for i in range(60)]
    path = write(tmp_path / "gpqa.csv", *rows)
    first, again = (load_questions(f"gpqa={path}", seed=1) for _ in range(2))
    alone = load_questions(f"gpqa={write(tmp_path / 'one.csv', rows[5])}", seed=1)[0]
    assert first == again
    assert alone == next(one for one in first if one.id == "rec5")
    letters = Counter(question.references[0] for question in first)
    assert set(letters) == set("ABCD")
    assert all(question.references[1] == "right one" for question in first)
    assert all(question.choices["ABCD".index(question.references[0])] == "right one" for question in first)
    assert all(sorted(question.choices) == ["None", "right one", "wrong three", "wrong two"] for question in first)
    other = {one.id: one for one in load_questions(f"gpqa={path}", seed=2)}
    assert any(other[one.id].choices != one.choices for one in first)


def test_texts_of_gpqa_are_hidden(tmp_path: Path) -> None:
    (question,) = load_questions(f"gpqa={write(tmp_path / 'gpqa.csv', GPQA)}")
    assert question.private
    assert question.public_prompt == HIDDEN == question.public("as the question says …")
    for options in ({"fields": {"text": "Question", "references": "Correct Answer"}}, {}):
        for questions in ("gpqa",) if options else ("Idavidrein/gpqa:gpqa_main", "idavidrein/GPQA"):
            with pytest.raises(InputError, match="so that its texts stay private"):
                find_source(questions, **options)


def test_a_gated_set_without_a_token_says_where_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setattr("huggingface_hub.utils._auth.constants.HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(
        InputError, match="access to the gated dataset 'Idavidrein/gpqa', but it is not set. Accept the terms at https"
    ) as info:
        load_questions("gpqa")
    assert str(info.value).isprintable()


@pytest.mark.parametrize("questions", ["gsm8k", "somebody/a-dataset:main"])
def test_an_unreachable_hub_gives_a_one_line_error(questions: str) -> None:
    fields = None if questions == "gsm8k" else {"text": "question", "references": "answer"}
    with pytest.raises(InputError, match="Hub to be reachable.*--questions (gsm8k=)?PATH") as info:
        load_questions(questions, fields=fields)
    assert str(info.value).isprintable()


def test_an_unknown_set_is_refused_with_the_nearest_name() -> None:
    for questions in ("gsm8", "gsm8=a.jsonl"):
        with pytest.raises(InputError, match="to be one of facts, triviaqa.*Did you mean `gsm8k`"):
            load_questions(questions)


@pytest.mark.parametrize(
    ("questions", "options", "message"),
    [
        ("qa_wikidata", {}, "Pass --questions qa_wikidata=PATH with the path of qa_wikidata.json"),
        ("gsm8k=nowhere.jsonl", {}, "'nowhere.jsonl' does not exist"),
        ("mmlu=nowhere.csv", {}, "'nowhere.csv' does not exist"),
        ("facts", {"split": "test"}, "split or revision for the 'facts' set"),
        ("facts", {"stratify_by": "grup"}, "Did you mean `group`"),
        ("mine.csv", {"revision": "abc"}, "no `questions_revision`"),
        ("mine.csv", {"split": "test"}, "no `split`"),
        ("mine.csv", {"fields": {"text": "q"}}, "specify a column for references"),
        ("mine.csv", {"fields": {"texts": "q", "references": "a"}}, "Did you mean `text`"),
        ("mine.csv", {"fields": {"text": ["q"], "references": "a"}}, "`fields.text` to specify columns"),
        ("mine.csv", {"fields": {"text": "q", "references": "a", "kind": "essay"}}, "`fields.kind` to be one of"),
    ],
)
def test_incompatible_options_are_refused(questions: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_questions(questions, **options)


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_the_error_for_a_missing_mapped_column_names_the_existing_ones(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"mine{suffix}", {"problem": "1 + 1?", "solution": "2", "about": "sums"})
    with pytest.raises(InputError, match=r"row 1 of 'mine' to have the column 'problm'.* problem, solution, about.*Did you mean `problem`"):  # fmt: skip
        load_questions(str(path), fields={"text": "problm", "references": "solution"})
    with pytest.raises(InputError, match="--fields|among id, text"):
        load_questions(str(path))
    with pytest.raises(InputError, match="'question', but its columns are problem, solution, about"):
        load_questions(f"svamp={path}", fields={"text": "question", "references": "solution"})


def test_the_error_for_a_named_set_without_its_column_names_the_existing_ones(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.jsonl", {"problem": "1 + 1?", "solution": "2"})
    with pytest.raises(
        InputError, match="row 1 of 'gsm8k' to have the column 'answer', but its columns are problem, sol"
    ):
        load_questions(f"gsm8k={path}")


FIELDS = {
    "text": "{body} {ask}",
    "references": ["answer.value", "answer.aliases"],
    "group": "about",
    "meta": {"no": "n"},
}


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_questions_are_read_from_the_columns_of_any_file(suffix: str, tmp_path: Path) -> None:
    row = {"body": "Peru.", "ask": "Its capital?", "answer": {"value": "Lima", "aliases": ["Ciudad", "Lima"]}, "about": "x", "n": 3}  # fmt: skip
    path = write(tmp_path / f"mine{suffix}", row, {**row, "ask": "Its coast?"})
    questions = load_questions(str(path), fields=FIELDS)
    assert {one.text for one in questions} == {"Peru. Its capital?", "Peru. Its coast?"}
    first = questions[0]
    assert (first.dataset, first.references, first.group, first.meta) == ("mine", ("Lima", "Ciudad"), "x", {"no": 3})
    again = load_questions(str(write(tmp_path / f"other{suffix}", row)), fields=FIELDS)
    assert {one.id for one in again} < {one.id for one in questions}, "the id is of what is asked, not of where"


def test_the_command_line_accepts_fields(tmp_path: Path) -> None:
    given: list[StoreRecipe] = []

    def sample(recipe: StoreRecipe) -> None:
        given.append(recipe)

    path = write(tmp_path / "mine.csv", {"Body": "One.", "Question": "Two?", "Answer": "3.0"})
    fields = '{text: "{Body} {Question}", references: [Answer], kind: number}'
    assert run({"sample": sample}, "extract", ["sample", "--questions", str(path), "--fields", fields]) == 0
    questions, _ = given[0].load()
    assert [(one.text, one.references, one.kind) for one in questions] == [("One. Two?", ("3",), "number")]


def test_texts_in_a_csv_file_are_unchanged(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.csv", *({"q": f"{a}?", "a": a} for a in ("007", "NA", "None", "1.0", "a,b\nc")))
    questions = load_questions(str(path), fields={"text": "q", "references": "a"})
    assert {one.references[0] for one in questions} == {"007", "NA", "None", "1.0", "a,b\nc"}


MAPPED = {"text": "q", "references": "a"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("q,a\nWho, really?,y\nz?, really,w\n", "line 2 of 'mine.csv' to have 2 fields.* has 3.*double quotes"),
        ("q,a\n1?,y\n\n2?\n", "line 4 of 'mine.csv' to have 2 fields.* has 1"),
        ('q,a\n1?,"y\nz"\n2?,y,z\n', "line 4 of 'mine.csv' to have 2 fields.* has 3"),
        ("q,a,a\n1?,y,z\n", "unique column names in 'mine.csv', but 'a' occurs 2 times"),
        ('q,a\n1?,"y\n', "'.*mine.csv' to be a readable dataset"),
        ("", "at least one question"),
        ("q,a\n", "at least one question"),
    ],
)
def test_a_table_with_misaligned_fields_is_refused(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(content)
    with pytest.raises(InputError, match=message) as info:
        load_questions(str(path), fields=MAPPED)
    assert str(info.value).isprintable()


def test_a_folder_with_a_misaligned_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("q,a\nWho, really?,y\nz?, really,w\n")
    with pytest.raises(InputError, match="to be a readable dataset.*Length of header") as info:
        load_questions(str(tmp_path), fields=MAPPED)
    assert str(info.value).isprintable()
    (tmp_path / "test.csv").write_text('q,a\n"Who, really?",NA\n')
    assert load_questions(str(tmp_path), fields=MAPPED)[0].references == ("NA",)


def test_a_field_of_a_table_can_contain_a_whole_document(tmp_path: Path) -> None:
    path = write(tmp_path / "mine.csv", {"q": "word " * 40_000 + "?", "a": "y"})
    assert len(load_questions(str(path), fields=MAPPED)[0].text) == 200_001


def test_windows_line_ends_are_converted(tmp_path: Path) -> None:
    table, rows = tmp_path / "mine.csv", write(tmp_path / "mine.json", {"q": "Who\nis it?", "a": "y"})
    table.write_bytes(b'\xef\xbb\xbfq,a\r\n"Who\r\nis it?",y\r\n')
    first, second = (load_questions(str(path), fields=MAPPED) for path in (table, rows))
    assert first == second


def test_numbers_that_are_not_finite_are_not_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"q": "1?", "a": 1.5, "n": float("nan")}] + [
        {"q": f"{x}?", "a": float(x), "n": 2.5} for x in ("nan", "inf")
    ]
    for path in (write(tmp_path / "mine.json", *rows), write(tmp_path / "mine.parquet", *rows)):
        (question,) = load_questions(str(path), fields={**MAPPED, "meta": {"n": "n"}})
        assert (question.references, question.meta) == (("1.5",), {"n": None})
        assert "2 rows without a gradable answer" in capsys.readouterr().err
    options = [{"q": f"{i}?", "o": ["Oslo", "Lima"], "a": answer} for i, answer in enumerate((None, "Lima"))]
    fields = {**MAPPED, "choices": "o"}
    assert [one.text for one in load_questions(str(write(tmp_path / "o.json", *options)), fields=fields)] == ["1?"]


def test_meta_of_a_table_contains_plain_values(tmp_path: Path) -> None:
    day = datetime(2020, 1, 31)
    meta = {"at": [{"day": day, "time": day.replace(hour=7)}], "price": Decimal("1.50"), "n": 3, "ok": True}
    path = write(tmp_path / "mine.parquet", {"q": "1?", "a": "y", **meta})
    (question,) = load_questions(str(path), fields={**MAPPED, "meta": {name: name for name in meta}})
    assert question.meta == {
        "at": [{"day": "2020-01-31", "time": "2020-01-31T07:00:00"}],
        "price": "1.50",
        "n": 3,
        "ok": True,
    }
    raw = write(tmp_path / "raw.parquet", {"q": "1?", "a": "y", "raw": b"z"})
    with pytest.raises(InputError, match="'raw' of row 1.*got a bytes"):
        load_questions(str(raw), fields={**MAPPED, "meta": {"raw": "raw"}})
    own = write(tmp_path / "own.parquet", {"id": "a", "text": "1?", "references": ["y"], "meta": {"day": day}})
    with pytest.raises(InputError, match="'a'.*to contain only text and finite numbers"):
        load_questions(str(own))


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("1,5", None),
        ("0,500", None),
        ("1e999999", None),
        ("1e-999999", None),
        ("1e99999999999999999999", None),
        ("9" * 4000, None),
        ("1,00,000", "100000"),
        ("-1,234.50", "-1234.5"),
        ("0.12345678901234567890123456789012345678901", "0.12345678901234567890123456789012345678901"),
        ("1.5e-3", "0.0015"),
        ("20", "20"),
        ("-0.0", "0"),
    ],
)
def test_a_reference_number_is_exact_or_refused(given: str, plain: str | None) -> None:
    if plain is not None:
        assert gold_number(given, "row 1") == plain
    else:
        with pytest.raises(InputError, match="answer in row 1 to be a number") as info:
            gold_number(given, "row 1")
        assert len(str(info.value)) < 300


def test_text_that_cannot_be_encoded_is_refused_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"q": "x\\ud800?", "a": "y"}')
    with pytest.raises(InputError, match="row 1 of 'mine' to contain valid text") as info:
        load_questions(str(path), fields=MAPPED)
    assert str(info.value).isprintable()


def test_a_table_without_rows_has_no_questions(tmp_path: Path) -> None:
    path = tmp_path / "mine.parquet"
    pq.write_table(pa.table({"q": pa.array([], pa.string()), "a": pa.array([], pa.string())}), path)
    with pytest.raises(InputError, match="'mine' to contain at least one question"):
        load_questions(str(path), fields=MAPPED)


def test_the_packages_own_fields_are_read_from_other_formats(tmp_path: Path) -> None:
    row = {
        "id": "a",
        "text": "Which?",
        "references": ["B"],
        "kind": "choice",
        "choices": ["Oslo", "Lima"],
        "group": "g",
    }
    for path in (write(tmp_path / "q.jsonl", row), write(tmp_path / "q.parquet", row), write(tmp_path / "q.json", row)):
        (question,) = load_questions(str(path))
        assert question == Question("a", "q", "Which?", (), ("B", "Lima"), "choice", ("Oslo", "Lima"), "g")
        assert question.prompt == "Which?\nA. Oslo\nB. Lima"
    with pytest.raises(InputError, match="one of the 2 options.*got 'Rome'"):
        load_questions(str(write(tmp_path / "q.jsonl", {**row, "references": ["Rome"]})))


def test_the_right_option_is_given_by_letter_text_or_index(tmp_path: Path) -> None:
    rows = [
        {"q": f"{i}?", "options": ["Oslo", "Lima", "Rome"], "a": answer} for i, answer in enumerate(("C", "Rome", "2"))
    ]
    fields = {"text": "q", "choices": "options", "references": "a"}
    for question in load_questions(
        str(write(tmp_path / "q.jsonl", *rows, {**rows[0], "q": "4?", "a": 2})), fields=fields
    ):
        assert (question.references, question.kind) == (("C", "Rome"), "choice")


def test_an_answer_that_is_the_text_of_two_options_is_refused(tmp_path: Path) -> None:
    row, fields = {"q": "1?", "o": ["Lima", "Lima", "B"]}, {**MAPPED, "choices": "o"}
    with pytest.raises(InputError, match="2 options have this text. Write the letter"):
        load_questions(str(write(tmp_path / "q.json", {**row, "a": "Lima"})), fields=fields)
    for answer in ("B", 1):
        (question,) = load_questions(str(write(tmp_path / "q.json", {**row, "a": answer})), fields=fields)
        assert question.references == ("B", "Lima")
    truth = write(tmp_path / "q.json", {"q": "1?", "o": ["no", "yes"], "a": True})
    with pytest.raises(InputError, match="one of the 2 options.*got 'true'"):
        load_questions(str(truth), fields=fields)


def test_duplicate_rows_are_one_question(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [TRIVIA, TRIVIA, {**TRIVIA, "question_id": "tc_2", "answer": {"value": "?", "aliases": ["…"]}}]
    (question,) = load_questions(f"triviaqa={write(tmp_path / 't.jsonl', *rows)}")
    assert question.references == ("Cow", "Cattle")
    assert "skipped 1 rows without a gradable answer, such as row 3 of 'triviaqa'" in capsys.readouterr().err  # fmt: skip
    with pytest.raises(InputError, match="ids to be unique, but row 2 of 'triviaqa' has the id 'tc_1'"):
        load_questions(f"triviaqa={write(tmp_path / 't.jsonl', TRIVIA, {**TRIVIA, 'question': 'Another?'})}")
    facts = [
        {"input": "The capital of Peru is", "target": target} for target in ("Lima", ["Lima", "Ciudad de los Reyes"])
    ]
    (fact,) = load_questions(f"qa_wikidata={write(tmp_path / 'q.json', *facts)}")
    assert (fact.references, fact.group, fact.kind) == (("Lima", "Ciudad de los Reyes"), "capital", "cloze")
    sums = [{"q": "1 + 1?", "a": answer} for answer in (2, 2, 3)]
    fields = {"text": "q", "references": "a", "kind": "number"}
    assert len(load_questions(str(write(tmp_path / "s.json", *sums)), fields=fields)) == 2, "2 and 3 are not both right"


@pytest.mark.parametrize(
    ("text", "relation"),
    [
        ("The country of citizenship of Charles Dickens is", "country of citizenship"),
        ("The language of All in the Family is", "language"),
        ("The sport played by Larry Bird is", "sport played"),
        ("Accra is capital of", "is capital of"),
        ("Nobody knows", ""),
    ],
)
def test_a_fact_of_qa_wikidata_is_grouped_by_its_relation(text: str, relation: str, tmp_path: Path) -> None:
    (fact,) = load_questions(f"qa_wikidata={write(tmp_path / 'q.json', {'input': f'{text} [MASK]', 'target': 'x'})}")
    assert (fact.text, fact.group) == (text, relation)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "readable dataset.*Check its content"),
        (b'{"a": [{"b": 1}], "c": [{"d": 1}]}', "exactly one list"),
        (b'"\xff"', "readable dataset"),
        (b"[]", "at least one question"),
    ],
)
def test_a_bad_json_file_gives_a_one_line_error(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    with pytest.raises(InputError, match=message) as info:
        load_questions(str(tmp_path / "bad.json"), fields={"text": "b", "references": "d"})
    assert str(info.value).isprintable()


def test_other_bad_files_give_a_one_line_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 not really")
    (tmp_path / "bad.csv").write_bytes(b'q,a\n"1,2\n')
    (tmp_path / "bad.txt").write_bytes(b"?")
    (tmp_path / "folder").mkdir()
    for name in ("bad.parquet", "bad.csv", "bad.txt", "folder"):
        with pytest.raises(InputError) as info:
            load_questions(str(tmp_path / name), fields={"text": "q", "references": "a"})
        assert str(info.value).isprintable()
        assert name in str(info.value)
    assert capfd.readouterr().err == ""
    (tmp_path / "mmlu.csv").write_text("a,b\n")
    with pytest.raises(
        InputError, match=r"but it has 2. The columns are question, A, B, C, D, answer \(the file has no header\)"
    ):
        load_questions(f"mmlu={tmp_path / 'mmlu.csv'}")


def test_the_error_for_a_wrong_split_or_configuration_names_the_existing_ones(tmp_path: Path) -> None:
    folder = hub_folder(tmp_path, "main", test=write(tmp_path / "t.parquet", GSM))
    with pytest.raises(InputError, match="tset.*test"):
        load_questions(f"gsm8k={folder}", split="tset")
    with pytest.raises(InputError, match="socratic.*main"):
        find_source(f"gsm8k:socratic={folder}").questions(0)


def stratified(sizes: dict[str, int], n: int | None) -> list[Question]:
    every = [
        Question(f"{group}{i}", "s", "?", (), ("a",), group=group) for group, size in sizes.items() for i in range(size)
    ]
    return subset(every, n, 0, "group", "s")


def test_a_stratified_subset_has_equal_shares_if_there_are_enough_questions() -> None:
    sizes = {"few": 3, "some": 10, "many": 500}
    assert Counter(one.group for one in stratified(sizes, 9)) == {"few": 3, "some": 3, "many": 3}
    assert Counter(one.group for one in stratified(sizes, 21)) == {"few": 3, "some": 9, "many": 9}
    assert Counter(one.group for one in stratified(sizes, 30)) == {"few": 3, "some": 10, "many": 17}
    shares = Counter(one.group for one in stratified(sizes, 20))
    assert sorted(shares.values()) == [3, 8, 9]
    assert len(stratified(sizes, None)) == 513


def test_a_larger_stratified_subset_begins_with_the_smaller_one() -> None:
    sizes = {"few": 3, "some": 10, "many": 50}
    longest = [one.id for one in stratified(sizes, None)]
    for n in range(1, 63, 7):
        assert [one.id for one in stratified(sizes, n)] == longest[:n]
    with_more = {one.id for one in stratified({**sizes, "many": 51}, 6)}
    assert len(with_more & set(longest[:6])) >= 5, "another question moves at most itself in"


def test_a_key_of_meta_can_define_the_strata(tmp_path: Path) -> None:
    rows = [{**MATH, "unique_id": str(i), "problem": f"{i}?", "level": 1 + (i > 2)} for i in range(30)]
    questions = load_questions(f"math-500={write(tmp_path / 'm.jsonl', *rows)}", 6, stratify_by="level")
    assert Counter(one.meta["level"] for one in questions) == {1: 3, 2: 3}


REAL = {
    "gsm8k": ("gsm8k_test.jsonl", 1319, "number"),
    "svamp": ("svamp.json", 1000, "number"),
    "math-500": ("math500.jsonl", 500, "math"),
    "mmlu": ("mmlu_miscellaneous.csv", 783, "choice"),
    "qa_wikidata": ("qa_wikidata.json", 20_320, "cloze"),
}


@pytest.fixture(params=REAL)
def real(request: pytest.FixtureRequest) -> tuple[str, list[Question]]:
    """Return the name of a set and the questions in its original file."""
    name = str(request.param)
    path = DATA / REAL[name][0]
    if not path.is_file():
        pytest.skip(f"{path.name} is not in shared/data beside the project")
    return name, load_questions(f"{name}={path}")


@pytest.mark.slow
def test_the_real_files_are_read_completely(real: tuple[str, list[Question]]) -> None:
    name, questions = real
    assert len(questions) == REAL[name][1]
    assert {one.kind for one in questions} == {REAL[name][2]}
    assert len({one.id for one in questions}) == len(questions)
    assert not any(one.private for one in questions)
    if name in ("gsm8k", "svamp"):
        assert all(one.references[0].lstrip("-").replace(".", "", 1).isdigit() for one in questions)
    if name == "gsm8k":
        assert all("####" in one.meta["worked"] and "<<" not in one.meta["worked"] for one in questions)
    if name == "mmlu":
        assert all(len(one.choices) == 4 for one in questions)
    if name == "qa_wikidata":
        groups = Counter(one.group for one in questions)
        assert "" not in groups
        assert groups["country of citizenship"] > 4000
        assert groups["is located in or next to body of water"] == 22
        assert not any("[MASK]" in one.text for one in questions)
        few = Counter(one.group for one in subset(questions, 5 * len(groups), 0, "group", name))
        assert set(few.values()) == {5}, "every relation has at least five facts"


def test_tables_and_pages_contain_no_private_text(tmp_path: Path, tiny_folder: Path) -> None:
    rows = [{"id": f"{i}", "text": f"Secret {i}?", "references": ["a"], "meta": {"private": True}} for i in range(4)]
    recipe = StoreRecipe(questions=str(write(tmp_path / "own.jsonl", *rows)), model=str(tiny_folder), k=2)
    store = sample(str(tmp_path / "store"), recipe)
    grade(str(store.path), "short")
    read(str(store.path), ["tokens"], "sample", model=str(tiny_folder))
    assert set(load_table(store, "short").texts) == {HIDDEN}
    with pytest.raises(InputError, match="questions from 'own' are private"):
        read_answers(store, lambda: None)


def test_the_examples_on_the_page_about_questions_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[3] / "docs" / "questions.md"
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setitem(SETS, "riddles", SETS["facts"])  # the page replaces this entry, and the patch removes it
        result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted > 8
    assert result.failed == 0
    text = page.read_text(encoding="utf-8")
    for name, template in TEMPLATES.items():
        line = template.replace("\n\n", " ¶ ").replace("\n", " ↵ ")
        assert f"| `{name}` | `{line}`" in text
    for name, one in SETS.items():
        assert all(f"`{known}`" in text for known in (name, one.hub, one.config) if known)
