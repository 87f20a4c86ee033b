# SPDX-License-Identifier: MIT
"""The keys that a layer's queries could see, read off the argument of the softmax that the model computed.

Our own attention function knows the mask that it adds. A module that computes its attention itself may add
masks of its own to the one it is given, or read that one the other way round: there the softmax's argument
is looked at.

Layers of one model differ: Gemma 3, gpt-oss and ModernBERT alternate windows with full or causal attention. A
metric that takes a window for causal attention counts keys as ignored that were never visible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

# Additive masks go from -10000 (old models) to the smallest float; an ALiBi bias in a mask stays far above.
MASKED_BELOW = -9000.0
# The exponential of a float32 number below is smaller than half the smallest one that float32 holds.
VANISHING = -104.0
# Attribute of a mask of our own: the positions of its first query and of its first key. A cache of fixed size
# has its masks made before the pass begins.
PLACES = "_attnscope_places"


def float_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what is added to scores in the place of a boolean mask."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


@dataclass(frozen=True, eq=False)
class Visibility:
    """The visible keys of each query in one layer, of the texts as they were run.

    Attributes:
        kind: "full", "causal", "window", "mask" (no such rule), or "auto" where the model gave no mask, and
            each map is judged by itself. A window that no text is longer than is causal or full.
        before: of a window, how many tokens before its own a query sees, or None: all.
        after: how many behind it.
        support: what metrics take as `support=` beside `Layer.matrices()`: a word, a boolean tensor [m, m],
            [B, 1, m, m] where texts differ, or [B, h, m, m] where heads do.
    """

    kind: Literal["full", "causal", "window", "mask", "auto"]
    before: int | None
    after: int | None
    support: Any

    @property
    def name(self) -> str:
        """One word for tables: "causal", "window 128", "window 64+64" of two sides, ...

        Example:
            >>> from attnscope.capture.visibility import Visibility
            >>> Visibility("window", 6, 0, None).name, Visibility("window", 4, 4, None).name
            ('window 7', 'window 4+4')
        """
        if self.kind != "window":
            return self.kind
        if self.after == 0 and self.before is not None:
            return f"window {self.before + 1}"
        sides = ["" if side is None else str(side) for side in (self.before, self.after)]
        return f"window {sides[0]}+{sides[1]}"


UNKNOWN = Visibility("auto", None, None, "auto")


def visibility_of(mask: Tensor | None, real: Sequence[Tensor]) -> Visibility:
    """Return the visibility of the real tokens of every text under a mask.

    Args:
        mask: [B or 1, heads or 1, q or 1, k]; boolean with True at visible entries, or added to scores.
        real: the columns of each text's real tokens, ascending.
    """
    if mask is None or mask.ndim != 4 or not real:
        return UNKNOWN
    visible = visible_entries(mask).cpu()
    columns = torch.nn.utils.rnn.pad_sequence(list(real), batch_first=True)
    longest = columns.shape[1]
    place = torch.arange(longest, device="cpu")
    inside = place < torch.tensor([len(text) for text in real], device="cpu")[:, None]
    inside = (inside[:, :, None] & inside[:, None])[:, None]
    if visible.shape[2] == 1:  # one row for all queries
        visible = visible.expand(-1, -1, visible.shape[3], -1)
    if bool((columns <= place).all()):  # padded on the right or not at all
        blocks = visible[:, :, :longest, :longest] & inside
    else:
        text = torch.arange(len(real), device="cpu")[:, None, None] if len(visible) > 1 else 0
        # the head axis comes last behind indices that lie apart
        blocks = visible.movedim(1, -1)[text, columns[:, :, None], columns[:, None]].movedim(-1, 1) & inside
    if blocks.shape[1] > 1 and bool((blocks == blocks[:, :1]).all()):
        blocks = blocks[:, :1]
    back = place[:, None] - place
    distances = back[blocks.flatten(0, 1).any(0)]
    before, after = (int(side.max()) if len(side) else 0 for side in (distances, -distances))
    band = (back <= before) & (-back <= after)
    if not bool((blocks == (band & inside)).all()):
        return Visibility("mask", None, None, blocks)
    left, right = (None if side >= longest - 1 else side for side in (before, after))
    if left is None and right is None:
        return Visibility("full", None, None, "full")
    if left is None and right == 0:
        return Visibility("causal", None, 0, "causal")
    return Visibility("window", left, right, band)


def visible_entries(mask: Tensor) -> Tensor:
    """Return a boolean tensor of a mask's shape, True at the entries that the mask leaves visible."""
    return mask if mask.dtype == torch.bool else mask > MASKED_BELOW


def visible_scores(scores: Tensor) -> Tensor:
    """Return which entries of a softmax's argument are visible, boolean, of the argument's shape.

    A hidden entry lies so far below the largest one of its row that no score of a model does. A row whose
    entries are all hidden has no visible entry.
    """
    top = scores.amax(-1, keepdim=True)
    # in float32, because the sum leaves the range of float16
    return (scores > top.float() + MASKED_BELOW) & (top > MASKED_BELOW)


def is_doubtful(mask: Tensor) -> bool:
    """Return True if a mask holds values that hide an entry from float32 but lie above `MASKED_BELOW`."""
    return mask.dtype != torch.bool and bool(((mask > MASKED_BELOW) & (mask < VANISHING)).any())


def contradiction(support: Any, maps: Tensor, lengths: Sequence[int]) -> str:
    """Return why maps contradict a support in words; empty where they agree.

    Maps agree with a support when no entry outside of it has mass, and every entry inside has some in at
    least one text and head. Rows that see no key are left out.

    Args:
        support: as metrics take it, of `maps`.
        maps: [B, h, m, m], real tokens in the leading block.
        lengths: the real tokens of each text.
    """
    size = maps.shape[-1]
    place = torch.arange(size, device=maps.device)
    if isinstance(support, Tensor):
        visible = support.to(maps.device).expand(*maps.shape)
    else:
        rows = place[:, None] >= place if support == "causal" else torch.ones_like(place[:, None] == place)
        visible = rows.expand(*maps.shape)
    real = place < torch.as_tensor(lengths, device=maps.device)[:, None]
    real = (real[:, :, None] & real[:, None])[:, None]
    mass = (maps != 0) & ~maps.isnan() & real
    visible = visible & real
    outside = mass & ~visible & visible.any(-1, keepdim=True)
    if bool(outside.any()):
        return "entries outside of it have mass"
    # half precision loses the small entries of a softmax
    if maps.dtype.itemsize >= 4 and bool(mass.any()):
        never = visible.flatten(0, 1).any(0) & ~mass.flatten(0, 1).any(0)
        if bool(never.any()):
            return "entries inside of it are 0 in every text and head"
    return ""
