"""Tests of signal pictures: AUROC by layer and position, entropy profiles, and answers token by token."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.table import load_table
from extract import Decoding, Question, Store
from extract.errors import InputError
from extract.models.loading import tokenizer_hash
from extract.policy import Identity, ModelIdentity, Policy
from extract.questions import questions_hash
from extract.running.cli import run
from extract.store.ragged import Ragged
from extract.store.shards import SampleRange
from extract.viewing.answers import LONGEST, Piece, ShownAnswer, choose, pieces
from extract.viewing.curve import LONGEST as LONGEST_OF_A_CURVE
from extract.viewing.curve import drawable, entropy_curve
from extract.viewing.html import page
from extract.viewing.show import show
from probes.commands import pictures
from probes.report.entropy_profile import entropy_profile, profile_picture
from probes.report.layer_map import layer_heat_map, layer_map, out_of_fold
from tests.helpers.planted import planted
from tests.helpers.synthetic import add_answer_signals, make_store
from tests.helpers.tiny import byte_tokenizer

pytestmark = pytest.mark.slow

TOKENIZER = byte_tokenizer()
#: Two questions with two answers each: plain, with markup, of characters of several bytes, and empty.
TEXTS = ("It is 4.", '<script>alert("x")</script> & </p> $x^2$\n\nno', "Vielleicht 四 oder 🙂", "")


@pytest.fixture
def drafts() -> None:
    """Save pictures at full quality."""


def ids_of(text: str) -> list[int]:
    return list(TOKENIZER(text)["input_ids"]) if text else []


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer") / "made"
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def told_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store of `TEXTS` with token entropies and influences."""
    folder = tmp_path_factory.mktemp("stores") / "told"
    questions = [Question(id=f"q{i}", dataset="made", text=f"<b>{i}</b> & what?", references=("4",)) for i in range(2)]
    model = ModelIdentity("made", None, "a" * 64, "float32", tokenizer_hash(TOKENIZER), "c" * 64)
    store = Store.create(
        folder, Identity(Policy(model, Decoding(max_new_tokens=64)), questions_hash(questions), 2), questions
    )
    part, rows = SampleRange(0, 0, 2), []
    for i, text in enumerate(TEXTS):
        ids = [*ids_of(text), 0]
        drawn = {"token_ids": ids, "text": text, "logprobs": [-0.5] * len(ids), "finish_reason": "stop"}
        rows.append({"question_id": f"q{i // 2}", "sample": i % 2, **drawn, "prompt_tokens": 5})
    store.samples.write(part, rows)
    grades = [
        (row["question_id"], row["sample"], right) for row, right in zip(rows, (True, False, False, None), strict=True)
    ]
    store.grades.write("made", part, [dict(zip(("question_id", "sample", "right", "answer"), (*one, "4"), strict=True)) for one in grades], "made")  # fmt: skip
    rng = torch.Generator().manual_seed(0)
    lengths = [len(ids_of(text)) for text in TEXTS]

    def drawn_values() -> Ragged:
        return Ragged.of([torch.rand(n, generator=rng) * 3 for n in lengths])

    names = ("entropy", "one_minus_pmax", "nll")
    store.signals.write("tokens", part, {f"3/{name}": drawn_values() for name in names})
    store.signals.write("rollout", part, {f"3/{name}_mean_token": drawn_values() for name in ("norm_element", "cosine_none")})  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def full_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores") / "full"
    add_answer_signals(make_store(folder, *planted(), k=6))
    return folder


# Right and wrong answers


def test_pictures_of_a_store_are_saved_together_with_their_values(
    full_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = pictures(str(full_store), str(tmp_path / "out"), n_resamples=100)
    assert {path.name for path in folder.iterdir()} == {"plots", "pictures.md", "pictures.json"}
    assert {path.name for path in (folder / "plots").glob("*.png")} == {"layers.png", "entropy_profile.png"}
    page, printed = (folder / "pictures.md").read_text(encoding="utf-8"), capsys.readouterr().out
    assert "plots/layers.png" in page
    assert "not corrected for this choice" in page
    record = json.loads((folder / "pictures.json").read_text())
    assert record["missing"] == {}
    for target, n_rows in (("capability", 120), ("response", 720)):
        one = record["layers"][target]
        assert one["n_rows"] == n_rows
        assert one["best"]["corrected"] is False
        assert one["best"]["of"] == len(one["positions"]) * len(one["layers"])
        assert one["best"]["auroc"]["value"] == max(max(row) for row in one["auroc"])
        assert f"at layer {one['best']['layer']} and position `{one['best']['position']}`" in printed
    assert sum(record["entropy_profile"]["n_answers"]) + record["entropy_profile"]["n_missing"] == 720
    with pytest.raises(InputError, match="`out` to be a new folder"):
        pictures(str(full_store), str(folder))


def test_the_map_is_highest_where_the_answer_was_planted(full_store: Path) -> None:
    store = Store.open(full_store)
    for probe in ("ridge", "difference_of_means"):
        found = layer_map(store, load_table(store), "response", probe, n_resamples=100)
        best, auroc = found["best"], np.array(found["auroc"])
        assert found["positions"] == ["mean_answer", "last_answer"]
        assert best["layer"] == 1
        assert (auroc[:, 1] > 0.8).all()
        assert (auroc[:, 0] < 0.6).all()
        assert best["auroc"]["low"] < auroc.max() < best["auroc"]["high"]


def test_the_probes_of_the_map_are_not_trained_on_the_questions_that_they_score() -> None:
    rng = torch.Generator().manual_seed(0)
    question = torch.arange(40).repeat_interleave(3)
    right = torch.randint(2, (120,), generator=rng)
    fold = question % 4
    features = torch.randn(120, 5, generator=rng)
    features[7] = torch.nan
    scores = out_of_fold(features, right, fold)
    of_fold = fold == 2
    turned = out_of_fold(features, torch.where(of_fold, 1 - right, right), fold)
    assert torch.equal(scores[of_fold].nan_to_num(0), turned[of_fold].nan_to_num(0))
    assert not torch.equal(scores[~of_fold].nan_to_num(0), turned[~of_fold].nan_to_num(0))
    assert scores.isnan().nonzero()[:, 0].tolist() == [7]


def test_a_map_of_few_or_many_layers_states_that_it_is_not_corrected(full_store: Path) -> None:
    store = Store.open(full_store)
    found = layer_map(store, load_table(store), "capability", n_resamples=100)
    title = layer_heat_map({"capability": found}, "made").axes[0].get_title(loc="left")
    assert f"best of {np.size(found['auroc'])}" in str(title)
    wide = layer_heat_map({"capability": one_with_layers(found, 81)}, "made")
    assert not wide.axes[0].texts  # there is no space for numbers, only for the colour bar
    assert "not corrected" in wide.axes[0].get_title(loc="left")


def one_with_layers(found: dict[str, Any], n_layers: int) -> dict[str, Any]:
    auroc: list[float | None] = np.linspace(0.4, 0.9, n_layers).tolist()
    auroc[3] = None
    best = {**found["best"], "layer": n_layers - 1}
    return {**found, "layers": list(range(n_layers)), "auroc": [auroc], "best": best}


def test_bands_surround_the_means_with_the_question_as_the_unit(full_store: Path) -> None:
    answers = load_table(Store.open(full_store)).answers
    rng = np.random.default_rng(0)
    question = np.repeat(np.arange(60), 4)
    means = rng.gamma(3, 1, size=(2, 60))[:, question] + 0.1 * rng.normal(size=(2, 240))
    right, known = (rng.random(240) < 0.5).astype(int), (rng.random(240) < 0.9).astype(int)
    means[:, 5], known[5], right[5] = np.nan, 1, 1

    def of(repeats: int) -> Any:
        given = {
            name: np.repeat(one, repeats) for name, one in (("right", right), ("known", known), ("question", question))
        }
        of_answers = torch.from_numpy(np.repeat(means, repeats, axis=-1))
        return entropy_profile([1, 2], of_answers, replace(answers, **given), n_resamples=500)

    found = of(1)
    for bands, kind in ((found["right"], 1), (found["wrong"], 0)):
        chosen = (known == 1) & (right == kind) & np.isfinite(means[0])
        for layer, band in enumerate(bands):
            assert band is not None
            assert band["value"] == pytest.approx(means[layer, chosen].mean())
            assert band["low"] < band["value"] < band["high"]
    assert found["difference"][0]["value"] == pytest.approx(found["wrong"][0]["value"] - found["right"][0]["value"])
    assert found["n_missing"] == 1
    repeated = of(5)  # additional identical answers do not make a band narrower
    for one, other in zip(*(bands["right"] + bands["difference"] for bands in (found, repeated)), strict=True):
        assert one == pytest.approx(other)
    assert "1 answers without" in str(profile_picture(found, "made").get_suptitle())


def test_missing_signals_are_left_out_with_a_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_store(tmp_path / "store", *planted(), k=4)
    folder = pictures(str(tmp_path / "store"), str(tmp_path / "out"), n_resamples=100)
    assert {path.name for path in (folder / "plots").iterdir()} == {"layers.png", "layers.pdf"}
    assert "The plot of `entropy_profile` for answers is missing" in (folder / "pictures.md").read_text(
        encoding="utf-8"
    )
    said = capsys.readouterr().out
    assert "--signals '[entropy_profile]' --scope sample" in said
    for file in (tmp_path / "store/signals/hidden").rglob("*"):
        if file.is_file():
            file.unlink()
    with pytest.raises(InputError, match=r"hidden.*entropy_profile.*Run `python -m extract read"):
        pictures(str(tmp_path / "store"), str(tmp_path / "other"))
    assert not (tmp_path / "other").exists()


def test_bad_options_of_pictures_give_a_one_line_error(
    full_store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = [f"--store={full_store}", f"--out={tmp_path / 'out'}"]
    for option, said in (
        ("--probe=ridg", "Did you mean `ridge`"),
        ("--grader=x", "`grader`"),
        ("--folds=1", "folds"),
        ("--n_resamples=9", "100"),
        ("--seed=-1", "`seed` to be between 0"),
    ):
        assert run({"pictures": pictures}, "probes", ["pictures", *base, option]) == 2
        line = capsys.readouterr().err.strip().splitlines()[-1]
        assert said in line
        assert line.startswith("error: Expected")
    answers = load_table(Store.open(full_store)).answers
    answers.right[:] = 0
    with pytest.raises(InputError, match="got 0 right and 720 wrong answers"):
        entropy_profile([1], torch.rand(1, 720), answers)


# Tokens as text


@settings(max_examples=40, deadline=None)
@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=30), st.data())
def test_token_texts_join_to_the_text_without_splitting_characters(text: str, data: st.DataObject) -> None:
    ids = ids_of(text)
    cut = text[: data.draw(st.integers(max(0, len(text) - 1), len(text)))]  # a stop string may begin in the last token
    found = pieces(TOKENIZER, ids, cut)
    assert "".join(piece.text for piece in found) == cut
    assert [place for piece in found for place in piece.tokens] == list(range(len(ids)))
    if cut == text and "\ufffd" not in text:
        assert [piece.text for piece in found] == list(text)


def test_special_tokens_and_broken_bytes_are_shown_with_their_neighbours() -> None:
    a, b, end = ids_of("a")[0], ids_of("b")[0], 0
    assert [(one.text, list(one.tokens)) for one in pieces(TOKENIZER, [a, end, b], "ab")] == [("a", [0]), ("b", [1, 2])]
    assert [(one.text, list(one.tokens)) for one in pieces(TOKENIZER, [a, end], "a")] == [("a", [0, 1])]
    broken = ids_of("四")[:2]
    text = TOKENIZER.decode([a, *broken])
    assert [(one.text, list(one.tokens)) for one in pieces(TOKENIZER, [a, *broken], text)] == [("a", [0]), (text[1:], [1, 2])]  # fmt: skip
    assert pieces(TOKENIZER, [], "") == []
    assert [one.text for one in pieces(TOKENIZER, [end], "")] == [""]


# The page


class Reader(HTMLParser):
    """A parser that extracts answer texts, tags, titles and addresses from a page, as a browser would."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.answers: list[str] = []
        self.titles: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert not self._open, "tags that are never closed"

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.add(tag)
        self.addresses += [str(given[name]) for name in ("src", "href", "data", "action") if name in given]
        if "title" in given:
            self.titles.append(str(given["title"]))
        if tag not in ("meta", "link", "img"):
            self._open.append((tag, given))
        if (given.get("class") or "").startswith("answer"):
            self.answers.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        kinds = [given.get("class") or "" for _, given in self._open]
        if any(kind.startswith("answer") for kind in kinds) and "nl" not in kinds:
            self.answers[-1] += data


def test_the_page_shows_every_answer_unchanged_and_runs_or_loads_nothing(
    told_store: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    out = show(str(told_store), ["q0", "q1"], out=str(tmp_path / "page.html"), model=str(tokenizer_folder))
    text = out.read_text(encoding="utf-8")
    read = Reader(text)
    assert [one.replace("\u200b", "") for one in read.answers] == list(TEXTS)
    assert not read.tags & {"script", "link", "img", "iframe", "b"}
    assert read.addresses == []
    assert not re.search(r"https?:|url\(|@import", text)
    assert "default-src 'none'" in text
    assert "&lt;b&gt;0&lt;/b&gt; &amp; what?" in text
    assert [verdict in text for verdict in ("✓ </span>right", "✗ </span>wrong", "? </span>unknown")] == [True] * 3
    assert "prefers-color-scheme:dark" in text
    assert "3/norm_element_mean_token" in text


def test_the_values_of_every_token_are_in_its_title_and_in_the_table(
    told_store: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    out = show(str(told_store), ["q1"], [0], str(tmp_path / "page.html"), model=str(tokenizer_folder))
    text, store = out.read_text(encoding="utf-8"), Store.open(told_store)
    entropy = store.signals.read_ragged("tokens", "3/entropy").rows()[2]
    influence = store.signals.read_ragged("rollout", "3/norm_element_mean_token").rows()[2]
    titles = Reader(text).titles
    lines = [line for title in titles for line in title.split("\n")]
    assert len(titles) == len(TEXTS[2]) < len(lines) == len(entropy)  # tokens of one character share a title
    for t, line in enumerate(lines):
        assert line.startswith(f"token {t + 1}, entropy {float(entropy[t]):.3f} nats")
        assert f"influence {float(influence[t]):.3f} ({float(100 * influence[t] / influence.sum()):.1f} %" in line
    assert text.count('<th scope="row">') == len(entropy)


def shown_answer(text: str, entropy: Sequence[float], influence: Sequence[float] | None = None) -> ShownAnswer:
    ids, values = ids_of(text), torch.tensor(entropy, dtype=torch.float64)
    weights = None if influence is None else torch.tensor(influence, dtype=torch.float64)
    found = pieces(TOKENIZER, ids, text)
    return ShownAnswer("q", 0, "Why?", ("x",), "right", None, False, found, values, values / 4, values, weights)


def test_shades_follow_the_entropies_and_missing_values_are_hatched() -> None:
    text = page([shown_answer("abc", [0, 1, 2], [0, 1, 4]), shown_answer("d", [torch.nan], [torch.nan])], "made", "s")
    assert re.findall(r"--e:([\d.]+)", text) == ["0.000", "0.500", "1.000"]
    assert re.findall(r"--i:([\d.]+)", text) == ["0.000", "0.250", "1.000"]
    assert "2 nats" in text
    assert 'class="t none"' in text
    assert "entropy no number" in text
    assert "--i" not in page([shown_answer("a", [1], [0])], "made", "s", "x").split("<main>")[1]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_easy_to_read_on_every_shade(scheme: str) -> None:
    rules = re.findall(r":root\{(.*?)\}", page([shown_answer("a", [1])], "made", "s"))
    assert len(rules) == 2
    variables = dict(one.split(":") for one in rules[scheme == "dark"].split(";"))
    most = float(variables.pop("--most"))
    colours = {name[2:]: [int(one) for one in value.split()] for name, value in variables.items()}

    def luminance(colour: Sequence[float]) -> float:
        linear = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(a: Sequence[float], b: Sequence[float]) -> float:
        light, dark = sorted((luminance(a), luminance(b)), reverse=True)
        return (light + 0.05) / (dark + 0.05)

    for strength in np.linspace(0, most, 21):
        shade = [(1 - strength) * p + strength * c for p, c in zip(colours["paper"], colours["entropy"], strict=True)]
        assert contrast(colours["ink"], shade) >= 4.5  # WCAG 2 AA
    assert contrast(colours["quiet"], colours["paper"]) >= 4.5
    full = [(1 - most) * p + most * c for p, c in zip(colours["paper"], colours["entropy"], strict=True)]
    assert contrast(full, colours["paper"]) > 2
    assert contrast(colours["influence"], colours["paper"]) > 4.5


def test_by_default_a_right_and_a_wrong_answer_to_a_few_questions_are_shown() -> None:
    right: dict[tuple[str, int], bool | None] = {(f"q{i}", j): j > i % 3 for i in range(30) for j in range(4)}
    right |= {("all wrong", j): False for j in range(4)} | {("odd", j): None for j in range(4)}
    chosen = choose(right, None, None)
    assert len({one for one, _ in chosen}) == 4
    assert [right[one] for one in chosen] == [True, False] * 4
    assert choose({("a", 0): None, ("b", 3): None}, None, None) == [("a", 0), ("b", 3)]
    assert choose(right, ["q2", "q1"], [3, 0]) == [("q2", 3), ("q2", 0), ("q1", 3), ("q1", 0)]
    assert choose(right, ["q2"], None) == [("q2", j) for j in range(4)]


# The curve


def test_the_curve_of_one_answer_has_its_tokens_below(told_store: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    for sample, suffix in ((1, "png"), (0, "svg"), (0, "pdf")):
        out = show(str(told_store), ["q0"], [sample], str(tmp_path / f"curve.{suffix}"), model=str(tokenizer_folder))
        assert out.stat().st_size > 5000
    figure = entropy_curve(
        shown_answer("a $\n四" + "b" * 150, np.linspace(0, 3, 157), np.ones(157)), "made", "rollout/x"
    )
    assert len(figure.subfigs) == 3  # a long answer goes on below
    axes = figure.subfigs[0].axes
    assert [axis.get_ylabel() for axis in axes] == ["entropy\n(nats)", "1 − pₘₐₓ", "share of\ninfluence"]
    assert [tick.get_text() for tick in axes[-1].get_xticklabels()][:8] == ["a", "␣", "$", "↵", drawable("四"), "", "", "b"]  # fmt: skip
    figure.savefig(tmp_path / "long.png")
    assert drawable("a\U0010ffffb\n") == "a\ufffdb\n"


def test_an_answer_that_is_too_long_for_a_picture_is_only_on_the_page() -> None:
    long = shown_answer("a" * (LONGEST_OF_A_CURVE + 1), [0.5] * (LONGEST_OF_A_CURVE + 1))
    with pytest.raises(InputError, match=r"at most 800 tokens for a plot.*--out answers.html"):
        entropy_curve(long, "model")
    text = "ab" * LONGEST
    assert pieces(byte_tokenizer(), ids_of(text), text) == [Piece(text, range(2 * LONGEST))]


# Missing data


def test_answers_that_cannot_be_shown_give_one_line_with_the_next_step(
    told_store: Path, full_store: Path, tokenizer_folder: Path, tmp_path: Path
) -> None:
    out, model = str(tmp_path / "x.html"), str(tokenizer_folder)
    for options, said in (
        ({"questions": ["q9"]}, r"ids of answered questions.*'q9'.*Did you mean `q"),
        ({"questions": ["q0"], "samples": [7]}, r"`samples` for question 'q0' to be from 0 to 1, but got 7"),
        ({"influence": "norm_elements_mean_token"}, "Did you mean `norm_element_mean_token`"),
        ({"influence": "tokens/entropy"}, "`influence` to name one of the token weights in .*but got 'tokens/entropy'"),
        ({"questions": []}, "`questions` to contain at least one"),
        ({"samples": []}, "`samples` to contain at least one"),
        (
            {"influence": "macs/floor_1_mean_token"},
            r"they are missing for some or all answers. Run.*--signals '\[macs\]'",
        ),
        ({"grader": "other"}, "`grader`"),
        ({"out": "x.txt"}, r"to end in \.html"),
        ({"out": str(tmp_path / "x.png"), "questions": ["q0"]}, r"a single answer for a plot, but got 2.*--questions"),
        (
            {"out": str(tmp_path / "x.png"), "questions": ["q1"], "samples": [1]},
            "Expected answer 1 to 'q1' to have an entropy for every token",
        ),
        ({"model": None}, "Pass --model PATH"),
        ({"model": str(tmp_path)}, "no tokenizer could be loaded"),
    ):
        with pytest.raises(InputError, match=said) as error:
            show(str(told_store), **{"out": out, "model": model, **options})  # type: ignore[arg-type]
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="tokenizer of 'made'.*has a different tokenizer"):
        show(str(full_store), out=out, model=model)
    unread = Store.open(full_store)
    for file in (path for path in (unread.path / "signals/tokens/sample").iterdir()):
        file.rename(tmp_path / file.name)
    try:
        with pytest.raises(InputError, match=r"--signals '\[tokens\]' --scope sample|'tokens' signal for all answers"):
            show(str(full_store), out=out, model=model)
    finally:
        for file in tmp_path.glob("0*"):
            file.rename(unread.path / "signals/tokens/sample" / file.name)
    assert not Path(out).exists()
