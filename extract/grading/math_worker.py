r"""A process that compares LaTeX expressions by math-verify. It is run as a file and imports no package of ours.

math-verify limits its time by SIGALRM, and in any other thread than the main one grades wrong without a word. Here it
has no limits of its own: SIGALRM ends the whole process, even inside C code, and so does the end of standard input.

Lines of JSON in, ``{"golds": [...], "answer": "...", "seconds": 10}``, and lines of JSON out: true, false, null where
it could not decide, or "unread" where the answer is no expression. The first line out is null: it is ready.
"""

import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

_MEMORY = 4 * 2**30  # bytes of address space: powers of powers would take all there is
_PLACES = 12  # to which decimals have to agree: what they are rounded to is another value

Verdict = bool | None | Literal["unread"]


def main() -> None:
    """Answer until nothing more is asked."""
    import resource  # which not every system has

    answers = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # the parsers print
    logging.disable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever asks
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY if most == resource.RLIM_INFINITY else min(_MEMORY, most), most))
    equal = load_equal()
    os.dup2(nowhere, 2)  # nobody reads it any more
    print("null", file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        signal.setitimer(signal.ITIMER_REAL, asked["seconds"])
        verdict = equal(asked["golds"], asked["answer"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(json.dumps(verdict), file=answers, flush=True)


def load_equal() -> Callable[[list[str], str], Verdict]:
    """The function that compares gold answers and an answer, all of them LaTeX without its delimiters."""
    from latex2sympy2_extended.latex2sympy2 import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    # its units would take 2m for 2; they are taken off before, where they are marked as text
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
            if all(isinstance(expression, str) for expression in stated):  # the text that was found, and no expression
                return "unread"
            for gold in golds:
                try:
                    if verify(parsed(gold), stated, _PLACES, timeout_seconds=None, raise_on_error=True):
                        return True
                except Exception:  # of many kinds; another gold may be equal all the same
                    verdict = None
        except Exception:  # of any kind: an error is no verdict, so the answer stays unknown
            return None
        return verdict

    return equal


if __name__ == "__main__":
    main()
