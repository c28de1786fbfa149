"""Open the tested system and the references, and check that they can be compared."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from applications.background.checks import (
    check_full_distribution,
    check_policies,
    check_random_numbers,
    choose_unit,
)
from applications.background.outputs import Source, Unit, of_lists, of_store, prompts_of, read_json
from applications.background.variability import Counted
from applications.stores import open_stores
from extract.errors import InputError

#: Minimum number of prompts.
LEAST_PROMPTS = 5


@dataclass(frozen=True)
class Systems:
    """Outputs of the tested system and of the references for the same prompts.

    Attributes:
        prompts: Texts of the prompts, or question ids if any system is a store.
        tested: Outputs of the tested system, [prompt].
        references: For each reference, a dict from temperature (ascending) to outputs [prompt].
        unit: Unit in which the outputs are compared, ``tokens`` or ``words``.
        limit: Maximum number of tokens per output.
        n_unshared: Number of prompts that are left out because some systems lack them.
    """

    prompts: list[str]
    tested: list[Counted]
    references: dict[str, dict[float, list[Counted]]]
    unit: Unit
    limit: int
    n_unshared: int

    @property
    def n(self) -> int:
        """Minimum number of outputs per prompt over all systems."""
        grids = (outputs for grid in self.references.values() for outputs in grid.values())
        return min(one.n for outputs in (self.tested, *grids) for one in outputs)


References = Mapping[str, Mapping[float, Source]]


def open_references(paths: Sequence[str]) -> dict[str, dict[float, Source]]:
    """Open temperature grids, or JSON files in the format of Messina and Scotta.

    Returns nested dicts of sources. The keys are the reference name and the temperature (ascending).
    """
    named: list[tuple[str, dict[float, Source]]] = []
    for path in paths:
        if path.endswith(".json"):
            named += _read_references(path)
        else:
            stores = open_stores(path)
            check_full_distribution(next(iter(stores.values())))
            named.append((Path(path).resolve().name, {t: of_store(store) for t, store in stores.items()}))
    names = [name for name, _ in named]
    if not named or len(set(names)) < len(names):
        raise InputError(
            f"Expected `references` to be temperature grids with distinct names, but got {', '.join(names) or 'none'}. "
            "Make a grid with `python -m extract sample --policy.temperature 0:1:0.05`."
        )
    for name, grid in named:
        if len(grid) < 2:
            raise InputError(
                f"Expected the reference {name!r} to have at least two temperatures, but it has only one, "
                f"{min(grid):g}. Sample a grid with `python -m extract sample --policy.temperature 0:1:0.05`."
            )
    return dict(named)


def _read_references(path: str) -> Iterator[tuple[str, dict[float, Source]]]:
    """Read references from a JSON file in the format of Messina and Scotta."""
    content = read_json(Path(path))
    try:
        for name, grid in content.items():
            read = {float(t): of_lists(f"{path}, {name} at {t}", one) for t, one in grid.items()}
            if len(read) < len(grid) or not all(0 <= t < math.inf for t in read):
                raise ValueError
            yield name, dict(sorted(read.items()))
    except (AttributeError, ValueError) as error:
        raise InputError(
            f"Expected {path!r} to contain outputs grouped by model, temperature and prompt, but it has a different "
            "format or repeats a temperature. Pass the folder of a temperature grid."
        ) from error


def read_systems(tested: Source, references: References, unit: Unit | None, shared: bool) -> Systems:
    """Read all systems' outputs, and check that the systems can be compared.

    All outputs are read in the same unit (see `choose_unit`). If the prompts differ and `shared` is True, only the
    shared prompts are used.
    """
    sources = [tested, *(source for grid in references.values() for source in grid.values())]
    stores = [source.store for source in sources if source.store]
    check_policies(stores)
    if tested.store:
        check_random_numbers(tested.store, stores[1:])
    unit = choose_unit(unit, sources)
    read = [source.read(unit) for source in sources]
    prompts, n_unshared = _common_prompts(read, shared)
    counted = [[Counted.of(outputs[prompt]) for prompt in prompts] for outputs in read]
    for source, outputs in zip(sources, counted, strict=True):
        if n_few := sum(one.n < 2 for one in outputs):
            raise InputError(
                f"Expected at least 2 outputs for each prompt in {source.name!r}, but {n_few} of {len(prompts)} "
                "prompts have fewer. Sample more outputs."
            )
    longest = max(len(text) for outputs in counted for one in outputs for text in one.texts)
    limits = (store.identity["policy"]["decoding"]["max_new_tokens"] for store in stores)
    limit = next((one for one in limits if one is not None), longest)  # imported logs may lack the limit
    if unit == "tokens" and longest > limit:
        raise InputError(
            f"Expected outputs of at most {limit} tokens, the token limit of the stores, but one output has {longest}. "
            "Use the same token limit for all systems."
        )
    ids = {prompt: id_ for store in stores[:1] for id_, prompt in prompts_of(store).items()}
    grids = iter(counted[1:])
    return Systems(
        prompts=[ids.get(prompt, prompt) for prompt in prompts],
        tested=counted[0],
        references={name: {t: next(grids) for t in grid} for name, grid in references.items()},
        unit=unit,
        limit=max(limit, 1),
        n_unshared=n_unshared,
    )


def _common_prompts(read: Sequence[Mapping[str, object]], shared: bool) -> tuple[list[str], int]:
    """Return the prompts that all systems have, and the number of prompts that only some have."""
    common = [prompt for prompt in read[0] if all(prompt in outputs for outputs in read)]
    n_unshared = len({prompt for outputs in read for prompt in outputs}) - len(common)
    if n_unshared and not shared:
        raise InputError(
            f"Expected all systems to have outputs for the same prompts, but only {len(common)} of "
            f"{len(common) + n_unshared} prompts are shared. Pass --shared true to use only those."
        )
    if len(common) < LEAST_PROMPTS:
        raise InputError(
            f"Expected at least {LEAST_PROMPTS} prompts for the bootstrap, but got {len(common)}. Use about 30 prompts."
        )
    return common, n_unshared
