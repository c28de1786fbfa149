"""Tests of reading answers in a teacher-forced pass, compared with transformers' outputs and checked in a store."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from extract import Decoding, InputError, Store, StoreRecipe, read, sample
from extract.__main__ import COMMANDS
from extract.commands import make_store
from extract.running.cli import run
from extract.running.worker import Worker
from extract.signals import registry
from extract.signals.base import Answer
from extract.signals.hidden import POSITIONS, position_ranges
from extract.signals.reader import by_length
from extract.signals.reading import content_tokens, read_answers
from extract.signals.registry import load_signal
from extract.store.ragged import Ragged
from extract.store.shards import Block, SampleRange
from extract.store.verify import find_problems
from tests.helpers.tiny import byte_tokenizer, tiny_model, write_questions

ANSWERS = [
    Answer((5, 6, 7), (40, 41, 42, 43)),
    Answer((8, 9, 10, 11, 12), (50,)),
    Answer((5, 6, 7), ()),
    Answer((5, 6, 7), (40, 41, 42, 43)),
    Answer((20,), (60, 61)),
]
SIGNALS = ("hidden", "tokens")
FAMILIES = ["llama", "gpt2", "qwen2", "qwen3", "mistral", "phi3", "gemma2", "gemma3"]


def read_all(model: Any, answers: list[Answer], batch_tokens: int = 2048) -> dict[str, torch.Tensor]:
    signals = read_answers(model, answers, SIGNALS, range(4), batch_tokens)
    return {
        f"{name}/{key}": tensor.padded() if isinstance(tensor, Ragged) else tensor
        for name, tensors in signals.items()
        for key, tensor in tensors.items()
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_states_equal_output_hidden_states_at_the_positions_of_the_answer(family: str) -> None:
    model = tiny_model(family)
    states = read_all(model, ANSWERS)
    for row, answer in enumerate(ANSWERS):
        if not answer.content:
            continue
        expected = model(torch.tensor([answer.prompt + answer.content]), output_hidden_states=True).hidden_states
        for layer in range(4):
            own = expected[layer][0, len(answer.prompt) :].double()
            for position, wanted in {"first": own[0], "last": own[-1], "mean": own.mean(0)}.items():
                found = states[f"hidden/{layer}/{position}_answer"][row].double()
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_values_do_not_depend_on_the_batch_or_the_order(model: Any) -> None:
    together = read_all(model, ANSWERS)
    small = read_all(model, ANSWERS, batch_tokens=1)
    backwards = {key: tensor.flip(0) for key, tensor in read_all(model, ANSWERS[::-1]).items()}
    for other in (small, backwards):
        assert other.keys() == together.keys()
        for key, tensor in together.items():
            torch.testing.assert_close(other[key], tensor, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_answers_without_content_are_nan_and_equal_answers_are_read_once(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_read: list[int] = []
    forward = model.model.forward

    def counting(input_ids: torch.Tensor, **options: Any) -> Any:
        n_read.append(len(input_ids))
        return forward(input_ids=input_ids, **options)

    monkeypatch.setattr(model.model, "forward", counting)
    done: list[tuple[int, int]] = []
    signals = read_answers(model, ANSWERS, SIGNALS, range(4), progress=lambda *counts: done.append(counts))
    assert n_read == [1, 3]  # one token to determine what the decoder returns, and three distinct answers
    assert "_call_impl" not in model.model.__dict__  # the original decoder is restored
    assert [sum(counts) for counts in zip(*done, strict=True)] == [5, 7 + 6 + 3]
    for tensor in signals["hidden"].values():
        assert isinstance(tensor, torch.Tensor)
        assert tensor[2].isnan().all()
        assert tensor[[0, 1, 3, 4]].isfinite().all()
        assert torch.equal(tensor[0], tensor[3])
    for tensor in signals["tokens"].values():
        assert isinstance(tensor, Ragged)
        assert tensor.lengths.tolist() == [4, 1, 0, 4, 2]
        assert tensor.values.isfinite().all()
        assert torch.equal(tensor.rows()[0], tensor.rows()[3])


def test_a_shard_of_empty_answers_has_every_key(model: Any) -> None:
    keys = read_all(model, ANSWERS).keys()
    empty = read_all(model, [Answer((5, 6), ()), Answer((7,), ())])
    assert empty.keys() == keys
    assert all(len(tensor) == 2 and tensor.isnan().all() for tensor in empty.values())


def test_a_changed_token_affects_only_its_own_and_later_positions(model: Any) -> None:
    base = read_all(model, [Answer((5, 6, 7), (40, 41, 42))])
    other_last = read_all(model, [Answer((5, 6, 7), (40, 41, 99))])
    other_first = read_all(model, [Answer((5, 6, 7), (99, 41, 42))])
    for layer in range(1, 4):
        assert torch.equal(base[f"hidden/{layer}/first_answer"], other_last[f"hidden/{layer}/first_answer"])
        for position in ("last_answer", "mean_answer"):
            assert not torch.allclose(base[f"hidden/{layer}/{position}"], other_last[f"hidden/{layer}/{position}"])
        for position in POSITIONS["sample"]:
            assert not torch.allclose(base[f"hidden/{layer}/{position}"], other_first[f"hidden/{layer}/{position}"])


def test_only_the_chosen_layers_are_kept_and_hooks_are_removed(model: Any) -> None:
    def hooks() -> int:
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())

    before, every = hooks(), read_all(model, ANSWERS)
    chosen = read_answers(model, ANSWERS, ["hidden"], [1, 3])["hidden"]
    assert set(chosen) == {f"{layer}/{position}" for layer in (1, 3) for position in POSITIONS["sample"]}
    torch.testing.assert_close(chosen["3/mean_answer"], every["hidden/3/mean_answer"], equal_nan=True)
    assert hooks() == before
    with pytest.raises(InputError, match="between 0"):
        read_answers(model, ANSWERS, SIGNALS, [4])


def test_states_of_half_precision_models_are_summed_in_float32() -> None:
    model = tiny_model().to(torch.bfloat16)
    answer = Answer((5, 6), tuple(range(3, 203)))
    mean = read_all(model, [answer])["hidden/2/mean_answer"][0]
    states = model(torch.tensor([answer.prompt + answer.content]), output_hidden_states=True).hidden_states[2][0, 2:]
    assert mean.dtype == torch.bfloat16
    assert torch.equal(mean, states.double().mean(0).to(torch.bfloat16))


def test_answer_positions_are_checked() -> None:
    assert position_ranges("sample", [3], [4]) == [[range(3, 4)], [range(6, 7)], [range(3, 7)]]
    for n_prompt, n_answer in ((3, 0), (0, 2), (3, -1)):
        with pytest.raises(InputError, match="to be within the sequence of [0-9]+ prompt tokens and"):
            position_ranges("sample", [n_prompt], [n_answer])
    with pytest.raises(InputError, match="one of hidden, tokens, .* for `scope` question, but got 'rollout'"):
        load_signal("rollout", "question")


def test_an_answer_too_long_for_the_model_is_refused(model: Any) -> None:
    with pytest.raises(InputError, match="at most 512 tokens"):
        read_all(model, [Answer((5,) * 500, (6,) * 13)])


def test_no_answers_and_answers_without_a_prompt_are_refused(model: Any) -> None:
    for answers in ([], [Answer((), (5, 6))]):
        with pytest.raises(InputError, match="at least one answer, each with a non-empty prompt"):
            read_answers(model, answers, SIGNALS)


def test_content_excludes_only_the_end_token_and_the_tokens_of_the_stop_string(tokenizer: Any) -> None:
    def content(text: str, cut: str | None = None, end: bool = False) -> str:
        ids = tokenizer(text)["input_ids"] + [0] * end
        return str(tokenizer.decode(content_tokens(tokenizer, [0], ids, text if cut is None else cut)))

    assert content("Lima") == "Lima"
    assert content("Lima", end=True) == "Lima"
    assert content("Lima\n\n", cut="Lima") == "Lima"
    assert content("\n", cut="") == content("", end=True) == content("") == ""
    assert content("é\n", cut="é") == "é"  # two tokens of one letter
    longer = byte_tokenizer()
    longer.add_tokens(["a\n"])
    ids = longer("Lima\n")["input_ids"]
    assert content_tokens(longer, [0], ids, "Lima") == ids  # the last token holds the last letter


def test_batches_are_sorted_by_length_and_bounded() -> None:
    assert list(by_length([], 4)) == []
    assert list(by_length([9, 1, 1, 3], 4)) == [[1, 2], [3], [0]]


# In a store


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> StoreRecipe:
    questions = str(write_questions(tmp_path_factory.mktemp("questions") / "questions.jsonl", 20))
    decoding = Decoding(max_new_tokens=5, temperature=2.0)
    return StoreRecipe(questions=questions, model=str(tiny_folder), k=3, policy=decoding, block_size=8)


@pytest.fixture(scope="module")
def whole(recipe: StoreRecipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store with two parts per block and signals of the answers."""
    path = tmp_path_factory.mktemp("answers") / "store"
    for k in (2, 3):
        sample(str(path), StoreRecipe(**{**vars(recipe), "k": k}))
    read(str(path), ["hidden", "tokens"], "sample", model=recipe.model)
    return path


@pytest.fixture
def store(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "store"))


def signal_bytes(store: Path) -> dict[str, bytes]:
    return {str(p.relative_to(store)): p.read_bytes() for p in store.glob("signals/*/sample/*")}


def test_rows_are_in_the_order_of_the_samples(whole: Path, model: Any, tokenizer: Any) -> None:
    store = Store.open(whole)
    rows = store.samples.read().to_pylist()
    assert store.signals.keys("hidden", "sample")[:4] == [f"{layer}/first_answer" for layer in range(4)]
    last = store.signals.read("hidden", "2/last_answer", "sample")
    entropies = store.signals.read_ragged("tokens", "3/entropy", "sample").rows()
    assert last.shape == (60, 32)
    assert len(entropies) == 60
    prompts = {q.id: tokenizer(tokenizer.apply_chat_template([{"role": "user", "content": q.text}], tokenize=False, add_generation_prompt=True))["input_ids"] for q in store.questions}  # fmt: skip
    for i, row in enumerate(rows):
        prompt, content = prompts[row["question_id"]], [token for token in row["token_ids"] if token != 0]
        if not content:
            assert last[i].isnan().all()
            assert len(entropies[i]) == 0
            continue
        output = model(torch.tensor([prompt + content]), output_hidden_states=True)
        torch.testing.assert_close(last[i], output.hidden_states[2][0, -1], rtol=1e-4, atol=1e-4)
        logprobs = output.logits[0, len(prompt) - 1 : -1].double().log_softmax(-1)
        wanted = (-logprobs.exp() * logprobs).sum(-1)
        torch.testing.assert_close(entropies[i].double(), wanted, rtol=1e-4, atol=1e-5)
    assert list(find_problems(store)) == []


def test_workers_and_a_killed_run_write_the_same_bytes_as_one_run(
    store: Path, whole: Path, recipe: StoreRecipe
) -> None:
    before = signal_bytes(store)
    shutil.rmtree(store / "signals/hidden")
    gone = sorted((store / "signals/tokens/sample").iterdir())[::3]
    for path in gone:
        path.unlink()
    for rank in range(2):
        read(str(store), ["hidden", "tokens"], "sample", model=recipe.model, worker=Worker(rank, 2))
    assert signal_bytes(store) == before == signal_bytes(whole)


def test_a_damaged_file_is_refused_and_recreated(
    store: Path, whole: Path, recipe: StoreRecipe, capsys: pytest.CaptureFixture[str]
) -> None:
    path = store / "signals/hidden/sample/00001.000-002.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"00001.000-002.safetensors' to be intact, but its content has changed"):
        Store.open(store).signals.read("hidden", "1/mean_answer", "sample")
    read(str(store), ["hidden"], "sample", model=recipe.model)
    assert (
        "00001.000-002.safetensors: its content has changed (the checksum differs). Replacing it."
        in capsys.readouterr().err
    )
    assert signal_bytes(store) == signal_bytes(whole)


def test_values_of_other_answers_are_refused_and_read_again(store: Path, recipe: StoreRecipe) -> None:
    opened = Store.open(store)
    part = SampleRange(0, 0, 2)
    rows = opened.samples.read(part).to_pylist()
    rows[0] |= {"token_ids": [70, 71], "text": "no", "logprobs": [-1.0, -1.0]}
    opened.samples.write(part, rows)
    with pytest.raises(InputError, match="its metadata is"):
        Store.open(store).signals.read("hidden", "1/mean_answer", "sample")
    read(str(store), ["hidden", "tokens"], "sample", model=recipe.model)
    assert list(find_problems(Store.open(store))) == []


def test_more_samples_add_files_and_a_signal_of_some_answers_is_refused(store: Path, recipe: StoreRecipe) -> None:
    before = signal_bytes(store)
    sample(str(store), StoreRecipe(**{**vars(recipe), "k": 4}))
    assert Store.open(store).signals.missing("hidden", "sample") == [SampleRange(block, 3, 4) for block in range(3)]
    with pytest.raises(
        InputError, match=r"for all answers, but 3 of 9 sample ranges lack it\. .*'\[hidden\]' --scope sample`"
    ):
        Store.open(store).signals.keys("hidden", "sample")
    read(str(store), ["hidden"], "sample", model=recipe.model)
    assert Store.open(store).signals.read("hidden", "0/first_answer", "sample").shape == (80, 32)
    assert {name: content for name, content in signal_bytes(store).items() if name in before} == before


def test_layers_other_than_the_existing_ones_are_refused(store: Path, recipe: StoreRecipe) -> None:
    shutil.rmtree(store / "signals")
    for scope in ("question", "sample"):
        read(str(store), ["hidden"], scope, [3, 1, 3], model=recipe.model)
        assert {int(key.split("/")[0]) for key in Store.open(store).signals.layout("hidden", scope)} == {1, 3}
        next(iter((store / "signals/hidden" / scope).glob("*.safetensors"))).unlink()
        with pytest.raises(
            InputError, match=r"\[1, 3\], the stored layers of 'hidden' .* got \[2\]. Leave out `layers`"
        ):
            read(str(store), ["hidden"], scope, [2], model=recipe.model)
        read(str(store), ["hidden"], scope, model=recipe.model)
        assert len(Store.open(store).signals.keys("hidden", scope)) == (2 if scope == "question" else 6)
    with pytest.raises(InputError, match="`signals` to contain at least one of hidden, hidden_tokens, tokens"):
        read(str(store), [], "sample", model=recipe.model)
    with pytest.raises(InputError, match="at least one layer"):
        read(str(store), ["hidden"], "sample", [], model=recipe.model)
    with pytest.raises(InputError, match="a signal whose layers can be chosen.* got tokens. Leave out --layers"):
        read(str(store), ["tokens"], "sample", [1], model=recipe.model)


def test_values_of_another_version_can_be_used_but_not_added_to(
    store: Path, recipe: StoreRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(str(store), ["early_exit"], "sample", model=recipe.model)
    assert Store.open(store).signals.settings("early_exit", "sample") == {"version": 2}
    assert not any(b"version" in content for name, content in signal_bytes(store).items() if "/tokens/" in name)
    monkeypatch.setitem(registry.SIGNALS, "tokens", registry.SIGNALS["tokens"]._replace(version=2))
    opened = Store.open(store)
    assert opened.signals.read_ragged("tokens", "3/nll").values.isfinite().all()
    assert list(find_problems(opened)) == []
    refusal = "signals/tokens/sample.* differs in version: found 1, expected 2.* delete that folder to start over"
    with pytest.raises(InputError, match=refusal):
        read(str(store), ["tokens"], "sample", model="nowhere")
    next((store / "signals/tokens/sample").glob("00001*.safetensors")).unlink()
    with pytest.raises(InputError, match=refusal):
        read(str(store), ["tokens"], "sample", model="nowhere")
    shutil.rmtree(store / "signals/tokens")
    read(str(store), ["tokens"], "sample", model=recipe.model)
    assert Store.open(store).signals.settings("tokens", "sample") == {"version": 2}


def test_a_store_without_answers_and_prompts_that_changed_are_refused(
    store: Path, recipe: StoreRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(store / "signals")
    monkeypatch.setattr(
        "extract.models.store_model.encode_questions", lambda tokenizer, prompt, block: [[5, 6]] * len(block)
    )
    with pytest.raises(InputError, match="but got 2 from this tokenizer"):
        read(str(store), ["hidden"], "sample", model=recipe.model)
    shutil.rmtree(store / "samples")
    with pytest.raises(InputError, match="to contain answers, but it has none"):
        read(str(store), ["hidden"], "sample", model=recipe.model)
    with pytest.raises(InputError, match="to contain answers, but it has none"):
        Store.open(store).signals.keys("hidden", "sample")


@pytest.mark.parametrize("name", ["00009.000-002", "00000.000-003", "00000", "foo"])
def test_verify_names_a_file_without_matching_answers(store: Path, name: str) -> None:
    folder = store / "signals/hidden/sample"
    for ending in ("safetensors", "json"):
        shutil.copy(folder / f"00000.000-002.{ending}", folder / f"{name}.{ending}")
    problems = list(find_problems(Store.open(store)))
    assert [problem.split(":")[0] for problem in problems] == [f"signals/hidden/sample/{name}.safetensors"]


def test_the_command_reads_answers_and_an_unknown_scope_is_refused_in_one_line(
    store: Path, recipe: StoreRecipe, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(store / "signals")
    common = ["read", "--store", str(store), "--model", recipe.model]
    assert run(COMMANDS, "python -m extract", [*common, "--scope", "sample", "--layers", "[2]"]) == 0
    assert Store.open(store).signals.keys("hidden", "sample") == [f"2/{position}" for position in POSITIONS["sample"]]
    capsys.readouterr()
    with pytest.raises(SystemExit, match="2"):
        run(COMMANDS, "python -m extract", [*common, "--scope", "answer"])
    assert run(COMMANDS, "python -m extract", [*common, "--scope", "sample", "--layers", "[4]"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert [line for line in errors if line.startswith("error: ")] == errors
    assert len(errors) == 2
    assert run(COMMANDS, "python -m extract", ["inspect", "--store", str(store)]) == 0
    assert "signal     hidden: 6 of 6 sample ranges" in capsys.readouterr().out


def test_a_new_store_can_include_signals_of_its_answers(tmp_path: Path, recipe: StoreRecipe) -> None:
    path = str(tmp_path / "store")
    for _ in range(2):  # nothing is missing in the second run
        made = make_store(path, recipe, "short", ["hidden"], "sample")
    assert made.signals.missing("hidden", "sample") == []
    assert made.signals.missing("hidden", "question") == [Block(block) for block in range(3)]
