"""The `verbalized` baseline: before answering, the model states the probability that its answer will be right."""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from extract.asking.base import AskedTable, Done, asking_prompt
from extract.policy import Decoding
from extract.running.memory import retry_with_smaller_batch
from extract.running.progress import Count
from extract.sampling.local.token_sampler import Sample, TokenSampler
from extract.store.shards import Scope, Shard

#: Maximum number of attempts per question.
ATTEMPTS = 3
_MAX_ROWS = 320
_STEPS = (
    *("almost no chance", "highly unlikely", "chances are slight", "unlikely", "less than even"),
    *("better than even", "likely", "very good chance", "highly likely", "almost certain"),
)
_SCALE = "\n".join(f"{i / 10:.1f} to {(i + 1) / 10:.1f}: {words}" for i, words in enumerate(_STEPS))
#: The example probabilities are symmetric around 0.5, so that copying one of them adds no bias. The question comes
#: late, so that the text before it can be cached.
TEMPLATE = (
    f"How likely are you to answer a question correctly? The scale:\n{_SCALE}\n\nYou may think in one short sentence. "
    r"Your reply ends in \boxed{0.05}, \boxed{0.35}, \boxed{0.65}, \boxed{0.95} or another probability "
    "between 0.0 and 1.0 in a box.\n\nThe question is: {question}\n\n"
    r"Do not answer it. Reply with your probability in \boxed{}."
)
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)\s*(\\?%)?"
_NAMED = r"(?:(?:p|probability|confidence)\s*(?:=|:|is)\s*)?"
_BOXED = re.compile(rf"\\boxed\s*\{{\s*{_NAMED}{_NUMBER}\s*\}}", re.IGNORECASE)
_BARE = re.compile(rf"{_NAMED}{_NUMBER}\.?", re.IGNORECASE)


def parse_confidence(text: str, ended: bool = True) -> float | None:
    r"""Parse the probability in a reply. Returns None if the reply contains no probability.

    Text up to ``</think>`` is ignored. The result is the last probability in a box, such as ``\boxed{0.85}``,
    ``\boxed{85\%}`` or ``\boxed{P = 0.85}``. If no box contains a probability, the last line must have the form
    ``0.85``, ``85%`` or ``P = 0.85``. On that line, a whole number without ``%`` is ignored, because it may be the
    answer.

    Args:
        ended: Whether the reply is complete. In a truncated reply, only boxes are read.

    >>> parse_confidence(r"I know capitals, so \boxed{0.9}"), parse_confidence(r"\boxed{0.2} or rather \boxed{85\%}")
    (0.9, 0.85)
    >>> parse_confidence("Hard to say.\nP = 0.4"), parse_confidence("It is 0.4 or so"), parse_confidence("1")
    (0.4, None, None)
    """
    text = text.rsplit("</think>", 1)[-1]
    stated = _BOXED.findall(text)
    bare = _BARE.fullmatch(text.strip().rsplit("\n", 1)[-1].strip()) if ended else None
    if bare and ("." in bare[1] or bare[2]):
        stated.insert(0, bare.groups())
    values = (float(number) / (100 if percent else 1) for number, percent in reversed(stated))
    return next((value for value in values if value <= 1), None)


class Verbalized(AskedTable):
    """Baseline that asks the model for the probability that its answer will be right.

    The model is asked up to `ATTEMPTS` times per question. If no reply contains a probability, the value is null.
    """

    @cached_property
    def decoding(self) -> Decoding:
        """Decoding options, with the store's temperature, top-p, top-k and seed.

        Options that the store does not record take their default values. There are no stop strings.
        """
        policy = {**self.store.identity["policy"], "model": self.model}
        known = {key: policy["decoding"][key] for key in ("temperature", "top_p", "top_k", "seed")}
        same = {key: value for key, value in known.items() if value is not None}
        return Decoding(**same, max_new_tokens=self.context.max_new_tokens, prompt=asking_prompt(policy, TEMPLATE))

    @property
    def attempts(self) -> int:
        """Maximum number of attempts per question. It is 1 at temperature 0, where all replies are identical."""
        return ATTEMPTS if self.decoding.temperature else 1

    def settings(self, scope: Scope) -> dict[str, Any]:
        """See `AskedBaseline.settings`."""
        return {"model": self.model, "decoding": self.decoding.record(), "attempts": self.attempts}

    def prepare(self) -> None:
        """Load the store's model."""
        self._sampler = TokenSampler(*self.context.load(), self.decoding, _MAX_ROWS)

    def rows(self, shard: Shard, progress: Done) -> list[dict[str, Any]]:
        """Return one row per question, with the token counts of all attempts."""
        tokenizer, questions = self.context.load()[1], self.questions(shard)
        prompts = {id_: self.decoding.prompt.encode(tokenizer, text) for id_, text in questions.items()}
        cost = {"prompt_tokens": 0, "completion_tokens": 0, "attempts": 0}
        rows: dict[str, dict[str, Any]] = {id_: {"question_id": id_, "mass": None, **cost} for id_ in questions}
        pending = list(rows)
        # one attempt is usually enough; the others are drawn together to share the prompt
        for attempts in (range(1), range(1, self.attempts)):
            if not (pending and attempts):
                break
            replies = self.replies(pending, [prompts[id_] for id_ in pending], attempts, progress)
            for id_, of_question in zip(pending, replies, strict=True):
                _add_replies(rows[id_], of_question)
            unanswered = [id_ for id_ in pending if rows[id_]["value"] is None]
            progress(len(pending) - len(unanswered), 0)
            pending = unanswered
        progress(len(pending), 0)
        return list(rows.values())

    def replies(
        self, ids: Sequence[str], prompts: Sequence[Sequence[int]], attempts: range, progress: Done
    ) -> list[list[Sample]]:
        """Draw one reply per question and attempt. Returns a list of replies for each question."""
        # random numbers that differ from those of the sampled answers
        names = [f"verbalized\0{id_}" for id_ in ids]

        def draw(max_rows: int, counted: Count) -> list[Sample]:
            self._sampler.max_rows = max_rows
            return self._sampler.sample(names, prompts, attempts, lambda _, tokens: counted(0, tokens))

        replies, self._sampler.max_rows = retry_with_smaller_batch(draw, self._sampler.max_rows, "replies", progress)
        return [replies[i : i + len(attempts)] for i in range(0, len(replies), len(attempts))]


def _add_replies(row: dict[str, Any], replies: Sequence[Sample]) -> None:
    """Add replies to a row until one of them states a probability."""
    for reply in replies:
        row["value"], row["text"] = parse_confidence(reply.text, reply.finish_reason == "stop"), reply.text
        row["prompt_tokens"] += reply.prompt_tokens
        row["completion_tokens"] += len(reply.token_ids)
        row["attempts"] += 1
        if row["value"] is not None:
            return
