"""Dispersion of the answers to a question. Higher values mean less agreement.

Most functions take a symmetric matrix S [sample, sample] of similarities between n ≥ 2 answers. The similarities are in
[0, 1], and the diagonal is 1.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import entr


def mean_distance(similarity: NDArray[np.float64]) -> float:
    """Compute the mean of 1 − S_ij over all pairs i ≠ j.

    With ROUGE-L scores as similarities, this is 1 minus the lexical similarity.
    """
    n = len(similarity)
    return float(1 - (similarity.sum() - n) / (n * (n - 1)))


def degree(similarity: NDArray[np.float64]) -> float:
    """Compute 1 − Σ_ij S_ij / n², the uncertainty measure based on the degree matrix (Lin et al., arXiv 2305.19187)."""
    return float(1 - similarity.mean())


def eigenvalue_sum(similarity: NDArray[np.float64]) -> float:
    r"""Compute Σ_k max(0, 1 − λ_k), a continuous version of the number of clusters (Lin et al.).

    The λ_k are the eigenvalues of the normalised graph Laplacian

    .. math:: L = I - D^{-1/2} S D^{-1/2}, \qquad D_{ii} = \sum_j S_{ij}.

    >>> round(eigenvalue_sum(np.eye(3)), 12)
    3.0
    """
    return float(np.linalg.eigvalsh(_normalised(similarity)).clip(min=0).sum())


def eccentricity(similarity: NDArray[np.float64], threshold: float = 0.9) -> float:
    """Compute the distance of the answers from their centre in a spectral embedding (Lin et al.).

    The embedding is a matrix. Its columns are the eigenvectors of the Laplacian (see `eigenvalue_sum`) with eigenvalues
    below `threshold`. Its jth row v_j represents answer j. The result is √(Σ_j ‖v_j − v̄‖²), where v̄ is the mean of
    all v_j.
    """
    values, vectors = np.linalg.eigh(_normalised(similarity))
    coordinates = vectors[:, 1 - values < threshold]
    return float(np.linalg.norm(coordinates - coordinates.mean(0)))


def kernel_entropy(similarity: NDArray[np.float64], time: float = 0.3) -> float:
    """Compute the normalised kernel language entropy with a heat kernel (Nikitin et al., arXiv 2405.20003).

    The graph Laplacian is L = D − W, with the weights W = 2 S as in the paper. D is the diagonal matrix of the row sums
    of W. The heat kernel exp(−t L) is scaled so that its diagonal entries are 1/n. The result is the entropy of the
    eigenvalues of the scaled kernel, divided by ln n.
    """
    n, weights = len(similarity), 2 * similarity
    values, vectors = np.linalg.eigh(np.diag(weights.sum(1)) - weights)
    kernel = vectors * np.exp(-time * values) @ vectors.T
    scale = np.sqrt(np.diag(kernel))
    eigenvalues = np.linalg.eigvalsh(kernel / np.outer(scale, scale) / n)
    return float(entr(eigenvalues.clip(min=0)).sum() / np.log(n))


def eigenscore(states: NDArray[np.floating], alpha: float = 1e-3) -> float:
    """Compute the EigenScore from INSIDE (Chen et al., arXiv 2402.03744): log det(Z J Zᵀ + αI) / n.

    The rows of Z are the hidden states of the n non-empty answers. J centres each row by subtracting its mean. The
    result is NaN if n is less than 2.

    Args:
        states: Hidden states, [sample, d_model]; NaN for empty answers.
        alpha: Regularisation α.
    """
    rows = states[~np.isnan(states).any(1)].astype(np.float64)
    if len(rows) < 2:
        return float("nan")
    centred = rows - rows.mean(1, keepdims=True)
    return float(np.linalg.slogdet(centred @ centred.T + alpha * np.eye(len(rows))).logabsdet / len(rows))


def _normalised(similarity: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return D^(−1/2) S D^(−1/2) = I − L, where L is the normalised graph Laplacian."""
    scale = np.sqrt(similarity.sum(1))
    return similarity / np.outer(scale, scale)
