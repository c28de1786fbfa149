"""Which answers of a store are shown, and what is known of each of their tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from extract.errors import InputError, nearest
from extract.signals.reading import drawn_tokens
from extract.signals.registry import SIGNALS
from extract.store.ragged import Ragged
from extract.store.store import Store
from extract.text import shown
from extract.viewing.token_texts import Piece, pieces

#: Questions that are shown where none is named.
N_QUESTIONS = 4
#: The influence that is shown where none is named and it was read: that of a token's own place, from its residual's norm.
INFLUENCE = "norm_element_mean_token"


@dataclass(frozen=True)
class ShownAnswer:
    """An answer with what its tokens are worth.

    Attributes:
        question_id: Id of its question.
        sample: Its index j.
        question: What was asked, for people.
        references: What counts as right.
        right: The grade; None where it is unknown, or there is none.
        graded: Whether there is a grader, who may not have known.
        taken: What the grader took for the answer.
        cut: Whether it was cut at the token limit.
        pieces: Its text, cut where its tokens begin; none for an answer without tokens.
        entropy: [token] entropy of the distribution that the token was drawn from, in nats; NaN where it has no number.
        one_minus_pmax: [token] 1 less the probability of the most_likely token.
        nll: [token] −log of the token's own probability, in nats.
        influence: [token] ≥ 0, how much the token matters; None where it was not read.
    """

    question_id: str
    sample: int
    question: str
    references: tuple[str, ...]
    right: bool | None
    graded: bool
    taken: str | None
    cut: bool
    pieces: list[Piece]
    entropy: Tensor
    one_minus_pmax: Tensor
    nll: Tensor
    influence: Tensor | None

    @property
    def verdict(self) -> str:
        """The grade in a word."""
        return {True: "right", False: "wrong", None: "unknown" if self.graded else "not graded"}[self.right]

    @property
    def n_tokens(self) -> int:
        """Number of its content tokens."""
        return len(self.entropy)


def read_answers(
    store: Store,
    load: Callable[[], Any],
    questions: Sequence[str] | None = None,
    samples: Sequence[int] | None = None,
    grader: str | None = None,
    influence: str | None = None,
) -> tuple[list[ShownAnswer], str | None]:
    """The answers to show, by question, and the name of the influence that is shown of them.

    Args:
        store: Store with the signal `tokens` of the answers.
        load: Gives the store's tokenizer; called once all the rest is there.
        questions: Ids; None takes a handful with right and with wrong answers, one of each.
        samples: Indices of the answers to each question; None takes all answers to questions that are named.
        grader: Whose grades; None takes the only ones there are, if there are any.
        influence: As `influence_key`.

    Raises:
        InputError: An id or a sample that is not there, or a signal that was not read.
    """
    rows = {(one["question_id"], one["sample"]): (row, one) for row, one in enumerate(store.samples.read().to_pylist())}
    grades = {}
    if grader is not None or store.grades.names():
        table = store.grades.read(store.grades.choose(grader)).to_pylist()
        grades = {(one["question_id"], one["sample"]): one for one in table}
    right = {key: grades[key]["right"] if key in grades else None for key in rows}
    chosen = choose(right, questions, samples, str(store.path))
    layer = max(int(key.split("/")[0]) for key in store.signals.keys("tokens", "sample"))
    names = ("entropy", "one_minus_pmax", "nll")
    named = {name: store.signals.read_ragged("tokens", f"{layer}/{name}", "sample") for name in names}
    signal, key = influence_key(store, influence)
    weights = None if signal is None else store.signals.read_ragged(signal, key, "sample")
    asked = {question.id: question for question in store.questions}
    if any(asked[one].private for one, _ in chosen):
        raise InputError(
            f"Expected questions that may be shown, but the authors of {asked[chosen[0][0]].dataset!r} ask that theirs, and answers that repeat them, stay unpublished. Show another store."
        )
    tokenizer, found = load(), []
    for own in chosen:
        row, drawn = rows[own]
        question, values = asked[own[0]], {name: _row(one, row) for name, one in named.items()}
        n_tokens = len(values["entropy"])
        found.append(
            ShownAnswer(
                question_id=own[0],
                sample=own[1],
                question=question.public_prompt,
                references=question.references,
                right=right[own],
                graded=own in grades,
                taken=grades[own]["answer"] if own in grades else None,
                cut=drawn["finish_reason"] == "length",
                pieces=pieces(tokenizer, drawn_tokens(tokenizer, drawn)[:n_tokens], drawn["text"]),
                influence=None if weights is None else _row(weights, row),
                **values,
            )
        )
    return found, None if signal is None else f"{signal}/{key}"


def choose(
    right: dict[tuple[str, int], bool | None],
    questions: Sequence[str] | None,
    samples: Sequence[int] | None,
    path: str,
) -> list[tuple[str, int]]:
    """Question and sample of the answers to show.

    Args:
        right: Grade of every answer there is, by question and sample; None where it is not known.
        questions: Ids; None takes a handful, spread over those with right and with wrong answers where there are any.
        samples: Indices; None takes all of questions that are named, and else a right and a wrong one.
        path: The store, for messages.

    Raises:
        InputError: An id or a sample that is not there.
    """
    held: dict[str, list[int]] = {}
    for question, sample in right:
        held.setdefault(question, []).append(sample)
    if not held:
        raise InputError(
            f"Expected the store {path!r} to hold answers, but it has none. Run `python -m extract sample`."
        )
    for name, given in {"questions": questions, "samples": samples}.items():
        if given is not None and not given:
            raise InputError(f"Expected `{name}` to name at least one, but it is empty. Leave it out for a handful.")
    for name in questions or ():
        if name not in held:
            raise InputError(
                f"Expected `questions` to be ids of questions that {path!r} holds answers to, but got {shown(name)}.{nearest(name, held)} The ids stand in its questions.parquet, such as {shown(next(iter(held)))}."
            )
    if questions is None:
        mixed = [one for one in held if {right[one, j] for j in held[one]} >= {True, False}]
        among = mixed or list(held)
        picked = among[:: max(1, len(among) // N_QUESTIONS)][:N_QUESTIONS]
        if samples is None:
            return [(one, j) for one in picked for j in _one_of_each(one, held[one], right)]
    else:
        picked = list(dict.fromkeys(questions))
    for name in picked:
        for sample in samples or ():
            if sample not in held[name]:
                raise InputError(
                    f"Expected `samples` to be among those of question {shown(name)}, {min(held[name])} to {max(held[name])}, but got {sample}. Give others, or sample more."
                )
    return [(one, j) for one in picked for j in (held[one] if samples is None else dict.fromkeys(samples))]


def _one_of_each(question: str, held: list[int], right: dict[tuple[str, int], bool | None]) -> list[int]:
    """The first right and the first wrong answer to a question; the first one where no grade is known."""
    firsts = [next((j for j in held if right[question, j] is kind), None) for kind in (True, False)]
    return [j for j in firsts if j is not None] or held[:1]


def influence_key(store: Store, influence: str | None) -> tuple[str | None, str]:
    """Signal and key of the weights that are shown; no signal where none was asked for and the usual one was not read.

    Args:
        store: The store.
        influence: Name of weights of the answers' tokens, with or without its signal (``norm_element_mean_token``,
            ``rollout/norm_element_mean_token``); None takes that one if it was read.

    Raises:
        InputError: No signal of weights that was read has it.
    """
    of_signal, _, name = (influence or INFLUENCE).rpartition("/")
    known = [signal for signal, one in SIGNALS.items() if one.weights]
    if of_signal not in ("", *known):
        raise InputError(
            f"Expected `influence` to be of one of {', '.join(known)}, but got {influence!r}. Give for example {INFLUENCE}."
        )
    held: dict[str, list[str]] = {}
    for signal, one in SIGNALS.items():
        if (
            one.weights
            and of_signal in ("", signal)
            and signal in store.signals.names()
            and not store.signals.missing(signal, "sample")
        ):
            held[signal] = store.signals.keys(signal, "sample")
            for key in held[signal]:
                if key.split("/", 1)[1] == name:
                    return signal, key
    if influence is None:
        return None, ""
    if not held:
        raise InputError(
            f"Expected `influence` to be weights that {str(store.path)!r} holds, but none were read. Run `python -m extract read --store {store.path} --signals [{of_signal or 'rollout'}] --scope sample`."
        )
    there = sorted({key.split("/", 1)[1] for keys in held.values() for key in keys})
    raise InputError(
        f"Expected `influence` to be among the weights that {str(store.path)!r} holds of {', '.join(held)} ({there[0]} to {there[-1]}), but got {influence!r}.{nearest(name, there)}"
    )


def _row(values: Ragged, row: int) -> Tensor:
    """[token] float64 of one answer."""
    return values.values[values.offsets[row] : values.offsets[row + 1]].double()
