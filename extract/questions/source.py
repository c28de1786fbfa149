"""Where questions come from: what ``--questions`` and the options beside it mean."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from string import ascii_uppercase
from typing import Any, get_args

from extract.errors import InputError, nearest
from extract.hashing import canonical_json, hash_order, sha256_json
from extract.questions.fields import Draft, Row, by_fields, own_form
from extract.questions.loaders import LOADERS, Record, load_rows
from extract.questions.numbers import numbers
from extract.questions.question import Kind, Question
from extract.questions.sets import SETS, QuestionSet
from extract.running.progress import say
from extract.text import normalize, shown

_HUB_ID = re.compile(r"([\w.-]+/[\w.-]+)(?::([\w.-]+))?")


@dataclass(frozen=True)
class Source:
    """Questions that are not read yet.

    Attributes:
        dataset: Name of the dataset, which its questions hold.
        set: Where it is and how its rows are read, with the options of the command.
        path: A file, or a folder that is laid out as a dataset on the Hub; None for the Hub.
    """

    dataset: str
    set: QuestionSet
    path: Path | None = None

    def questions(self, seed: int) -> list[Question]:
        """All questions that can be asked, in the order of their rows, after `check_questions`.

        Rows that ask the same are one question, with all their answers. A row without an answer that can be graded by
        is left out; standard error says how many are.

        Args:
            seed: Seed of shuffled options.

        Raises:
            InputError: The rows can't be read, or a question breaks a rule.
        """
        if self.set.build is not None:
            return list(check_questions(self.set.build(), f"the set {self.dataset!r}"))
        drafts = self._drafts(enumerate(load_rows(self.dataset, self.set, self.path, self.set.split)), seed)
        if self.set.read is own_form and self.path is not None and self.path.suffix == ".jsonl":  # taken as it stands
            questions: Iterable[Question] = (Question(dataset=self.dataset, **draft) for draft, _ in drafts)
        else:
            questions = merged(drafts, self.dataset)
        return list(check_questions(questions, repr(self.dataset)))

    def examples(self, seed: int) -> Iterator[Question] | None:
        """Questions of the train split in a seeded order, made one by one; None without such a split."""
        if self.set.train is None or (self.path is not None and not self.path.is_dir()):
            return None
        rows = load_rows(self.dataset, self.set, self.path, self.set.train)
        order = hash_order([str(i) for i in range(len(rows))], seed)
        return (question for i in order for question in merged(self._drafts([(i, rows[i])], seed), self.dataset))

    def _drafts(self, rows: Iterable[tuple[int, Record]], seed: int) -> Iterator[tuple[Draft, str]]:
        for i, values in rows:
            row = Row(values, f"row {i + 1} of {self.dataset!r}")
            yield self.set.read(row, seed), row.where


def merged(drafts: Iterable[tuple[Draft, str]], dataset: str) -> list[Question]:
    """Questions of drafts, each once, with an id of its own: a hash of what is asked where the draft has none.

    Drafts of facts that ask the same are one question with the answers of all of them, since each is right; of other
    kinds those that are the same in everything are one.
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
            raise InputError(f"Expected {where} to hold text, but it does not: {error}. Correct it.") from None
        question = Question(**{**draft, "id": id_, "dataset": dataset, "references": references})
        earlier = questions.get(id_)
        if earlier is not None:
            together = tuple(dict.fromkeys((*earlier.references, *references)))
            if earlier.prompt != question.prompt or not (is_fact or together == earlier.references):
                raise InputError(
                    f"Expected ids to be unique, but {where} has {id_!r}, as another question before it. "
                    "Name another column for `id` in --fields, or none."
                )
            question = replace(earlier, references=together)
        questions[id_] = question
    if left_out:
        rows = f"{len(left_out)} rows without an answer that can be graded by, such as {left_out[0]}"
        say(f"questions: {rows}, are left out")
    return list(questions.values())


def find_source(
    questions: str, fields: Mapping[str, Any] | None = None, split: str | None = None, revision: str | None = None
) -> Source:
    """The source that options name; see `extract.recipe.StoreRecipe` for them.

    Raises:
        InputError: Nothing has this name, or an option does not go with it.
    """
    name, has_path, path_text = questions.partition("=")
    name, _, config = name.partition(":")
    if not name or (has_path and name in SETS and not path_text):
        raise InputError(
            f"Expected `questions` to name a set, a file or a dataset, but got {questions!r}. "
            "Give for example --questions facts, --questions gsm8k=PATH, or the path of a file."
        )
    if name in SETS:
        return _named_set(name, Path(path_text).expanduser() if has_path else None, config, fields, split, revision)
    read = own_form if fields is None else by_fields(fields)
    path, is_misspelled = Path(questions).expanduser(), bool(has_path) and re.fullmatch(r"[\w-]+", name) is not None
    if path.exists() or (path.suffix in LOADERS and not is_misspelled):
        _check_options(path, split, revision)
        return Source(sys.intern(path.stem), QuestionSet(read, split=split or "test"), path)
    if hub := _HUB_ID.fullmatch(questions):
        for known, known_set in SETS.items():  # the Hub does not look at capitals
            if known_set.gated and str(known_set.hub).casefold() == hub[1].casefold():
                raise _hidden(known)
        return Source(hub[1], QuestionSet(read, hub[1], hub[2], split or "test", revision))
    raise InputError(
        f"Expected `questions` to be one of {', '.join(SETS)}, NAME=PATH with one of them, a file of "
        f"{', '.join(LOADERS)}, or an id on the Hugging Face Hub, but got {questions!r}.{nearest(name, SETS)}"
    )


def _named_set(
    name: str, path: Path | None, config: str, fields: Mapping[str, Any] | None, split: str | None, revision: str | None
) -> Source:
    known = SETS[name]
    if known.build is not None:
        if path or config or fields or split or revision:
            raise InputError(
                f"Expected nothing beside the set {name!r}, which is built at run time, but got a file, configuration, "
                "fields, split or revision. Leave them out."
            )
        return Source(name, known)
    if path is not None:
        _check_options(path, split, revision)
    elif known.hub is None:
        raise InputError(
            f"Expected a file for the set {name!r}, which is not on the Hugging Face Hub in this form, but got none. "
            f"Give --questions {name}=PATH with {known.file}."
        )
    if known.gated and fields is not None:  # nothing would mark its questions as private
        raise _hidden(name)
    split = split or known.split
    train = known.train if known.train != split else None
    read = known.read if fields is None else by_fields(fields)
    known = replace(known, read=read, config=config or known.config, split=split, train=train)
    return Source(name, replace(known, revision=revision or known.revision), path)


def _check_options(path: Path, split: str | None, revision: str | None) -> None:
    if revision is not None or (split is not None and not path.is_dir()):
        option = "split" if revision is None else "questions_revision"
        raise InputError(f"Expected no `{option}` for {str(path)!r}, which is not on the Hub. Leave it out.")


def _hidden(name: str) -> InputError:
    reason = "its authors ask that none of it be shown, which only its own entry sees to"
    return InputError(f"Expected {name!r} by its name and without `fields`: {reason}. Give --questions {name}.")


def check_questions(questions: Iterable[Question], source: str) -> Iterator[Question]:
    """Pass new questions on one by one, or say what is wrong with them. Stores are opened without this check.

    Args:
        questions: The questions.
        source: Where they are from, for messages.

    Raises:
        InputError: There is no question, an id is missing or repeated, or a question breaks a rule of its kind.
    """
    seen: set[str] = set()
    for number, question in enumerate(questions, 1):
        where = f"question {question.id!r} (number {number} of {source})"
        if not question.id:
            raise InputError(f"Expected an `id`, but number {number} of {source} has none. Add a unique one.")
        if question.id in seen:
            raise InputError(f"Expected ids to be unique, but {where} repeats an earlier one. Rename or remove one.")
        problem = next(_problems(question, where), None)
        if problem is not None:
            raise InputError(f"Expected {problem}. Correct the question, or remove it.")
        seen.add(question.id)
        yield question
    if not seen:
        raise InputError(f"Expected {source} to hold at least one question, but it is empty. Give another.")


def _problems(question: Question, where: str) -> Iterator[str]:
    """What was expected and what came, for each rule that a question breaks; each may rely on those before it."""
    kind, references, choices = question.kind, question.references, question.choices

    def got(value: object) -> str:
        return f"but got {question.public(shown(value))}"

    if kind not in get_args(Kind):
        yield f"`kind` of {where} to be one of {', '.join(get_args(Kind))}, {got(kind)}"
    if bool(question.text.strip()) == bool(question.messages):
        yield f"{where} to have exactly one of `text` and `messages`"
    for message in question.messages:
        texts = message.values() if isinstance(message, dict) and message.keys() == {"role", "content"} else [None]
        if not all(isinstance(text, str) for text in texts):
            yield f"`messages` of {where} to hold objects of two texts, `role` and `content`, {got(message)}"
    if question.messages and not question.messages[-1]["content"].strip():
        yield f"the last of `messages` of {where} to say what is asked, but its content is empty"
    try:
        canonical_json(question.record()).encode()
    except (TypeError, ValueError) as error:
        yield f"{where} to hold text and finite numbers only, but it does not: {error}"
    if not references:
        yield f"`references` of {where} to hold at least one gold answer, but it has none"
    for reference in references:
        if not says_anything(kind, reference):
            yield f"`references` of {where} to hold words or numbers, {got(reference)}"
        if kind == "number" and len(numbers(reference)) != 1:
            yield f"`references` of {where} to be a number each, because its kind is number, {got(reference)}"
    if kind == "choice" and question.text and not choices:
        yield f"{where} to have `choices`, because its kind is choice, but it has none"
    letters = tuple(ascii_uppercase[: len(choices) or None])
    if kind == "choice" and (len(choices) > len(letters) or references[0] not in letters):
        expected = "to begin with the letter of the right one of at most 26 `choices`, as in [B, Lima]"
        yield f"`references` of {where} {expected}, {got(references[0])}"


def says_anything(kind: str, reference: str) -> bool:
    """Whether a reference can be graded by: one of words needs words, others any character.

    >>> says_anything("short", "?!"), says_anything("math", "+")
    (False, True)
    """
    return bool(normalize(reference) if kind in ("short", "cloze") else reference.strip())
