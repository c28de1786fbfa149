"""Key/value cache layer that does not store new tokens."""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer


class OnePassLayer(DynamicLayer):
    """Cache layer with the keys and values of a prefix, for a single pass.

    `keys` and `values` can be expanded views, whose rows share memory.
    """

    keys: Tensor
    values: Tensor

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return the keys and values [row, head, token, d_head] of the prefix and the new tokens."""
        if not self.is_initialized:
            return key_states, value_states
        return torch.cat([self.keys, key_states], dim=-2), torch.cat([self.values, value_states], dim=-2)
