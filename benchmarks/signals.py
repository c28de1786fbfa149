"""Make the pages and plots in docs/signals/ for two question sets.

The sets are 200 questions from `facts` and, if ../shared/data/qa_wikidata.json exists, 100 from `qa_wikidata`. Each
question has 4 answers, from which all signals are read.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks import wikidata
from benchmarks.quality import recipe_of
from benchmarks.result import report
from extract.commands import make_store, read
from extract.recipe import StoreRecipe
from extract.signals.registry import SIGNALS
from probes.commands import pictures, signals

DOCS = Path(__file__).parents[1] / "docs"
FACTS, WIKIDATA = "stores/signals-facts", "stores/signals-qa_wikidata"
ANSWER_LAYERS = (6, 12, 18, 24, 30)
#: Fraction of test questions. Nothing is trained.
TEST_FRACTION = 0.4


def make() -> dict[str, str]:
    """Make the stores, and return their folders, keyed by question set."""
    recipe = recipe_of("brief")
    make_store(FACTS, StoreRecipe(**{**vars(recipe), "n_questions": 200, "k": 4}), "short", ["hidden"])
    if not wikidata.DATA.is_file():
        return {"facts": FACTS}
    wikidata.make(WIKIDATA, k=4, n_questions=100)
    return {"facts": FACTS, "qa_wikidata": WIKIDATA}


def read_anew(store: str) -> float:
    """Delete all answer signals, and compute them again. Return the computing time in seconds."""
    for signal in SIGNALS:
        shutil.rmtree(Path(store) / "signals" / signal / "sample", ignore_errors=True)
    start = time.perf_counter()
    read(store, list(SIGNALS), "sample", ANSWER_LAYERS)
    return time.perf_counter() - start


def keep_picture(picture: Path, name: str) -> None:
    """Save a plot in docs/signals/ with 256 colours, which reduces the file size to a third."""
    with Image.open(picture) as image:
        few = image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(DOCS / "signals" / f"{name}-{picture.name}", optimize=True)


def keep(folder: Path, name: str) -> None:
    """Save a page and its plots in docs/signals/."""
    kept = DOCS / "signals"
    kept.mkdir(exist_ok=True)
    for page in folder.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        for picture in sorted(folder.rglob("*.png")):
            keep_picture(picture, name)
            text = text.replace(str(picture.relative_to(folder)), f"{name}-{picture.name}")
        (kept / f"{name}.md").write_text(text, encoding="utf-8")


def main() -> None:
    """Run the benchmark, save its pages and plots, and print its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep_read", action="store_true", help="do not read the signals again")
    options = parser.parse_args()
    reading, grid = 0.0, 0.0
    chosen: dict[str, Any] = {}
    for name, store in make().items():
        if not options.keep_read:
            reading += read_anew(store)
        with tempfile.TemporaryDirectory() as scratch:
            start = time.perf_counter()
            folder = signals(store, str(Path(scratch) / "grid"), test_fraction=TEST_FRACTION)
            grid += time.perf_counter() - start
            keep(folder, name)
            chosen[name] = json.loads((folder / "report.json").read_text(encoding="utf-8"))["chosen"]
            pictures(store, str(Path(scratch) / "pictures"))
            for picture in sorted(Path(scratch, "pictures").rglob("*.png")):
                keep_picture(picture, name)
    report(
        "signals",
        {"reading": reading, "grid": grid},
        "reading ≤ 600 s, the grid ≤ 180 s",
        reading <= 600 and grid <= 180,
        chosen=chosen,
    )


if __name__ == "__main__":
    main()
