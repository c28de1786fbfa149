"""Reader of the logs that lm-evaluation-harness writes with `--log_samples`."""

import ast
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from extract.errors import InputError
from extract.grading.base import Grade
from extract.policy import KnownDecoding
from extract.questions.loaders import Record, numbered_lines
from extract.questions.question import Kind, Question
from extract.sampling.imported.log import (
    Answer,
    Log,
    add_grade,
    check_new,
    check_same,
    checked_questions,
    grade_of,
    grader_name,
    readable,
    safe_name,
)
from extract.text import shown, valid_text

_KEYS = ("doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics")


def read_lm_eval(path: Path, kind: Kind | None) -> Log:
    """Read a samples_TASK_DATE.jsonl file, and results_DATE.json if it is in the same folder.

    The scores of a question become grades of its first answer. Scores that combine several answers are left out.

    Raises:
        InputError: If a line is damaged or was written by an unsupported version of lm-evaluation-harness, if a line
            occurs twice, or if the task does not generate answers.
    """
    with readable(path, "a samples file of lm-evaluation-harness 0.4"):
        task, _, date = path.stem.removeprefix("samples_").rpartition("_")
        file = path.with_name(f"results_{date}.json")
        results: dict[str, Any] = json.loads(file.read_bytes()) if file.is_file() else {}
        return _log(path, kind, task, results)


def _log(path: Path, kind: Kind | None, task: str, results: Mapping[str, Any]) -> Log:
    config = results.get("configs", {}).get(task, {})
    rising = results.get("higher_is_better", {}).get(task, {})
    questions: dict[str, Question] = {}
    answers: dict[tuple[str, int], Answer] = {}
    lines: set[tuple[str, object]] = set()
    options: dict[str, Any] = {}
    for where, row in numbered_lines(path):
        prompt, given = _request(row, where)
        options = options or given
        if given != options:
            raise InputError(
                f"Expected all questions to have the same generation options, but {where} has {shown(given)} instead "
                f"of {shown(options)}. Use a separate log for each set of options."
            )
        id_, key = str(row["doc_id"]), (str(row["doc_id"]), row["filter"])
        check_new(key, lines, where)
        lines.add(key)
        question = _question(row, prompt, safe_name(task), has_choices=config.get("doc_to_choice") is not None)
        questions[id_] = check_same(questions.get(id_), question, where)
        for sample, text in enumerate(row["resps"][0]):
            answers.setdefault((id_, sample), Answer(valid_text(text)))
        for name, grade in _grades(row, config, rising):
            add_grade(answers[id_, 0].grades, name, grade)
    version = results.get("lm_eval_version")
    rule = f"score by lm-evaluation-harness {version or ''} (1: right, 0: wrong, others: unknown)"
    checked = checked_questions(questions.values(), kind, path)
    return Log(
        {"tool": "lm_eval", "version": version, "task": safe_name(task)},
        safe_name(results.get("model_name")),
        _decoding(options, results.get("config", {}), chat=all(question.messages for question in checked)),
        checked,
        answers,
        1 + max(sample for _, sample in answers),
        {name: rule for answer in answers.values() for name in answer.grades},
    )


def _grades(row: Record, config: Mapping[str, Any], rising: Mapping[str, bool]) -> list[tuple[str, Grade]]:
    """Return a pair (grader name, grade) for each score of the first answer.

    Scores are left out if lower values are better, or if they combine several answers.
    """
    if len(row["resps"][0]) > 1 and not _takes_first(config, row["filter"]):
        return []
    found, suffix = row["filtered_resps"][0], [] if row["filter"] == "none" else [row["filter"]]
    answer = found if isinstance(found, str) else None
    metrics = [metric for metric in row["metrics"] if rising.get(metric) is not False]
    return [(grader_name("lm_eval", metric, *suffix), grade_of(row[metric], answer)) for metric in metrics]


def _request(row: Record, where: str) -> tuple[str, dict[str, Any]]:
    """Extract the prompt and the generation options from a log line."""
    if lacking := [key for key in _KEYS if key not in row]:
        raise InputError(
            f"Expected {where} to be from a samples file of lm-evaluation-harness 0.4.3 or later, but it lacks "
            f"{', '.join(lacking)}. Files of other versions can't be imported."
        )
    request = row["arguments"]["gen_args_0"]
    if not isinstance(request.get("arg_1"), dict):
        raise InputError(
            f"Expected generated answers in {where}, but the task compares log-probabilities of given texts. "
            "Use the log of a task with the output type generate_until, or run `python -m extract likelihood`."
        )
    return request["arg_0"], request["arg_1"]


def _question(row: Record, prompt: str, task: str, has_choices: bool) -> Question:
    """Return the question in a log line. Chat prompts are logged as the JSON of their messages."""
    messages = _literal(json.loads, prompt)
    is_chat = isinstance(messages, list) and all(isinstance(turn, dict) for turn in messages)
    references = _literal(ast.literal_eval, row["target"])  # a list is logged as Python code
    if not (isinstance(references, list) and all(isinstance(text, str) for text in references)):
        references = [] if has_choices else [row["target"]]  # the target is the index of a choice
    group = row["doc"].get("group")
    return Question(
        id=str(row["doc_id"]),
        dataset=task,
        text="" if is_chat else prompt,
        messages=tuple({name: turn[name] for name in ("role", "content")} for turn in messages) if is_chat else (),
        references=tuple(references),
        group=group if isinstance(group, str) else "",
    )


def _literal(parse: Callable[[str], Any], text: str) -> Any:
    """Parse a string that contains a list. Returns None if it contains anything else."""
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
        return parse(text) if text.startswith("[") else None


def _takes_first(config: Mapping[str, Any], name: str) -> bool:
    """Whether a filter selects the first of several answers. False if unknown."""
    default = {"name": "none", "filter": [{"function": "take_first"}]}
    filters = (config.get("filter_list") or [default]) if config else []
    functions = {step["function"] for one in filters if one["name"] == name for step in one["filter"]}
    return "take_first" in functions and not functions & {"majority_vote", "custom"}


def _decoding(options: Mapping[str, Any], run: Mapping[str, Any], chat: bool) -> KnownDecoding:
    until = options.get("until")
    known = {
        **options,
        "temperature": 0.0 if options.get("do_sample") is False else options.get("temperature"),
        "max_new_tokens": options.get("max_gen_toks"),
        "stop": [until] if isinstance(until, str) else until,
        "seed": run.get("torch_seed"),
    }
    return KnownDecoding.of(known, chat)
