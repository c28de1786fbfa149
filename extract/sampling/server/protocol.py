"""What is asked of a server and what it answers: `Request`, and `Reply` with its `Choice`s."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Request:
    """One request: the answers to one prompt.

    Attributes:
        prompt: A raw text for /completions, or messages ``{"role", "content"}`` for /chat/completions.
        n: Answers asked for.
        temperature: Divides the logits.
        top_p: Keep the smallest set of tokens whose probability reaches this.
        top_k: Keep this many most likely tokens; 0 keeps all and is not sent, because not every server knows it.
        max_tokens: Longest answer, in tokens.
        stop: Texts that end an answer.
        seed: Seed of the server's draws; None sends none.
        logprobs: Whether log-probabilities of the answer's tokens are asked for.
        extra: Further fields as the server knows them; a null leaves a field out.
    """

    prompt: str | list[dict[str, str]]
    n: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 16
    stop: tuple[str, ...] = ()
    seed: int | None = None
    logprobs: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The endpoint that it goes to."""
        return "/completions" if isinstance(self.prompt, str) else "/chat/completions"

    def body(self, model: str) -> dict[str, Any]:
        """The JSON that is sent. What a server does not have to know is not sent where it has no effect."""
        chat = not isinstance(self.prompt, str)
        body = {
            "model": model,
            "messages" if chat else "prompt": self.prompt,
            "n": self.n if self.n > 1 else None,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k or None,
            "max_tokens": self.max_tokens,
            "stop": list(self.stop) or None,
            "seed": self.seed,
            "logprobs": (True if chat else 1) if self.logprobs else None,
        }
        return {name: value for name, value in {**body, **self.extra}.items() if value is not None}


@dataclass(frozen=True)
class Choice:
    """One answer of a reply.

    Attributes:
        text: The answer, valid Unicode; empty where the server gave none.
        reasoning: What a thinking model wrote before it, where the server tells it apart.
        finish_reason: "stop", "length" (max_tokens reached) or "content_filter".
        logprobs: Log-probability of each token in nats; None where the server gives none.
        token_ids: The answer's tokens; None where the server tells none.
        cut: Whether a stop text that the server left was cut off, so that the server's counts are not this text's.
    """

    text: str
    reasoning: str | None
    finish_reason: Literal["stop", "length", "content_filter"]
    logprobs: list[float] | None
    token_ids: list[int] | None
    cut: bool = False

    def is_told_in_part(self, stated: int | None) -> bool:
        """Whether there are log-probabilities of more or fewer tokens than the server counted.

        One token more or less is none of it, because servers differ in whether the end token counts.

        Args:
            stated: How many tokens the server counted.
        """
        told = self.logprobs
        return told is not None and stated is not None and not self.reasoning and abs(len(told) - stated) > 1


@dataclass(frozen=True)
class Reply:
    """What a server answered to a request. It may hold fewer choices than were asked for, never none.

    Attributes:
        model: What the server says its model is.
        choices: The answers, in the server's order.
        prompt_tokens: Tokens of the prompt; None where the server tells none.
        completion_tokens: Tokens of all answers together; None where the server tells none.
        n_left_out: Choices that are not in `choices`, because they were no whole answers or had the index of another.
    """

    model: str | None
    choices: list[Choice]
    prompt_tokens: int | None
    completion_tokens: int | None
    n_left_out: int = 0

    @property
    def tokens_of_one(self) -> int | None:
        """Tokens of the only answer as the server counted them; None where its count is of something else."""
        alone = len(self.choices) == 1 and not self.n_left_out and not self.choices[0].cut
        return self.completion_tokens if alone else None
