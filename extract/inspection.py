"""What is in a store, the way a person wants to read it."""

from __future__ import annotations

from collections import Counter, defaultdict

from extract.errors import InputError
from extract.store import Store


def choose_grader(store: Store, grader: str | None) -> str:
    """The named grader, or the only one there is.

    Raises:
        InputError: No grades, several graders and none named, or no grades by the named one.
    """
    held = store.graders()
    if grader is None and len(held) == 1:
        return held[0]
    if not held:
        raise InputError(
            f"Expected the store {str(store.path)!r} to hold grades, but it has none. Run `python -m extract grade --store {store.path}`."
        )
    if grader not in held:
        raise InputError(
            f"Expected `grader` to be one of {', '.join(held)}, whose grades {str(store.path)!r} holds, but got {grader!r}. Name one of them, or run `python -m extract grade`."
        )
    return grader


def describe(store: Store, grader: str | None = None, n_answers: int = 5) -> str:
    """A page about a store: policy, counts, accuracy by group with its spread, and the first answers."""
    model, decoding = store.identity["policy"]["model"], store.identity["policy"]["decoding"]
    samples = store.samples().to_pylist()
    lines = [
        f"store      {store.path}   identity {store.sha256[:12]}",
        f"model      {model['id']}  {model['dtype']}  weights {model['fingerprint'][:12]}",
        f"policy     temperature {decoding['temperature']}, top-p {decoding['top_p']}, top-k {decoding['top_k']}, at most {decoding['max_new_tokens']} tokens, seed {decoding['seed']}",
        f"prompt     {decoding['prompt']['template']!r}{' in the chat template' if decoding['prompt']['chat'] else ''}",
        f"questions  {len(store.questions)} in {store.n_blocks} blocks",
    ]
    lines += _held(store)
    if not samples:
        return "\n".join([*lines, "samples    none yet: run `python -m extract sample`"])
    tokens = sum(len(row["token_ids"]) for row in samples)
    cut = sum(row["finish_reason"] == "length" for row in samples)
    lines.append(
        f"samples    {len(samples)}, {tokens / len(samples):.1f} tokens each, {cut / len(samples):.0%} cut at the token limit"
    )
    if not store.graders():
        return "\n".join([*lines, "grades     none yet: run `python -m extract grade`"])
    name = choose_grader(store, grader)
    grades = store.grades(name).to_pylist()
    right = {(row["question_id"], row["sample"]): row["right"] for row in grades}
    unknown = sum(value is None for value in right.values())
    lines += [
        f"grades     by {name}: {len(grades)}, {unknown} unknown",
        "",
        *_accuracy_table(store, right),
        "",
        "answers",
    ]
    questions = {question.id: question for question in store.questions}
    for row in samples[:: max(1, len(samples) // max(1, n_answers))][:n_answers]:
        mark = {True: "right", False: "wrong", None: "unknown"}[right.get((row["question_id"], row["sample"]))]
        question = questions[row["question_id"]]
        lines.append(
            f"  {mark:7}  {question.text or question.messages[-1]['content']}  →  {' '.join(row['text'].split())}"
        )
    return "\n".join(lines)


def _held(store: Store) -> list[str]:
    """A line for each signal and each asked baseline, with how much of it there is."""
    n_blocks, n_parts = store.n_blocks, len(store.parts())
    lines = []
    for signal in store.signals():
        counts = n_blocks - len(store.unread_blocks(signal)), n_parts - len(store.unread_parts(signal))
        lines.append(f"signal     {signal}: {_of(counts, n_blocks, n_parts)}")
    for name in sorted({*store.asked_names("question"), *store.asked_names("sample")}):
        counts = n_blocks - len(store.unasked(name)), n_parts - len(store.unasked(name, "sample"))
        lines.append(f"asked      {name}: {_of(counts, n_blocks, n_parts)}")
    return lines


def _of(counts: tuple[int, int], n_blocks: int, n_parts: int) -> str:
    of_questions = f"{counts[0]} of {n_blocks} blocks of questions"
    of_answers = f"{counts[1]} of {n_parts} parts of answers"
    return (
        " and ".join(text for count, text in zip(counts, (of_questions, of_answers), strict=True) if count) or "nothing"
    )


def _accuracy_table(store: Store, right: dict[tuple[str, int], bool | None]) -> list[str]:
    counts: dict[str, list[bool]] = defaultdict(list)
    for (question_id, _), value in right.items():
        if value is not None:
            counts[question_id].append(value)
    groups: dict[str, list[float]] = defaultdict(list)
    for question in store.questions:
        if counts[question.id]:
            accuracy = sum(counts[question.id]) / len(counts[question.id])
            groups[question.group or "(no group)"].append(accuracy)
    if not groups:
        return ["expected accuracy    every grade is unknown"]
    every = [accuracy for accuracies in groups.values() for accuracy in accuracies]
    lines = [f"{'expected accuracy':20} questions   mean   never right   always right"]
    for group, accuracies in [*sorted(groups.items()), ("all", every)]:
        mean = sum(accuracies) / len(accuracies)
        lines.append(
            f"{group:20} {len(accuracies):9}   {mean:.2f}   {sum(a == 0 for a in accuracies):11}   {sum(a == 1 for a in accuracies):12}"
        )
    levels = Counter(round(10 * accuracy) for accuracy in every)
    widest = max(levels.values())
    lines += ["", "spread of the expected accuracy"]
    return lines + [
        f"  {level / 10:.1f}  {levels[level]:5}  {'█' * round(40 * levels[level] / widest)}" for level in range(11)
    ]
