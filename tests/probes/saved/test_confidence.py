"""Tests of saved probes: loading, damage, different models, and the same confidence from all interfaces."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from extract import InputError, load_model
from extract.hashing import sha256_file
from extract.models.loading import model_identity
from extract.prompts import PromptTemplate
from probes import load_probe
from probes.saved.artefact import ConfidenceProbe
from probes.saved.calibrators import Isotonic, Platt
from probes.saved.head import LinearHead, MLPHead
from tests.helpers.planted import read_hidden
from tests.helpers.saved_probes import linear_probe, probe_config
from tests.helpers.tiny import tiny_model

QUESTIONS = ["Why?", "What is this long question about?", "Who", "Where is it, then?", "How much wood?"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, model: Any, tokenizer: Any) -> Path:
    """Save a linear probe with random weights."""
    return linear_probe(model, tokenizer, bias=0.3).save(tmp_path_factory.mktemp("probe"), "card")


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "probe"))


@pytest.fixture(scope="module")
def expected(saved: Path, model: Any, tokenizer: Any) -> torch.Tensor:
    """Compute confidences directly from transformers' hidden states."""
    tensors, values = load_file(saved / "model.safetensors"), []
    for question in QUESTIONS:
        ids = PromptTemplate("Q: {question} A:").encode(tokenizer, question)
        h = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[2][0, -1]
        logit = ((h - tensors["mean"]) / tensors["scale"] * tensors["weight"]).sum() + 0.3
        values.append(torch.sigmoid(0.7 * logit - 0.2))
    assert max(values) - min(values) > 0.1
    assert min(values) > 0.01
    assert max(values) < 0.99
    return torch.stack(values)


def test_score_equals_plain_arithmetic_in_any_order(
    saved: Path, model: Any, tokenizer: Any, expected: torch.Tensor
) -> None:
    probe = load_probe(saved)
    torch.testing.assert_close(probe.score(model, tokenizer, QUESTIONS).confidence, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        probe.score(model, tokenizer, QUESTIONS[::-1]).confidence, expected.flip(0), atol=1e-5, rtol=0
    )
    for i, question in enumerate(QUESTIONS):
        assert float(probe.score(model, tokenizer, question).confidence) == pytest.approx(float(expected[i]), abs=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": False},
        {"do_sample": True, "num_return_sequences": 3},
        {"do_sample": False, "num_beams": 3, "num_return_sequences": 2},
        {"do_sample": False, "prefill_chunk_size": 7},
        {"do_sample": False, "use_cache": False},
        {"do_sample": False, "return_dict_in_generate": True, "output_logits": True},
    ],
)
def test_an_attached_probe_gives_the_confidence_of_score(
    saved: Path, model: Any, tokenizer: Any, expected: torch.Tensor, options: dict[str, Any]
) -> None:
    answers = load_probe(saved).attach(model, tokenizer).generate(QUESTIONS, max_new_tokens=5, **options)
    copies = options.get("num_return_sequences", 1)
    assert len(answers) == 5 * copies
    assert answers.question == [i for i in range(5) for _ in range(copies)]
    torch.testing.assert_close(answers.confidence, expected.repeat_interleave(copies), atol=1e-5, rtol=0)


@pytest.mark.parametrize("layers", [[1, 2], [0, 2, 3], [3, 1]])
def test_a_probe_of_several_layers_reads_the_states_of_transformers(
    saved: Path, model: Any, tokenizer: Any, layers: list[int], tmp_path: Path
) -> None:
    torch.manual_seed(4)
    head = LinearHead(32 * len(layers))
    for tensor in (head.weight, head.mean):
        tensor.normal_()
    head.scale.uniform_(20, 60)
    config = {**load_probe(saved).config, "d_model": 32 * len(layers), "layers": layers}
    probe = load_probe(ConfidenceProbe(head, Platt(0.7, -0.2), config).save(tmp_path / "probe", "card"))
    expected = []
    for question in QUESTIONS:
        ids = PromptTemplate("Q: {question} A:").encode(tokenizer, question)
        states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        h = torch.cat([states[layer][0, -1] for layer in layers])
        expected.append(torch.sigmoid(0.7 * ((h - head.mean) / head.scale * head.weight).sum() - 0.2))
    assert max(expected) - min(expected) > 0.05
    attached = probe.attach(model, tokenizer)
    for options in ({"do_sample": False}, {"do_sample": False, "prefill_chunk_size": 7}):
        found = attached.generate(QUESTIONS, max_new_tokens=3, **options).confidence
        torch.testing.assert_close(found, torch.stack(expected), atol=1e-5, rtol=0)
    torch.testing.assert_close(attached.score(QUESTIONS).confidence, torch.stack(expected), atol=1e-5, rtol=0)


def test_strings_chats_and_token_ids_give_the_same_confidence(
    saved: Path, model: Any, tokenizer: Any, expected: torch.Tensor
) -> None:
    probe = load_probe(saved)
    attached = probe.attach(model, tokenizer)
    ids = PromptTemplate("Q: {question} A:").encode(tokenizer, QUESTIONS[1])
    chat = [{"role": "user", "content": f"Q: {QUESTIONS[1]} A:"}]
    padded = torch.tensor([[1, 1, 1, *ids]])
    mask = torch.tensor([[0, 0, 0, *[1] * len(ids)]])
    given: list[Any] = [QUESTIONS[1], [QUESTIONS[1]], chat, [chat], ids, [ids], torch.tensor([ids])]
    for prompt in given:
        assert float(probe.score(model, tokenizer, prompt).confidence) == pytest.approx(float(expected[1]), abs=1e-5)
        assert float(attached.generate(prompt, max_new_tokens=2).confidence) == pytest.approx(
            float(expected[1]), abs=1e-5
        )
    assert float(attached.generate(padded, attention_mask=mask, max_new_tokens=2).confidence) == pytest.approx(
        float(expected[1]), abs=1e-5
    )
    with pytest.raises(InputError, match="padded on the left"):
        attached.generate(padded.flip(1), attention_mask=mask.flip(1))


def test_attaching_changes_neither_tokens_nor_model(saved: Path, model: Any, tokenizer: Any) -> None:
    ids = torch.tensor([PromptTemplate("Q: {question} A:").encode(tokenizer, QUESTIONS[0])])
    before = model.generate(ids, max_new_tokens=8, do_sample=False, return_dict_in_generate=True, output_logits=True)
    attached = load_probe(saved).attach(model, tokenizer)
    assert torch.equal(attached.generate(ids, max_new_tokens=8, do_sample=False).sequences, before.sequences)
    assert attached.detach() is model
    after = model.generate(ids, max_new_tokens=8, do_sample=False, return_dict_in_generate=True, output_logits=True)
    assert all(torch.equal(a, b) for a, b in zip(before.logits, after.logits, strict=True))
    with pytest.raises(InputError, match="Attach it again"):
        attached.generate("Why?")


def test_another_model_dtype_or_template_is_refused(saved: Path, model: Any, tokenizer: Any) -> None:
    probe = load_probe(saved)
    with pytest.raises(
        InputError, match=r"the probe \('tiny-llama' in float32\), but got 'tiny-llama', which differs in fingerprint"
    ):
        probe.attach(tiny_model(seed=1), tokenizer)
    with pytest.raises(InputError, match="differs in dtype: found 'bfloat16', expected 'float32'"):
        probe.score(tiny_model().to(torch.bfloat16), tokenizer, "Why?")
    template = tokenizer.chat_template
    try:
        tokenizer.chat_template = template + " "
        with pytest.raises(InputError, match="differs in chat_template"):
            probe.attach(model, tokenizer)
    finally:
        tokenizer.chat_template = template


class Adapted(torch.nn.Module):
    """A linear layer with a low-rank adapter, with the parameter names of PEFT. A new adapter has no effect."""

    def __init__(self, base: torch.nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = torch.nn.ModuleDict({"default": torch.nn.Linear(base.in_features, rank, bias=False)})
        self.lora_B = torch.nn.ModuleDict({"default": torch.nn.Linear(rank, base.out_features, bias=False)})
        torch.nn.init.zeros_(self.lora_B["default"].weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


@pytest.mark.parametrize("merged", [False, True])
def test_a_model_with_an_adapter_is_refused(saved: Path, tokenizer: Any, merged: bool) -> None:
    adapted, probe = tiny_model(), load_probe(saved)
    probe.attach(adapted, tokenizer)
    attention = adapted.model.layers[1].self_attn
    if merged:
        attention.q_proj.weight += 1e-3 * torch.randn(32, 2) @ torch.randn(2, 32)
    else:
        attention.q_proj = Adapted(attention.q_proj)
    for use in (probe.attach, lambda *of: probe.score(*of, "Why?")):
        with pytest.raises(InputError, match="which differs in fingerprint: .* Load the expected model") as raised:
            use(adapted, tokenizer)
        assert "\n" not in str(raised.value)


def test_two_probes_on_the_same_or_on_different_models_do_not_affect_each_other(
    saved: Path, reads_answers: ConfidenceProbe, model: Any, tokenizer: Any, expected: torch.Tensor
) -> None:
    probe, other = load_probe(saved), tiny_model(seed=1)
    config = {**probe.config, "layers": [3], "model": {**model_identity(other, tokenizer).__dict__}}
    of_other = ConfidenceProbe(probe.head, probe.calibrator, config)
    attached = [
        probe.attach(model, tokenizer),
        reads_answers.attach(model, tokenizer),
        of_other.attach(other, tokenizer),
    ]
    options: dict[str, Any] = {"max_new_tokens": 4, "do_sample": False}
    alone = [one.generate(QUESTIONS, **options) for one in attached]
    for _ in range(2):  # in turn, and with one detached
        for one, answers in zip(attached, alone, strict=True):
            again = one.generate(QUESTIONS, **options)
            assert torch.equal(again.sequences, answers.sequences)
            torch.testing.assert_close(again.confidence, answers.confidence, equal_nan=True)
        torch.testing.assert_close(attached[0].score(QUESTIONS).confidence, expected, atol=1e-5, rtol=0)
        assert not torch.allclose(alone[-1].confidence, expected, atol=1e-3)
        attached[1].detach()
        attached, alone = attached[::2], alone[::2]


def test_a_prompt_longer_than_the_context_is_refused(saved: Path, model: Any, tokenizer: Any) -> None:
    attached = load_probe(saved).attach(model, tokenizer)
    for use in (attached.score, attached.generate):
        with pytest.raises(InputError, match="Expected at most 512 tokens, .* prompt 1 has 624. Shorten the prompt"):
            use(["Why?", "a" * 600])


def test_empty_prompts_are_refused(saved: Path, model: Any, tokenizer: Any) -> None:
    probe = load_probe(saved)
    for prompts in ([], "", "  "):
        with pytest.raises(InputError, match="Expected `prompts?` to"):
            probe.score(model, tokenizer, prompts)


def damage(folder: Path, how: str) -> None:
    """Alter a saved probe in one way."""
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    if how == "truncated":
        (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-20])
        return
    if how == "no config":
        (folder / "config.json").unlink()
        return
    if how == "missing tensor":
        del tensors["weight"]
    elif how == "extra tensor":
        tensors["more"] = torch.zeros(2)
    elif how == "other shape":
        tensors["weight"] = torch.zeros(31)
    elif how == "NaN":
        tensors["weight"][3] = torch.nan
    elif how == "unknown head":
        config["head"] = "os.system"
    elif how == "newer":
        config["format_version"] = 99
    elif how == "missing key":
        del config["layers"]
    elif how == "width":
        config["layers"] = [1, 2, 3]
    elif how == "huge":
        config["d_model"] = 10**12
    save_file(tensors, folder / "model.safetensors")
    config["weights"] = sha256_file(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("truncated", "to contain the tensors of a 'linear' head"),
        ("no config", "has no config.json"),
        ("missing tensor", "'weight' is missing"),
        ("extra tensor", "'more' is unexpected"),
        ("other shape", r"`weight` is torch.float32 of shape \[31\]"),
        ("NaN", "`weight` contains nan"),
        ("unknown head", "one of linear, .*but got 'os.system'"),
        ("newer", "format version 2 or 3 or 4 or 5 or 6, but got 99"),
        ("missing key", "lacks layers"),
        ("width", "`d_model` .* multiple of 3, the number of layers, but got 32"),
        ("huge", "`d_model` .* positive width"),
    ],
)
def test_a_damaged_probe_is_refused(copied: Path, how: str, message: str) -> None:
    damage(copied, how)
    with pytest.raises(InputError, match=message):
        load_probe(copied)


def test_a_missing_folder_is_refused() -> None:
    with pytest.raises(InputError, match="there is no folder './nowhere'"):
        load_probe("./nowhere")


def test_a_probe_loads_from_a_hub_cache(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: Path
) -> None:
    snapshot = tmp_path / "models--someone--probe" / "snapshots" / ("a" * 40)
    shutil.copytree(saved, snapshot)
    blobs = tmp_path / "models--someone--probe" / "blobs"
    blobs.mkdir()
    for file in list(snapshot.iterdir()):
        file.rename(blobs / file.name)
        file.symlink_to(Path("../../blobs") / file.name)  # as the Hub's client keeps them
    refs = tmp_path / "models--someone--probe" / "refs"
    refs.mkdir()
    (refs / "main").write_text("a" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert load_probe("someone/probe").layers == [2]
    with pytest.raises(InputError, match=r"no folder 'someone/else' and the Hub reported: .*[^.]\. A training run"):
        load_probe("someone/else")


def test_a_model_from_a_folder_is_the_same_model(saved: Path, tiny_folder: Path) -> None:
    loaded, tokenizer = load_model(str(tiny_folder))
    assert 0 <= float(load_probe(saved).score(loaded, tokenizer, "Why?").confidence) <= 1
    assert read_hidden(loaded, [[3, 4]]).shape == (1, 4, 32)


def test_a_missing_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be loaded"):
        load_model(str(tmp_path))
    with pytest.raises(InputError, match=r"'\./nowhere' is not a folder .* Check the path or the id\."):
        load_model("./nowhere")
    with pytest.raises(InputError, match="`dtype` to be one of auto"):
        load_model(dtype="int3")
    with pytest.raises(InputError, match="`device` to be"):
        load_model(device="abacus")


def test_invalid_prompts_are_refused_and_the_mask_is_respected(
    saved: Path, model: Any, tokenizer: Any, expected: torch.Tensor
) -> None:
    probe = load_probe(saved)
    attached = probe.attach(model, tokenizer)
    wrong: list[Any] = [
        tokenizer(["hi"], return_tensors="pt"),
        {"role": "user", "content": "hi"},
        None,
        3,
        torch.tensor([[0.5]]),
    ]
    for prompts in wrong:
        for ask in (lambda p: probe.score(model, tokenizer, p), attached.generate):
            with pytest.raises(InputError, match="Expected `prompts`"):
                ask(prompts)
    ids = PromptTemplate("Q: {question} A:").encode(tokenizer, QUESTIONS[1])
    padded = torch.tensor([[1, 1, *ids], [*ids, 7, 8]])
    mask = torch.tensor([[0, 0, *[1] * len(ids)], [1] * (len(ids) + 2)])
    assert float(probe.score(model, tokenizer, padded, attention_mask=mask).confidence[0]) == pytest.approx(
        float(expected[1]), abs=1e-5
    )
    for ask in (lambda p: probe.score(model, tokenizer, p), attached.generate):
        with pytest.raises(InputError, match="`attention_mask` with the tensor of prompts"):
            ask(padded)


@pytest.mark.parametrize(
    ("key", "value"), [("position", "foo"), ("signal", "zz"), ("layers", "abc"), ("model", "x"), ("head", ["linear"])]
)
def test_a_config_with_unknown_values_is_refused(copied: Path, key: str, value: object) -> None:
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {key: value}))
    with pytest.raises(InputError, match=f"`{key}` in"):
        load_probe(copied)


def test_the_same_weights_with_other_position_encodings_are_another_model(saved: Path, tokenizer: Any) -> None:
    changed = tiny_model(rope_parameters={"rope_type": "default", "rope_theta": 123.0})
    with pytest.raises(InputError, match="differs in fingerprint"):
        load_probe(saved).attach(changed, tokenizer)


@pytest.fixture(scope="module")
def reads_answers(tmp_path_factory: pytest.TempPathFactory, model: Any, tokenizer: Any) -> ConfidenceProbe:
    """Save and load a probe of the mean over an answer's tokens at layer 2, with an isotonic calibrator."""
    torch.manual_seed(5)
    head = MLPHead(32, hidden=4)
    for name, tensor in head.state_dict().items():
        if name != "scale":
            tensor.normal_()
    head.scale.uniform_(20, 60)
    fields = {"position": "mean_answer", "target": "response"}
    config = probe_config(model, tokenizer, head="mlp", sizes={"hidden": 4}, calibrator="isotonic", **fields)
    calibrator = Isotonic([-3.0, 0.0, 3.0], [0.1, 0.4, 0.9])
    folder = ConfidenceProbe(head, calibrator, config).save(tmp_path_factory.mktemp("reads") / "probe", "card")
    return load_probe(folder)


def by_hand(probe: ConfidenceProbe, model: Any, prompt: list[int], answer: list[int]) -> float:
    """Compute the confidence in an answer from transformers' hidden states."""
    states = model(torch.tensor([prompt + answer]), output_hidden_states=True).hidden_states[2][0]
    h, head = states[len(prompt) :].mean(0), probe.head
    hidden = torch.relu(((h - head.mean) / head.scale) @ head.weight_in + head.bias_in)  # type: ignore[operator, arg-type]
    logit = float(hidden @ head.weight + head.bias)  # type: ignore[operator]
    return float(np.interp(logit, [-3.0, 0.0, 3.0], [0.1, 0.4, 0.9]))


def hooks(model: Any) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


def test_a_probe_that_reads_answers_scores_them_with_their_questions(
    reads_answers: ConfidenceProbe, model: Any, tokenizer: Any
) -> None:
    answers = ["Because.", "It is not", "me", "There, where it was.", "As much as it could"]
    found = reads_answers.score(model, tokenizer, QUESTIONS, answers).confidence
    template = PromptTemplate("Q: {question} A:")
    for question, answer, confidence in zip(QUESTIONS, answers, found.tolist(), strict=True):
        ids = tokenizer(answer, add_special_tokens=False)["input_ids"]
        assert confidence == pytest.approx(
            by_hand(reads_answers, model, template.encode(tokenizer, question), ids), abs=1e-5
        )
    assert len({round(one, 4) for one in found.tolist()}) > 2
    empty = reads_answers.score(model, tokenizer, QUESTIONS[:2], ["", "me"]).confidence
    assert empty.isnan().tolist() == [True, False]


def test_a_probe_that_reads_answers_gives_each_answer_of_generate_its_own_confidence(
    reads_answers: ConfidenceProbe, model: Any, tokenizer: Any
) -> None:
    torch.manual_seed(0)
    before = hooks(model)  # transformers leaves some hooks of its own
    attached = reads_answers.attach(model, tokenizer)
    answers = attached.generate(QUESTIONS, max_new_tokens=6, do_sample=True, num_return_sequences=2)
    assert len(answers) == 10
    template, n_prompt = PromptTemplate("Q: {question} A:"), answers.sequences.shape[1] - 6
    for row, (text, confidence) in enumerate(answers):
        drawn = answers.sequences[row, n_prompt:].tolist()
        content = drawn[: drawn.index(0)] if 0 in drawn else drawn
        assert tokenizer.decode(content) == text
        if content:
            prompt = template.encode(tokenizer, QUESTIONS[answers.question[row]])
            assert confidence == pytest.approx(by_hand(reads_answers, model, prompt, content), abs=1e-5)
    assert hooks(model) == before


def test_only_probes_that_read_answers_require_them(
    reads_answers: ConfidenceProbe, saved: Path, model: Any, tokenizer: Any
) -> None:
    with pytest.raises(InputError, match="one answer per question"):
        reads_answers.score(model, tokenizer, QUESTIONS)
    with pytest.raises(InputError, match="got 1 answers to 5 questions"):
        reads_answers.score(model, tokenizer, QUESTIONS, "me")
    with pytest.raises(InputError, match="reads only questions"):
        load_probe(saved).score(model, tokenizer, QUESTIONS, ["me"] * 5)


def test_a_probe_that_reads_answers_ends_them_at_the_stop_strings_of_the_policy(
    reads_answers: ConfidenceProbe, model: Any, tokenizer: Any
) -> None:
    torch.manual_seed(1)
    free = reads_answers.attach(model, tokenizer).generate(QUESTIONS, max_new_tokens=12, do_sample=False)
    stop = next(text[2] for text in free.text if len(text) > 3)
    config = {**reads_answers.config, "decoding": {"stop": [stop]}}
    stopping = ConfidenceProbe(reads_answers.head, reads_answers.calibrator, config)
    answers = stopping.attach(model, tokenizer).generate(QUESTIONS, max_new_tokens=12, do_sample=False)
    assert any(stop in text for text in free.text)
    for text, whole in zip(answers.text, free.text, strict=True):
        assert text == whole.split(stop)[0]
    given = stopping.score(model, tokenizer, QUESTIONS, answers.text).confidence
    torch.testing.assert_close(answers.confidence, given, atol=1e-5, rtol=0, equal_nan=True)


def test_a_probe_that_reads_questions_ends_answers_at_the_stop_strings_of_the_policy(
    saved: Path, model: Any, tokenizer: Any
) -> None:
    probe, options = load_probe(saved), {"max_new_tokens": 12, "do_sample": False}
    free = probe.attach(model, tokenizer).generate(QUESTIONS, **options)
    row, text = next((row, text) for row, text in enumerate(free.text) if text[2:3].isascii() and len(text) > 5)
    config = {**probe.config, "decoding": {"stop": [text[2]]}}
    stopping = ConfidenceProbe(probe.head, probe.calibrator, config).attach(model, tokenizer)
    assert [one.split(text[2])[0] for one in free.text] == stopping.generate(QUESTIONS, **options).text
    ended = stopping.generate(QUESTIONS[row], **options)
    assert (
        ended.sequences.shape[1] < probe.attach(model, tokenizer).generate(QUESTIONS[row], **options).sequences.shape[1]
    )
    torch.testing.assert_close(ended.confidence, free.confidence[row : row + 1], atol=1e-5, rtol=0)
