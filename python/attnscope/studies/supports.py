# SPDX-License-Identifier: MIT
"""The keys that the queries of a captured layer see, as metrics, baselines, controls and tables take it.

Layers of one model differ, and so do texts: a window that a text is not longer than is causal attention of
that text. A learned sink takes a share of each row that belongs to no key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attnscope.metrics.quantity import Quantity
from attnscope.metrics.support import LayerSupport
from attnscope.results.schema import CHECKPOINT_KEYS
from attnscope.study_api.selection import without
from attnscope.study_api.tables import Column

if TYPE_CHECKING:
    from attnscope.capture import Layer
    from attnscope.capture.visibility import Visibility
    from attnscope.study_api.forward import Batch

SUPPORT = Column(
    "support", "string", "text", "visible keys", "Which keys queries see: causal, full, a window, or a mask."
)


@dataclass(frozen=True)
class LayerVisibility(LayerSupport):
    """The support of a layer, with its name for each text.

    Attributes:
        supports: the support in a word, of each text by itself.
    """

    supports: tuple[str, ...]

    @classmethod
    def by(cls, layer: Layer, heads: Tensor) -> LayerVisibility:
        """Return the support of a captured layer.

        Args:
            heads: its maps [b, h, n, n].
        """
        seen = LayerSupport.of(layer)
        names = support_names(layer.visibility, layer.lengths.tolist(), heads)
        return LayerVisibility(seen.support, seen.learned, names)

    def of_text(self, place: int, n: int) -> Tensor:
        """Return the visible pairs of one text, bool [n, n]."""
        if not isinstance(self.support, Tensor):
            return visible_pairs(self.supports[place], n)
        pairs = self.support[place].any(0) if self.support.ndim == 4 else self.support
        return pairs[:n, :n]


def keys_of(batch: Batch, layer: int, heads: Sequence[int] | None, protocol: str = "exact") -> dict[str, Any]:
    """Return key columns of the maps of a layer: of its heads by their numbers, or of its head mean
    without any.
    """
    heads_per_text = 1 if heads is None else len(heads)
    head_column = {} if heads is None else {"head": np.tile(heads, len(batch.samples))}
    return {
        "sample": np.repeat(batch.samples, heads_per_text),
        "layer": layer,
        **head_column,
        "protocol": protocol,
    }


def support_names(seen: Visibility, lengths: Sequence[int], heads: Tensor) -> tuple[str, ...]:
    """Return the name of the keys that each text's queries see, independent of the other texts of the batch.

    A window that a text is not longer than is causal or full attention of this text.

    Args:
        heads: maps [b, h, n, n], which decide where the layer does not.
    """
    names = []
    for text, n in enumerate(lengths):
        name = seen.name
        if seen.kind == "auto":
            name = "full" if bool((heads[text, :, 0, 1:n] != 0).any()) else "causal"
        elif seen.kind == "window":
            left, right = (side is None or side >= n - 1 for side in (seen.before, seen.after))
            name = "full" if left and right else "causal" if left and seen.after == 0 else name
        names.append("causal" if n < 2 else name)
    return tuple(names)


def without_learned_sink(quantities: Sequence[Quantity]) -> list[Quantity]:
    """Return the quantities of layers that have no learned sink."""
    return [quantity for quantity in quantities if quantity.name != "learned_sink_mass"]


def supports_of(samples: pd.DataFrame, tables: Sequence[pd.DataFrame]) -> list[tuple[int, str]]:
    """Return the lengths of texts and the supports of their layers, without masks."""
    keys = [*CHECKPOINT_KEYS, "sample"]
    # texts are causal or full in at least one layer of most models, and a run may hold no table of maps
    words = samples["causal"].map({True: "causal", False: "full"})
    supports = [samples.assign(support=words)[["n_tokens", "support"]]] if not tables else []
    for table in tables:
        once = table[[*keys, "support"]].drop_duplicates()
        supports.append(once.merge(samples[[*keys, "n_tokens"]], on=keys)[["n_tokens", "support"]])
    all_supports = pd.concat(supports).dropna().drop_duplicates()
    all_supports = without(all_supports, support="mask")
    return sorted((int(n), str(support)) for n, support in all_supports.itertuples(index=False))


def uniform_over(support: Tensor) -> Tensor:
    """Return uniform attention among the visible keys of every query.

    >>> uniform_over(torch.eye(2, dtype=torch.bool)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    maps = support.double()
    return maps / maps.sum(-1, keepdim=True)


def visible_pairs(name: str, n: int) -> Tensor:
    """Return the visible pairs among n tokens, bool [n, n].

    Args:
        name: "causal", "full", or a window as `Visibility.name` gives it.
        n: number of tokens.

    Raises:
        ValueError: a mask, whose name does not define the pairs.

    >>> visible_pairs("window 2", 3).int().tolist(), int(visible_pairs("window 1+1", 3).sum())
    ([[1, 0, 0], [1, 1, 0], [0, 1, 1]], 7)
    """
    back = torch.arange(n, device="cpu")[:, None] - torch.arange(n, device="cpu")
    if name == "full":
        return torch.ones(n, n, dtype=torch.bool, device="cpu")
    if name == "causal":
        return back >= 0
    kind, _, size = name.partition(" ")
    if kind != "window":
        raise ValueError(f"visible_pairs: expected 'causal', 'full' or a window, got {name!r}")
    left, two_sided, right = size.partition("+")
    before = n if not left else int(left) - (not two_sided)
    after = 0 if not two_sided else int(right) if right else n
    return (back <= before) & (-back <= after)
