"""Clusters of answers that mean the same: each entails the other, by a classifier of pairs of sentences.

Kuhn et al. 2023 and Farquhar et al. 2024 with strict entailment: an answer joins the first cluster whose first member it
entails and is entailed by. Other members are not asked, and an answer is in one cluster only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from extract.asking.readers import TextReader

_LABELS = ("entailment", "neutral", "contradiction")


class Answer(NamedTuple):
    """An answer: its index j, its normalised form, and the text that the classifier reads."""

    sample: int
    normalised: str
    text: str


@dataclass
class Clusters:
    """The clusters of one question's answers.

    Attributes:
        of: Number of the cluster by normalised answer: the index j of its first member, so that answers that come later
            change no number.
        firsts: First member of each cluster, in the order in which they were opened.
        tokens: Tokens read, by the normalised answer that was looking for its cluster.
    """

    of: dict[str, int] = field(default_factory=dict)
    firsts: list[Answer] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)


#: From pairs (premise, hypothesis) to whether each is entailed, and how many tokens were read for it.
Entails = Callable[[Sequence[tuple[str, str]]], Sequence[tuple[bool, int]]]


def cluster(questions: Sequence[tuple[Clusters, Iterable[Answer]]], entails: Entails) -> None:
    """Put answers into clusters; those of all questions in step, so that their pairs are read together.

    The same as when one answer after another looks at its question's clusters in their order. Answers with the same
    normalised form are one. No pair is read twice, and its second direction only where the first is entailed.

    Args:
        questions: For each, the clusters that there are, which are added to, and its further answers by j.
        entails: The classifier.
    """
    pending = [_distinct(answers, clusters) for clusters, answers in questions]
    step = 0
    while any(pending):
        compared: list[tuple[int, Answer, Answer]] = []  # question, first member, answer
        for q, (clusters, _) in enumerate(questions):
            if pending[q] and step == len(clusters.firsts):
                opener = pending[q].pop(0)
                clusters.firsts.append(opener)
                clusters.of[opener.normalised] = opener.sample
            compared += [(q, clusters.firsts[step], one) for one in pending[q]]
        for forward in (True, False):
            pairs = [(first.text, one.text) if forward else (one.text, first.text) for _, first, one in compared]
            verdicts = entails(pairs) if pairs else []
            for (q, _, one), (_, tokens) in zip(compared, verdicts, strict=True):
                spent = questions[q][0].tokens
                spent[one.normalised] = spent.get(one.normalised, 0) + tokens
            compared = [case for case, (entailed, _) in zip(compared, verdicts, strict=True) if entailed]
        for q, first, one in compared:
            questions[q][0].of[one.normalised] = first.sample
            pending[q].remove(one)
        step += 1


def _distinct(answers: Iterable[Answer], clusters: Clusters) -> list[Answer]:
    """The first answer of each normalised form that has no cluster yet."""
    firsts: dict[str, Answer] = {}
    for one in answers:
        if one.normalised not in clusters.of:
            firsts.setdefault(one.normalised, one)
    return list(firsts.values())


class Classifier:
    """An entailment classifier: labels entailment, neutral and contradiction, in whatever order its config names them.

    Args:
        name: A Hub id or a folder.
        device: auto, cpu, cuda or cuda:N.

    Attributes:
        reader: The model.
        n_pairs: Pairs that were read so far.

    Raises:
        InputError: It can't be loaded, or it has other labels.
    """

    def __init__(self, name: str, device: str = "auto") -> None:
        self.reader = TextReader(
            name, "nli_model", "an entailment classifier", "AutoModelForSequenceClassification", device
        )
        labels = {int(i): str(label).casefold() for i, label in self.reader.model.config.id2label.items()}
        if sorted(labels.values()) != sorted(_LABELS):
            held = ", ".join(labels[i] for i in sorted(labels))
            raise self.reader.refused(f"its labels are {held} and not {', '.join(_LABELS)}")
        self._entailment = next(i for i, label in labels.items() if label == "entailment")
        self.n_pairs = 0

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[bool, int]]:
        """For each pair (premise, hypothesis): whether entailment is its likeliest label, and its tokens."""
        encoded = self.reader.encode(pairs)
        logits = self.reader.read(encoded, lambda output, mask: output.logits)
        self.n_pairs += len(pairs)
        entailed = (logits.argmax(-1) == self._entailment).tolist()
        return [(yes, len(one["input_ids"])) for yes, one in zip(entailed, encoded, strict=True)]
