"""What a file of a signal or of an asked table says that it is of, so that no other file can stand in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from extract.store.files import Damaged, is_finished, read_voucher
from extract.store.samples import Answers
from extract.store.shards import Part, Place


def stamp_of(store: Answers, place: Place, path: Path, **what: Any) -> dict[str, Any]:
    """What a file has to be of: the store's identity, `what` it holds, its block, and the very answers of its part.

    Answers that were lost and drawn again elsewhere may differ, and then what was read of them is of no use.

    Args:
        store: The store.
        place: Block or part.
        path: The file, for the message.
        **what: For example ``signal="hidden"``.

    Raises:
        Damaged: There are no answers of the part.
    """
    if not isinstance(place, Part):
        return {"identity": store.sha256, **what, "block": place}
    samples = store.samples_file(place)
    if not is_finished(samples):
        raise Damaged(path, "the store has no such part of the samples")
    of = {"identity": store.sha256, **what, "block": place.block, "scope": "sample"}
    return {**of, "part": [place.start, place.stop], "samples": read_voucher(samples).sha256}
