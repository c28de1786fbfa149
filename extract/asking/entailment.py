"""The `entailment` baseline: clusters of answers that entail each other according to a classifier.

The method follows Kuhn et al. 2023 (https://arxiv.org/abs/2302.09664) and Farquhar et al. 2024. An answer joins the
first cluster whose first member entails the answer and is entailed by it. If there is no such cluster, the answer
starts a new cluster.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from extract.asking.base import AskContext, AskedTable, Done, answer_line
from extract.asking.readers import TextReader
from extract.errors import InputError
from extract.store.shards import SampleRange, Scope, Shard
from extract.store.store import Store

_LABELS = ("entailment", "neutral", "contradiction")


class Answer(NamedTuple):
    """An answer, with its sample index, its normalised form, and the classifier's input."""

    sample: int
    normalised: str
    text: str


@dataclass
class Clusters:
    """Clusters of one question's answers.

    Attributes:
        of: Dict from normalised answer to cluster id, which is the sample index of the cluster's first member.
        firsts: First member of each cluster, in order of creation.
        tokens: Dict from normalised answer to the number of tokens that the classifier read for it.
    """

    of: dict[str, int] = field(default_factory=dict)
    firsts: list[Answer] = field(default_factory=list)
    tokens: Counter[str] = field(default_factory=Counter)


def cluster(
    questions: Sequence[tuple[Clusters, Iterable[Answer]]],
    entails: Callable[[Sequence[tuple[str, str]]], Sequence[tuple[bool, int]]],
) -> None:
    """Add new answers to the clusters of each question, in place.

    The new answers must be sorted by sample index. Answers with the same normalised form are treated as one. Each
    answer is compared with the first member of each cluster. If this member entails the answer, the reverse direction
    is also tested. For each (premise, hypothesis) pair, `entails` returns whether the premise entails the
    hypothesis, and the number of tokens read.
    """
    pending: list[list[Answer]] = []  # per question: first answer of each new form
    for clusters, answers in questions:
        firsts = {answer.normalised: answer for answer in reversed([*answers]) if answer.normalised not in clusters.of}
        pending.append(sorted(firsts.values()))
    step = 0
    while any(pending):
        compared: list[tuple[int, Answer, Answer]] = []  # question, first member, answer
        for q, (clusters, _) in enumerate(questions):
            if pending[q] and step == len(clusters.firsts):
                opener = pending[q].pop(0)
                clusters.firsts.append(opener)
                clusters.of[opener.normalised] = opener.sample
            compared += [(q, clusters.firsts[step], answer) for answer in pending[q]]
        for forward in (True, False):
            pairs = [(a.text, b.text) if forward else (b.text, a.text) for _, a, b in compared]
            verdicts = entails(pairs) if pairs else []
            for (q, _, answer), (_, n_tokens) in zip(compared, verdicts, strict=True):
                questions[q][0].tokens[answer.normalised] += n_tokens
            compared = [case for case, (entailed, _) in zip(compared, verdicts, strict=True) if entailed]
        for q, first, answer in compared:
            questions[q][0].of[answer.normalised] = first.sample
            pending[q].remove(answer)
        step += 1


class Classifier(TextReader):
    """Entailment classifier with the labels entailment, neutral and contradiction, in any order.

    See `TextReader` for the attributes.

    Raises:
        InputError: If the model can't be loaded or has different labels.
    """

    option, noun, auto_class = "nli_model", "an entailment classifier", "AutoModelForSequenceClassification"

    def __init__(self, name: str, device: str = "auto") -> None:
        super().__init__(name, device)
        labels = {int(i): str(label).casefold() for i, label in self.model.config.id2label.items()}
        if sorted(labels.values()) != sorted(_LABELS):
            found = ", ".join(labels[i] for i in sorted(labels))
            raise self.refusal(f"its labels are {found} instead of {', '.join(_LABELS)}")
        self._entailment = next(i for i, label in labels.items() if label == "entailment")

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[bool, int]]:
        """Classify (premise, hypothesis) pairs.

        For each pair, returns whether entailment is the most likely label, and the number of tokens.
        """
        encoded = self.encode(pairs)
        logits = self.read(encoded, lambda output, mask: output.logits)
        entailed = (logits.argmax(-1) == self._entailment).tolist()
        return [(yes, len(inputs["input_ids"])) for yes, inputs in zip(entailed, encoded, strict=True)]


class Entailment(AskedTable):
    """Baseline that clusters answers with an entailment classifier, and stores the cluster id of each answer.

    The classifier reads the question and the first line of each answer. New samples are added to the clusters of
    earlier samples. The clusters therefore do not depend on how the samples are divided into ranges.
    """

    def __init__(self, name: str, store: Store, context: AskContext) -> None:
        super().__init__(name, store, context)
        if context.nli_model is None:
            raise InputError(
                f"Expected `nli_model` to be set for the {name!r} baseline, but it is not. "
                f"Pass the Hub id or folder of a classifier with the labels {', '.join(_LABELS)}."
            )
        self._grader = store.grades.choose(context.grader)
        if n_missing := len(store.grades.missing(self._grader)):
            raise InputError(
                f"Expected all answers in {str(store.path)!r} to be graded by {self._grader!r}, but those in "
                f"{n_missing} sample ranges are not. Run `python -m extract grade --store {store.path} --grader "
                f"{self._grader}`."
            )

    @cached_property
    def classifier(self) -> Classifier:
        """Entailment classifier, loaded on first use."""
        assert self.context.nli_model is not None
        return Classifier(self.context.nli_model, self.context.device)

    def settings(self, scope: Scope) -> dict[str, Any]:
        """See `AskedBaseline.settings`."""
        text = "the question and the first line of the answer"
        return {**self.classifier.settings, "grader": self._grader, "entailment": "strict", "text": text}

    def rows(self, shard: Shard, progress: Done) -> list[dict[str, Any]]:
        """Return one row per answer, with its cluster id as `value`."""
        assert isinstance(shard, SampleRange)
        clusters: dict[str, Clusters] = defaultdict(Clusters)
        for earlier in self.store.samples.ranges():
            if earlier.block == shard.block and earlier.start < shard.start:
                self._restore(clusters, earlier)
        answers = self._answers(shard)
        by_question: dict[str, list[Answer]] = defaultdict(list)
        for id_, answer in answers:
            by_question[id_].append(answer)
        cluster([(clusters[id_], of_question) for id_, of_question in by_question.items()], self.classifier)
        progress(len(answers), sum(of_question.tokens.total() for of_question in clusters.values()))
        rows = []
        for id_, answer in answers:
            number, n_tokens = clusters[id_].of[answer.normalised], clusters[id_].tokens.pop(answer.normalised, 0)
            cost = {"prompt_tokens": n_tokens, "completion_tokens": 0}  # identical answers are read only once
            rows.append({"question_id": id_, "sample": answer.sample, "value": float(number), **cost})
        return rows

    def _restore(self, clusters: dict[str, Clusters], samples: SampleRange) -> None:
        """Add the stored clusters of an earlier range to `clusters`."""
        rows = self.store.asked.read_shard(self.name, samples).to_pylist()
        numbers = {(row["question_id"], row["sample"]): int(row["value"]) for row in rows}
        for id_, answer in self._answers(samples):
            clusters[id_].of[answer.normalised] = numbers[id_, answer.sample]
            if numbers[id_, answer.sample] == answer.sample:
                clusters[id_].firsts.append(answer)

    def _answers(self, shard: Shard) -> list[tuple[str, Answer]]:
        """Return the question id and the answer for each row."""
        assert isinstance(shard, SampleRange)
        questions = self.questions(shard)
        grades = self.store.grades.read(self._grader, shard).to_pylist()
        normalised = {(row["question_id"], row["sample"]): row["answer"] for row in grades}
        answers = []
        for row in self.answers(shard):
            id_, sample, line = row["question_id"], row["sample"], answer_line(row["text"])
            # without a normalised form, use the first line
            answers.append((id_, Answer(sample, normalised[id_, sample] or line, f"{questions[id_]} {line}")))
        return answers
