"""Probes: training, baselines, honest metrics, and the confidence of a saved probe.

The public names are imported when they are first used: `load_probe` needs torch, safetensors and huggingface_hub only.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PUBLIC = {
    "ConfidenceProbe": "probes.saved.artefact",
    "DifferenceOfMeans": "probes.difference_of_means",
    "KNN": "probes.knn",
    "Latent": "probes.latent",
    "Linear": "probes.linear",
    "Logistic": "probes.logistic",
    "MLP": "probes.mlp",
    "ProbeModule": "probes.fitting.module",
    "Ridge": "probes.ridge",
    "load_probe": "probes.saved.artefact",
}


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'probes' has no attribute {name!r}")


__all__ = sorted(_PUBLIC)
