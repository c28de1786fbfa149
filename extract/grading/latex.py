r"""Find LaTeX answers, and convert equivalent notations to one spelling."""

import re
from fractions import Fraction

from extract.questions.numbers import has_terms, number_with_unit, numbers
from extract.text import is_negated, normalize

#: Start of a box (with one or two backslashes), an escaped character, or a brace.
_BOX_PIECE = re.compile(r"\\{1,2}f?box(?:ed)?\s*\{|\\.|[{}]", re.DOTALL)
#: An exponent or subscript after a box, except degrees and ordinals (4^{th}).
_SCRIPT = re.compile(r"\s*(?:[\^_]\s*(?:\{\s*-?[\dA-Za-z](?:[\d/]*)\s*\}|[\dA-Za-z](?![A-Za-z]))|[²³])")
#: A minus sign in front of a box.
_MINUS = re.compile(r"(?<![\w)}\]\-–—])[-−]$")
_TAIL = 2000  # characters searched at the end of a text without a box; maximum length of an answer
_CUE = re.compile(r"\banswer\b[^.:\n]{0,40}?(?::|=|\bis\b)([^\n]*)", re.IGNORECASE)
_FORMULA = re.compile(
    r"(?<!\\)\$\$((?:\\.|[^$\\])+)\$\$|(?<!\\)\$((?:\\.|[^$\n\\])+)\$"
    r"|\\\(((?:[^\\\n]|\\(?!\)))+)\\\)|\\\[((?:[^\\]|\\(?!\]))+)\\\]"
)
_WORD = re.compile(
    r"(?<![\\A-Za-z])(?!(?:sqrt|sin|cos|tan|cot|sec|csc|log|exp)(?![A-Za-z]))"
    r"(?:[^\W\d_]{3,}|is|of|or|to|so|we|in|it)(?![A-Za-z])"
)
#: Words after or before a formula or number that is not the whole answer: "10 or 20", "20 times x", "not 20".
_PART = (
    r"or|and|not|\w*n['’]t|between|minus|plus|times|over|than|least|most|twice|half|double|squared|cubed|hundred"
    r"|thousand|million|billion|trillion|dozen"
)
_BEFORE = re.compile(rf"\b(?:{_PART})\W*$", re.IGNORECASE)
_BEHIND = re.compile(rf"\s*(?:{_PART}|more|less|fewer|to(?=\s*\\?[$(\d]))\b", re.IGNORECASE)
_WITHIN = re.compile(rf"\b(?:{_PART}|to)\b", re.IGNORECASE)
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\s*\{[a-z]+\}")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mbox|mathrm|mathbf)\s*\{([^{}]*)\}")
_UNIT = re.compile(r"(?<=[\d}.)])\s*\\(?:text|textrm|mbox|mathrm)\s*\{([^{}]*)\}\s*(?:\^\s*\{?\s*[23]\s*\}?)?[\s.$]*$")
_NO_UNITS = {
    "i",
    "e",
    "or",
    "and",
    "hundred",
    "thousand",
    "million",
    "billion",
    "trillion",
    "dozen",
    "squared",
    "cubed",
}
#: Equivalent spellings and their replacements, applied in this order.
_SPELLINGS = [
    (re.compile(r"\\(?:displaystyle|left|right|[bB]igg?[lr]?)(?![A-Za-z])"), ""),
    (re.compile(r",\\!\s*"), ","),
    (re.compile(r"(?<!\\)\\[,!;: ]|\\q?quad(?![A-Za-z])|~"), " "),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\frac\s*(\\[A-Za-z]+|[^\\{}\s])"), r"\\frac{\1}"),
    (re.compile(r"(\\frac\s*\{[^{}]*\})\s*(\\[A-Za-z]+|[^\\{}\s])"), r"\1{\2}"),
    (re.compile(r"\\sqrt\s*(\\[A-Za-z]+|[^\\{}\s\[])"), r"\\sqrt{\1}"),
    (re.compile(r"\\math(?:rm|it|bf)\s*\{\s*([A-Za-z])\s*\}"), r"\1"),
    (re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})|°"), " "),
    (re.compile(r"\\(le|ge|ne)q(?![A-Za-z])"), r"\\\1"),
    (re.compile("−"), "-"),
    (re.compile(r"\\?[$%]"), ""),
    (re.compile(r"(\d)_\s*(?:\\text\s*)?\{\s*(?:\\text\s*\{)?\s*(\d+)\s*\}?\s*\}"), r"\1_\2"),
    (re.compile(r"\s+"), " "),
    # keep a space that can end a command, or is part of a mixed number
    (re.compile(r"(?<![A-Za-z\d]) | (?![A-Za-z\d])|(?<=\d) (?=[A-Za-z])|(?<=[A-Za-z]) (?=\d)"), ""),
]
_SEVERAL = re.compile(r"-?\d[\d.,]*(?: -?\d[\d.,]*)+")
NUMERAL = re.compile(r"(-?[0-9A-F]+)_(\d+)")


def last_boxed(text: str) -> str | None:
    r"""Return the content of the last box, or None. Boxes that are unclosed or negated ("not 20") are skipped.

    The result includes a minus sign before the box, and an exponent or subscript after it. If boxes are nested, the
    innermost box is used.

    >>> last_boxed(r"\boxed{1}, or rather \boxed{\frac{1}{2}}. And \boxed{3"), last_boxed(r"\boxed{4}^2")
    ('\\frac{1}{2}', '4^2')
    """
    opened: list[re.Match[str]] = []
    boxes: list[tuple[int, int, int]] = []  # start of the box, and start and end of its content
    for piece in _BOX_PIECE.finditer(text):
        if piece[0].endswith("{") and piece[0] != r"\{":
            opened.append(piece)
        elif piece[0] == "}" and opened and len((begin := opened.pop())[0]) > 1:
            boxes.append((begin.start(), begin.end(), piece.start()))
    for start, inside, end in sorted(boxes, reverse=True):
        if not is_negated(text, start, end + 1):
            content, script = text[inside:end], _SCRIPT.match(text, end + 1)
            if script and not content.endswith("}"):  # otherwise, it is the exponent of a unit
                content = f"{content if content.strip().isalnum() else f'({content})'}{script[0]}"
            return f"-{content}" if _MINUS.search(text, max(0, start - 2), start) else content
    return None


def stated_answer(text: str) -> str | None:
    r"""Extract the final answer from `text` and normalise it with `spelled`, or return None.

    In order of preference, the answer is the content of the last \boxed{}, the text after the last "answer is", the
    last formula, or the last line. If this part is prose with a single number, the answer is that number. If it is
    prose without numbers, the answer is all of its words. Negated ("not 20") and incomplete ("10 or 20", "20 times x")
    answers are ignored.

    >>> stated_answer(r"So $x = 2$ and the answer is \boxed{\dfrac 12 }."), stated_answer("The answer is 7 apples.")
    ('1/2', '7')
    """
    if (boxed := last_boxed(text)) is not None:
        return spelled(boxed)
    tail = text[-_TAIL:]
    cues = [cue for cue in _CUE.findall(tail) if cue.strip(" *.:")]
    formulas = list(_FORMULA.finditer(cues[-1] if cues else tail))
    if formulas:
        formula = formulas[0 if cues else -1]
        of, start, end = formula.string, *formula.span()
        if _BEFORE.search(of[:start]) or _BEHIND.match(of, end) or is_negated(of, start, end):
            return None
        return spelled(next(filter(None, formula.groups())))
    prose = (cues[-1] if cues else (tail.strip().splitlines() or [""])[-1]).strip(" *:").rstrip(". ")
    answer = spelled(prose)
    if answer is None or not _WORD.search(_ENVIRONMENT.sub("", prose)) or value(answer) is not None:
        return answer
    found = numbers(prose)
    if len(found) == 1 and not _WITHIN.search(prose) and not has_terms(prose):
        return str(found[0])
    return None if re.search(r"\d", prose) else normalize(_TEXT.sub(r" \1 ", prose)) or None


def spelled(latex: str) -> str | None:
    r"""Convert LaTeX to a standard form: the exact value of a number, lower-case words, or simplified LaTeX.

    The result is None if the text is empty, too long, negated ("5 is wrong"), or a list of numbers.

    >>> spelled(r"\left( 3, \dfrac{\pi}2 \right)"), spelled(r"0.50\text{ cm}^2"), spelled(r"\text{ Evelyn}")
    ('(3,\\frac{\\pi}{2})', '1/2', 'evelyn')
    """
    if len(latex) > _TAIL:
        return None
    if (words := wrapped_words(latex)) is not None:
        return words or None
    unit = _UNIT.search(latex)
    if unit and is_negated(f"0 {unit[1]}", 0, 1):
        return None
    if unit and not _NO_UNITS.intersection(unit[1].lower().split()):
        latex = latex[: unit.start()]
    for spelling, plain in _SPELLINGS:
        latex = spelling.sub(plain, latex)
    latex = latex.strip(" ,;:").rstrip(" .")
    if (number := value(latex)) is not None:
        return str(number)
    return None if _SEVERAL.fullmatch(latex) else latex or None  # math-verify would use only one number


def value(spelling: str) -> Fraction | None:
    r"""Return the exact value of a number with an optional unit, or None for anything else.

    >>> value(r"137\frac{1}{2}"), value("90 degrees"), value("52_8"), value(r"5\text{or}6")
    (Fraction(275, 2), Fraction(90, 1), None, None)
    """
    return number_with_unit(_TEXT.sub(r" \1 ", spelling))


def wrapped_words(latex: str) -> str | None:
    r"""Return the words of a LaTeX expression if it contains only text, and None otherwise.

    >>> wrapped_words(r"\text{(C)}"), wrapped_words(r"\text{if } x")
    ('c', None)
    """
    bare = latex.strip(" $").rstrip(" .")
    inside = _TEXT.fullmatch(bare)
    words = inside[1] if inside else bare if re.fullmatch(r"[^\W\d_]{3,}(?: [^\W\d_]+)*", bare) else None
    return None if words is None or any(map(str.isdigit, words)) else normalize(words)
