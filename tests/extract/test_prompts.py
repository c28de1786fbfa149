"""Tests of prompts: named templates, chat and plain text, thinking, and worked examples, which are never asked."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonargparse import ArgumentParser

from extract.commands import sample
from extract.errors import InputError
from extract.hashing import sha256_json
from extract.models.store_model import encode_questions
from extract.policy import Decoding
from extract.prompts import TEMPLATES, PromptTemplate
from extract.questions import Question, load_questions
from extract.recipe import StoreRecipe
from extract.store.store import Store
from extract.text import contains_answer

DATA = Path(__file__).parents[3] / "shared" / "data"
SHOWN = (("The capital of Peru is", "Lima"), ("The capital of Norway is", "Oslo"))
THINKS = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"


def asked(recipe: StoreRecipe) -> tuple[set[str], set[str]]:
    """Return the questions and the worked examples of a recipe."""
    questions, decoding = recipe.load()
    return {str(one.prompt) for one in questions}, {text for text, _ in decoding.prompt.examples}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_identity_contains_the_text_of_a_named_template(name: str) -> None:
    prompt = PromptTemplate(name)
    assert prompt == PromptTemplate(TEMPLATES[name])
    assert prompt.record() == {"template": TEMPLATES[name], "system": None, "chat": True}
    assert PromptTemplate(**prompt.record()) == prompt


def test_an_unknown_template_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match="exactly once or to be one of instruction.*Did you mean `boxed`"):
        PromptTemplate("box")


def test_examples_are_turns_of_a_chat() -> None:
    prompt = PromptTemplate("Complete: {question}", system="Be brief.", examples=SHOWN[:1])
    assert prompt.messages("The capital of Chad is") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Complete: The capital of Peru is"},
        {"role": "assistant", "content": "Lima"},
        {"role": "user", "content": "Complete: The capital of Chad is"},
    ]


def test_short_plain_examples_have_one_line_each_and_longer_ones_are_separated() -> None:
    line = PromptTemplate("cloze", chat=False, examples=SHOWN)
    assert line.text("The capital of Chad is") == (
        "The capital of Peru is Lima\nThe capital of Norway is Oslo\nThe capital of Chad is"
    )
    block = PromptTemplate("qa", chat=False, examples=(("1 + 1?", "One more is\n#### 2"), ("2 + 2?", "#### 4")))
    assert block.text("3 + 3?") == (
        "Question: 1 + 1?\nAnswer: One more is\n#### 2\n\nQuestion: 2 + 2?\nAnswer: #### 4\n\nQuestion: 3 + 3?\nAnswer:"
    )
    spaced = PromptTemplate("{question}\n", chat=False, examples=(("1 + 1?", "2"),))
    assert spaced.text("2 + 2?") == "1 + 1?\n2\n\n2 + 2?\n"


def test_a_prompt_is_encoded_as_it_is_written(tokenizer: Any) -> None:
    plain = PromptTemplate("cloze", chat=False, examples=SHOWN)
    assert tokenizer.decode(plain.encode(tokenizer, "A")) == plain.text("A")
    chat = PromptTemplate("Q: {question}", examples=SHOWN[:1])
    assert tokenizer.decode(chat.encode(tokenizer, "A")) == (
        "<user>Q: The capital of Peru is</s><assistant>Lima</s><user>Q: A</s><assistant>"
    )


def test_messages_are_unchanged_in_a_chat_and_refused_in_a_plain_text(tokenizer: Any) -> None:
    messages = ({"role": "user", "content": "Why?"},)
    assert PromptTemplate("Q: {question}", system="Be brief.").messages(messages) == list(messages)
    with pytest.raises(InputError, match="but got chat messages. Set `prompt.chat` to true"):
        PromptTemplate(chat=False).text(messages)


def test_thinking_is_passed_to_chat_templates_that_support_it(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="enable_thinking option.*Remove `prompt.thinking`"):
        PromptTemplate(thinking=False).encode(tokenizer, "Why?")
    monkeypatch.setattr(tokenizer, "chat_template", THINKS)
    assert tokenizer.decode(PromptTemplate(thinking=False).encode(tokenizer, "Why?")) == "<user>Why?<think></think>"
    for thinking in (True, None):
        assert tokenizer.decode(PromptTemplate(thinking=thinking).encode(tokenizer, "Why?")) == "<user>Why?"
    with pytest.raises(InputError, match="`prompt.thinking` to be unset if `prompt.chat` is false"):
        PromptTemplate(chat=False, thinking=True)


def test_unused_options_are_not_in_the_identity() -> None:
    assert PromptTemplate().record() == {"template": "{question}", "system": None, "chat": True}
    several = (PromptTemplate(), PromptTemplate(thinking=True), PromptTemplate(examples=SHOWN), PromptTemplate("qa"))
    assert len({sha256_json(one.record()) for one in several}) == 4
    for one in several:
        assert PromptTemplate(**one.record()) == one


def test_shots_must_be_chosen_before_a_prompt_is_used() -> None:
    for use in (lambda one: one.record(), lambda one: one.messages("Why?"), lambda one: one.text("Why?")):
        with pytest.raises(InputError, match="2 worked examples.*not been chosen yet.*StoreRecipe.load"):
            use(PromptTemplate(shots=2))
    for shots in (-1, 3):
        with pytest.raises(InputError, match="`prompt.shots` to be at least 0"):
            PromptTemplate(shots=shots, examples=SHOWN)


def mine(path: Path, n: int, **fields: Any) -> Path:
    rows = [{"id": str(i), "text": f"Is {i} even?", "references": ["yes", "no"][i % 2], **fields} for i in range(n)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_examples_of_a_set_without_a_train_split_are_never_asked(tmp_path: Path) -> None:
    path = str(mine(tmp_path / "mine.jsonl", 40))
    policy = Decoding(prompt=PromptTemplate(shots=5))
    for seed in range(5):
        questions, examples = asked(StoreRecipe(questions=path, question_seed=seed, policy=policy))
        assert (len(questions), len(examples)) == (35, 5)
        assert not questions & examples
    few, _ = asked(StoreRecipe(questions=path, n_questions=10, policy=policy))
    more, examples = asked(StoreRecipe(questions=path, n_questions=20, policy=policy))
    assert few < more
    assert not more & examples
    with pytest.raises(InputError, match="between 1 and 35, the size"):
        StoreRecipe(questions=path, n_questions=36, policy=policy).load()
    with pytest.raises(InputError, match="for 40 worked examples, but found only 40"):
        StoreRecipe(questions=path, policy=Decoding(prompt=PromptTemplate(shots=40))).load()


def test_copies_of_examples_are_never_asked(tmp_path: Path) -> None:
    rows = [{"id": f"{i}{copy}", "text": text, "references": "a"} for i in range(9) for copy, text in (("a", f"Is {i}?"), ("b", f"is  {i}?"))]  # fmt: skip
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    questions, decoding = StoreRecipe(questions=str(path), policy=Decoding(prompt=PromptTemplate(shots=3))).load()
    assert len({text.casefold().replace("  ", " ") for text, _ in decoding.prompt.examples}) == 3
    assert len(questions) == 12
    given = PromptTemplate(examples=(("IS 4?", "a"),))
    questions, _ = StoreRecipe(questions=str(path), policy=Decoding(prompt=given)).load()
    assert {one.id for one in questions} == {row["id"] for row in rows} - {"4a", "4b"}


def gsm8k_folder(folder: Path) -> Path:
    """Make a folder like GSM8K on the Hub: a test split, and a training split that repeats one of its questions."""
    for split, numbers in (("train", (0, *range(50, 58))), ("test", range(5))):
        rows = [
            {"question": f"What is {i} and 1?", "answer": f"It is <<{i}+1={i + 1}>>{i + 1}.\n#### {i + 1}"}
            for i in numbers
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    files = [{"split": split, "path": f"{split}.jsonl"} for split in ("train", "test")]
    (folder / "README.md").write_text(
        f"---\n{yaml.safe_dump({'configs': [{'config_name': 'main', 'data_files': files}]})}---\n"
    )
    return folder


@pytest.mark.slow
def test_worked_examples_come_from_the_train_split_and_are_never_asked(tmp_path: Path) -> None:
    recipe = StoreRecipe(
        questions=f"gsm8k={gsm8k_folder(tmp_path)}", policy=Decoding(prompt=PromptTemplate("qa", shots=8))
    )
    questions, decoding = recipe.load()
    assert len(questions) == 5, "nothing is held out of the test split"
    assert {text for text, _ in decoding.prompt.examples} == {f"What is {i} and 1?" for i in range(50, 58)}
    assert ("What is 50 and 1?", "It is 51.\n#### 51") in decoding.prompt.examples
    again = StoreRecipe(questions=recipe.questions, question_seed=1, policy=recipe.policy).load()[1]
    assert again.prompt.examples != decoding.prompt.examples
    with pytest.raises(InputError, match="'gsm8k' to have enough questions for 9 worked examples.*found only 8"):
        StoreRecipe(questions=recipe.questions, policy=Decoding(prompt=PromptTemplate(shots=9))).load()
    own, examples = asked(
        StoreRecipe(questions=recipe.questions, split="train", policy=Decoding(prompt=PromptTemplate(shots=2)))
    )
    assert (len(own), len(own & examples)) == (7, 0)


def test_the_answer_of_a_choice_example_is_the_letter(tmp_path: Path) -> None:
    path = mine(tmp_path / "mine.jsonl", 6, kind="choice", choices=["yes", "no"])
    questions, decoding = StoreRecipe(
        questions=str(path), policy=Decoding(prompt=PromptTemplate("qa", chat=False, shots=2))
    ).load()
    (first, answer), _ = decoding.prompt.examples
    assert first.endswith(" even?\nA. yes\nB. no")
    assert answer in ("A", "B")
    text = decoding.prompt.text(questions[0].prompt)
    assert text.startswith(f"Question: {first}\nAnswer: {answer}\n\nQuestion: Is ")
    assert text.endswith("A. yes\nB. no\nAnswer:")


def test_options_are_below_the_question_in_every_prompt(tokenizer: Any) -> None:
    question = Question("1", "mine", "Which is odd?", references=("B", "3"), kind="choice", choices=("2", "3"))
    assert question.prompt == "Which is odd?\nA. 2\nB. 3"
    (ids,) = encode_questions(tokenizer, PromptTemplate(chat=False), [question])
    assert tokenizer.decode(ids) == question.prompt


def test_chats_and_private_questions_have_no_shots(tmp_path: Path) -> None:
    chat = tmp_path / "chat.jsonl"
    chat.write_text(json.dumps({"id": "a", "messages": [{"role": "user", "content": "Why?"}], "references": ["b"]}))
    policy = Decoding(prompt=PromptTemplate(shots=1))
    with pytest.raises(InputError, match="Question 'a' is a chat"):
        StoreRecipe(questions=str(chat), policy=policy).load()
    private = mine(tmp_path / "private.jsonl", 4, meta={"private": True})
    with pytest.raises(InputError, match="no `prompt.shots` with 'private'.*is private"):
        StoreRecipe(questions=str(private), policy=policy).load()


def test_a_store_keeps_its_examples_and_can_be_continued(tmp_path: Path, tiny_folder: Path) -> None:
    path, prompt = str(mine(tmp_path / "mine.jsonl", 12)), PromptTemplate("cloze", chat=False, shots=3)
    policy = Decoding(max_new_tokens=4, prompt=prompt)
    recipe = StoreRecipe(questions=path, n_questions=4, model=str(tiny_folder), k=2, policy=policy)
    store = sample(str(tmp_path / "store"), recipe)
    held = PromptTemplate(**Store.open(store.path).identity["policy"]["decoding"]["prompt"])
    assert held == recipe.load()[1].prompt
    assert not {text for text, _ in held.examples} & {str(one.prompt) for one in store.questions}
    recipe.check_store(store)
    assert len(sample(str(tmp_path / "store"), StoreRecipe(**{**vars(recipe), "k": 3})).samples.read()) == 12
    others = Decoding(max_new_tokens=4, prompt=PromptTemplate("cloze", chat=False, shots=2))
    with pytest.raises(InputError, match="prompt.examples: found .*expected") as info:
        StoreRecipe(**{**vars(recipe), "policy": others}).check_store(store)
    assert len(str(info.value)) < 1500


@pytest.mark.parametrize(
    ("prompt", "stop", "said"),
    [
        (PromptTemplate("cloze", chat=False, shots=2), (), r'\["\\n"\]'),
        (PromptTemplate("qa", chat=False, shots=2), (), r'\["\\n\\nQuestion:"\]'),
        (PromptTemplate("cloze", chat=False, shots=2), ("\n",), None),
        (PromptTemplate("cloze", shots=2), (), None),
        (PromptTemplate("cloze", chat=False), (), None),
    ],
)
def test_sampling_warns_if_nothing_ends_the_answers(
    prompt: PromptTemplate, stop: tuple[str, ...], said: str | None, tmp_path: Path, tiny_folder: Path, capsys: Any
) -> None:
    policy = Decoding(max_new_tokens=2, stop=stop, prompt=prompt)
    path = str(mine(tmp_path / "mine.jsonl", 4))
    sample(str(tmp_path / "store"), StoreRecipe(questions=path, model=str(tiny_folder), k=2, policy=policy))
    lines = [line for line in capsys.readouterr().err.splitlines() if "no stop" in line]
    assert len(lines) == (said is not None)
    if said is not None:
        assert re.search(f"--policy.stop '{said}'", lines[0])


@pytest.mark.slow
@pytest.mark.skipif(not (DATA / "qa_wikidata.json").is_file(), reason="shared/data is not beside the project")
def test_cloze_facts_are_few_shot_prompts_from_the_real_file() -> None:
    policy = Decoding(prompt=PromptTemplate("cloze", chat=False, shots=8))
    recipe = StoreRecipe(
        questions=f"qa_wikidata={DATA / 'qa_wikidata.json'}", n_questions=400, stratify_by="group", policy=policy
    )
    questions, decoding = recipe.load()
    assert len(questions) == 400
    assert not {text for text, _ in decoding.prompt.examples} & {one.text for one in questions}
    assert len(decoding.prompt.text(questions[0].text).split("\n")) == 9


def configured(file: str, options: Callable[[Any], Any] = lambda config: config["data"]["recipe"]) -> StoreRecipe:
    """Return the recipe of a config, whose options override those of configs/default.yaml."""
    parser, root = ArgumentParser(exit_on_error=False), Path(__file__).parents[2] / "configs"
    parser.add_class_arguments(StoreRecipe, "recipe")
    default = yaml.safe_load((root / "default.yaml").read_text())["data"]["recipe"]
    given = options(yaml.safe_load((root / file).read_text()))
    base = parser.get_defaults() if file.startswith("sets/") else parser.parse_object({"recipe": default})
    recipe: StoreRecipe = parser.instantiate(parser.parse_object({"recipe": given}, base)).recipe
    return recipe


def test_the_preset_of_the_facts_makes_the_store_of_the_default_config() -> None:
    assert configured("sets/facts.yaml", lambda config: config) == configured("default.yaml")


@pytest.mark.slow
def test_the_worked_examples_of_the_default_config_reveal_no_answer() -> None:
    questions, decoding = configured("default.yaml").load()
    assert len(decoding.prompt.examples) == 6
    assert len(questions) == len(load_questions("facts")), "no question is a worked example"
    for _, answer in decoding.prompt.examples:
        assert not [question.id for question in questions if contains_answer(answer, question.references)]


def test_the_config_of_the_brief_prompt_has_no_worked_examples() -> None:
    brief, default = configured("brief.yaml"), configured("default.yaml")
    assert brief.policy.prompt == PromptTemplate("{question} Answer briefly.")
    assert brief == replace(default, policy=replace(default.policy, prompt=brief.policy.prompt, stop=()))
