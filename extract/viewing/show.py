"""The `show` command, which writes a page of answers or a plot of one answer."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from extract.errors import InputError
from extract.models.embedded import EMBEDDED_MODEL, embedded_model_folder
from extract.models.loading import tokenizer_hash
from extract.models.store_model import model_source
from extract.store.files import replace_file
from extract.store.store import Store
from extract.text import one_line
from extract.viewing.answers import read_answers

_PICTURES = (".png", ".pdf", ".svg")


def show(
    store: str,
    questions: Sequence[str | int] | None = None,
    samples: Sequence[int] | None = None,
    out: str = "answers.html",
    grader: str | None = None,
    influence: str | None = None,
    model: str | None = None,
) -> Path:
    """Show answers on a page with shaded tokens, or plot the token entropies of one answer.

    Args:
        store: Folder of the store. The `tokens` signal must have been read for its answers.
        questions: Ids of the questions to show. By default, a few questions, each with a right and a wrong answer.
        samples: 0-based indices of the answers to show. By default, all answers to the given questions.
        out: Output file: .html for a page of answers, or .png, .pdf or .svg for a plot of one answer.
        grader: Grader whose grades are shown. By default, the store's only grader.
        influence: Token weights to show as influence. By default, `norm_element_mean_token` if it was read.
        model: Hub id or folder of the store's model. Required if the store's model was loaded from a folder. Only the
            tokenizer is loaded.

    Returns:
        Path to the output file.

    Raises:
        InputError: If an id, a sample or the file suffix is unknown, if a signal was not read, or if the tokenizer
            differs from the store's.
    """
    path, opened = Path(out), Store.open(store)
    if path.suffix not in (".html", *_PICTURES):
        raise InputError(
            f"Expected `out` to end in .html for a page, or in one of {', '.join(_PICTURES)} for a plot of one answer, "
            f"but got {out!r}. Pass, for example, --out answers.html."
        )
    named = None if questions is None else [str(id_) for id_ in questions]  # YAML reads some ids as numbers
    answers, key = read_answers(opened, lambda: _tokenizer_of(opened, model), named, samples, grader, influence)
    if path.suffix == ".html":
        from extract.viewing.html import page

        name = f"{opened.path.resolve().name}, identity {opened.sha256[:12]}"
        content = page(answers, opened.model_id, name, key).encode()
    else:
        from extract.viewing.curve import entropy_curve

        if len(answers) != 1:
            raise InputError(
                f"Expected a single answer for a plot, but got {len(answers)}. To write a page with all answers, pass "
                f"--out answers.html. To plot one answer, pass --questions '[{answers[0].question_id}]' "
                f"--samples '[{answers[0].sample}]'."
            )
        drawn = io.BytesIO()
        entropy_curve(answers[0], opened.model_id, key).savefig(drawn, format=path.suffix[1:])
        content = drawn.getvalue()
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)
    print(f"{len(answers)} answer{'s' * (len(answers) != 1)}: {path}")
    return path


def _tokenizer_of(store: Store, model: str | None) -> Any:
    """Load the tokenizer of a store's model."""
    from transformers import AutoTokenizer

    expected, place = store.model, model_source(store, model)
    try:
        source = str(embedded_model_folder()) if place == EMBEDDED_MODEL else place
        tokenizer = AutoTokenizer.from_pretrained(source, revision=expected["revision"])
    except (OSError, ValueError) as error:
        raise InputError(
            f"Expected `model` to be a Hub id or a folder that contains the tokenizer of {expected['id']!r}, but no "
            f"tokenizer could be loaded from {place!r}. Pass a different --model. The error is: {one_line(error)}"
        ) from error
    if tokenizer_hash(tokenizer) != expected["tokenizer"]:
        raise InputError(
            f"Expected `model` to have the tokenizer of {expected['id']!r}, but {place!r} has a different tokenizer. "
            f"The answers in {str(store.path)!r} come from {expected['id']!r}. Pass that model with --model."
        )
    return tokenizer
