"""Which tensors of a signal are a datamodule's features, and whether they fit together."""

from __future__ import annotations

from collections.abc import Sequence

from extract.errors import InputError, nearest
from extract.store.shards import Scope
from extract.store.store import Store


def feature_names(
    store: Store, signal: str, scope: Scope, positions: Sequence[str] | None, layers: Sequence[int] | None
) -> list[str]:
    """Keys ``layer/position`` of a signal of vectors at the wanted positions and layers, None for all of these.

    Raises:
        InputError: The store lacks the signal, a position or a layer, or the tensors are no vectors of one width.
    """
    names = chosen_keys(store, signal, scope, positions, layers)
    _check_shapes(store, signal, scope, names)
    return names


def chosen_keys(
    store: Store,
    signal: str,
    scope: Scope,
    positions: Sequence[str] | None,
    layers: Sequence[int] | None,
    option: str = "positions",
) -> list[str]:
    """Keys ``layer/position`` of a signal at the wanted positions and layers, None for all of these.

    Args:
        store: The store.
        signal: Name of the signal.
        scope: What its rows are.
        positions: Wanted positions.
        layers: Wanted layers.
        option: What the positions were given as, for the message.

    Raises:
        InputError: The store lacks the signal, a position or a layer.
    """
    held, path = store.signals.keys(signal, scope), str(store.path)
    there, numbers = sorted({name.split("/")[1] for name in held}), [int(name.split("/")[0]) for name in held]
    for position in positions or []:
        if position not in there:
            raise InputError(
                f"Expected `{option}` to be among {', '.join(there)}, which {path!r} holds of {signal!r}, but got {position!r}.{nearest(position, there) or ' Choose one of them.'}"
            )
    for layer in layers or []:
        if layer not in numbers:
            raise InputError(
                f"Expected `layers` to be among those {path!r} holds ({min(numbers)} to {max(numbers)}), but got {layer}. Choose one of them."
            )
    names = [
        name
        for name in held
        if (positions is None or name.split("/")[1] in positions)
        and (layers is None or int(name.split("/")[0]) in layers)
    ]
    if not names:
        raise InputError(
            f"Expected `layers` to be among those that {path!r} holds of {', '.join(positions or there)}, but got {layers}. Leave it out, or give null, for all."
        )
    return names


def _check_shapes(store: Store, signal: str, scope: Scope, names: Sequence[str]) -> None:
    """Refuse features that are no vectors of one width, which can't stand in one tensor."""
    layout = store.signals.layout(signal, scope)
    first = list(layout[names[0]].shape)
    for name in names:
        shape = list(layout[name].shape)
        if len(shape) != 1 or shape != first:
            raise InputError(
                f"Expected the signal {signal!r} of {str(store.path)!r} to be one vector a row, of the width of {names[0]!r}, which has the shape {first}, but {name!r} has {shape}. Choose other `layers` or `positions`."
            )
