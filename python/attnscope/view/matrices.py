# SPDX-License-Identifier: MIT
"""The matrices of a page: their entries, bars and spectra next to the null law, within a room of bytes."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope._tokens import readable
from attnscope.metrics.homology.barcodes import Barcodes, betti_curve
from attnscope.metrics.homology.persistence import persistence
from attnscope.metrics.spectra.null_law import Word, null_spectrum, undefined_because

_LAW_POINTS = 240


def number(value: Any) -> float | None:
    """Return a number for JSON, to six significant digits; None without one.

    >>> number(1 / 3), number(float("nan"))
    (0.333333, None)
    """
    value = float(value)
    return float(f"{value:.6g}") if math.isfinite(value) else None


def plain(cells: Any) -> Any:
    """Return numbers of any shape as lists for JSON, which has no infinity: that is a word there.

    >>> plain([0.5, -math.inf, math.nan])
    [0.5, '-Infinity', None]
    """
    if np.ndim(cells):
        return [plain(inner) for inner in cells]
    return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(float(cells), number(cells))


def _betti_steps(barcodes: Barcodes) -> list[list[float | int]]:
    """Return scales at which a Betti number changes, with β0 and β1 from there to the next; none without
    bars.
    """
    ends = torch.cat([barcodes.birth, barcodes.death])
    scales = torch.unique(ends[ends.isfinite()])
    numbers = betti_curve(barcodes, scales).tolist() if len(scales) else []
    return [[scale, *betti] for scale, betti in zip(scales.tolist(), numbers, strict=True)]


class Maps:
    """Collects matrices until their encoded entries fill `max_bytes` of the page."""

    def __init__(self, max_bytes: int) -> None:
        self.laws: dict[str, dict[str, Any]] = {}  # by key; heads of one support share theirs
        self.stored: list[dict[str, Any]] = []
        self.refused = 0  # how many found no room
        self._room, self._is_full = max_bytes, False

    def add_room(self, max_bytes: int) -> None:
        """Make room for the matrices of another text, next to what earlier texts left."""
        self._room += max_bytes
        self._is_full = False

    def add(
        self,
        attention: Tensor,
        tokens: Sequence[str],
        queries: Sequence[str] | None = None,
        support: Any = "auto",
        answer: tuple[int, int] | None = None,
        **place: Any,
    ) -> None:
        """Add a matrix, unless the page is full; queries of another text make it a matrix and no graph.

        Args:
            attention: the matrix.
            tokens: names of its keys.
            queries: names of its queries, where they are others.
            support: which keys a query sees: a word, or anything else for a window or a mask.
            answer: the first query of an answer and one past its last.
            place: where it belongs on the page.
        """
        n = attention.shape[-1]
        lower = queries is None and not bool(attention.triu(1).any())
        # float32 keeps every float16, bfloat16 and float32 entry exactly, and with it the order of edges.
        entries = attention.to(torch.float32).numpy()
        flat = entries[np.tril_indices(n)] if lower else entries.ravel()
        if self._is_full or len(flat) * 16 // 3 > self._room:
            self._is_full = True
            self.refused += 1
            return
        self._room -= len(flat) * 16 // 3
        shown = {
            **place,
            "n": n,
            "tokens": [readable(token) for token in tokens],
            "causal": lower,
            "entries": base64.b64encode(flat.astype("<f4").tobytes()).decode("ascii"),
        }
        if answer is not None and 0 <= answer[0] < answer[1]:
            shown["answer"] = list(answer)
        self.stored.append(shown)
        if queries is not None:
            shown["queries"] = [readable(token) for token in queries]
            return
        barcodes = persistence(attention)
        shown["bars"] = [
            [dimension, number(birth), number(death)]
            for dimension, rows in enumerate(barcodes[()])
            for birth, death in rows
        ]
        shown["betti"] = _betti_steps(barcodes)
        shown["spectrum"] = self._spectrum(attention.double(), support)

    def _spectrum(self, attention: Tensor, support: Any) -> dict[str, Any]:
        """Return the eigenvalues of the row-standardised map, the law and the distance between both."""
        words: dict[str, Word] = {"auto": "auto", "causal": "causal", "full": "full"}
        word = words.get(support) if isinstance(support, str) else None
        if word is None:
            return {
                "reason": "The queries of this layer see a window of keys or a mask, for whose spectrum no "
                "law is known in closed form. The distance to shuffled rows is among the numbers."
            }
        if reason := undefined_because(attention, word):
            return {"reason": f"{reason.capitalize()}."}
        law = null_spectrum(attention, word)
        key = f"{law.law} {law.edge:.9f}"
        if key not in self.laws:
            keep = np.unique(np.linspace(0, len(law.law_x) - 1, _LAW_POINTS).astype(int))
            self.laws[key] = {
                "name": law.law,
                "edge": number(law.edge),
                "x": [number(x) for x in law.law_x[keep]],
                "cdf": [number(y) for y in law.law_cdf[keep]],
            }
        return {
            "law": key,
            "values": [number(value) for value in law.values],
            "ks": number(law.ks),
            "outliers": law.outliers,
            "at": number(law.at),
            "between": [number(end) for end in law.between],
        }
