"""Where questions come from: what ``--questions`` and the options beside it mean."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from extract.errors import InputError, nearest
from extract.hashing import hash_order, sha256_json
from extract.questions.dataset_rows import SUFFIXES, Place
from extract.questions.fields import Draft, Read, Row, by_fields
from extract.questions.files import FIELDS, own_form, read_jsonl
from extract.questions.question import Question, check_loaded, says_anything
from extract.questions.sets import BUILT, SETS, QuestionSet

_HUB_ID = re.compile(r"([\w.-]+/[\w.-]+)(?::([\w.-]+))?")


@dataclass(frozen=True)
class Source:
    """Questions that are not read yet.

    Attributes:
        dataset: What they say that they are of.
        place: Where their rows are; None for a set that is built at run time.
        read: Makes a question of a row; None where rows are in our own form.
        split: Split whose questions are asked.
        train: Split that worked examples are taken from, if there is one.
    """

    dataset: str
    place: Place | None = None
    read: Read | None = None
    split: str = "test"
    train: str | None = None

    def questions(self, seed: int) -> list[Question]:
        """All questions that can be asked, in the order of their rows.

        Rows that ask the same are one question, with all their answers. A row without an answer that can be graded by is
        left out, and how many there are is said on standard error.

        Args:
            seed: Seed of shuffled options.

        Raises:
            InputError: They can't be read, or break a rule of `check_loaded`.
        """
        if self.place is None:
            return list(check_loaded(BUILT[self.dataset](), f"the set {self.dataset!r}"))
        if self.read is None and self.place.path is not None and self.place.path.suffix == ".jsonl":
            return read_jsonl(self.place.path)
        drafts = self._drafts(enumerate(self._rows(self.split)), seed)
        return list(check_loaded(merged(drafts, self.dataset), repr(self.dataset)))

    def examples(self, seed: int) -> Iterator[Question] | None:
        """Questions of the train split in a seeded order, made one by one; None without such a split."""
        if self.place is None or self.train is None or (self.place.path is not None and not self.place.path.is_dir()):
            return None
        rows = self._rows(self.train)
        order = hash_order([str(i) for i in range(len(rows))], seed)
        return (one for i in order for one in merged(self._drafts([(i, rows[i])], seed), self.dataset))

    def _rows(self, split: str) -> Any:
        assert self.place is not None
        return self.place.rows(split)

    def _drafts(self, rows: Iterable[tuple[int, Mapping[str, Any]]], seed: int) -> Iterator[tuple[Draft, str]]:
        read = self.read or _own_columns
        for i, values in rows:
            row = Row(values, f"row {i + 1} of {self.dataset!r}")
            yield read(row, seed), row.where


def _own_columns(row: Row, seed: int) -> Draft:
    """A row whose columns are the fields of a question."""
    if not set(row.values) <= set(FIELDS):
        raise InputError(
            f"Expected `fields` for {row.where}, whose columns {', '.join(map(str, row.values))} are not those of a question ({', '.join(FIELDS)}). Say which are, for example --fields '{{text: COLUMN, references: COLUMN}}'."
        )
    return own_form(row.values, row.where)


def merged(drafts: Iterable[tuple[Draft, str]], dataset: str) -> list[Question]:
    """Questions of drafts, each once, with an id of its own: a hash of what is asked where the draft has none.

    Drafts of facts that ask the same are one question with the answers of all of them, since each is right; of other
    kinds those that are the same in everything are one.
    """
    questions: dict[str, Question] = {}
    left_out: list[str] = []
    for draft, where in drafts:
        kind = draft.get("kind", "short")
        references = tuple(one for one in dict.fromkeys(draft["references"]) if says_anything(kind, one))
        if not references:
            left_out.append(where)
            continue
        facts = kind in ("short", "cloze")
        asked = [draft.get("text"), list(draft.get("messages", ())), list(draft.get("choices", ()))]
        id_ = draft.get("id") or _hash(asked if facts else [*asked, list(references)], where)
        question = Question(**{**draft, "id": id_, "dataset": dataset, "references": references})
        earlier = questions.get(id_)
        if earlier is not None:
            together = tuple(dict.fromkeys((*earlier.references, *references)))
            if earlier.prompt != question.prompt or not (facts or together == earlier.references):
                raise InputError(
                    f"Expected ids to be unique, but {where} has {id_!r}, as another question before it. Name another column for `id` in --fields, or none."
                )
            question = replace(earlier, references=together)
        questions[id_] = question
    if left_out:
        some = f"{len(left_out)} rows without an answer that can be graded by, such as {left_out[0]}, are left out"
        print(f"questions: {some}", file=sys.stderr)
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
        InputError: Nothing is called so, or an option does not go with it.
    """
    name, has_path, path = questions.partition("=")
    name, _, config = name.partition(":")
    if not name or (has_path and name in SETS and not path):
        raise InputError(
            f"Expected `questions` to name a set, a file or a dataset, but got {questions!r}. Give for example --questions facts, --questions gsm8k=PATH, or the path of a file."
        )
    if name in BUILT:
        return _built(questions, name, given=bool(has_path or config or fields or split or revision))
    if name in SETS:
        return _of_set(name, Path(path).expanduser() if has_path else None, config or None, fields, split, revision)
    read = by_fields(fields) if fields is not None else None
    unknown = bool(has_path) and re.fullmatch(r"[\w-]+", name) is not None
    place = Path(questions).expanduser()
    if place.exists() or (place.suffix in SUFFIXES and not unknown):
        _check_options(place, split, revision)
        return Source(sys.intern(place.stem), Place(place.stem, place), read, split or "test")
    if found := _HUB_ID.fullmatch(questions):
        _check_open(next((known for known, one in SETS.items() if one.gated and _same(one.hub, found[1])), None))
        hub = Place(found[1], hub=found[1], config=found[2], revision=revision)
        return Source(found[1], hub, read, split or "test")
    known = [*BUILT, *SETS]
    raise InputError(
        f"Expected `questions` to be one of {', '.join(known)}, NAME=PATH with one of them, a file of {', '.join(SUFFIXES)}, or an id on the Hugging Face Hub, but got {questions!r}.{nearest(name, known)}"
    )


def _same(hub: str | None, other: str) -> bool:
    """Whether two ids are of one dataset: the Hub does not look at capitals."""
    return hub is not None and hub.casefold() == other.casefold()


def _built(questions: str, name: str, given: bool) -> Source:
    if given:
        raise InputError(
            f"Expected nothing beside the set {name!r}, which is built at run time, but got {questions!r} with a file, configuration, fields, split or revision. Leave them out."
        )
    return Source(name)


def _of_set(
    name: str,
    path: Path | None,
    config: str | None,
    fields: Mapping[str, Any] | None,
    split: str | None,
    revision: str | None,
) -> Source:
    of: QuestionSet = SETS[name]
    if path is None and of.hub is None:
        raise InputError(
            f"Expected a file for the set {name!r}, which is not on the Hugging Face Hub in this form, but got none. Give --questions {name}=PATH with {of.file}."
        )
    if path is not None:
        _check_options(path, split, revision)
    _check_open(name if of.gated and fields is not None else None)
    place = Place(name, path, of.hub, config or of.config, revision or of.revision, of.gated, of.in_csv, of.columns)
    split = split or of.split
    read = of.read if fields is None else by_fields(fields)
    return Source(name, place, read, split, of.train if of.train != split else None)


def _check_options(path: Path, split: str | None, revision: str | None) -> None:
    if revision is not None or (split is not None and not path.is_dir()):
        raise InputError(
            f"Expected no `{'questions_revision' if revision is not None else 'split'}` for {str(path)!r}, which is no dataset on the Hugging Face Hub. Leave it out."
        )


def _check_open(gated: str | None) -> None:
    """Refuse columns of a user's own for a set that is not to be shown, because then nothing would mark it so."""
    if gated is not None:
        raise InputError(
            f"Expected the set {gated!r} by its name and without `fields`, because its authors ask that none of it be shown, which only its own entry sees to. Give --questions {gated}."
        )
