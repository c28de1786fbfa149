"""A page of answers: tokens shaded by entropy, a strip below them by influence, numbers on hover and in tables.

The page follows the reader's light or dark scheme. Its text and layout are in ``page.html.j2``.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from torch import Tensor

from extract.text import one_line
from extract.viewing.answers import Piece, ShownAnswer


class Scheme(NamedTuple):
    """Colours of a scheme as red, green and blue: page, text, quiet text, lines, and the two ramps at full strength.

    Entropy is laid over the page with an opacity of at most `most`, at which text is still easy to read on it. The two
    hues, orange and blue, differ with every kind of colour blindness.
    """

    paper: tuple[int, int, int]
    ink: tuple[int, int, int]
    quiet: tuple[int, int, int]
    line: tuple[int, int, int]
    entropy: tuple[int, int, int]
    influence: tuple[int, int, int]
    most: float

    def variables(self) -> str:
        """The scheme as CSS variables."""
        colours = {name: " ".join(map(str, value)) for name, value in self._asdict().items() if name != "most"}
        return ";".join(f"--{name}:{value}" for name, value in {**colours, "most": self.most}.items())


LIGHT = Scheme((255, 255, 255), (23, 26, 30), (84, 93, 103), (208, 214, 220), (240, 110, 0), (20, 80, 170), 0.85)
DARK = Scheme((20, 23, 27), (238, 241, 244), (160, 169, 178), (58, 65, 73), (214, 92, 0), (110, 170, 255), 0.72)

_MARKS = {"right": "✓", "wrong": "✗", "unknown": "?", "not graded": "–"}
#: Visible forms of characters that a page would not show, or may not contain.
_VISIBLE = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {127: "\u2421"}


def page(answers: Sequence[ShownAnswer], model: str, store: str, influence: str | None = None) -> str:
    """The page as one text.

    Args:
        answers: The answers, those to a question next to each other.
        model: Name of the model.
        store: Name of the store.
        influence: Name of the influence that is shown, if there is one.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"visible": lambda text: text.translate(_VISIBLE), "lines": _lines}
    top, by_question = entropy_scale(answers), groupby(answers, key=lambda answer: answer.question_id)
    return environment.get_template("page.html.j2").render(
        questions=[[_content(answer, top) for answer in group] for _, group in by_question],
        model=model,
        store=store,
        influence=influence,
        top=top,
        marks=_MARKS,
        light=LIGHT.variables(),
        dark=DARK.variables(),
    )


def entropy_scale(answers: Sequence[ShownAnswer]) -> float:
    """Upper end of the entropy scale in nats: the largest entropy, rounded up to a multiple of ½, and at least ½."""
    largest = max((float(answer.entropy.nan_to_num(0).max()) for answer in answers if answer.n_tokens), default=0.0)
    return max(0.5, math.ceil(2 * largest) / 2)


def _content(answer: ShownAnswer, top: float) -> dict[str, Any]:
    """What the template shows of an answer."""
    facts = [f"{answer.n_tokens} token{'s' * (answer.n_tokens != 1)}"]
    if answer.n_tokens and bool(answer.entropy.isfinite().all()):
        facts.append(f"mean entropy {float(answer.entropy.mean()):.2f} nats")
    facts += ["cut at the token limit"] * answer.cut
    facts += [f"taken as “{one_line(answer.taken, 60)}”"] if answer.taken else []
    return {
        "answer": answer,
        "facts": "; ".join(facts),
        "tokens": [_token(answer, piece, top) for piece in answer.pieces],
        "texts": {piece.tokens.start: piece.text for piece in answer.pieces},
        "numbers": _numbers(answer),
    }


def _token(answer: ShownAnswer, piece: Piece, top: float) -> dict[str, Any]:
    """A token, or the few that share a character, with the shade of their mean."""
    places = slice(piece.tokens.start, piece.tokens.stop)
    entropy = float(answer.entropy[places].mean())
    style = [f"--e:{min(1.0, entropy / top):.3f}"] if math.isfinite(entropy) else []
    if answer.influence is not None and math.isfinite(largest := float(answer.influence.max())) and largest > 0:
        style.append(f"--i:{float(answer.influence[places].mean()) / largest:.3f}")
    return {"text": piece.text, "places": piece.tokens, "known": math.isfinite(entropy), "style": ";".join(style)}


def _numbers(answer: ShownAnswer) -> list[list[tuple[str, str]]]:
    """For each token, its numbers as label and text."""
    columns = {
        "entropy": [_number(value, " nats") for value in answer.entropy],
        "1 − p_max": [_number(value) for value in answer.one_minus_pmax],
        "−log p": [_number(value, " nats") for value in answer.nll],
    }
    if answer.influence is not None:
        shares = zip(answer.influence, 100 * answer.influence / answer.influence.sum(), strict=True)  # NaN if all are 0
        columns["influence"] = [f"{_number(i)} ({_number(share, ' %', 1)} of the answer’s)" for i, share in shares]
    return [list(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _number(value: Tensor, unit: str = "", digits: int = 3) -> str:
    return f"{float(value):.{digits}f}{unit}" if math.isfinite(value) else "no number"


def _lines(text: str) -> Markup:
    """A text whose line breaks are visible."""
    return escape(text.translate(_VISIBLE)).replace("\n", Markup('<span class="nl" aria-hidden="true">↵</span>\n'))
