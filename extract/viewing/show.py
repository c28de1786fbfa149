"""The command `show`: a page of answers, or a picture of the entropy along one answer."""

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
    """Show answers token by token: a page shaded by entropy and influence, or the entropy curve of one answer.

    Args:
        store: Folder of the store, with the signal `tokens` of its answers.
        questions: Question ids; null selects a few, with a right and a wrong answer each.
        samples: Sample indices of each question, from 0; null uses all samples of named questions.
        out: Output file: a page (.html), or a picture of one answer (.png, .pdf, .svg).
        grader: Grader of the answers; null uses the only one.
        influence: Weights of the tokens, such as norm_element_mean_token of the rollout; null uses these if they
            were read.
        model: Path of the store's model if it was loaded from a folder. Only its tokenizer is loaded.

    Returns:
        The output file.

    Raises:
        InputError: If an id, sample or suffix is unknown, a signal was not read, or the tokenizer differs.
    """
    path, opened = Path(out), Store.open(store)
    if path.suffix not in (".html", *_PICTURES):
        raise InputError(
            f"Expected `out` to end in .html for a page, or in {', '.join(_PICTURES)} for a picture of one answer, "
            f"but got {out!r}. For example --out answers.html"
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
                f"Expected one answer for a picture, but got {len(answers)}. Name it, for example --questions "
                f"'[{answers[0].question_id}]' --samples '[{answers[0].sample}]', or give --out answers.html."
            )
        drawn = io.BytesIO()
        entropy_curve(answers[0], opened.model_id, key).savefig(drawn, format=path.suffix[1:])
        content = drawn.getvalue()
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, content)
    print(f"{len(answers)} answer{'s' * (len(answers) != 1)}: {path}")
    return path


def _tokenizer_of(store: Store, model: str | None) -> Any:
    """The tokenizer of a store's model, without its weights."""
    from transformers import AutoTokenizer

    expected, place = store.model, model_source(store, model)
    try:
        source = str(embedded_model_folder()) if place == EMBEDDED_MODEL else place
        tokenizer = AutoTokenizer.from_pretrained(source, revision=expected["revision"])
    except (OSError, ValueError) as error:
        raise InputError(
            f"Expected `model` to be a Hub id or a folder with the tokenizer of {expected['id']!r}, but {place!r} "
            f"can't be loaded: {one_line(error)}"
        ) from error
    if tokenizer_hash(tokenizer) != expected["tokenizer"]:
        raise InputError(
            f"Expected the tokenizer of {expected['id']!r}, which answered in {str(store.path)!r}, but {place!r} has "
            "another one. Give the model of the store by --model."
        )
    return tokenizer
