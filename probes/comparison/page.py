"""The pages of a comparison and of a transfer, from their records."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from probes.comparison.out_of_fold import BEST
from probes.comparison.record import cheap_baselines
from probes.comparison.transfer import sets_of
from probes.registry import chosen_option
from probes.report.templates import COLUMNS, relation, render

_COLUMNS = [column for column in COLUMNS if column[0] != "auroc_hard"]
_KINDS = ("chosen", "probe", "baseline")


def comparison_page(record: dict[str, Any], plots: Sequence[str]) -> str:
    """The page of a comparison.

    Args:
        record: The record, see `comparison_record`.
        plots: Names of the pictures to show.
    """
    methods = dict(sorted(record["methods"].items(), key=lambda item: _KINDS.index(item[1]["kind"])))
    of_half = {name: figures for name, figures in methods.items() if figures["half"]}
    pairs: dict[tuple[str, str], dict[str, Any]] = {}
    for test in record["tests"]:
        pairs.setdefault((test["a"], test["b"]), {"half": test["half"]})[test["metric"]] = test
    return render(
        "comparison/comparison.md.j2",
        record=record,
        best=BEST,
        columns=_COLUMNS,
        verdict=comparison_verdict(record),
        all_answers={name: figures for name, figures in methods.items() if not figures["half"]},
        half_answers={BEST: methods[BEST] | record["on_half"][BEST], **of_half},
        pairs=pairs,
        chosen_option=chosen_option,
        plots=plots,
    )


def comparison_verdict(record: dict[str, Any]) -> str:
    """Which probes were chosen, and whether they are better than the baselines that cost no more."""
    verdicts: dict[str, dict[str, dict[str, Any]]] = {}
    for metric, label in (("auroc", "AUROC"), ("brier", "Brier score")):
        tests = {test["b"]: test for test in record["tests"] if test["a"] == BEST and test["metric"] == metric}
        of_relation: dict[str, dict[str, Any]] = {}
        for name in cheap_baselines(record):
            test = tests.get(name)
            words = "not tested against" if test is None else relation(test, higher_is_better=metric == "auroc")
            of_relation.setdefault(words, {})[name] = test
        verdicts[label] = of_relation
    chosen = Counter(fold["probe"] for fold in record["chosen"]).most_common()
    return render("comparison/verdict.md.j2", record=record, best=BEST, chosen=chosen, verdicts=verdicts)


def transfer_page(record: dict[str, Any]) -> str:
    """The page of a transfer, from its record, see `transfer_record`."""
    trains, tests = sets_of(record)
    return render(
        "comparison/transfer.md.j2",
        record=record,
        trains=trains,
        tests=tests,
        cells={(cell["train"], cell["test"]): cell for cell in record["cells"]},
        n_questions={cell["test"]: cell["n_questions"] for cell in record["cells"]},
    )
