"""Marker for tests that need a CUDA device."""

from __future__ import annotations

import pytest
import torch

needs_cuda = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="CUDA graphs and compiled kernels exist only on CUDA devices"
)
