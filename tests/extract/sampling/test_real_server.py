"""Tests with `transformers serve` and the tiny model, which is started on the loopback interface."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from extract import StoreRecipe, grade, sample
from extract.errors import InputError
from extract.models.store_model import encode_questions
from extract.policy import Decoding
from extract.prompts import PromptTemplate
from extract.sampling.server.policy import Server
from tests.helpers.transformers_server import DRAWS, prompt_lengths, transformers_serve

pytestmark = pytest.mark.slow


def test_a_real_server_answers_every_question_and_is_refused_if_it_decodes_greedily(
    tmp_path: Path, tiny_folder: Path
) -> None:
    def recipe(url: str, **changed: object) -> StoreRecipe:
        server = Server(**{"url": url, "logprobs": False, "extra_body": DRAWS, **changed})
        policy = Decoding(max_new_tokens=6)
        return StoreRecipe(n_questions=6, sampler="server", model=tiny_folder.name, k=2, policy=policy, server=server)

    with transformers_serve(tiny_folder) as url:
        with pytest.raises(InputError, match="`server.logprobs` to false"):
            sample(str(tmp_path / "logprobs"), recipe(url, logprobs=True))
        with pytest.raises(InputError, match=r"returned the same answer 4 times.*do_sample"):
            sample(str(tmp_path / "greedy"), recipe(url, extra_body={}))
        store = sample(str(tmp_path / "store"), recipe(url))

    rows = store.samples.read().to_pylist()
    assert {(row["question_id"], row["sample"]) for row in rows} == {(q.id, j) for q in store.questions for j in (0, 1)}
    assert {row["finish_reason"] for row in rows} <= {"stop", "length"}
    assert grade(str(store.path), "short").grades.read("short").num_rows == 12
    prompts = encode_questions(AutoTokenizer.from_pretrained(tiny_folder), PromptTemplate(), list(store.questions))
    assert prompt_lengths(store) == {q.id: len(ids) for q, ids in zip(store.questions, prompts, strict=True)}
