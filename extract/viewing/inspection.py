"""Text report on a store for `python -m extract inspect`, and a table of a grid's stores."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from numpy.typing import NDArray

from extract.grading import GRADER_OF_KIND
from extract.models.store_model import prompt_of
from extract.sampling.temperature_grid import each_store
from extract.store.identity import member_stores
from extract.store.samples import MISSING, REJECTED
from extract.store.shards import Scope
from extract.store.store import Store
from extract.text import aligned, one_line
from extract.viewing.stopping import describe_stopping
from extract.viewing.summary import MARKS, GradeCounts, interval, summarize

_MOST_GROUPS = 40
#: If there are more groups than this, the groups with a single question are left out.
_FEW_GROUPS = 10
_MOST_LINES = 30


def describe(store: Store, grader: str | None = None, n_answers: int = 10) -> str:
    """Return the report of `inspect` for one store."""
    name = store.grades.choose(grader) if grader is not None else _usual_grader(store)
    summary, policy = summarize(store, name, n_answers), store.identity["policy"]
    n, several = int(summary.n_samples.sum()), summary.n_texts > 1
    balance = Counter(sorted(summary.n_samples.tolist())).most_common()
    numbers = ", ".join(f"{k} for each of {_plural(n_questions, 'question')}" for k, n_questions in balance[:4])
    endings = {
        "stop": "ended on their own",
        "length": f"cut at {policy['decoding']['max_new_tokens'] or 'an unknown number of'} tokens",
        "content_filter": "filtered by the server",
        REJECTED: "rejected by the server",
        MISSING: "not in the log",
    }
    ended = ((summary.finish_reasons[reason], ending) for reason, ending in endings.items())
    n_missing = {name: n - int((counts.n_known + counts.unknown).sum()) for name, counts in summary.grades.items()}
    shown_ids = {graded.question_id for graded in summary.shown}
    questions = {question.id: question for question in store.questions if question.id in shown_ids}
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, trim_blocks=True
    )
    environment.filters |= {"known": _known, "line": _line, "plural": _plural}
    page = environment.get_template("inspection.txt.j2").render(
        store=store,
        model=policy["model"],
        decoding=policy["decoding"],
        deterministic=deterministic(policy["decoding"]),
        imported=None if store.samples.provides.complete_policy else policy["request"],
        prompt=prompt_of(store),
        computed=_computed(store),
        stopped=describe_stopping([store], name),
        biased=bool(store.samples.stopped()),
        summary=summary,
        n=n,
        balance=f"{numbers}, and other numbers" if len(balance) > 4 else numbers,
        endings=[f"{_share(count, n)} {ending}" for count, ending in ended if count],
        percentile=np.percentile,
        distinct=summary.n_distinct[several],
        mean_texts=summary.n_texts[several].mean() if several.any() else 0,
        n_same=int((summary.n_distinct[several] == 1).sum()),
        grader=name,
        accuracy=_accuracy(summary.grades[name].accuracy) if name else "",
        graders=_graders(summary.grades),
        n_missing=n_missing,
        groups=_groups(store, name, summary.grades[name].accuracy) if name else [],
        spread=_spread(name, summary.grades[name]) if name else [],
        asked=_asked(store),
        answers=[(graded, questions[graded.question_id], graded.text(store)) for graded in summary.shown],
        marks=MARKS,
    )
    return page.rstrip("\n")


def deterministic(decoding: Mapping[str, Any]) -> str:
    """Return the option that makes a policy deterministic, such as ``temperature 0``, or "" if there is none."""
    return "temperature 0" if decoding["temperature"] == 0 else "top-k 1" if decoding["top_k"] == 1 else ""


def _line(text: str, longest: int = 240) -> str:
    return one_line(text, longest, keep_end=True)


def _known(value: object) -> object:
    return "unknown" if value is None else value


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def compared(stores: Sequence[Store], grader: str | None = None) -> str:
    """Format a table of a grid's stores. Temperatures at which the policy is deterministic are marked.

    If `grader` is None, the grader of each store is chosen as in `inspect`.
    """
    rows = [["temperature", "answers", "grader", "expected accuracy [95 %]", "different texts per question", "cut"]]
    for store in stores:
        name = grader or _usual_grader(store)
        summary = summarize(store, None, 0)
        n, several = int(summary.n_samples.sum()), summary.n_texts > 1
        different = f"{summary.n_distinct[several].mean():.2f}" if several.any() else "–"
        accuracy = _accuracy(summary.grades[name].accuracy) if name in summary.grades else "no grades"
        cut = f"{summary.finish_reasons['length'] / n:.0%}" if n else "–"
        decoding = store.identity["policy"]["decoding"]
        temperature = "unknown" if decoding["temperature"] is None else f"{decoding['temperature']:g}"
        temperature += " (deterministic)" * bool(deterministic(decoding))
        rows.append([temperature, f"{n:,}", name or "–", accuracy, different, cut])
    return "\n".join([*aligned(rows), *describe_stopping(stores, grader or _usual_grader(stores[0]))])


def _usual_grader(store: Store) -> str | None:
    """Return the questions' default grader. If it has no grades, return the first grader with grades."""
    names = store.grades.names()
    usual = (GRADER_OF_KIND[question.kind] for question in store.questions)
    return next((name for name in usual if name in names), next(iter(names), None))


def _computed(store: Store) -> Iterator[tuple[str, str, str]]:
    """Yield the kind, name and progress of each signal and model-based baseline."""
    scopes: tuple[tuple[Scope, str], ...] = (("question", "blocks of questions"), ("sample", "sample ranges"))
    asked = sorted({*store.asked.names("question"), *store.asked.names("sample")})
    for noun, names, part in (("signal", store.signals.names(), store.signals), ("asked", asked, store.asked)):
        for name in names:
            totals = [(len(store.shards(scope)), len(part.missing(name, scope)), unit) for scope, unit in scopes]
            there = [f"{n - missing} of {n} {unit}" for n, missing, unit in totals if missing < n]
            yield noun, name, " and ".join(there) or "nothing"


def _share(count: int, n: int) -> str:
    """Format a count and its percentage. Percentages are never rounded to 0 % or 100 %."""
    percent = 100 * count / n
    rounded = f"{percent:.2g}" if 0 < percent < 1 else ">99" if 99 < percent < 100 else f"{percent:.0f}"
    return f"{count:,} ({rounded} %)"


def _graders(grades: dict[str, GradeCounts]) -> list[str]:
    """Format the counts and the expected accuracy of each grader."""
    rows = ["grader,answers,right,wrong,unknown,no answer found,questions,expected accuracy [95 %]".split(",")]
    for name, counts in grades.items():
        marks = [int(count.sum()) for count in (counts.right, counts.wrong, counts.unknown)]
        numbers = [sum(marks), *marks, int(counts.no_answer.sum()), int((counts.n_known > 0).sum())]
        rows.append([name, *(f"{number:,}" for number in numbers), _accuracy(counts.accuracy)])
    return aligned(rows)


def _accuracy(of_questions: NDArray[np.float64]) -> str:
    """Format the mean accuracy with its 95 % interval."""
    if found := interval(of_questions):
        return "{:.3f} [{:.3f}, {:.3f}]".format(*found)
    known = of_questions[~np.isnan(of_questions)]
    return f"{known[0]:.3f} (one question)" if len(known) else "none known"


def _groups(store: Store, name: str, accuracy: NDArray[np.float64]) -> list[str]:
    """Format the expected accuracy of each group."""
    members: dict[str, list[float]] = defaultdict(list)
    for question, value in zip(store.questions, accuracy.tolist(), strict=True):
        if not np.isnan(value):
            members[question.group or "(no group)"].append(value)
    if not members:
        return [f"expected accuracy by {name}: every grade is unknown"]
    largest = sorted(members, key=lambda group: (-len(members[group]), group))[:_MOST_GROUPS]
    shown = sorted(group for group in largest if len(members) <= _FEW_GROUPS or len(members[group]) > 1)
    values_of = [("all", accuracy), *((group, np.array(members[group])) for group in shown if len(members) > 1)]
    rows = [[f"group, by {name}", "questions", "expected accuracy [95 %]", "never right", "always right"]]
    for group, values in values_of:
        counts = [int(chosen.sum()) for chosen in (~np.isnan(values), values == 0, values == 1)]
        n_questions, never, always = (f"{count:,}" for count in counts)
        rows.append([_line(group, 40), n_questions, _accuracy(values), never, always])
    left_out = len(members) - len(shown)
    return aligned(rows) + [f"({_plural(left_out, 'smaller group')} left out)"] * (left_out > 0)


def _spread(name: str, counts: GradeCounts) -> list[str]:
    """Format a histogram of the questions' expected accuracies."""
    known = counts.accuracy[counts.n_known > 0]
    if not len(known):
        return []
    k = set(counts.n_known[counts.n_known > 0].tolist())
    steps = max(k) if len(k) == 1 and max(k) <= 10 else 10  # if possible, one row per number of right answers
    levels = np.bincount(np.round(steps * known).astype(int), minlength=steps + 1).tolist()
    lines = [f"spread of the expected accuracy, by {name}: standard deviation over questions {known.std():.3f}"]
    for level, n in enumerate(levels):
        bar = "█" * round(40 * n / max(levels)) or "▏" * (n > 0)
        lines.append(f"  {level / steps:.2f}  {n:{len(f'{max(levels):,}')},}  {bar}".rstrip())
    return lines


def _asked(store: Store) -> list[str]:
    """Format the prompt of the first question, without the chat template."""
    question, prompt = store.questions[0], prompt_of(store)
    if prompt.chat or not isinstance(question.prompt, str):
        turns = prompt.messages(question.prompt)
    else:
        turns = [{"role": "text", "content": prompt.text(question.prompt)}]
    lines = [f"  {turn['role']:9}  {question.public(line)}" for turn in turns for line in turn["content"].split("\n")]
    if len(lines) > _MOST_LINES:
        half = _MOST_LINES // 2
        lines[half:-half] = [f"  … {len(lines) - _MOST_LINES} lines …"]
    return lines


def inspect(store: str, grader: str | None = None, answers: int = 10) -> None:
    """Summarise a store: policy, counts, accuracy by grader and group (with intervals), and example answers.

    Args:
        store: Folder of a store or a temperature grid.
        grader: Grader for the detailed tables. If omitted, the default grader for the kind of question is used. If that
            grader has no grades, the first grader with grades is used.
        answers: Number of example answers, divided among right, wrong and unknown grades.
    """
    each_store(lambda store: print(describe(Store.open(store), grader, answers)))(store=store)
    if members := member_stores(Path(store)):
        print(f"\n== {store}, by temperature\n{compared([Store.open(member) for member in members], grader)}")
