"""Words that are characteristic of a cluster of texts."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

#: Minimum z score, the 99 % quantile of the standard normal distribution.
LEAST_Z = 2.326


def characteristic_words(
    texts: Sequence[str], cluster: NDArray[np.int64], n_clusters: int, n_words: int = 8
) -> list[list[str]]:
    r"""Return the words that are most characteristic of each cluster, by log-odds ratio.

    The log-odds ratios compare the texts of the cluster with all other texts. They are smoothed with a Dirichlet prior,
    and divided by their standard deviations (Monroe, Colaresi and Quinn, Fightin' Words, Political Analysis 16, 2008):

    .. math::
        z_w = \frac{\log\frac{y_w + a_w}{n + a - y_w - a_w} - \log\frac{y'_w + a_w}{n' + a - y'_w - a_w}}
            {\sqrt{1/(y_w + a_w) + 1/(y'_w + a_w)}}

    where :math:`y_w` and :math:`y'_w` are the numbers of texts with the word w inside and outside the cluster. The sums
    of these numbers over all words are n and n'. The pseudo-counts :math:`a_w` of the prior are proportional to the
    word frequencies in all texts. Their sum :math:`a` is the number of distinct words.

    Args:
        cluster: Cluster index of each text, [text].
        n_words: Maximum number of words per cluster.

    Returns:
        For each cluster, the words with a z score of at least 2.326, in decreasing order of z score.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    vectorizer = CountVectorizer(binary=True, token_pattern=r"\w[\w'’-]+")
    try:
        counts = vectorizer.fit_transform(texts)
    except ValueError:  # the texts contain no words
        return [[] for _ in range(n_clusters)]
    words = vectorizer.get_feature_names_out()
    of_all = np.asarray(counts.sum(0), dtype=np.float64).ravel()
    prior = of_all * len(words) / of_all.sum()
    found = []
    for one in range(n_clusters):
        inside = np.asarray(counts[cluster == one].sum(0), dtype=np.float64).ravel()
        here, elsewhere = inside + prior, of_all - inside + prior
        with np.errstate(divide="ignore", invalid="ignore"):  # only one distinct word
            log_odds = np.log(here / (here.sum() - here)) - np.log(elsewhere / (elsewhere.sum() - elsewhere))
        z = log_odds / np.sqrt(1 / here + 1 / elsewhere)
        order = np.argsort(-z, kind="stable")[:n_words]
        found.append([str(words[i]) for i in order if z[i] >= LEAST_Z])
    return found
