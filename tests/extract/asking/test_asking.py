"""Tests of asked confidences: parsed numbers, P(True), and the command that saves them in a store."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from extract import Decoding, InputError, Store, StoreRecipe, grade, load_model, sample
from extract.__main__ import COMMANDS
from extract.asking import p_true, verbalized
from extract.asking.base import asking_prompt
from extract.asking.p_true import PTrue, PTrueAnswer, YesNoReader, surface_forms, yes_against_no
from extract.asking.verbalized import TEMPLATE, Verbalized, parse_confidence
from extract.commands import ask
from extract.running.cli import run
from extract.running.worker import Worker
from extract.sampling.local.token_sampler import Sample
from tests.helpers.tiny import byte_tokenizer, tiny_model, write_questions

FORMS = ["Yes", " yes", "YES", "No", " no"]


@pytest.fixture(scope="module")
def yes_no_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a tiny model whose tokenizer has single tokens for Yes and No."""
    folder = tmp_path_factory.mktemp("models") / "yesno"
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(FORMS)
    tiny_model(vocab_size=len(tokenizer), max_position_embeddings=1024).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory, yes_no_folder: Path) -> Path:
    """Make a store of 20 questions in two blocks, with 3 answers each."""
    folder = tmp_path_factory.mktemp("asked")
    questions = write_questions(folder / "questions.jsonl", 20)
    recipe = StoreRecipe(
        questions=str(questions), model=str(yes_no_folder), k=3, policy=Decoding(max_new_tokens=6), block_size=16
    )
    sample(str(folder / "store"), recipe)
    grade(str(folder / "store"))
    return folder / "store"


@pytest.fixture
def store(sampled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sampled, tmp_path / "store"))


@pytest.fixture
def asking(store: Path, yes_no_folder: Path) -> Callable[..., Store]:
    """Return a function that asks the store's model for short replies."""

    def ask_(*baselines: str, **options: Any) -> Store:
        return ask(str(store), baselines, **{"model": str(yes_no_folder), "max_new_tokens": 5, **options})

    return ask_


def asked_files(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in (store / "asked").rglob("*") if path.is_file()}


@torch.inference_mode()
def last_logits(model: Any, prompt: list[int]) -> torch.Tensor:
    logits: torch.Tensor = model(torch.tensor([prompt])).logits[0, -1]
    return logits


# Verbalized confidence


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r"I am sure. \boxed{0.95}", 0.95),
        (r"\boxed{ .5 }", 0.5),
        (r"$\boxed{P = 0.3}$", 0.3),
        (r"First \boxed{0.2}, no, \boxed{0.7}.", 0.7),
        (r"\boxed{0.4} out of \boxed{10}", 0.4),  # the last within [0, 1]
        (r"\boxed{85%}", 0.85),
        (r"\boxed{85\%}", 0.85),
        (r"\boxed{1}", 1.0),
        (r"<think>\boxed{0.1}</think> \boxed{0.6}", 0.6),
        (r"<think>\boxed{0.1}</think> I don't know.", None),
        ("0.39", 0.39),
        ("Not easy.\n\nProbability: 15%.", 0.15),
        ("p = 1.0", 1.0),
        ("1", None),  # could just as well be an answer to the question
        ("It is 0.9 or so.", None),
        ("0.9\nbecause I know it", None),
        (r"\boxed{P}", None),
        (r"\boxed{1/2}", None),
        (r"\boxed{0.2 to 0.3}", None),
        (r"\boxed{1.5}", None),
        (r"\boxed{150%}", None),
        (r"\boxed{-0.5}", None),
        ("-0.5", None),
        ("", None),
    ],
)
def test_probabilities_are_parsed_from_replies(text: str, value: float | None) -> None:
    assert parse_confidence(text) == value


def test_a_truncated_bare_number_is_not_parsed_but_a_closed_box_is() -> None:
    assert parse_confidence("0.1", ended=False) is None
    assert parse_confidence(r"\boxed{0.1} and", ended=False) == 0.1


def test_the_prompt_shows_ten_steps_and_the_form_of_the_reply() -> None:
    assert "0.0 to 0.1: almost no chance" in TEMPLATE
    assert "0.9 to 1.0: almost certain" in TEMPLATE
    assert r"\boxed{" in TEMPLATE


@pytest.mark.slow
def test_a_question_is_asked_until_a_reply_can_be_parsed_and_every_attempt_is_counted(
    asking: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[range, list[str]]] = []

    def replies(self: Verbalized, ids: list[str], prompts: list[list[int]], attempts: range, progress: Any) -> Any:
        asked.append((attempts, list(ids)))
        said = {"q0": [r"\boxed{0.5}"] * 3, "q1": ["what?", "90%", "0.2"]}
        return [
            [
                Sample(id_, j, [7] * (j + 1), said.get(id_, ["no idea"] * 3)[j], [0.0] * (j + 1), "stop", len(prompt))
                for j in attempts
            ]
            for id_, prompt in zip(ids, prompts, strict=True)
        ]

    monkeypatch.setattr(Verbalized, "replies", replies)
    rows = {row["question_id"]: row for row in asking("verbalized").asked.read("verbalized").to_pylist()}
    one, two, none = (rows[id_] for id_ in ("q0", "q1", "q5"))
    assert [(row["value"], row["attempts"]) for row in (one, two, none)] == [(0.5, 1), (0.9, 2), (None, 3)]
    assert [row["completion_tokens"] for row in (one, two, none)] == [1, 3, 6]
    assert none["prompt_tokens"] == 3 * one["prompt_tokens"]  # their texts have the same length
    assert none["text"] == "no idea"
    assert [(attempts, len(ids)) for attempts, ids in asked if "q5" in ids] == [(range(1), 16), (range(1, 3), 15)]


@pytest.mark.slow
def test_unparsed_replies_are_null_and_counted(
    asking: Callable[..., Store], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = asking("verbalized").asked.read("verbalized").to_pylist()
    assert {row["value"] for row in rows} == {None}
    assert {row["attempts"] for row in rows} == {verbalized.ATTEMPTS}
    assert all(3 <= row["completion_tokens"] <= 15 for row in rows)
    assert "computed 20 values of verbalized, 20 of them unusable" in capsys.readouterr().err


@pytest.mark.slow
def test_without_a_temperature_there_is_one_attempt(tmp_path: Path, yes_no_folder: Path) -> None:
    questions = write_questions(tmp_path / "questions.jsonl", 2)
    policy = Decoding(temperature=0, max_new_tokens=2)
    sample(
        str(tmp_path / "greedy"), StoreRecipe(questions=str(questions), model=str(yes_no_folder), k=2, policy=policy)
    )
    store = ask(str(tmp_path / "greedy"), ["verbalized"], model=str(yes_no_folder), max_new_tokens=3)
    assert store.asked.read("verbalized")["attempts"].to_pylist() == [1, 1]


# P(True)


def test_p_true_compares_all_forms_of_yes_with_all_forms_of_no() -> None:
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(0)) * 5
    value, mass = yes_against_no(logits, ([1, 4, 5], [2, 8]))
    for row in range(4):
        p = [math.exp(float(x)) for x in logits[row].double()]
        yes, no = p[1] + p[4] + p[5], p[2] + p[8]
        assert float(value[row]) == pytest.approx(yes / (yes + no), rel=1e-5)
        assert float(mass[row]) == pytest.approx((yes + no) / sum(p), rel=1e-5)


def test_forms_of_yes_and_no_are_found_by_decoding_the_vocabulary(yes_no_folder: Path) -> None:
    _, tokenizer = load_model(str(yes_no_folder))
    forms = surface_forms(tokenizer, 10_000)
    assert [tokenizer.decode([i]) for form in forms for i in form] == FORMS
    with pytest.raises(InputError, match="single tokens for Yes and No"):
        surface_forms(tokenizer, 258)  # logits for bytes only


def test_batches_and_a_shared_prefix_do_not_change_values(yes_no_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = load_model(str(yes_no_folder))
    reader = YesNoReader(model, tokenizer)
    prompts = [tokenizer("What all of the prompts begin with: " + "word " * i)["input_ids"] for i in (3, 0, 7, 1)]
    monkeypatch.setattr(p_true, "LEAST_MASS", 0.0)
    together = reader.read(prompts, lambda items, tokens: None)
    for prompt, (value, mass) in zip(prompts, together, strict=True):
        expected = yes_against_no(last_logits(model, prompt), reader._forms)
        assert (value, mass) == pytest.approx(tuple(map(float, expected)), rel=1e-4)


@pytest.mark.slow
def test_p_true_asks_about_the_question_in_the_chat_template(
    asking: Callable[..., Store], yes_no_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(p_true, "LEAST_MASS", 0.0)
    store = asking("p_true")
    model, tokenizer = load_model(str(yes_no_folder))
    row, question = store.asked.read("p_true").to_pylist()[18], store.questions[18]
    prompt = tokenizer(f"<user>{PTrue.template.replace('{question}', question.text)}</s><assistant>")["input_ids"]
    forms = surface_forms(tokenizer, 10_000)
    value, mass = yes_against_no(last_logits(model, prompt), forms)
    assert row == {
        "question_id": question.id,
        "value": pytest.approx(float(value), rel=1e-4),
        "text": "",
        "mass": pytest.approx(float(mass), rel=1e-4),
        "prompt_tokens": len(prompt),
        "completion_tokens": 1,
        "attempts": 1,
    }
    values = store.asked.read("p_true")["value"].to_pylist()
    assert len(set(values)) > 10


def test_improbable_yes_and_no_give_no_value(
    asking: Callable[..., Store], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(p_true, "LEAST_MASS", 2.0)
    rows = asking("p_true").asked.read("p_true").to_pylist()
    assert {row["value"] for row in rows} == {None}
    assert all(0 < row["mass"] < 1 for row in rows)
    assert "computed 20 values of p_true, 20 of them unusable" in capsys.readouterr().err


def test_equal_answers_are_asked_about_once_and_have_the_same_cost(
    asking: Callable[..., Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(p_true, "LEAST_MASS", 0.0)
    read_plainly, answers, n_read = YesNoReader.read, PTrueAnswer.answers, []

    def read(self: YesNoReader, prompts: list[list[int]], progress: Any) -> Any:
        n_read.append(len(prompts))
        return read_plainly(self, prompts, progress)

    def first_and_third_alike(self: PTrueAnswer, place: Any) -> list[dict[str, Any]]:
        return [row | {"text": ["same", "other", "same"][row["sample"]]} for row in answers(self, place)]

    monkeypatch.setattr(YesNoReader, "read", read)
    monkeypatch.setattr(PTrueAnswer, "answers", first_and_third_alike)
    rows = asking("p_true_answer").asked.read("p_true_answer", "sample").to_pylist()
    by_place = {(row["question_id"], row["sample"]): row for row in rows}
    assert n_read == [32, 8]  # two different answers of three
    for i in range(20):
        first, other, same = (by_place[f"q{i}", j] for j in range(3))
        assert (first["value"], first["prompt_tokens"]) == (same["value"], same["prompt_tokens"])
        assert first["value"] != other["value"]
        assert first["completion_tokens"] == 1


# The command


def test_the_chat_template_is_used_if_it_exists_even_for_a_plain_policy() -> None:
    model = {"chat_template": "5" * 64}
    plain = {"model": model, "decoding": {"prompt": {"template": "{question}", "system": None, "chat": False}}}
    assert asking_prompt(plain, "Sure? {question}").chat
    spoken = {"model": model, "decoding": {"prompt": {"template": "{question}", "system": "Be brief.", "chat": True}}}
    assert asking_prompt(spoken, "Sure? {question}").system == "Be brief."
    none = {**plain, "model": {"chat_template": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}}
    assert not asking_prompt(none, "Sure? {question}").chat


@pytest.mark.slow
def test_complete_results_are_kept_without_loading_a_model(
    asking: Callable[..., Store], store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asking("verbalized", "p_true", "p_true_answer")
    before = asked_files(store)
    monkeypatch.setattr("extract.models.loading.load_model", lambda *args: 1 / 0)
    asking("verbalized", "p_true", "p_true_answer")
    assert asked_files(store) == before
    assert "p_true_answer already exists for every sample" in capsys.readouterr().err


@pytest.mark.slow
def test_interrupted_and_damaged_runs_continue_to_the_same_bytes(
    asking: Callable[..., Store], store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asking("verbalized", "p_true", "p_true_answer")
    before = asked_files(store)
    (store / "asked/verbalized/00001.json").unlink()
    (store / "asked/p_true/00000.parquet").write_bytes(b"half")
    (store / "asked/p_true_answer/00001.000-003.parquet").unlink()
    asking("verbalized", "p_true", "p_true_answer")
    assert asked_files(store) == before
    assert "asked/p_true/00000.parquet: it has 4 bytes instead of" in capsys.readouterr().err


@pytest.mark.slow
def test_two_workers_write_the_same_bytes_as_one(
    asking: Callable[..., Store], store: Path, sampled: Path, tmp_path: Path, yes_no_folder: Path
) -> None:
    asking("verbalized", "p_true_answer")
    shutil.copytree(sampled, tmp_path / "other")
    for rank in (1, 0):
        ask(
            str(tmp_path / "other"),
            ["verbalized", "p_true_answer"],
            str(yes_no_folder),
            max_new_tokens=5,
            worker=Worker(rank, 2),
        )
    assert asked_files(tmp_path / "other") == asked_files(store)


@pytest.mark.slow
def test_asking_again_with_other_settings_is_refused_with_both_values(asking: Callable[..., Store]) -> None:
    asking("verbalized")
    with pytest.raises(InputError, match="decoding.max_new_tokens: found 5, expected 7"):
        asking("verbalized", max_new_tokens=7)


def test_settings_are_stored_in_the_table(asking: Callable[..., Store]) -> None:
    settings = asking("p_true").asked.settings("p_true", "question")
    assert settings is not None
    assert settings["prompt"]["template"] == PTrue.template
    assert settings["model"]["id"] == "yesno"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"baselines": ["verbalised"]}, "got 'verbalised'. Did you mean `verbalized`?"),
        ({"baselines": ["entailment"]}, "Expected `nli_model` to be set for the 'entailment' baseline, but it is not"),
        ({"baselines": ["p_true"], "model": None}, "Expected `model` to be the path of the store's model"),
        ({"baselines": ["p_true"], "device": "abacus"}, "Expected `device` to be auto, cpu"),
        ({"max_new_tokens": 0}, "Expected `max_new_tokens` to be at least 1, but got 0"),
    ],
)
def test_impossible_requests_give_a_one_line_error(
    asking: Callable[..., Store], store: Path, yes_no_folder: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError) as error:
        ask(str(store), **{"baselines": ["verbalized"], "model": str(yes_no_folder), **options})
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (store / "asked").exists()


def test_a_model_other_than_the_stores_is_refused(store: Path, tmp_path: Path, yes_no_folder: Path) -> None:
    other = tmp_path / "yesno"
    shutil.copytree(yes_no_folder, other)
    tiny_model(seed=1, vocab_size=263, max_position_embeddings=1024).save_pretrained(other)
    with pytest.raises(InputError, match="differs in fingerprint"):
        ask(str(store), ["p_true"], model=str(other))


def test_a_store_without_answers_is_refused(store: Path, yes_no_folder: Path) -> None:
    shutil.rmtree(store / "samples")
    with pytest.raises(InputError, match="to contain answers, but it has none"):
        ask(str(store), ["p_true_answer"], model=str(yes_no_folder))


@pytest.mark.slow
def test_the_command_line_asks_questions(store: Path, yes_no_folder: Path) -> None:
    arguments = ["ask", "--store", str(store), "--baselines", "[p_true]", "--model", str(yes_no_folder)]
    assert run(COMMANDS, "python -m extract", arguments) == 0
    assert Store.open(store).asked.names() == ["p_true"]


@pytest.mark.real_model
def test_p_true_of_the_embedded_model_differs_between_questions() -> None:
    model, tokenizer = load_model()
    reader = YesNoReader(model, tokenizer)
    forms = {tokenizer.decode([i]) for form in reader._forms for i in form}
    assert {"Yes", " Yes", "No", " No", "yes", "no"} <= forms
    prompt = asking_prompt({"model": {"chat_template": "x"}, "decoding": {"prompt": {"system": None}}}, PTrue.template)
    texts = ["What is the capital of France?", "What is 3 plus 4?", "What is the chemical symbol of dubnium?"]
    read = reader.read([prompt.encode(tokenizer, text) for text in texts], lambda items, tokens: None)
    assert all(mass > 0.1 for _, mass in read)
    assert len({round(value, 3) for value, _ in read if value is not None}) == 3
