"""Test a third sampler, which replays answers from a JSON Lines file, from `sample` to a report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

import train
from extract import InputError, Store, StoreRecipe
from extract.__main__ import COMMANDS
from extract.policy import Decoding, ModelIdentity, Policy
from extract.questions.source import find_source
from extract.running.cli import run
from extract.running.worker import Worker
from extract.samplers import SAMPLERS, Declaration
from extract.sampling.base import Sampler, SamplingOptions
from tests.helpers.tiny import write_questions


class Replay(Sampler):
    """A sampler that replays the answers in the file given by `model`."""

    def __init__(self, options: SamplingOptions, decoding: Decoding, worker: Worker) -> None:
        self.path, self.worker = Path(options.model), worker

    def policy(self, decoding: Decoding) -> Policy:
        return Policy(ModelIdentity(self.path.name), decoding)

    def fill(self, stores: Mapping[float, Store], k: int) -> None:
        answers = {
            (row["id"], row["sample"]): row["text"] for row in map(json.loads, self.path.read_text().splitlines())
        }
        unknown = dict.fromkeys(("reasoning", "token_ids", "logprobs", "n_tokens", "prompt_tokens"))
        for store in stores.values():
            for samples in store.samples.missing(k):
                keys = [(id_, j) for id_ in store.questions.ids(samples) for j in range(samples.start, samples.stop)]
                if self.worker.has(samples.block):
                    rows = [{"question_id": id_, "sample": j, "text": answers[id_, j]} for id_, j in keys]
                    store.samples.write(samples, [{**row, "finish_reason": "stop", **unknown} for row in rows])


REPLAY = Declaration("replay-1", Replay, nullable=("reasoning", "token_ids", "logprobs", "n_tokens", "prompt_tokens"))


def test_a_new_sampler_needs_a_class_and_a_registry_entry(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(SAMPLERS, "replay", REPLAY)
    questions, store = str(write_questions(tmp_path / "questions.jsonl", 60)), str(tmp_path / "store")
    lines = [
        {"id": question.id, "sample": j, "text": question.references[0] if (i + j) % 3 else "something else"}
        for i, question in enumerate(find_source(questions).questions(seed=0))
        for j in range(4)
    ]
    (tmp_path / "answers.jsonl").write_text("\n".join(map(json.dumps, lines)))

    def command(*options: str) -> None:
        assert run(COMMANDS, "extract", [*options, "--store", store]) == 0, capsys.readouterr().err

    answers = str(tmp_path / "answers.jsonl")
    command("sample", "--sampler", "replay", "--questions", questions, "--model", answers, "--k", "4")
    command("grade")
    command("read", "--model", str(tiny_folder))
    command("inspect")
    command("verify")
    folder = train.run(
        [f"--data.store={store}", "--data.recipe=null", f"--runs={tmp_path / 'runs'}", "--n_resamples=20"]
    )
    report = json.loads((folder / "report.json").read_text())
    assert "layer_average" in json.dumps(report)
    opened = Store.open(store)
    assert (opened.identity["sampler"], opened.samples.provides) == ("replay-1", REPLAY)
    assert opened.samples.read().num_rows == 240
    with pytest.raises(InputError, match="`sampler` to be one of local, server, imported, replay, but got 'replai'"):
        StoreRecipe(sampler="replai")
