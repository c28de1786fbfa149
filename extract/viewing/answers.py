"""Selection of a store's answers to show, with the numbers and the text of each token."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from extract.errors import InputError, nearest
from extract.signals.reading import drawn_tokens
from extract.signals.registry import signals_of
from extract.store.store import Store
from extract.text import shown
from extract.viewing.summary import MARKS

#: Default number of questions.
N_QUESTIONS = 4
#: Default influence, shown if it was read: the influence of a token's own place, from its residual's norm.
INFLUENCE = "norm_element_mean_token"
#: Maximum number of tokens of an answer that is divided into pieces.
LONGEST = 4096
#: Question id and sample index of an answer.
Key = tuple[str, int]


class Piece(NamedTuple):
    """A displayable text, and its tokens: one token, or several that share a character.

    Attributes:
        text: The text, empty only in an empty answer.
        tokens: Indices of its tokens among the answer's content tokens, from 0.
    """

    text: str
    tokens: range


@dataclass(frozen=True)
class ShownAnswer:
    """An answer with the numbers of its tokens.

    Attributes:
        question_id: Id of its question.
        sample: Its sample index.
        question: Text of the question.
        references: Right answers.
        verdict: Grade as text: right, wrong, unknown, or not graded.
        taken: The answer that the grader found; None if it found none.
        cut: Whether the answer was cut at the token limit.
        pieces: Its text, divided where tokens begin; empty for an answer without tokens.
        entropy: [token] float64 entropy of the token's distribution, in nats; NaN if missing.
        one_minus_pmax: [token] float64, 1 − probability of the most likely token.
        nll: [token] float64 negative log-probability of the token, in nats.
        influence: [token] float64 ≥ 0, weight of the token; None if it was not read.
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
        """Number of content tokens."""
        return len(self.entropy)


def read_answers(
    store: Store,
    load: Callable[[], Any],
    questions: Sequence[str] | None = None,
    samples: Sequence[int] | None = None,
    grader: str | None = None,
    influence: str | None = None,
) -> tuple[list[ShownAnswer], str | None]:
    """Read the answers to show, by question, and the name of their influence.

    Args:
        store: Store with the signal `tokens` of the answers.
        load: Loads the store's tokenizer; called last.
        questions: Question ids; None selects a few, with a right and a wrong answer each.
        samples: Sample indices; None uses all answers to the named questions.
        grader: Grader; None uses the only one, if any.
        influence: Name of token weights, with or without their signal (``norm_element_mean_token``,
            ``rollout/norm_element_mean_token``); None uses this one if it was read.

    Raises:
        InputError: If an id or sample is unknown, a signal was not read, or a question must not be published.
    """
    layer = max(int(key.split("/")[0]) for key in store.signals.keys("tokens", "sample"))
    rows = store.samples.read().to_pylist()
    row_of = {(row["question_id"], row["sample"]): i for i, row in enumerate(rows)}
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
            f"Expected questions that can be shown, but the authors of {question_of[chosen[0][0]].dataset!r} ask not "
            "to publish its questions, nor answers that repeat them. Show another store."
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
    """Choose the answers to show.

    Args:
        right: Grade of every answer; None if it is unknown.
        questions: Question ids; None selects a few, if possible with right and wrong answers.
        samples: Sample indices; None uses all answers to named questions, else a right and a wrong one.

    Raises:
        InputError: If an id or sample is unknown, or a list is empty.
    """
    samples_of: dict[str, list[int]] = defaultdict(list)
    for id_, sample in right:
        samples_of[id_].append(sample)
    for name, given in {"questions": questions, "samples": samples}.items():
        if given is not None and not given:
            raise InputError(f"Expected `{name}` to name at least one, but it is empty. Leave it out for a few.")
    ids = list(dict.fromkeys(questions or ()))
    if missing := [id_ for id_ in ids if id_ not in samples_of]:
        raise InputError(
            f"Expected `questions` to be ids of questions with answers, but got {shown(missing[0])}."
            f"{nearest(missing[0], samples_of)} They are in questions.parquet, such as {shown(next(iter(right))[0])}."
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
                f"Expected `samples` to be among those of question {shown(id_)}, {min(of_question)} to "
                f"{max(of_question)}, but got {unknown[0]}. Give others, or sample more."
            )
        if not questions and not samples:
            firsts = {right[id_, sample]: sample for sample in reversed(of_question)}
            of_question = [firsts[mark] for mark in (True, False) if mark in firsts] or of_question[:1]
        keys += [(id_, sample) for sample in dict.fromkeys(samples or of_question)]
    return keys


def _influence_source(store: Store, influence: str | None) -> tuple[str, str] | None:
    """Signal and key of the influence to show; None if none is given and the default was not read."""
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
            f"Expected `influence` to be weights that {str(store.path)!r} holds, but none were read. Run "
            f"`python -m extract read --store {store.path} --signals [{unread}] --scope sample`."
        )
    names = sorted({key.split("/", 1)[1] for _, key in keys})
    raise InputError(
        f"Expected `influence` to be among the weights that {str(store.path)!r} holds ({names[0]} to {names[-1]}), "
        f"but got {influence!r}.{nearest(name, names)}"
    )


def pieces(tokenizer: Any, token_ids: Sequence[int], text: str) -> list[Piece]:
    """Divide an answer's text where its tokens begin.

    The text of a token is the difference between the decoded prefixes with and without it, because many tokenizers
    decode a single token differently (leading spaces, bytes of a character). Tokens that add no text (bytes of an
    unfinished character, special tokens) join the piece of the next token, or the last piece.

    `text` ends before a stop string, which can begin inside the last of the content tokens `token_ids`.
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
    while found and not text.startswith(before):  # later tokens changed the text of earlier ones
        start, before = found[-1].tokens.start, before.removesuffix(found.pop().text)
    rest = text[len(before) :]
    if start < n and (rest or not found):
        found.append(Piece(rest, range(start, n)))
    elif start < n:
        found[-1] = found[-1]._replace(tokens=range(found[-1].tokens.start, n))
    return found
