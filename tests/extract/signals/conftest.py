"""The embedded model, which several tests of signals compare with definitions."""

from __future__ import annotations

from typing import Any

import pytest

from extract.models.loading import load_model


@pytest.fixture(scope="session")
def embedded() -> tuple[Any, Any]:
    """Load SmolLM2-135M-Instruct in float32 and its tokenizer. Tests must not change them."""
    return load_model(dtype="float32")
