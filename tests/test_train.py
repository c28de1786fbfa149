"""Tests of `python train.py` and `python -m extract` as users call them."""

from __future__ import annotations

import json
import runpy
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml

import train
from extract.__main__ import COMMANDS
from extract.errors import InputError
from extract.recipe import StoreRecipe
from extract.running.cli import run
from extract.running.exit import exit_status
from extract.store.store import Store
from probes import load_probe
from probes.registry import METHODS
from tests.helpers.experiments import ROOT, experiment, few_baselines
from tests.helpers.offline_run import OfflineRun, logging_offline
from tests.helpers.planted import planted
from tests.helpers.synthetic import make_store
from tests.helpers.tiny import write_questions

pytestmark = pytest.mark.slow


SECRET = "0123456789abcdef" * 2 + "01234567"


@pytest.fixture(scope="module")
def folders(small_store: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the folders of two runs of the same experiment, with secrets in the environment."""
    with logging_offline() as patch:
        patch.setenv("WANDB_API_KEY", SECRET)
        patch.setenv("HF_TOKEN", f"hf_{SECRET}")
        together = tmp_path_factory.mktemp("twice")
        return [experiment(small_store, together) for _ in range(2)]


def test_training_twice_gives_two_complete_runs(folders: list[Path]) -> None:
    assert all(folder.name.startswith("layer_average-") for folder in folders)
    assert folders[0] != folders[1]
    for folder in folders:
        names = {str(path.relative_to(folder)) for path in folder.rglob("*")}
        assert {
            "config.yaml",
            "report.json",
            "report.md",
            "predictions.parquet",
            "plots/roc.png",
            "logs/metrics.csv",
        } < names
        assert {"probe/config.json", "probe/model.safetensors", "probe/README.md"} < names
        assert any(name.endswith(".wandb") for name in names)
    reports = [json.loads((folder / "report.json").read_text()) for folder in folders]
    assert reports[0] == reports[1]
    assert load_probe(folders[0] / "probe").config["training"]["n_questions"] == {"train": 60, "val": 24, "test": 36}
    assert set(pq.read_table(folders[0] / "predictions.parquet")["split"].to_pylist()) == {"train", "val", "test"}


def test_a_broader_store_is_read_by_the_back_off_of_the_saved_probe(
    small_store: Path,
    make_small_store: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    other = make_small_store(n=80, seed=3)
    folder = experiment(small_store, tmp_path, "--model=Ridge", f"--data.broader=[{other}]")
    probe = load_probe(folder / "probe")
    assert probe.novelty is not None
    assert probe.novelty.broader is not None
    assert 0 <= probe.novelty.broader.share <= 1
    assert probe.config["novelty"]["broader"]["n_features"] == probe.config["d_model"]
    assert f"A broader probe was also trained on {other.name}." in (folder / "probe" / "README.md").read_text()
    has_no_weight = "The broader probe gets no weight" in capsys.readouterr().out
    assert has_no_weight == (probe.novelty.broader.share == 0)
    report = (folder / "report.md").read_text()
    assert f"A broader probe was also trained on {other.name}. If such a question is not novel" in report


def test_a_probe_that_returns_the_mean_accuracy_is_reported_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    features, accuracy = planted()
    make_store(tmp_path / "store", np.random.default_rng(1).permutation(features), accuracy)
    folder = experiment(tmp_path / "store", tmp_path, "--model=Ridge", "--data.grader=made")
    warning = json.loads((folder / "report.json").read_text())["warning"]
    assert "returns this mean accuracy" in warning
    assert f"Warning: {warning}" in capsys.readouterr().out


def test_a_missing_broader_store_is_named_before_anything_else_happens(small_store: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        experiment(small_store, tmp_path, "--model=Ridge", "--data.broader=[nowhere]")
    assert not list((tmp_path / "runs").glob("*"))


def test_options_in_the_format_of_a_sweep_agent_are_accepted(small_store: Path, tmp_path: Path) -> None:
    folder = experiment(
        small_store,
        tmp_path,
        "--model=Linear",
        "--model.lr=0.003",
        "--model.l2=0.1",
        "--data.positions=['last_prompt']",
        "--name=mine",
    )
    assert folder.name == "mine"
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["model"]["init_args"] == {"lr": 0.003, "l2": 0.1, "calibrator": "platt"}
    assert json.loads((folder / "report.json").read_text())["chosen"]["l2"] == 0.1
    with pytest.raises(InputError, match="`name` to be the name of a new run"):
        experiment(small_store, tmp_path, "--name=mine")


def test_options_override_an_earlier_config_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text("model:\n  class_path: probes.linear.Linear\n  init_args:\n    lr: 0.5\n    l2: 0.3\n")
    with pytest.raises(SystemExit):
        train.run([f"--config={config}", "--model.lr=0.02", "--print_config"])
    model = yaml.safe_load(capsys.readouterr().out)["model"]
    assert model["init_args"] == {"lr": 0.02, "l2": 0.3, "calibrator": "platt"}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> list[str]:
    """Return options for a store of the tiny model, whose random letters are sometimes right."""
    questions = tmp_path_factory.mktemp("questions") / "questions.jsonl"
    rows = [{"id": f"q{i}", "text": f"Say {i}", "references": [*"abcdefghijklm0123"]} for i in range(50)]
    questions.write_text("\n".join(map(json.dumps, rows)))
    values = {"questions": questions, "model": tiny_folder, "n_questions": "null", "k": 4}
    values |= {"policy.max_new_tokens": 6, "policy.temperature": 0.2}  # so that some questions have equal answers
    return [f"--data.recipe.{key}={value}" for key, value in values.items()]


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory, recipe: list[str]) -> Path:
    """Make a store with samples and grades only."""
    folder = tmp_path_factory.mktemp("stores")
    with few_baselines():
        train.run([f"--data.store={folder / 'store'}", f"--runs={folder}", *recipe, "--trainer.max_epochs=1"])
    shutil.rmtree(folder / "store" / "signals")
    return folder / "store"


#: Configs that are named after their signal rather than their probe.
NAMED_OTHERWISE = {
    "default": "layer_average",
    "debug": "layer_average",
    "streaming": "attention",
    "joined": "logistic",
    "entropy_features": "logistic",
    "entropy_profile": "logistic",
}


@pytest.mark.filterwarnings("ignore:The latent spread has collapsed")  # two epochs are few
@pytest.mark.parametrize(
    # brief.yaml is the default experiment with the prompt of another store
    "path",
    sorted({*(ROOT / "configs").glob("*.yaml")} - {ROOT / "configs/brief.yaml"}),
    ids=lambda path: path.name,
)
def test_every_config_works_on_its_own(path: Path, sampled: Path, recipe: list[str], tmp_path: Path) -> None:
    store = shutil.copytree(sampled, tmp_path / "store")
    quick = ["--trainer.max_epochs=2", "--n_resamples=20", f"--runs={tmp_path}"]
    with nullcontext() if path.stem in ("default", "response") else few_baselines():
        folder = train.run([f"--config={path}", f"--data.store={store}", *recipe, *quick])
    report = json.loads((folder / "report.json").read_text())
    (methods,) = report["splits"]["test"].values()
    assert next(iter(methods)) == NAMED_OTHERWISE.get(path.stem, path.stem)


@pytest.mark.parametrize(
    "options",
    [
        {
            "policy.stop": '["\\n", "a: b", "it\'s"]',
            "policy.prompt.template": "Q: {question}\nA:",
            "policy.temperature": "0:1.2:0.1",
            "server.extra_body": '{"marker": ["\\n"]}',
            "fields": "{text: question, references: answer}",
        },
        {"policy.prompt.template": '"{question}"'},
    ],
)
def test_train_parses_recipe_options_like_the_sample_command(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recipes: list[StoreRecipe] = []

    def load(recipe: StoreRecipe) -> None:
        """Save only the recipe."""
        recipes.append(recipe)
        raise InputError("Expected nothing more.")

    def sample(recipe: StoreRecipe) -> None:
        """Save only the recipe."""
        recipes.append(recipe)

    monkeypatch.setattr(StoreRecipe, "load", load)
    joined = [f"--data.recipe.{option}={value}" for option, value in options.items()]
    separate = [word for option, value in options.items() for word in (f"--data.recipe.{option}", value)]
    for arguments in (joined, separate):
        with pytest.raises(InputError, match="nothing more"):
            train.run([*arguments, f"--runs={tmp_path}"])
    assert run({"sample": sample}, "extract", ["sample", *(word.replace("data.recipe.", "") for word in separate)]) == 0
    for of in map(attrgetter, options):
        values = list(map(of, recipes))
        assert values[0] == values[1] == values[2] != of(StoreRecipe())


def test_a_new_store_is_graded_with_the_default_grader_for_its_questions(recipe: list[str], tmp_path: Path) -> None:
    numbers = tmp_path / "numbers.jsonl"
    rows = [{"id": f"q{i}", "text": f"{i} + 1 =", "references": [str(i + 1)], "kind": "number"} for i in range(50)]
    numbers.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match="right and wrong answers"):  # the tiny model gives only wrong answers
        train.run(
            [*recipe, f"--data.recipe.questions={numbers}", f"--data.store={tmp_path / 's'}", f"--runs={tmp_path}"]
        )
    assert Store.open(tmp_path / "s").grades.names() == ["number"]


def test_too_few_questions_are_reported_before_sampling(recipe: list[str], tmp_path: Path) -> None:
    options = [*recipe, f"--data.store={tmp_path / 's'}", f"--runs={tmp_path}"]
    with pytest.raises(InputError, match=r"has only 9 \(of 45 questions\)"):
        train.run([*options, "--data.recipe.n_questions=45"])
    with pytest.raises(InputError, match="split fractions that sum to 1"):
        train.run([*options, "--data.val_fraction=0.9"])
    assert not (tmp_path / "s").exists()


def test_a_recipe_option_can_have_an_empty_value_but_not_another_option_as_its_value() -> None:
    given = ["--data.recipe.policy.prompt.system", "", "--data.recipe.revision", "--name=x"]
    rewritten = ['--data.recipe={"policy": {"prompt": {"system": ""}}}', "--data.recipe.revision", "--name=x"]
    assert train.recipe_as_mappings(given) == rewritten


def test_help_lists_our_options_before_lightnings(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        train.run(["--help"])
    shown = capsys.readouterr().out
    ours = [shown.index(option) for option in ("--model CONFIG", "--data.store", "--runs", "--n_resamples")]
    assert ours == sorted(ours)
    assert ours[-1] < shown.index("--trainer.max_epochs")
    assert all(method.class_name in shown for method in METHODS.values())


def test_more_than_one_device_is_refused(small_store: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="`trainer.devices` to be 1, but got '7'"):
        experiment(small_store, tmp_path, "--trainer.devices=7")
    assert not (tmp_path / "runs").exists()


def test_a_store_in_the_folder_of_a_run_that_fails_is_kept(small_store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "mine"
    with pytest.raises(InputError, match="max_epochs"):
        experiment(small_store, tmp_path, "--name=mine", "--trainer.max_epochs=0")
    assert not folder.exists()
    train.new_run_folder(tmp_path / "runs", "mine", "linear")
    store = shutil.copytree(small_store, folder / "store")
    with pytest.raises(InputError), train.discarding(folder):
        raise InputError("no epochs")
    assert sorted(path.name for path in folder.iterdir()) == ["store"]
    assert (store / "identity.json").is_file()


@pytest.mark.parametrize("name", [".", "..", "../other", "/tmp", "", "a/b", "there"])
def test_a_run_never_uses_or_deletes_an_existing_folder(name: str, small_store: Path, tmp_path: Path) -> None:
    (tmp_path / "runs" / "there").mkdir(parents=True)
    kept = [tmp_path / "mine", tmp_path / "runs" / "mine", tmp_path / "runs" / "there" / "mine"]
    for path in kept:
        path.touch()
    with pytest.raises(InputError, match="`name` to be"):
        experiment(small_store, tmp_path, f"--name={name}", "--trainer.max_epochs=0")
    assert all(path.exists() for path in kept)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model.l22=0.1"], "Did you mean `--model.l2`"),
        (["--trainer.max_epoch=3"], "Did you mean `--trainer.max_epochs`"),
        (["--fields={text: a}"], "Did you mean `--data.recipe.fields`"),
        (["--temperature=1"], "Did you mean `--data.recipe.policy.temperature`"),
        (["--model=models/mine"], "`--data.recipe.model` selects the language model"),
        (["--model=Qwen/Qwen2.5-0.5B"], "`--data.recipe.model` selects the language model"),
        (["--seed=3"], "Did you mean `--seed_everything`"),
        (["--data.recipe=null", "--data.store=nowhere"], "'nowhere' has no identity.json"),
        (["--model.l2=-1"], "`l2` to be one or more finite, non-negative penalties"),
        (["--data.recipe.k=1"], "`k` to be a whole number from 2"),
        (["--config=nowhere.yaml"], "nowhere.yaml"),
        (["--seed_everything=-1"], "-1 is not in bounds"),
        (["--trainer.accelerator=foo"], "invalid accelerator name"),
    ],
)
def test_train_gives_one_line_errors(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    try:
        status: object = exit_status(partial(train.run, [f"--runs={tmp_path}", *options]))
    except SystemExit as stopped:
        status = stopped.code
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert (status, len(errors)) == (2, 1)
    assert message in errors[0]


def test_the_program_prints_an_error_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", "--model.l22=0.1"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(ROOT / "train.py"), run_name="__main__")
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
    assert "Did you mean `--model.l2`" in line
    assert stopped.value.code == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["sample", "--store=s", "--policy.temprature=1"], "Did you mean `--policy.temperature`"),
        (["sample", "--stor=s"], "--store"),
        (["sample", "--store=s", "--k=1"], "`k` to be a whole number from 2"),
        (["sample", "--store=s", "--questions=nowhere.jsonl"], "'nowhere.jsonl' does not exist"),
        (["sample", "--store=s", "--policy.prompt.template=hello"], "{question} exactly once"),
        (["sample", "--store=s", "--k=many"], "--k"),
        (["grade", "--store=s"], "'s' has no identity.json"),
        (["smaple"], "sample"),
    ],
)
def test_extract_gives_one_line_errors(
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        status = run(COMMANDS, "extract", options)
    except SystemExit as stopped:
        status = int(str(stopped.code))
    error = capsys.readouterr().err
    assert status == 2
    assert message in error
    assert error.count("error:") == 1
    assert len(error.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["grade", "--grader=shrt"], "short"),
        (["read", "--signals=[hiden]"], "hidden"),
        (["ask", "--baselines=[p_tru]"], "p_true"),
        (["inspect", "--grader=plnted"], "planted"),
    ],
)
def test_extract_names_the_nearest_match(
    options: list[str], name: str, small_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(COMMANDS, "extract", [*options, f"--store={small_store}"]) == 2
    assert f"Did you mean `{name}`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("data:\n  stor: x\n", "got `--data.stor`. Did you mean `--data.store`"),
        ("trainr:\n  max_epochs: 1\n", "got `--trainr.max_epochs`. Did you mean `--trainer.max_epochs`"),
        ("model:\n  class_path: Linear\n  init_args:\n    lrr: 1\n", "got `--model.lrr`. Did you mean `--model.lr`"),
        ("model: Linea\n", "but got 'Linea'. Did you mean `Linear`"),
    ],
)
def test_a_mistake_in_a_config_file_is_named(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(content)
    with pytest.raises(SystemExit):
        train.run([f"--config={tmp_path / 'mine.yaml'}"])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [("kk: 1\n", "got `--kk`."), ("policy:\n  temprature: 1\n", "Did you mean `--policy.temperature`")],
)
def test_a_mistake_in_an_extraction_config_is_named(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(content)
    with pytest.raises(SystemExit):
        run(COMMANDS, "extract", ["sample", f"--config={tmp_path / 'mine.yaml'}", f"--store={tmp_path / 's'}"])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("epochs", [5, 15])
def test_the_candidate_is_chosen_with_the_saved_weights(small_store: Path, tmp_path: Path, epochs: int) -> None:
    """Check that neither the sanity check nor an earlier validation epoch selects the candidate."""
    folder = experiment(small_store, tmp_path, "--model=Linear", f"--trainer.max_epochs={epochs}")
    rows = pq.read_table(folder / "predictions.parquet").to_pylist()
    assert max(row["linear"] for row in rows) - min(row["linear"] for row in rows) > 0.2


def test_two_answers_per_question_are_enough_for_the_probe_and_too_few_for_consistency(
    make_small_store: Any, tmp_path: Path
) -> None:
    store = make_small_store(n=60, k=2)
    report = json.loads((experiment(store, tmp_path) / "report.json").read_text())
    methods = report["splits"]["test"]["capability"]
    assert methods["layer_average"]["auroc"] is not None
    assert methods["consistency"]["auroc"] is None
    assert methods["consistency"]["n_masked"] == 18
    assert not [row for row in report["paired"] if row["b"] == "consistency"]


def test_a_run_without_fitting_gives_a_one_line_error_and_no_folder(small_store: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="max_epochs"):
        experiment(small_store, tmp_path, "--trainer.max_epochs=0")
    with pytest.raises(InputError, match="`n_resamples` to be at least 1"):
        experiment(small_store, tmp_path, "--n_resamples=0")
    assert not any((tmp_path / "runs").iterdir())


def test_the_commands_work_one_after_the_other(
    tmp_path: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions, store = write_questions(tmp_path / "q.jsonl", 10), f"--store={tmp_path / 's'}"
    assert (
        run(
            COMMANDS,
            "extract",
            [
                "sample",
                store,
                f"--questions={questions}",
                f"--model={tiny_folder}",
                "--k=3",
                "--policy.max_new_tokens=4",
            ],
        )
        == 0
    )
    assert run(COMMANDS, "extract", ["inspect", store]) == 0
    assert "run `python -m extract grade`" in capsys.readouterr().out
    assert run(COMMANDS, "extract", ["grade", store]) == 0
    assert run(COMMANDS, "extract", ["read", store, f"--model={tiny_folder}"]) == 0
    assert run(COMMANDS, "extract", ["inspect", store]) == 0
    shown = capsys.readouterr().out
    assert "30, 4.0 tokens each" in shown or "samples    30" in shown
    assert "hidden: 1 of 1 blocks" in shown
    assert run(COMMANDS, "extract", ["verify", store]) == 0
    assert "4 files intact" in capsys.readouterr().out
    (tmp_path / "s/samples/00000.000-003.parquet").write_bytes(b"")
    assert run(COMMANDS, "extract", ["verify", store]) == 2
    assert "samples/00000.000-003.parquet: it has 0 bytes" in capsys.readouterr().err


def test_secrets_in_the_environment_are_not_saved_in_a_run(folders: list[Path]) -> None:
    assert OfflineRun(folders[0]).config  # after everything is written
    for path in folders[0].rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


@pytest.mark.real_model
def test_the_whole_experiment_runs_on_the_embedded_model(tmp_path: Path) -> None:
    """Sample, grade, read, train, and compare all confidences on SmolLM2."""
    from extract import Store, load_model

    options: list[str] = [
        f"--data.store={tmp_path / 'store'}",
        f"--runs={tmp_path / 'runs'}",
        "--data.recipe.n_questions=30",
        "--data.recipe.k=2",
        "--data.recipe.policy.max_new_tokens=8",
        "--data.val_fraction=0.35",
        "--data.test_fraction=0.25",
        "--n_resamples=100",
    ]
    folder = train.run(options)
    store = Store.open(tmp_path / "store")
    samples = store.samples.read().to_pylist()
    assert len(samples) == 60
    hf_model, tokenizer = load_model()
    check_logprobs(hf_model, tokenizer, store, samples[::15])
    rows = pq.read_table(folder / "predictions.parquet").to_pylist()[::3]
    texts = {question.id: question.text for question in store.questions}
    probe = load_probe(folder / "probe")
    questions = [texts[row["question_id"]] for row in rows]
    expected = [row["layer_average"] for row in rows]
    assert probe.score(hf_model, tokenizer, questions).confidence.tolist() == pytest.approx(expected, abs=1e-4)
    answers = probe.attach(hf_model, tokenizer).generate(questions[:6], max_new_tokens=4, do_sample=False)
    assert answers.confidence.tolist() == pytest.approx(expected[:6], abs=1e-4)


def check_logprobs(hf_model: Any, tokenizer: Any, store: Any, samples: list[dict[str, Any]]) -> None:
    from extract import PromptTemplate

    template = PromptTemplate(**store.identity["policy"]["decoding"]["prompt"])
    texts = {question.id: question.text for question in store.questions}
    for row in samples:
        prompt = template.encode(tokenizer, texts[row["question_id"]])
        with torch.inference_mode():
            logits = hf_model(torch.tensor([prompt + row["token_ids"]])).logits[0].log_softmax(-1)
        expected = [float(logits[len(prompt) + t - 1, token]) for t, token in enumerate(row["token_ids"])]
        assert row["logprobs"] == pytest.approx(expected, abs=1e-3)
