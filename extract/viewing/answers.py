"""Select the answers to show, and read the text, uncertainty and influence of their tokens."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from extract.errors import InputError, nearest
from extract.signals.reading import drawn_tokens
from extract.signals.registry import signals_of
from extract.store.samples import SKIPPED
from extract.store.store import Store
from extract.text import shown
from extract.viewing.summary import MARKS

N_QUESTIONS = 4
#: Token weights that are shown as influence by default, if the store contains them.
INFLUENCE = "norm_element_mean_token"
#: Answers with more tokens than this are not divided into pieces.
LONGEST = 4096
#: Question id and sample index of an answer.
Key = tuple[str, int]


class Piece(NamedTuple):
    """Text of one token, or of several tokens that share a character. `tokens` are 0-based indices."""

    text: str
    tokens: range


@dataclass(frozen=True)
class ShownAnswer:
    """An answer to show, with its grade and the uncertainty and influence of its tokens.

    Attributes:
        verdict: Grade in words: right, wrong, unknown, or not graded.
        taken: Final answer that the grader extracted from the text, or None.
        cut: Whether the token limit truncated the answer.
        pieces: Text of the answer, divided at token boundaries.
        entropy: Entropy of each token's distribution in nats, [token]; NaN if missing.
        one_minus_pmax: 1 minus the largest probability in each token's distribution, [token].
        nll: Negative log-probability of each token in nats, [token].
        influence: Non-negative influence of each token, [token], or None.
    """

    question_id: str
    sample: int
    question: str
    references: tuple[str, ...]
    verdict: str
    taken: str | None
    cut: bool
    pieces: list[Piece]
    entropy: Tensor
    one_minus_pmax: Tensor
    nll: Tensor
    influence: Tensor | None

    @property
    def n_tokens(self) -> int:
        """Number of content tokens. The end-of-sequence token and tokens within a stop string are not counted."""
        return len(self.entropy)


def read_answers(
    store: Store,
    load: Callable[[], Any],
    questions: Sequence[str] | None = None,
    samples: Sequence[int] | None = None,
    grader: str | None = None,
    influence: str | None = None,
) -> tuple[list[ShownAnswer], str | None]:
    """Read the answers to show, in the order of their questions.

    Args:
        store: Store with the `tokens` signal of the answers.
        load: Function that loads the store's tokenizer.
        questions: Question ids. If None, a few questions are chosen, each with one right and one wrong answer if
            possible.
        samples: Sample indices to show for each question. If None, all answers to the given `questions`.
        grader: Grader whose grades are shown. By default, the store's only grader. If the store has no
            grader, no grades are shown.
        influence: Token weights to show, as NAME or SIGNAL/NAME. By default, ``norm_element_mean_token`` if the store
            contains these weights.

    Returns:
        The answers, and the name of the token weights.

    Raises:
        InputError: If an id or sample is unknown, if the store lacks a signal, or if a question is private.
    """
    layer = max(int(key.split("/")[0]) for key in store.signals.keys("tokens", "sample"))
    rows = store.samples.read().to_pylist()
    row_of = {(row["question_id"], row["sample"]): i for i, row in enumerate(rows) if row["finish_reason"] != SKIPPED}
    grades: dict[Key, dict[str, Any]] = {}
    if grader is not None or store.grades.names():
        table = store.grades.read(store.grades.choose(grader)).to_pylist()
        grades = {(grade["question_id"], grade["sample"]): grade for grade in table}
    chosen = choose({key: grades[key]["right"] if key in grades else None for key in row_of}, questions, samples)
    sources = {name: ("tokens", f"{layer}/{name}") for name in ("entropy", "one_minus_pmax", "nll")}
    if source := _influence_source(store, influence):
        sources["influence"] = source
    ragged = {name: store.signals.read_ragged(*source, "sample").rows() for name, source in sources.items()}
    question_of = {question.id: question for question in store.questions}
    if any(question_of[id_].private for id_, _ in chosen):
        raise InputError(
            f"Expected questions that may be displayed, but questions from {question_of[chosen[0][0]].dataset!r} are "
            "private. Use a different store."
        )
    tokenizer, answers = load(), []
    for key in chosen:
        row, question, grade = rows[row_of[key]], question_of[key[0]], grades.get(key)
        numbers = {name: of_rows[row_of[key]].double() for name, of_rows in ragged.items()}
        token_ids = drawn_tokens(tokenizer, row)[: len(numbers["entropy"])]
        answer = ShownAnswer(
            question_id=question.id,
            sample=key[1],
            question=question.public_prompt,
            references=question.references,
            verdict=MARKS[grade["right"]] if grade else "not graded",
            taken=grade["answer"] if grade else None,
            cut=row["finish_reason"] == "length",
            pieces=pieces(tokenizer, token_ids, row["text"]),
            influence=numbers.pop("influence", None),
            **numbers,
        )
        answers.append(answer)
    return answers, "/".join(source) if source else None


def choose(right: dict[Key, bool | None], questions: Sequence[str] | None, samples: Sequence[int] | None) -> list[Key]:
    """Choose the answers to show. For `questions` and `samples`, see `read_answers`.

    `right` maps each answer to its grade, or to None if the grade is unknown.
    """
    samples_of: dict[str, list[int]] = defaultdict(list)
    for id_, sample in right:
        samples_of[id_].append(sample)
    for name, given in {"questions": questions, "samples": samples}.items():
        if given is not None and not given:
            raise InputError(
                f"Expected `{name}` to contain at least one entry, but it is empty. Add an entry, or omit the option."
            )
    ids = list(dict.fromkeys(questions or ()))
    if missing := [id_ for id_ in ids if id_ not in samples_of]:
        raise InputError(
            f"Expected `questions` to contain ids of answered questions, but got {shown(missing[0])}."
            f"{nearest(missing[0], samples_of)} All ids are listed in questions.parquet, for example "
            f"{shown(next(iter(right))[0])}."
        )
    if not ids:
        mixed = [id_ for id_ in samples_of if {right[id_, sample] for sample in samples_of[id_]} >= {True, False}]
        ids = mixed or list(samples_of)
        ids = ids[:: max(1, len(ids) // N_QUESTIONS)][:N_QUESTIONS]
    keys = []
    for id_ in ids:
        of_question = samples_of[id_]
        if unknown := [sample for sample in samples or () if sample not in of_question]:
            raise InputError(
                f"Expected `samples` for question {shown(id_)} to be from {min(of_question)} to {max(of_question)}, "
                f"but got {unknown[0]}. Choose indices in this range, or sample more answers."
            )
        if not questions and not samples:
            firsts = {right[id_, sample]: sample for sample in reversed(of_question)}
            of_question = [firsts[mark] for mark in (True, False) if mark in firsts] or of_question[:1]
        keys += [(id_, sample) for sample in dict.fromkeys(samples or of_question)]
    return keys


def _influence_source(store: Store, influence: str | None) -> tuple[str, str] | None:
    """Return the signal and key of the token weights to show as influence.

    The result is None if `influence` is None and the store lacks the default weights.
    """
    prefix, _, name = (influence or INFLUENCE).rpartition("/")
    weights, signals = signals_of("sample", weights=True), store.signals
    complete = [signal for signal in weights if signal in signals.names() and not signals.missing(signal, "sample")]
    keys = [(signal, key) for signal in complete for key in signals.keys(signal, "sample")]
    matches = [(signal, key) for signal, key in keys if key.split("/", 1)[1] == name and prefix in ("", signal)]
    if matches or influence is None:
        return matches[0] if matches else None
    unread = prefix if prefix in weights else weights[0]
    if not keys or (prefix == unread and prefix not in complete):
        raise InputError(
            f"Expected {str(store.path)!r} to contain the token weights for `influence`, but they are missing for some "
            f"or all answers. Run `python -m extract read --store {store.path} --signals '[{unread}]' --scope sample`."
        )
    names = sorted({key.split("/", 1)[1] for _, key in keys})
    raise InputError(
        f"Expected `influence` to name one of the token weights in {str(store.path)!r} "
        f"({names[0]}, …, {names[-1]}, in alphabetical order), but got {influence!r}.{nearest(name, names)}"
    )


def pieces(tokenizer: Any, token_ids: Sequence[int], text: str) -> list[Piece]:
    """Divide an answer's text at token boundaries.

    Some tokens add no text, such as the first bytes of a character. They are merged into the next piece. At the end of
    the answer, they are merged into the last piece. If generation ended at a stop string, `text` ends before that
    string, possibly inside the last token.
    """
    found: list[Piece] = []
    before, start, n = "", 0, len(token_ids)
    if n > LONGEST:
        return [Piece(text, range(n))]  # the division takes quadratic time
    for stop in range(1, n):
        decoded = tokenizer.decode(token_ids[:stop], skip_special_tokens=True)
        if len(decoded) > len(before) and decoded.startswith(before) and not decoded.endswith("\ufffd"):
            found.append(Piece(decoded[len(before) :], range(start, stop)))
            before, start = decoded, stop
    while found and not text.startswith(before):  # later tokens changed earlier text
        start, before = found[-1].tokens.start, before.removesuffix(found.pop().text)
    rest = text[len(before) :]
    if start < n and (rest or not found):
        found.append(Piece(rest, range(start, n)))
    elif start < n:
        found[-1] = found[-1]._replace(tokens=range(found[-1].tokens.start, n))
    return found
