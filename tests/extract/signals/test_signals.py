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
from extract.signals.reader import can_share
from extract.signals.reading import read_questions
from extract.signals.registry import NEEDS, SIGNALS, load_signal, signal_table, signals_of
from extract.signals.run import fill_signals
from extract.store.store import Store
from tests.helpers.altered_stores import make_store
from tests.helpers.planted import read_hidden
from tests.helpers.tiny import tiny_model

PROMPTS = [[5, 6, 7], [8, 9, 10, 11, 12, 13, 14], [20], [30, 31, 32, 33]]


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen2", "qwen3", "mistral", "phi3", "gemma2", "gemma3"])
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


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral"])
def test_a_prefix_that_fills_a_batch_is_read_once_and_does_not_change_values(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, signals = tiny_model(family), signals_of("question")
    prompts = [[7] * 35 + [20 + i] * (1 + i % 3) for i in range(8)]
    apart = read_questions(model, prompts, signals, range(4), batch_tokens=8 * 32)
    seen: list[int] = []
    decoder = decoder_of(model)
    monkeypatch.setattr(
        decoder, "forward", lambda *a, f=decoder.forward, **k: (seen.append(k["input_ids"].numel()), f(*a, **k))[1]
    )
    together = read_questions(model, prompts, signals, range(4), batch_tokens=8 * 32 - 1)
    for name, tensors in apart.items():
        for key, values in tensors.items():
            torch.testing.assert_close(together[name][key], values, rtol=1e-4, atol=1e-5)
    assert (sum(seen) <= 32 + 8 * 6) == can_share(model)


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
    with pytest.raises(InputError, match="within 0 prompt tokens"):
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
