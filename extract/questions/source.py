"""Where questions come from: what ``--questions`` and the options beside it mean."""

from __future__ import annotations

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
        asked = [draft.get("text", ""), list(draft.get("messages", ())), list(draft.get("choices", ()))]
        id_ = draft.get("id") or _hash(asked if is_fact else [*asked, list(references)], where)
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
        print(f"questions: {rows}, are left out", file=sys.stderr)
    return list(questions.values())


def _hash(asked: list[Any], where: str) -> str:
    try:
        return sha256_json(asked)[:16]
    except (TypeError, ValueError) as error:
        raise InputError(f"Expected {where} to hold text, but it does not: {error}. Correct it.") from None


def find_source(
    questions: str,
    fields: Mapping[str, Any] | None = None,
    split: str | None = None,
    revision: str | None = None,
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
        path = Path(path_text).expanduser() if has_path else None
        return _named_set(name, path, config or None, fields, split, revision)
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
    name: str,
    path: Path | None,
    config: str | None,
    fields: Mapping[str, Any] | None,
    split: str | None,
    revision: str | None,
) -> Source:
    known = SETS[name]
    if known.build is not None:
        if path or config or fields or split or revision:
            raise InputError(
                f"Expected nothing beside the set {name!r}, which is built at run time, but got a file, configuration, "
                "fields, split or revision. Leave them out."
            )
        return Source(name, known)
    if path is None and known.hub is None:
        raise InputError(
            f"Expected a file for the set {name!r}, which is not on the Hugging Face Hub in this form, but got none. "
            f"Give --questions {name}=PATH with {known.file}."
        )
    if path is not None:
        _check_options(path, split, revision)
    if known.gated and fields is not None:  # nothing would mark its questions as private
        raise _hidden(name)
    split = split or known.split
    chosen = replace(
        known,
        read=known.read if fields is None else by_fields(fields),
        config=config or known.config,
        split=split,
        revision=revision or known.revision,
        train=known.train if known.train != split else None,
    )
    return Source(name, chosen, path)


def _check_options(path: Path, split: str | None, revision: str | None) -> None:
    if revision is not None or (split is not None and not path.is_dir()):
        raise InputError(
            f"Expected no `{'questions_revision' if revision is not None else 'split'}` for {str(path)!r}, which is no "
            "dataset on the Hugging Face Hub. Leave it out."
        )


def _hidden(name: str) -> InputError:
    return InputError(
        f"Expected the set {name!r} by its name and without `fields`, because its authors ask that none of it be "
        f"shown, which only its own entry sees to. Give --questions {name}."
    )


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
            raise InputError(
                f"Expected every question to have an `id`, but number {number} of {source} has none. "
                "Add one that is unique in the set."
            )
        if question.id in seen:
            raise InputError(
                f"Expected question ids to be unique, but {where} repeats an earlier one. Rename or remove one."
            )
        problem = next(_problems(question, where), None)
        if problem is not None:
            raise InputError(problem)
        seen.add(question.id)
        yield question
    if not seen:
        raise InputError(
            f"Expected `questions` from {source} to hold at least one question, but it is empty. "
            "Give a file or a set with questions."
        )


def _problems(question: Question, where: str) -> Iterator[str]:
    """Messages about the rules that a question breaks; each may rely on those before it."""
    kind, references, choices = question.kind, question.references, question.choices
    if kind not in get_args(Kind):
        yield f"Expected `kind` of {where} to be one of {', '.join(get_args(Kind))}, but got {kind!r}."
    if bool(question.text.strip()) == bool(question.messages):
        yield f"Expected {where} to have exactly one of `text` and `messages`. Give one of them."
    for message in question.messages:
        texts = message.values() if isinstance(message, dict) and message.keys() == {"role", "content"} else [None]
        if not all(isinstance(text, str) for text in texts):
            yield (
                f"Expected `messages` of {where} to hold objects of a `role` and a `content`, both texts, but got "
                f"{question.public(shown(message))}. Correct the field."
            )
    if question.messages and not question.messages[-1]["content"].strip():
        yield (
            f"Expected the last of `messages` of {where} to say what is asked, but its content is empty. "
            "Correct it, or remove the question."
        )
    try:
        canonical_json(question.record()).encode()
    except (TypeError, ValueError) as error:
        yield (
            f"Expected {where} to hold text and finite numbers only, but it does not: {error}. Correct the question."
        )
    if not references:
        yield (
            f"Expected `references` of {where} to hold at least one gold answer, but it has none. "
            "Add one or remove the question."
        )
    for reference in references:
        if not says_anything(kind, reference):
            yield (
                f"Expected `references` of {where} to hold words or numbers, but got "
                f"{question.public(shown(reference))}. Correct the reference."
            )
        if kind == "number" and len(numbers(reference)) != 1:
            yield (
                f"Expected `references` of {where} to be a number each, because its kind is number, but got "
                f"{question.public(shown(reference))}. Correct the reference, or give another kind."
            )
    if kind == "choice" and question.text and not choices:
        yield (
            f"Expected {where} to have `choices`, because its kind is choice, but it has none. "
            "Add the texts of its options, or give another kind."
        )
    letters = tuple(ascii_uppercase[: len(choices) or None])
    if kind == "choice" and (len(choices) > len(letters) or references[0] not in letters):
        yield (
            f"Expected `references` of {where} to begin with the letter of the right one of at most 26 `choices`, but "
            f"got {question.public(shown(references[0]))}. Give the letter first, as in [B, Lima]."
        )


def says_anything(kind: str, reference: str) -> bool:
    """Whether a reference can be graded by: one of words needs words, others any character.

    >>> says_anything("short", "?!"), says_anything("math", "+")
    (False, True)
    """
    return bool(normalize(reference) if kind in ("short", "cloze") else reference.strip())
