"""Key/value caches for prefixes that several prompts share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from extract.errors import InputError

if TYPE_CHECKING:
    from extract.signals.shared_prompt import SharedPrompt

#: Questions whose prompts have nothing in common except the prompt template.
_QUESTIONS = ("A", "0", '"')
#: Minimum length of a prefix in tokens.
_MIN_TOKENS = 8


class PromptStarts:
    """Key/value caches of prompt prefixes.

    A prefix consists of the tokens before the question in the probe's prompt template or in the chat template. The
    model processes each prefix when it is first needed. If the model's cache can't be shared between prompts, no
    prefixes are cached.
    """

    def __init__(self, model: Any, encode: Callable[[Any], list[int]]) -> None:
        from extract.sampling.local.batching import common_prefix
        from extract.signals.shared_prompt import SharedPrompt, can_share

        #: Dict from the tokens of a prefix to its cache, longest first. The value is None until the cache is computed.
        self._caches: dict[tuple[int, ...], SharedPrompt | None] = {}
        if not can_share(model):
            return
        self._empty, starts = SharedPrompt(model), []
        chats = [[{"role": "user", "content": question}] for question in _QUESTIONS]
        for prompts in (_QUESTIONS, chats):
            try:
                encoded = [encode(prompt) for prompt in prompts]
            except InputError:  # there is no chat template
                continue
            starts.append(tuple(common_prefix(encoded, step=1)))
        self._caches = {start: None for start in sorted(starts, key=len, reverse=True) if len(start) >= _MIN_TOKENS}

    def of(self, prompts: Sequence[Sequence[int]]) -> SharedPrompt | None:
        """Return the cache of the longest known prefix that is common to all prompts.

        The prefix must be shorter than every prompt. The result is None if there is no such prefix.
        """
        first, last = min(map(tuple, prompts)), max(map(tuple, prompts))  # all prompts share what these two share
        for start, cache in self._caches.items():
            n = len(start)
            if first[:n] == start == last[:n] and n < min(map(len, prompts)):
                return cache or self._read(start)
        return None

    def read(self) -> None:
        """Compute the caches of all prefixes now, rather than when they are first needed."""
        for start, cache in self._caches.items():
            if cache is None:
                self._read(start)

    def _read(self, start: tuple[int, ...]) -> SharedPrompt:
        cache = self._caches[start] = self._empty.then(start)
        return cache
