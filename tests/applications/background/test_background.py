"""Tests of the command `background-temperature`: recovery of known temperatures, formats, page, and bad input."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.stats import t as student_t

from applications.__main__ import COMMANDS
from applications.background.command import background_temperature
from applications.background.estimation import estimate_temperature, interval
from applications.background.outputs import read_source
from applications.background.systems import open_references, read_systems
from applications.background.variability import measure
from extract.errors import InputError
from extract.running.cli import run
from extract.sampling.imported.command import import_log
from tests.helpers.softmax_systems import GRID, MODEL, SoftmaxSystem, make_output_store

COARSE = (0.0, 0.05, 0.2, 0.4, 0.8)


@pytest.fixture(scope="module")
def system() -> SoftmaxSystem:
    return SoftmaxSystem(n_prompts=12)


@pytest.fixture(scope="module")
def grid(system: SoftmaxSystem, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return system.make_grid(tmp_path_factory.mktemp("stores") / "grid", COARSE, n=20)


@pytest.fixture(scope="module")
def tested(system: SoftmaxSystem, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return system.make_store(tmp_path_factory.mktemp("stores") / "tested", 0.3, n=20, seed=1).path


def estimate(folder: Path, tested: Path | str, *references: Path, **options: object) -> dict:
    out = background_temperature(
        str(tested), [str(one) for one in references], out=str(folder / "out"), n_resamples=200, **options
    )
    return json.loads((out / "background-temperature.json").read_text())


def write_json(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


# Known temperatures


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.1, 0.3, 0.7])
def test_the_temperature_of_a_system_is_recovered_within_one_grid_step(temperature: float) -> None:
    found = estimate_temperature(SoftmaxSystem(n_tokens=4).systems(temperature, 32, 32), 2, 0)
    assert found.mean_temperature()[0] == pytest.approx(temperature, abs=0.05)
    assert found.mean_temperature(rule="ks_temperature")[0] == pytest.approx(temperature, abs=0.1)


def test_the_interval_of_a_mean_is_as_wide_as_the_t_interval() -> None:
    values, n = np.random.default_rng(0).normal(size=200_001), 10
    reach = student_t.ppf(0.975, n - 1) * (n / (n - 1)) ** 0.5
    found = interval(values, n)
    assert found["value"] == values[0]
    np.testing.assert_allclose([found["low"], found["high"]], [-reach, reach], atol=0.03)


@pytest.mark.slow
def test_the_interval_covers_the_temperature_with_the_stated_probability() -> None:
    hits = 0
    for seed in range(24):
        temperature = float(np.random.default_rng(seed).uniform(0.05, 0.95))
        systems = SoftmaxSystem(seed, n_prompts=15, n_tokens=4, n_vocab=12).systems(temperature, 12, 12, GRID[::4])
        found = interval(estimate_temperature(systems, 100, 0).mean_temperature(), 15)
        hits += found["low"] <= temperature <= found["high"]
    assert hits >= 20  # with a coverage of 94 %, the probability of fewer hits is 1 %


@pytest.mark.slow
@pytest.mark.parametrize("n", [8, 60])
def test_different_numbers_of_outputs_do_not_bias_the_estimate(n: int) -> None:
    systems = [SoftmaxSystem(seed, n_tokens=4).systems(0.4, n, 16, GRID[::4]) for seed in range(4)]
    found = [estimate_temperature(one, 2, 0).mean_temperature()[0] for one in systems]
    assert np.mean(found) == pytest.approx(0.4, abs=0.02)


@pytest.mark.slow
def test_held_out_outputs_of_a_reference_recover_its_temperatures(tested: Path, grid: Path, tmp_path: Path) -> None:
    (reference,) = estimate(tmp_path, tested, grid)["references"].values()
    found = [one["value"] for one in reference["recovery"]["estimates"]]
    np.testing.assert_allclose(found, COARSE, atol=0.1)
    errors = np.abs(np.subtract(found, COARSE))
    assert reference["recovery"]["largest_error"] == pytest.approx(errors.max())
    assert reference["recovery"]["mean_error"] == pytest.approx(errors.mean())


@pytest.mark.slow
def test_identical_outputs_give_zero_with_an_upper_limit(system: SoftmaxSystem, grid: Path, tmp_path: Path) -> None:
    same = {prompt: [[1, 2]] * 100 for prompt in system.prompts}
    record = estimate(tmp_path, write_json(tmp_path / "same.json", same), grid, unit="tokens")
    assert record["temperature"] == {"value": 0, "low": 0, "high": 0.05}
    limit = record["upper_limit"]
    assert limit["mismatch_rate"] == pytest.approx(1 - 0.05 ** (1 / (12 * 99)))
    assert (limit["temperature"], limit["inclusive"]) == (0.05, False)
    page = (tmp_path / "out" / "background-temperature.md").read_text()
    assert "is 0, with a 95 % upper limit below 0.05" in page


@pytest.mark.slow
def test_few_identical_outputs_give_a_higher_limit_than_many(system: SoftmaxSystem, grid: Path, tmp_path: Path) -> None:
    same = {prompt: [[1, 2]] * 2 for prompt in system.prompts}
    record = estimate(tmp_path, write_json(tmp_path / "same.json", same), grid, unit="tokens")
    limit = record["upper_limit"]
    assert limit["mismatch_rate"] == pytest.approx(1 - 0.05 ** (1 / 12))
    assert (limit["temperature"], limit["inclusive"]) == (0.05, True)
    assert not record["references"]["grid"]["recovery"]  # two outputs cannot be divided


@pytest.mark.slow
def test_the_page_says_if_no_temperature_fits(system: SoftmaxSystem, grid: Path, tmp_path: Path) -> None:
    half = len(system.prompts) // 2  # only the outputs to half of the prompts vary
    outputs = {p: [[i * j] for j in range(20)] for i, p in enumerate(system.prompts)}
    split = {p: one if i < half else [[1]] * 20 for i, (p, one) in enumerate(outputs.items())}
    wide = {f"{p}{copy}": one for copy in range(4) for p, one in split.items()}
    big = SoftmaxSystem(n_prompts=48)
    big.prompts = [*wide]
    folder = big.make_grid(tmp_path / "wide", COARSE, n=20)
    record = estimate(tmp_path, write_json(tmp_path / "split.json", wide), folder, unit="tokens")
    assert not any(cell["fits"] for cell in record["cells"])
    assert "No temperature fits: for every metric" in (tmp_path / "out" / "background-temperature.md").read_text()


@pytest.mark.slow
def test_a_system_that_varies_more_than_the_grid_is_marked(system: SoftmaxSystem, grid: Path, tmp_path: Path) -> None:
    store = system.make_store(tmp_path / "hot", 3.0, n=20, seed=1)
    record = estimate(tmp_path, store.path, grid)
    assert {cell["outside"] for cell in record["cells"]} == {"above"}
    assert record["temperature"]["value"] == pytest.approx(0.8)
    assert "vary more than" in (tmp_path / "out" / "background-temperature.md").read_text()


# Formats


@pytest.mark.slow
def test_all_files_are_written(tested: Path, grid: Path, tmp_path: Path) -> None:
    record = estimate(tmp_path, tested, grid)
    out = tmp_path / "out"
    table = pq.read_table(out / "prompts.parquet")
    assert table.num_rows == 12 * (1 + len(COARSE))
    assert set(table["prompt"].to_pylist()) == {f"q{i}" for i in range(12)}
    own = table.filter(table["temperature"].is_null())
    memf = next(cell for cell in record["cells"] if cell["metric"] == "memf")
    assert np.mean(own["memf"]) == pytest.approx(memf["tested"]["value"])
    assert memf["tested"]["low"] < memf["tested"]["value"] < memf["tested"]["high"]
    assert record["unit"] == "tokens"
    assert record["token_limit"] == 8
    assert {path.name for path in (out / "plots").glob("*.png")} == {"curves.png", "recovery.png"}
    (row,) = csv.DictReader((out / "results_Tbg.csv").read_text().splitlines())
    assert [*row][:6] == [
        "Tested",
        "Tbg estimate",
        "Mean_max_exact_match",
        "Mean_Levenshtein_lists",
        "Mean_average_lcs_distance",
        "Num_prompts",
    ]
    assert float(row["Tbg estimate"]) == pytest.approx(np.mean([float(v) for k, v in row.items() if k.endswith("_Tn")]))


@pytest.mark.slow
def test_json_csv_and_store_give_the_same_values(
    system: SoftmaxSystem, grid: Path, tested: Path, tmp_path: Path
) -> None:
    ids = dict(zip(system.prompts, system.draw(0.3, 6).tolist(), strict=True))
    texts = {p: [" ".join(f"w{token}" for token in one) for one in rows] for p, rows in ids.items()}
    with (tmp_path / "texts.CSV").open("w", newline="", encoding="utf-8-sig") as stream:  # as Excel writes it
        writer = csv.writer(stream)
        writer.writerow(["prompt", "output"])
        writer.writerows([prompt, one] for prompt, rows in texts.items() for one in rows)
    store = make_output_store(tmp_path / "store", ids, 0.3, seed=1)
    sources = [tmp_path / "texts.CSV", write_json(tmp_path / "texts.json", texts), store.path]
    sources += [write_json(tmp_path / "ids.json", ids)]
    found = []
    for source, unit in zip(sources, ["words", "words", "tokens", "tokens"], strict=True):
        systems = read_systems(
            read_source(str(source)),
            open_references([str(grid)]),
            "tokens" if source.name == "ids.json" else None,
            False,
        )
        assert systems.unit == unit
        found.append({name: values.tolist() for name, values in measure(systems.tested, 8, systems.n).items()})
    assert found[0] == found[1] == found[2] == found[3]


@pytest.mark.slow
def test_an_imported_log_without_a_token_limit_can_be_tested(system: SoftmaxSystem, tmp_path: Path) -> None:
    def drawn(temperature: float) -> dict[str, list[str]]:
        ids = zip(system.prompts, system.draw(temperature, 10).tolist(), strict=True)
        return {prompt: [" ".join(f"w{token}" for token in one) for one in rows] for prompt, rows in ids}

    lines = [json.dumps({"text": text, "answer": one}) for text, rows in drawn(0.3).items() for one in rows]
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    import_log(str(tmp_path / "imported"), str(tmp_path / "log.jsonl"), "jsonl")
    references = write_json(tmp_path / "references.json", {"made": {str(t): drawn(t) for t in COARSE}})
    record = estimate(tmp_path, tmp_path / "imported", references)
    assert 0.1 < record["temperature"]["value"] < 0.6


@pytest.mark.slow
def test_references_in_the_format_of_the_authors_are_averaged(system: SoftmaxSystem, tmp_path: Path) -> None:
    def drawn(t: float, n: int) -> dict[str, list[list[int]]]:
        return dict(zip(system.prompts, system.draw(t, n).tolist(), strict=True))

    references = {name: {str(t): drawn(t, 16) for t in COARSE} for name in ("org/first-3B", "org/first-7B")}
    file = write_json(tmp_path / "references.json", references)
    record = estimate(tmp_path, write_json(tmp_path / "answers.json", drawn(0.4, 30)), file, unit="tokens")
    assert [*record["references"]] == ["org/first-3B", "org/first-7B"]
    assert record["n_common"] == 16
    values = [cell["temperature"]["value"] for cell in record["cells"]]
    assert len(values) == 8
    assert record["temperature"]["value"] == pytest.approx(np.mean(values))
    assert record["temperature"]["value"] == pytest.approx(0.4, abs=0.1)


@pytest.mark.slow
def test_the_command_line_prints_the_estimate(
    tested: Path, grid: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["background-temperature", "--tested", str(tested), "--references", f"[{grid}]"]
    assert run(COMMANDS, "applications", [*words, "--out", str(tmp_path / "out"), "--n_resamples", "100"]) == 0
    assert "The background temperature of `tested` is 0.3" in capsys.readouterr().out


# Bad input


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"limit": 9}, "max_new_tokens: found 8, expected 9"),
        ({"template": "Q: {question}"}, "same prompt and token limit"),
        ({"model": replace(MODEL, tokenizer="d" * 64, fingerprint="e" * 64)}, None),
    ],
)
def test_different_prompts_are_refused_and_different_tokenizers_are_compared_as_words(
    system: SoftmaxSystem, grid: Path, tmp_path: Path, change: dict, message: str | None
) -> None:
    store = system.make_store(tmp_path / "s", 0.3, seed=1, **change)
    if message:
        with pytest.raises(InputError, match=message):
            estimate(tmp_path, store.path, grid)
        return
    with pytest.raises(InputError, match="same tokenizer, but .* have different ones. Pass --unit words"):
        estimate(tmp_path, store.path, grid, unit="tokens")
    record = estimate(tmp_path, store.path, grid)
    assert record["unit"] == "words"
    assert (
        "compared as words and punctuation marks, because the tokenizers differ"
        in (tmp_path / "out" / "background-temperature.md").read_text()
    )


@pytest.mark.slow
def test_unequal_prompts_are_refused_unless_only_shared_ones_are_requested(
    system: SoftmaxSystem, grid: Path, tmp_path: Path
) -> None:
    drawn = dict(zip([*system.prompts[2:], "Another?"], system.draw(0.3, 6)[1:].tolist(), strict=True))
    file = write_json(tmp_path / "answers.json", drawn)
    with pytest.raises(InputError, match="only 10 of 13 prompts are shared. Pass --shared true"):
        estimate(tmp_path, file, grid, unit="tokens")
    record = estimate(tmp_path, file, grid, unit="tokens", shared=True)
    assert (record["n_prompts"], record["n_prompts_left_out"]) == (10, 3)


@pytest.mark.slow
def test_a_tested_store_with_the_random_numbers_of_a_reference_is_refused(
    system: SoftmaxSystem, grid: Path, tmp_path: Path
) -> None:
    store = system.make_store(tmp_path / "s", 0.3)
    with pytest.raises(InputError, match="both use seed 0 and thus the same random numbers"):
        estimate(tmp_path, store.path, grid)
    greedy = system.make_store(tmp_path / "greedy", 0.0)
    assert estimate(tmp_path, greedy.path, grid)["temperature"]["value"] == 0


@pytest.mark.parametrize(
    ("grid", "options", "message"),
    [
        ((0.5,), {}, "two temperatures, but it has only one, 0.5"),
        ((0.0, 0.5), {"top_p": 0.9}, "sampled with top_p 1 and top_k 0, but got top_p 0.9"),
    ],
)
def test_unusable_references_are_refused(
    system: SoftmaxSystem, tested: Path, tmp_path: Path, grid: tuple[float, ...], options: dict, message: str
) -> None:
    folder = system.make_grid(tmp_path / "grid", grid, **options)
    with pytest.raises(InputError, match=message):
        estimate(tmp_path, tested, folder)


def test_a_reference_that_is_greedy_at_all_temperatures_is_refused(
    system: SoftmaxSystem, tested: Path, tmp_path: Path
) -> None:
    greedy = dict(zip(system.prompts, system.draw(0, 8).tolist(), strict=True))
    for t in (0.0, 0.5, 1.0):
        make_output_store(tmp_path / "grid" / f"t{t}", greedy, t)
    with pytest.raises(
        InputError,
        match=r"\(MEMF\) of the reference 'grid' to fall .* 1.000 at temperature 0 and 1.000 at temperature 1",
    ):
        estimate(tmp_path, tested, tmp_path / "grid")


def test_repeated_names_and_missing_references_are_refused(tested: Path, grid: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="distinct names, but got grid, grid"):
        estimate(tmp_path, tested, grid, grid)
    with pytest.raises(InputError, match="distinct names, but got none"):
        estimate(tmp_path, tested)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"Say 0.": [[1], [2]]}, "at least 5 prompts for the bootstrap, but got 1"),
        ({f"Say {i}.": [[1]] for i in range(12)}, "at least 2 outputs .* 12 of 12 prompts have fewer"),
        ({f"Say {i}.": [[1], []] for i in range(12)}, None),
        ({f"Say {i}.": [[], []] for i in range(12)}, None),
        ({f"Say {i}.": [[1] * 9, [2]] for i in range(12)}, "at most 8 tokens, .* but one output has 9"),
        ({f"Say {i}.": [["a"], [2]] for i in range(12)}, "to list outputs for each prompt"),
        ({f"Say {i}.": [] for i in range(12)}, "to list outputs for each prompt"),
        ({}, "to list outputs for each prompt"),
        ([], "to list outputs for each prompt"),
        (
            {f"Say {i}.": ["a", "b"] for i in range(12)},
            "to be available as tokens, but they are available only as words",
        ),
    ],
)
def test_outputs_in_a_file_are_checked(grid: Path, tmp_path: Path, outputs: object, message: str | None) -> None:
    file = write_json(tmp_path / "answers.json", outputs)
    if message is None:
        assert estimate(tmp_path, file, grid, unit="tokens")["tested"]["n_empty"] >= 12
        return
    with pytest.raises(InputError, match=message):
        estimate(tmp_path, file, grid, unit="tokens", shared=True)


def test_token_ids_of_an_unknown_tokenizer_require_the_option_unit(
    system: SoftmaxSystem, grid: Path, tmp_path: Path
) -> None:
    file = write_json(tmp_path / "ids.json", {prompt: [[1], [2]] for prompt in system.prompts})
    with pytest.raises(
        InputError,
        match="to be available as words, but they are available only as tokens. To compare token ids without",
    ):
        estimate(tmp_path, file, grid)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("missing.json", None, "reading it failed"),
        ("bad.json", "{", "to be a JSON file"),
        ("bad.csv", "question,output\na,b\n", "to have a column 'prompt'"),
        ("references.json", '{"a": {"hot": {}}}', "outputs grouped by model, temperature and prompt"),
        ("repeated.json", '{"a": ["x"], "a": ["y"]}', "a key occurs twice"),
        ("references.json", '{"a": {"nan": {"p": ["x"]}}}', "outputs grouped by model, temperature and prompt"),
        ("references.json", '{"a": {"0.6": {"p": ["x"]}, "0.60": {"p": ["x"]}}}', "repeats a temperature"),
        ("references.json", "[1]", "outputs grouped by model, temperature and prompt"),
    ],
)
def test_unreadable_files_are_refused(
    tested: Path, grid: Path, tmp_path: Path, name: str, text: str | None, message: str
) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_text(text)
    systems = (tested, file) if name == "references.json" else (file, grid)
    with pytest.raises(InputError, match=message):
        estimate(tmp_path, *systems)
