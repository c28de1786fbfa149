"""The command ``python -m applications phrasing``."""

from pathlib import Path

from applications.forest import paired_picture
from applications.phrasing.pairs import read_cells
from applications.phrasing.record import ACCURACY, phrasing_page, phrasing_record, phrasing_table, phrasing_verdict
from datamodules.table import load_table
from extract.store.store import Store
from probes.report.results import result_folder, write_files


def phrasing(
    store: str, grader: str | None = None, out: str | None = None, seed: int = 0, n_resamples: int = 2000
) -> Path:
    """Test whether the accuracy depends on how questions about the same facts are phrased.

    Questions need `meta.pair` and `meta.form`. `meta.pair` is the same for all questions about the same fact.
    `meta.form` is the kind of phrasing, for example exact or paraphrased. If the store contains the `likelihood`
    baseline, the likelihoods of the right continuations are also compared.

    Args:
        store: Folder of the store. It must contain samples and grades.
        grader: Grader whose grades are used. Required if the store has several graders.
        out: Folder to create for the Markdown page, record, table and plot. The default is runs/phrasing-STORE.
        seed: Seed for resampling and sign-flip tests.
        n_resamples: Number of bootstrap resamples of the facts for each interval.

    Returns:
        Path to the new folder.

    Raises:
        InputError: If an option is invalid, required data are missing, or the questions have no pairs or forms.
    """
    with result_folder("phrasing", [store], out, seed, n_resamples) as (folder, final):
        opened = Store.open(store)
        table = load_table(opened, grader)
        cells = read_cells(table, list(opened.questions))
        record = phrasing_record(opened, table, cells, n_resamples, seed)
        accuracies = {form["name"]: form["accuracy"] for form in record["forms"] if form["accuracy"]}
        tests = [test for test in record["tests"] if test["figure"] == ACCURACY]
        picture = paired_picture(accuracies, tests, f"accuracy on {record['n_pairs']} facts, 95 % intervals")
        files = {"phrasing.md": phrasing_page(record, ["phrasing"]), "phrasing.json": record}
        write_files(folder, {**files, "phrasing.parquet": phrasing_table(cells)}, {"phrasing": picture})
    print(f"{phrasing_verdict(record)}\nPhrasings: {final / 'phrasing.md'}")
    return final
