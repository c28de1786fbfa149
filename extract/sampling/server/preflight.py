"""Preflight: test whether the server supports all options and whether its answers vary.

Many servers silently ignore unsupported options, such as log-probabilities or the temperature.
"""

import asyncio
import re
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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

#: Maximum number of questions to try per address.
TRIES = 4
#: Number of requests whose answers must not all be identical, and the token limit of each request. If the most likely
#: token always has probability 0.9, identical answers occur by chance in only one in 700,000 preflights.
_VARIED, _VARIED_TOKENS = 4, 32
#: Open-ended prompts: a chat message and a plain text.
_OPEN_CHAT = "Make up a name, a place and an odd thing that happened there. Answer in one sentence."
_OPEN_TEXT = "Once upon a time, in a place that nobody has heard of,"
#: Request fields that constrain answers.
_CONSTRAINTS = re.compile(
    "guided_|response_format|structured_outputs|structural_tag|grammar|json_schema|regex|ebnf|logit_bias|allowed_tok"
)


@dataclass
class Preflight:
    """Results of the requests that test the server before a run.

    Attributes:
        replies: Replies that the run reuses, by question id and first sample index. Short test requests are excluded.
        known_as: Model names in the preflight replies, for `Client`.
        varies: Whether different answers were seen. False at temperature 0.
        notices: One-line warnings that do not stop the run.
    """

    spending: Spending
    replies: dict[tuple[str, int], Reply] = field(default_factory=dict)
    known_as: set[str | None] = field(default_factory=set)
    varies: bool = True
    notices: list[str] = field(default_factory=list)


def run_preflight(asks: Sequence[Ask], model: str, decoding: Decoding, server: Server) -> Preflight:
    """Check the budgets, then test each address with one of the run's requests.

    `asks` contains up to `TRIES` requests per address, each for a different question. If a request is rejected, all
    addresses are tested again with the next requests.
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
    for notice in dict.fromkeys(found.notices):
        say(f"server: {notice}")
    return found


async def try_server(
    server: Server, model: str, spending: Spending, requests: Mapping[tuple[str, int], Request]
) -> Preflight:
    """Send one of the run's requests to each address.

    Also send each address four short requests, whose answers must vary. The short requests are omitted if the
    temperature is 0 or answers are constrained.
    """
    planned = [planned for request in requests.values() for planned in [request, *_open_requests(request)]]
    for name, budget, cost in (
        ("requests", server.budget_requests, spending.requests + len(planned)),
        ("tokens", server.budget_tokens, spending.tokens + sum(map(spending.most_tokens, planned))),
    ):
        if budget is not None and budget < cost:
            raise InputError(
                f"Expected `server.budget_{name}` to be at least {cost}, so that it covers the preflight, but got "
                f"{budget}. Nothing was sent. Pass a larger budget."
            )
    found, pairs = Preflight(spending), zip(server.urls, requests.values(), strict=False)
    replies = await _all(_try_url(replace(server, url=url), model, asked, found) for url, asked in pairs)
    found.replies = dict(zip(requests, replies, strict=True))
    return found


async def _all(work: Iterable[Coroutine[Any, Any, Reply]]) -> list[Reply]:
    """Run coroutines concurrently. If one of them fails, cancel the others."""
    tasks = [asyncio.ensure_future(part) for part in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _try_url(server: Server, model: str, request: Request, found: Preflight) -> Reply:
    """Test one address and return its reply. Everything else that the test finds is recorded in `found`."""
    url, notice = server.urls[0], found.notices.append
    async with Client(server, model, found.spending) as client:
        was_up = request.seed is not None and await client.endpoints[0].is_up()
        try:
            reply = await client.ask(request)
            if reply.model is not None and not same_model(model, reply.model):
                listed, name = await client.endpoints[0].model_names(), client.endpoints[0].line(reply.model)
                if model not in listed or reply.model in listed:  # otherwise the name is an alias
                    raise InputError(
                        f"Expected {url} to answer with the model {model!r}, but its replies come from {name!r}. "
                        "Set `model` to that name, or `server.url` to the address of a different server."
                    )
                notice(f"the server maps the name {model!r} to the model {name!r}")
            _check_reply(request, reply, url)
            varies = await _answers_vary(client, request, url)
        except (Unanswered, InputError) as error:
            if (what := await _fails_on_seeds(client, request, was_up)) is not None:
                raise InputError(
                    f"Expected {url} to answer requests that contain a seed, but it {what}: {client.given_up}. If the "
                    "server has stopped, restart it. Then run the command again with --server.seeds=false."
                ) from None
            if isinstance(error, InputError):
                raise
            raise InputError(f"Expected {url} to answer the preflight requests, but {error}.") from None
        except BudgetSpent as error:  # spent by failed attempts
            raise InputError(f"Expected the budgets to be large enough for the preflight, but {error}") from None
    if reply.completion_tokens is None or reply.prompt_tokens is None:
        notice(
            "the server reports no token counts, so the displayed tokens and cost are estimates, which are "
            "usually too high"
        )
    if any(choice.cut for choice in reply.choices):
        notice(
            "the server leaves stop strings in answers. These answers are truncated, and their tokens are not stored"
        )
    if request.temperature > 0 and not varies:
        why = "`server.extra_body` constrains them" if _is_constrained(request) else "the server returned no text"
        notice(f"could not test whether answers vary: {why}")
    found.known_as.add(reply.model)
    found.varies &= varies
    return reply


async def _fails_on_seeds(client: Client, request: Request, was_up: bool) -> str | None:
    """Check whether the seed made `request` fail. Returns a description of the failure if so, and None otherwise.

    Some versions of vLLM fail on requests with a seed.
    """
    if request.seed is None or client.given_up is None or not client.given_up.crashed:
        return None
    if not await client.endpoints[0].is_up():
        return "stopped after such a request" if was_up else None
    try:
        async with Client(replace(client.server, attempts=1), client.model, client.spending) as once:
            await once.ask(replace(request, seed=None))
    except (Unanswered, BudgetSpent, InputError):
        return None
    return "answers only requests without one"


def _check_reply(request: Request, reply: Reply, url: str) -> None:
    """Check the numbers of answers, log-probabilities and tokens in a reply."""
    n = len(reply.choices) + reply.n_left_out
    if n != request.n:
        raise InputError(
            f"Expected {url} to return {request.n} answers to one request, but it returned {n}. Set `server.n` to 1."
        )
    n_tokens = reply.tokens_of_only_choice
    for choice in reply.choices if request.logprobs else ():
        if (choice.logprobs is None and choice.text) or choice.lacks_logprobs(n_tokens):
            got = f"{len(choice.logprobs)} for {n_tokens} tokens" if choice.logprobs else "none"
            raise InputError(
                f"Expected {url} to return a log-probability for every token, but got {got}. To sample without "
                "log-probabilities, set `server.logprobs` to false."
            )
    longest = max((reply.completion_tokens or 0) // n, *(len(choice.logprobs or ()) for choice in reply.choices))
    if longest > request.max_tokens and not {"max_tokens", "max_completion_tokens"} & request.extra.keys():
        raise InputError(
            f"Expected {url} to limit answers to {request.max_tokens} tokens, but one answer has {longest}. If the "
            "server expects `max_completion_tokens` instead of `max_tokens`, set `server.extra_body` to "
            f"'{{max_tokens: null, max_completion_tokens: {request.max_tokens}}}'."
        )


def _is_constrained(request: Request) -> bool:
    """Whether the extra fields of a request constrain the form of the answers."""
    extra = {name: value for name, value in request.extra.items() if value not in (None, {"type": "text"})}
    return any(map(_CONSTRAINTS.match, extra))


def _open_requests(request: Request) -> list[Request]:
    """Return requests with an open-ended prompt, to test whether answers vary.

    The list is empty if the temperature is 0 or answers are constrained.
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
    """Send an open-ended prompt several times, and check that the answers vary.

    Raises an InputError if answers that should vary are identical. Returns False if no request was sent or the server
    returned no text.
    """
    requests = _open_requests(request)
    replies = await _all(map(client.ask, requests))
    answers = [[(choice.text, choice.reasoning or "") for choice in reply.choices] for reply in replies]
    if not any(text or reasoning for answer in answers for text, reasoning in answer):
        return False
    temperature, text = requests[0].temperature, one_line(answers[0][0][0] or answers[0][0][1], 80)
    text = client.endpoints[0].line(text)
    if len({answer[0] for answer in answers}) == 1:
        raise InputError(
            f"Expected answers to vary at temperature {request.temperature:g}, but {url} returned the same answer "
            f"{_VARIED} times in a test at temperature {temperature:g}: {text!r}. Disable any proxy cache. For "
            "`transformers serve`, set `server.extra_body` to '{generation_config: {do_sample: true, top_k: 0}}'."
        )
    if requests[0].n > 1 and all(len(set(answer)) == 1 for answer in answers):
        raise InputError(
            f"Expected the answers to one request to differ at temperature {temperature:g}, but {url} returned copies "
            f"of {text!r}. Set `server.n` to 1."
        )
    return True
