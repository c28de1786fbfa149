"""Tests of token signals as features: pooled, combined with hidden states, and from a store or a model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import train
from datamodules import FeatureDataModule
from extract import Decoding, InputError, Store, StoreRecipe, read, sample
from extract.models.loading import load_model
from extract.signals.features import TokenFeatures
from extract.signals.pooling import PEAKS, peak_features
from extract.store.ragged import Ragged
from probes import load_probe
from probes.baselines.registry import BASELINES
from probes.comparison.out_of_fold import Comparison
from tests.helpers.experiments import few_baselines
from tests.helpers.planted import plant_grades, planted
from tests.helpers.saved_probes import linear_probe
from tests.helpers.synthetic import add_answer_signals, make_store
from tests.helpers.tiny import write_questions


@pytest.fixture(scope="module")
def made_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store with answers of 0 to 6 tokens."""
    folder = tmp_path_factory.mktemp("stores") / "made"
    add_answer_signals(make_store(folder, *planted(), k=6, longest=6))
    return folder


def data_of(store: Path, **options: Any) -> FeatureDataModule:
    data = FeatureDataModule(str(store), **{"target": "response", **options})
    data.setup()
    return data


def tokens_of(store: Path, signal: str, key: str) -> list[np.ndarray]:
    return [row.double().numpy() for row in Store.open(store).signals.read_ragged(signal, key).rows()]


@pytest.mark.slow
def test_a_token_signal_gives_one_feature_with_every_pooling_of_every_key(made_store: Path) -> None:
    data = data_of(made_store, signal="entropy_profile")
    assert data.feature_names == ["entropy_profile"]
    assert data.pooled is not None
    assert data.pooled.names[:4] == [
        "entropy_profile/1/entropy mean",
        "entropy_profile/1/entropy std",
        "entropy_profile/1/entropy max",
        "entropy_profile/2/entropy mean",
    ]
    batch = data.every()
    assert batch.features.shape[1:] == (1, 9)
    for layer in (1, 2, 3):
        rows = tokens_of(made_store, "entropy_profile", f"{layer}/entropy")
        used = [rows[row] for row in batch.row]
        plain = [[u.mean(), u.std(ddof=1) if len(u) > 1 else 0.0, u.max()] for u in used]
        np.testing.assert_allclose(batch.features[:, 0, 3 * layer - 3 : 3 * layer], plain, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_positions_and_layers_choose_keys(made_store: Path) -> None:
    data = data_of(made_store, signal="tokens", positions=["nll", "margin"], pooling=["q50"])
    assert data.pooled == TokenFeatures(("tokens/3/margin", "tokens/3/nll"), ("q50",))
    data = data_of(made_store, signal="entropy_profile", layers=[1, 3], pooling=["mean"])
    assert data.pooled == TokenFeatures(("entropy_profile/1/entropy", "entropy_profile/3/entropy"), ("mean",))


def test_answers_without_tokens_or_with_nan_are_left_out_and_counted(made_store: Path, tmp_path: Path) -> None:
    lengths = Store.open(made_store).signals.read_ragged("tokens", "3/entropy").lengths
    n_empty = int((lengths == 0).sum())
    assert n_empty > 0
    assert data_of(made_store, signal="tokens").n_unusable == n_empty
    shutil.copytree(made_store, tmp_path / "store")
    store = Store.open(tmp_path / "store")
    part = store.samples.ranges()[0]
    whole = {
        key: store.signals.read_ragged("entropy_profile", key)
        for key in store.signals.keys("entropy_profile", "sample")
    }
    n_rows = store.questions.n_rows(part)
    held = {
        key: Ragged(one.values[: one.offsets[n_rows]].clone(), one.offsets[: n_rows + 1]) for key, one in whole.items()
    }
    row = int((lengths[:n_rows] > 1).nonzero()[0])
    held["2/entropy"].rows()[row].fill_(torch.nan)
    for suffix in (".safetensors", ".json"):
        store.signals.file("entropy_profile", part).with_suffix(suffix).unlink()
    store.signals.write("entropy_profile", part, held)  # type: ignore[arg-type]
    data = data_of(tmp_path / "store", signal="hidden", join=["entropy_profile"])
    assert data.n_unusable == n_empty + 1
    assert row not in torch.cat(list(data.split_rows.values()))


def test_joined_signals_come_after_the_hidden_state_of_every_layer(made_store: Path) -> None:
    positions = ["last_answer", "mean_answer"]
    alone, joined = (
        data_of(made_store, positions=positions, join=join) for join in (None, ["tokens/entropy", "entropy_profile"])
    )
    assert joined.feature_names == alone.feature_names
    assert joined.pooled is not None
    assert joined.pooled.keys[0] == "tokens/3/entropy"
    assert [key.split("/")[0] for key in joined.pooled.keys] == ["tokens", *["entropy_profile"] * 3]
    first, second = alone.every(), joined.every()
    kept = torch.isin(first.row, second.row)
    assert torch.equal(second.features[:, :, :8], first.features[kept])
    entropy = tokens_of(made_store, "tokens", "3/entropy")
    mean = torch.tensor([entropy[row].mean() for row in second.row])
    assert second.features.shape[1:] == (4, 8 + 12)
    for feature in range(4):
        torch.testing.assert_close(second.features[:, feature, 8].double(), mean)


def test_questions_have_one_value_per_key(made_store: Path) -> None:
    data = data_of(made_store, target="capability", signal="entropy_profile")
    batch, store = data.every(), data.store
    assert data.pooled == TokenFeatures(tuple(f"entropy_profile/{layer}/entropy" for layer in (1, 2, 3)))
    for layer in (1, 2, 3):
        assert torch.equal(batch.features[:, 0, layer - 1], store.signals.read("entropy_profile", f"{layer}/entropy"))
    joined = data_of(made_store, target="semantic_entropy", join=["tokens/margin"]).every()
    margin = store.signals.read("tokens", "3/margin")[joined.row]
    assert torch.equal(joined.features[:, :, -1], margin[:, None].expand(-1, joined.features.shape[1]))


@pytest.mark.parametrize(
    ("weights", "signal", "key"),
    [
        ("entropy", "tokens", "3/entropy"),
        ("prob", "tokens", "3/one_minus_pmax"),
        ("rollout/norm_element_mean_token", "rollout", "3/norm_element_mean_token"),
    ],
)
def test_tokens_are_weighted_by_entropies_probabilities_and_influences(
    made_store: Path, weights: str, signal: str, key: str
) -> None:
    data = data_of(made_store, signal="tokens", positions=["nll"], pooling=["mean", "max"], weights=weights)
    assert data.pooled is not None
    assert data.pooled.signals == list(dict.fromkeys(["tokens", signal]))
    values, given = tokens_of(made_store, "tokens", "3/nll"), tokens_of(made_store, signal, key)
    batch = data.every()
    for row, features in zip(batch.row.tolist(), batch.features[:, 0], strict=True):
        u, w = values[row], given[row]
        assert float(features[0]) == pytest.approx((u * w).sum() / w.sum(), rel=1e-5)
        assert float(features[1]) == pytest.approx(u[w > 0].max(), rel=1e-6)


def test_the_shape_of_the_entropy_curve_and_windows_are_poolings(made_store: Path) -> None:
    options: dict[str, Any] = {"signal": "tokens", "positions": ["entropy"]}
    data = data_of(made_store, **options, pooling=["distribution", "windows_4"])
    assert data.pooled is not None
    assert [name.split()[-1] for name in data.pooled.names] == [*PEAKS[0], *(f"windows_4_{i}" for i in range(4))]
    expected = peak_features(data.store.signals.read_ragged("tokens", "3/entropy"))
    batch = data.every()
    for place, values in enumerate(expected.values()):
        assert torch.equal(batch.features[:, 0, place], values[batch.row])
    first, last = batch.features[:, 0, -4], batch.features[:, 0, -1]
    short = [(row, u) for row, u in enumerate(tokens_of(made_store, "tokens", "3/entropy")) if 0 < len(u) <= 4]
    for row, u in short[:20]:
        place = batch.row.tolist().index(row)
        assert (float(first[place]), float(last[place])) == pytest.approx((u[0], u[-1]), rel=1e-6)
    weighted = data_of(made_store, **options, pooling=["distribution"], weights="rollout/norm_element_mean_token")
    assert weighted.every().features.shape[2] == len(PEAKS[0]) + len(PEAKS[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"join": ["token"]}, "`join` to contain token signals .*Did you mean `tokens`"),
        ({"join": ["tokens/"]}, "`join` to contain token signals of answers .tokens, .*but got 'tokens/'"),
        ({"join": ["hidden"]}, "`join` to contain token signals of answers .tokens, .*but got 'hidden'"),
        ({"join": ["tokens/entrpy"]}, "`join` to be one of entropy, .*Did you mean `entropy`"),
        ({"join": ["tokens"], "target": "capability", "pooling": ["mean"]}, "`pooling` to be omitted"),
        ({"join": ["rollout"], "target": "capability"}, "token signals of questions .*but got 'rollout'"),
        ({"signal": "rollout", "target": "capability"}, "'rollout' is available only for answers. Pass --data.target=response"),
        ({"pooling": ["mean"]}, "`pooling` to be omitted, but got .*Only token signals of answers"),
        ({"weights": "entropy"}, "`weights` to be omitted, but got .*Only token signals of answers"),
        ({"signal": "tokens", "pooling": ["meen"]}, "`pooling` to be one of mean, .*Did you mean `mean`"),
        ({"signal": "tokens", "pooling": ["windows_0"]}, r"windows_N \(N from 1 to 64\), but got 'windows_0'"),
        ({"signal": "tokens", "pooling": []}, "`pooling` to contain at least one name"),
        ({"signal": "tokens", "pooling": ["mean", "mean"]}, "no duplicates"),
        ({"signal": "tokens", "pooling": ["distribution"]}, "`pooling` distribution to be used only with the feature tokens/entropy, but got the feature 'tokens/3/m"),
        ({"signal": "tokens", "pooling": ["windows_4"], "weights": "prob"}, "windows_4, but got .* no weighted form. Leave out `weights`"),
        ({"signal": "tokens", "weights": "entrpy"}, "`weights` to be one of entropy, prob.*Did you mean `entropy`"),
        ({"signal": "tokens", "weights": "rollout"}, r"rollout/norm_element_mean_token\), but got 'rollout'.$"),
        ({"signal": "tokens", "weights": "macs/floor_20_mean_emit"}, r"lack it\. .*read --store .* --signals '\[macs\]' --scope sample"),
        ({"signal": "tokens", "weights": "rollout/norm_element_mean_emit"}, "`weights` to be one of norm_element_mean_token"),
        ({"signal": "early_exit"}, r"read --store .* --signals '\[early_exit\]' --scope sample"),
        ({"signal": "entropy_profile", "layers": [0]}, r"`layers` to be one of 1, 2, 3 for the .* signal .* got '0'"),
        ({"signal": "tokens", "positions": ["entropyy"]}, "`positions` to be one of entropy, .*Did you mean"),
    ],
)  # fmt: skip
def test_impossible_features_give_a_one_line_error(made_store: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        data_of(made_store, **options)
    assert "\n" not in str(refused.value)


def test_all_requested_signals_are_read(made_store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr("extract.commands.make_store", lambda *arguments: asked.append(arguments[3:]))
    options: dict[str, Any] = {"target": "response", "recipe": StoreRecipe(), "join": ["tokens/nll", "entropy_profile"]}
    FeatureDataModule(str(made_store), **options, weights="rollout/norm_element_mean_token").prepare_data()
    assert asked == [(["hidden", "tokens", "entropy_profile", "rollout"], "sample")]


def test_mean_and_max_entropy_are_those_of_the_tokens(made_store: Path) -> None:
    data = data_of(made_store)
    rows = tokens_of(made_store, "tokens", "3/entropy")
    for name, of in (("mean_entropy", np.mean), ("max_entropy", np.max)):
        expected = [-of(u) if len(u) else np.nan for u in rows]
        np.testing.assert_allclose(BASELINES[name].scores["sample"](data, {}).numpy(), expected, rtol=1e-6)


def run(store: Path, tmp_path: Path, *options: str) -> Path:
    fixed = ["--data.recipe=null", f"--data.grader={Store.open(store).grades.names()[0]}", "--n_resamples=10"]
    fixed += [f"--data.store={store}", f"--runs={tmp_path}", "--trainer.logger=false"]
    with few_baselines():
        return train.run([*options[:1], *fixed, *options[1:]])


@pytest.fixture(scope="module")
def run_config(made_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that runs a config once."""
    configs = Path(train.__file__).parent / "configs"
    return cache(
        lambda name, *options: run(
            made_store, tmp_path_factory.mktemp("runs"), f"--config={configs / name}.yaml", *options
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["entropy_features", "entropy_profile", "joined"])
def test_the_configs_for_token_signals_give_complete_runs(run_config: Callable[..., Path], name: str) -> None:
    positions = ["--data.positions=[mean_answer,last_answer]"] if name == "joined" else []
    folder = run_config(name, *positions)
    record, probe = json.loads((folder / "report.json").read_text()), load_probe(folder / "probe")
    assert record["pooled"] == probe.config["pooled"]
    of_layers = name == "joined"
    assert bool(record["chosen"]["layers"]) == of_layers
    assert (folder / "plots/layers.png").exists() == of_layers
    assert (
        record["splits"]["test"]["response"][probe.config["name"]]["auroc"]["value"] > 0.6
    )  # wrong answers are more entropic
    numbers = {
        "entropy_features": "11 features of `tokens` (distribution)",
        "entropy_profile": "9 features of `entropy_p",
    }
    for text in ((folder / "report.md").read_text(), (folder / "probe/README.md").read_text()):
        assert numbers.get(name, " and 24 features of `tokens`, `entropy_profile` (mean, std, max)") in text
        assert "layer None" not in text


@pytest.fixture(scope="module")
def read_store(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Path:
    """Make a store of the tiny model's short answers, with token signals of questions and answers."""
    folder = tmp_path_factory.mktemp("stores")
    questions = write_questions(folder / "questions.jsonl", 60)
    recipe = StoreRecipe(questions=str(questions), model=str(tiny_folder), k=4, policy=Decoding(max_new_tokens=3))
    store = sample(str(folder / "store"), recipe)
    for scope in ("question", "sample"):
        read(str(store.path), ["hidden", "tokens", "entropy_profile"], scope, model=str(tiny_folder))  # type: ignore[arg-type]
    plant_grades(store, seed=0)
    entropies = store.signals.read_ragged("tokens", "3/entropy").rows()
    highest = [float(row.max()) if len(row) else 0.0 for row in entropies]
    right = iter(value < np.median(highest) for value in highest)
    for part in store.samples.ranges():  # answers are right if no token has a high entropy
        rows = [{**row, "right": bool(next(right))} for row in store.grades.read("planted", part).to_pylist()]
        store.grades.write("sure", part, rows, "low entropy")
    return folder / "store"


@pytest.fixture(scope="module")
def run_once(read_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that runs an experiment once for the same options."""
    return cache(lambda *options: run(read_store, tmp_path_factory.mktemp("runs"), *options))


PROFILE = ["--data.signal=entropy_profile"]
JOINED = ["--data.join=[tokens,entropy_profile]"]
SHAPE = ["--data.signal=tokens", "--data.positions=[entropy]", "--data.pooling=[distribution]", "--data.weights=prob"]


@pytest.mark.parametrize("options", [PROFILE, JOINED, SHAPE], ids=["alone", "joined", "shape"])
def test_a_saved_probe_gives_answers_the_confidences_of_its_run(
    read_store: Path, tiny_folder: Path, run_once: Callable[..., Path], options: list[str]
) -> None:
    folder = run_once("--model=Logistic", "--data.target=response", "--data.grader=sure", *options)
    model, tokenizer = load_model(str(tiny_folder))
    probe, store = load_probe(folder / "probe"), Store.open(read_store)
    texts = {question.id: question.text for question in store.questions}
    said = {(row["question_id"], row["sample"]): row for row in store.samples.read().to_pylist()}
    asked, answers, expected = [], [], []
    for row in pq.read_table(folder / "predictions.parquet").to_pylist():
        drawn = said[row["question_id"], row["sample"]]
        content = [token for token in drawn["token_ids"] if token != tokenizer.eos_token_id]
        if tokenizer(drawn["text"], add_special_tokens=False)["input_ids"] == content:  # the text determines the tokens
            asked.append(texts[row["question_id"]])
            answers.append(drawn["text"])
            expected.append(row[probe.config["name"]])
    assert len(expected) >= 15
    found = probe.score(model, tokenizer, asked, answers).confidence
    assert found.tolist() == pytest.approx(expected, abs=1e-4)
    assert max(expected) - min(expected) > 1e-3
    assert probe.score(model, tokenizer, asked[:2], ["", answers[1]]).confidence.isnan().tolist() == [True, False]
    torch.manual_seed(0)
    attached, several = probe.attach(model, tokenizer), {"do_sample": True, "num_return_sequences": 4}
    given = attached.generate(asked[:20], max_new_tokens=3, **several)
    plain = [row for row, text in enumerate(given.text) if text and text.isascii()]  # whose text determines the tokens
    assert len(plain) > 5
    texts = [asked[given.question[row]] for row in plain], [given.text[i] for i in plain]
    again = probe.score(model, tokenizer, *texts).confidence
    torch.testing.assert_close(given.confidence[plain], again, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("options", "probe_class", "n_layers"),
    [(PROFILE, "LayerAverage", 0), (JOINED, "LayerAverage", 2), (JOINED, "Logistic", 1)],
)
def test_a_saved_probe_gives_questions_the_confidences_of_its_run(
    read_store: Path,
    tiny_folder: Path,
    run_once: Callable[..., Path],
    options: list[str],
    probe_class: str,
    n_layers: int,
) -> None:
    folder = run_once(f"--model={probe_class}", *options)
    model, tokenizer = load_model(str(tiny_folder))
    probe, store = load_probe(folder / "probe"), Store.open(read_store)
    texts = {question.id: question.text for question in store.questions}
    rows = pq.read_table(folder / "predictions.parquet").to_pylist()
    questions, expected = [texts[row["question_id"]] for row in rows], [row[probe.config["name"]] for row in rows]
    assert probe.score(model, tokenizer, questions).confidence.tolist() == pytest.approx(expected, abs=1e-4)
    attached = probe.attach(model, tokenizer)
    answers = attached.generate(questions[:4], max_new_tokens=2, do_sample=True, num_return_sequences=2)
    assert len(probe.layers) == n_layers
    twice = [one for one in expected[:4] for _ in range(2)]
    assert answers.confidence.tolist() == pytest.approx(twice, abs=1e-4)


@pytest.fixture
def saved(run_config: Callable[..., Path], tmp_path: Path) -> Path:
    """Return a copy of a probe of the entropy profile of answers."""
    return Path(shutil.copytree(run_config("entropy_profile") / "probe", tmp_path / "probe"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "pooled.keys",
            ["hidden/1/last_answer"],
            "`pooled.keys` in .* to be a list of distinct keys signal/layer/position",
        ),
        ("pooled.keys", ["tokens/3/entropy", "tokens/3/entropy"], "`pooled.keys`"),
        ("pooled.keys", ["tokens/3/../entropy"], "`pooled.keys`"),
        ("pooled.keys", [["tokens"]], "`pooled.keys`"),
        ("pooled.keys", [], "`pooled.keys`"),
        ("pooled.keys", ["tokens/3/entropy"], r"`d_model` in .* to be 3, but got 9\. `pooled` has 3 features"),
        ("pooled.pooling", ["os.system"], "`pooled.pooling`"),
        ("pooled.pooling", [], "`pooled.pooling`"),
        ("pooled.pooling", ["distribution"], "`pooled` in .* to describe valid token features"),
        ("pooled.pooling", ["windows_65"], "`pooled.pooling`"),
        ("pooled.weights", "tokens/3/nll", "`pooled.weights`"),
        ("pooled.weights", 3, "`pooled.weights`"),
        ("pooled.more", 3, "has the unknown key 'pooled.more'"),
        ("pooled", None, "`pooled` in"),
        ("layers", [3], "`layers` in .* to be an empty list for the 'entropy_profile' signal"),
        ("signal", "hidden", "`layers` in"),
        ("target", "capability", "`pooled.pooling`"),
    ],
)
def test_a_config_with_unreadable_features_is_refused(saved: Path, field: str, value: object, message: str) -> None:
    config = json.loads((saved / "config.json").read_text())
    *outer, name = field.split(".")
    (config[outer[0]] if outer else config)[name] = value
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=message):
        load_probe(saved)


def test_a_layer_that_the_model_lacks_is_named(
    tiny_folder: Path, tmp_path: Path, run_once: Callable[..., Path]
) -> None:
    folder = run_once("--model=LayerAverage", *PROFILE)
    probe = Path(shutil.copytree(folder / "probe", tmp_path / "probe"))
    config = json.loads((probe / "config.json").read_text())
    config["pooled"]["keys"][-1] = "entropy_profile/7/entropy"
    (probe / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="the 'entropy_profile' signal of .* to contain '7/entropy'"):
        load_probe(probe).score(*load_model(str(tiny_folder)), "Why?")


@pytest.mark.slow
@pytest.mark.parametrize(("versions", "of_tokens"), [((2, 3), False), ((3,), True)], ids=["states", "tokens"])
def test_a_probe_of_an_earlier_format_gives_the_same_confidences(
    saved: Path, model: Any, tokenizer: Any, tmp_path: Path, versions: Sequence[int], of_tokens: bool
) -> None:
    folder = saved if of_tokens else linear_probe(model, tokenizer).save(tmp_path / "linear", "card")
    config, probe = json.loads((folder / "config.json").read_text()), load_probe(folder)
    assert config["format_version"] == 6
    assert ("pooled" in config) == of_tokens
    layers = config.pop("layers")
    features = torch.randn(5, config["d_model"])
    for version in versions:
        earlier = {**config, "format_version": version, "layer": layers[0] if layers else None}
        (folder / "config.json").write_text(json.dumps(earlier))
        same = load_probe(folder)
        assert same.layers == probe.layers == layers
        assert torch.equal(same.confidences(features).confidence, probe.confidences(features).confidence)


@pytest.mark.slow
def test_a_comparison_works_with_token_signals_in_the_store(made_store: Path) -> None:
    out = Comparison(str(made_store), probes=["logistic"], n_folds=2).run()
    assert {"mean_entropy", "max_entropy"} < set(out.confidence)


def test_a_signal_that_the_store_lacks_is_read(read_store: Path, tiny_folder: Path, tmp_path: Path) -> None:
    store = Path(shutil.copytree(read_store, tmp_path / "store"))
    questions = write_questions(tmp_path / "questions.jsonl", 60)
    recipe = StoreRecipe(questions=str(questions), model=str(tiny_folder), k=4, policy=Decoding(max_new_tokens=3))
    options: dict[str, Any] = {"target": "response", "signal": "tokens", "join": ["early_exit"], "pooling": ["mean"]}
    FeatureDataModule(str(store), recipe, "short", **options).prepare_data()
    assert not Store.open(store).signals.missing("early_exit", "sample")
    data = data_of(store, grader="planted", **options)
    assert data.pooled is not None
    assert data.pooled.signals == ["tokens", "early_exit"]
    assert data.every().features.shape[2] == len(data.pooled.keys)
