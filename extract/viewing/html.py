"""A page of answers in one file: tokens shaded by entropy, a strip under them by influence, numbers on hover and in tables.

Nothing in it is loaded from anywhere, and no script runs; it follows the reader's light or dark scheme.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

from torch import Tensor

from extract.text import one_line
from extract.viewing.answers import ShownAnswer
from extract.viewing.token_texts import Piece


class Scheme(NamedTuple):
    """Colours of a scheme, red, green and blue each: page, text, quiet text, lines, and the two ramps at full strength.

    Entropy is laid over the page with an opacity of at most `most`, at which text is still easy to read on it. The two
    hues, orange and blue, are told apart with every kind of colour blindness.
    """

    paper: tuple[int, int, int]
    ink: tuple[int, int, int]
    quiet: tuple[int, int, int]
    line: tuple[int, int, int]
    entropy: tuple[int, int, int]
    influence: tuple[int, int, int]
    most: float


LIGHT = Scheme((255, 255, 255), (23, 26, 30), (84, 93, 103), (208, 214, 220), (240, 110, 0), (20, 80, 170), 0.85)
DARK = Scheme((20, 23, 27), (238, 241, 244), (160, 169, 178), (58, 65, 73), (214, 92, 0), (110, 170, 255), 0.72)

_MARKS = {"right": "✓", "wrong": "✗", "unknown": "?", "not graded": "–"}
#: What some characters look like that would not be seen, or not be allowed in a page.
_VISIBLE = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\n\t"} | {127: "\u2421"}

_STYLE = """
*{box-sizing:border-box}
html{color-scheme:light dark;background:rgb(var(--paper));color:rgb(var(--ink));font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}
body{max-width:60rem;margin:0 auto;padding:1.5rem 1.25rem 4rem}
h1{font-size:1.45rem;line-height:1.25;margin:0 0 .25rem}
h2{font-size:1.12rem;line-height:1.35;margin:2.5rem 0 .1rem;padding-top:1.1rem;border-top:1px solid rgb(var(--line))}
h3{font-size:.95rem;font-weight:600;margin:1.3rem 0 .35rem}
p{margin:.2rem 0}
.quiet,figcaption,summary,h3 small{color:rgb(var(--quiet));font-size:.86rem;font-weight:400}
.badge{display:inline-block;padding:0 .5em;margin-right:.4em;border:1.5px solid rgb(var(--ink));border-radius:.3em}
.badge.right{background:rgb(var(--ink));color:rgb(var(--paper))}
.badge.unknown,.badge.not{border-style:dashed}
.answer{white-space:pre-wrap;overflow-wrap:anywhere;line-height:2.15;font-size:1.06rem}
.t{background:rgb(var(--entropy)/calc(var(--e,0)*var(--most))) padding-box;margin-right:1px;padding:.12em 0;-webkit-box-decoration-break:clone;box-decoration-break:clone}
.with-influence .t{border-bottom:.42em solid rgb(var(--influence)/var(--i,0))}
.t:hover{outline:2px solid rgb(var(--ink));outline-offset:1px}
.t.none{background:repeating-linear-gradient(135deg,rgb(var(--line)) 0 2px,transparent 2px 6px) padding-box}
.nl{color:rgb(var(--quiet));user-select:none}
.legend{display:flex;flex-wrap:wrap;gap:1rem 2.5rem;margin:1rem 0 0}
figure{margin:0;width:19rem;max-width:100%}
.ramp{height:1.05rem;border:1px solid rgb(var(--line))}
.ramp.entropy{background:linear-gradient(90deg,transparent,rgb(var(--entropy)/var(--most)))}
.ramp.influence{background:linear-gradient(90deg,transparent,rgb(var(--influence)))}
.ends{display:flex;justify-content:space-between;font-size:.8rem;font-variant-numeric:tabular-nums}
details{margin:.3rem 0 0}
summary{cursor:pointer}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.84rem;font-variant-numeric:tabular-nums;margin:.4rem 0}
th,td{padding:.1rem .7rem;border-bottom:1px solid rgb(var(--line));text-align:right;white-space:pre}
th:nth-child(2),td:nth-child(2){text-align:left}
@media print{*{print-color-adjust:exact;-webkit-print-color-adjust:exact}details{display:none}}
"""


def page(answers: Sequence[ShownAnswer], model: str, store: str, influence: str | None = None) -> str:
    """The page as one text.

    Args:
        answers: What is shown, the answers to a question one after the other.
        model: Name of the model.
        store: Name of the store.
        influence: Name of the influence, where one is shown.
    """
    top = entropy_scale(answers)
    title = f"Answers of {model}, token by token"
    sections = "\n".join(
        _question(list(group), number, top)
        for number, (_, group) in enumerate(groupby(answers, lambda one: one.question_id))
    )
    dark = _variables(DARK)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{_text(title)}</title>
<style>
:root{{{_variables(LIGHT)}}}
@media(prefers-color-scheme:dark){{:root{{{dark}}}}}
{_STYLE.strip()}
</style>
</head>
<body>
<header>
<h1>{_text(title)}</h1>
<p class="quiet">Store {_text(store)}. Point at a token for its numbers; they also stand in the table below each answer.</p>
<div class="legend" role="group" aria-label="Legend">
{_legend(top, influence)}
</div>
</header>
<main>
{sections}
</main>
</body>
</html>
"""


def entropy_scale(answers: Sequence[ShownAnswer]) -> float:
    """Where the ramp of entropies ends, in nats: the largest one that is shown, rounded up to a half, and at least ½."""
    largest = max((float(one.entropy.nan_to_num(0).max()) for one in answers if one.n_tokens), default=0.0)
    return max(0.5, math.ceil(2 * largest) / 2)


def _variables(scheme: Scheme) -> str:
    colours = {name: " ".join(map(str, value)) for name, value in scheme._asdict().items() if name != "most"}
    return ";".join(f"--{name}:{value}" for name, value in {**colours, "most": scheme.most}.items())


def _legend(top: float, influence: str | None) -> str:
    shown = [
        _ramp(
            "entropy",
            ("0", f"{top / 2:g}", f"{top:g} nats"),
            "Behind the text: entropy of the distribution that the token was drawn from, before temperature and truncation.",
        )
    ]
    if influence is not None:
        caption = f"Strip below the text: influence of the token, {influence}; 0 to the largest of its answer."
        shown.append(_ramp("influence", ("0", "largest"), caption))
    return "\n".join(shown)


def _ramp(name: str, ends: Sequence[str], caption: str) -> str:
    marks = "".join(f"<span>{_text(one)}</span>" for one in ends)
    return f'<figure><div class="ramp {name}"></div><div class="ends">{marks}</div><figcaption>{_text(caption)}</figcaption></figure>'


def _question(answers: Sequence[ShownAnswer], number: int, top: float) -> str:
    one = answers[0]
    counted = " or ".join(f"“{reference}”" for reference in one.references[:5])
    more = f" or {len(one.references) - 5} more" if len(one.references) > 5 else ""
    body = "\n".join(_answer(answer, f"a{number}-{answer.sample}", top) for answer in answers)
    return f"""<section aria-labelledby="q{number}">
<h2 id="q{number}" dir="auto">{_lines(one.question)}</h2>
<p class="quiet">{_text(one.question_id)}; counts as right: {_text(counted + more)}</p>
{body}
</section>"""


def _answer(one: ShownAnswer, name: str, top: float) -> str:
    facts = [f"{one.n_tokens} token{'s' * (one.n_tokens != 1)}"]
    if one.n_tokens and bool(one.entropy.isfinite().all()):
        facts.append(f"mean entropy {float(one.entropy.mean()):.2f} nats")
    facts += ["cut at the token limit"] * one.cut
    facts += [f"taken as “{one_line(one.taken, 60)}”"] if one.taken else []
    kind = " with-influence" if one.influence is not None else ""
    tokens = "".join(_token(one, piece, top) for piece in one.pieces) or '<span class="nl">(no text)</span>'
    return f"""<article aria-labelledby="{name}">
<h3 id="{name}"><span class="badge {one.verdict}"><span aria-hidden="true">{_MARKS[one.verdict]} </span>{one.verdict}</span>Answer {one.sample} <small>{_text("; ".join(facts))}</small></h3>
<p class="answer{kind}" dir="auto" lang="">{tokens}</p>
{_table(one)}
</article>"""


def _token(one: ShownAnswer, piece: Piece, top: float) -> str:
    """A token, or the few that share a character, in the colour of their mean."""
    places = slice(piece.tokens.start, piece.tokens.stop)
    entropy, shares = float(one.entropy[places].mean()), _shares(one)
    style = f"--e:{min(1.0, entropy / top):.3f}" if math.isfinite(entropy) else ""
    if one.influence is not None and math.isfinite(largest := float(one.influence.max())) and largest > 0:
        style += f";--i:{float(one.influence[places].mean()) / largest:.3f}"
    title = "\n".join(
        ", ".join([f"token {t + 1}", *(f"{label} {value}" for label, value in _numbers(one, shares, t))])
        for t in piece.tokens
    )
    kind = "t" if math.isfinite(entropy) else "t none"
    return f'<span class="{kind}" style="{style}" title="{_text(title)}">{_lines(piece.text)}</span>'


def _numbers(one: ShownAnswer, shares: Tensor | None, t: int) -> list[tuple[str, str]]:
    """What is known of a token, as label and text."""
    found = [
        ("entropy", _number(one.entropy[t], " nats")),
        ("1 − p_max", _number(one.one_minus_pmax[t])),
        ("−log p", _number(one.nll[t], " nats")),
    ]
    if one.influence is not None and shares is not None:
        found.append(
            ("influence", f"{_number(one.influence[t])} ({_number(100 * shares[t], ' %', 1)} of the answer’s)")
        )
    return found


def _shares(one: ShownAnswer) -> Tensor | None:
    """[token] shares of the answer's influence; NaN where that is 0."""
    return None if one.influence is None else one.influence / one.influence.sum()


def _number(value: Tensor, unit: str = "", digits: int = 3) -> str:
    return f"{float(value):.{digits}f}{unit}" if math.isfinite(value) else "no number"


def _table(one: ShownAnswer) -> str:
    """The numbers of all tokens, for those who don't point, or see no colours."""
    if not one.pieces:
        return ""
    text, shares = {piece.tokens.start: piece.text for piece in one.pieces}, _shares(one)
    names = [label for label, _ in _numbers(one, shares, 0)]
    head = "".join(f'<th scope="col">{_text(label)}</th>' for label in ("token", "text", *names))
    rows = []
    for t in range(one.n_tokens):
        own = _text(text[t]).replace("\n", "↵") if t in text else "″"
        cells = "".join(f"<td>{_text(value)}</td>" for _, value in _numbers(one, shares, t))
        rows.append(f'<tr><th scope="row">{t + 1}</th><td>{own}</td>{cells}</tr>')
    body = "\n".join(rows)
    return f'<details><summary>Numbers</summary><div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div></details>'


def _text(text: str) -> str:
    """A text as it may stand in a page, inside an attribute too."""
    return escape(text.translate(_VISIBLE))


def _lines(text: str) -> str:
    """A text whose line breaks are seen."""
    return _text(text).replace("\n", '<span class="nl" aria-hidden="true">↵</span>\n')
