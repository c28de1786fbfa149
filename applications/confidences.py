"""Read confidences for questions from a saved probe or from a column of a table."""

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from extract.errors import InputError, nearest
from extract.hashing import differences
from extract.store.store import Store
from probes.saved.artefact import ConfidenceProbe, load_probe

ID = "question_id"
#: Name of the signal with the hidden states. Only the layers that the probe uses are read.
HIDDEN = "hidden"


def read_confidence(source: str, store: Store, ignored: Collection[str] = ()) -> NDArray[np.float64]:
    """Read a confidence for each question of a store.

    Args:
        source: Folder of a saved probe, or ``FILE:COLUMN`` for a column of a Parquet or CSV file, for example
            ``runs/compare-facts/predictions.parquet:layer_average``. A file must also have a ``question_id`` column.
        store: The store. For a probe, the store must contain the signals that the probe reads.
        ignored: Ids of questions that a file may contain even if they are not in the store.

    Returns:
        Probabilities, [question] float64, in the order of `store.questions`; NaN for questions without a confidence.

    Raises:
        InputError: If the source is missing or invalid, or if the probe was trained on the same questions or with
            another model.
    """
    values = _of_probe(Path(source), store) if Path(source).is_dir() else _of_table(source, store, ignored)
    wrong = values[(values < 0) | (values > 1)]
    if len(wrong):
        raise InputError(
            f"Expected the confidences in {source!r} to be between 0 and 1, but got {wrong[0]:g}. Calibrate them first."
        )
    if np.isnan(values).all():
        raise InputError(
            f"Expected {source!r} to contain a confidence for at least one question of '{store.path}', but all are "
            "missing. Use a different column or probe."
        )
    return values


def named_confidences(sources: Sequence[str], store: Store, reserved: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    """Read the confidences [question] of all sources, keyed by `confidence_name`."""
    names = [confidence_name(source) for source in sources]
    if len({*names, *reserved}) < len(names) + len(reserved):
        other = f" other than {', '.join(reserved)}" if reserved else ""
        raise InputError(
            f"Expected `confidences` to have distinct names{other}, but got {', '.join(names)}. Rename a column or a "
            "folder."
        )
    return {name: read_confidence(source, store) for name, source in zip(names, sources, strict=True)}


def confidence_name(source: str) -> str:
    """Return a source's short name: the column of a table, or the run folder of a probe.

    >>> confidence_name("runs/compare-facts/predictions.parquet:ridge"), confidence_name("runs/mine/probe")
    ('ridge', 'mine')
    """
    path, _, column = source.rpartition(":")
    if path:
        return column
    folder = Path(source)
    return folder.parent.name if folder.name == "probe" else folder.name


def _of_probe(folder: Path, store: Store) -> NDArray[np.float64]:
    """Compute the confidences of a saved probe from the signals in the store."""
    probe = load_probe(folder)
    if probe.reads_answers:
        raise InputError(
            f"Expected a probe that reads questions, but {str(folder)!r} reads answers (target "
            f"{probe.config['target']!r}). Train one with --data.target=capability."
        )
    check_probe_model(probe, store)
    training = probe.config.get("training", {})
    if training.get("store") == store.sha256 or training.get("questions") == store.identity["questions"]:
        raise InputError(
            f"Expected a probe that was not trained on the questions of '{store.path}', but {str(folder)!r} was. A "
            "probe overfits its training questions. Pass the out-of-fold predictions of "
            "`python -m probes compare` as FILE:COLUMN."
        )
    keys = {signal: store.signals.keys(signal) for signal in probe.signals}
    wanted = {f"{layer}/{probe.position}" for layer in probe.layers}
    read = {
        signal: {key: store.signals.read(signal, key) for key in of_signal if key in wanted or signal != HIDDEN}
        for signal, of_signal in keys.items()
    }
    return probe.confidences(probe.features(read), backoff=False).confidence.double().numpy()


def check_probe_model(probe: ConfidenceProbe, store: Store) -> None:
    """Raise an InputError unless the probe was trained on the store's model."""
    expected = probe.config["model"]
    names = {"id": expected["id"], "revision": expected["revision"]}  # not compared, as in `check_model`
    if different := "; ".join(differences(store.model | names, expected)):
        raise InputError(
            f"Expected a probe for the model of '{store.path}', but the probe's model differs in {different}. Use a "
            "probe that was trained on the store's model."
        )


def _of_table(source: str, store: Store, ignored: Collection[str]) -> NDArray[np.float64]:
    path, _, column = source.rpartition(":")
    if not path:
        raise InputError(
            f"Expected `confidences` to contain folders of saved probes or FILE:COLUMN, but {source!r} is neither. For "
            "example, pass runs/compare-facts/predictions.parquet:layer_average."
        )
    table = _read_table(Path(path), source)
    if "split" in table.column_names and set(table["split"].to_pylist()) & {"train", "val"}:
        raise InputError(
            f"Expected out-of-fold predictions, but {path!r} also contains predictions for the training questions of a "
            "probe. Pass the predictions of `python -m probes compare`."
        )
    for name in (ID, column):
        if name not in table.column_names:
            known = ", ".join(table.column_names)
            raise InputError(
                f"Expected {path!r} to have a column {name!r}, but its columns are {known}."
                f"{nearest(name, table.column_names)} Pass FILE:COLUMN."
            )
    row_of = {question.id: row for row, question in enumerate(store.questions)}
    ids = [str(id_) for id_ in table[ID].to_pylist()]
    if strange := next((id_ for id_ in ids if id_ not in row_of and id_ not in ignored), None):
        raise InputError(
            f"Expected the questions of {path!r} to be in the store '{store.path}', but question {strange!r} is "
            "not. Use a table of this store's questions."
        )
    if len(set(ids)) < len(ids):
        twice = next(id_ for i, id_ in enumerate(ids) if id_ in ids[:i])
        raise InputError(
            f"Expected one row per question in {path!r}, but question {twice!r} has several. Keep only one row."
        )
    try:
        numbers = pa.compute.cast(table[column], pa.float64())
    except pa.ArrowException as error:
        raise InputError(
            f"Expected the {column!r} column of {path!r} to contain numbers, but its type is {table[column].type}. "
            "Choose a different column."
        ) from error
    values = dict(zip(ids, numbers.to_numpy(zero_copy_only=False), strict=True))
    return np.array([values.get(id_, np.nan) for id_ in row_of])


def _read_table(path: Path, source: str) -> pa.Table:
    ids_as_text = pa.csv.ConvertOptions(column_types={ID: pa.string()})  # keeps the zeros of ids such as 007
    readers = {".parquet": pq.read_table, ".csv": partial(pa.csv.read_csv, convert_options=ids_as_text)}
    if path.suffix not in readers or not path.is_file():
        raise InputError(
            f"Expected each of `confidences` to be the folder of a saved probe, or FILE:COLUMN for a Parquet or CSV "
            f"file, but got {source!r}. For example, pass runs/compare-facts/predictions.parquet:layer_average."
        )
    try:
        table: pa.Table = readers[path.suffix](path)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(
            f"Expected {str(path)!r} to be a {path.suffix[1:]} file, but reading it failed: {error}"
        ) from error
    return table
