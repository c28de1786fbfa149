"""A server tried before a run of the sampler, and its answers looked at after it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from extract.errors import InputError
from extract.policy import Decoding
from extract.questions.question import Question
from extract.running.progress import say
from extract.running.worker import Worker
from extract.sampling.server.asyncio_runner import run_async
from extract.sampling.server.budget import BudgetSpent, Spending
from extract.sampling.server.checks import Trial, nothing_varies, try_server
from extract.sampling.server.failures import RefusedRequest
from extract.sampling.server.options import Server
from extract.sampling.server.policy import request_of
from extract.sampling.server.protocol import Reply
from extract.sampling.server.queue import Ask
from extract.sampling.server.redact import public
from extract.store.store import Store

#: Questions that an address is tried with where it refuses the first ones, which may be too long for it.
TRIES = 4


class Tried(NamedTuple):
    """A server that was tried: what was seen of it, what it cost, and the replies to requests of the run.

    These are by what they were asked for: a question and the first of its samples.
    """

    trial: Trial
    spending: Spending
    replies: dict[tuple[str, int], Reply]


def try_asks(asks: Sequence[Ask], model: str, decoding: Decoding, server: Server) -> Tried:
    """Try a server with the first requests of a run, one for each of its addresses; without any, nothing is seen.

    Where it refuses one of these, the next ones take their place.

    Args:
        asks: Asks about different questions, `TRIES` for each address where there are as many.
        model: What the server calls the model.
        decoding: How answers are drawn.
        server: Where the model is.

    Raises:
        InputError: It can't be used as asked, or the budget is too small even for this.
    """
    spending = Spending(server)
    try:
        trial, asks = run_async(_try_in_turn(asks, model, decoding, server, spending))
    except BudgetSpent as error:
        raise InputError(f"Expected a budget for all answers, but {error}") from None
    except InputError as error:
        question = next((ask.question for ask in asks if public(error, ask.question) != str(error)), None)
        raise (error if question is None else InputError(public(error, question))) from None
    for notice in trial.notices:
        say(f"server: {notice}")
    replies = {(ask.question.id, ask.samples[0]): reply for ask, reply in zip(asks, trial.replies, strict=False)}
    # another one, because the first belongs to the loop of the trial
    counted = Spending(server, spending.requests, spending.retries, spending.prompt_tokens, spending.answer_tokens)
    return Tried(trial, counted, replies)


async def _try_in_turn(
    asks: Sequence[Ask], model: str, decoding: Decoding, server: Server, spending: Spending
) -> tuple[Trial, Sequence[Ask]]:
    """What the first of the asks show that the server does not refuse, and these asks.

    Raises:
        RefusedRequest: It refuses one of every turn; this is the first refusal.
        InputError: As `try_asks`.
        BudgetSpent: As `try_asks`.
    """
    refusals = []
    for start in range(0, max(len(asks), 1), len(server.urls)):
        turn = asks[start : start + len(server.urls)]
        requests = [request_of(question, samples, decoding, server) for question, samples in turn]
        try:
            return await try_server(server, model, spending, requests), turn
        except RefusedRequest as error:
            refusals.append(error)
    raise refusals[0]


def try_new(
    questions: Sequence[Question],
    k: int,
    block_size: int,
    model: str,
    decoding: Decoding,
    server: Server,
    worker: Worker,
) -> Tried:
    """Try a server before there is a store, whose identity a wrong name or field would be part of.

    Args:
        questions: All questions.
        k: Samples of every question.
        block_size: Questions in a block.
        model: What the server calls the model.
        decoding: How answers are drawn.
        server: Where the model is.
        worker: Whose blocks.

    Raises:
        InputError: As `try_asks`.
    """
    first = questions[worker.rank * block_size :][: min(TRIES * len(server.urls), block_size)]
    asks = [Ask(question, list(range(min(server.per_request, k)))) for question in first]
    return try_asks(asks, model, decoding, server)


def look_for_variation(store: Store, block: int, trial: Trial) -> None:
    """Look whether any of the answers to a question of a block differ.

    Raises:
        InputError: None do, and the trial did not see it either.
    """
    texts = defaultdict(list)
    for part in store.samples.ranges():
        if part.block == block:
            table = store.samples.read(part)
            for question, text in zip(table["question_id"].to_pylist(), table["text"].to_pylist(), strict=True):
                texts[question].append(text)
    if not nothing_varies(texts.values()):
        return
    line = f"all answers to each of {len(texts)} questions are the same"
    if trial.varies is None:
        raise InputError(
            f"Expected answers that vary at a temperature above 0, but {line}: the server seems to take the most likely token. Look at some with `python -m extract inspect --store {store.path}`, and ask in another way with --server.extra and another --store."
        )
    say(f"sample: {line}; the model is sure of them, or the server repeats what it keeps")
