"""A short trial before hundreds of requests go out: whether what comes is what was asked for.

Servers leave out what they don't know without a word: several answers of one request, log-probabilities, the temperature.
With the temperature left out every answer of a question is the same, and its expected accuracy looks like 0 or 1.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from extract.errors import InputError
from extract.sampling.server.budget import BudgetSpent, Spending
from extract.sampling.server.client import Client, Unanswered
from extract.sampling.server.options import Server
from extract.sampling.server.protocol import Reply, Request
from extract.sampling.server.replies import same_model
from extract.text import one_line

#: Requests that must not all get the same answer, and the tokens of each. A model that draws from its distribution
#: would have to take the likelier way at each of 3 × 32 tokens; with 9 of 10 at each that is once in 25,000.
_VARIED, _VARIED_TOKENS = 4, 32
#: What leaves a model many ways to go on: a chat's message, and a raw text.
_OPEN_CHAT = "Make up a name, a place and an odd thing that happened there. Answer in one sentence."
_OPEN_TEXT = "Once upon a time, in a place that nobody has heard of,"
#: Fields of a request that say what answers look like, so that even an open question may have only one.
_FORMS = re.compile(
    "guided_|response_format|structured_outputs|structural_tag|grammar|json_schema|regex|ebnf|logit_bias|allowed_tok"
)
#: Questions with two answers or more, none of which differ, that are no chance any more.
_LEAST_REPEATED = 30


@dataclass(frozen=True)
class Trial:
    """What a trial has learnt.

    Attributes:
        replies: To the first of the requests, one for each address, as good as any other; keep them.
        known_as: Names that replies give the model, for `Client`.
        varies: Whether answers differ at this temperature; None at temperature 0, or where it could not be seen.
        notices: What is no reason to stop and yet worth knowing, one line each.
    """

    replies: list[Reply]
    known_as: frozenset[str | None]
    varies: bool | None
    notices: list[str]


async def try_server(server: Server, model: str, spend: Spending, requests: Sequence[Request]) -> Trial:
    """Ask each address one real request, and at a temperature above 0 four short ones whose answers have to differ.

    Args:
        server: Where and how.
        model: What the server calls the model.
        spend: Counts what is spent, and holds the budgets.
        requests: Requests that are to be answered anyway; as many are used as there are addresses.

    Raises:
        InputError: There is no server, it refuses, what came is not what was asked for, or the budgets are too small
            even for this, which is seen before anything is asked; says what to do.
    """
    pairs = list(zip(server.urls, requests, strict=False))
    _check_budgets(spend, [one for _, request in pairs for one in [request, *_varied(request)]])
    trials = await asyncio.gather(*(_try_url(replace(server, url=url), model, spend, one) for url, one in pairs))
    seen = [trial.varies for trial in trials]
    return Trial(
        [reply for trial in trials for reply in trial.replies],
        frozenset(name for trial in trials for name in trial.known_as),
        None if None in seen else all(seen),
        list(dict.fromkeys(notice for trial in trials for notice in trial.notices)),
    )


def _check_budgets(spend: Spending, requests: Sequence[Request]) -> None:
    """Refuse budgets that a trial would use up.

    Raises:
        InputError: They are less than some requests may cost.
    """
    budgets = spend.server.budget_requests, spend.server.budget_tokens
    costs = spend.requests + len(requests), spend.tokens + sum(map(spend.most_tokens, requests))
    for name, budget, cost in zip(("requests", "tokens"), budgets, costs, strict=True):
        if budget is not None and budget < cost:
            raise InputError(
                f"Expected `server.budget_{name}` to be at least {cost}, which the trial before a run may take, but got {budget}. Nothing was asked; give a larger one."
            )


async def _try_url(server: Server, model: str, spend: Spending, request: Request) -> Trial:
    notices = []
    async with Client(server, model, spend) as client:
        try:
            reply = await client.ask(request)
            if reply.model is not None and not same_model(model, reply.model):
                check_alias(model, reply.model, await client.model_names(), server)
                notices.append(
                    f"the server answers to the name {model!r} with the model {one_line(reply.model, 300)!r}"
                )
            check_reply(request, reply, server)
            varies = await _vary(client, request, server)
        except Unanswered as unanswered:
            raise InputError(f"Expected {server.urls[0]} to answer a few requests, but {unanswered}.") from None
        except BudgetSpent as spent:  # by attempts that failed
            raise InputError(f"Expected budgets that are enough for the trial, but {spent}") from None
        except InputError as error:
            raise type(error)(client.without_key(str(error))) from None
    if reply.completion_tokens is None or reply.prompt_tokens is None:
        notices.append("the server tells no token counts: tokens and cost are estimates from above")
    if any(choice.cut for choice in reply.choices):
        notices.append("the server leaves stop texts in answers: they are cut off, and tokens of such answers not kept")
    if request.temperature > 0 and varies is None:
        why = "--server.extra says what they look like" if _has_form(request) else "an open question got empty texts"
        notices.append(f"whether answers vary could not be seen: {why}")
    return Trial([reply], frozenset([reply.model]), varies, [client.without_key(notice) for notice in notices])


def check_alias(model: str, says: str, names: Collection[str], server: Server) -> None:
    """Refuse another model's replies. A name that the server lists and its replies' name that it does not is an alias.

    Raises:
        InputError: The replies are another model's.
    """
    if model not in names or says in names:
        raise InputError(
            f"Expected {server.urls[0]} to answer with the model {model!r}, but its replies are by {one_line(says, 300)!r}. Give that name with --model, or the address of another server."
        )


def check_reply(request: Request, reply: Reply, server: Server) -> None:
    """Compare a reply with what was asked for.

    Raises:
        InputError: Answers or log-probabilities are missing, or answers are longer than allowed.
    """
    where, n = server.urls[0], len(reply.choices) + reply.n_left_out
    if n != request.n:
        raise InputError(
            f"Expected {where} to give {request.n} answers to one request, but it gave {n}. Ask for one at a time with --server.per_request 1."
        )
    if request.logprobs and any(choice.logprobs is None and choice.text for choice in reply.choices):
        raise InputError(
            f"Expected {where} to give log-probabilities, but it gave none. Sample without them: --server.logprobs false."
        )
    for choice in reply.choices:
        if request.logprobs and choice.is_told_in_part(reply.tokens_of_one):
            raise InputError(
                f"Expected {where} to give a log-probability for every token, but of {reply.tokens_of_one} tokens it gave {len(choice.logprobs or ())}. Sample without them: --server.logprobs false."
            )
    lengths = [len(choice.logprobs or ()) for choice in reply.choices]
    longest = max(*lengths, (reply.completion_tokens or 0) // n)
    if longest > request.max_tokens and not {"max_tokens", "max_completion_tokens"} & request.extra.keys():
        raise InputError(
            f'Expected {where} to end an answer after {request.max_tokens} tokens, but it gave {longest}. Name the limit as the server knows it, for example --server.extra \'{{"max_tokens": null, "max_completion_tokens": {request.max_tokens}}}\'.'
        )


def _has_form(request: Request) -> bool:
    """Whether the request's further fields say what answers look like."""
    extra = {name: value for name, value in request.extra.items() if value not in (None, {"type": "text"})}
    return any(map(_FORMS.match, extra))


def _varied(request: Request) -> list[Request]:
    """Requests like this one whose answers differ if any do: to an open question, each with a seed of its own.

    None at temperature 0, and where the request says what answers look like.
    """
    if request.temperature == 0 or _has_form(request):
        return []
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
    seeds = [None if request.seed is None else request.seed + i for i in range(_VARIED)]
    return [replace(asked, seed=seed) for seed in seeds]


async def _vary(client: Client, request: Request, server: Server) -> bool | None:
    """Whether the answers to an open question differ; None when all are empty, or none is asked.

    Raises:
        InputError: They don't.
    """
    requests = _varied(request)
    if not requests:
        return None
    asked, replies = requests[0], await asyncio.gather(*map(client.ask, requests))
    answers = [[(choice.text, choice.reasoning) for choice in reply.choices] for reply in replies]
    if not any(text or reasoning for answer in answers for text, reasoning in answer):
        return None
    text = one_line(answers[0][0][0] or answers[0][0][1] or "", 80)
    if len({answer[0] for answer in answers}) == 1:
        raise InputError(
            f"Expected answers that vary at temperature {request.temperature:g}, but {server.urls[0]} gave the same {_VARIED} times at temperature {asked.temperature:g}: {text!r}. It takes the most likely token, or repeats what it keeps. For `transformers serve` add --server.extra '{{generation_config: {{do_sample: true, top_k: 0}}}}'; turn off the cache of a proxy."
        )
    if asked.n > 1 and all(len(set(answer)) == 1 for answer in answers):
        raise InputError(
            f"Expected the answers of one request to differ at temperature {asked.temperature:g}, but {server.urls[0]} gave copies: {text!r}. Ask for one at a time with --server.per_request 1."
        )
    return True


def nothing_varies(answers: Iterable[Collection[str]]) -> bool:
    """Whether no question of at least 30 has two different answers: no accident at a temperature above 0.

    Sure models do repeat themselves, for example where the answer is one letter or the temperature is low. So this is a
    reason to stop only where the trial could not see answers vary; otherwise it is one to say so.

    Args:
        answers: The texts of each question's answers; questions with fewer than two say nothing.
    """
    distinct = [len(set(texts)) for texts in answers if len(texts) > 1]
    return len(distinct) >= _LEAST_REPEATED and max(distinct) == 1
