r"""Worker process that compares LaTeX expressions with math-verify.

math-verify's own time limits fail outside the main thread, and its verdicts are then silently wrong. This worker
disables those limits and sets its own: SIGALRM ends the whole process. The process also ends when standard input ends.

Each input line is JSON: ``{"golds": [...], "answer": "...", "seconds": 10}``. Each output line is JSON: true, false,
null if undecided, or "unread" if the answer is not an expression. The first output line is null and signals that the
worker is ready.
"""

import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

_MEMORY = 4 * 2**30  # bytes of address space; nested powers would exhaust the memory
_PLACES = 12  # decimal places that must agree

Verdict = bool | None | Literal["unread"]


def main() -> None:
    """Handle requests until standard input ends."""
    import resource  # not on every system

    answers = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # the parsers print messages
    logging.disable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # handled by the parent process
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY if most == resource.RLIM_INFINITY else min(_MEMORY, most), most))
    equal = load_equal()
    os.dup2(nowhere, 2)  # the parent no longer reads standard error
    print("null", file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, asked["seconds"])
        verdict = equal(asked["golds"], asked["answer"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(verdict), file=answers, flush=True)


def load_equal() -> Callable[[list[str], str], Verdict]:
    """Return a function that compares an answer with gold answers. Its inputs are LaTeX without delimiters."""
    from latex2sympy2_extended.latex2sympy2 import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    # units=True would turn 2m into 2; units marked as text are removed earlier
    spelling = NormalizationConfig(
        basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False
    )
    boxes = [LatexExtractionConfig(normalization_config=spelling)]

    @lru_cache(maxsize=1000)
    def parsed(latex: str) -> list[Any]:
        return parse(f"\\boxed{{{latex}}}", boxes, parsing_timeout=None)

    def equal(golds: list[str], answer: str) -> Verdict:
        verdict: Verdict = False
        try:
            stated = parsed(answer)
            if all(isinstance(expression, str) for expression in stated):  # no expression
                return "unread"
            for gold in golds:
                try:
                    if verify(parsed(gold), stated, _PLACES, timeout_seconds=None, raise_on_error=True):
                        return True
                except Exception:  # SymPy raises errors of many types; another gold answer can still match
                    verdict = None
        except Exception:  # SymPy raises errors of many types; the answer stays unknown
            return None
        return verdict

    return equal


if __name__ == "__main__":
    main()
