"""Text embeddings of questions and answers, by a sentence encoder that knows nothing of the store's model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from extract.asking.base import Baseline, Done
from extract.asking.chats import question_words
from extract.asking.readers import EMBEDDED_ENCODER, TextReader
from extract.grading.base import without_reasoning
from extract.grading.short import first_line
from extract.store.shards import SampleRange, Scope, Shard

#: What is embedded, in words, for the record.
_TEXT: dict[Scope, str] = {"question": "the question", "sample": "the question and the first line of the answer"}


def mean_pooled(states: Tensor, mask: Tensor) -> Tensor:
    """Mean state of the tokens that are no padding, scaled to length 1.

    Args:
        states: [row, token, d] hidden states.
        mask: [row, token], 0 at padding.

    Returns:
        [row, d] float32.
    """
    weights = mask[:, :, None].float()
    return torch.nn.functional.normalize((states.float() * weights).sum(1) / weights.sum(1), dim=1)


class Encoder:
    """A sentence encoder with mean pooling.

    Args:
        name: The embedded encoder's name, a Hub id or a folder.
        device: auto, cpu, cuda or cuda:N.

    Raises:
        InputError: It can't be loaded, or it is no encoder.

    Attributes:
        reader: The model.
    """

    def __init__(self, name: str, device: str = "auto") -> None:
        self.reader = TextReader(name, "embedding_model", "a sentence encoder", "AutoModel", device)
        if self.reader.model.config.is_encoder_decoder:
            raise self.reader.refused("it has a decoder")
        alike = self.reader.encode(["one two three four", "one two three five"])
        first = [self.reader.read([one], lambda output, mask: output.last_hidden_state[:, 0]) for one in alike]
        if torch.equal(first[0], first[1]):
            raise self.reader.refused("each of its tokens sees only those before it, as in a model that writes")

    def embed(self, texts: Sequence[str], progress: Done = lambda items, tokens: None) -> Tensor:
        """Embeddings [text, d] float32 of length 1, on the CPU; equal texts are read once."""
        distinct = list(dict.fromkeys(texts))
        embedded = self.reader.read(
            self.reader.encode(distinct), lambda output, mask: mean_pooled(output.last_hidden_state, mask), progress
        )
        progress(len(texts) - len(distinct), 0)
        place = {text: i for i, text in enumerate(distinct)}
        return embedded[[place[text] for text in texts]]


class TextEmbedding(Baseline):
    """Embeds questions, and the first line of each answer behind its question; kept as a signal.

    By itself a short answer ("4", "Lima") says little, and long solutions are alike whatever they end in. An empty
    answer is a row of NaN.
    """

    name = "text_embedding"
    scopes = ("question", "sample")

    @property
    def always_checked(self) -> bool:
        """Only where another encoder than the default one is named, which costs loading it."""
        return self.means.embedding_model != EMBEDDED_ENCODER

    @cached_property
    def _encoder(self) -> Encoder:
        return Encoder(self.means.embedding_model, self.means.device)

    def how(self, scope: Scope) -> dict[str, Any]:
        """Which encoder, and what it reads of the questions or answers."""
        return {**self._encoder.reader.how, "pooling": "mean", "text": _TEXT[scope]}

    def file(self, place: Shard) -> Path:
        """The signal's file."""
        return self.store.signals.file(self.name, place)

    def check_file(self, place: Shard) -> None:
        """Look at the signal's file."""
        self.store.signals.shard_layout(self.name, place)

    def check_how(self, scope: Scope) -> None:
        """Refuse another encoder."""
        self.store.signals.check_settings(self.name, scope, self.how(scope))

    def fill(self, place: Shard, progress: Done) -> int:
        """Embed a block or part; returns how many answers are empty."""
        words = {question.id: question_words(question) for question in self.questions(place)}
        if isinstance(place, SampleRange):
            answers = [
                (words[row["question_id"]], first_line(without_reasoning(row["text"]))) for row in self.answers(place)
            ]
            embedded = self._encoder.embed([f"{question} {line}" for question, line in answers], progress)
            empty = [i for i, (_, line) in enumerate(answers) if not line]
        else:
            embedded, empty = self._encoder.embed(list(words.values()), progress), []
        embedded[empty] = torch.nan
        key = "0/answer" if isinstance(place, SampleRange) else "0/question"
        batch_tokens, how = self._encoder.reader.batch_tokens, self.how(place.scope)
        self.store.signals.write(self.name, place, {key: embedded}, batch_tokens, how)
        return len(empty)
