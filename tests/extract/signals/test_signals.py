"""Compare hidden states with those of transformers, and check which perturbations change them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from extract.commands import read
from extract.errors import InputError
from extract.models.loading import tokenizer_hash, weight_fingerprint
from extract.running.worker import Worker
from extract.signals.hidden import HiddenCapture, position_ranges
from extract.signals.model_parts import decoder_of
from extract.signals.reading import read_questions
from extract.signals.registry import NEEDS, SIGNALS, load_signal, signal_table, signals_of
from extract.signals.run import fill_signals
from extract.signals.shared_prompt import SharedPrompt, can_share, read_prefix
from extract.store.store import Store
from tests.helpers.altered_stores import make_store
from tests.helpers.planted import read_hidden
from tests.helpers.tiny import tiny_model

FAMILIES = ["llama", "gpt2", "qwen2", "qwen3", "mistral", "phi3", "gemma2", "gemma3"]
PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13, 14], [20], [30, 31, 32, 33]]


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_equal_output_hidden_states(family: str) -> None:
    model = tiny_model(family)
    states = read_hidden(model, PROMPTS)
    assert states.shape == (4, 4, 32)
    for row, prompt in enumerate(PROMPTS):
        expected = model(torch.tensor([prompt]), output_hidden_states=True).hidden_states
        for layer in range(4):
            torch.testing.assert_close(states[row, layer], expected[layer][0, -1], rtol=1e-4, atol=1e-4)


def test_states_do_not_depend_on_the_batch_the_order_or_the_chosen_layers(model: Any) -> None:
    together = read_hidden(model, PROMPTS)
    alone = torch.cat([read_hidden(model, [prompt]) for prompt in PROMPTS])
    small = read_hidden(model, PROMPTS, batch_tokens=1)
    backwards = read_hidden(model, PROMPTS[::-1]).flip(0)
    for other in (alone, small, backwards):
        torch.testing.assert_close(other, together, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(read_hidden(model, PROMPTS, layers=[1, 3]), together[:, [1, 3]])


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_shared_prefix_is_read_once_and_does_not_change_values(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(family)
    signals = [name for name in signals_of("question") if family != "gemma2" or name == "hidden"]  # soft caps
    prompts = [[7] * 35 + [20 + i] * (1 + i % 3) for i in range(12)]
    apart = [read_questions(model, [prompt], signals, range(4)) for prompt in prompts]
    seen = count_tokens(model, monkeypatch)
    together = read_questions(model, prompts, signals, range(4))
    assert (sum(seen) <= 32 + 12 * 6 + 1) == can_share(model)  # one token tests the logit lens
    for name, tensors in together.items():
        for key, values in tensors.items():
            alone = torch.cat([of_prompt[name][key] for of_prompt in apart])
            torch.testing.assert_close(values, alone, rtol=1e-5, atol=1e-5 * float(alone.abs().max()))


def count_tokens(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list to which each pass of the model appends its number of tokens."""
    seen: list[int] = []
    decoder = decoder_of(model)
    monkeypatch.setattr(
        decoder, "forward", lambda *a, f=decoder.forward, **k: (seen.append(k["input_ids"].numel()), f(*a, **k))[1]
    )
    return seen


def test_a_prefix_is_read_apart_only_if_that_saves_many_tokens_and_extends_a_cached_start() -> None:
    model, prefix = tiny_model(), [7] * 128
    three, two = [[*prefix, i, i] for i in (5, 6, 8)], [[*prefix, i, i] for i in (5, 6)]
    assert read_prefix(model, two) is None
    shared = read_prefix(model, three)
    assert shared is not None
    assert shared.tokens == tuple(prefix)
    start = SharedPrompt(model).then(prefix[:20])
    assert read_prefix(model, two, start) is start
    longer = read_prefix(model, [*three, *two], start)
    assert longer is not None
    assert longer.tokens == tuple(prefix)
    assert read_prefix(model, three, previous=longer) is longer
    assert read_prefix(model, two, previous=longer) is None  # the result does not depend on earlier calls


def test_rows_share_the_memory_of_a_prefix_and_passes_leave_it_unchanged(model: Any) -> None:
    shared = SharedPrompt(model).then([5, 6, 7])
    for grows in (True, False):
        cache = shared.cache(4, grows)
        assert {layer.keys.untyped_storage().nbytes() for layer in cache.layers} == {2 * 3 * 8 * 4}
        decoder_of(model)(input_ids=torch.full((4, 5), 9), past_key_values=cache, use_cache=True)
        assert {layer.keys.shape[2] for layer in cache.layers} == {8 if grows else 3}
    assert {tuple(layer.keys.shape) for layer in shared.cache(1).layers} == {(1, 2, 3, 8)}


def test_a_changed_token_changes_its_state_but_no_earlier_one(model: Any) -> None:
    base, changed = read_hidden(model, [[5, 6, 7]]), read_hidden(model, [[4, 6, 7]])
    assert torch.equal(base[:, 0], changed[:, 0])  # the embedding of the last token
    assert not torch.allclose(base[:, 1:], changed[:, 1:])


def test_a_changed_block_affects_only_later_layers() -> None:
    model = tiny_model()
    before = read_hidden(model, PROMPTS)
    model.model.layers[1].mlp.down_proj.weight[0] += 1
    after = read_hidden(model, PROMPTS)
    assert torch.equal(before[:, :2], after[:, :2])
    assert not torch.allclose(before[:, 2:], after[:, 2:])


def test_hooks_are_removed_even_after_an_error(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def hooks() -> int:
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())

    before = hooks()
    read_hidden(model, PROMPTS)
    monkeypatch.setattr(model.model.layers[1], "forward", lambda *args, **options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        read_hidden(model, PROMPTS)
    assert hooks() == before


def test_positions_and_layers_out_of_range_are_refused(model: Any) -> None:
    with pytest.raises(InputError, match="within the sequence of 0 prompt tokens and 0 answer tokens"):
        position_ranges("question", [0], [0])
    with pytest.raises(InputError, match=r"between 0 \(embeddings\) and 3, but got \[4\]"):
        HiddenCapture(model, [1, 4])
    with pytest.raises(InputError, match="Did you mean `hidden`"):
        load_signal("hiden")


def test_the_fingerprint_detects_one_changed_weight_and_two_swapped_ones() -> None:
    model = tiny_model()
    first = weight_fingerprint(model)
    assert weight_fingerprint(tiny_model()) == first
    weight = model.model.layers[2].mlp.up_proj.weight
    weight[3, 5] += 1e-3
    assert weight_fingerprint(model) != first
    swapped = tiny_model()
    rows = swapped.model.layers[0].self_attn.q_proj.weight
    rows[[0, 1]] = rows[[1, 0]]
    assert weight_fingerprint(swapped) != first


def test_the_tokenizer_hash_ignores_padding(tokenizer: Any) -> None:
    before = tokenizer_hash(tokenizer)
    tokenizer(["a", "bcd"], padding=True, truncation=True, max_length=2)
    assert tokenizer_hash(tokenizer) == before


def test_the_table_in_the_docs_and_the_help_of_read_follow_from_the_registry() -> None:
    page = Path(__file__).parents[3].joinpath("docs/signals.md").read_text(encoding="utf-8")
    lines = signal_table().splitlines()
    table = lines[0] + page.partition(lines[0])[2].partition("\n\n")[0]
    assert len(table.splitlines()) > 5
    assert set(table.splitlines()) <= set(lines)
    for name, signal in SIGNALS.items():
        assert f"{name} ({signal.description})" in (read.__doc__ or "")
        assert set(signal.needs) <= set(NEEDS)


@pytest.mark.slow
def test_a_signal_of_another_scope_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    store = Store.open(make_store(tmp_path / "store"))
    with pytest.raises(InputError, match="rollout"):
        fill_signals(store, ["rollout"], lambda: pytest.fail("a model was loaded"), Worker())
