"""The texts of an answer's tokens, which join to the answer's text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

#: What an unfinished character decodes to.
_UNFINISHED = "\ufffd"
#: Most tokens of an answer that is cut; a longer one stays whole.
LONGEST = 4096


class Piece(NamedTuple):
    """A text that can be shown, and the tokens that say it: one, or the few that share a character.

    Attributes:
        text: Never empty but in an answer whose text is.
        tokens: Places of its tokens among the answer's content tokens, from 0.
    """

    text: str
    tokens: range


def pieces(tokenizer: Any, token_ids: Sequence[int], text: str) -> list[Piece]:
    """Cut an answer's text where its tokens begin.

    What a token adds is what the text of all tokens up to it has more than that before it: a token alone decodes
    otherwise in many tokenizers (spaces at the beginning, bytes of a character). Tokens that add nothing by themselves
    (bytes of an unfinished character, special tokens) stand together with the one after them, or at the end with the
    one before.

    Args:
        tokenizer: The model's tokenizer.
        token_ids: Content tokens of the answer.
        text: Its text, which ends where a stop text begins, maybe inside the last token.
    """
    found: list[Piece] = []
    said, start, n = "", 0, len(token_ids)
    if n > LONGEST:
        return [Piece(text, range(n))]  # cutting takes time that grows with the square of the length
    for stop in range(1, n):
        now = tokenizer.decode(token_ids[:stop], skip_special_tokens=True)
        if len(now) > len(said) and now.startswith(said) and not now.endswith(_UNFINISHED):
            found.append(Piece(now[len(said) :], range(start, stop)))
            said, start = now, stop
    while found and not text.startswith(said):  # what follows changed what stood there, as some tokenizers' spaces do
        start, said = found[-1].tokens.start, said.removesuffix(found.pop().text)
    rest = text[len(said) :]
    if start < n and (rest or not found):
        found.append(Piece(rest, range(start, n)))
    elif start < n:
        found[-1] = found[-1]._replace(tokens=range(found[-1].tokens.start, n))
    return found
