"""What no message may repeat though a server says it: the key, and a question whose authors keep it unpublished."""

import re

from extract.questions.question import Question

#: A message that shares so many letters in a row with a question repeats it.
_SHARED = 20
#: A key is recognised by this many of its first characters; a shorter key is searched for as a whole.
_HEAD = 8
_LEAST = 4  # characters of a key; what is shorter is a placeholder for servers without keys
#: A key of which a server shows the ends.
_STARRED = re.compile(r"[\w-]{0,100}\*{3,}[\w-]{0,100}")
_ESCAPED = re.compile(r"\\u([0-9a-f]{4})", re.IGNORECASE)
_BETWEEN_WORDS = re.compile(r"\\[nrt]|[\W_]+")


def without_key(text: str, key: str | None) -> str:
    r"""Words without the key: as it is, escaped as in JSON or an address, cut, or with stars in its middle.

    Args:
        text: The words, at most some thousands of characters.
        key: The key; None without one. One of less than four characters is no secret.

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
    """An error's text, replaced where it repeats a private question, whatever the case, spaces and signs between words.

    >>> secret = Question("7", "mine", "Which of these elements is the heaviest?", meta={"private": True})
    >>> public(ValueError("the prompt 'WHICH of these  elements is' is too long"), secret)
    "the server's words on question '7' repeat it, and are not shown because it is private"
    >>> public(ValueError("no such model"), secret)
    'no such model'
    """
    if not question.private:
        return str(error)
    prompt = question.prompt
    asked = _words(prompt if isinstance(prompt, str) else " ".join(str(message["content"]) for message in prompt))
    said, shared = _words(str(error)), min(_SHARED, len(asked))
    if any(said[i : i + shared] in asked for i in range(len(said) - shared + 1)):
        return f"the server's words on question {question.id!r} repeat it, and are not shown because it is private"
    return str(error)


def _words(text: str) -> str:
    """The words alone, without quoting and escaping."""
    text = _ESCAPED.sub(lambda escape: chr(int(escape[1], 16)), text)
    return _BETWEEN_WORDS.sub(" ", text.casefold()).strip()
