"""Which tensors of a signal are a datamodule's features, and whether they fit together."""

from __future__ import annotations

from collections.abc import Sequence

from extract.errors import InputError
from extract.parts import Scope
from extract.store import Store


def feature_names(
    store: Store, signal: str, scope: Scope, positions: Sequence[str], layers: Sequence[int] | None
) -> list[str]:
    """Keys ``layer/position`` of a signal at the wanted positions and layers, None for all of these.

    Raises:
        InputError: The store lacks the signal, a position or a layer, or the tensors are no vectors of one width.
    """
    held, path = store.signal_keys(signal, scope), str(store.path)
    for position in positions:
        if not any(name.endswith(f"/{position}") for name in held):
            there = sorted({name.split("/")[1] for name in held})
            raise InputError(
                f"Expected `positions` to be among {', '.join(there)}, which {path!r} holds, but got {position!r}. Choose one of them."
            )
    for layer in layers or []:
        if not any(name.startswith(f"{layer}/") for name in held):
            raise InputError(
                f"Expected `layers` to be among those {path!r} holds (0 to {max(int(name.split('/')[0]) for name in held)}), but got {layer}. Choose one of them."
            )
    names = [
        name
        for name in held
        if name.split("/")[1] in positions and (layers is None or int(name.split("/")[0]) in layers)
    ]
    if not names:
        raise InputError(
            f"Expected `layers` to be among those that {path!r} holds of {', '.join(positions)}, but got {layers}. Leave it out, or give null, for all."
        )
    _check_shapes(store, signal, scope, names)
    return names


def _check_shapes(store: Store, signal: str, scope: Scope, names: Sequence[str]) -> None:
    """Refuse features that are no vectors of one width, which can't stand in one tensor."""
    layout = store.layout(signal, scope)
    first = list(layout[names[0]].shape)
    for name in names:
        shape = list(layout[name].shape)
        if len(shape) != 1 or shape != first:
            raise InputError(
                f"Expected the signal {signal!r} of {str(store.path)!r} to be one vector a row, of the width of {names[0]!r}, which has the shape {first}, but {name!r} has {shape}. Choose other `layers` or `positions`."
            )
