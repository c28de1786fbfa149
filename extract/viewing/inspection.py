"""What is in a store, the way a person wants to read it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from extract.grading import GRADER_OF_KIND
from extract.models.store_model import prompt_of
from extract.store.samples import REJECTED
from extract.store.shards import Scope
from extract.store.store import Store
from extract.text import one_line
from extract.viewing.summary import MARKS, GradeCounts, Summary, interval, summarize, texts_of

#: Most letters that are shown of a question, and of an answer.
_LONGEST = 240
#: Most groups of questions in a table.
_MOST_GROUPS = 40
#: So many groups are all shown; among more, those of one question are left out.
_FEW_GROUPS = 10
#: Most lines that are shown of a prompt.
_MOST_LINES = 30
#: Share of cut answers from which it is said that they are graded as they stand.
_MANY_CUT = 0.1


def describe(store: Store, grader: str | None = None, n_answers: int = 10) -> str:
    """A page about a store: policy, counts, accuracy by grader and by group with its spread, and answers to read.

    Args:
        store: The store.
        grader: Whose grades are shown in detail; None takes that of the questions' kind, else the first there are.
        n_answers: How many answers to show, of right, wrong and unknown ones.

    Raises:
        InputError: No grades by this grader, or a file that is not as it was written.
    """
    if grader is not None:
        store.grades.choose(grader)
    name = grader or _usual_grader(store)
    summary = summarize(store, name, n_answers)
    lines = [*_policy(store), *_computed(store), *_samples(store, summary)]
    if not summary.n_samples.any():
        return "\n".join([*lines, "samples    none yet: run `python -m extract sample`"])
    if name is None:
        return "\n".join([*lines, "grades     none yet: run `python -m extract grade`"])
    lines += ["", *_graders(store, summary), "", *_groups(store, name, summary.grades[name])]
    lines += ["", *_spread(name, summary.grades[name]), "", *_asked(store), "", *_answers(store, name, summary)]
    return "\n".join(lines)


def compared(stores: Sequence[Store], grader: str | None = None) -> str:
    """A table of the stores of a grid: temperature, expected accuracy, how much answers vary and how many were cut.

    Args:
        stores: The stores, of which some may have no grades yet.
        grader: Whose grades; None takes for each store what `describe` takes.
    """
    rows = [["temperature", "answers", "grader", "expected accuracy [95 %]", "different texts a question", "cut"]]
    for store in stores:
        name = grader or _usual_grader(store)
        summary = summarize(store, None, 0)
        n, several = int(summary.n_samples.sum()), summary.n_samples > 1
        different = f"{summary.n_distinct[several].mean():.2f}" if several.any() else "–"
        accuracy = _accuracy(summary.grades[name].accuracy) if name in summary.grades else "no grades"
        cut = f"{summary.finish_reasons['length'] / n:.0%}" if n else "–"
        temperature = f"{store.identity['policy']['decoding']['temperature']:g}"
        rows.append([temperature, f"{n:,}", name or "–", accuracy, different, cut])
    return "\n".join(_aligned(rows))


def _usual_grader(store: Store) -> str | None:
    """The grader of the questions' kind where the store holds its grades, else the first that it holds."""
    names = store.grades.names()
    usual = (GRADER_OF_KIND[question.kind] for question in store.questions)
    return next((name for name in usual if name in names), next(iter(names), None))


def _asked(store: Store) -> list[str]:
    """The first question as the model is asked, before its chat template."""
    question, prompt = store.questions[0], prompt_of(store)
    asked = question.prompt
    if prompt.chat or not isinstance(asked, str):
        turns = [(turn["role"], turn["content"]) for turn in prompt.messages(asked)]
    else:
        turns = [("text", prompt.text(asked))]
    lines = [f"  {role:9}  {question.public(line)}" for role, text in turns for line in text.split("\n")]
    if len(lines) > _MOST_LINES:
        left = len(lines) - _MOST_LINES
        lines[_MOST_LINES // 2 : -(_MOST_LINES // 2)] = [f"  … {left} lines …"]
    return ["the first question as it is asked", *lines]


def _policy(store: Store) -> Iterator[str]:
    model, decoding = store.identity["policy"]["model"], store.identity["policy"]["decoding"]
    prompt = decoding["prompt"]
    known = f"{model['dtype']}  weights {model['fingerprint'][:12]}" if model["fingerprint"] else "known by name only"
    around = [
        "in the chat template" if prompt["chat"] else "plain text",
        *([_plural(len(prompt["examples"]), "worked example")] if prompt.get("examples") else []),
        *([f"thinking {'on' if prompt['thinking'] else 'off'}"] if "thinking" in prompt else []),
    ]
    stop = f", stop {', '.join(map(repr, decoding['stop']))}" if decoding["stop"] else ""
    yield f"store      {store.path}   identity {store.sha256[:12]}"
    yield f"model      {model['id']}  {known}"
    yield (
        f"policy     temperature {decoding['temperature']}, top-p {decoding['top_p']}, top-k {decoding['top_k']}, "
        f"at most {decoding['max_new_tokens']} tokens{stop}, seed {decoding['seed']}"
    )
    yield f"prompt     {one_line(repr(prompt['template']), _LONGEST, keep_end=True)}, {', '.join(around)}"
    yield f"questions  {len(store.questions):,} in {_plural(store.questions.n_blocks, 'block')}"


def _computed(store: Store) -> Iterator[str]:
    """A line for each signal and each asked baseline, with the number of shards that have it."""
    scopes: tuple[tuple[Scope, str], ...] = (("question", "blocks of questions"), ("sample", "sample ranges"))
    asked = sorted({*store.asked.names("question"), *store.asked.names("sample")})
    for noun, names, part in (("signal", store.signals.names(), store.signals), ("asked", asked, store.asked)):
        for name in names:
            totals = [(len(store.shards(scope)), len(part.missing(name, scope)), unit) for scope, unit in scopes]
            there = [f"{n - missing} of {n} {unit}" for n, missing, unit in totals if missing < n]
            yield f"{noun:9}  {name}: {' and '.join(there) or 'nothing'}"


def _samples(store: Store, summary: Summary) -> Iterator[str]:
    """The number of answers, their balance, how they ended, their lengths, and how much they vary."""
    n, n_logs = int(summary.n_samples.sum()), summary.n_logs
    if n_logs:
        yield (
            f"unfinished {_plural(n_logs, 'sample range')} with {summary.n_logged:,} answers: "
            "run the same `python -m extract sample` again"
        )
    if not n:
        return
    counts = sorted(Counter(summary.n_samples.tolist()).items(), key=lambda count: (-count[1], count[0]))
    balance = ", ".join(f"{k} to each of {n_questions:,} questions" for k, n_questions in counts[:4])
    yield f"samples    {n:,}: {balance}{', and other numbers' * (len(counts) > 4)}"
    limit = store.identity["policy"]["decoding"]["max_new_tokens"]
    endings = {
        "stop": "ended by themselves",
        "length": f"cut at {limit} tokens",
        "content_filter": "filtered by the server",
        REJECTED: "rejected by the server",
    }
    counted = ((summary.finish_reasons[reason], ending) for reason, ending in endings.items())
    yield f"endings    {', '.join(f'{_share(count, n)} {ending}' for count, ending in counted if count)}"
    if summary.finish_reasons["length"] > _MANY_CUT * n:
        yield (
            "warning    many answers are cut, and graded as they stand: raise --policy.max_new_tokens (another store), "
            "or ask for shorter answers"
        )
    yield _tokens(summary.n_tokens, n)
    several = summary.n_samples > 1
    if several.any():
        n_same, mean = int((summary.n_distinct[several] == 1).sum()), summary.n_distinct[several].mean()
        yield (
            f"different  {mean:.1f} texts of {summary.n_samples[several].mean():.4g} to a question in the mean; "
            f"{_plural(n_same, 'question')} got the same every time"
        )
        if n_same == several.sum() and store.identity["policy"]["decoding"]["temperature"] > 0:
            yield "warning    nothing varies at a temperature above 0: the accuracies below are all 0 or 1"


def _tokens(n_tokens: NDArray[np.int32], n: int) -> str:
    if not len(n_tokens):
        return "tokens     not told by the server"
    told = "" if len(n_tokens) == n else f" (not told for {n - len(n_tokens):,} answers)"
    return (
        f"tokens     mean {n_tokens.mean():.1f}, median {np.median(n_tokens):.0f}, 95th percentile "
        f"{np.percentile(n_tokens, 95):.0f}, {n_tokens.sum(dtype=np.int64):,} in all{told}"
    )


def _plural(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'s' * (n != 1)}"


def _share(count: int, n: int) -> str:
    """A count and its share in per cent; nothing becomes 0 % or 100 % by rounding."""
    percent = 100 * count / n
    rounded = f"{percent:.0f}" if 1 <= percent <= 99 or count in (0, n) else f"{percent:.2g}" if percent < 1 else ">99"
    return f"{count:,} ({rounded} %)"


def _graders(store: Store, summary: Summary) -> list[str]:
    """The graders side by side, and which of them are behind."""
    behind = []
    rows = [
        ["grader", "answers", "right", "wrong", "unknown", "no answer found", "questions", "expected accuracy [95 %]"]
    ]
    for name, counts in summary.grades.items():
        of = [int(count.sum()) for count in (counts.right, counts.wrong, counts.unknown, counts.no_answer)]
        known = int((~np.isnan(counts.accuracy)).sum())
        rows.append([name, *(f"{count:,}" for count in (sum(of[:3]), *of, known)), _accuracy(counts.accuracy)])
        n_missing = int(summary.n_samples.sum()) - sum(of[:3])
        if n_missing:
            behind.append(
                f"warning    {_plural(n_missing, 'answer')} without a grade by {name}: run "
                f"`python -m extract grade --store {store.path} --grader {name}`"
            )
    return _aligned(rows) + behind


def _accuracy(of_questions: NDArray[np.float64]) -> str:
    """Mean over questions with its interval."""
    found = interval(of_questions)
    if found is None:
        known = of_questions[~np.isnan(of_questions)]
        return f"{known[0]:.3f} (one question)" if len(known) else "none known"
    return "{:.3f} [{:.3f}, {:.3f}]".format(*found)


def _groups(store: Store, name: str, counts: GradeCounts) -> list[str]:
    """Expected accuracy by group of questions."""
    accuracy, members = counts.accuracy, defaultdict(list)
    for place, question in enumerate(store.questions):
        if not np.isnan(accuracy[place]):
            members[question.group or "(no group)"].append(place)
    if not members:
        return [f"expected accuracy by {name}: every grade is unknown"]
    largest = sorted(members, key=lambda group: (-len(members[group]), group))[:_MOST_GROUPS]
    few = len(members) <= _FEW_GROUPS
    kept = [group for group in largest if few or len(members[group]) > 1]
    rows = [[f"group, by {name}", "questions", "expected accuracy [95 %]", "never right", "always right"]]
    every = [place for places in members.values() for place in places]
    of_groups = ((group, members[group]) for group in sorted(kept)) if len(members) > 1 else ()
    for group, places in [("all", every), *of_groups]:
        of_group = accuracy[places]
        never, always = (f"{int((of_group == bound).sum()):,}" for bound in (0, 1))
        rows.append([one_line(group, 40, keep_end=True), f"{len(places):,}", _accuracy(of_group), never, always])
    left_out = len(members) - len(kept) if len(members) > 1 else 0
    return _aligned(rows) + ([f"({_plural(left_out, 'smaller group')} left out)"] if left_out else [])


def _spread(name: str, counts: GradeCounts) -> list[str]:
    """How many questions are answered right how often."""
    known = counts.accuracy[~np.isnan(counts.accuracy)]
    if not len(known):
        return []
    k = set((counts.right + counts.wrong)[~np.isnan(counts.accuracy)].tolist())
    steps = max(k) if len(k) == 1 and max(k) <= 10 else 10  # one row for each number of right answers, if possible
    levels = Counter(np.round(steps * known).astype(int).tolist())
    widest = max(levels.values())
    width = len(f"{widest:,}")
    lines = [f"spread of the expected accuracy, by {name}: standard deviation over questions {known.std():.3f}"]
    bars = (round(40 * levels[level] / widest) for level in range(steps + 1))
    return lines + [
        f"  {level / steps:.2f}  {levels[level]:{width},}  {'█' * bar or '▏' * (levels[level] > 0)}".rstrip()
        for level, bar in enumerate(bars)
    ]


def _answers(store: Store, name: str, summary: Summary) -> list[str]:
    """Answers with their questions, and what the grader took for the answer."""
    texts, ids = texts_of(store, summary.shown), {graded.question_id for graded in summary.shown}
    questions = {question.id: question for question in store.questions if question.id in ids}
    lines = [f"{len(texts)} answers, graded by {name}"]
    for graded in summary.shown:
        question = questions[graded.question_id]
        answer = one_line(question.public(texts[graded]), _LONGEST, keep_end=True)
        took = "nothing" if graded.answer is None else repr(one_line(question.public(graded.answer), 60, keep_end=True))
        expected = one_line(question.public(" | ".join(question.references)), 80, keep_end=True)
        lines += [
            f"  {MARKS[graded.right]:7}  {one_line(question.public_prompt, _LONGEST, keep_end=True)}",
            f"           → {answer or '(empty)'}",
            f"           took {took}; expected {expected}",
        ]
    return lines


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of a table in columns: the first to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "   ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
