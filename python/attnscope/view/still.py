# SPDX-License-Identifier: MIT
"""The head that a page opens on as one picture, for readers that run no script: GitHub, a paper, a mail."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd


def still_of(contents: Mapping[str, Any], title: str) -> bytes:
    """Return a PNG of the head that a page opens on, among all heads.

    Args:
        contents: the data of the page.
        title: its heading.

    Raises:
        ImportError: matplotlib is missing.
    """
    from attnscope.plots.still import HeadMatrix, draw_still

    metric = contents["metrics"][0]["label"]
    values = np.array(contents["values"][-1][0][0], dtype=float)  # the last checkpoint, the first input
    places = [(layer, head) for layer in contents["layers"] for head in contents["heads"]]
    rows = pd.DataFrame(places, columns=["layer", "head"]).assign(**{metric: values.ravel()})
    head = _opened(contents, rows, metric)
    drawn = next(
        (stored for stored in _shown_matrices(contents) if (stored["layer"], stored["head"]) == head), None
    )
    matrix = None
    if drawn is not None:
        matrix = HeadMatrix(read_entries(drawn), drawn["tokens"], drawn.get("queries"))
    return draw_still(rows, metric, head, matrix, title)


def _shown_matrices(contents: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the matrices of the last checkpoint and the first input, or all where it has none."""
    place = (len(contents["checkpoints"]) - 1, 0)
    matrices = [stored for stored in contents["maps"] if (stored["checkpoint"], stored["input"]) == place]
    return matrices or contents["maps"]


def _opened(contents: Mapping[str, Any], rows: pd.DataFrame, metric: str) -> tuple[int, int]:
    """Return the head that the page opens on: as asked, else the strongest of those with a matrix."""
    if "open" in contents:
        layer, head = contents["open"]
        return layer, head
    with_matrix = {(stored["layer"], stored["head"]) for stored in _shown_matrices(contents)}
    places = list(zip(rows["layer"], rows["head"], strict=True))
    eligible = np.array([not with_matrix or place in with_matrix for place in places])
    strength = rows[metric].fillna(-np.inf).to_numpy()
    layer, head = places[int(np.where(eligible, strength, -np.inf).argmax())]
    if not eligible[places.index((layer, head))]:
        layer, head = places[int(eligible.argmax())]
    return int(layer), int(head)


def read_entries(stored: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Return a matrix of the page as numbers [queries, keys].

    >>> entries = base64.b64encode(np.array([1, 0.5, 0.5], "<f4").tobytes()).decode()
    >>> read_entries({"n": 2, "causal": True, "entries": entries}).tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    n, flat = stored["n"], np.frombuffer(base64.b64decode(stored["entries"]), "<f4").astype(float)
    if not stored["causal"]:
        return flat.reshape(-1, n)
    matrix = np.zeros((n, n))
    matrix[np.tril_indices(n)] = flat
    return matrix
