"""Command that computes a prior on each question's accuracy with a saved probe."""

import json
from pathlib import Path

from extract.errors import InputError
from extract.hashing import differences, sha256_json
from extract.questions.question import questions_hash
from extract.recipe import StoreRecipe
from extract.sampling.prior import write_priors
from probes.saved.artefact import load_probe


def priors(probe: str, recipe: StoreRecipe, out: str = "priors.parquet") -> Path:
    """Write a prior on each question's accuracy, for `python -m extract sample --stop prior`.

    Each prior is a beta distribution over the question's fraction of right answers. Its mean is the probe's confidence.
    Its concentration was fitted when the probe was trained.

    Args:
        probe: Folder or Hub id of a saved probe whose target is `capability`. The probe must not have been trained on
            the questions of the recipe, because a probe's confidences for its training questions are too extreme.
        recipe: Questions, prompt and model, as for `python -m extract sample`. If the model runs on a server, pass
            a local copy as `model`.
        out: Parquet file to write.

    Raises:
        InputError: If the probe cannot be loaded, has no prior, was trained on these questions, or was trained with
            another model or prompt.
    """
    from extract.models.loading import load_model
    from extract.models.store_model import encode_questions

    loaded = load_probe(probe)
    fitted = loaded.config.get("prior")
    if fitted is None:
        raise InputError(
            f"Expected `probe` to be a probe with a fitted prior, but {probe!r}, whose target is "
            f"{loaded.config['target']!r}, has none. The probe may have been saved by an earlier version of "
            "confidence-probes. Train a new probe with --data.target=capability."
        )
    questions, decoding = recipe.load()
    if loaded.config["training"].get("questions") == questions_hash(questions):
        raise InputError(
            f"Expected `questions` to differ from the training questions of {probe!r}, but they are the same. A "
            "probe's confidences for its training questions are too extreme. Use different questions or a different "
            "probe."
        )
    prompt = json.loads(json.dumps(decoding.record()["prompt"]))
    if different := "; ".join(differences(prompt, loaded.config["prompt"])):
        raise InputError(
            f"Expected the prompt that {probe!r} was trained with, but the prompt of this run differs in "
            f"{different}. Pass the options used to sample the training answers, such as "
            "--config configs/sets/facts.yaml."
        )
    dtype = loaded.config["model"]["dtype"] if recipe.dtype == "auto" else recipe.dtype
    model, tokenizer = load_model(recipe.model, recipe.revision, dtype, recipe.device, recipe.device_map)
    prompts = encode_questions(tokenizer, decoding.prompt, questions)
    confidence = loaded.score(model, tokenizer, prompts).confidence.double()
    write_priors(out, [question.id for question in questions], confidence.numpy(), **fitted, prompt=sha256_json(prompt))
    print(f"Priors of {len(questions)} questions, mean confidence {confidence.mean():.2f}: {out}")
    return Path(out)
