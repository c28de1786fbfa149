"""The baseline `entailment`: which of a question's answers mean the same, for semantic entropy."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import Any

from extract.asking.base import Done, Means, TableBaseline
from extract.asking.chats import question_words
from extract.asking.entailment import Answer, Classifier, Clusters, cluster
from extract.errors import InputError
from extract.grading.base import without_reasoning
from extract.grading.short import first_line
from extract.store.shards import SampleRange, Scope, Shard
from extract.store.store import Store
from extract.viewing.inspection import choose_grader


class Entailment(TableBaseline):
    """Numbers the cluster of each answer; the classifier reads the question and the first line of the answer.

    Equal answers, as the grader normalises them, share a cluster unread. A part goes on from the clusters of the parts
    before it, so that all answers of a question are clustered together however they were sampled.
    """

    name = "entailment"
    scopes = ("sample",)

    def __init__(self, store: Store, means: Means) -> None:
        super().__init__(store, means)
        if means.nli_model is None:
            raise InputError(
                "Expected `nli_model` for the baseline 'entailment', but got none. Give --nli_model with a Hub id or a folder of a classifier with the labels entailment, neutral and contradiction."
            )
        self._grader = choose_grader(store, means.grader)
        ungraded = store.grades.missing(self._grader)
        if ungraded:
            raise InputError(
                f"Expected all answers of {str(store.path)!r} to be graded, because equal answers share a cluster, but {len(ungraded)} parts lack grades by {self._grader!r}. Run `python -m extract grade --store {store.path} --grader {self._grader}`."
            )

    @cached_property
    def classifier(self) -> Classifier:
        """The entailment classifier."""
        assert self.means.nli_model is not None
        return Classifier(self.means.nli_model, self.means.device)

    def how(self, scope: Scope) -> dict[str, Any]:
        """Which classifier, whose normalised answers, and what was read."""
        text = "the question and the first line of the answer"
        return {**self.classifier.reader.how, "grader": self._grader, "entailment": "strict", "text": text}

    def rows(self, place: Shard, progress: Done) -> list[dict[str, Any]]:
        """A row an answer: the index of its cluster's first member, and the tokens that were read to find it."""
        assert isinstance(place, SampleRange)
        held: dict[str, Clusters] = defaultdict(Clusters)
        for earlier in self.store.samples.ranges():
            if earlier.block == place.block and earlier.start < place.start:
                self._recall(held, earlier)
        answers = self._answers(place)
        by_question: dict[str, list[Answer]] = defaultdict(list)
        for id_, answer in answers:
            by_question[id_].append(answer)
        cluster([(held[id_], of_question) for id_, of_question in by_question.items()], self.classifier)
        progress(len(answers), sum(tokens for clusters in held.values() for tokens in clusters.tokens.values()))
        return [
            {
                "question_id": id_,
                "sample": answer.sample,
                "value": float(held[id_].of[answer.normalised]),
                # what a later answer with the same words needed was read for the first of them
                "prompt_tokens": held[id_].tokens.pop(answer.normalised, 0),
                "completion_tokens": 0,
            }
            for id_, answer in answers
        ]

    def _recall(self, held: dict[str, Clusters], part: SampleRange) -> None:
        """Add the clusters of a part that was asked about before."""
        numbers = self.store.asked.read_shard(self.name, part).to_pylist()
        number = {(row["question_id"], row["sample"]): int(row["value"]) for row in numbers}
        for id_, answer in self._answers(part):
            held[id_].of[answer.normalised] = number[id_, answer.sample]
            if number[id_, answer.sample] == answer.sample:
                held[id_].firsts.append(answer)

    def _answers(self, part: SampleRange) -> list[tuple[str, Answer]]:
        """Question id and answer of each row of a part, those of a question by j."""
        words = {question.id: question_words(question) for question in self.questions(part)}
        grades = self.store.grades.read(self._grader, part).to_pylist()
        normalised = {(row["question_id"], row["sample"]): row["answer"] for row in grades}
        rows = [
            (row["question_id"], row["sample"], first_line(without_reasoning(row["text"])))
            for row in self.answers(part)
        ]
        # what the grader could not read is compared by its line
        return [(id_, Answer(j, normalised[id_, j] or line, f"{words[id_]} {line}")) for id_, j, line in rows]
