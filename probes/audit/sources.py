"""Question features that might predict the accuracy of the answers."""

import math
from collections.abc import Sequence
from string import ascii_uppercase
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from extract.questions.question import Question
from extract.store.store import Store

Features = NDArray[np.float64]
#: Maximum number of n-gram features, and of indicator features.
_MOST_FEATURES = 128
#: Number of cosines for each numeric property.
_N_COSINES = 8


class Source(NamedTuple):
    """Group of question features that might predict the accuracy of the answers.

    Attributes:
        label, description: Text for display.
        leak: Whether predicting the accuracy from this source indicates a leak.
    """

    label: str
    description: str
    leak: bool = False


SOURCES: dict[str, Source] = {
    "text": Source("question text", "words and word pairs in the question, without its options"),
    "text_embedding": Source("text embedding", "sentence embedding of the question, from `extract ask`"),
    "group": Source("group", "the question's group"),
    "options": Source("options alone", "words, number and lengths of the options, without the question", leak=True),
    "key": Source("key", "letter of the right option, and length of this option relative to the others", leak=True),
    "length": Source("length", "number of characters and words in the question, without its options", leak=True),
    "position": Source("position", "position of the question in its question set", leak=True),
}


def read_sources(store: Store) -> tuple[dict[str, Features], dict[str, str]]:
    """Compute the features of each source for all questions of a store.

    Returns:
        - A dict from each source to its features [question, feature], in the order of `SOURCES`. Missing features are
          NaN.
        - A dict from each missing source to the reason why it is missing.
    """
    found, masked = question_sources(store.questions)
    if "text_embedding" not in store.signals.names() or store.signals.missing("text_embedding"):
        command = f"python -m extract ask --store {store.path} --baselines '[text_embedding]'"
        masked["text_embedding"] = f"the store has no embeddings of the questions; run `{command}`"
    else:
        found["text_embedding"] = store.signals.read("text_embedding", "0/question").double().numpy()
    return {name: found[name] for name in SOURCES if name in found}, masked


def question_sources(questions: Sequence[Question]) -> tuple[dict[str, Features], dict[str, str]]:
    """Compute the features of all sources except the text embeddings. See `read_sources`."""
    texts = [question.text or "\n".join(turn["content"] for turn in question.messages) for question in questions]
    lengths = np.array([(len(text), len(text.split())) for text in texts], dtype=np.float64)
    found = {"text": ngrams(texts), "length": cosines(lengths), "group": _indicators([q.group for q in questions])}
    positions = [question.row for question in questions]
    order = range(len(questions)) if None in positions else positions
    found["position"] = cosines(np.array(order, dtype=np.float64)[:, None])
    rows = [row for row, question in enumerate(questions) if question.kind == "choice" and question.choices]
    for name, features in _option_features([questions[row] for row in rows]).items():
        found[name] = np.full((len(questions), features.shape[1]), np.nan)
        found[name][rows] = features
    masked = dict.fromkeys({"options", "key"} - found.keys(), "no question has options")
    masked |= {name: "all questions have the same features" for name in found if _is_constant(found[name])}
    return {name: features for name, features in found.items() if name not in masked}, masked


def _option_features(questions: Sequence[Question]) -> dict[str, Features]:
    """Return the features of the `options` and `key` sources. All `questions` must have options."""
    if not questions:
        return {}
    letters = [ascii_uppercase.index(question.references[0]) for question in questions]
    lengths = [np.log1p([len(option) for option in question.choices]) for question in questions]
    sizes = [(len(one), one.mean(), np.ptp(one)) for one in lengths]
    excess = [(one[letter] - one.mean(),) for one, letter in zip(lengths, letters, strict=True)]
    return {
        "options": _joined(ngrams(["\n".join(q.choices) for q in questions]), cosines(np.array(sizes))),
        "key": _joined(_indicators(letters), cosines(np.array(excess))),
    }


def ngrams(texts: Sequence[str]) -> Features:
    """Return the first 128 singular components of TF-IDF weights for words and word pairs.

    Numbers and punctuation marks are treated as words. The result has shape [text, feature]. If all texts are equal, it
    is a single column of zeros.
    """
    from sklearn.decomposition import TruncatedSVD  # takes a second to import
    from sklearn.feature_extraction.text import TfidfVectorizer

    if len({" ".join(text.split()) for text in texts}) < 2:
        return np.zeros((len(texts), 1))
    weights = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+|[^\w\s]", sublinear_tf=True).fit_transform(texts)
    return TruncatedSVD(min(_MOST_FEATURES, *weights.shape), random_state=0).fit_transform(weights)


def cosines(values: NDArray[np.float64]) -> Features:
    r"""Return :math:`\cos(\pi j u) / j` for j = 1 … 8, where u are the relative ranks in each column of `values`.

    The relative rank of a value among n questions is (midrank − ½) / n. High-frequency features are small, so a ridge
    regression favours smooth functions of the values.

    `values` has shape [question, column], and the result has shape [question, 8 × column].
    """
    u = (rankdata(values, axis=0) - 0.5) / len(values)
    frequencies = np.arange(1, _N_COSINES + 1)
    return (np.cos(math.pi * frequencies * u[:, :, None]) / frequencies).reshape(len(values), -1)


def _indicators(values: Sequence[object]) -> Features:
    """Return indicators [question, value] for the most frequent values (at most 128) that occur more than once."""
    _, index, counts = np.unique(np.array(values), return_inverse=True, return_counts=True)
    frequent = np.sort(np.argsort(-counts, kind="stable")[:_MOST_FEATURES])
    return (index[:, None] == frequent[counts[frequent] > 1]).astype(np.float64)


def _is_constant(features: Features) -> bool:
    return not (np.nanmax(features, axis=0, initial=-np.inf) > np.nanmin(features, axis=0, initial=np.inf)).any()


def _joined(*blocks: Features) -> Features:
    """Centre each block, scale it to a total variance of 1, and join the blocks. Constant blocks become 0."""
    centred = [block - block.mean(0) for block in blocks]
    return np.hstack([block / (np.sqrt(np.square(block).sum() / len(block)) or 1.0) for block in centred])
