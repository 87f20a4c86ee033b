# SPDX-License-Identifier: MIT
"""A layer that is being computed: where its tensors come to lie, tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor

from attnscope.capture.layer import Layer
from attnscope.capture.module_tracing import is_tokens_first
from attnscope.capture.sites import ATTENTION, HEADS, TABLE

#: Of a row's sum: at most so much of nothing, and as far from 1 as rounding takes it, in half precision too.
_NO_MASS = 1e-6
_ROUNDED, _ROUNDED_LOW = 2e-2, 1e-1


class Scratch:
    """A piece of memory that every tile of every layer reuses."""

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.float32, device="cpu")

    def take(self, dtype: torch.dtype, device: torch.device, shape: tuple[int, ...]) -> Tensor:
        """Return a tensor in this memory, which grows where it must."""
        size = torch.Size(shape).numel()
        if size > self._buffer.numel() or (self._buffer.dtype, self._buffer.device) != (dtype, device):
            self._buffer = torch.empty(size, dtype=dtype, device=device)
        return self._buffer[:size].view(shape)


class LayerBuilder:
    """A layer that is put together, and what is known of it besides.

    Attributes:
        layer: the layer; given away when it is finished, unless the gradient still needs it.
        name: of the attention module, or of the block.
        size: samples and queries.
        total: number of heads, of which the layer keeps some.
        roots: sites in the graph of a forward pass with a gradient.
        tokens_first: sites of modules whose states are [q, B, D].
    """

    def __init__(self, stack: str = "", index: int = 0, call: int = 0, name: str = "", step: int = 0) -> None:
        self.layer = Layer(
            index,
            stack,
            call,
            step=step,
            cross=False,
            heads=(),
            kv_heads=(),
            key_offset=0,
            valid=torch.empty(0, dtype=torch.float32, device="cpu"),
            tensors={},
        )
        self.name = name
        self.roots: dict[str, Tensor] = {}
        self.tokens_first: set[str] = set()
        self.total = 0
        self.is_selected = False
        self.size = (0, 0)
        self.full: Tensor | None = None
        self.scratch: Callable[[tuple[int, ...]], Tensor] = torch.empty

    @property
    def heads(self) -> list[int]:
        """The heads that the layer keeps."""
        return list(self.layer.heads)

    @property
    def keeps_all_heads(self) -> bool:
        """True if all heads are kept, in their order."""
        return self.heads == list(range(self.total))

    def shaped(self, site: str, tensor: Tensor) -> Tensor:
        """Return a tensor that a hook has kept, in the site's shape."""
        if TABLE[site].moment == ATTENTION:
            return tensor if self.keeps_all_heads or site in ("key", "value") else tensor[:, self.heads]
        if is_tokens_first(tensor, *self.size, was_seen=site in self.tokens_first):
            tensor = tensor.transpose(0, 1)
        if tensor.ndim == 2:  # some feed-forward parts work on [B * q, D]
            tensor = tensor.reshape(*self.size, -1)
        if TABLE[site].moment == HEADS:
            tensor = tensor.reshape(*self.size, self.total, -1).transpose(1, 2)
            tensor = tensor if self.keeps_all_heads else tensor[:, self.heads]
        return tensor

    def set_mask(self, mask: Tensor | None, *, exact: bool = True) -> None:
        """Give the layer the mask of its heads."""
        if mask is not None and mask.ndim == 4 and mask.shape[1] > 1 and not self.keeps_all_heads:
            mask = mask[:, self.heads]
        self.layer.mask, self.layer.exact_mask = mask, exact

    def note_partial_rows(self) -> None:
        """Note the sums of real queries' rows where the model returned a part of them.

        Rows without any mass are of queries that see nothing, or of padding.
        """
        layer, maps = self.layer, self.layer.tensors["attention"]
        if layer.has_sink or not maps.numel():
            return
        sums = maps.sum(-1, dtype=torch.float64 if maps.dtype == torch.float64 else torch.float32)
        if maps.shape[-1] == maps.shape[-2] and not layer.cross:
            sums = sums.masked_fill(~layer.valid[:, None].to(sums.device), 1.0)
        sums = torch.where(sums > _NO_MASS, sums, 1.0)  # NaN is no part of a row either
        smallest, largest = float(sums.min()), float(sums.max())
        if max(1 - smallest, largest - 1) > (_ROUNDED_LOW if maps.dtype.itemsize < 4 else _ROUNDED):
            layer.partial_sums = smallest, largest

    def allocate(
        self, sites: Collection[str], queries: int, keys: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Allocate the maps of the requested sites."""
        square = (self.size[0], len(self.heads), queries, keys)
        for site, shape in (("attention", square), ("scores", square), ("lse", square[:3])):
            if site in sites:
                self.layer.tensors[site] = torch.empty(shape, dtype=dtype, device=device)
        self.full = self.layer.tensors.get("attention") if self.keeps_all_heads else None

    def storage(self, samples: slice, span: slice, shape: tuple[int, ...]) -> Tensor:
        """Return the memory for the probabilities of one tile: the layer's own if all its heads are kept."""
        return self.scratch(shape) if self.full is None else self.full[samples, span]

    @property
    def wants_scores(self) -> bool:
        """True if a site of the softmax's argument is kept."""
        return "scores" in self.layer.tensors or "lse" in self.layer.tensors

    def keep_scores(self, samples: slice, span: slice, scores: Tensor, sink: Tensor | None) -> None:
        """Copy the kept heads of one tile of scores, -inf where invisible, and of their log-sum."""
        if "scores" in self.layer.tensors:
            self._copy("scores", samples, span, scores)
        if "lse" in self.layer.tensors:
            lse = torch.logsumexp(scores, -1)
            self._copy("lse", samples, span, lse if sink is None else torch.logaddexp(lse, sink[..., 0]))

    def keep(self, samples: slice, span: slice, probabilities: Tensor) -> None:
        """Copy the kept heads of one tile out of the scratch memory."""
        if self.full is None and "attention" in self.layer.tensors:
            self._copy("attention", samples, span, probabilities)

    def _copy(self, site: str, samples: slice, span: slice, tile: Tensor) -> None:
        for position, head in enumerate(self.heads):
            if span.start <= head < span.stop:
                self.layer.tensors[site][samples, position] = tile[:, head - span.start]
