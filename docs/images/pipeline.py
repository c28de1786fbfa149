"""Draws pipeline.png, the figure at the top of the README: `python docs/images/pipeline.py`."""

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

INPUT, MODEL = ("#f6f8fa", "#afb8c1"), ("#ddf4ff", "#54aeff")
DATA, RESULT = ("#fff8c5", "#d4a72c"), ("#dafbe1", "#4ac26b")
#: Left, bottom, width, height, colours, title, text.
BOXES = [
    (0.0, 1.7, 1.5, 0.9, INPUT, "Questions", "with reference\nanswers"),
    (2.0, 1.7, 1.6, 0.9, MODEL, "Sample", "k answers\nto each question"),
    (4.1, 1.7, 1.6, 0.9, MODEL, "Grade", "right, wrong\nor unknown"),
    (2.0, 0.0, 3.7, 0.9, MODEL, "Read signals", "hidden states, entropy profiles,\nattention rollout, in one pass"),
    (6.3, 0.85, 1.5, 0.9, DATA, "Store", "Parquet and\nsafetensors"),
    (8.4, 1.7, 2.2, 0.9, RESULT, "Train a probe", "and test it: AUROC,\nBrier score, calibration"),
    (8.4, 0.0, 2.2, 0.9, RESULT, "Attach the probe", "a confidence with\nevery answer"),
]
ARROWS = [
    [(1.5, 2.15), (2.0, 2.15)],
    [(3.6, 2.15), (4.1, 2.15)],
    [(2.8, 1.7), (2.8, 0.9)],
    [(5.7, 2.15), (6.0, 2.15), (6.0, 1.45), (6.3, 1.45)],
    [(5.7, 0.45), (6.0, 0.45), (6.0, 1.15), (6.3, 1.15)],
    [(7.8, 1.3), (8.1, 1.3), (8.1, 2.15), (8.4, 2.15)],
    [(9.5, 1.7), (9.5, 0.9)],
]

figure, axes = plt.subplots(figsize=(10.8, 2.9))
for left, bottom, width, height, (fill, edge), title, text in BOXES:
    axes.add_patch(FancyBboxPatch((left, bottom), width, height, "round,pad=0,rounding_size=0.08", fc=fill, ec=edge))
    axes.text(left + width / 2, bottom + 0.75 * height, title, ha="center", va="center", weight="bold", size=11)
    axes.text(left + width / 2, bottom + 0.34 * height, text, ha="center", va="center", size=8.5, color="#424a53")
for *corners, last in ARROWS:
    axes.plot(*zip(*corners, last, strict=True), color="#57606a", lw=1.2, solid_capstyle="butt", zorder=0)
    arrow = {"arrowstyle": "-|>", "color": "#57606a", "lw": 1.2, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", last, corners[-1], arrowprops=arrow)
axes.set(xlim=(-0.15, 10.75), ylim=(-0.15, 2.75), aspect="equal")
axes.axis("off")
figure.savefig(Path(__file__).with_suffix(".png"), dpi=150, bbox_inches="tight", pad_inches=0.05, facecolor="white")
