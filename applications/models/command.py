"""The command ``python -m applications models``."""

from collections.abc import Sequence
from pathlib import Path

from applications.forest import paired_picture
from applications.models.panel import check_stores, clusters_of, read_confidences, read_panel
from applications.models.record import main_interval, models_page, models_record, models_table, models_verdict
from applications.paired import check_difference
from probes.report.results import result_folder, write_files


def models(
    stores: Sequence[str],
    confidences: Sequence[str] = (),
    clusters: str | None = None,
    shared: bool = False,
    difference: float = 0.02,
    grader: str | None = None,
    out: str | None = None,
    seed: int = 0,
    n_resamples: int = 2000,
) -> Path:
    """Compare the accuracies of models, prompts or temperatures on the same questions, with paired tests.

    Args:
        stores: Folders of two or more stores, which must contain samples and grades. The folder of a temperature
            grid counts as one store per temperature.
        confidences: Confidences whose AUROCs are compared: one source for each store, or one for all stores. A source
            is the folder of a saved probe, or FILE:COLUMN for a column of a Parquet or CSV file.
        clusters: Question field that defines clusters of correlated questions: group, dataset or meta.KEY. By default,
            questions are treated as independent.
        shared: Whether to use only the questions that all stores have, if their questions differ.
        difference: Difference in accuracy to detect. The number of questions needed to detect it is reported.
        grader: Grader whose grades are used. Required if the stores have several graders.
        out: Folder to create for the Markdown page, record, table and plot. The default is runs/models-STORE-STORE.
        seed: Seed for resampling and sign-flip tests.
        n_resamples: Number of bootstrap resamples of the questions for each interval.

    Returns:
        Path to the new folder.

    Raises:
        InputError: If an option is invalid, required data are missing, or the questions of the stores differ.
    """
    check_stores(stores)
    with result_folder("models", stores, out, seed, n_resamples) as (folder, final):
        check_difference(difference)
        panel = read_panel(stores, shared, grader)
        values = read_confidences(confidences, panel)
        cluster = None if clusters is None else clusters_of(panel.questions, clusters)
        record = models_record(panel, values, cluster, clusters, difference, n_resamples, seed)
        accuracies = {found["name"]: main_interval(found["accuracy"]) for found in record["stores"]}
        label = f"accuracy on {record['n_questions']} questions, 95 % intervals"
        files = {"models.md": models_page(record, ["models"]), "models.json": record}
        plots = {"models": paired_picture(accuracies, record["pairs"], label)}
        write_files(folder, {**files, "models.parquet": models_table(panel, values, cluster)}, plots)
    print(f"{models_verdict(record)}\nComparison: {final / 'models.md'}")
    return final
