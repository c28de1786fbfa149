"""Find thresholds with MAPIE's implementation of Learn then Test.

`benchmarks.decisions` runs this script in .peers/mapie. It reads JSON from standard input and writes
{procedure: thresholds} to standard output.
"""

import json
import sys
import warnings
from importlib.metadata import version

import numpy as np
from mapie.risk_control import BinaryClassificationController

#: MAPIE's default correction, and fixed-sequence testing.
PROCEDURES = ("bonferroni_holm", "fixed_sequence")


def threshold(confidence: list[float], right: list[int], risk: float, level: float, procedure: str) -> float | None:
    """Return MAPIE's threshold for a precision of 1 − risk, or None."""
    scores = np.array(confidence)
    controller = BinaryClassificationController(
        lambda rows: np.stack([1 - scores[rows], scores[rows]], 1),
        "precision",
        1 - risk,
        level,
        fwer_method=procedure,
    )
    controller.calibrate(np.arange(len(scores)), np.array(right))
    best = controller.best_predict_param
    return None if best is None else float(best)


def main() -> None:
    """Print the thresholds of all sets as one line of JSON."""
    warnings.simplefilter("ignore")
    given = json.load(sys.stdin)
    options = given["risk"], given["level"]
    values = {
        procedure: [threshold(one["confidence"], one["right"], *options, procedure) for one in given["sets"]]
        for procedure in PROCEDURES
    }
    print(json.dumps({"version": version("mapie"), "values": values}))


if __name__ == "__main__":
    main()
