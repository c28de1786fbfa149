"""How many files and connections this process may have open: every request in flight is one, and every begun part's log."""

from __future__ import annotations

from extract.errors import InputError

#: What Python and its libraries have open besides.
_OTHERS = 50


def have_handles(n: int) -> None:
    """Raise the soft limit on open files to what `n` connections and logs need, as far as the hard limit goes.

    Raises:
        InputError: The hard limit is too low.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = n + _OTHERS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise InputError(
            f"Expected to have {needed} files and connections open at a time, but this process may have {hard}. Ask for fewer at a time with --server.in_flight, or raise the limit (`ulimit -n`)."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
