"""Probes that estimate a language model's confidence in its answers, with baselines, metrics and reports.

Public names are imported on first use, so `load_probe` needs only torch, safetensors and huggingface_hub.
"""

from typing import Any

from extract.registry import import_object
from probes.registry import METHODS

_PUBLIC = {
    "ConfidenceProbe": "probes.saved.artefact:ConfidenceProbe",
    "Decisions": "probes.saved.decisions:Decisions",
    "ProbeModule": "probes.fitting.module:ProbeModule",
    "abstain": "probes.saved.decisions:abstain",
    "best_of": "probes.saved.decisions:best_of",
    "load_probe": "probes.saved.artefact:load_probe",
    "route": "probes.saved.decisions:route",
    **{method.class_name: method.path for method in METHODS.values()},
}


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return import_object(_PUBLIC[name])
    raise AttributeError(f"module 'probes' has no attribute {name!r}")


__all__ = sorted(_PUBLIC)
