# SPDX-License-Identifier: MIT
"""The part of each text that is measured: all of it, up to the end of its answer, or the answer alone.

Under a causal mask the tokens behind an answer change nothing before them, so "prefix" gives the numbers that
the text has when it ends with its answer. "answer" takes the block of the answer's queries and keys as it is:
its rows sum to less than 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from attnscope.metrics.quantity import MAPS
from attnscope.metrics.support import LayerSupport
from attnscope.study_api.forward import Batch

Region = Literal["text", "prefix", "answer"]
#: Sites of texts whose last axis is the token, and those that are no tokens.
_BY_TOKEN = ("tokens", "value_norms")


def restrict(
    region: Region,
    spans: Sequence[tuple[int, int]],
    batch: Batch,
    seen: LayerSupport,
    sites: Mapping[str, Tensor],
) -> tuple[Batch, LayerSupport, dict[str, Tensor]]:
    """Return a batch, what its queries see, and its sites, of a region of each text.

    Args:
        region: "text" returns all as it is.
        spans: the answer of each text of the batch.
        batch: the texts.
        seen: the support of the layer.
        sites: tensors by site, the batch first.
    """
    if region == "text":
        return batch, seen, dict(sites)
    stops = [stop for _, stop in spans]
    if region == "prefix":
        tokens = [names[:stop] for names, stop in zip(batch.tokens, stops, strict=True)]
        return replace(batch, lengths=stops, tokens=tokens), seen, dict(sites)
    sizes = [stop - start for start, stop in spans]
    tokens = [names[start:stop] for names, (start, stop) in zip(batch.tokens, spans, strict=True)]
    support, learned = seen.support, seen.learned
    if isinstance(support, Tensor):
        full = support if support.ndim == 4 else support.expand(len(spans), 1, *support.shape[-2:])
        support = _packed(full, spans, 2)
    if learned is not None:
        learned = _packed(learned, spans, 1)
    packed = {}
    for name, tensor in sites.items():
        if name == "answer":
            packed[name] = torch.tensor([(0, size) for size in sizes], device="cpu")[:, None]
        elif name in MAPS:
            packed[name] = _packed(tensor, spans, 2)
        elif name in _BY_TOKEN:
            packed[name] = _packed(tensor, spans, 1)
        else:
            packed[name] = _packed(tensor.transpose(-1, -2), spans, 1).transpose(-1, -2)
    return replace(batch, lengths=sizes, tokens=tokens), LayerSupport(support, learned), packed


def _packed(tensor: Tensor, spans: Sequence[tuple[int, int]], axes: int) -> Tensor:
    """Return the entries of each text's span along the last axes, zeros behind them."""
    longest = max(stop - start for start, stop in spans)
    middle = tensor.shape[1 : tensor.ndim - axes]
    packed = tensor.new_zeros(len(tensor), *middle, *[longest] * axes)
    for row, (start, stop) in enumerate(spans):
        size = stop - start
        if axes == 2:
            packed[row, ..., :size, :size] = tensor[row, ..., start:stop, start:stop]
        else:
            packed[row, ..., :size] = tensor[row, ..., start:stop]
    return packed
