"""A few requests before hundreds go out: whether the server does what it is asked, and whether its answers vary.

Servers silently ignore what they don't know: several answers of one request, log-probabilities, the temperature.
With the temperature ignored all answers to a question are the same, and its expected accuracy looks like 0 or 1.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from extract.errors import InputError
from extract.policy import Decoding
from extract.running.exit import run_async
from extract.sampling.server.budget import BudgetSpent, Spending
from extract.sampling.server.client import Client, Unanswered, same_model
from extract.sampling.server.endpoint import RejectedRequest
from extract.sampling.server.policy import Server, request_for
from extract.sampling.server.protocol import Reply, Request
from extract.sampling.server.queue import Ask
from extract.sampling.server.redact import public
from extract.text import one_line

#: Questions that an address is tried with where it rejects the first ones, which may be too long for it.
TRIES = 4
#: Requests whose answers must not all be equal, and the tokens of each. A model that draws from its distribution would
#: have to take the most likely token at each of 3 × 32; at a probability of 0.9 each, that is once in 25,000.
_VARIED, _VARIED_TOKENS = 4, 32
#: Prompts that a model can continue in many ways: a chat's message, and a raw text.
_OPEN_CHAT = "Make up a name, a place and an odd thing that happened there. Answer in one sentence."
_OPEN_TEXT = "Once upon a time, in a place that nobody has heard of,"
#: Fields of a request that constrain the form of answers, so that even an open question may have only one.
_CONSTRAINTS = re.compile(
    "guided_|response_format|structured_outputs|structural_tag|grammar|json_schema|regex|ebnf|logit_bias|allowed_tok"
)
#: Questions with several answers of which none differ, from which on this is no accident.
_LEAST_REPEATED = 30


@dataclass(frozen=True)
class Trial:
    """Findings of a preflight.

    Attributes:
        replies: To the first requests, one for each address, as good as any other; keep them.
        known_as: Names that replies give the model, for `Client`.
        varies: Whether answers differ at this temperature; None at temperature 0, or where it could not be seen.
        notices: What is no reason to stop and yet worth knowing, one line each.
    """

    replies: list[Reply]
    known_as: frozenset[str | None]
    varies: bool | None
    notices: list[str]


class Preflight(NamedTuple):
    """A trial with its cost, and its replies by question and first sample of what they answer."""

    trial: Trial
    spending: Spending
    replies: dict[tuple[str, int], Reply]


def run_preflight(asks: Sequence[Ask], model: str, decoding: Decoding, server: Server) -> Preflight:
    """Try a server with the first requests of a run, one for each address; where it rejects these, with the next ones.

    Args:
        asks: Asks about different questions, `TRIES` for each address where there are as many.
        model: What the server calls the model.
        decoding: How answers are drawn.
        server: Where the model is.

    Raises:
        InputError: It can't be used as asked, or the budget is too small even for this.
    """
    spending = Spending(server)

    async def try_in_turn() -> tuple[Trial, Sequence[Ask]]:
        rejections = []
        for start in range(0, max(len(asks), 1), len(server.urls)):
            turn = asks[start : start + len(server.urls)]
            requests = [request_for(*ask, decoding, server) for ask in turn]
            try:
                return await try_server(server, model, spending, requests), turn
            except RejectedRequest as error:
                rejections.append(error)
        raise rejections[0]

    try:
        trial, turn = run_async(try_in_turn())
    except BudgetSpent as error:
        raise InputError(f"Expected a budget for all answers, but {error}") from None
    except InputError as error:
        messages = (public(error, ask.question) for ask in asks)
        raise InputError(next((message for message in messages if message != str(error)), str(error))) from None
    for notice in trial.notices:
        print(f"server: {notice}", file=sys.stderr)
    replies = {(ask.question.id, ask.samples[0]): reply for ask, reply in zip(turn, trial.replies, strict=False)}
    return Preflight(trial, spending, replies)


async def try_server(server: Server, model: str, spending: Spending, requests: Sequence[Request]) -> Trial:
    """Ask each address one real request, and at a temperature above 0 four short ones whose answers have to differ.

    Args:
        server: Where and how.
        model: What the server calls the model.
        spending: Counts what is spent, and holds the budgets.
        requests: Requests that are to be answered anyway; as many are used as there are addresses.

    Raises:
        InputError: There is no server, it refuses, its reply is not what was asked for, or the budgets are too small
            even for this, which is checked before anything is asked.
    """
    pairs = list(zip(server.urls, requests, strict=False))
    _check_budgets(spending, [request for _, first in pairs for request in [first, *_open_requests(first)]])
    trials = await asyncio.gather(*(_try_url(replace(server, url=url), model, spending, one) for url, one in pairs))
    varies = [trial.varies for trial in trials]
    return Trial(
        [reply for trial in trials for reply in trial.replies],
        frozenset(name for trial in trials for name in trial.known_as),
        None if None in varies else all(varies),
        list(dict.fromkeys(notice for trial in trials for notice in trial.notices)),
    )


def _check_budgets(spending: Spending, requests: Sequence[Request]) -> None:
    """Reject budgets that these requests may exceed."""
    server = spending.server
    for name, budget, cost in (
        ("requests", server.budget_requests, spending.requests + len(requests)),
        ("tokens", server.budget_tokens, spending.tokens + sum(map(spending.most_tokens, requests))),
    ):
        if budget is not None and budget < cost:
            raise InputError(
                f"Expected `server.budget_{name}` to be at least {cost}, which the trial before a run may take, but "
                f"got {budget}. Nothing was asked; give a larger one."
            )


async def _try_url(server: Server, model: str, spending: Spending, request: Request) -> Trial:
    notices = []
    async with Client(server, model, spending) as client:
        try:
            reply = await client.ask(request)
            if reply.model is not None and not same_model(model, reply.model):
                check_alias(model, reply.model, await client.model_names(), server)
                notices.append(
                    f"the server answers to the name {model!r} with the model {one_line(reply.model, 300)!r}"
                )
            _check_reply(request, reply, server)
            varies = await _answers_vary(client, request, server)
        except Unanswered as error:
            raise InputError(f"Expected {server.urls[0]} to answer a few requests, but {error}.") from None
        except BudgetSpent as error:  # by attempts that failed
            raise InputError(f"Expected budgets that are enough for the trial, but {error}") from None
        except InputError as error:
            raise type(error)(client.without_key(str(error))) from None
    if reply.completion_tokens is None or reply.prompt_tokens is None:
        notices.append("the server reports no token counts: tokens and cost are upper estimates")
    if any(choice.cut for choice in reply.choices):
        notices.append("the server leaves stop texts in answers: they are cut off, and tokens of such answers not kept")
    if request.temperature > 0 and varies is None:
        why = "--server.extra_body constrains them" if _is_constrained(request) else "an open question got empty texts"
        notices.append(f"whether answers vary could not be seen: {why}")
    return Trial([reply], frozenset([reply.model]), varies, [client.without_key(notice) for notice in notices])


def check_alias(model: str, replied: str, listed: Collection[str], server: Server) -> None:
    """Reject another model's replies. An alias is a name that the server lists while it does not list the replies'.

    Raises:
        InputError: The replies are another model's.
    """
    if model not in listed or replied in listed:
        raise InputError(
            f"Expected {server.urls[0]} to answer with the model {model!r}, but its replies are by "
            f"{one_line(replied, 300)!r}. Give that name with --model, or the address of another server."
        )


def _check_reply(request: Request, reply: Reply, server: Server) -> None:
    """Reject a reply that lacks answers or log-probabilities, or whose answers are longer than allowed."""
    url, n = server.urls[0], len(reply.choices) + reply.n_left_out
    if n != request.n:
        raise InputError(
            f"Expected {url} to give {request.n} answers to one request, but it gave {n}. Ask for one at a time with "
            "--server.n 1."
        )
    n_tokens = reply.tokens_of_only_choice
    for choice in reply.choices if request.logprobs else ():
        if (choice.logprobs is None and choice.text) or choice.lacks_logprobs(n_tokens):
            got = f"of {n_tokens} tokens it gave {len(choice.logprobs)}" if choice.logprobs else "it gave none"
            raise InputError(
                f"Expected {url} to give a log-probability for every token, but {got}. Sample without them: "
                "--server.logprobs false."
            )
    longest = max((reply.completion_tokens or 0) // n, *(len(choice.logprobs or ()) for choice in reply.choices))
    if longest > request.max_tokens and not {"max_tokens", "max_completion_tokens"} & request.extra.keys():
        raise InputError(
            f"Expected {url} to end an answer after {request.max_tokens} tokens, but it gave {longest}. Name the limit "
            'as the server knows it, for example --server.extra_body \'{"max_tokens": null, "max_completion_tokens": '
            f"{request.max_tokens}}}'."
        )


def _is_constrained(request: Request) -> bool:
    """Whether the request's further fields constrain the form of answers."""
    extra = {name: value for name, value in request.extra.items() if value not in (None, {"type": "text"})}
    return any(map(_CONSTRAINTS.match, extra))


def _open_requests(request: Request) -> list[Request]:
    """Requests like this one whose answers differ if any do: to an open question, each with a seed of its own.

    None at temperature 0, and where the request constrains the form of answers.
    """
    if request.temperature == 0 or _is_constrained(request):
        return []
    seeds = [None if request.seed is None else request.seed + i for i in range(_VARIED)]
    asked = replace(
        request,
        prompt=_OPEN_TEXT if isinstance(request.prompt, str) else [{"role": "user", "content": _OPEN_CHAT}],
        n=min(request.n, 2),
        temperature=max(request.temperature, 1.0),
        top_p=1.0,
        top_k=0,
        max_tokens=_VARIED_TOKENS,
        stop=(),
    )
    return [replace(asked, seed=seed) for seed in seeds]


async def _answers_vary(client: Client, request: Request, server: Server) -> bool | None:
    """True where the answers to an open question differ; None when all are empty, or none is asked.

    Raises:
        InputError: They don't differ.
    """
    requests = _open_requests(request)
    if not requests:
        return None
    temperature, replies = requests[0].temperature, await asyncio.gather(*map(client.ask, requests))
    answers = [[(choice.text, choice.reasoning) for choice in reply.choices] for reply in replies]
    if not any(text or reasoning for answer in answers for text, reasoning in answer):
        return None
    text = one_line(answers[0][0][0] or answers[0][0][1] or "", 80)
    if len({answer[0] for answer in answers}) == 1:
        raise InputError(
            f"Expected answers that vary at temperature {request.temperature:g}, but {server.urls[0]} gave the same "
            f"{_VARIED} times at temperature {temperature:g}: {text!r}. It takes the most likely token, or repeats "
            "cached answers. For `transformers serve` add --server.extra_body '{generation_config: {do_sample: true, "
            "top_k: 0}}'; turn off the cache of a proxy."
        )
    if requests[0].n > 1 and all(len(set(answer)) == 1 for answer in answers):
        raise InputError(
            f"Expected the answers of one request to differ at temperature {temperature:g}, but {server.urls[0]} gave "
            f"copies: {text!r}. Ask for one at a time with --server.n 1."
        )
    return True


def nothing_varies(answers: Iterable[Collection[str]]) -> bool:
    """Whether none of at least 30 questions has two different answers, which is no accident above temperature 0.

    Confident models do repeat themselves, for example where the answer is one letter. So this is a reason to stop only
    where the preflight could not see answers vary, and otherwise worth a notice.

    Args:
        answers: The texts of each question's answers; questions with fewer than two count for nothing.
    """
    distinct = [len(set(texts)) for texts in answers if len(texts) > 1]
    return len(distinct) >= _LEAST_REPEATED and max(distinct) == 1
