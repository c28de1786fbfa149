"""A few requests before hundreds go out: whether the server does what it is asked, and whether its answers vary.

Servers silently ignore what they don't know: several answers of one request, log-probabilities, the temperature.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from extract.errors import InputError
from extract.policy import Decoding
from extract.running.exit import run_async
from extract.running.progress import say
from extract.sampling.server.client import BudgetSpent, Client, Spending, Unanswered, same_model
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


@dataclass
class Preflight:
    """Findings of a preflight.

    Attributes:
        spending: What it cost.
        replies: To the first requests, as good as any other, by question and first sample of what they answer.
        known_as: Names that replies give the model, for `Client`.
        varies: Whether answers were seen to differ; false at temperature 0.
        notices: What is no reason to stop and yet worth knowing, one line each.
    """

    spending: Spending
    replies: dict[tuple[str, int], Reply] = field(default_factory=dict)
    known_as: set[str | None] = field(default_factory=set)
    varies: bool = True
    notices: list[str] = field(default_factory=list)


def run_preflight(asks: Sequence[Ask], model: str, decoding: Decoding, server: Server) -> Preflight:
    """Try a server with the first requests of a run, one for each address; where it rejects these, with the next ones.

    The `asks` are about different questions, `TRIES` for each address where there are as many.

    Raises:
        InputError: There is no server, it refuses, its reply is not what was asked for, or the budgets are too small
            even for this, which is checked before anything is asked.
    """
    spending = Spending(server)

    async def try_in_turn() -> Preflight:
        rejections = []
        for start in range(0, max(len(asks), 1), len(server.urls)):
            turn = asks[start : start + len(server.urls)]
            requests = {(ask.question.id, ask.samples[0]): request_for(*ask, decoding, server) for ask in turn}
            try:
                return await try_server(server, model, spending, requests)
            except RejectedRequest as error:
                rejections.append(error)
        raise rejections[0]

    try:
        found = run_async(try_in_turn())
    except InputError as error:
        messages = (public(error, ask.question) for ask in asks)
        raise InputError(next((message for message in messages if message != str(error)), str(error))) from None
    for notice in dict.fromkeys(found.notices):  # several addresses may have the same
        say(f"server: {notice}")
    return found


async def try_server(
    server: Server, model: str, spending: Spending, requests: Mapping[tuple[str, int], Request]
) -> Preflight:
    """Ask each address one real request, and at a temperature above 0 four short ones whose answers have to differ.

    The real `requests`, by question and first sample, are to be answered anyway. Raises as `run_preflight`.
    """
    planned = [planned for request in requests.values() for planned in [request, *_open_requests(request)]]
    for name, budget, cost in (
        ("requests", server.budget_requests, spending.requests + len(planned)),
        ("tokens", server.budget_tokens, spending.tokens + sum(map(spending.most_tokens, planned))),
    ):
        if budget is not None and budget < cost:
            raise InputError(
                f"Expected `server.budget_{name}` to be at least {cost}, which the trial before a run may take, but "
                f"got {budget}. Nothing was asked; give a larger one."
            )
    found, pairs = Preflight(spending), zip(server.urls, requests.values(), strict=False)
    replies = await asyncio.gather(*(_try_url(replace(server, url=url), model, asked, found) for url, asked in pairs))
    found.replies = dict(zip(requests, replies, strict=True))
    return found


async def _try_url(server: Server, model: str, request: Request, found: Preflight) -> Reply:
    """The reply of one address; adds to the findings."""
    url, notice = server.urls[0], found.notices.append
    async with Client(server, model, found.spending) as client:
        try:
            reply = await client.ask(request)
            if reply.model is not None and not same_model(model, reply.model):
                listed = await client.endpoints[0].model_names()
                if model not in listed or reply.model in listed:  # else it is an alias
                    raise InputError(
                        f"Expected {url} to answer with the model {model!r}, but its replies are by {reply.model!r}. "
                        "Give that name as `model`, or the address of another server."
                    )
                notice(f"the server answers to the name {model!r} with the model {reply.model!r}")
            _check_reply(request, reply, url)
            varies = await _answers_vary(client, request, url)
        except Unanswered as error:
            raise InputError(f"Expected {url} to answer a few requests, but {error}.") from None
        except BudgetSpent as error:  # by attempts that failed
            raise InputError(f"Expected budgets that are enough for the trial, but {error}") from None
    if reply.completion_tokens is None or reply.prompt_tokens is None:
        notice("the server reports no token counts: tokens and cost are upper estimates")
    if any(choice.cut for choice in reply.choices):
        notice("the server leaves stop texts in answers: they are cut off, and tokens of such answers not kept")
    if request.temperature > 0 and not varies:
        why = "`server.extra_body` constrains them" if _is_constrained(request) else "an open question got empty texts"
        notice(f"whether answers vary could not be seen: {why}")
    found.known_as.add(reply.model)
    found.varies &= varies
    return reply


def _check_reply(request: Request, reply: Reply, url: str) -> None:
    """Reject a reply that lacks answers or log-probabilities, or whose answers are longer than allowed."""
    n = len(reply.choices) + reply.n_left_out
    if n != request.n:
        raise InputError(
            f"Expected {url} to give {request.n} answers to one request, but it gave {n}. Ask for one: `server.n` 1."
        )
    n_tokens = reply.tokens_of_only_choice
    for choice in reply.choices if request.logprobs else ():
        if (choice.logprobs is None and choice.text) or choice.lacks_logprobs(n_tokens):
            got = f"of {n_tokens} tokens it gave {len(choice.logprobs)}" if choice.logprobs else "it gave none"
            raise InputError(
                f"Expected {url} to give a log-probability for every token, but {got}. Sample without them: "
                "`server.logprobs` false."
            )
    longest = max((reply.completion_tokens or 0) // n, *(len(choice.logprobs or ()) for choice in reply.choices))
    if longest > request.max_tokens and not {"max_tokens", "max_completion_tokens"} & request.extra.keys():
        raise InputError(
            f"Expected {url} to end an answer after {request.max_tokens} tokens, but it gave {longest}. Name the limit "
            f"as it does: `server.extra_body` '{{max_tokens: null, max_completion_tokens: {request.max_tokens}}}'."
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
    open_request = replace(
        request,
        prompt=_OPEN_TEXT if isinstance(request.prompt, str) else [{"role": "user", "content": _OPEN_CHAT}],
        n=min(request.n, 2),
        temperature=max(request.temperature, 1.0),
        top_p=1.0,
        top_k=0,
        max_tokens=_VARIED_TOKENS,
        stop=(),
    )
    return [replace(open_request, seed=None if request.seed is None else request.seed + i) for i in range(_VARIED)]


async def _answers_vary(client: Client, request: Request, url: str) -> bool:
    """Whether the answers to an open question were seen to differ; not when all are empty, or none is asked.

    Raises:
        InputError: They don't differ.
    """
    requests = _open_requests(request)
    replies = await asyncio.gather(*map(client.ask, requests))
    answers = [[(choice.text, choice.reasoning or "") for choice in reply.choices] for reply in replies]
    if not any(text or reasoning for answer in answers for text, reasoning in answer):
        return False
    temperature, text = requests[0].temperature, one_line(answers[0][0][0] or answers[0][0][1], 80)
    if len({answer[0] for answer in answers}) == 1:
        raise InputError(
            f"Expected answers that vary at temperature {request.temperature:g}, but {url} gave the same {_VARIED} "
            f"times at temperature {temperature:g}: {text!r}. Turn off a proxy's cache; for `transformers serve` add "
            "`server.extra_body` '{generation_config: {do_sample: true, top_k: 0}}'."
        )
    if requests[0].n > 1 and all(len(set(answer)) == 1 for answer in answers):
        raise InputError(
            f"Expected the answers of one request to differ at temperature {temperature:g}, but {url} gave copies: "
            f"{text!r}. Ask for one at a time with `server.n` 1."
        )
    return True
