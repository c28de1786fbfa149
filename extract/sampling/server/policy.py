"""What answers of a served model are conditional on, and the requests that ask for them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from extract.policy import Decoding, ModelIdentity, Policy
from extract.questions.question import Question
from extract.sampling.server.options import Server
from extract.sampling.server.protocol import Request


def served_policy(model: str, decoding: Decoding, server: Server) -> Policy:
    """The policy of a served model: its name, the decoding, the endpoint's form, and what else requests hold.

    Where the server is and how many requests it gets at a time changes no answer, and neither does the key.

    Args:
        model: What the server calls it.
        decoding: How answers are drawn, with the prompt's examples.
        server: The server.
    """
    unknown = dict.fromkeys(("revision", "fingerprint", "dtype", "tokenizer", "chat_template"))
    api = "chat" if decoding.prompt.chat else "completions"
    return Policy(ModelIdentity(id=model, **unknown), decoding, {"api": api, "extra": server.extra})


def request_of(question: Question, samples: Sequence[int], decoding: Decoding, server: Server) -> Request:
    """The request for some answers to a question.

    Raises:
        InputError: A chat where `prompt.chat` is false.
    """
    prompt, extra = decoding.prompt, dict(server.extra)
    if prompt.chat and prompt.thinking is not None:
        of_template = {"enable_thinking": prompt.thinking, **extra.get("chat_template_kwargs", {})}
        extra["chat_template_kwargs"] = of_template
    return Request(
        prompt=prompt.messages(question.prompt) if prompt.chat else prompt.text(question.prompt),
        n=len(samples),
        temperature=float(decoding.temperature),
        top_p=decoding.top_p,
        top_k=decoding.top_k,
        max_tokens=decoding.max_new_tokens,
        stop=decoding.stop,
        seed=seed_of(decoding.seed, question.id, samples[0]) if server.seeds else None,
        logprobs=server.logprobs,
        extra=extra,
    )


def seed_of(seed: int, question_id: str, sample: int) -> int:
    """Seed of a request, of 31 bits because servers differ in what they take: a function of policy, question and sample.

    >>> seed_of(0, "q1", 0), seed_of(0, "q1", 1)
    (1445421104, 1971607367)
    """
    digest = hashlib.sha256(f"{seed}\0{question_id}\0{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
