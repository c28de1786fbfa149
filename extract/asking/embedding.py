"""The `text_embedding` baseline: sentence embeddings of questions and answers, stored as a signal."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from extract.asking.base import AskedBaseline, Done, answer_line
from extract.asking.readers import TextReader
from extract.models.embedded import EMBEDDED_ENCODER
from extract.store.shards import Scope, Shard
from extract.store.signals import Signals


def mean_pooled(states: Tensor, mask: Tensor) -> Tensor:
    """Average hidden states [row, token, d_model] under a mask, and scale the results [row, d_model] to unit length."""
    weights = mask[:, :, None].float()
    return torch.nn.functional.normalize((states.float() * weights).sum(1) / weights.sum(1), dim=1)


class Encoder(TextReader):
    """Sentence encoder with mean pooling. See `TextReader`.

    Raises:
        InputError: If the model can't be loaded or is not an encoder.
    """

    option, noun, auto_class = "embedding_model", "a sentence encoder", "AutoModel"

    def __init__(self, name: str, device: str = "auto") -> None:
        super().__init__(name, device)
        if self.model.config.is_encoder_decoder:
            raise self.refusal("it has a decoder")
        alike = self.encode(["one two three four", "one two three five"])
        first = [self.read([inputs], lambda output, mask: output.last_hidden_state[:, 0]) for inputs in alike]
        if torch.equal(first[0], first[1]):
            raise self.refusal("its tokens attend only to earlier tokens, as in a generative model")

    def embed(self, texts: Sequence[str], progress: Done = lambda items, tokens: None) -> Tensor:
        """Return unit-length embeddings [text, d_model] on the CPU. Identical texts are encoded only once."""
        distinct = list(dict.fromkeys(texts))
        encoded = self.encode(distinct)
        embedded = self.read(encoded, lambda output, mask: mean_pooled(output.last_hidden_state, mask), progress)
        progress(len(texts) - len(distinct), 0)
        row = {text: i for i, text in enumerate(distinct)}
        return embedded[[row[text] for text in texts]]


class TextEmbedding(AskedBaseline):
    """Embeds each question alone, and together with the first line of each of its answers.

    Reasoning and later lines are left out. They can be so long that the short answer would hardly affect the embedding.
    The embedding of an empty answer is NaN.
    """

    @property
    def always_compared(self) -> bool:
        """Whether to check the settings against the recorded settings even if all embeddings exist.

        False for the default encoder, to avoid loading it.
        """
        return self.context.embedding_model != EMBEDDED_ENCODER

    @cached_property
    def _encoder(self) -> Encoder:
        return Encoder(self.context.embedding_model, self.context.device)

    def settings(self, scope: Scope) -> dict[str, Any]:
        """See `AskedBaseline.settings`."""
        text = "the question" if scope == "question" else "the question and the first line of the answer"
        return {**self._encoder.settings, "pooling": "mean", "text": text}

    @property
    def values(self) -> Signals:
        """The store's signals, which include the embeddings."""
        return self.store.signals

    def check_file(self, shard: Shard) -> None:
        """See `AskedBaseline.check_file`."""
        self.values.shard_layout(self.name, shard)

    def fill(self, shard: Shard, progress: Done) -> int:
        """Write the signal file of a shard, and return the number of empty answers."""
        questions = self.questions(shard)
        if shard.scope == "sample":
            answers = [(questions[row["question_id"]], answer_line(row["text"])) for row in self.answers(shard)]
            texts = [f"{question} {line}" for question, line in answers]
            key, empty = "0/answer", [i for i, (_, line) in enumerate(answers) if not line]
        else:
            key, texts, empty = "0/question", list(questions.values()), []
        embedded = self._encoder.embed(texts, progress)
        embedded[empty] = torch.nan
        self.values.write(self.name, shard, {key: embedded}, self._encoder.batch_tokens, self.settings(shard.scope))
        return len(empty)
