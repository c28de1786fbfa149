"""Verbalized confidence: the model is asked, before it answers, how likely it is to be right, and says a number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from extract.asking.base import Done, TableBaseline
from extract.asking.chats import asking_prompt, question_words
from extract.policy import Decoding
from extract.running.memory import retry_with_smaller_batch
from extract.running.progress import Counted
from extract.sampling.local.sampler import LocalSampler, Sample
from extract.store.shards import Scope, Shard

#: How often a question is asked until a reply holds a number.
ATTEMPTS = 3
_MAX_ROWS = 320
_STEPS = (
    "almost no chance",
    "highly unlikely",
    "chances are slight",
    "unlikely",
    "less than even",
    "better than even",
    "likely",
    "very good chance",
    "highly likely",
    "almost certain",
)
_SCALE = "\n".join(f"{i / 10:.1f} to {(i + 1) / 10:.1f}: {words}" for i, words in enumerate(_STEPS))
#: The four boxes are spread evenly, so that a model that copies one of them leans to neither side. What comes after the
#: question is short, because all that stands before it is read once for many questions.
TEMPLATE = (
    f"How likely are you to answer a question correctly? The scale:\n{_SCALE}\n\nYou may think in one short sentence. "
    r"Your reply ends in \boxed{0.05}, \boxed{0.35}, \boxed{0.65}, \boxed{0.95} or another probability between 0.0 and 1.0 "
    "in a box.\n\nThe question is: {question}\n\n"
    r"Do not answer it. Reply with your probability in \boxed{}."
)
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)\s*(\\?%)?"
_NAMED = r"(?:(?:p|probability|confidence)\s*(?:=|:|is)\s*)?"
_BOXED = re.compile(rf"\\boxed\s*\{{\s*{_NAMED}{_NUMBER}\s*\}}", re.IGNORECASE)
_BARE = re.compile(rf"{_NAMED}{_NUMBER}\.?", re.IGNORECASE)


def parse_confidence(text: str, ended: bool = True) -> float | None:
    r"""The probability that a reply states; None where it states none.

    The last ``\boxed{number}`` within [0, 1] counts, after a ``</think>`` where there is one. Inside the box may stand
    ``P =``, and a percent sign divides by 100; fractions, ranges and words are not taken for numbers. Without such a box,
    a last line counts that is nothing but a number with a decimal point or a percent sign (``0.39``, ``P = 85%``): a bare
    whole number may as well be an answer to the question itself, and a number inside a sentence may be about anything.

    Args:
        text: What the model said.
        ended: Whether it came to an end; a bare number that was cut off may have lacked digits.

    >>> parse_confidence(r"I know capitals, so \boxed{0.9}"), parse_confidence(r"\boxed{0.2} or rather \boxed{85\%}")
    (0.9, 0.85)
    >>> parse_confidence("Hard to say.\nP = 0.4"), parse_confidence("It is 0.4 or so"), parse_confidence("1")
    (0.4, None, None)
    """
    text = text.rsplit("</think>", 1)[-1]
    boxed = [value for found in _BOXED.findall(text) if (value := _probability(*found)) is not None]
    if boxed:
        return boxed[-1]
    bare = _BARE.fullmatch(text.strip().rsplit("\n", 1)[-1].strip()) if ended else None
    return _probability(bare[1], bare[2]) if bare and ("." in bare[1] or bare[2]) else None


def _probability(number: str, percent: str | None) -> float | None:
    value = float(number) / (100 if percent else 1)
    return value if value <= 1 else None


class Verbalized(TableBaseline):
    """Asks for a probability up to three times, each time with draws of its own, until a reply holds one.

    Tokens of all attempts are counted; what never states a number is null.
    """

    name = "verbalized"

    @cached_property
    def decoding(self) -> Decoding:
        """The store's temperature, top-p and top-k; no stop texts, which may stand in the reasoning."""
        policy = {**self.store.identity["policy"], "model": self.model}
        same = {key: policy["decoding"][key] for key in ("temperature", "top_p", "top_k", "seed")}
        return Decoding(**same, max_new_tokens=self.means.max_new_tokens, prompt=asking_prompt(policy, TEMPLATE))

    def how(self, scope: Scope) -> dict[str, Any]:
        """Model, decoding and number of attempts."""
        decoding = self.decoding.record()
        return {"model": self.model, "decoding": decoding, "attempts": self._attempts}

    @property
    def _attempts(self) -> int:
        return ATTEMPTS if self.decoding.temperature else 1  # without a temperature it would say the same again

    def prepare(self) -> None:
        """Load the store's model."""
        self._sampler = LocalSampler(*self.means.loaded, self.decoding, _MAX_ROWS)

    def rows(self, place: Shard, progress: Done) -> list[dict[str, Any]]:
        """A row a question: its probability, the last reply, and the tokens of all attempts."""
        questions, tokenizer = self.questions(place), self.means.loaded[1]
        prompts = [self.decoding.prompt.encode(tokenizer, question_words(question)) for question in questions]
        rows: list[dict[str, Any]] = [
            {"question_id": question.id, "mass": None, "prompt_tokens": 0, "completion_tokens": 0, "attempts": 0}
            for question in questions
        ]
        pending = list(range(len(rows)))
        # the first attempt often is enough; the others are drawn together, so that a prompt is read once for them
        for attempts in (range(1), range(1, self._attempts)):
            replies = self._replies(
                [questions[i].id for i in pending], [prompts[i] for i in pending], attempts, progress
            )
            for i, of_question in zip(pending, replies, strict=True):
                _take(rows[i], of_question)
            pending, asked = [i for i in pending if rows[i]["value"] is None], len(pending)
            progress(asked - len(pending), 0)
        progress(len(pending), 0)
        return rows

    def _replies(
        self, ids: Sequence[str], prompts: Sequence[Sequence[int]], attempts: range, progress: Done
    ) -> list[list[Sample]]:
        """Replies to each question, one an attempt."""
        if not (ids and attempts):
            return [[] for _ in ids]
        # other draws than those of the question's answers, which the confidence is compared with
        names = [f"verbalized\0{id_}" for id_ in ids]

        def draw(max_rows: int, counted: Counted) -> list[Sample]:
            self._sampler.max_rows = max_rows
            return self._sampler.sample(names, prompts, attempts, lambda _, tokens: counted(0, tokens))

        replies, self._sampler.max_rows = retry_with_smaller_batch(draw, self._sampler.max_rows, "replies", progress)
        return [replies[i : i + len(attempts)] for i in range(0, len(replies), len(attempts))]


def _take(row: dict[str, Any], replies: Sequence[Sample]) -> None:
    """Count replies up to the first that states a probability: who asks in turn does not ask again after it."""
    for reply in replies:
        row["value"] = parse_confidence(reply.text, reply.finish_reason == "stop")
        row["text"] = reply.text
        row["prompt_tokens"] += reply.prompt_tokens
        row["completion_tokens"] += len(reply.token_ids)
        row["attempts"] += 1
        if row["value"] is not None:
            return
