"""Load causal language models by name, Hub id or folder, and compute their fingerprints."""

import hashlib
import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch

from extract.errors import InputError
from extract.hashing import canonical_json, differences, sha256_text
from extract.models.embedded import EMBEDDED_MODEL, embedded_model_folder
from extract.policy import ModelIdentity
from extract.prompts import template_hash
from extract.text import one_line

DTYPES = {"auto": "auto", "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(
    model: str = EMBEDDED_MODEL,
    revision: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    device_map: str | None = None,
) -> tuple[Any, Any]:
    """Load a causal language model and its tokenizer, ready for inference.

    Args:
        model: smollm2-135m-instruct (installed by `make install`), a Hub id, or a folder.
        revision: Commit, branch or tag of a Hub model.
        dtype: "auto" (the dtype of the checkpoint), "float32", "bfloat16" or "float16".
        device: A torch device such as "cuda:1", or "auto". "auto" selects the CPU if CUDA is not available, and
            otherwise the CUDA device of this worker: LOCAL_RANK modulo the number of devices. Ignored if `device_map`
            is set.
        device_map: How to distribute a large model over several devices, as in transformers ("auto", "balanced", …).

    Raises:
        InputError: If the dtype or device is invalid, or the model can't be loaded.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if dtype not in DTYPES:
        raise InputError(f"Expected `dtype` to be one of {', '.join(DTYPES)}, but got {dtype!r}.")
    where = resolve_device(device)
    source = str(embedded_model_folder()) if model == EMBEDDED_MODEL else model
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision)
        loaded = AutoModelForCausalLM.from_pretrained(
            source, revision=revision, dtype=DTYPES[dtype], device_map=device_map
        )
    except (OSError, ValueError) as error:
        problem = "can't be loaded. Pass a different model"
        if isinstance(error, OSError) and not os.path.isdir(source):
            problem = "is not a folder and can't be loaded from the Hub. Check the path or the id"
        raise InputError(
            f"Expected `model` to be the Hub id or folder of a causal language model, or {EMBEDDED_MODEL!r}, but "
            f"{model!r} {problem}. The error is: {one_line(error, 300)}"
        ) from error
    loaded.name_or_path = model
    return (loaded.to(where) if device_map is None else loaded).eval(), tokenizer


def resolve_device(device: str) -> torch.device:
    """Return the torch device for a `device` option, or raise an InputError if it is not available."""
    if device == "auto":
        # one device per worker
        index = int(os.environ.get("LOCAL_RANK", "0")) % max(1, torch.cuda.device_count())
        return torch.device("cuda", index) if torch.cuda.is_available() else torch.device("cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, NotImplementedError):  # torch raises one of these, depending on the device
        raise InputError(
            f"Expected `device` to be auto, cpu, cuda or cuda:N, and available on this machine, but got {device!r}. "
            "Use --device auto."
        ) from None


def model_identity(model: Any, tokenizer: Any) -> ModelIdentity:
    """Return the identity of a loaded model and its tokenizer."""
    path = Path(model.name_or_path)
    return ModelIdentity(
        id=path.resolve().name if path.is_dir() else str(model.name_or_path),
        revision=getattr(model.config, "_commit_hash", None),
        fingerprint=weight_fingerprint(model),
        dtype=str(model.dtype).removeprefix("torch."),
        tokenizer=tokenizer_hash(tokenizer),
        chat_template=template_hash(tokenizer),
    )


def check_model(model: Any, tokenizer: Any, expected: dict[str, Any], owner: str) -> None:
    """Raise an InputError if a model or its tokenizer differs from `expected` (a `ModelIdentity` as a dict).

    `id` and `revision` are only names and are not compared. `owner` is the store or probe that needs the expected
    model.
    """
    names = {"id": expected["id"], "revision": expected["revision"]}
    if differing := list(differences(asdict(model_identity(model, tokenizer)) | names, expected)):
        revision = f" at revision {expected['revision']}" if expected["revision"] else ""
        raise InputError(
            f"Expected the model of {owner} ({expected['id']!r}{revision} in {expected['dtype']}), but got "
            f"{model.name_or_path!r}, which differs in {'; '.join(differing)}. Load the expected model with "
            f"`load_model({expected['id']!r}, dtype={expected['dtype']!r})`. In commands, pass its Hub id or folder as "
            "--model."
        )


def weight_fingerprint(model: Any) -> str:
    """Return a checksum of a model's weights and of the config entries that affect the computation.

    For each saved parameter and buffer, the checksum covers the name, the shape, the dtype, a sample of the values, and
    the sum of all values. For the sum, the bits of each value are read as an integer.

    Raises:
        InputError: If weights are offloaded to disk.
    """
    # later versions of transformers add entries with defaults
    config = model.config.get_text_config().to_diff_dict()
    computing = {key: value for key, value in config.items() if not _NOT_COMPUTING.fullmatch(key)}
    digest = hashlib.sha256(canonical_json(json.loads(json.dumps(computing, default=str))).encode())
    for name, tensor in sorted(model.state_dict().items()):
        if tensor.is_meta:
            raise InputError(
                f"Expected all weights to be in memory, but {name!r} is offloaded to disk. Load the model with a "
                "`device_map` that keeps all weights in memory."
            )
        flat = tensor.detach().reshape(-1)
        flat = flat.to(torch.int8) if flat.dtype == torch.bool else flat
        integers = flat.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
        bits, sample = int(integers.sum(dtype=torch.int64)), flat[:: max(1, flat.numel() // 256)]
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {bits}".encode())
        digest.update(sample.contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return digest.hexdigest()


#: Config entries that do not affect the computation: names, training options and output formats.
_NOT_COMPUTING = re.compile(
    "_.*|.*_token_id|.*(name_or_path|version|dtype|dropout|pdrop|initializer_range)|architectures|auto_map|use_cache"
    "|output_.*|return_dict|.*2.*label|.*label2.*|problem_type|task_specific_params|gradient_checkpointing|pretraining_tp"
    "|max_length"
)


def tokenizer_hash(tokenizer: Any) -> str:
    """SHA-256 of a tokenizer's state. Padding and truncation settings are left out, because they vary between calls."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return sha256_text(json.dumps([sorted(tokenizer.get_vocab().items()), str(tokenizer.special_tokens_map)]))
    return _backend_hash(backend.to_str())


@cache
def _backend_hash(serialised: str) -> str:
    state = {key: value for key, value in json.loads(serialised).items() if key not in ("padding", "truncation")}
    return sha256_text(json.dumps(state, sort_keys=True))


def end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """Return the ids of all tokens that end an answer."""
    configured = model.generation_config.eos_token_id
    ids = configured if isinstance(configured, list) else [configured]
    return sorted({token for token in (*ids, tokenizer.eos_token_id) if token is not None})


def check_prompts(model: Any, prompts: Sequence[Sequence[int]], n_further: int = 0, name: str = "prompt") -> None:
    """Raise an InputError if a prompt is empty, contains an unknown token, or is too long for the model.

    `n_further` is the maximum number of tokens after each prompt. Error messages refer to a prompt as `name`.
    """
    n_vocab = model.get_input_embeddings().num_embeddings
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None) or math.inf
    for i, prompt in enumerate(prompts):
        if not prompt:
            raise InputError(f"Expected prompts with at least one token, but {name} {i} is empty. Remove it.")
        if outside := [token for token in prompt if not 0 <= token < n_vocab]:
            raise InputError(
                f"Expected token ids from 0 to {n_vocab - 1}, but {name} {i} contains {outside[0]}. Encode it with "
                "the model's own tokenizer."
            )
        if len(prompt) + n_further > longest:
            further = f" and its answer can have up to {n_further}" if n_further else ""
            raise InputError(
                f"Expected at most {longest} tokens, the limit of {model.name_or_path!r}, but {name} {i} has "
                f"{len(prompt)}{further}. Shorten the prompt or the answers."
            )
