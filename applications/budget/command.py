"""The command ``python -m applications budget``."""

from collections.abc import Sequence
from pathlib import Path

from applications.budget.methods import METHODS
from applications.budget.pictures import budget_pictures
from applications.budget.record import budget_page, budget_record, budget_verdict
from applications.confidences import named_confidences
from datamodules.table import load_table
from extract.store.store import Store
from probes.report.results import result_folder, write_files


def budget(
    store: str,
    confidences: Sequence[str] = (),
    budgets: Sequence[int] | None = None,
    grader: str | None = None,
    out: str | None = None,
    seed: int = 0,
    n_resamples: int = 2000,
) -> Path:
    """Compare allocations of a sampling budget by the proportion of questions with at least one right answer.

    The uniform allocation is compared with allocations based on confidences and on the base rates of question groups.
    It is also compared with an oracle that knows half of each question's grades.

    Args:
        store: Folder of the store. It must contain samples and grades.
        confidences: Sources of confidences: folders of saved probes, or FILE:COLUMN, for example
            runs/compare-facts/predictions.parquet:layer_average.
        budgets: Mean numbers of answers per question. The default is all powers of 2 up to 64 that do not
            exceed the number of graded answers per question.
        grader: Grader whose grades are used. Required if the store has several graders.
        out: Folder to create for the Markdown page, record, allocations and plots. The default is runs/budget-STORE.
        seed: Seed for the folds and resampling.
        n_resamples: Number of bootstrap resamples of the questions for each interval.

    Returns:
        Path to the new folder.

    Raises:
        InputError: If an option is invalid, required data are missing, or no answer is right.
    """
    with result_folder("budget", [store], out, seed, n_resamples) as (folder, final):
        opened = Store.open(store)
        values = named_confidences(confidences, opened, reserved=METHODS)
        record, allocations = budget_record(opened, load_table(opened, grader), values, budgets, n_resamples, seed)
        plots = budget_pictures(record)
        files = {"budget.md": budget_page(record, list(plots)), "budget.json": record}
        write_files(folder, {**files, "allocations.parquet": allocations}, plots)
    print(f"{budget_verdict(record)}\nBudget: {final / 'budget.md'}")
    return final
