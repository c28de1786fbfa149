"""Tests of the log-probabilities of continuations, by brute force in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from extract import InputError
from extract.likelihood.options import NORMALISATIONS, continuations_of, probability, right
from extract.likelihood.scoring import Item, encode_item, first_token, score, supports_trees, tree_mask
from extract.prompts import PromptTemplate
from extract.questions.question import Question
from tests.helpers.continuations import by_hand
from tests.helpers.tiny import byte_tokenizer, tiny_model

pytestmark = pytest.mark.slow

SHARED = list(range(2, 40))
ITEMS = [
    Item([*SHARED, 5, 6], [[7, 8, 9], [10], [7, 11]]),
    Item([*SHARED, 9], [[3]]),
    Item([*SHARED, 100, 101, 102, 103], [[20, 21], [22, 23, 24, 25, 26]]),
]


def assert_equal(found: list[list[float]], expected: list[list[float]], tolerance: float = 1e-4) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=tolerance)


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen2", "qwen3", "mistral", "phi3", "gemma2", "gemma3"])
@pytest.mark.parametrize("batch_tokens", [10_000, 60, 1])
def test_a_packed_pass_equals_one_pass_per_continuation(family: str, batch_tokens: int) -> None:
    model = tiny_model(family)
    assert_equal(score(model, ITEMS, batch_tokens), [by_hand(model, *item) for item in ITEMS])


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_both_attention_implementations_obey_the_mask(attention: str) -> None:
    model = tiny_model()
    model.set_attn_implementation(attention)
    assert supports_trees(model)
    assert_equal(score(model, ITEMS), [by_hand(model, *item) for item in ITEMS])


def test_models_with_a_sliding_window_are_read_without_a_tree() -> None:
    model = tiny_model("mistral", sliding_window=8)
    assert not supports_trees(model)
    assert_equal(score(model, ITEMS), [by_hand(model, *item) for item in ITEMS])


def gpt_neo() -> Any:
    config = transformers.GPTNeoConfig(
        **{"vocab_size": 258, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48},
        **{"attention_types": [[["global", "local"], 1]], "window_size": 8, "max_position_embeddings": 512},
        **{"bos_token_id": 0, "eos_token_id": 0},
    )
    return transformers.GPTNeoForCausalLM(config)


def bloom() -> Any:
    return transformers.BloomForCausalLM(
        transformers.BloomConfig(vocab_size=258, hidden_size=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    )


def falcon() -> Any:
    return transformers.FalconForCausalLM(
        transformers.FalconConfig(
            **{"vocab_size": 258, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4},
            **{"alibi": True, "bos_token_id": 0, "eos_token_id": 0},
        )
    )


@pytest.mark.parametrize("make", [gpt_neo, bloom, falcon])
@pytest.mark.parametrize("batch_tokens", [10_000, 1])
def test_local_attention_and_alibi_are_read_without_a_tree(make: Callable[[], Any], batch_tokens: int) -> None:
    torch.manual_seed(0)
    model = make().eval()
    for parameter in model.parameters():  # wider than the default, so that logits differ clearly
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    model.requires_grad_(False)
    assert not supports_trees(model)
    assert_equal(score(model, ITEMS, batch_tokens), [by_hand(model, *item) for item in ITEMS])


def test_a_tokenizer_without_a_first_token_is_refused() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = None
    with pytest.raises(InputError, match="a beginning-of-sequence or end-of-sequence token"):
        first_token(tokenizer)


def test_a_model_that_ignores_the_mask_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    forward = model.model.forward
    monkeypatch.setattr(model.model, "forward", lambda attention_mask=None, **options: forward(**options))
    assert not supports_trees(model)
    assert_equal(score(model, ITEMS), [by_hand(model, *item) for item in ITEMS])


def test_half_precision_differs_only_by_rounding() -> None:
    model = tiny_model().to(torch.bfloat16)
    assert supports_trees(model)
    exact = tiny_model().to(torch.bfloat16).double()
    assert_equal(score(model, ITEMS), [by_hand(exact, *item) for item in ITEMS], 1.0)


def test_a_tree_mask_hides_other_branches_and_later_tokens() -> None:
    mask = tree_mask(torch.tensor([[0, 0, 1, 1, 2]]), 1, torch.float32)[0, 0] == 0
    assert mask.int().tolist() == [
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 1, 1, 0],
        [1, 1, 1, 0, 0, 1],
    ]


@pytest.mark.parametrize("changes", [{}, {"sliding_window": 8}])
def test_progress_counts_every_item_once(changes: dict[str, Any]) -> None:
    counted: list[int] = []
    score(tiny_model("mistral", **changes), ITEMS, 60, lambda items, tokens: counted.append(items))
    assert sum(counted) == len(ITEMS)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (Item([2, 3], [[4], []]), "at least one token"),
        (Item([], [[4]]), "at least one token"),
        (Item([2] * 511, [[3], [3, 4]]), "at most 512 tokens"),
        (Item([2], [[999]]), "token ids from 0 to 257"),
    ],
)
def test_invalid_items_are_refused(item: Item, message: str) -> None:
    with pytest.raises(InputError, match=message):
        score(tiny_model(), [item])


def test_nan_is_an_error_and_not_a_log_probability() -> None:
    model = tiny_model()
    model.lm_head.weight.fill_(torch.nan)
    with pytest.raises(InputError, match="finite logits"):
        score(model, ITEMS)


def test_whitespace_between_prompt_and_continuation_belongs_to_the_continuation() -> None:
    tokenizer = byte_tokenizer()

    def texts(template: str, chat: bool, *continuations: str) -> list[list[str]]:
        pair = encode_item(PromptTemplate(template, chat=chat), tokenizer, "1 + 1?", continuations)
        return [[tokenizer.decode(ids) for ids in (item.prompt, *item.continuations)] for item in pair]

    assert texts("Q: {question}\nA:", False, "2", "é") == [["Q: 1 + 1?\nA:", " 2", " é"], ["</s>", " 2", " é"]]
    assert texts("Q: {question}\nA: ", False, "2") == [["Q: 1 + 1?\nA:", " 2"], ["</s>", "2"]]
    assert texts("{question}", True, "2") == [["<user>1 + 1?</s><assistant>", "2"], ["</s>", "2"]]


def row(**changes: Any) -> dict[str, Any]:
    return {
        "continuations": ["yes", "näher", "no"],
        "logprobs": [-3.0, -5.0, -2.5],
        "unconditional": [-2.0, -6.0, -1.0],
        "n_tokens": [1, 4, 1],
        "n_bytes": [3, 6, 2],
        "target": 1,
        **changes,
    }


def test_each_normalisation_divides_or_subtracts_as_named() -> None:
    scores = {name: one.score(row()).tolist() for name, one in NORMALISATIONS.items()}
    assert scores == {
        "sum": [-3.0, -5.0, -2.5],
        "token": [-3.0, -1.25, -2.5],
        "character": pytest.approx([-1.0, -1.0, -1.25]),
        "byte": pytest.approx([-1.0, -5 / 6, -1.25]),
        "pmi": [-1.0, 1.0, -1.5],
    }
    assert {name: right([row()], name).tolist() for name in scores} == {
        "sum": [0.0],
        "token": [1.0],
        "character": [0.0],  # the first of two equal scores
        "byte": [1.0],
        "pmi": [1.0],
    }


def test_without_a_second_or_a_right_continuation_the_grade_is_unknown() -> None:
    single = row(continuations=["a"], logprobs=[-1.0], unconditional=[-1.0], n_tokens=[1], n_bytes=[1], target=0)
    assert torch.tensor(right([single, row(target=None)], "sum")).isnan().all()
    assert probability([-1.0]) is None


def test_continuations_are_options_or_the_first_reference() -> None:
    odd = {"id": "1", "dataset": "mine", "text": "Which is odd?"}
    choice = Question(**odd, kind="choice", references=("B", "3"), choices=("2", "3", "4"))
    assert continuations_of(choice, "letters") == (["A", "B", "C"], 1)
    assert continuations_of(choice, "texts") == (["2", "3", "4"], 1)
    cloze = Question(**odd, kind="cloze", references=("3", "three"), choices=("2", "three"))
    assert continuations_of(cloze, "letters") == (["2", "three"], 1)
    unknown = Question(**odd, kind="cloze", references=("3",), choices=("2", "4"))
    assert continuations_of(unknown, "letters") == (["2", "4"], None)
    assert continuations_of(Question(**odd, references=("3", "three")), "letters") == (["3"], 0)
