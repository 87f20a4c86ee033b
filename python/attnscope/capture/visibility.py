# SPDX-License-Identifier: MIT
"""Which keys a layer's queries could see, read off the mask that the model computed with.

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


def float_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores in the place of a boolean mask."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


@dataclass(frozen=True, eq=False)
class Visibility:
    """Who sees whom in one layer, of the texts as they were run.

    Attributes:
        kind: "full", "causal", "window", "mask" (no such rule), or "auto" where the model gave no mask, and
            each map is judged by itself. A window that no text is longer than is causal or full.
        before: of a window, how many tokens before its own a query sees, or None: all.
        after: how many behind it.
        support: what metrics take as `support=` beside `Layer.matrices()`: a word, a boolean tensor [m, m],
            or [B, 1, m, m] where texts differ.
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
    """The visibility of the real tokens of every text under a mask [B or 1, heads or 1, q, k]."""
    if mask is None or mask.ndim != 4 or not real:
        return UNKNOWN
    seen = (mask if mask.dtype == torch.bool else mask > MASKED_BELOW).any(1).cpu()
    columns = torch.nn.utils.rnn.pad_sequence(list(real), batch_first=True)
    longest = columns.shape[1]
    place = torch.arange(longest)
    there = place < torch.tensor([len(one) for one in real])[:, None]
    there = there[:, :, None] & there[:, None]
    if bool((columns <= place).all()):  # padded on the right or not at all
        blocks = seen[:, :longest, :longest] & there
    else:
        text = torch.arange(len(real))[:, None, None] if len(seen) > 1 else 0
        blocks = seen[text, columns[:, :, None], columns[:, None]] & there
    back = place[:, None] - place
    distances = back[blocks.any(0)]
    before, after = (int(one.max()) if len(one) else 0 for one in (distances, -distances))
    band = (back <= before) & (-back <= after)
    if not torch.equal(blocks, band & there):
        return Visibility("mask", None, None, blocks[:, None])
    left, right = (None if side >= longest - 1 else side for side in (before, after))
    if left is None and right is None:
        return Visibility("full", None, None, "full")
    if left is None and right == 0:
        return Visibility("causal", None, 0, "causal")
    return Visibility("window", left, right, band)
