"""Write certified thresholds to the config.json of a saved probe."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from applications.confidences import check_probe_model, confidence_name
from extract.errors import InputError
from extract.hashing import differences
from extract.store.files import replace_file
from extract.store.store import Store
from probes.saved.artefact import load_probe


def check_probe(folder: str, sources: Sequence[str], store: Store) -> None:
    """Check that the thresholds for `sources` can be stored in a probe's config.json."""
    if not Path(folder).is_dir():
        raise InputError(
            f"Expected `probe` to be the folder of a saved probe, but there is no folder {folder!r}. Pass the `probe` "
            "folder of a run."
        )
    probe = load_probe(folder)
    if probe.reads_answers:
        raise InputError(
            f"Expected `probe` to read questions, but the one in {folder!r} reads answers. Thresholds for questions do "
            "not apply to it. Train a probe with --data.target=capability."
        )
    check_probe_model(probe, store)
    prompt = store.identity["policy"]["decoding"]["prompt"]
    if different := "; ".join(differences(prompt, probe.config["prompt"])):
        raise InputError(
            f"Expected `probe` to use the same prompt as '{store.path}', but its prompt differs in {different}. Pass "
            "a probe that was trained with the store's prompt."
        )
    method = probe.config.get("name")
    names = [method if Path(source).is_dir() else confidence_name(source) for source in sources]
    if names != [method]:
        raise InputError(
            f"Expected `confidences` to have exactly one source, named {method!r} (the method of the probe in "
            f"{folder!r}), but got {', '.join(map(str, names)) or 'none'}. Pass the out-of-fold predictions of "
            "this method."
        )


def save_decisions(folder: str, record: Mapping[str, Any]) -> int:
    """Replace the thresholds for the target risks in a probe's config.json. Return the number of stored thresholds.

    `record` is the result of `decide_record` for a single source of confidences.
    """
    file = Path(folder) / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    (found,) = record["confidences"].values()
    requested = {one["risk"] for one in found["thresholds"]}
    kept = [one for one in config.get("decisions", []) if one["risk"] not in requested]
    new = [
        {
            "risk": one["risk"],
            "level": record["level"],
            "threshold": one["threshold"],
            "coverage": one["coverage"]["value"],
            "n_questions": record["n_questions"],
        }
        for one in found["thresholds"]
        if one["threshold"] is not None
    ]
    config["decisions"] = sorted(kept + new, key=lambda one: float(one["risk"]))
    replace_file(file, (json.dumps(config, indent=1, sort_keys=True) + "\n").encode())
    return len(new)
