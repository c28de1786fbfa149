"""The command ``python -m applications vote``."""

from collections.abc import Sequence
from pathlib import Path

from applications.voting.ballots import read_poll
from applications.voting.evaluation import check_orders, evaluate_rules
from applications.voting.pictures import vote_picture
from applications.voting.record import (
    choose_rules,
    halves,
    read_confidences,
    vote_page,
    vote_record,
    vote_table,
    vote_verdict,
)
from extract.registry import fill_names
from extract.sampling.stopping import STOPPING_RULES
from probes.report.results import result_folder, write_files


@fill_names(rules=STOPPING_RULES)
def vote(
    store: str,
    confidences: Sequence[str] = (),
    rules: Sequence[str] | None = None,
    orders: int = 200,
    grader: str | None = None,
    out: str | None = None,
    seed: int = 0,
    n_resamples: int = 2000,
) -> Path:
    """Replay stored answers to measure how often votes and stopping rules are right, and how many answers they need.

    The threshold of each rule is chosen on one half of the questions and evaluated on the other half.

    Args:
        store: Folder of the store, or of a temperature grid. It must contain samples and grades.
        confidences: Confidences for the `prior` rule: folders of saved probes, or FILE:COLUMN for columns of Parquet or
            CSV files. The rule is also evaluated with the base rate: the mean accuracy on the other half of the
            questions.
        rules: Stopping rules. Choose from {rules}. The default is all applicable rules.
        orders: Number of random orders in which the answers to each question are replayed.
        grader: Grader whose grades are used. Required if the store has several graders.
        out: Folder to create for the Markdown page, record, table and plot. The default is runs/vote-STORE.
        seed: Seed for the random halves, orders and resamples.
        n_resamples: Number of bootstrap resamples of the questions for each interval.

    Returns:
        Path to the new folder.

    Raises:
        InputError: If an option is invalid, required data are missing, or there are too few questions.
    """
    with result_folder("vote", [store], out, seed, n_resamples) as (folder, final):
        check_orders(orders)
        poll = read_poll(store, grader)
        half, names, values = halves(poll, seed), choose_rules(rules, poll), read_confidences(confidences, poll)
        evaluation = evaluate_rules(poll.ballots, half, names, values, orders, seed)
        record = vote_record(poll, evaluation, values, orders, n_resamples, seed)
        files = {"vote.md": vote_page(record, ["vote"]), "vote.json": record}
        write_files(
            folder, {**files, "vote.parquet": vote_table(poll, half, evaluation)}, {"vote": vote_picture(evaluation)}
        )
    print(f"{vote_verdict(record)}Votes: {final / 'vote.md'}")
    return final
