"""Tiny random models, a byte tokenizer, and questions, for tests and benchmarks that need no real model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

TEMPLATE = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


def byte_tokenizer() -> Any:
    """Return a tokenizer with one token per byte and a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate(["</s>", "<pad>", *symbols])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>")
    fast.chat_template = TEMPLATE
    return fast


def tiny_model(family: str = "llama", seed: int = 0, **changes: Any) -> Any:
    """Return a random model of a family with 3 blocks and width 32, with grouped-query attention if supported."""
    import transformers

    sizes: dict[str, Any] = {
        "vocab_size": 258,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "eos_token_id": 0,
        "pad_token_id": 1,
        "bos_token_id": 0,
    }
    if family == "gpt2":
        sizes = {
            "vocab_size": 258,
            "n_embd": 32,
            "n_layer": 3,
            "n_head": 4,
            "n_positions": 512,
            "eos_token_id": 0,
            "pad_token_id": 1,
            "bos_token_id": 0,
        }
    if family.startswith("gemma"):
        sizes["head_dim"] = 8
    names = {
        "llama": "Llama",
        "gpt2": "GPT2",
        "qwen2": "Qwen2",
        "qwen3": "Qwen3",
        "mistral": "Mistral",
        "phi3": "Phi3",
        "gemma2": "Gemma2",
        "gemma3": "Gemma3",
        "doge": "Doge",
    }
    config_class = getattr(transformers, {"gemma3": "Gemma3TextConfig"}.get(family, f"{names[family]}Config"))
    torch.manual_seed(seed)
    head = "GPT2LMHeadModel" if family == "gpt2" else f"{names[family]}ForCausalLM"
    model = getattr(transformers, head)(config_class(**(sizes | changes))).eval()
    for parameter in model.parameters():  # wider than the default, so that logits differ clearly
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    model.requires_grad_(False)
    model.name_or_path = f"tiny-{family}"
    model.generation_config.eos_token_id = 0
    model.generation_config.pad_token_id = 1
    return model


def save_model(model: Any, folder: Path) -> Path:
    """Save a model and the byte tokenizer in a folder that `load_model` can read."""
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def write_questions(path: Path, n: int) -> Path:
    """Write questions with reference answers that a random byte model sometimes gives."""
    letters = "etaoinshrdlu"
    records = [
        {"id": f"q{i}", "text": f"Say {i} " + "word " * (i % 5), "references": ["x"], "group": letters[i % 3]}
        for i in range(n)
    ]
    path.write_text("\n".join(json.dumps(record) for record in records), encoding="utf-8")
    return path
