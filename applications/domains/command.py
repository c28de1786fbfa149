"""The command ``python -m applications domains``."""

from collections.abc import Sequence
from pathlib import Path

from applications.domains.pictures import domains_picture
from applications.domains.record import domains_page, domains_record, domains_summary, domains_table, load_domains
from extract.store.store import Store
from probes.report.results import result_folder, write_files


def domains(
    store: str,
    confidences: Sequence[str] = (),
    clusters: int | None = None,
    grader: str | None = None,
    out: str | None = None,
    seed: int = 0,
) -> Path:
    """Cluster the questions by their text embeddings, and find clusters with low accuracy or a calibration gap.

    Args:
        store: Folder of the store. It must contain graded samples, and embeddings of the questions from
            `python -m extract ask --baselines '[text_embedding]'`.
        confidences: Confidences to compare with the accuracy: folders of saved probes, or FILE:COLUMN for columns of
            Parquet or CSV files. They must not depend on the grades of the same questions.
        clusters: Number of clusters. By default, it is chosen based on the agreement between clusterings of random
            halves of the questions.
        grader: Grader whose grades are used. Required if the store has several graders.
        out: Folder to create for the Markdown page, record, table and plot. The default is runs/domains-STORE.
        seed: Seed for the halves and the initial centres of k-means.

    Returns:
        Path to the new folder.

    Raises:
        InputError: If an option is invalid, required data are missing, or there are too few distinct questions.
    """
    with result_folder("domains", [store], out, seed) as (folder, final):
        found = load_domains(Store.open(store), confidences, clusters, grader, seed)
        record = domains_record(found, seed)
        files = {"domains.md": domains_page(record, ["domains"]), "domains.json": record}
        write_files(folder, {**files, "domains.parquet": domains_table(found)}, {"domains": domains_picture(record)})
    print(f"{domains_summary(record)}Domains: {final / 'domains.md'}")
    return final
