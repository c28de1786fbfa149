"""The `choice` grader, which finds the chosen option by its letter or text."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import chain, pairwise
from string import ascii_uppercase
from typing import NamedTuple

from extract.errors import InputError
from extract.grading.base import Grade, from_function
from extract.grading.latex import last_boxed
from extract.questions.numbers import numbers, plain_number
from extract.questions.question import Question
from extract.text import FILLERS, OPENING, is_negated, normalize

#: Phrases that introduce an answer on the same line.
_CUE = re.compile(
    r"\banswer\b[^.:\n]{0,40}?(?::|=|\bis\b|\bbe\b)|(?<!not )\b(?:go|going) with\b"
    r"|\b(?:wait|actually|sorry|correction)\b(?:[\s,.:;-]|\b(?:actually|no|it is|it's|i mean)\b){1,9}"
    r"(?=[(*\"']{0,3}[A-Z]\b\W*(?:$|\n))",
    re.IGNORECASE,
)
_FAR = 1000  # characters read after a cue
#: Phrases that mark the letters before them as the answer.
_AFFIRMED = re.compile(
    r"\s*(?:is|are|would be|must be|has to be)\s+(?:(?:the|my|both|most|best|final|likely|only|one|indeed|\w+ly)\s+)*"
    r"(?:answers?|options?|choices?|correct|right)\b",
    re.IGNORECASE,
)
#: Text allowed between "the answer is" and the letter. After any other words, the letter can be part of a name
#: (vitamin C).
_LEAD = re.compile(r"(?:\W|\b(?:the|option|choice|letter|most|likely|either|both|that|to|be|\w+ly)\b)*", re.IGNORECASE)
_ENDS = re.compile(r"\s*(?:$|,?\s*(?:because|since)\b)")
_OPEN, _CLOSE = r"[(\[*\"'“$]{0,4}", r"[)\]*\"'”$.:]{0,4}"
#: A single letter that is neither a degree nor a unit.
_LETTER = re.compile(rf"{_OPEN}(?<!\w)(?<!\w')(?<!°)(?<![\d°] )([A-Z])(?!'?\w|#|\+\+){_CLOSE}")
_ALONE = re.compile(rf"[ \t]*(?:\Z|\n|{_LETTER.pattern})")
_BETWEEN = re.compile(
    r"(?:[\s,;/&+|(]|\b(?:and|or|maybe|possibly|perhaps|also|as well as|even|either|both|option|choice)\b)*",
    re.IGNORECASE,
)
#: A lowercase letter that can only stand for an option.
_SMALL = re.compile(r"(\W{0,6}(?:(?:option|choice)\W{1,3})?)([a-z])(?=[)\].:*\"'”]|\W*$)")
_SURELY_SMALL = re.compile(r"(?<!\w)\([a-z]\)|(?<!\w)[a-z](?=\s+is (?:the|my) (?:\w+ )?(?:answer|option|choice)\b)")
#: Before most words, "A" is an article and "I" is a pronoun. Before the words excluded here, either can be an option.
_AFTER_LETTER = re.compile(
    r"[ \t]+(?!(?:is|are|was|seems|looks|must|would|because|since|as|and|or|not|maybe|possibly|which|for|due|unlike"
    r"|rather)\b)[A-Za-z]{2}"
)
#: Words that exempt the next option from a negation: "all options except B are wrong".
_EXCEPTED = re.compile(
    r"\b(?:except(?: for)?|other than|(?:all|any|every)(?:thing)?(?: options?| choices?| answers?)? but)"
    rf"{FILLERS}{OPENING}$",
    re.IGNORECASE,
)
#: Words that reject the option next to them, in addition to those of `is_negated`.
_REJECTED_BEFORE = re.compile(
    r"\b(?:than|exclud\w+|eliminat\w+|rul\w+ out|not(?:(?: go)? (?:with|for)| correct| right| best)?)"
    rf"{FILLERS}:?{OPENING}$",
    re.IGNORECASE,
)
_REJECTED_BEHIND = re.compile(
    r"\s*(?:(?:is|are|was|were|seems?|looks?|can|could|do|does|did|has|have|must|would|should|might|may)\s+"
    r"(?:(?:be|been|the|an?|all|both|also|just|thus|therefore|\w+ly)\s+)*"
    r"(?:not|wrong|incorrect|false|impossible|unlikely|eliminated|excluded|out|ruled out)\b"
    r"|[:–—(-]?\s*(?:wrong|incorrect)\b|\??\s*no\b(?! (?:doubt|question)))",
    re.IGNORECASE,
)
#: A line that begins with an option's letter and a punctuation mark.
_HEAD = re.compile(r"^[(\[*]{0,2}([A-Z])[)\].:*].*$", re.MULTILINE)
#: Symbols that are part of an option's text.
_SIGN = re.compile(r"[+/^<>≤≥≠=×·#%°√]|(?<=\d)[.,](?=\d)|[-−–‐](?=\s?[\d.])|(?<=[\d\s])\*(?=[\d\s])")
_TOUCHING = frozenset("+/^<>≤≥≠×·#%°√.,-*")
_ARTICLE = re.compile(r"\b(?:[Tt]he|[Aa]n?)\s+(?!(?:and|or|nor)\b)(?=\w)")


def _grade(question: Question, text: str) -> Grade:
    options, right = dict(zip(ascii_uppercase, question.choices, strict=False)), question.references[0]
    if right not in options:
        raise InputError(
            f"Expected question {question.id!r} to have `choices` and the right letter as its first reference, but got "
            f"{len(question.choices)} choices and the reference {question.public(right[:100])!r}. The 'choice' grader "
            "requires both. Pass a different --grader, or correct the question."
        )
    taken = next((letters for letters in _stated(text, options) if letters), set())
    letter = taken.pop() if len(taken) == 1 else None
    return Grade(letter == right, letter)


def _stated(text: str, options: Mapping[str, str]) -> Iterator[set[str]]:
    """Yield the option letters found by each rule, from the most to the least reliable rule."""
    yield _match_exact(text, options)
    text = _plain(text)
    if (boxed := last_boxed(text)) is not None:
        yield _stated_in(boxed, 0, len(boxed), options)
    yield _affirmed_or_cued(text, options)
    bare = _without_list(text, options).strip()
    line, letters = bare.split("\n", 1)[0], _match_letters(bare, options)
    if letters and _LEAD.fullmatch(bare, 0, letters[0].start) and _ENDS.match(line, letters[0].end):
        yield letters[0].letters
    else:
        yield _match_exact(line, options)
    yield letters[-1].letters if letters else set()
    yield _match_text(bare, options)


def _stated_in(text: str, start: int, end: int, options: Mapping[str, str]) -> set[str]:
    """Find the options that are chosen in `text[start:end]`, by their letter or by their text."""
    statement = text[start:end]
    exact, letters = _match_exact(statement, options), _match_letters(text, options, start, end)
    if exact or not letters:
        return exact or _match_text(statement, options)
    is_first = _LEAD.fullmatch(text, start, letters[0].start)
    return letters[0].letters if is_first else letters[0].letters | _match_text(statement, options)


def _affirmed_or_cued(text: str, options: Mapping[str, str]) -> set[str]:
    """Find the options in the last phrase that states a choice, such as "the answer is B"."""
    groups = _match_letters(text, options)
    affirmed = [(group, match.end()) for group in groups if (match := _AFFIRMED.match(text, group.end))]
    cued = (-1, -1)
    for cue in _CUE.finditer(text):
        start, end = _behind(text, cue.end())
        if text[start:end].strip(" .:*") and not any(group.start < cue.start() < stop for group, stop in affirmed):
            cued = start, end
    if affirmed and affirmed[-1][0].start > cued[0]:
        line_start = text.rfind("\n", 0, affirmed[-1][0].start)
        return set().union(*(group.letters for group, _ in affirmed if group.start > line_start))
    return _stated_in(text, *cued, options) if cued[0] >= 0 else set()


def _behind(text: str, start: int) -> tuple[int, int]:
    """Return the span of the statement that follows a cue. The cue ends at `start`."""
    line, _, below = text[start : start + _FAR].partition("\n")
    if not line.strip(" .:*") and "\n" not in below.strip() and start + _FAR >= len(text):
        return start, len(text)
    return start, start + len(line)


class _Letters(NamedTuple):
    """Option letters that are mentioned together, such as "A or B", and their span in the text."""

    letters: set[str]
    start: int
    end: int


def _plain(text: str) -> str:
    """Normalise apostrophes and negations, and capitalise letters that can only be option labels."""
    text = re.sub(r"(?<=\bca)n't\b|(?<=\bca)nnot\b", "n not", text.replace("’", "'"), flags=re.IGNORECASE)
    text = re.sub(r"n't\b", " not", text, flags=re.IGNORECASE)
    text = re.sub(r"(?<!\w)_{1,3}([A-Za-z])_{1,3}(?!\w)", r"\1", text)
    return _SURELY_SMALL.sub(lambda match: match[0].upper(), text)


def _match_letters(text: str, options: Mapping[str, str], start: int = 0, end: int | None = None) -> list[_Letters]:
    """Find the option letters in `text[start:end]`, except negated ones ("not B"). `text` is the output of `_plain`."""
    end = len(text) if end is None else end
    if small := _SMALL.match(text, start, end):
        text = f"{text[: small.start(2)]}{small[2].upper()}{text[small.end(2) :]}"
    groups: list[_Letters] = []
    for match in _LETTER.finditer(text, start, end):
        is_word = match[0] in ("A", "I") and _AFTER_LETTER.match(text, match.end())
        if is_word or match[1] not in options:
            continue
        if groups and _is_joined(text, groups[-1].start, groups[-1].end, match, end):
            groups[-1] = _Letters(groups[-1].letters | {match[1]}, groups[-1].start, match.end())
        else:
            groups.append(_Letters({match[1]}, *match.span()))
    return [group for group in groups if not _is_negated(text, group.start, group.end)]


def _is_joined(text: str, first: int, last: int, match: re.Match[str], end: int) -> bool:
    """Whether two successive option letters are mentioned together, as in "A or B"."""
    between = text[last : match.start()]
    if len(between) > 40 or not _BETWEEN.fullmatch(between):
        return False
    if between.strip() or ("\n" not in between and text[last - 1] not in ".:"):
        return True
    # here, the second letter must not begin a sentence
    return bool(_ALONE.match(text, match.end(), end)) and not _is_negated(text, first, last)


def _is_negated(text: str, start: int, end: int) -> bool:
    """Whether the option at `text[start:end]` is negated, as in "not B" or "B is wrong"."""
    is_rejected = _REJECTED_BEHIND.match(text, end) is not None
    if _EXCEPTED.search(text, max(0, start - 80), start):
        return not is_rejected
    return is_rejected or is_negated(text, start, end) or bool(_REJECTED_BEFORE.search(text, max(0, start - 80), start))


def _match_exact(text: str, options: Mapping[str, str]) -> set[str]:
    """Find the options whose text equals the whole answer, with or without a letter in front."""
    texts = {letter: choice.strip() for letter, choice in options.items() if choice.strip().upper() not in options}
    exact = {letter for letter, choice in texts.items() if choice.casefold() == text.strip().casefold()}
    form, values = _form(text), set(numbers(text))
    return exact or {
        letter
        for letter, choice in options.items()
        if (option := _form(choice))
        and (form == f"{letter.lower()} {option}" or (form == option and letter in texts))
        and plain_number(choice) in (None, *values)
    }


def _match_text(text: str, options: Mapping[str, str]) -> set[str]:
    """Find the options whose text occurs in an answer without being negated ("not Paris")."""
    words, values = f" {_form(text)} ", set(numbers(text))
    found, forms = set(), {letter: _form(choice) for letter, choice in options.items()}
    for letter, form in sorted(forms.items(), key=lambda item: -len(item[1])):
        places = _places(words, form)
        number = plain_number(options[letter])
        if number in (None, *values) and any(not _is_negated(words, *place) for place in places):
            found.add(letter)
        if list(forms.values()).count(form) == 1:
            for start, stop in places:
                words = words[:start] + "\0" * (stop - start) + words[stop:]
    return found


def _places(words: str, form: str) -> list[tuple[int, int]]:
    """Return the spans of `words` that equal `form`. Spans next to a symbol, such as + or %, are left out."""
    if not form or (len(form) == 1 and form.isalpha()):
        return []
    places = []
    for match in re.finditer(rf"(?<= ){re.escape(form)}(?= )", words):
        start, stop = match.span()
        before, behind = words[start - 2 : start - 1], words[stop + 1 : stop + 2]
        if not (_TOUCHING.intersection((before, behind)) or (before.isdigit() and not words[start].isalnum())):
            places.append((start, stop))
    return places


@lru_cache(64)  # several rules read the same text, and many answers share the same options
def _form(text: str) -> str:
    """Reduce a string to words, numbers and symbols, without case, accents, articles or punctuation."""
    text = _ARTICLE.sub("", _plain(text))
    ends = [0, *(place for sign in _SIGN.finditer(text) for place in sign.span()), len(text)]
    pieces = [text[start:end] for start, end in pairwise(ends)]
    kept = [re.sub("[−–‐]", "-", piece) if n % 2 else normalize(piece) for n, piece in enumerate(pieces)]
    return " ".join(filter(None, kept))


def _without_list(text: str, options: Mapping[str, str]) -> str:
    """Remove the list of options from an answer that repeats it."""
    # a list has at least two options in alphabetical order; an option that breaks this order is the answer
    letters = options.items()
    listed = {start: (end, letter) for letter, choice in letters for start, end in _listed(text, letter, choice)}
    for head in _HEAD.finditer(text):  # the text after the letter can differ from the option
        if head[1] in options:
            listed.setdefault(head.start(), (head.end(), head[1]))
    runs: list[list[tuple[int, int, str]]] = []
    for place in sorted((start, end, letter) for start, (end, letter) in listed.items()):
        if runs and runs[-1][-1][2] < place[2]:
            runs[-1].append(place)
        else:
            runs.append([place])
    while runs and len(runs[-1]) == 1:
        runs.pop()
    pieces, last = [], 0
    for start, end, _ in chain.from_iterable(runs):
        pieces.append(text[last:start])
        last = max(last, end)
    return "\n".join([*pieces, text[last:]])


def _listed(text: str, letter: str, choice: str) -> Iterator[tuple[int, int]]:
    """Yield the spans where the text lists an option with its letter, as in "B. Lima"."""
    for match in re.finditer(rf"[(\[*]{{0,2}}\b{letter}(?:[)\].:*]{{1,3}}\s?|\Z)", text):
        rest = text[match.end() : match.end() + len(choice)]
        # the last option can be truncated
        is_cut = match.end() + len(rest) == len(text) and choice.startswith(rest)
        if rest == choice or (is_cut and (rest or text[: match.start()].endswith("\n"))):
            yield match.start(), match.end() + len(rest)


CHOICE = from_function(
    "choice",
    _grade,
    "The answer is the option that is the whole text, otherwise the one whose letter or text is in the last \\boxed{}, "
    "otherwise in the last statement such as 'answer is B', 'answer:', 'B is correct', 'go with B' or 'wait, C', "
    "otherwise in a first line that contains nothing else except a reason, otherwise the last single letter, otherwise "
    "the option whose text appears. Denied options and boxes ('not B', 'B is wrong') and a repeated list of options "
    "are ignored. A denial ends with its sentence, and 'all except B are wrong' chooses B. An answer that names "
    "several options ('A or B') is wrong. It is right if its letter is the reference.",
    kinds=("choice",),
)
