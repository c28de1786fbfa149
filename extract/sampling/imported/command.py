"""`python -m extract import`: make a store from the log of another tool."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from extract.errors import InputError
from extract.questions.question import Kind
from extract.registry import Registry, fill_names
from extract.running.progress import say
from extract.sampling.imported.inspect_log import read_inspect
from extract.sampling.imported.json_lines import read_json_lines
from extract.sampling.imported.lm_eval import read_lm_eval
from extract.sampling.imported.log import Log
from extract.sampling.imported.store import write_log
from extract.store.store import Store

SOURCES: Registry[Callable[[Path, Kind | None], Log]] = Registry(
    "source", {"lm-eval": read_lm_eval, "inspect": read_inspect, "jsonl": read_json_lines}
)


@fill_names(sources=SOURCES)
def import_log(store: str, path: str, source: str, kind: Kind | None = None) -> Store:
    """Make a store from a log of lm-evaluation-harness or Inspect, or from a JSON Lines file.

    Scores become grades: 1 means right, 0 means wrong, and all other values mean unknown. If the log contains
    references, the answers can be graded again with `python -m extract grade`. Settings that the log does not contain
    are stored as unknown.

    Args:
        store: Folder of the store.
        path: Log file: samples_TASK_DATE.jsonl from lm-evaluation-harness (with results_DATE.json in the same folder),
            an .eval or .json file from Inspect, or a .jsonl file with one answer per line.
        source: Format of the file: one of {sources}.
        kind: Kind of the questions: short, number, math, choice or cloze. It determines the default grader and how
            references are read. The default is `choice` for questions with options, and `short` for other questions.

    Raises:
        InputError: If the file is missing, is damaged or has an unknown version, if an answer occurs twice, or if the
            folder contains another store.
    """
    read, file = SOURCES[source], Path(path)
    if not file.is_file():
        problem = "is a folder" if file.is_dir() else "does not exist"
        raise InputError(f"Expected `path` to be a log file, but {path!r} {problem}. Pass the path of one file.")
    log = read(file, kind)
    if not log.answers:
        raise InputError(f"Expected {path!r} to contain answers, but every sample failed. Pass a different log.")
    n_known = {
        name: sum(answer.grades[name].right is not None for answer in log.answers.values() if name in answer.grades)
        for name in log.rules
    }
    log = replace(log, rules={name: log.rules[name] for name, n in n_known.items() if n})
    made = write_log(log, Path(store))
    n_questions, n_answers = len(log.questions), len(log.answers)
    n_missing = n_questions * log.k - n_answers
    say(
        f"import: {n_answers:,} answers to {n_questions:,} questions"
        f"{f' ({n_missing:,} answers are not in the log)' if n_missing else ''}"
    )
    for name, n in n_known.items():
        unknown = f", {n_answers - n:,} unknown" if n < n_answers else ""
        say(f"import: {n:,} grades by {name}{unknown}{'' if n else '. This grader is left out'}")
    return made
