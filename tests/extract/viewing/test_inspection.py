"""Tests of `python -m extract inspect`: figures computed by hand, a readable page, and progress bars."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from extract import Decoding, InputError, Question, Store
from extract.policy import Identity, ModelIdentity, Policy
from extract.questions.question import questions_hash
from extract.running.progress import Progress
from extract.store.shards import Block, SampleRange
from extract.viewing.inspection import compared, describe
from extract.viewing.summary import interval, summarize

pytestmark = pytest.mark.slow

#: Grades of four questions' three answers: right, wrong, unknown, wrong because no answer was found.
PLANTED = ["RRW", "WWN", "RUU", "UUU"]
GRADES = {"R": (True, "x"), "W": (False, "y"), "U": (None, "z"), "N": (False, None)}


def make(
    folder: Path,
    questions: Sequence[Question],
    texts: Sequence[Sequence[str]],
    temperature: float = 0.7,
    top_k: int = 0,
    **row: Any,
) -> Store:
    """Make a store with blocks of 3 questions, whose answers have these texts and one token per letter."""
    model = ModelIdentity("tiny", None, "a" * 64, "float32", "b" * 64, "c" * 64)
    policy = Policy(model, Decoding(temperature=temperature, top_k=top_k, max_new_tokens=1000))
    store = Store.create(folder, Identity(policy, questions_hash(questions), block_size=3), questions)
    said = dict(zip((question.id for question in questions), texts, strict=True))
    for block in range(store.questions.n_blocks):
        part = SampleRange(block, 0, len(texts[0]))
        rows = [
            {
                "question_id": id_,
                "sample": j,
                "token_ids": [5] * max(1, len(text)),
                "text": text,
                "logprobs": [-1.0] * max(1, len(text)),
            }
            | {"finish_reason": "stop", "prompt_tokens": 4, **row}
            for id_ in store.questions.ids(Block(block))
            for j, text in enumerate(said[id_])
        ]
        store.samples.write(part, rows)
    return store


def grade(store: Store, name: str, planted: Sequence[str]) -> None:
    of = dict(zip((question.id for question in store.questions), planted, strict=True))
    for part in store.samples.ranges():
        rows = []
        for id_ in store.questions.ids(part):
            for j, letter in enumerate(of[id_]):
                right, answer = GRADES[letter]
                rows.append({"question_id": id_, "sample": j, "right": right, "answer": answer})
        store.grades.write(name, part, rows[::-1], "planted")  # in a different order from the samples


def ask(n: int, **changes: Any) -> list[Question]:
    return [
        Question(id=f"q{i}", dataset="made", text=f"Say {i}.", references=("x",), group=f"group {i % 2}", **changes)
        for i in range(n)
    ]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    kept = make(tmp_path / "store", ask(4), [["a", "b", "b"], ["cc", "cc", "cc"], ["d", "e", "f"], ["g", "g", "hhhh"]])
    grade(kept, "planted", PLANTED)
    return kept


def test_figures_are_those_counted_by_hand(store: Store) -> None:
    summary = summarize(store, "planted", 10)
    assert summary.n_samples.tolist() == [3, 3, 3, 3]
    assert summary.n_distinct.tolist() == [2, 1, 3, 2]
    assert sorted(summary.n_tokens.tolist()) == [1] * 8 + [2] * 3 + [4]
    counts = summary.grades["planted"]
    assert counts.right.tolist() == [2, 0, 1, 0]
    assert counts.wrong.tolist() == [1, 3, 0, 0]
    assert counts.unknown.tolist() == [0, 0, 2, 3]
    assert counts.no_answer.tolist() == [0, 1, 0, 0]
    np.testing.assert_allclose(counts.accuracy, [2 / 3, 0, 1, np.nan])


def test_the_page_contains_the_figures(store: Store) -> None:
    page = describe(store)
    assert "samples    12: 3 for each of 4 questions" in page
    assert "endings    12 (100 %) ended on their own" in page
    assert "tokens     mean 1.5, median 1, 95th percentile 3, 18 in total" in page
    assert "different  2.0 of 3 texts per question on average; 1 question always got the same text" in page
    assert "warning" not in page
    row = next(line for line in page.splitlines() if line.startswith("planted"))
    assert row.split()[1:7] == ["12", "3", "4", "5", "1", "3"]  # answers, right, wrong, unknown, none found, questions
    mean, low, high = interval(np.array([2 / 3, 0, 1])) or (0, 0, 0)
    expected = stats.t.interval(0.95, 2, np.mean([2 / 3, 0, 1]), stats.sem([2 / 3, 0, 1]))
    assert (mean, low, high) == pytest.approx((5 / 9, max(0, expected[0]), min(1, expected[1])))
    assert row.endswith(f"{mean:.3f} [{low:.3f}, {high:.3f}]")
    accuracy = f"{mean:.3f} [{low:.3f}, {high:.3f}] (95 % interval)"
    assert page.startswith(
        f"{store.model_id} has an expected accuracy of {accuracy} over 3 questions, graded by planted.\n"
    )
    group = next(line for line in page.splitlines() if line.startswith("group 1"))
    assert group.split()[2:4] == ["1", "0.000"]
    assert "standard deviation over questions 0.416" in page


def test_columns_are_aligned(store: Store) -> None:
    lines = describe(store).splitlines()
    for first in ("grader ", "group, by"):
        start = next(i for i, line in enumerate(lines) if line.startswith(first))
        table = [line for line in lines[start : start + lines[start:].index("")] if not line.startswith("(")]
        assert len(table) >= 2
        assert len({len(line) for line in table}) == 1


def test_shown_answers_are_spread_over_the_grades_and_do_not_change(store: Store) -> None:
    shown = summarize(store, "planted", 5).shown
    assert [one.right for one in shown] == [True, True, False, False, None]
    assert summarize(Store.open(store.path), "planted", 5).shown == shown
    assert len(summarize(store, "planted", 50).shown) == 12
    assert describe(store, n_answers=5) == describe(store, n_answers=5)
    page = describe(store)
    assert "10 answers, graded by planted" in page
    assert "found nothing; expected x" in page


def test_several_graders_are_shown_side_by_side(store: Store) -> None:
    grade(store, "strict", ["WWW", "WWW", "RUU", "UUU"])
    page = describe(store)
    lines = [line.split()[:3] for line in page.splitlines() if line.startswith(("planted", "strict"))]
    assert lines == [["planted", "12", "3"], ["strict", "12", "1"]]
    assert "answers, graded by planted" in page
    assert "answers, graded by strict" in describe(store, "strict")
    with pytest.raises(InputError, match="`grader` to be one of planted, strict"):
        describe(store, "judge")


def test_identical_answers_cause_a_warning_unless_the_temperature_is_0(tmp_path: Path) -> None:
    texts = [["a", "a"], ["b", "b"], ["c", "c"]]
    assert "warning    answers do not vary although the temperature is above 0" in describe(
        make(tmp_path / "warm", ask(3), texts)
    )
    assert "warning" not in describe(make(tmp_path / "cold", ask(3), texts, temperature=0))


@pytest.mark.parametrize("option", [{"temperature": 0.0}, {"top_k": 1}])
def test_a_deterministic_policy_is_named_and_different_answers_to_a_question_cause_a_warning(
    tmp_path: Path, option: dict[str, float]
) -> None:
    equal, different = [["a", "a"], ["b", "b"]], [["a", "a"], ["b", "c"]]
    name = "temperature 0" if "temperature" in option else "top-k 1"
    page = describe(make(tmp_path / "equal", ask(2), equal, **option))
    assert f"the policy is deterministic ({name}): all answers to a question should be equal" in page
    assert "warning" not in page
    page = describe(make(tmp_path / "different", ask(2), different, **option))
    assert "warning    the policy is deterministic, but the answers to 1 question differ" in page
    assert "the policy is random" in describe(make(tmp_path / "random", ask(2), different))


def test_long_texts_are_shortened_to_their_beginning_and_end(tmp_path: Path) -> None:
    long = "It begins. " + "word " * 190 + "The answer is 7."
    store = make(tmp_path / "store", ask(1), [[long, "", "line\n\nline"]])
    grade(store, "planted", ["RRR"])
    page = describe(store)
    assert max(map(len, page.splitlines())) < 300
    assert "→ It begins. word" in page
    assert " … " in page
    assert "The answer is 7.\n" in page
    assert "→ (empty)\n" in page
    assert "→ line line\n" in page


def test_private_questions_are_not_shown(tmp_path: Path) -> None:
    questions = ask(2, meta={"private": True})
    store = make(tmp_path / "store", questions, [["secret a", "secret b"]] * 2)
    grade(store, "planted", ["RW", "RW"])
    page = describe(store)
    assert "4 answers, graded by planted" in page
    assert "secret" not in page
    assert "Say" not in page
    assert "expected x" not in page


def test_unbalanced_and_unfinished_samples_are_reported(store: Store) -> None:
    for ending in ("parquet", "json"):
        (store.path / f"samples/00001.000-003.{ending}").unlink()
        (store.path / f"grades/planted/00001.000-003.{ending}").unlink()
    log = store.path / "samples/00001.000-003.jsonl"
    log.write_text(f'{json.dumps({"format": "made"})}\n{json.dumps([{}, {}])}\n{json.dumps([{}])}\n[{{"tor')
    page = describe(Store.open(store.path))
    assert "samples    9: 3 for each of 3 questions, 0 for each of 1 question\n" in page
    assert "unfinished 1 sample range with 3 answers" in page


def test_a_store_without_samples_or_grades_names_the_next_command(tmp_path: Path) -> None:
    questions = ask(2)
    store = make(tmp_path / "store", questions, [["a"], ["b"]])
    assert describe(store).endswith("grades     none yet: run `python -m extract grade`")
    for path in (store.path / "samples").iterdir():
        path.unlink()
    assert describe(store).endswith("samples    none yet: run `python -m extract sample`")


def test_the_progress_bar_shows_rates_remaining_time_and_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    with Progress("sample", 10, "answers") as progress:
        progress.note("$0.12 spent, 3 tried again")
        progress(4, 100)
    last = written.getvalue().split("\r")[-1]
    assert "4/10" in last
    assert "answers/s" in last
    assert "tokens/s, $0.12 spent, 3 tried again" in last


def test_identical_questions_do_not_give_certainty() -> None:
    assert interval(np.zeros(20)) == (0.0, 0.0, pytest.approx(1 - 0.025**0.05))
    assert (
        pytest.approx(0.025, rel=0.03) == (1 - 0.168) ** 20
    )  # the probability that 20 questions of this accuracy have no right answer
    assert interval(np.full(3, 0.2)) != (0.2, 0.2, 0.2)


def test_missing_grades_are_pointed_out(store: Store) -> None:
    part = store.samples.ranges()[0]
    rows = [
        {"question_id": id_, "sample": j, "right": True, "answer": "x"}
        for id_ in store.questions.ids(part)
        for j in range(3)
    ]
    store.grades.write("late", part, rows, "says right")
    assert "3 answers without a grade by late: run `python -m extract grade" in describe(store)


def test_the_stores_of_a_grid_are_compared_in_one_table(store: Store) -> None:
    page = compared([store, store], "planted").splitlines()
    assert page[0].split()[:2] == ["temperature", "answers"]
    assert page[1] == page[2]
    assert page[1].split()[:3] == ["0.7", "12", "planted"]


def test_the_prompt_of_the_first_question_is_shown(store: Store) -> None:
    assert "prompt of the first question\n  user       Say" in describe(store)
