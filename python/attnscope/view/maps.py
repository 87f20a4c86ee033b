# SPDX-License-Identifier: MIT
"""One attention matrix as the page wants it: entries, bars, and its spectrum beside the null law."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from attnscope._tokens import readable
from attnscope.metrics.homology.barcodes import Barcodes, betti_curve
from attnscope.metrics.homology.persistence import persistence
from attnscope.metrics.spectra.null_law import null_spectrum, undefined_because

_LAW_POINTS = 240


def number(value: Any) -> float | None:
    """A number for JSON, to six significant digits; None where there is none.

    >>> number(1 / 3), number(float("nan"))
    (0.333333, None)
    """
    value = float(value)
    return float(f"{value:.6g}") if math.isfinite(value) else None


def is_causal(maps: torch.Tensor) -> bool:
    """Whether no query sees a later key."""
    return maps.shape[-1] > 1 and bool((maps.triu(1) == 0).all())


def _betti_steps(barcodes: Barcodes) -> list[list[float | int]]:
    """Scales at which a Betti number changes, with β0 and β1 from there to the next; none without bars."""
    ends = torch.cat([barcodes.birth, barcodes.death])
    scales = sorted({end for end in ends.tolist() if math.isfinite(end)})
    numbers = betti_curve(barcodes, scales).tolist() if scales else []
    return [[scale, *both] for scale, both in zip(scales, numbers, strict=True)]


class Maps:
    """Collects matrices until their encoded entries fill `max_bytes` of the page.

    Attributes:
        laws: null laws by key; heads of one support share theirs.
        stored: the matrices so far.
        refused: how many found no room.
    """

    def __init__(self, max_bytes: int) -> None:
        self.laws: dict[str, dict[str, Any]] = {}
        self.stored: list[dict[str, Any]] = []
        self.refused = 0
        self._room = max_bytes

    def add(
        self,
        attention: torch.Tensor,
        tokens: Sequence[str],
        queries: Sequence[str] | None = None,
        **place: Any,
    ) -> None:
        """Adds a matrix, unless the page is full; queries of another text make it a matrix and no graph."""
        n = attention.shape[-1]
        causal = queries is None and is_causal(attention)
        # float32 keeps every float16, bfloat16 and float32 entry exactly, and with it the order of edges.
        entries = attention.to(torch.float32).numpy()
        flat = entries[np.tril_indices(n)] if causal else entries.ravel()
        if self.refused or len(flat) * 16 // 3 > self._room:
            self.refused += 1
            return
        self._room -= len(flat) * 16 // 3
        self.stored.append(
            {
                **place,
                "n": n,
                "tokens": [readable(token) for token in tokens],
                "causal": causal,
                "entries": base64.b64encode(flat.astype("<f4").tobytes()).decode("ascii"),
            }
        )
        if queries is not None:
            self.stored[-1]["queries"] = [readable(token) for token in queries]
            return
        barcodes = persistence(attention)
        self.stored[-1].update(
            {
                "bars": [
                    [dimension, number(birth), number(death)]
                    for dimension, rows in enumerate(barcodes[()])
                    for birth, death in rows
                ],
                "betti": _betti_steps(barcodes),
                "spectrum": self._spectrum(attention.double()),
            }
        )

    def _spectrum(self, attention: torch.Tensor) -> dict[str, Any]:
        """The eigenvalues of the row-standardised map, the law they are compared with and their distance."""
        if reason := undefined_because(attention):
            return {"reason": f"{reason.capitalize()}."}
        found = null_spectrum(attention)
        key = f"{found.law} {found.edge:.9f}"
        if key not in self.laws:
            keep = np.unique(np.linspace(0, len(found.law_x) - 1, _LAW_POINTS).astype(int))
            self.laws[key] = {
                "name": found.law,
                "edge": number(found.edge),
                "x": [number(x) for x in found.law_x[keep]],
                "cdf": [number(y) for y in found.law_cdf[keep]],
            }
        return {
            "law": key,
            "values": [number(value) for value in found.values],
            "ks": number(found.ks),
            "outliers": found.outliers,
            "at": number(found.at),
            "between": [number(end) for end in found.between],
        }
