"""Compare the lens signals with float64 loops over transformers' outputs, and check which inputs affect them."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import OPTConfig, OPTForCausalLM

from extract.errors import InputError
from extract.signals.base import Answer
from extract.signals.lens import entropy, fusible_entropy, jensen_shannon, kl, logit_entropy, most_likely, softmax
from extract.signals.lens_signals import CONFIDENCES, SIMILARITIES
from extract.signals.reading import read_answers, read_questions
from extract.signals.registry import SIGNALS, Signal
from extract.store.ragged import Ragged
from tests.helpers.devices import needs_cuda
from tests.helpers.tiny import tiny_model

FAMILIES = ["llama", "gpt2", "qwen2", "qwen3", "mistral", "phi3", "gemma2", "gemma3"]
OF_THE_LENS = ("tokens", "entropy_profile", "evolution", "early_exit")
ANSWERS = [
    Answer((5, 6, 7), (40, 41, 42, 43)),
    Answer((8, 9, 10, 11, 12), (50,)),
    Answer((5, 6, 7), ()),
    Answer((5, 6, 7), (40, 99)),
    Answer((5, 6, 7), (40, 41, 42, 43)),
    Answer((20,), (60, 61, 62)),
]


@torch.no_grad()
def by_hand(model: Any, answer: Answer) -> dict[str, np.ndarray]:
    """Compute every value from its definition in numpy and float64, token by token, from `output_hidden_states`."""
    ids = torch.tensor([answer.prompt + answer.content])
    decoder = model.get_decoder()
    norm = decoder.ln_f if hasattr(decoder, "ln_f") else decoder.norm
    raw: list[torch.Tensor] = []
    handle = norm.register_forward_pre_hook(lambda module, args: raw.append(args[0]))
    out = model(ids, output_hidden_states=True)
    handle.remove()
    states = [*out.hidden_states[:-1], raw[0]]
    n_layers, numbers = len(states) - 1, []
    for t, word in enumerate(answer.content, 1):
        place = len(answer.prompt) + t - 2
        logits = [lens_logits(model, norm(state[0, place])) for state in states]
        np.testing.assert_allclose(logits[-1], out.logits[0, place].double(), rtol=1e-4, atol=1e-4)
        numbers.append(of_token([state[0, place].double().numpy() for state in states], logits, word, n_layers))
    return {key: np.array([one[key] for one in numbers]) for key in numbers[0]}


def lens_logits(model: Any, normed: torch.Tensor) -> np.ndarray:
    logits = model.lm_head(normed).double()
    cap = getattr(model.config, "final_logit_softcapping", None)
    return (torch.tanh(logits / cap) * cap if cap else logits).numpy()


def of_token(h: list[np.ndarray], z: list[np.ndarray], word: int, last: int) -> dict[str, float]:
    p = [np.exp(one - one.max()) / np.exp(one - one.max()).sum() for one in z]
    spread = [-np.sum(one[one > 0] * np.log(one[one > 0])) for one in p]
    best = np.sort(p[last])[::-1]
    found = {
        f"tokens/{last}/nll": -np.log(p[last][word]),
        f"tokens/{last}/entropy": spread[last],
        f"tokens/{last}/plogp": -p[last][word] * np.log(p[last][word]),
        f"tokens/{last}/one_minus_pmax": 1 - best[0],
        f"tokens/{last}/margin": best[0] - best[1],
    }
    found |= {f"entropy_profile/{layer}/entropy": spread[layer] for layer in range(1, last + 1)}

    def divergence(a: np.ndarray, b: np.ndarray) -> float:
        kept = a > 0
        return float(np.sum(a[kept] * (np.log(a[kept]) - np.log(b[kept]))))

    for k in (3, 5, 10):
        if k < last:
            layers = range(last - k, last)
            to_last = [divergence(p[layer], p[last]) for layer in layers]
            middle = [(p[layer] + p[last]) / 2 for layer in layers]
            found |= {
                f"evolution/{last}/mean_kl_{k}": np.mean(to_last),
                f"evolution/{last}/var_kl_{k}": np.var(to_last, ddof=1),
                f"evolution/{last}/mean_entropy_{k}": np.mean([spread[layer] for layer in layers]),
                f"evolution/{last}/var_entropy_{k}": np.var([spread[layer] for layer in layers], ddof=1),
                f"evolution/{last}/jsd_{k}": np.mean(
                    [
                        (divergence(p[layer], m) + divergence(p[last], m)) / 2
                        for layer, m in zip(layers, middle, strict=True)
                    ]
                ),
            }
    quarter = max(1, last // 4)
    early, late = np.mean(p[1 : quarter + 1], axis=0), np.mean(p[last - quarter + 1 : last + 1], axis=0)
    found[f"evolution/{last}/early_late"] = divergence(early, late)

    def cosine(a: np.ndarray, b: np.ndarray) -> float:
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    def first(holds: dict[int, bool]) -> float:
        return min((layer for layer, does_hold in holds.items() if does_hold), default=last) / last

    def from_on(holds: dict[int, bool]) -> float:
        return first({layer: all(holds[later] for later in range(layer, last + 1)) for layer in holds})

    layers = range(1, last + 1)
    margins = {layer: float(np.diff(np.sort(p[layer])[-2:])[0]) for layer in layers}
    found[f"early_exit/{last}/saturation_event"] = from_on({n: p[n].argmax() == p[last].argmax() for n in layers})
    for threshold in CONFIDENCES:
        found |= {
            f"early_exit/{last}/softmax_response_{threshold}": first(
                {layer: margins[layer] >= threshold / 1000 for layer in layers}
            ),
            f"early_exit/{last}/state_saturation_{threshold}": first(
                {layer: cosine(h[layer - 1], h[layer]) >= threshold / 1000 for layer in layers if layer > 1}
            ),
        }
    for threshold in SIMILARITIES:
        found[f"early_exit/{last}/final_state_{threshold}"] = from_on(
            {layer: cosine(h[layer], h[last]) >= threshold / 1000 for layer in layers}
        )
    return found


def read_all(model: Any, answers: list[Answer] = ANSWERS, **options: Any) -> dict[str, Ragged]:
    return ragged_of(read_answers(model, answers, OF_THE_LENS, **options))


def ragged_of(read: dict[str, dict[str, torch.Tensor | Ragged]]) -> dict[str, Ragged]:
    """Return the token tensors by ``signal/key``."""
    every = {f"{name}/{key}": tensor for name, tensors in read.items() for key, tensor in tensors.items()}
    of_tokens = {key: tensor for key, tensor in every.items() if isinstance(tensor, Ragged)}
    assert of_tokens.keys() == every.keys()
    return of_tokens


def assert_same(found: dict[str, Ragged], wanted: dict[str, Ragged]) -> None:
    assert found.keys() == wanted.keys()
    for key, ragged in wanted.items():
        assert torch.equal(found[key].offsets, ragged.offsets)
        torch.testing.assert_close(found[key].values, ragged.values, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_value_equals_its_definition_in_float64(family: str) -> None:
    size = {"n_layer": 6} if family == "gpt2" else {"num_hidden_layers": 6}
    model = tiny_model(family, **size)
    read = read_all(model)
    for row, answer in enumerate(ANSWERS):
        if not answer.content:
            assert all(len(ragged.rows()[row]) == 0 for ragged in read.values())
            continue
        wanted = by_hand(model, answer)
        assert wanted.keys() == read.keys()
        for key, values in wanted.items():
            np.testing.assert_allclose(read[key].rows()[row], values, rtol=1e-4, atol=1e-4, err_msg=key)


@pytest.mark.real_model
def test_every_value_of_the_embedded_model_equals_its_definition(embedded: tuple[Any, Any]) -> None:
    model, tokenizer = embedded
    prompt = tokenizer("The capital of Peru is")["input_ids"]
    answer = Answer(tuple(prompt), tuple(tokenizer(" Lima.")["input_ids"]))
    read, wanted = read_all(model, [answer]), by_hand(model, answer)
    assert wanted.keys() == read.keys()
    for key, values in wanted.items():
        np.testing.assert_allclose(read[key].rows()[0], values, rtol=0, atol=1e-3, err_msg=key)


@pytest.mark.real_model
def test_every_early_exit_of_the_embedded_model_differs_between_tokens_and_none_is_in_the_embeddings(
    embedded: tuple[Any, Any],
) -> None:
    model, tokenizer = embedded
    prompt = "What is the {} of {}? Answer briefly."
    texts = {
        prompt.format("capital", "Peru"): "The capital of Peru is Lima.",
        prompt.format("element", "W"): 'The chemical element with the symbol "W" is Uranium.',
        prompt.format("demonym", "Austria"): "Albania is a nationality in Austria.",
    }
    answers = [Answer(*(tuple(tokenizer(text)["input_ids"]) for text in pair)) for pair in texts.items()]
    for key, ragged in ragged_of(read_answers(model, answers, ["early_exit"])).items():
        layers, counts = (ragged.values * 30).round().unique(return_counts=True)
        assert layers.min() >= 1, key
        assert counts.max() <= 0.9 * len(ragged.values), key


def test_embeddings_that_repeat_the_input_token_are_not_an_early_exit() -> None:
    model = tiny_model(tie_word_embeddings=True, num_hidden_layers=4)
    model.lm_head.weight.mul_(1000)
    answer = Answer((5, 6, 7), (40, 41, 42))
    embedded = model.model.norm(model.model.embed_tokens(torch.tensor([7, 40, 41])))
    best = model.lm_head(embedded).softmax(-1).max(-1)
    assert best.indices.tolist() == [7, 40, 41]
    assert best.values.min() > 0.99
    exits = ragged_of(read_answers(model, [answer], ["early_exit"]))
    assert torch.stack([ragged.values for ragged in exits.values()]).min() >= 1 / 4
    assert exits["early_exit/4/softmax_response_800"].values.tolist() == [1 / 4] * 3
    assert exits["early_exit/4/state_saturation_800"].values.tolist() == [2 / 4] * 3


def test_a_model_with_one_block_can_exit_only_after_it() -> None:
    exits = ragged_of(read_answers(tiny_model(num_hidden_layers=1), ANSWERS, ["early_exit"]))
    assert all((ragged.values == 1).all() for ragged in exits.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_batches_and_order_do_not_change_values(family: str) -> None:
    model = tiny_model(family)
    together = read_all(model)
    assert_same(read_all(model, batch_tokens=1), together)
    backwards = read_all(model, ANSWERS[::-1])
    assert_same({key: Ragged.of(one.rows()[::-1]) for key, one in backwards.items()}, together)


def test_a_question_is_read_at_the_position_that_predicts_the_first_token(model: Any) -> None:
    answers = [answer for answer in ANSWERS if answer.content]
    of_answers = read_all(model, answers)
    of_questions = read_questions(model, [answer.prompt for answer in answers], OF_THE_LENS, batch_tokens=6)
    for name, tensors in of_questions.items():
        for key, values in tensors.items():
            first = torch.stack([row[0] for row in of_answers[f"{name}/{key}"].rows()])
            torch.testing.assert_close(values, first, rtol=1e-4, atol=1e-5)
    left_out = {key for key in of_answers if key.split("/")[-1] in ("nll", "plogp")}
    assert {f"{name}/{key}" for name, tensors in of_questions.items() for key in tensors} == set(of_answers) - left_out


def test_a_changed_layer_affects_only_its_own_and_later_entropies() -> None:
    before = read_all(tiny_model())
    model = tiny_model()
    model.model.layers[1].mlp.down_proj.weight[0] += 1
    after = read_all(model)
    moved = [not torch.equal(before[f"entropy_profile/{layer}/entropy"].values, after[f"entropy_profile/{layer}/entropy"].values) for layer in (1, 2, 3)]  # fmt: skip
    assert moved == [False, True, True]
    assert not torch.equal(before["evolution/3/early_late"].values, after["evolution/3/early_late"].values)


def test_a_changed_token_affects_only_later_distributions(model: Any) -> None:
    before = read_all(model, [Answer((5, 6, 7), (40, 41, 42))])
    after = read_all(model, [Answer((5, 6, 7), (40, 99, 42))])
    for key, ragged in before.items():
        others = after[key].values
        assert torch.equal(ragged.values[0], others[0])
        of_the_drawn_word = key.endswith(("nll", "plogp"))
        assert torch.equal(ragged.values[1], others[1]) != of_the_drawn_word
    profile = "entropy_profile/1/entropy"
    assert not torch.equal(before[profile].values[2], after[profile].values[2])


def test_values_do_not_depend_on_the_number_of_logits_in_memory(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read_all(model)
    monkeypatch.setattr("extract.signals.lens.LOGITS_AT_ONCE", {"cpu": 258 * 2})
    monkeypatch.setattr("extract.signals.lens.REDUCED_AT_ONCE", {"cpu": 258})
    assert_same(read_all(model), whole)
    alone = ragged_of(read_answers(model, ANSWERS, ["entropy_profile"]))  # layer by layer, in the pass
    assert_same(alone, {key: one for key, one in whole.items() if key.startswith("entropy_profile")})


def test_an_answer_with_nan_logits_is_nan_and_other_answers_are_not(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = nn.Linear.forward

    def broken(self: nn.Linear, states: torch.Tensor) -> torch.Tensor:
        logits = forward(self, states)
        if self is model.lm_head:
            logits[..., 3] = torch.where(states.sum(-1) == marked, torch.nan, logits[..., 3])
        return logits

    answer = Answer((5, 6, 7), (40, 41, 42, 43))
    at_last = model.model(torch.tensor([answer.prompt + answer.content])).last_hidden_state[0, 4]
    marked = at_last.sum()
    monkeypatch.setattr(nn.Linear, "forward", broken)
    read = read_answers(model, [answer, Answer((9,), (60, 61))], ["tokens"], batch_tokens=1)["tokens"]["3/entropy"]
    assert isinstance(read, Ragged)
    first, second = read.rows()
    assert first.isnan().all()
    assert second.isfinite().all()


def test_the_example_signal_in_the_docs_needs_one_function_and_one_line(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).parents[3].joinpath("docs/extending.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(def renyi.*?)```", page, re.DOTALL)
    module = types.ModuleType("renyi")
    # this tests the code in the page
    exec(compile(f"from __future__ import annotations\nimport torch\n{code}", "extending.md", "exec"), vars(module))
    monkeypatch.setitem(sys.modules, "renyi", module)
    monkeypatch.setitem(SIGNALS, "renyi", Signal("renyi:renyi", "Rényi entropy of order 2"))
    read = read_answers(model, ANSWERS, ["renyi", "tokens"], batch_tokens=12)["renyi"]["3/renyi_2"]
    assert isinstance(read, Ragged)
    for answer, found in zip(ANSWERS, read.rows(), strict=True):
        p = model(torch.tensor([answer.prompt + answer.content])).logits[0].double().softmax(-1)
        drawn = p[len(answer.prompt) - 1 : len(answer.prompt) + len(answer.content) - 1]
        torch.testing.assert_close(found.double(), -(drawn**2).sum(-1).log(), rtol=1e-4, atol=1e-5)


def test_a_model_with_more_than_a_norm_after_its_last_block_is_refused() -> None:
    model = tiny_model()
    model.model.norm.register_forward_hook(lambda module, args, output: output * 2 if output.dim() == 3 else output)
    with pytest.raises(InputError, match="to have only a final norm"):
        read_answers(model, ANSWERS, ["entropy_profile"])
    sizes = {"vocab_size": 258, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    projected = OPTForCausalLM(OPTConfig(**sizes, word_embed_proj_dim=16)).eval()
    with pytest.raises(InputError, match="OPTForCausalLM to have only a final norm"):
        read_answers(projected, ANSWERS, ["entropy_profile"])
    renamed = tiny_model()
    renamed.model.last_norm = renamed.model.norm
    del renamed.model.norm
    renamed.model.__dict__["norm"] = renamed.model.last_norm.forward
    with pytest.raises(InputError, match=r"LlamaForCausalLM to have only a final norm \(norm, ln_f"):
        read_answers(renamed, ANSWERS, ["entropy_profile"])
    assert read_answers(renamed, ANSWERS, ["tokens"])  # which reads the model's own output


def test_entropy_is_0_for_one_token_and_log_v_if_uniform_and_ignores_excluded_tokens() -> None:
    one, alike = torch.tensor([[900.0, 0, 0]]), torch.full((1, 151_936), 700.0)
    ruled_out = torch.tensor([[1.0, 1.0, -torch.inf]])
    assert float(entropy(softmax(one))) == pytest.approx(0, abs=1e-30)
    assert float(entropy(softmax(alike))) == pytest.approx(np.log(151_936), abs=2e-5)
    assert float(entropy(softmax(ruled_out.clone()))) == pytest.approx(np.log(2))
    assert float(kl(softmax(ruled_out.clone()), softmax(ruled_out.clone()))) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("device", "compute"),
    [
        ("cpu", fusible_entropy),
        ("cpu", logit_entropy),
        pytest.param("cuda", logit_entropy, marks=needs_cuda),
    ],
)
def test_each_way_to_compute_entropies_equals_a_float64_computation(device: str, compute: Any) -> None:
    logits = (torch.randn(20, 3000, generator=torch.Generator().manual_seed(0)) * 5).bfloat16()
    logits[0, 5:] = -torch.inf
    expected = torch.special.entr(logits.double().softmax(-1)).sum(-1)
    torch.testing.assert_close(compute(logits.to(device)).cpu().double(), expected, rtol=1e-5, atol=1e-6)


def test_entropies_of_large_vocabularies_are_accurate_to_a_thousandth_of_a_nat() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 151_936, generator=generator) * torch.tensor([[0.1], [1], [4], [12]]) + 30
    other = torch.randn(4, 151_936, generator=generator)
    z, w = (one.double() for one in (logits, other))
    p, q = z.softmax(-1), w.softmax(-1)
    m = (p + q) / 2
    wanted = {
        "entropy": -torch.special.xlogy(p, p).sum(-1),
        "kl": (p * (z.log_softmax(-1) - w.log_softmax(-1))).sum(-1),
        "jsd": ((p * (z.log_softmax(-1) - m.log())).sum(-1) + (q * (w.log_softmax(-1) - m.log())).sum(-1)) / 2,
    }
    first, second = softmax(logits.clone()), softmax(other.clone())
    found = {"entropy": entropy(first), "kl": kl(first, second), "jsd": jensen_shannon(first, second)}
    for name, values in wanted.items():
        torch.testing.assert_close(found[name].double(), values, rtol=0, atol=2e-4, msg=lambda m, n=name: f"{n}: {m}")
    best = p.topk(2).values
    torch.testing.assert_close(most_likely(first)[2].double(), best[:, 0] - best[:, 1], rtol=1e-4, atol=1e-6)
    assert float(found["jsd"].max()) <= np.log(2) + 1e-6
