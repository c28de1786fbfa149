"""The curve along one answer: the entropy at every token, with what else is known of it below, and the tokens' texts."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import Tensor

from extract.errors import InputError
from extract.viewing.answers import ShownAnswer

#: Most tokens beside each other; a longer answer goes on below.
WIDEST = 56
#: Most tokens of a picture, which is then some 8,000 pixels high.
LONGEST = 800
_INK, _GREY, _ORANGE, _BLUE = "#222222", "#8a8a8a", "#c75000", "#2463a8"
_LONGEST_LABEL = 16
#: Families that are asked for what matplotlib's own font does not have.
_OTHER_SCRIPTS = ("Noto Sans CJK SC", "Noto Sans CJK JP", "PingFang SC", "Hiragino Sans", "Microsoft YaHei", "Malgun Gothic", "Noto Sans Devanagari", "Arial Unicode MS")  # fmt: skip


def entropy_curve(one: ShownAnswer, model: str, influence: str | None = None) -> Any:
    """A figure of H in nats over the tokens of an answer, 1 − p_max below it, and the tokens' shares of the influence.

    Args:
        one: The answer.
        model: Name of the model, for the title.
        influence: Name of the influence, where one is shown.

    Raises:
        InputError: The answer has no tokens, or no numbers.
    """
    import matplotlib
    from matplotlib.figure import Figure

    if not one.n_tokens or not bool(one.entropy.isfinite().all()):
        raise InputError(
            f"Expected an answer with tokens that have entropies, but answer {one.sample} to {one.question_id!r} has none. Choose another one."
        )
    if one.n_tokens > LONGEST:
        raise InputError(
            f"Expected an answer of at most {LONGEST} tokens for a picture, but answer {one.sample} to {one.question_id!r} has {one.n_tokens}. Give --out answers.html for a page."
        )
    curves = [("entropy\n(nats)", one.entropy, _ORANGE, 2.0), ("1 − pₘₐₓ", one.one_minus_pmax, _INK, 1.0)]
    if one.influence is not None and influence is not None:
        curves.append(("share of\ninfluence", one.influence / one.influence.sum(), _BLUE, 1.0))
    n_rows = -(-one.n_tokens // WIDEST)
    width = -(-one.n_tokens // n_rows)
    labels = _labels(one)
    heights = [height for *_, height in curves]
    style: Any = {
        "font.family": _fonts(),
        "font.size": 9,
        "text.parse_math": False,
        "axes.edgecolor": _INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(max(4.2, 0.9 + 0.17 * width), (1.0 + 0.62 * sum(heights)) * n_rows + 0.5), dpi=160, layout="constrained")  # fmt: skip
        rows = figure.subfigures(n_rows, 1, squeeze=False)[:, 0]
        for number, row in enumerate(rows):
            axes = row.subplots(len(curves), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
            places = range(number * width, min((number + 1) * width, one.n_tokens))
            for axis, (name, values, colour, _) in zip(axes, curves, strict=True):
                _draw(axis, places, values, colour, bars=name.startswith("share"))
                axis.set_ylabel(name, fontsize=8.5)
                axis.set_xlim(places.start - 0.7, places.start + width - 0.3)
            for axis in axes[:-1]:
                axis.xaxis.set_visible(False)  # a tick takes as long to draw as all of a curve
            axes[-1].set_xticks(list(places), [labels[t] for t in places], rotation=90, fontsize=8)
            row.align_ylabels(axes)
        figure.suptitle(_title(one, model, influence), fontsize=9.5)
    return figure


def _draw(axis: Any, places: range, values: Tensor, colour: str, bars: bool) -> None:
    """One curve over some of the tokens, on the scale of the whole answer."""
    values = values.nan_to_num(0.0)  # an influence of 0 throughout has no shares
    own = values[places.start : places.stop].tolist()
    if bars:
        axis.bar(list(places), own, width=0.75, color=colour)
        axis.axhline(1 / len(values), color=_GREY, lw=1, ls="--")
    else:
        axis.fill_between(list(places), own, color=colour, alpha=0.14, lw=0)
        axis.plot(list(places), own, color=colour, lw=1.3, marker="o", ms=2.6)
    top = float(values.max())
    axis.set_ylim(0, 1.12 * top if top > 0 else 1.0)
    axis.tick_params(axis="y", labelsize=8)
    axis.tick_params(axis="x", length=2)
    axis.yaxis.set_major_locator(_ticks())


def _ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=3, min_n_ticks=2)


def _title(one: ShownAnswer, model: str, influence: str | None) -> str:
    question = " ".join(one.question.split())
    question = question if len(question) <= 70 else question[:69] + "…"
    below = f"\ndashed: 1/n; influence: {influence}" if influence is not None else ""
    return drawable(f"{question}\nanswer {one.sample} of {model}: {one.verdict}, {one.n_tokens} tokens{below}")


def _labels(one: ShownAnswer) -> list[str]:
    """Text of each token; of tokens that share a character the first has it."""
    labels = [""] * one.n_tokens
    for piece in one.pieces:
        text = piece.text.strip(" ").replace("\n", "↵") or "␣"
        labels[piece.tokens.start] = drawable(text if len(text) <= _LONGEST_LABEL else text[: _LONGEST_LABEL - 1] + "…")
    return labels


def drawable(text: str) -> str:
    """A text with `\ufffd` for the characters that no font of the pictures has."""
    return "".join(letter if letter == "\n" or ord(letter) in _letters() else "\ufffd" for letter in text)


@cache
def _fonts() -> list[str]:
    """Matplotlib's own font, and those of other scripts that this machine has."""
    from matplotlib.font_manager import get_font_names

    return ["DejaVu Sans", *sorted(set(_OTHER_SCRIPTS) & set(get_font_names()), key=_OTHER_SCRIPTS.index)]


@cache
def _letters() -> frozenset[int]:
    """Code points that one of the fonts has."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return frozenset(
        code for name in _fonts() for code in get_font(findfont(FontProperties(family=name))).get_charmap()
    )
