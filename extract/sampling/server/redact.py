"""Remove the API key and private questions from text that the server sends."""

import re

from extract.questions.question import Question

#: A message repeats a question if the two share this many consecutive characters.
_SHARED = 20
#: Number of leading characters that are enough to recognise a key.
_HEAD = 8
_LEAST = 4  # minimum length of a key; shorter values are placeholders
#: Masked key whose ends are still visible.
_STARRED = re.compile(r"[\w-]{0,100}\*{3,}[\w-]{0,100}")
_ESCAPED = re.compile(r"\\u([0-9a-f]{4})", re.IGNORECASE)
_BETWEEN_WORDS = re.compile(r"\\[nrt]|[\W_]+")


def without_key(text: str, key: str | None) -> str:
    r"""Remove the API key from a string, even if the key is escaped, truncated or masked with asterisks.

    >>> without_key(r"no sk-a/b+c=1234, no sk-a\/b\u002bc=12…, no sk-a***34", "sk-a/b+c=1234")
    'no …, no … no …'
    >>> without_key("a key of one letter", "a")
    'a key of one letter'
    """
    if key and len(key) >= _LEAST:
        text = text.replace(key, "…")
        head = "".join(rf"\\{{0,4}}(?:{re.escape(c)}|u{ord(c):04x}|%{ord(c):02x})" for c in key[:_HEAD])
        rest = r"[^\s\"'<>]*" if len(key) >= _HEAD else ""
        text = re.sub(head + rest, "…", text, flags=re.IGNORECASE)
    return _STARRED.sub("…", text)


def public(error: Exception, question: Question) -> str:
    """Return the text of an error, or a placeholder if it repeats a private question.

    >>> secret = Question("7", "mine", "Which of these elements is the heaviest?", meta={"private": True})
    >>> public(ValueError("the prompt 'WHICH of these  elements is' is too long"), secret)
    "the server's message on question '7' is hidden, because it repeats this private question"
    >>> public(ValueError("no such model"), secret)
    'no such model'
    """
    if not question.private:
        return str(error)
    prompt = question.prompt
    asked = _words(prompt if isinstance(prompt, str) else " ".join(str(message["content"]) for message in prompt))
    said, shared = _words(str(error)), min(_SHARED, len(asked))
    if any(said[i : i + shared] in asked for i in range(len(said) - shared + 1)):
        return f"the server's message on question {question.id!r} is hidden, because it repeats this private question"
    return str(error)


def _words(text: str) -> str:
    """Return the lower-cased words of a string, separated by spaces."""
    text = _ESCAPED.sub(lambda escape: chr(int(escape[1], 16)), text)
    return _BETWEEN_WORDS.sub(" ", text.casefold()).strip()
