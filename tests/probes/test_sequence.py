"""Tests of probes over all tokens of an answer, against independent implementations and planted evidence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from datamodules import FeatureDataModule
from datamodules.token_states import TokenStates
from extract import InputError, Store, read
from extract.store.ragged import Ragged
from probes import load_probe
from probes.comparison.folds import fit
from probes.fitting import sequence
from probes.metrics.functional import capability_auroc
from probes.registry import METHODS
from probes.saved.heads import OF_TOKENS
from probes.saved.sequence_head import AttentionHead, MultiMaxHead, RollingHead, SequenceHead, SoftmaxSumHead
from tests.helpers.experiments import experiment
from tests.helpers.token_states import token_store

NAMES = ("attention", "multimax", "rolling", "softmax_sum")


def random_head(make: Callable[[], SequenceHead], seed: int = 0) -> SequenceHead:
    generator, head = torch.Generator().manual_seed(seed), make()
    for name, values in head.state_dict().items():
        drawn = torch.randn(values.shape, generator=generator)
        values.copy_(drawn.abs() + 0.5 if name == "scale" else drawn)
    return head


def states_of(lengths: list[int], width: int = 5, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, width, generator=generator) for n in lengths]


def array(head: SequenceHead, name: str) -> NDArray[np.float64]:
    return getattr(head, name).double().numpy()


def projected(head: SequenceHead, states: torch.Tensor) -> NDArray[np.float64]:
    return (states.double().numpy() - array(head, "mean")) / array(head, "scale") @ array(head, "weight").T


def attention_by_hand(head: SequenceHead, states: torch.Tensor) -> float:
    numbers, score = projected(head, states), float(head.bias)
    n_heads = numbers.shape[1] // 2
    for h in range(n_heads):
        logits = [numbers[t, h] + t * array(head, "slope")[h] for t in range(len(numbers))]
        weights = np.exp(np.array(logits) - max(logits))
        score += float(np.dot(weights / weights.sum(), numbers[:, n_heads + h]))
    return score


def multimax_by_hand(head: SequenceHead, states: torch.Tensor) -> float:
    numbers = projected(head, states)
    return float(head.bias) + sum((min if h % 2 else max)(numbers[:, h]) for h in range(numbers.shape[1]))


def rolling_by_hand(window: int) -> Callable[[SequenceHead, torch.Tensor], float]:
    def score(head: SequenceHead, states: torch.Tensor) -> float:
        numbers = projected(head, states)[:, 0]
        width = min(window, len(numbers))
        means = [np.mean(numbers[start : start + width]) for start in range(len(numbers) - width + 1)]
        return float(head.bias) - float(max(means))

    return score


def softmax_by_hand(head: SequenceHead, states: torch.Tensor) -> float:
    numbers = projected(head, states)[:, 0]
    return float(head.bias) - float(np.sum(np.exp(numbers) * numbers) / np.sum(np.exp(numbers)))


BY_HAND: list[Any] = [
    (lambda: AttentionHead(5, 3), attention_by_hand),
    (lambda: MultiMaxHead(5, 3), multimax_by_hand),
    (lambda: RollingHead(5, 1), rolling_by_hand(1)),
    (lambda: RollingHead(5, 3), rolling_by_hand(3)),
    (lambda: RollingHead(5, 30), rolling_by_hand(30)),
    (lambda: SoftmaxSumHead(5), softmax_by_hand),
]
LENGTHS = [4, 1, 0, 9, 3, 2]


@pytest.mark.parametrize(("make", "by_hand"), BY_HAND)
def test_scores_equal_an_independent_implementation(make: Any, by_hand: Any) -> None:
    head, rows = random_head(make), states_of(LENGTHS)
    found = head(Ragged.of(rows))
    assert found.isnan().tolist() == [n == 0 for n in LENGTHS]
    expected = [by_hand(head, states) for states in rows if len(states)]
    np.testing.assert_allclose(found[~found.isnan()].numpy(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("make", "by_hand"), BY_HAND)
def test_scores_do_not_depend_on_the_other_rows_of_a_batch(make: Any, by_hand: Any) -> None:
    head, rows = random_head(make), states_of(LENGTHS)
    together = head(Ragged.of(rows))
    for row, score in zip(rows, together, strict=True):
        torch.testing.assert_close(head(Ragged.of([row]))[0], score, rtol=0, atol=1e-5, equal_nan=True)
    torch.testing.assert_close(head(Ragged.of(rows[::-1])), together.flip(0), rtol=0, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize(("make", "by_hand"), BY_HAND)
def test_the_order_of_tokens_matters_only_with_positions_or_windows(make: Any, by_hand: Any) -> None:
    head, (states,) = random_head(make), states_of([9])
    shuffled = states[torch.tensor([3, 1, 8, 0, 6, 2, 5, 7, 4])]
    moved = float((head(Ragged.of([states])) - head(Ragged.of([shuffled]))).abs())
    ordered = isinstance(head, AttentionHead) or getattr(head, "window", 1) in range(2, 9)
    assert moved > 1e-2 if ordered else moved < 1e-5
    if isinstance(head, AttentionHead):
        head.slope.zero_()
        torch.testing.assert_close(head(Ragged.of([states])), head(Ragged.of([shuffled])))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataModule:
    """Return answers in which one token of layer 1 is evidence, but not the mean over the tokens."""
    store = token_store(tmp_path_factory.mktemp("store") / "made", n=160, longest=8)
    data = FeatureDataModule(str(store.path), target="response", signal="hidden_tokens")
    data.setup()
    return data


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_candidates_score_like_their_heads(name: str, data: FeatureDataModule, monkeypatch: pytest.MonkeyPatch) -> None:
    module = fit(METHODS[name].load(), data, epochs=2, seed=0)
    features = data.batch("test").features
    with torch.no_grad():
        scores = module.candidate_scores(features)
        for penalty, feature in ((0, 0), (4, 2)):
            head = module.candidate_head(penalty, feature)
            torch.testing.assert_close(scores[penalty, :, feature], head(features[:, feature]), atol=1e-4, rtol=0)
        monkeypatch.setattr(sequence, "TOKENS_AT_ONCE", 7)
        torch.testing.assert_close(module.candidate_scores(features), scores, atol=1e-5, rtol=0)
    assert module.choice is not None
    assert OF_TOKENS[module.head().kind] is type(module.head())


def auroc_of(module: Any, data: FeatureDataModule) -> float:
    batch = data.batch("test")
    with torch.no_grad():
        confidence = module.predict(batch.features)
    return float(capability_auroc(confidence, batch.right, batch.known))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [("attention", {}), ("multimax", {}), ("rolling", {"window": 1}), ("softmax_sum", {})],
)
def test_a_planted_token_is_found(name: str, options: dict[str, Any], data: FeatureDataModule) -> None:
    make = METHODS[name].load()
    found = fit(lambda: make(lr=0.1, l2=0.03, **options), data, epochs=20, seed=0)
    assert found.choice is not None
    assert found.choice.layers == [1]
    assert auroc_of(found, data) > 0.8


@pytest.mark.slow
def test_the_mean_over_the_tokens_does_not_show_the_planted_token(data: FeatureDataModule) -> None:
    mean = fit(lambda: METHODS["rolling"].load()(window=1000, lr=0.1), data, epochs=20, seed=0)
    assert auroc_of(mean, data) < 0.6


@pytest.mark.slow
def test_all_splits_share_the_states(data: FeatureDataModule) -> None:
    batches = [data.batch(split) for split in ("train", "val", "test")]
    assert len({batch.features.values.data_ptr() for batch in batches}) == 1
    stored = data.store.signals.read_ragged("hidden_tokens", "1/answer_tokens").rows()
    for batch in (*batches, data.every(), batches[0].take(torch.tensor([5, 2])), batches[1].to(torch.device("cpu"))):
        rows = batch.features[:, 1].rows()
        assert len(rows) == len(batch.row)
        assert all(torch.equal(row, stored[i]) for row, i in zip(rows, batch.row.tolist(), strict=True))


def test_moved_states_keep_their_rows() -> None:
    states = TokenStates.of([Ragged.of(states_of([2, 0, 3, 1]))])[torch.tensor([2, 0])]
    moved = states.to(torch.device("meta"))
    assert moved.shape == (2, 1, 5)
    assert moved.values.shape == (1, 5, 5)  # only the tokens of the two rows


def test_answers_without_tokens_or_with_nan_are_not_used(tmp_path: Path) -> None:
    rows = states_of([2, 0, 3, 1])
    rows[2][1, 0] = torch.nan
    assert TokenStates.of([Ragged.of(rows)]).finite().tolist() == [True, False, False, True]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (
            "logistic",
            {"signal": "hidden_tokens"},
            "Logistic can read, but got 'hidden_tokens'. Pass --data.signal=hidden",
        ),
        ("attention", {"signal": "hidden"}, "Attention can read, but got 'hidden'. Pass --data.signal=hidden_tokens"),
        ("attention", {"join": ["tokens"]}, "`join` to be omitted"),
        ("attention", {"pooling": ["mean"]}, "`pooling` to be omitted"),
        ("attention", {"target": "capability"}, "available only for answers. Pass --data.target=response"),
        ("attention", {"positions": ["last_answer"]}, "`positions` to be one of answer_tokens"),
    ],
)
def test_invalid_options_give_a_one_line_error(
    method: str, options: dict[str, Any], message: str, data: FeatureDataModule
) -> None:
    from tests.helpers.synthetic import add_answer_signals

    if options.get("signal") == "hidden":
        add_answer_signals(data.store)

    def fit_probe() -> None:
        other = FeatureDataModule(data.store_path, **{"target": "response", "signal": "hidden_tokens", **options})
        fit(METHODS[method].load(), other, epochs=1, seed=0)

    with pytest.raises(InputError, match=message) as caught:
        fit_probe()
    assert "\n" not in str(caught.value)


def test_a_store_without_token_states_names_the_command(small_store: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"read --store \S+ --signals '\[hidden_tokens\]' --scope sample"):
        experiment(small_store, tmp_path, "--config", "configs/attention.yaml")


@pytest.fixture(scope="module")
def token_states(small_store: Path, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Return a copy of the small store with the states of all tokens of the answers."""
    store = shutil.copytree(small_store, tmp_path_factory.mktemp("tokens") / "store")
    return read(str(store), ["hidden_tokens"], "sample", [1, 2], str(tiny_folder), dtype="bfloat16")


@pytest.mark.parametrize(("preset", "probe_class"), [("streaming", "Attention"), ("attention", "MultiMax")])
def test_a_run_trains_saves_and_attaches_a_probe(
    preset: str, probe_class: str, token_states: Store, tiny_folder: Path, tmp_path: Path
) -> None:
    from extract import load_model

    options = ("--config", f"configs/{preset}.yaml", f"--model={probe_class}", "--trainer.max_epochs=2")
    folder = experiment(token_states.path, tmp_path, *options)
    probe = load_probe(folder / "probe")
    assert ("model.stream" in (folder / "probe" / "README.md").read_text()) == (preset == "streaming")
    assert (
        ("a separate calibrator for each part" in (folder / "report.md").read_text())
        == (probe.prefixes is not None)
        == (preset == "streaming")
    )
    hidden = token_states.signals.read_ragged("hidden_tokens", f"{probe.layers[0]}/answer_tokens")
    import pyarrow.parquet as pq

    predictions = pq.read_table(folder / "predictions.parquet")
    values = predictions[probe_class.lower()].to_numpy()
    rows = [i for i, n in enumerate(hidden.lengths.tolist()) if n]
    np.testing.assert_allclose(probe.confidences(hidden).confidence.numpy()[rows], values, atol=1e-6)
    hf_model, tokenizer = load_model(str(tiny_folder), dtype="float32")
    texts = [question.text for question in token_states.questions][:3]
    assert probe.score(hf_model, tokenizer, texts, ["a", "bc", ""]).confidence.isnan().tolist() == [False, False, True]
