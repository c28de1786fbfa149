"""Tests of saved probes that read all tokens of an answer: loading, and the same confidence from all interfaces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from extract import InputError
from extract.prompts import PromptTemplate
from extract.signals.base import Answer
from extract.signals.reading import read_answers
from extract.store.ragged import Ragged
from probes import load_probe
from probes.saved.artefact import ConfidenceProbe
from probes.saved.calibrators import Platt
from probes.saved.heads import OF_TOKENS
from tests.helpers.saved_probes import probe_config
from tests.helpers.tiny import tiny_model

QUESTIONS = ["Why?", "What is this long question about?", "Who"]
SIZES = {"attention": {"n_heads": 3}, "multimax": {"n_heads": 3}, "rolling": {"window": 2}, "softmax_sum": {}}


def make_probe(kind: str, model: Any, tokenizer: Any, layer: int = 2) -> ConfidenceProbe:
    torch.manual_seed(3)
    head = OF_TOKENS[kind](32, **SIZES[kind])
    for name, values in head.state_dict().items():
        values.uniform_(20, 60) if name == "scale" else values.normal_()
    config = probe_config(
        model,
        tokenizer,
        head=kind,
        sizes=SIZES[kind],
        signal="hidden_tokens",
        layers=[layer],
        position="answer_tokens",
        target="response",
        decoding={"temperature": 0.7, "top_p": 1.0, "top_k": 0, "max_new_tokens": 9, "stop": ["\n"], "seed": 0},
    )
    return ConfidenceProbe(head, Platt(0.7, -0.2), config)


@pytest.mark.parametrize("kind", OF_TOKENS)
def test_a_saved_probe_gives_the_same_confidence(kind: str, model: Any, tokenizer: Any, tmp_path: Path) -> None:
    probe = make_probe(kind, model, tokenizer)
    answers = [Answer((5, 6), (40, 41, 42)), Answer((7,), ()), Answer((8, 9), (50,))]
    features = probe.features(read_answers(model, answers, ["hidden_tokens"], [2]))
    loaded = load_probe(probe.save(tmp_path / "probe", "card"))
    expected = probe.confidences(features).confidence
    torch.testing.assert_close(loaded.confidences(features).confidence, expected, rtol=0, atol=0, equal_nan=True)
    assert expected.isnan().tolist() == [False, True, False]
    assert abs(expected[0] - expected[2]) > 1e-3


@pytest.mark.parametrize("layer", [0, 2, 3])
@pytest.mark.parametrize(
    ("options", "is_captured"),
    [
        ({"do_sample": False}, True),
        ({"do_sample": True, "num_return_sequences": 4}, True),
        ({"do_sample": False, "prefill_chunk_size": 7}, True),
        ({"do_sample": True, "return_dict_in_generate": True}, True),
        ({"do_sample": False, "use_cache": False}, False),
        ({"do_sample": False, "num_beams": 3, "num_return_sequences": 2}, False),
    ],
)
def test_the_states_of_an_answer_are_collected_while_it_is_generated(
    model: Any,
    tokenizer: Any,
    layer: int,
    options: dict[str, Any],
    is_captured: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attached = make_probe("attention", model, tokenizer, layer).attach(model, tokenizer)
    torch.manual_seed(0)
    with monkeypatch.context() as patch:
        read_again = Mock(wraps=read_answers)
        patch.setattr("extract.signals.reading.read_answers", read_again)
        answers = attached.generate(QUESTIONS, max_new_tokens=9, **options)
    assert read_again.called == (not is_captured)
    copies = options.get("num_return_sequences", 1)
    asked = [question for question in QUESTIONS for _ in range(copies)]
    assert answers.question == [i for i in range(3) for _ in range(copies)]
    prompts = [PromptTemplate("Q: {question} A:").encode(tokenizer, question) for question in asked]
    n_prompt = max(map(len, prompts))
    contents = attached._contents(answers.sequences[:, n_prompt:].tolist())[1]
    torch.testing.assert_close(
        answers.confidence, attached._read(prompts, contents, True).confidence, atol=1e-5, rtol=0, equal_nan=True
    )


def test_an_answer_that_was_cut_at_the_token_limit_includes_its_last_token(model: Any, tokenizer: Any) -> None:
    attached = make_probe("softmax_sum", model, tokenizer).attach(model, tokenizer)
    for limit in (1, 2):
        answers = attached.generate(QUESTIONS[0], max_new_tokens=limit, do_sample=False, eos_token_id=None)
        torch.testing.assert_close(
            answers.confidence,
            attached._read(
                [PromptTemplate("Q: {question} A:").encode(tokenizer, QUESTIONS[0])],
                [answers.sequences[0, -limit:].tolist()],
                True,
            ).confidence,
            atol=1e-5,
            rtol=0,
        )
    assert not attached._model._forward_hooks


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": "linear", "sizes": {}}, "`head` .* attention, multimax"),
        ({"position": "last_answer"}, "`position`"),
        ({"target": "capability"}, "`target`"),
        ({"layers": []}, "`layers`"),
        ({"layers": [1, 2]}, "`layers`"),
        ({"sizes": {"n_heads": 0}}, "n_heads"),
        ({"signal": "hidden", "position": "last_answer"}, "`head`"),
    ],
)
def test_a_config_that_does_not_fit_the_signal_is_refused(
    model: Any, tokenizer: Any, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = make_probe("attention", model, tokenizer).save(tmp_path / "probe", "card")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(InputError, match=message):
        load_probe(folder)


def test_states_of_another_width_are_refused(tokenizer: Any) -> None:
    model = tiny_model()
    probe = make_probe("rolling", model, tokenizer)
    with pytest.raises(InputError, match="width 32, but got 8"):
        probe.confidences(Ragged.of([torch.zeros(2, 8)]))
