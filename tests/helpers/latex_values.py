"""Convert LaTeX to numbers with an independent parser, to check without the graders whether two references differ.

Brackets, commas, unions and matrices are split into parts. The value of a reference is the sorted list of the values of
its parts, where each letter stands for a fixed number. Two references with different values differ in every reading: as
a set, a point or an interval.
"""

from __future__ import annotations

import cmath
import re
from collections.abc import Iterator

_TOKEN = re.compile(r"\\[A-Za-z]+|\d+\.?\d*|\.\d+|\S")
_CONSTANTS = {r"\pi": cmath.pi, r"\infty": 1e9, "i": 1j}
_FUNCTIONS = {r"\cot": lambda x: 1 / cmath.tan(x), r"\sqrt": cmath.sqrt}


def values(latex: str) -> list[complex] | None:
    r"""Return the sorted values of the parts of an expression, or None if it has no numeric value.

    >>> values(r"1 \pm \sqrt{4}"), values(r"\left[ \frac12, 3 \right)"), values(r"\text{east}")
    ([(-1+0j), (3+0j)], [(0.5+0j), (3+0j)], None)
    """
    try:
        found = [_Parser(part).whole() for part in _parts(_bare(latex))]
    except (ValueError, IndexError, ZeroDivisionError, OverflowError):
        return None
    return sorted(
        (complex(round(one.real, 9), round(one.imag, 9)) for one in found), key=lambda one: (one.real, one.imag)
    )


def _bare(latex: str) -> str:
    """Remove units, degrees, currencies and spacing."""
    for pattern, kept in (
        (r"\\(?:text|mbox)\s*\{[^{}]*\}(?:\^\d)?", ""),
        (r"\\left|\\right|\\!|\\,|\^\{?\\circ\}?|\\?\$", ""),
        (r"\\[dt]frac", r"\\frac"),
    ):
        latex = re.sub(pattern, kept, latex)
    return re.sub(r"(?<=\d),\s*(?=\d{3}(?!\d))", "", latex) if re.fullmatch(r"[-\d,.\s]+", latex) else latex


def _parts(latex: str) -> Iterator[str]:
    r"""Yield entries, interval ends and elements. Equations become differences, and \pm is replaced by both signs."""
    matrix = re.fullmatch(r"\s*\\begin\{pmatrix\}(.*)\\end\{pmatrix\}\s*", latex)
    if matrix:
        pieces = re.split(r"\\\\|&", matrix[1])
    else:
        latex = re.sub(r"\\[{}]", "", re.split(r"\\in(?![a-z])", latex)[-1])
        pieces = [
            piece for one in latex.split(r"\cup") for piece in (one.strip()[1:-1] if _is_list(one) else one).split(",")
        ]
    for piece in pieces:
        left, equals, right = piece.partition("=")
        whole = f"{left}-({right})" if equals else left
        yield from {whole.replace(r"\pm", "+"), whole.replace(r"\pm", "-")}


def _is_list(text: str) -> bool:
    text = text.strip()
    return "," in text and text[0] in "([" and text[-1] in ")]"


class _Parser:
    """A recursive-descent parser for sums, products, powers, fractions and roots."""

    def __init__(self, latex: str) -> None:
        self.tokens = _TOKEN.findall(latex)

    def whole(self) -> complex:
        value = self.sum()
        if self.tokens:
            raise ValueError(self.tokens[0])
        return value

    def sum(self) -> complex:
        total = self.product() if not self.peek("+-") else 0
        while self.peek("+-"):
            sign = 1 if self.tokens.pop(0) == "+" else -1
            total += sign * self.product()
        return total

    def product(self) -> complex:
        total = self.power()
        while self.tokens and self.tokens[0] not in "+-)}]=":
            if self.peek("/"):
                self.tokens.pop(0)
                total /= self.power()
            else:
                mixed = self.tokens[0] == r"\frac" and total.imag == 0 and total.real == int(total.real) and self.digits
                total = total + self.power() if mixed else total * self.power()
        return total

    def power(self) -> complex:
        base = self.atom()
        if self.peek("^"):
            self.tokens.pop(0)
            base = base ** self.atom(single=True)
        return base

    def atom(self, single: bool = False) -> complex:
        token = self.tokens.pop(0)
        self.digits = token[0] in ".0123456789"
        if self.digits:
            if single and len(token) > 1:
                self.tokens.insert(0, token[1:])
            return complex(float(token[0] if single else token))
        if token in "({":
            value = self.sum()
            self.tokens.pop(0)
            return value
        if token == r"\frac":
            return self.atom(single=True) / self.atom(single=True)
        if token in _FUNCTIONS:
            return _FUNCTIONS[token](self.atom(single=token == r"\sqrt"))
        if token in _CONSTANTS:
            return _CONSTANTS[token]
        if re.fullmatch("[A-Za-z]", token):
            return complex(1 + ord(token) * 0.0371)
        raise ValueError(token)

    def peek(self, tokens: str) -> bool:
        return bool(self.tokens) and self.tokens[0] in tokens
