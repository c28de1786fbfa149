"""Make small stores, runs and probes with confidence-probes at commit 5763a08, before the redesign.

Run this script at commit 5763a08 in the folder for the data, with the old code first on the path::

    cd tests/data/legacy
    PYTHONPATH=CHECKOUT:CHECKOUT/tests OMP_NUM_THREADS=1 python make_legacy.py

CHECKOUT is a checkout of that commit. The data are committed and must not be made again: this file documents how they
were made. All paths are relative to the folder, so the files contain no paths of a machine. The old code is imported
inside the functions, so this file can be imported without it.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

COMMIT = "5763a08"
SCRATCH = Path("scratch")
LOCAL, SERVED = "local_store", "served_store"
#: Options of `train.py` by the name of the run, in addition to `COMMON`.
RUNS: dict[str, list[str]] = {
    "linear": ["--model=Linear", "--trainer.max_epochs=20"],
    "difference_of_means": ["--model=DifferenceOfMeans", "--data.layers=[1,3]"],
    "mlp_temperature": [
        "--model=MLP",
        "--model.hidden=8",
        "--model.calibrator=temperature",
        "--trainer.max_epochs=20",
    ],
    "latent": ["--model=Latent", "--model.hidden=8", "--model.components=4", "--trainer.max_epochs=20"],
    "sep": ["--model=Logistic", "--data.target=semantic_entropy"],
    "joined_questions": ["--model=Ridge", "--data.join=[tokens]"],
    "response": ["--model=Logistic", "--data.target=response", "--data.positions=[last_answer,mean_answer]"],
    "response_joined": [
        "--model=Logistic",
        "--model.calibrator=isotonic",
        "--data.target=response",
        "--data.positions=[mean_answer]",
        "--data.join=[tokens,entropy_profile]",
        "--data.weights=entropy",
    ],
    "response_tokens": [
        "--model=Logistic",
        "--data.target=response",
        "--data.signal=tokens",
        "--data.positions=[entropy]",
        "--data.pooling=[distribution]",
    ],
    "response_knn": [
        "--model=KNN",
        "--model.n_neighbors=[5,25]",
        "--model.calibrator=isotonic",
        "--data.target=response",
        "--data.signal=tokens",
        "--data.pooling=[mean,max]",
    ],
}
COMMON = [f"--data.store={LOCAL}", "--data.recipe=null", "--data.grader=short", "--n_resamples=50", "--runs=runs"]
KEPT = {"config.yaml", "report.json", "report.md", "predictions.parquet", "probe"}
#: Tensors whose sums are saved, by store: scope, signal, key, and whether the tensor is ragged.
SUMMED = {
    LOCAL: [
        ("question", "hidden", "3/last_prompt", False),
        ("question", "tokens", "3/entropy", False),
        ("question", "text_embedding", "0/question", False),
        ("sample", "hidden", "1/mean_answer", False),
        ("sample", "hidden", "3/last_answer", False),
        ("sample", "text_embedding", "0/answer", False),
        ("sample", "tokens", "3/nll", True),
        ("sample", "tokens", "3/margin", True),
        ("sample", "entropy_profile", "2/entropy", True),
    ],
    SERVED: [
        ("question", "hidden", "3/last_prompt", False),
        ("sample", "hidden", "3/last_answer", False),
        ("sample", "tokens", "3/entropy", True),
    ],
}


def make_models() -> None:
    """Save a random model with tokens for Yes and No, and a random sentence encoder."""
    import torch
    import transformers

    from tests.helpers.tiny import byte_tokenizer, tiny_model

    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["Yes", " yes", "YES", "No", " no"])
    model = tiny_model(vocab_size=len(tokenizer), max_position_embeddings=1024)
    model.save_pretrained(SCRATCH / "tiny")
    tokenizer.save_pretrained(SCRATCH / "tiny")
    torch.manual_seed(0)
    sizes = {"vocab_size": 258, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    encoder = transformers.BertModel(
        transformers.BertConfig(**sizes, intermediate_size=24, max_position_embeddings=128)
    )
    for parameter in encoder.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    encoder.save_pretrained(SCRATCH / "encoder")
    byte_tokenizer().save_pretrained(SCRATCH / "encoder")


def write_questions(name: str, records: list[dict[str, Any]]) -> str:
    """Write a file of questions and return its path."""
    path = SCRATCH / f"{name}.jsonl"
    path.write_text("\n".join(map(json.dumps, records)) + "\n", encoding="utf-8")
    return str(path)


def recipe(questions: str, k: int) -> Any:
    """Return the options for the local store."""
    from extract import Decoding, StoreRecipe

    policy = Decoding(max_new_tokens=8, temperature=0.7, stop=("5", "\x13"), seed=3)
    return StoreRecipe(
        questions=questions, model=str(SCRATCH / "tiny"), k=k, policy=policy, block_size=32, device="cpu"
    )


def with_references(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return questions whose references are some of the model's answers. Hidden states determine how many are right.

    Some references are whole answers and others are single words, which the graders short and exact treat differently.
    """
    import numpy as np

    from extract import read, sample
    from extract.grading.short import first_line
    from extract.text import normalize

    tried, rng = str(SCRATCH / "tried"), np.random.default_rng(0)
    store = sample(tried, recipe(write_questions("tried", records), 4))
    for scope, signal in (("question", "hidden"), ("sample", "hidden"), ("sample", "tokens")):
        read(tried, [signal], scope, None, str(SCRATCH / "tiny"), "cpu")

    def planted(values: Any) -> Any:
        """Project [row, width] values on a random direction, and scale the result to mean 0 and standard deviation 1.
        """
        along = values @ rng.normal(size=values.shape[1])
        return (along - np.nanmean(along)) / np.nanstd(along)

    of_question = planted(store.read_signal("hidden", "3/last_prompt").numpy())
    logit_of = dict(zip((one.id for one in store.questions), of_question, strict=True))
    entropy = store.read_ragged("tokens", "3/entropy").padded().nanmean(1, keepdim=True).numpy()
    of_answer = planted(store.read_signal("hidden", "1/mean_answer", "sample").numpy()) + planted(entropy)
    accepted: dict[str, list[str]] = {}
    for row, further in zip(store.samples().to_pylist(), of_answer, strict=True):
        line = first_line(row["text"])
        words = normalize(line).split()
        if words and 2 * (logit_of[row["question_id"]] + further) + rng.logistic() > 0:
            accepted.setdefault(row["question_id"], []).append(words[-1] if rng.random() < 0.3 else line)
    return [{**one, "references": accepted.get(one["id"], ["nobody says this"])} for one in records]


def make_local_store() -> None:
    """Make a local model's store with two sample ranges, two graders, signals of both scopes and asked baselines."""
    from extract import Store, grade, read, sample
    from extract.asking.commands import ask

    records: list[dict[str, Any]] = [
        {"id": f"q{i}", "text": f"Say {i} " + "word " * (i % 5), "references": ["x"], "group": "etaoin"[i % 3]}
        for i in range(60)
    ]
    for record in records[::10]:
        record["meta"] = {"source": "made", "number": len(record["text"])}
    questions = write_questions("local", with_references(records))
    model = str(SCRATCH / "tiny")
    sample(LOCAL, recipe(questions, 2))
    grade(LOCAL, "short")
    sample(LOCAL, recipe(questions, 4))
    grade(LOCAL, "short")
    grade(LOCAL, "exact")
    read(LOCAL, ["hidden"], "question", [0, 1, 3], model, "cpu")
    read(LOCAL, ["tokens"], "question", None, model, "cpu")
    read(LOCAL, ["hidden"], "sample", [1, 3], model, "cpu")
    read(LOCAL, ["tokens", "entropy_profile"], "sample", None, model, "cpu")
    encoder = str(SCRATCH / "encoder")
    for baseline in ("p_true", "verbalized", "p_true_answer", "text_embedding"):
        ask(LOCAL, [baseline], model, "cpu", embedding_model=encoder, max_new_tokens=5)
    # at this commit, a question without words in any answer made the weights of `latent` NaN
    store = Store.open(LOCAL)
    embedded = store.read_signal("text_embedding", "0/answer", "sample").isfinite().all(1).tolist()
    assert {one for one, found in zip(store.samples()["question_id"].to_pylist(), embedded, strict=True) if found} == {
        one.id for one in store.questions
    }


def make_served_store() -> None:
    """Make a served model's store from a run that reached its budget: complete parts, and one part with its log."""
    from serving_stub import MODEL, stub

    from extract import Decoding, InputError, StoreRecipe, grade, read, sample
    from extract.serving.options import Server

    records = [
        {
            "id": f"c{i}",
            "text": f"Which of these is number {i}?",
            "references": ["AB"[i % 2], f"number {i}"],
            "kind": "choice",
            "choices": [f"number {i + i % 2}", f"number {i + 1 - i % 2}", "none of them"],
            "group": "even" if i % 2 == 0 else "odd",
        }
        for i in range(12)
    ]
    with stub(answers=("A", "B", "(A) of course", "It is B.", "C", "no idea"), ignores=("usage",)) as server:
        asked = StoreRecipe(
            questions=write_questions("served", records),
            sampler="server",
            model=MODEL,
            k=3,
            block_size=4,
            policy=Decoding(temperature=1.0, max_new_tokens=8),
            server=Server(url=server.url, in_flight=1, per_request=2, budget_requests=26, attempts=2),
        )
        stopped = ""
        try:
            sample(SERVED, asked)
        except InputError as error:
            stopped = str(error)
        assert "budget" in stopped
    grade(SERVED, "choice")
    grade(SERVED, "contains")
    model = str(SCRATCH / "tiny")
    read(SERVED, ["hidden"], "question", [0, 3], model, "cpu")
    read(SERVED, ["hidden"], "sample", [0, 3], model, "cpu")
    read(SERVED, ["tokens"], "sample", None, model, "cpu")


def make_runs() -> None:
    """Run `train.py` for each of `RUNS`, without logs and pictures."""
    import train

    for name, options in RUNS.items():
        further = [] if any("max_epochs" in one for one in options) else ["--trainer.max_epochs=1"]
        folder = train.run([*COMMON, f"--name={name}", *options, *further])
        for path in folder.iterdir():
            if path.name not in KEPT:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def store_facts(folder: str) -> dict[str, Any]:
    """Return a numerical summary of a store."""
    from extract import Store

    store = Store.open(folder)
    samples, facts = store.samples(), {}
    facts["identity"] = store.sha256
    facts["n_questions"] = len(store.questions)
    facts["n_rows"] = samples.num_rows
    facts["parts"] = [part.stem for part in store.parts()]
    facts["n_tokens"] = sum(one or 0 for one in samples["n_tokens"].to_pylist())
    facts["finish_reasons"] = {
        one: samples["finish_reason"].to_pylist().count(one)
        for one in sorted(set(samples["finish_reason"].to_pylist()))
    }
    facts["first_text"] = samples["text"][0].as_py()
    facts["log_lines"] = {
        log.name: log.read_bytes().count(b"\n") - 1 for log in sorted(store.path.glob("samples/*.jsonl"))
    }
    facts["reader"] = None if store.reader is None else store.reader["fingerprint"]
    facts["accuracy"] = {}
    for grader in store.graders():
        right = [one for one in store.grades(grader)["right"].to_pylist() if one is not None]
        facts["accuracy"][grader] = {"n_known": len(right), "mean": sum(right) / len(right)}
    facts["asked"] = {}
    for scope in ("question", "sample"):
        for name in store.asked_names(scope):
            table = store.asked(name, scope)
            values = [one for one in table["value"].to_pylist() if one is not None]
            facts["asked"][f"{scope}/{name}"] = {"n_rows": table.num_rows, "n": len(values), "sum": sum(values)}
    facts["signals"] = {}
    for scope, signal, key, ragged in SUMMED[folder]:
        values = store.read_ragged(signal, key, scope).values if ragged else store.read_signal(signal, key, scope)
        finite = values.isfinite()
        facts["signals"][f"{scope}/{signal}/{key}"] = {
            "ragged": ragged,
            "shape": list(values.shape),
            "n_missing": int((~finite).sum()),
            "sum": float(values[finite].double().sum()),
            "sum_abs": float(values[finite].double().abs().sum()),
        }
    return facts


def probe_facts(name: str) -> tuple[dict[str, Any], Any]:
    """Return a saved probe's confidences for five rows of the test split, and the features of these rows."""
    import pyarrow.parquet as pq
    import torch

    from extract import Store
    from probes import load_probe

    store, probe = Store.open(LOCAL), load_probe(f"runs/{name}/probe")
    scope = "sample" if probe.reads_answers else "question"
    held = {
        signal: {
            key: (store.read_ragged if scope == "sample" and signal != "hidden" else store.read_signal)(
                signal, key, scope
            )
            for key in store.signal_keys(signal, scope)
        }
        for signal in probe.signals
    }
    features = probe.features(held)
    predicted = pq.read_table(f"runs/{name}/predictions.parquet").to_pylist()
    if scope == "question":
        place = {question.id: row for row, question in enumerate(store.questions)}
        of_row = {place[one["question_id"]]: one for one in predicted}
    else:
        keys = zip(*(store.samples()[column].to_pylist() for column in ("question_id", "sample")), strict=True)
        place = {key: row for row, key in enumerate(keys)}
        of_row = {place[one["question_id"], one["sample"]]: one for one in predicted}
    test = sorted((one[probe.config["name"]], row) for row, one in of_row.items() if one["split"] == "test")
    rows = sorted(test[i * (len(test) - 1) // 4][1] for i in range(5))  # from the lowest confidence to the highest
    chosen = features[rows].contiguous()
    confidences = [float(one) for one in probe.confidence(chosen)]
    assert max(confidences) - min(confidences) > 0.05, f"{name} tells nothing apart: {confidences}"
    reported = torch.tensor([of_row[row][probe.config["name"]] for row in rows])
    torch.testing.assert_close(torch.tensor(confidences), reported, rtol=0, atol=1e-6)
    facts = {
        "store": LOCAL,
        "scope": scope,
        "rows": rows,
        "signal": probe.config["signal"],
        "layer": probe.layer,
        "position": probe.position,
        "pooled": probe.config.get("pooled"),
        "head": probe.config["head"],
        "calibrator": probe.config["calibrator"],
        "target": probe.config["target"],
        "scores": [float(one) for one in probe.head(chosen)],
        "confidences": confidences,
    }
    return facts, chosen


def write_expected() -> None:
    """Write expected.json and features.safetensors."""
    from importlib.metadata import version

    from safetensors.torch import save_file

    probes = {name: probe_facts(name) for name in RUNS}
    save_file({name: features for name, (_, features) in probes.items()}, "features.safetensors")
    packages = ("confidence-probes", "torch", "transformers", "safetensors", "pyarrow", "lightning", "numpy")
    expected = {
        "commit": COMMIT,
        "versions": {"python": platform.python_version(), **{package: version(package) for package in packages}},
        "stores": {folder: store_facts(folder) for folder in (LOCAL, SERVED)},
        "probes": {name: facts for name, (facts, _) in probes.items()},
        "report_keys": sorted(json.loads(Path("runs", "linear", "report.json").read_text(encoding="utf-8"))),
    }
    Path("expected.json").write_text(json.dumps(expected, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def main() -> None:
    """Make all data in the current folder."""
    import extract

    code = Path(extract.__file__).parents[1]
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=code, capture_output=True, text=True, check=True).stdout
    assert found.startswith(COMMIT), f"the code is of {found.strip()}, not of {COMMIT}: see the top of this file"
    for path in (SCRATCH, Path(LOCAL), Path(SERVED), Path("runs")):
        shutil.rmtree(path, ignore_errors=True)
    SCRATCH.mkdir()
    for name in ("WANDB_DATA_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR"):
        os.environ[name] = str(SCRATCH.resolve() / "wandb")
    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "HF_HUB_OFFLINE": "1"}
    make_models()
    make_local_store()
    make_served_store()
    make_runs()
    write_expected()
    shutil.rmtree(SCRATCH)
    for lock in (path for folder in (LOCAL, SERVED) for path in Path(folder).rglob(".*.lock")):
        lock.unlink()


if __name__ == "__main__":
    main()
