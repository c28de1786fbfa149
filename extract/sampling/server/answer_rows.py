"""What is kept of a reply: a row of the table for each answer, with null for whatever the server did not tell."""

from __future__ import annotations

from collections.abc import Sequence

from extract.sampling.server.answer_log import Row
from extract.sampling.server.protocol import Choice, Reply

_LARGEST = 3e38  # of a float32
#: A log-probability may lie above 0 by what float32 loses of logits in the hundreds.
ROUNDING = 1e-3


def rows_of(question_id: str, samples: Sequence[int], reply: Reply) -> list[Row]:
    """A row for each of the `samples` that the reply holds an answer of, in their order; more answers are left out.

    Args:
        question_id: Whom the answers are to.
        samples: Indices j that were asked for.
        reply: What came.
    """
    return [
        {
            "question_id": question_id,
            "sample": sample,
            "text": choice.text,
            "reasoning": choice.reasoning,
            **_tokens(choice, reply.tokens_of_one),
            "finish_reason": choice.finish_reason,
            "prompt_tokens": _count(reply.prompt_tokens) or None,
        }
        for sample, choice in zip(samples, reply.choices, strict=False)
    ]


def _count(stated: int | None) -> int | None:
    """A count that the table can hold; JSON's true is none."""
    return stated if type(stated) is int and 0 <= stated < 2**31 else None


def _tokens(choice: Choice, stated: int | None) -> Row:
    """What is known of an answer's tokens. Numbers that contradict each other, or that no model gives, are no numbers.

    Args:
        choice: The answer.
        stated: How many tokens the server counted.
    """
    ids, logprobs, stated = choice.token_ids, choice.logprobs, _count(stated)
    if logprobs is not None and not all(-_LARGEST <= one <= ROUNDING for one in logprobs):
        logprobs = None
    if choice.is_told_in_part(stated):
        logprobs = None
    if ids is not None and (any(_count(one) is None for one in ids) or len(ids) != len(logprobs or ids)):
        ids = None
    told = next((len(one) for one in (ids, logprobs) if one is not None), stated)
    n_tokens = stated if stated is not None else told
    if choice.text:  # nothing is said in no tokens
        ids, logprobs, n_tokens = ids or None, logprobs or None, n_tokens or None
    return {"token_ids": ids, "logprobs": logprobs, "n_tokens": n_tokens}
