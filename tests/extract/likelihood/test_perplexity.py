"""Tests of perplexity and of the most likely next tokens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from extract import InputError
from extract.likelihood.next_tokens import next_tokens
from extract.likelihood.perplexity import measure_texts, perplexity, read_texts, windows
from extract.likelihood.report import describe_texts
from tests.helpers.tiny import byte_tokenizer, tiny_model


@pytest.mark.slow
@given(st.integers(2, 200), st.integers(2, 50), st.data())
def test_windows_score_every_token_but_the_first_once(n_tokens: int, window: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, window - 1))
    scored = []
    for begin, end, first in windows(n_tokens, window, stride):
        assert begin < first < end <= begin + window
        assert begin == 0 or first - begin >= window - stride
        scored += range(first, end)
    assert scored == list(range(1, n_tokens))


@torch.inference_mode()
def by_the_recipe(text: str, stride: int) -> float:
    """Return the negative log-likelihood of a text by the recipe of transformers' documentation, in float64."""
    model, window = tiny_model().double(), 32
    ids = torch.tensor([[0, *byte_tokenizer()(text)["input_ids"]]])
    total, previous = 0.0, 0
    for begin in range(0, ids.shape[1], stride):
        end = min(begin + window, ids.shape[1])
        labels = ids[:, begin:end].clone()
        labels[:, : -(end - previous)] = -100
        n_scored = int((labels[:, 1:] != -100).sum())
        total += float(model(ids[:, begin:end], labels=labels).loss) * n_scored
        previous = end
        if end == ids.shape[1]:
            break
    return total


@pytest.mark.slow
@pytest.mark.parametrize("stride", [1, 7, 16, 31])
def test_long_texts_equal_the_recipe_with_strides(stride: int) -> None:
    texts = ["A text that is much longer than the context of the model, by far.", "Short.", "ä " * 40]
    table = measure_texts(tiny_model(), byte_tokenizer(), texts, 32, stride)
    assert table["nll"].to_pylist() == pytest.approx([by_the_recipe(text, stride) for text in texts], abs=1e-3)
    assert table.drop("nll").to_pylist() == [
        {"n_tokens": 65, "n_bytes": 65, "n_words": 14},
        {"n_tokens": 6, "n_bytes": 6, "n_words": 1},
        {"n_tokens": 120, "n_bytes": 120, "n_words": 40},
    ]


@pytest.mark.parametrize("stride", [0, 32, -1])
def test_a_stride_that_skips_tokens_is_refused(stride: int) -> None:
    with pytest.raises(InputError, match=f"`stride` to be between 1 and 31.*but got {stride}"):
        measure_texts(tiny_model(), byte_tokenizer(), ["text"], 32, stride)


@pytest.mark.parametrize("window", [1, 513])
def test_a_window_beyond_the_context_is_refused(window: int) -> None:
    with pytest.raises(InputError, match=f"between 2 and 512, the model's context length, but got {window}"):
        measure_texts(tiny_model(), byte_tokenizer(), ["text"], window)


@pytest.mark.slow
def test_a_text_longer_than_the_context_is_read_in_windows_by_default() -> None:
    model, tokenizer = tiny_model(max_position_embeddings=32), byte_tokenizer()
    text = "longer than the context " * 4
    assert measure_texts(model, tokenizer, [text]) == measure_texts(tiny_model(), tokenizer, [text], 32, 16)


def test_the_perplexity_of_all_texts_weights_each_token_equally() -> None:
    nll, lengths = np.array([10.0, 60.0]), np.array([10, 20])
    assert perplexity(nll, lengths).value == pytest.approx(np.exp(70 / 30))
    assert perplexity(nll[:1], lengths[:1]) == (pytest.approx(np.e), None)


def test_the_interval_covers_the_true_perplexity() -> None:
    rng, covered = np.random.default_rng(0), 0
    for _ in range(500):
        lengths = rng.integers(20, 400, size=40)
        rate = 2 + 0.3 * rng.normal(size=40)
        low, high = perplexity(rng.gamma(lengths, 1) * rate, lengths).interval or (0, 0)
        covered += low <= np.exp(2) <= high
    assert 0.92 <= covered / 500 <= 0.975


@pytest.mark.parametrize("suffix", [".txt", ".jsonl", ".json", ".csv", ".parquet"])
def test_texts_are_read_from_every_format(tmp_path: Path, suffix: str) -> None:
    path, rows = tmp_path / f"texts{suffix}", [{"text": "one two"}, {"text": "three"}]
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        contents = {
            ".txt": "one two",
            ".jsonl": "\n".join(map(json.dumps, rows)),
            ".json": json.dumps(rows),
            ".csv": "text\none two\nthree\n",
        }
        path.write_text(contents[suffix], encoding="utf-8")
    assert read_texts(str(path)) == (["one two"] if suffix == ".txt" else ["one two", "three"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.txt", None, "does not exist"),
        ("texts.doc", "a", "different suffix"),
        ("empty.txt", "", "row 1 has no valid text"),
        ("empty.jsonl", "", "the file has no rows"),
        ("other.jsonl", '{"text": "a"}\n{"body": "b"}', "row 2 has no valid text.*column must be named `text`"),
    ],
)
def test_files_without_texts_are_refused(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_texts(str(tmp_path / name))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("bytes.txt", b"\xff"),
        ("bytes.json", b'[{"text": "\xff"}]'),
        ("bytes.csv", b"text\n\xff\n"),
        ("quote.csv", b'text\n"a\n'),
        ("half.json", b"[{"),
        ("deep.json", b"[" * 100_000),
        ("table.parquet", b"PAR1 no table PAR1"),
        ("half.jsonl", b'{"text": '),
        ("surrogate.jsonl", b'{"text": "\\ud800"}'),
    ],
)
def test_damaged_files_are_refused_in_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match="^Expected .*$"):
        read_texts(str(tmp_path / name))


def test_the_suffix_may_be_in_upper_case(tmp_path: Path) -> None:
    (tmp_path / "TEXT.TXT").write_text("one")
    assert read_texts(str(tmp_path / "TEXT.TXT")) == ["one"]


@pytest.mark.parametrize("n", [1, 21])
def test_a_perplexity_beyond_float64_has_finite_bits(n: int) -> None:
    table = pa.table({"nll": [1000.0] * n, "n_tokens": [300] * n, "n_bytes": [900] * n, "n_words": [1] * n})
    first, *_, words = describe_texts(table)
    assert first.startswith("Perplexity 28.03")
    assert f"over {n} text{'s' * (n > 1)} (" in first
    assert "inf" in words
    assert words.endswith("1442.695")


@pytest.mark.slow
def test_next_tokens_are_the_most_likely_ones() -> None:
    model, tokenizer = tiny_model(), byte_tokenizer()
    with torch.inference_mode():
        ids = torch.tensor([tokenizer("Lim")["input_ids"]])
        p = model.double()(ids).logits[0, -1].softmax(-1)
    found = next_tokens(model.float(), tokenizer, "Lim", 5)
    assert [one.token for one in found] == p.argsort(descending=True)[:5].tolist()
    assert [one.probability for one in found] == pytest.approx(p.sort(descending=True).values[:5].tolist(), abs=1e-5)
    assert found[0].text == tokenizer.decode([found[0].token])


@pytest.mark.parametrize(
    ("prompt", "top_k", "message"),
    [
        ("", 3, "at least one token"),
        ("a", 0, "`top_k` to be between 1 and 258"),
        ("a", 259, "258"),
        ("a" * 512, 3, "512"),
    ],
)
def test_an_impossible_request_for_next_tokens_is_refused(prompt: str, top_k: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        next_tokens(tiny_model(), byte_tokenizer(), prompt, top_k)
