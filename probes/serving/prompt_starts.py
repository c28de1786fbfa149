"""Key/value caches for the common beginnings of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from extract.errors import InputError

if TYPE_CHECKING:
    from extract.signals.reader import SharedPrompt
    from probes.saved.confidence import ConfidentModel

#: Questions whose prompts have nothing in common except the prompt template.
_QUESTIONS = ("A", "0", '"')
#: Minimum length of a start in tokens. Copying a shorter cache costs more time than it saves.
_MIN_TOKENS = 8


class PromptStarts:
    """Caches of the tokens before the question, in the probe's prompt template and in the chat template.

    Models whose caches can't be shared read whole prompts.

    Args:
        model: Model with an attached probe.
    """

    def __init__(self, model: ConfidentModel) -> None:
        from extract.sampling.local.batching import common_prefix
        from extract.signals.reader import SharedPrompt, can_share

        #: Caches in ascending order of their lengths. The first one is empty.
        self._starts = [SharedPrompt(model._model)]
        if not can_share(model._model):
            return
        chats = [[{"role": "user", "content": question}] for question in _QUESTIONS]
        for prompts in (_QUESTIONS, chats):
            try:
                encoded = [model._encode(prompt, None)[0] for prompt in prompts]
            except InputError:  # there is no chat template
                continue
            start = common_prefix(encoded, step=1)
            if len(start) >= _MIN_TOKENS:
                self._starts.append(self._starts[0].then(start))
        self._starts.sort(key=lambda start: len(start.tokens))

    def of(self, prompts: Sequence[Sequence[int]]) -> SharedPrompt:
        """Return the longest cached start that all prompts share and that is shorter than every prompt."""
        first, last = min(map(tuple, prompts)), max(map(tuple, prompts))  # all prompts share what these two share
        for start in reversed(self._starts[1:]):
            n = len(start.tokens)
            if first[:n] == start.tokens == last[:n] and n < min(map(len, prompts)):
                return start
        return self._starts[0]
