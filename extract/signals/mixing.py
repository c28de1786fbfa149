"""How much of each token's state after a layer's attention came from attention, and how much was there before."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from extract.errors import InputError
from extract.signals.capture import Hooks, decoder_blocks

#: Parts of what was there before that are the same for all tokens, by name.
FIXED_SHARES = {"share_50": 0.5, "share_70": 0.7, "share_90": 0.9}

#: Names of `attention_shares`, in order.
MIXES = (*FIXED_SHARES, "norm", "cosine", "projection")

_TINY = 1e-12


class Dots(NamedTuple):
    """Dot products of residual h and attention output o, each [row, token] float32.

    Attributes:
        hh: ⟨h, h⟩.
        oo: ⟨o, o⟩.
        ho: ⟨h, o⟩.
    """

    hh: Tensor
    oo: Tensor
    ho: Tensor


def dots(h: Tensor, o: Tensor) -> Dots:
    """Of h and o [row, token, d_model] in any float dtype."""
    h, o = h.float(), o.float()
    return Dots((h * h).sum(-1), (o * o).sum(-1), (h * o).sum(-1))


def attention_shares(of: Dots) -> dict[str, Tensor]:
    """Attention's part a of h + o, [row, token] in [0, 1], by mix; the residual's is 1 − a.

    ``norm`` compares ‖o‖ and ‖h‖, ``cosine`` their cosines with h + o, ``projection`` is o's part of h + o along it.
    """
    h, o = of.hh.sqrt(), of.oo.sqrt()
    os, hs = of.oo + of.ho, of.hh + of.ho  # with the sum s = h + o
    cosine_o, cosine_h = os / o.clamp_min(_TINY), hs / h.clamp_min(_TINY)  # each times ‖s‖
    shares = {
        "norm": o / (o + h).clamp_min(_TINY),
        "cosine": cosine_o / (cosine_o + cosine_h).clamp_min(_TINY),
        "projection": os / (os + hs).clamp_min(_TINY),
    }
    fixed = {name: torch.full_like(h, 1 - kept) for name, kept in FIXED_SHARES.items()}
    return fixed | {name: share.clamp(0, 1) for name, share in shares.items()}


class MixingCapture(Hooks):
    """Hooks that keep the dot products of residual and attention output at chosen places of each block.

    The residual h is what enters a block; the attention output o is what is added to it, which in Gemma 2 and 3 comes
    from the norm behind the attention.

    Args:
        model: A causal language model.

    Attributes:
        index: [row, query] int64, where to look in the next pass, as indices into its tokens; None keeps nothing.

    Raises:
        InputError: Blocks in which h + o is not what goes on; seen when the context is entered or in the first pass.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.index: Tensor | None = None
        self._model = model
        self._h: dict[int, Tensor] = {}
        self._sum: dict[int, Tensor] = {}
        self._dots: dict[int, Dots] = {}
        self._checked: set[int] = set()

    def __enter__(self) -> Self:
        parts = [(block, *self._parts(block)) for block in decoder_blocks(self._model)]
        for layer, (block, adds, goes_on) in enumerate(parts):
            self._handles += [
                block.register_forward_pre_hook(self._entering(layer), with_kwargs=True),
                adds.register_forward_hook(self._attending(layer)),
                goes_on.register_forward_pre_hook(self._going_on(layer)),
            ]
        return self

    def take(self) -> list[Dots]:
        """The last pass's dot products [row, query] by layer; nothing is kept of the next one until `index` is set."""
        if self._checked != self._dots.keys():
            raise self._refusal()
        taken = [self._dots[layer] for layer in sorted(self._dots)]
        self.index = None
        self._dots.clear()
        return taken

    def _parts(self, block: nn.Module) -> tuple[nn.Module, nn.Module]:
        """The module whose output is added to the residual, and the one that takes the sum."""
        children = dict(block.named_children())
        if "pre_feedforward_layernorm" in children and "post_attention_layernorm" in children:
            return children["post_attention_layernorm"], children["pre_feedforward_layernorm"]
        attention = [children[name] for name in ("self_attn", "attn", "attention") if name in children]
        norm = [children[name] for name in ("post_attention_layernorm", "ln_2") if name in children]
        if not attention or not norm:
            raise self._refusal()
        return attention[0], norm[0]

    def _refusal(self) -> InputError:
        return InputError(
            f"Expected blocks that add what attention returns to what entered them, but those of {type(self._model).__name__} don't. Leave rollout and rollout_max out, or use another model."
        )

    def _looked_at(self, states: Tensor) -> Tensor:
        """[row, query, d_model]; places behind the pass's last token give that one."""
        assert self.index is not None
        if self.index.device != states.device:
            self.index = self.index.to(states.device)
        index = self.index.clamp_max(states.shape[1] - 1)
        return states.detach()[torch.arange(len(index), device=states.device)[:, None], index]

    def _entering(self, layer: int) -> Any:
        def hook(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self.index is not None:
                self._h[layer] = self._looked_at(args[0] if args else kwargs["hidden_states"])

        return hook

    def _attending(self, layer: int) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            if self.index is not None:
                h, o = self._h.pop(layer), self._looked_at(output if isinstance(output, Tensor) else output[0])
                self._dots[layer] = dots(h, o)
                if layer not in self._checked:
                    self._sum[layer] = h[:, 0] + o[:, 0]

        return hook

    def _going_on(self, layer: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            # how a block is built shows at any place and does not change from pass to pass
            if self.index is not None and layer not in self._checked:
                goes_on = self._looked_at(args[0])[:, 0]
                if layer not in self._sum or not torch.allclose(self._sum.pop(layer), goes_on, equal_nan=True):
                    raise self._refusal()
                self._checked.add(layer)

        return hook
