"""Open the tested system and the references, and check that they can be compared."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from applications.background.outputs import Source, Unit, of_lists, of_store, prompts_of, read_json
from applications.background.variability import Counted
from applications.stores import open_stores
from extract.errors import InputError
from extract.hashing import differences
from extract.store.store import Store

#: Minimum number of prompts, because intervals resample them.
LEAST_PROMPTS = 5
#: Decoding options that may differ between the tested system and a reference.
_FREE = ("temperature", "top_p", "top_k", "seed")


@dataclass(frozen=True)
class Systems:
    """Outputs of the tested system and of the references to the same prompts.

    Attributes:
        prompts: Prompts, or the ids of their questions if the tested system or a reference is a store.
        tested: [prompt] outputs of the tested system.
        references: Outputs [prompt] of each reference, by name and temperature in ascending order.
        unit: Unit of the outputs.
        limit: Maximum number of tokens per output.
        n_unshared: Number of prompts that are left out, because not all systems have them.
    """

    prompts: list[str]
    tested: list[Counted]
    references: dict[str, dict[float, list[Counted]]]
    unit: Unit
    limit: int
    n_unshared: int

    @property
    def n(self) -> int:
        """Smallest number of outputs to a prompt in any system."""
        grids = (outputs for grid in self.references.values() for outputs in grid.values())
        return min(one.n for outputs in (self.tested, *grids) for one in outputs)


References = Mapping[str, Mapping[float, Source]]


def open_references(paths: Sequence[str]) -> dict[str, dict[float, Source]]:
    """Open references, by name and temperature in ascending order.

    Args:
        paths: Folders of temperature grids. Alternatively, JSON files in the format of the authors, with token ids by
            model, temperature and prompt.

    Raises:
        InputError: If a reference has fewer than two temperatures, two have the same name, or a store samples from a
            truncated distribution.
    """
    named: list[tuple[str, dict[float, Source]]] = []
    for path in paths:
        if path.endswith(".json"):
            named += _read_references(path)
        else:
            stores = open_stores(path)
            _check_full_distribution(next(iter(stores.values())))
            named.append((Path(path).resolve().name, {t: of_store(store) for t, store in stores.items()}))
    names = [name for name, _ in named]
    if not named or len(set(names)) < len(names):
        raise InputError(
            f"Expected `references` to be temperature grids with distinct names, but got {', '.join(names) or 'none'}. "
            "Make one with `python -m extract sample --policy.temperature 0:1:0.05`."
        )
    for name, grid in named:
        if len(grid) < 2:
            raise InputError(
                f"Expected the reference {name!r} to have several temperatures, but it has only {min(grid):g}. Sample "
                "a grid with `python -m extract sample --policy.temperature 0:1:0.05`."
            )
    return dict(named)


def _read_references(path: str) -> Iterator[tuple[str, dict[float, Source]]]:
    """Read references in the format of the authors."""
    content = read_json(Path(path))
    try:
        for name, grid in content.items():
            read = {float(t): of_lists(f"{path}, {name} at {t}", one) for t, one in grid.items()}
            yield name, dict(sorted(read.items()))
    except (AttributeError, ValueError) as error:
        raise InputError(
            f"Expected {path!r} to contain outputs by model, temperature and prompt, but it has another format. Pass "
            "the folder of a temperature grid."
        ) from error


def _check_full_distribution(store: Store) -> None:
    """Check that a reference samples from the model's full distribution."""
    decoding = store.identity["policy"]["decoding"]
    if decoding["top_p"] != 1 or decoding["top_k"] != 0:
        raise InputError(
            f"Expected the reference '{store.path}' to be sampled with top_p 1 and top_k 0, but got top_p "
            f"{decoding['top_p']} and top_k {decoding['top_k']}. A truncated distribution varies less at the same "
            "temperature. Sample the grid again."
        )


def read_systems(tested: Source, references: References, unit: Unit | None, shared: bool) -> Systems:
    """Read the outputs of all systems, and check that they can be compared.

    Args:
        tested: The tested system.
        references: The references, from `open_references`.
        unit: Unit of the outputs. See `choose_unit` for the default.
        shared: Whether to leave out the prompts that not all systems have. Otherwise, the prompts must be equal.

    Raises:
        InputError: If the systems have different prompts, prompt templates, tokenizers or token limits, there are too
            few prompts or outputs, or the tested store and a reference share their random numbers.
    """
    sources = [source for grid in references.values() for source in grid.values()]
    stores = [source.store for source in (tested, *sources) if source.store]
    _check_policies(stores)
    if tested.store:
        _check_random_numbers(tested.store, stores[1:])
    unit = choose_unit(unit, tested, sources)
    read = [source.read(unit) for source in (tested, *sources)]
    common = [prompt for prompt in read[0] if all(prompt in outputs for outputs in read)]
    n_unshared = len({prompt for outputs in read for prompt in outputs}) - len(common)
    if n_unshared and not shared:
        raise InputError(
            f"Expected all systems to have outputs for the same prompts, but only {len(common)} of "
            f"{len(common) + n_unshared} prompts are shared. Pass --shared true to use only these."
        )
    if len(common) < LEAST_PROMPTS:
        raise InputError(
            f"Expected at least {LEAST_PROMPTS} prompts, because intervals resample them, but got {len(common)}. Use "
            "about 30."
        )
    counted = [[Counted.of(outputs[prompt]) for prompt in common] for outputs in read]
    for source, outputs in zip((tested, *sources), counted, strict=True):
        if n_few := sum(one.n < 2 for one in outputs):
            raise InputError(
                f"Expected at least 2 outputs to each prompt in {source.name!r}, but {n_few} of {len(common)} prompts "
                "have fewer. Sample more outputs."
            )
    longest = max(len(text) for outputs in counted for one in outputs for text in one.texts)
    limits = [int(store.identity["policy"]["decoding"]["max_new_tokens"]) for store in stores]
    limit = limits[-1] if limits else longest
    if unit == "tokens" and longest > limit:
        raise InputError(
            f"Expected outputs of at most {limit} tokens, the token limit of the stores, but one has {longest}. Use "
            "the same token limit for all systems."
        )
    ids = {prompt: id_ for store in stores[:1] for id_, prompt in prompts_of(store).items()}
    grids = iter(counted[1:])
    return Systems(
        prompts=[ids.get(prompt, prompt) for prompt in common],
        tested=counted[0],
        references={name: {t: next(grids) for t in grid} for name, grid in references.items()},
        unit=unit,
        limit=max(limit, 1),
        n_unshared=n_unshared,
    )


def choose_unit(unit: Unit | None, tested: Source, references: Sequence[Source]) -> Unit:
    """Return the unit in which all outputs are available, by default tokens if all tokenizers are known to be equal.

    Raises:
        InputError: If outputs are not available in the unit, or tokenizers are known to differ.
    """
    sources = (tested, *references)
    known = {source.tokenizer for source in sources}
    if unit is None:
        unit = "tokens" if len(known) == 1 and None not in known else "words"
    if unit == "tokens" and len(known - {None}) > 1:
        other = next(source for source in sources if source.tokenizer not in (None, references[0].tokenizer))
        raise InputError(
            f"Expected all systems to have the same tokenizer, but {other.name!r} and {references[0].name!r} have "
            "different ones. Pass --unit words."
        )
    if without := next((source for source in sources if unit not in source.units), None):
        raise InputError(
            f"Expected the outputs as {unit}, but {without.name!r} has only {without.units[0]}. "
            + (
                "To compare token ids without checking that they are of the same tokenizer, pass --unit tokens."
                if unit == "words"
                else "Pass --unit words, or use a file with token ids of the same tokenizer."
            )
        )
    return unit


def _check_policies(stores: Sequence[Store]) -> None:
    """Check that all stores have the same prompt template, token limit and stop strings."""

    def fixed(store: Store) -> dict[str, object]:
        decoding: dict[str, object] = store.identity["policy"]["decoding"]
        return {name: value for name, value in decoding.items() if name not in _FREE}

    for store in stores[1:]:
        if different := "; ".join(differences(fixed(store), fixed(stores[0]))):
            raise InputError(
                f"Expected all systems to have the same prompt and token limit, but '{store.path}' differs from "
                f"'{stores[0].path}' in {different}. Sample one of them again."
            )


def _check_random_numbers(tested: Store, references: Sequence[Store]) -> None:
    """Check that the outputs of the tested store are independent of those of the references."""
    policy = tested.identity["policy"]
    seed, model = policy["decoding"]["seed"], policy["model"]["fingerprint"]
    for store in references:
        other = store.identity["policy"]
        same = (other["decoding"]["seed"], other["model"]["fingerprint"]) == (seed, model)
        if same and model is not None and policy["decoding"]["temperature"] > 0:
            raise InputError(
                f"Expected the tested store to have another seed than the reference '{store.path}' of the same model, "
                f"but both have seed {seed} and thus the same random numbers. Sample it with another --policy.seed."
            )
