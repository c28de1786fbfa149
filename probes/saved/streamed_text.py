"""Text of an answer that is decoded token by token."""

from collections.abc import Sequence
from typing import Any

#: Text that decoders return for the bytes of an incomplete character.
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


def until(stop: Sequence[str], text: str) -> str:
    """Truncate `text` at the first stop string."""
    return text[: min((text.index(end) for end in stop if end in text), default=len(text))]


class StreamedText:
    """Text of an answer, decoded token by token.

    Attributes:
        shown: The text so far. Characters that later tokens may change or remove are withheld. See `Step.text`.
        ended: Whether the answer has ended.
    """

    def __init__(self, tokenizer: Any, stop: Sequence[str]) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self.shown, self.ended, self._text = "", False, ""
        self._recent, self._n_decoded = list[int](), 0

    def add(self, token: int) -> str:
        """Add a token and return the new part of `shown`.

        The last few tokens are decoded together, because some are decoded differently at the start of a string.
        """
        self._recent.append(token)
        before, now = (
            self._tokenizer.decode(tokens, skip_special_tokens=True)
            for tokens in (self._recent[: self._n_decoded], self._recent)
        )
        if not now.endswith(_INCOMPLETE):
            self._text += now[len(before) :]
            self._recent = self._recent[self._n_decoded :]
            self._n_decoded = len(self._recent)
        shown, text = self.shown, self._text
        self.ended = any(end in text for end in self._stop)
        self.shown = until(self._stop, text)
        if not self.ended:
            lengths = ((end, n) for end in self._stop for n in range(min(len(end), len(text) + 1)))
            n_held = max((n for end, n in lengths if text.endswith(end[:n])), default=0)
            self.shown = text[: len(text) - n_held]
        return self.shown[len(shown) :]
