"""What options of several commands have to be."""

from __future__ import annotations

from extract.errors import InputError

#: With fewer resamples the ends of an interval are a handful of them.
LEAST_RESAMPLES = 100
_LARGEST_SEED = 2**32 - 1  # what every generator takes


def check_resamples(n_resamples: int) -> None:
    """Refuse too few resamples for an interval.

    Raises:
        InputError: They are.
    """
    if n_resamples < LEAST_RESAMPLES:
        raise InputError(
            f"Expected `n_resamples` to be at least {LEAST_RESAMPLES}, for intervals of 95 %, but got {n_resamples}. 2000 is the default."
        )


def check_seed(seed: int) -> None:
    """Refuse what is no seed.

    Raises:
        InputError: It is none.
    """
    if not 0 <= seed <= _LARGEST_SEED:
        raise InputError(f"Expected `seed` to be from 0 to {_LARGEST_SEED}, but got {seed}. 0 is the default.")
