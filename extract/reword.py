"""``python -m extract reword``: write rewordings of a store's questions to a file."""

import json
from pathlib import Path

from extract.errors import InputError
from extract.questions.rewording import reworded
from extract.store.files import replace_file
from extract.store.store import Store


def reword(store: str, out: str, n: int = 6, seed: int = 0) -> None:
    """Write rewordings of a store's questions to a file.

    To use the file, sample answers to its questions, and pass the resulting store to `train.py --data.broader`.

    Args:
        store: Folder of the store.
        out: Path of the new .jsonl file.
        n: Number of rewordings per question.
        seed: Seed for choosing the rewordings.

    Raises:
        InputError: If `out` exists or is not a .jsonl file, or if a question is private.
    """
    path = Path(out)
    if path.suffix != ".jsonl" or path.exists():
        raise InputError(f"Expected `out` to be the path of a new .jsonl file, but got {out!r}. Use a different path.")
    questions = list(Store.open(store).questions)
    if any(question.private for question in questions):
        raise InputError(
            f"Expected questions that may be written to a file, but the questions in {store!r} are private. Use a "
            "different store."
        )
    found = reworded(questions, n, seed)
    records = [{name: value for name, value in new.record().items() if name != "dataset"} for new in found]
    lines = [
        json.dumps({name: value for name, value in record.items() if value}, ensure_ascii=False) for record in records
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, ("\n".join(lines) + "\n").encode())
    print(f"Wrote {len(found)} rewordings of {len(questions)} questions to {out}.")
