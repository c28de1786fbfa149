"""Check that a tested system and its references can be compared."""

from collections.abc import Sequence

from applications.background.outputs import Source, Unit
from extract.errors import InputError
from extract.hashing import differences
from extract.store.store import Store

_FIXED = ("max_new_tokens", "stop", "prompt")


def choose_unit(unit: Unit | None, sources: Sequence[Source]) -> Unit:
    """Return the unit in which outputs are compared.

    The default is tokens if all tokenizers are known to be the same, and words otherwise.
    """
    known = {source.tokenizer for source in sources}
    if unit is None:
        unit = "tokens" if len(known) == 1 and None not in known else "words"
    if unit == "tokens" and len(known - {None}) > 1:
        first, *others = (source for source in sources if source.tokenizer)
        other = next(source for source in others if source.tokenizer != first.tokenizer)
        raise InputError(
            f"Expected all systems to have the same tokenizer, but {first.name!r} and {other.name!r} have different "
            "ones. Pass --unit words."
        )
    if without := next((source for source in sources if unit not in source.units), None):
        raise InputError(
            f"Expected the outputs of {without.name!r} to be available as {unit}, but they are available only as "
            f"{without.units[0]}. "
            + (
                "To compare token ids without checking that they come from the same tokenizer, pass --unit tokens."
                if unit == "words"
                else "Pass --unit words, or use a file with token ids from the same tokenizer."
            )
        )
    return unit


def check_policies(stores: Sequence[Store]) -> None:
    """Check that all stores have the same prompt template, token limit and stop strings. Unknown values are ignored."""
    for store in stores[1:]:
        first, second = (one.identity["policy"]["decoding"] for one in (stores[0], store))
        known = {name for name in _FIXED if first[name] is not None and second[name] is not None}
        found, wanted = ({name: one[name] for name in known} for one in (second, first))
        if different := "; ".join(differences(found, wanted)):
            raise InputError(
                f"Expected all systems to have the same prompt and token limit, but '{store.path}' differs from "
                f"'{stores[0].path}' in {different}. Sample one store again with the settings of the other."
            )


def check_random_numbers(tested: Store, references: Sequence[Store]) -> None:
    """Check that no reference has the same model and seed as the tested store."""
    policy = tested.identity["policy"]
    seed, model = policy["decoding"]["seed"], policy["model"]["fingerprint"]
    for store in references:
        other = store.identity["policy"]
        same = (other["decoding"]["seed"], other["model"]["fingerprint"]) == (seed, model)
        if same and model is not None and policy["decoding"]["temperature"] > 0:
            raise InputError(
                f"Expected the tested store to have a different seed from the reference '{store.path}', which "
                f"uses the same model, but both use seed {seed} and thus the same random numbers. Sample the tested "
                "store again with a different --policy.seed."
            )


def check_full_distribution(store: Store) -> None:
    """Check that a reference store was sampled without truncation by `top_p` or `top_k`."""
    decoding = store.identity["policy"]["decoding"]
    if decoding["top_p"] != 1 or decoding["top_k"] != 0:
        raise InputError(
            f"Expected the reference '{store.path}' to be sampled with top_p 1 and top_k 0, but got top_p "
            f"{decoding['top_p']} and top_k {decoding['top_k']}. With truncation, the outputs vary less at the "
            "same temperature. Sample the reference again without truncation."
        )
