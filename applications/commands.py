"""Functions that implement the commands of ``python -m applications``."""

from collections.abc import Sequence
from pathlib import Path

from applications.budget.methods import METHODS
from applications.budget.pictures import budget_pictures
from applications.budget.record import budget_page, budget_record, budget_verdict
from applications.confidences import named_confidences
from applications.passk.pictures import passk_pictures
from applications.passk.record import load_graded, passk_page, passk_record, passk_summary
from applications.stores import open_stores
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
from datamodules.table import load_table
from extract.registry import fill_names
from extract.sampling.stopping import STOPPING_RULES
from extract.store.store import Store
from probes.report.results import result_folder, write_files


def passk(
    store: str,
    confidences: Sequence[str] = (),
    k: Sequence[int] | None = None,
    grader: str | None = None,
    out: str | None = None,
    seed: int = 0,
    n_resamples: int = 2000,
) -> Path:
    """Estimate Pass@K, the probability that at least one of K answers is right, and how well confidences predict it.

    The page also contains extrapolations to more answers than were sampled. For a temperature grid, it compares
    splitting a budget of answers over the temperatures with spending it at one temperature.

    Args:
        store: Folder of a store, or of a temperature grid. It must contain samples and grades.
        confidences: Confidences to predict Pass@K from: folders of saved probes, or FILE:COLUMN for columns of Parquet
            or CSV files. They must not depend on the grades of the same questions.
        k: Numbers of answers K, at most the number of graded answers to each question. The default is 1, 4, 16 and 64,
            up to this number.
        grader: Grader whose grades are used. Required if the store has several graders.
        out: Folder to create for the page, record, table and pictures. The default is runs/passk-STORE.
        seed: Seed for the resampling and for the halves of the questions.
        n_resamples: Number of bootstrap resamples of the questions for each interval.

    Returns:
        Path to the new folder.

    Raises:
        InputError: If an option is invalid, if samples or grades are missing, if the stores of a grid differ in more
            than the temperature, or if a question has no confidence or fewer than K graded answers.
    """
    with result_folder("passk", [store], out, seed, n_resamples) as (folder, final):
        graded = load_graded(open_stores(store), grader)
        record, table = passk_record(graded, confidences, k, n_resamples, seed)
        plots = passk_pictures(record)
        files = {"passk.md": passk_page(record, list(plots)), "passk.json": record, "passk.parquet": table}
        write_files(folder, files, plots)
    print(f"{passk_summary(record)}\nPass@k: {final / 'passk.md'}")
    return final


def budget(
    store: str,
    confidences: Sequence[str] = (),
    budgets: Sequence[int] | None = None,
    grader: str | None = None,
    out: str | None = None,
    seed: int = 0,
    n_resamples: int = 2000,
) -> Path:
    """Compare allocations of a sampling budget, by the share of questions with at least one right answer.

    The budget is allocated uniformly, by the base rates of the question groups, by confidences, and by an oracle that
    knows half of the grades. The page also shows an online allocation. It stops at a question's first right answer.

    Args:
        store: Folder of the store. It must contain samples and grades.
        confidences: Sources of confidences: folders of saved probes, or FILE:COLUMN, for example
            runs/compare-facts/predictions.parquet:layer_average.
        budgets: Mean numbers of answers per question. The default is 1, 2, 4, …, 64, up to the number of
            graded answers.
        grader: Grader whose grades are used. Required if the store has several graders.
        out: Folder to create for the page, record, allocations and pictures. The default is runs/budget-STORE.
        seed: Seed for the folds and resampling.
        n_resamples: Number of bootstrap resamples of the questions for each interval.

    Returns:
        Path to the new folder.

    Raises:
        InputError: If an option is invalid, if required data are missing, if there are too few questions, or if no
            answer is right.
    """
    with result_folder("budget", [store], out, seed, n_resamples) as (folder, final):
        opened = Store.open(store)
        values = named_confidences(confidences, opened, reserved=METHODS)
        record, allocations = budget_record(opened, load_table(opened, grader), values, budgets, n_resamples, seed)
        plots = budget_pictures(record)
        files = {"budget.md": budget_page(record, list(plots)), "budget.json": record}
        write_files(folder, {**files, "allocations.parquet": allocations}, plots)
    print(f"{budget_verdict(record)}\nBudget: {final / 'budget.md'}")
    return final


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
        confidences: Confidences for the rule `prior`: folders of saved probes, or FILE:COLUMN for columns of Parquet or
            CSV files. The rule is also evaluated with the mean accuracy of the other half of the questions.
        rules: Stopping rules. Choose from {rules}. The default is all that apply.
        orders: Number of random orders in which the answers to each question are replayed.
        grader: Grader whose grades are used. Required if the store has several graders.
        out: Folder to create for the page, record, table and picture. The default is runs/vote-STORE.
        seed: Seed for the halves, orders and resampling.
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
