"""Marker for tests that need a CUDA device."""

from __future__ import annotations

import pytest
import torch

#: CUDA graphs and compiled kernels exist only on CUDA devices, which most machines and the workflow don't have.
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
