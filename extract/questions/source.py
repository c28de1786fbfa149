"""Sources of questions, selected by ``--questions`` and related options."""

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_uppercase
from typing import Any, get_args

from extract.errors import InputError, nearest
from extract.hashing import canonical_json, hash_order, sha256_json
from extract.questions.fields import Draft, Row, by_fields, own_form
from extract.questions.loaders import LOADERS, Record
from extract.questions.numbers import numbers
from extract.questions.question import Kind, Question
from extract.questions.sets import SETS, QuestionSet
from extract.running.progress import quiet_loggers, say
from extract.text import normalize, one_line, shown

_HUB_ID = re.compile(r"([\w.-]+/[\w.-]+)(?::([\w.-]+))?")


@dataclass(frozen=True)
class Source:
    """A question source that has not been read yet.

    Attributes:
        dataset: Name of the dataset, recorded in each question.
        set: Location and row format of the questions, with the command's options applied.
        path: Path of a file, or of a folder with the layout of a Hub dataset. None to read from the Hub.
    """

    dataset: str
    set: QuestionSet
    path: Path | None = None

    def questions(self, seed: int) -> list[Question]:
        """Read and check all questions in row order. `seed` determines how options are shuffled.

        Rows that repeat a question are merged. Rows without a gradable answer are skipped. The number of skipped rows
        is printed to standard error. In a .jsonl file in the package's own format, rows are neither merged nor skipped.

        Raises:
            InputError: If the rows can't be read, or a question is invalid.
        """
        if self.set.build is not None:
            return check_questions(self.set.build(), f"the {self.dataset!r} set")
        drafts = self._drafts(enumerate(self.rows(self.set.split)), seed)
        if self.set.read is own_form and self.path is not None and self.path.suffix == ".jsonl":  # duplicates are kept
            questions: Iterable[Question] = (Question(dataset=self.dataset, **draft) for draft, _ in drafts)
        else:
            questions = _merged(drafts, self.dataset)
        return check_questions(questions, repr(self.dataset))

    def examples(self, seed: int) -> Iterator[Question] | None:
        """Return the train split in a seeded random order, or None if there is no train split."""
        if self.set.train is None or (self.path is not None and not self.path.is_dir()):
            return None
        rows = self.rows(self.set.train)
        order = hash_order([str(i) for i in range(len(rows))], seed)
        return (question for i in order for question in _merged(self._drafts([(i, rows[i])], seed), self.dataset))

    def _drafts(self, rows: Iterable[tuple[int, Record]], seed: int) -> Iterator[tuple[Draft, str]]:
        for i, values in rows:
            row = Row(values, f"row {i + 1} of {self.dataset!r}")
            yield self.set.read(row, seed), row.where

    def rows(self, split: str) -> Sequence[Record]:
        """Read all rows of a split. For a file, `split` has no effect."""
        path = self.path
        if path is not None and not path.is_dir() and not (path.suffix in LOADERS and path.is_file()):
            raise InputError(
                "Expected `questions` to be the name of a question set, a Hugging Face Hub id, or a file "
                f"({', '.join(LOADERS)}), but {str(path)!r} "
                f"{'has a different suffix' if path.is_file() else 'does not exist'}. Check the path."
            )
        try:
            if path is None or path.is_dir():
                return self._load_dataset(split)
            return LOADERS[path.suffix](path, self.set.columns)
        except InputError:
            raise
        except Exception as error:  # `datasets`, pandas, pyarrow and the Hub client raise many exception types
            raise InputError(self._unreadable(error)) from None

    def _load_dataset(self, split: str) -> Sequence[Record]:
        from datasets import load_dataset

        in_csv = self.set.in_csv if self.path is None else any(self.path.rglob("*.csv"))
        as_text = {"keep_default_na": False, "index_col": False} if in_csv else {}  # "None" and "NA" can be answers
        options = {"name": self.set.config, "split": split, **as_text}
        with quiet_loggers("datasets", "huggingface_hub"), warnings.catch_warnings():
            warnings.filterwarnings("error", "Length of header or names")  # rows with more fields than columns
            if self.path is None:  # cached, with random access
                return load_dataset(str(self.set.hub), revision=self.set.revision, **options)
            return list(load_dataset(str(self.path), streaming=True, **options))

    def _unreadable(self, error: Exception) -> str:
        """Return the message for a dataset that can't be read or reached."""
        from huggingface_hub import get_token

        hub, reason = self.set.hub, one_line(error, 300).rstrip(".")
        if self.path is not None:
            return f"Expected {str(self.path)!r} to be a readable dataset, but it is not ({reason}). Check its content."
        if "gated" in reason or (self.set.gated and get_token() is None):
            problem = "it is not set" if get_token() is None else f"it does not ({reason})"
            return (
                f"Expected HF_TOKEN to give access to the gated dataset {hub!r}, but {problem}. Accept the terms at "
                f"https://huggingface.co/datasets/{hub}, and set HF_TOKEN to a token of the same account."
            )
        if isinstance(error, ConnectionError):
            file = "PATH" if self.dataset == hub else f"{self.dataset}=PATH"
            return (
                f"Expected the Hugging Face Hub to be reachable for {hub!r}, but it is not ({reason}). Check the "
                f"connection, unset HF_HUB_OFFLINE, or pass a local file with --questions {file}."
            )
        return (
            f"Expected {hub!r} to be a readable dataset on the Hugging Face Hub, but it is not ({reason}). "
            "Check its id, configuration, split and revision."
        )


def find_source(
    questions: str, fields: Mapping[str, Any] | None = None, split: str | None = None, revision: str | None = None
) -> Source:
    """Find the question source that these options of `extract.recipe.StoreRecipe` select.

    Raises:
        InputError: If the name is unknown, or an option does not apply to the source.
    """
    name, has_path, path_text = questions.partition("=")
    name, _, config = name.partition(":")
    file, is_misspelled = Path(questions).expanduser(), bool(has_path) and re.fullmatch(r"[\w-]+", name) is not None
    if name in SETS and (path_text or not has_path):
        source = Source(name, SETS[name], Path(path_text).expanduser() if has_path else None)
    elif name and (file.exists() or (file.suffix in LOADERS and not is_misspelled)):
        source, config = Source(file.stem, QuestionSet(), file), ""
    elif hub := _HUB_ID.fullmatch(questions):
        source, config = Source(hub[1], QuestionSet(hub=hub[1])), hub[2]
    else:
        raise InputError(
            f"Expected `questions` to be one of {', '.join(SETS)}, NAME=PATH with one of these names, a "
            f"file ({', '.join(LOADERS)}), or a Hugging Face Hub id, but got {questions!r}.{nearest(name, SETS)}"
        )
    return _with_options(source, config, fields, split, revision)


def _with_options(
    source: Source, config: str, fields: Mapping[str, Any] | None, split: str | None, revision: str | None
) -> Source:
    dataset, known, path = source.dataset, source.set, source.path
    if known.build is not None:
        if path or config or fields or split or revision:
            raise InputError(
                f"Expected no file, configuration, fields, split or revision for the {dataset!r} set, but "
                "got at least one of these options. Remove them. This set is built at run time."
            )
        return source
    if path is None and known.hub is None:
        raise InputError(
            f"Expected a file for the {dataset!r} set, but got none. The Hugging Face Hub does not have this set in "
            f"the required form. Pass --questions {dataset}=PATH with the path of {known.file}."
        )
    if path is not None and (revision is not None or (split is not None and not path.is_dir())):
        option = "split" if revision is None else "questions_revision"
        raise InputError(f"Expected no `{option}` for the local path {str(path)!r}, but got one. Remove the option.")
    for name, entry in SETS.items():
        is_hub_id = dataset.casefold() == str(entry.hub).casefold()
        if entry.gated and (is_hub_id or (entry is known and fields is not None)):
            raise InputError(
                f"Expected the gated question set {name!r} to be selected by its name, without `fields`, so that its "
                f"texts stay private. Pass --questions {name}."
            )
    read = known.read if fields is None else by_fields(fields)
    split, revision = split or known.split, revision or known.revision
    train = known.train if known.train != split else None
    chosen = replace(known, read=read, config=config or known.config, split=split, revision=revision, train=train)
    return replace(source, set=chosen)


def _merged(drafts: Iterable[tuple[Draft, str]], dataset: str) -> list[Question]:
    """Build questions from rows. `drafts` contains the fields and the location of each row.

    `short` and `cloze` questions with the same prompt are merged into one. The merged question accepts the answers of
    all its rows.
    """
    questions: dict[str, Question] = {}
    left_out: list[str] = []
    for draft, where in drafts:
        kind = draft.get("kind", "short")
        references = tuple(text for text in dict.fromkeys(draft["references"]) if says_anything(kind, text))
        if not references:
            left_out.append(where)
            continue
        is_fact = kind in ("short", "cloze")
        asked = [draft.get("text", ""), draft.get("messages", ()), draft.get("choices", ())]
        try:
            id_ = draft.get("id") or sha256_json(asked if is_fact else [*asked, references])[:16]
        except (TypeError, ValueError) as error:
            raise InputError(
                f"Expected {where} to contain valid text, but it does not: {error}. Fix the text and try again."
            ) from None
        question = Question(**{**draft, "id": id_, "dataset": dataset, "references": references})
        earlier = questions.get(id_)
        if earlier is not None:
            together = tuple(dict.fromkeys((*earlier.references, *references)))
            if earlier.prompt != question.prompt or not (is_fact or together == earlier.references):
                raise InputError(
                    f"Expected ids to be unique, but {where} has the id {id_!r} of an earlier question. "
                    "Specify a different column for `id` in --fields, or omit `id`."
                )
            question = replace(earlier, references=together)
        questions[id_] = question
    if left_out:
        say(f"questions: skipped {len(left_out)} rows without a gradable answer, such as {left_out[0]}")
    return list(questions.values())


def check_questions(questions: Iterable[Question], source: str, need_references: bool = True) -> list[Question]:
    """Check the questions of a new store. Return them with `row` set to their index.

    Args:
        need_references: Whether every question must have references.

    Raises:
        InputError: If there are no questions, if an id is missing or repeated, or if a question is invalid for its
            kind.
    """
    checked: dict[str, Question] = {}
    for number, question in enumerate(questions, 1):
        where = f"question {question.id!r} (number {number} of {source})"
        if question.id in checked:
            raise InputError(f"Expected ids to be unique, but {where} repeats an earlier id. Change this id.")
        if problem := next(_problems(question, where, need_references), None):
            raise InputError(f"Expected {problem}. Correct the question, or remove it.")
        checked[question.id] = replace(question, row=number - 1)
    if not checked:
        raise InputError(
            f"Expected {source} to contain at least one question, but it is empty. Pass a different source."
        )
    return list(checked.values())


def _problems(question: Question, where: str, need_references: bool) -> Iterator[str]:
    """Yield a message for each rule that a question breaks."""
    kind, references, choices = question.kind, question.references, question.choices

    def got(value: object) -> str:
        return f"but got {question.public(shown(value))}"

    if not question.id:
        yield f"{where} to have an `id`, but it has none"
    if kind not in get_args(Kind):
        yield f"`kind` of {where} to be one of {', '.join(get_args(Kind))}, {got(kind)}"
    if bool(question.text.strip()) == bool(question.messages):
        found = "both" if question.messages else "neither"
        yield f"{where} to have exactly one of `text` and `messages`, but it has {found}"
    for message in question.messages:
        texts = message.values() if isinstance(message, dict) and message.keys() == {"role", "content"} else [None]
        if not all(isinstance(text, str) for text in texts):
            yield f"`messages` of {where} to contain objects with two strings, `role` and `content`, {got(message)}"
    if question.messages and not question.messages[-1]["content"].strip():
        yield f"the last message of {where} to contain a question, but its content is empty"
    try:
        canonical_json(question.record()).encode()
    except (TypeError, ValueError) as error:
        yield f"{where} to contain only text and finite numbers, but it does not: {error}"
    if not references and need_references:
        yield f"`references` of {where} to contain at least one gold answer, but it is empty"
    for reference in references:
        if not says_anything(kind, reference):
            yield f"`references` of {where} to contain words or numbers, {got(reference)}"
        if kind == "number" and len(numbers(reference)) != 1:
            yield f"each reference of {where} to be a single number, {got(reference)}. The question is of kind `number`"
    if kind == "choice" and question.text and not choices:
        yield f"{where} to have `choices`, but it has none. Its kind is `choice`"
    letters = tuple(ascii_uppercase[: len(choices) or None])
    if kind == "choice" and references and (len(choices) > len(letters) or references[0] not in letters):
        expected = "to begin with the letter of one of its `choices` (at most 26), for example [B, Lima]"
        yield f"`references` of {where} {expected}, {got(references[0])}"


def says_anything(kind: str, reference: str) -> bool:
    """Whether a reference is not blank. For `short` and `cloze` questions, it must contain a letter or digit."""
    return bool(normalize(reference) if kind in ("short", "cloze") else reference.strip())
