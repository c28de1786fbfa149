"""Plot of one answer."""

from functools import cache
from typing import Any

from torch import Tensor

from extract.errors import InputError
from extract.viewing.answers import ShownAnswer

WIDEST = 56
#: Maximum number of tokens in a plot. A plot of this many tokens is about 8,000 pixels high.
LONGEST = 800
_INK, _GREY, _ORANGE, _BLUE = "#222222", "#8a8a8a", "#c75000", "#2463a8"
#: Font families for scripts that matplotlib's default font lacks.
_OTHER_SCRIPTS = (
    *("Noto Sans CJK SC", "Noto Sans CJK JP", "PingFang SC", "Hiragino Sans", "Microsoft YaHei", "Malgun Gothic"),
    *("Noto Sans Devanagari", "Arial Unicode MS"),
)


def entropy_curve(answer: ShownAnswer, model: str, influence: str | None = None) -> Any:
    """Plot the entropy of each token in nats.

    The panel below shows 1 − p_max, where p_max is the largest probability in a token's distribution. If `influence`
    is given, the last panel shows each token's share of the total influence. `model` and `influence` are names to show
    in the title.

    Raises:
        InputError: If the answer has no tokens, more than `LONGEST` tokens, or missing entropies.
    """
    import matplotlib
    from matplotlib.figure import Figure

    name = f"answer {answer.sample} to {answer.question_id!r}"
    if not answer.n_tokens or not bool(answer.entropy.isfinite().all()):
        raise InputError(
            f"Expected {name} to have an entropy for every token, but some are missing. Choose a different answer."
        )
    if answer.n_tokens > LONGEST:
        raise InputError(
            f"Expected at most {LONGEST} tokens for a plot, but {name} has {answer.n_tokens}. "
            "Pass --out answers.html to write a page instead."
        )
    curves = [("entropy\n(nats)", answer.entropy, _ORANGE, 2.0), ("1 − pₘₐₓ", answer.one_minus_pmax, _INK, 1.0)]
    if answer.influence is not None and influence is not None:
        curves.append(("share of\ninfluence", answer.influence / answer.influence.sum(), _BLUE, 1.0))
    n_rows = -(-answer.n_tokens // WIDEST)
    width = -(-answer.n_tokens // n_rows)
    labels = [""] * answer.n_tokens  # if tokens share a character, the first one gets the label
    for piece in answer.pieces:
        text = piece.text.strip(" ").replace("\n", "↵") or "␣"
        labels[piece.tokens.start] = drawable(_shortened(text, 16))
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
        size = max(4.2, 0.9 + 0.17 * width), (1.0 + 0.62 * sum(heights)) * n_rows + 0.5
        figure = Figure(figsize=size, dpi=160, layout="constrained")
        for number, row in enumerate(figure.subfigures(n_rows, 1, squeeze=False)[:, 0]):
            axes = row.subplots(len(curves), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
            places = range(number * width, min((number + 1) * width, answer.n_tokens))
            for axis, (label, values, colour, _) in zip(axes, curves, strict=True):
                _draw(axis, places, values, colour, bars=label.startswith("share"))
                axis.set_ylabel(label, fontsize=8.5)
                axis.set_xlim(places.start - 0.7, places.start + width - 0.3)
            for axis in axes[:-1]:
                axis.xaxis.set_visible(False)  # drawing a tick takes as long as drawing a curve
            axes[-1].set_xticks(list(places), [labels[t] for t in places], rotation=90, fontsize=8)
            row.align_ylabels(axes)
        title = f"{_shortened(' '.join(answer.question.split()), 70)}\nanswer {answer.sample} of {model}: "
        below = f"\ndashed: 1/n; influence: {influence}" if influence is not None else ""
        figure.suptitle(drawable(f"{title}{answer.verdict}, {answer.n_tokens} tokens{below}"), fontsize=9.5)
    return figure


def _draw(axis: Any, places: range, values: Tensor, colour: str, bars: bool) -> None:
    """Draw the values of the tokens at `places` as bars or a curve. The y-axis covers the values of all tokens."""
    values = values.nan_to_num(0.0)  # NaN if all weights are 0
    own = values[places.start : places.stop].tolist()
    if bars:
        axis.bar(places, own, width=0.75, color=colour)
        axis.axhline(1 / len(values), color=_GREY, lw=1, ls="--")
    else:
        axis.fill_between(places, own, color=colour, alpha=0.14, lw=0)
        axis.plot(places, own, color=colour, lw=1.3, marker="o", ms=2.6)
    top = float(values.max())
    axis.set_ylim(0, 1.12 * top if top > 0 else 1.0)
    axis.tick_params(axis="y", labelsize=8)
    axis.tick_params(axis="x", length=2)
    axis.locator_params(axis="y", nbins=3, min_n_ticks=2)


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def drawable(text: str) -> str:
    """Replace each character that is missing from all available fonts with `\ufffd`."""
    return "".join(letter if letter == "\n" or ord(letter) in _letters() else "\ufffd" for letter in text)


@cache
def _fonts() -> list[str]:
    from matplotlib.font_manager import get_font_names

    return ["DejaVu Sans", *sorted(set(_OTHER_SCRIPTS) & set(get_font_names()), key=_OTHER_SCRIPTS.index)]


@cache
def _letters() -> frozenset[int]:
    """Return the code points that the available fonts cover."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    fonts = [get_font(findfont(FontProperties(family=name))) for name in _fonts()]
    return frozenset(code for font in fonts for code in font.get_charmap())
