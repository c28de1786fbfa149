"""The command ``python -m applications background-temperature``."""

from collections.abc import Sequence
from pathlib import Path

from applications.background.estimation import estimate_temperature
from applications.background.outputs import Unit, read_source
from applications.background.pictures import background_pictures
from applications.background.record import (
    authors_csv,
    background_page,
    background_record,
    background_verdict,
    prompt_table,
)
from applications.background.systems import open_references, read_systems
from probes.report.results import result_folder, write_files


def background_temperature(
    tested: str,
    references: Sequence[str],
    unit: Unit | None = None,
    shared: bool = False,
    out: str | None = None,
    seed: int = 0,
    n_resamples: int = 2000,
) -> Path:
    """Estimate the background temperature of a system that samples at temperature 0.

    At the background temperature, the outputs of a reference model vary as much as those of the system (Messina and
    Scotta, arXiv 2604.22411).

    Args:
        tested: Outputs of the tested system: a store, a JSON file that maps each prompt to a list of outputs (texts or
            lists of token ids), or a CSV file with the columns `prompt` and `output`.
        references: Folders of temperature grids, one for each reference model. A temperature grid has one store per
            temperature. You can sample it with `python -m extract sample --policy.temperature 0:1:0.05`, for example.
            Use the same prompts, prompt template and token limit as for the tested system.
        unit: Unit in which outputs are compared: tokens, or words and punctuation marks. The default is tokens if all
            tokenizers are known to be the same, and words otherwise.
        shared: Whether to use only the prompts that all systems have, if the prompts differ.
        out: Folder to create for the Markdown page, record, tables and plots. The default is
            runs/background-temperature-TESTED.
        seed: Seed for resampling.
        n_resamples: Number of bootstrap resamples of the prompts for each interval.

    Returns:
        Path to the new folder.

    Raises:
        InputError: If an option is invalid, or the systems cannot be compared.
    """
    with result_folder("background-temperature", [tested], out, seed, n_resamples) as (folder, final):
        source, grids = read_source(tested), open_references(references)
        systems = read_systems(source, grids, unit, shared)
        estimate = estimate_temperature(systems, n_resamples, seed)
        record = background_record(source, grids, systems, estimate, n_resamples, seed)
        plots = background_pictures(record)
        files = {
            "background-temperature.md": background_page(record, [*plots]),
            "background-temperature.json": record,
            "prompts.parquet": prompt_table(systems, estimate),
            "results_Tbg.csv": authors_csv(record),
        }
        write_files(folder, files, plots)
    print(f"{background_verdict(record)}Background temperature: {final / 'background-temperature.md'}")
    return final
