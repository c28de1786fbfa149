"""HTML page of answers, with tokens shaded by entropy and underlined by influence."""

import math
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from torch import Tensor

from extract.text import one_line
from extract.viewing.answers import Piece, ShownAnswer

_MARKS = {"right": "✓", "wrong": "✗", "unknown": "?", "not graded": "–"}
_VISIBLE = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {127: "\u2421"}


def page(answers: Sequence[ShownAnswer], model: str, store: str, influence: str | None = None) -> str:
    """Render an HTML page of answers, grouped by question. `model`, `store` and `influence` are names to show."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"visible": lambda text: text.translate(_VISIBLE), "lines": _lines}
    largest = max((float(answer.entropy.nan_to_num(0).max()) for answer in answers if answer.n_tokens), default=0.0)
    top = max(0.5, math.ceil(2 * largest) / 2)  # upper end of the scale in nats
    by_question = groupby(answers, key=lambda answer: answer.question_id)
    verdicts = Counter(answer.verdict for answer in answers)
    return environment.get_template("page.html.j2").render(
        questions=[[_content(answer, top) for answer in group] for _, group in by_question],
        verdicts=", ".join(f"{verdicts[verdict]} {verdict}" for verdict in _MARKS if verdicts[verdict]),
        model=model,
        store=store,
        influence=influence,
        top=top,
        marks=_MARKS,
    )


def _content(answer: ShownAnswer, top: float) -> dict[str, Any]:
    facts = [f"{answer.n_tokens} token{'s' * (answer.n_tokens != 1)}"]
    if answer.n_tokens and bool(answer.entropy.isfinite().all()):
        facts.append(f"mean entropy {float(answer.entropy.mean()):.2f} nats")
    facts += ["truncated at the token limit"] * answer.cut
    facts += [f"graded as “{one_line(answer.taken, 60)}”"] if answer.taken else []
    return {
        "answer": answer,
        "facts": "; ".join(facts),
        "tokens": [_token(answer, piece, top) for piece in answer.pieces],
        "texts": {piece.tokens.start: piece.text for piece in answer.pieces},
        "numbers": _numbers(answer),
    }


def _token(answer: ShownAnswer, piece: Piece, top: float) -> dict[str, Any]:
    """Return the template variables for a piece of text. The style shows the piece's mean entropy and influence."""
    places = slice(piece.tokens.start, piece.tokens.stop)
    entropy = float(answer.entropy[places].mean())
    style = [f"--e:{min(1.0, entropy / top):.3f}"] if math.isfinite(entropy) else []
    if answer.influence is not None and math.isfinite(largest := float(answer.influence.max())) and largest > 0:
        style.append(f"--i:{float(answer.influence[places].mean()) / largest:.3f}")
    return {"text": piece.text, "places": piece.tokens, "known": math.isfinite(entropy), "style": ";".join(style)}


def _numbers(answer: ShownAnswer) -> list[list[tuple[str, str]]]:
    """Format the values of each token as (label, text) pairs."""
    columns = {
        "entropy": [_number(value, " nats") for value in answer.entropy],
        "1 − p_max": [_number(value) for value in answer.one_minus_pmax],
        "−log p": [_number(value, " nats") for value in answer.nll],
    }
    if answer.influence is not None:
        shares = zip(answer.influence, 100 * answer.influence / answer.influence.sum(), strict=True)  # NaN if all are 0
        columns["influence"] = [f"{_number(i)} ({_number(share, ' %', 1)} of the total)" for i, share in shares]
    return [list(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _number(value: Tensor, unit: str = "", digits: int = 3) -> str:
    return f"{float(value):.{digits}f}{unit}" if math.isfinite(value) else "no number"


def _lines(text: str) -> Markup:
    """Escape a string for HTML, and make its line breaks visible."""
    return escape(text.translate(_VISIBLE)).replace("\n", Markup('<span class="nl" aria-hidden="true">↵</span>\n'))
