# SPDX-License-Identifier: MIT
"""What the page shows of tensors: every metric of one number per head, and every matrix with what it holds.

Of a matrix these are its entries, its bars, and its spectrum beside the null law.
"""

from __future__ import annotations

import base64
import itertools
import math
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnscope import _checks
from attnscope._tokens import readable
from attnscope._warn import UndefinedWarning
from attnscope.metrics.closed_forms import uniform_causal_map, uniform_map
from attnscope.metrics.discovery import registry
from attnscope.metrics.homology.barcodes import Barcodes, betti_curve
from attnscope.metrics.homology.persistence import persistence
from attnscope.metrics.quantity import Quantity
from attnscope.metrics.spectra.null_law import Word, null_spectrum, undefined_because
from attnscope.metrics.support import LayerSupport, measure_layer

_LAW_POINTS = 240


def number(value: Any) -> float | None:
    """Return a number for JSON, to six significant digits; None where there is none.

    >>> number(1 / 3), number(float("nan"))
    (0.333333, None)
    """
    value = float(value)
    return float(f"{value:.6g}") if math.isfinite(value) else None


def plain(cells: Any) -> Any:
    """Numbers of any shape as lists for JSON, which has no infinity: that is a word there.

    >>> plain([0.5, -math.inf, math.nan])
    [0.5, '-Infinity', None]
    """
    if np.ndim(cells):
        return [plain(inner) for inner in cells]
    return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(float(cells), number(cells))


def _betti_steps(barcodes: Barcodes) -> list[list[float | int]]:
    """Scales at which a Betti number changes, with β0 and β1 from there to the next; none without bars."""
    ends = torch.cat([barcodes.birth, barcodes.death])
    scales = torch.unique(ends[ends.isfinite()])
    numbers = betti_curve(barcodes, scales).tolist() if len(scales) else []
    return [[scale, *both] for scale, both in zip(scales.tolist(), numbers, strict=True)]


class Maps:
    """Collects matrices until their encoded entries fill `max_bytes` of the page."""

    def __init__(self, max_bytes: int) -> None:
        self.laws: dict[str, dict[str, Any]] = {}  # by key; heads of one support share theirs
        self.stored: list[dict[str, Any]] = []
        self.refused = 0  # how many found no room
        self._room = max_bytes

    def add(
        self,
        attention: Tensor,
        tokens: Sequence[str],
        queries: Sequence[str] | None = None,
        support: Any = "auto",
        **place: Any,
    ) -> None:
        """Add a matrix, unless the page is full; queries of another text make it a matrix and no graph.

        Args:
            attention: the matrix.
            tokens: names of its keys.
            queries: names of its queries, where they are others.
            support: which keys a query sees: a word, or anything else for a window or a mask.
            place: where it belongs on the page.
        """
        n = attention.shape[-1]
        lower = queries is None and not bool(attention.triu(1).any())
        # float32 keeps every float16, bfloat16 and float32 entry exactly, and with it the order of edges.
        entries = attention.to(torch.float32).numpy()
        flat = entries[np.tril_indices(n)] if lower else entries.ravel()
        if self.refused or len(flat) * 16 // 3 > self._room:
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
        found = null_spectrum(attention, word)
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


class Stack(NamedTuple):
    """The layers of one kind of attention in one pass, each [heads, queries, keys], and their tokens."""

    name: str  # "encoder", "decoder", "cross", a stack of modules, or "" where a model has one kind
    layers: Sequence[Tensor]
    keys: Sequence[str]
    queries: Sequence[str] | None = None  # the tokens that attend, where they are others
    supports: Sequence[LayerSupport] = ()  # of each layer; none where nothing is known

    def support(self, layer: int) -> LayerSupport:
        """Return what the queries of a layer see."""
        return self.supports[layer] if self.supports else LayerSupport("auto", None)


def contents_of_tensors(
    attention: Tensor | Sequence[Tensor], tokens: Sequence[str] | None, max_bytes: int
) -> dict[str, Any]:
    """Measures every head of one sentence."""
    maps = _one_sentence(attention)
    n = maps.shape[-1]
    tokens = [str(place) for place in range(n)] if tokens is None else [str(token) for token in tokens]
    if len(tokens) != n:
        raise ValueError(f"view: attention of {n} tokens needs as many names, got {len(tokens)} tokens")
    return contents_of_stacks([Stack("", list(maps), tokens)], max_bytes)


def contents_of_stacks(stacks: Sequence[Stack], max_bytes: int) -> dict[str, Any]:
    """Measures every head of every stack; cross attention, which is no square, has matrices alone."""
    wanted = _quantities()
    depth = max(len(one.layers) for one in stacks)
    heads = max(len(layer) for one in stacks for layer in one.layers)
    values = np.full((len(stacks), len(wanted), depth, heads), np.nan)
    uniform = np.full((len(stacks), len(wanted), depth), np.nan)
    collected = Maps(max_bytes)
    for at, stack in enumerate(stacks):
        for layer, maps in enumerate(stack.layers):
            seen = stack.support(layer)
            if stack.queries is None:
                values[at, :, layer, : len(maps)] = _numbers(maps, wanted, seen)
                same = layer and _is_like(seen, maps, stack.support(layer - 1), stack.layers[layer - 1])
                uniform[at, :, layer] = uniform[at, :, layer - 1] if same else _of_uniform(maps, wanted, seen)
            for head, matrix in enumerate(maps):
                place = {"layer": layer, "head": head, "checkpoint": 0, "input": at}
                collected.add(matrix, stack.keys, stack.queries, seen.support, **place)
    kept = ~np.isnan(values).all((0, 2, 3))
    notes, without = [], "There is no such head here."
    if collected.refused:
        shown = len(collected.stored)
        notes.append(
            f"The page holds the matrices of the first {shown} of {shown + collected.refused} heads; more "
            "would make it larger than max_bytes. Pass fewer layers to see the others."
        )
        without = "The page is full: this head's matrix was left out."
    return {
        "notes": notes,
        "layers": list(range(depth)),
        "heads": list(range(heads)),
        "checkpoints": [""],
        "inputs": [one.name for one in stacks],
        "stacks": len(stacks) > 1,
        "metrics": [
            {"name": one.name, "label": one.label, "meaning": one.meaning, "group": "heads"}
            for one in itertools.compress(wanted, kept)
        ],
        "values": [plain(values[:, kept])],
        "uniform": [[_by_layer(row) for row in rows] for rows in uniform[:, kept]],
        "laws": collected.laws,
        "maps": collected.stored,
        "without": without,
    }


def _numbers(maps: Tensor, wanted: Sequence[Quantity], seen: LayerSupport) -> Tensor:
    """Return values of the heads of a layer, [quantity, head], NaN where there is none."""
    measured = measure_layer({"attention": maps[None]}, wanted, seen, heads=range(len(maps)))
    return torch.stack(
        [measured.values[one][0].double().where(measured.defined[one][0], torch.nan) for one in wanted]
    )


def _is_like(seen: LayerSupport, maps: Tensor, other: LayerSupport, others: Tensor) -> bool:
    """Return True where uniform attention of two layers is the same map."""
    if seen.kind != other.kind or maps.shape[-1] != others.shape[-1]:
        return False
    if isinstance(seen.support, Tensor):
        return torch.equal(seen.support, other.support)
    return seen.kind != "auto" or bool(maps.triu(1).any()) == bool(others.triu(1).any())


def _of_uniform(maps: Tensor, wanted: Sequence[Quantity], seen: LayerSupport) -> Tensor:
    """Return what uniform attention to the visible keys of every query gives, [quantity]."""
    n = maps.shape[-1]
    if isinstance(seen.support, Tensor):
        visible = seen.support.reshape(-1, n, n).any(0).double()
        uniform = visible / visible.sum(-1, keepdim=True).clamp_min(1)
    else:
        is_full = seen.support == "full" or (seen.support == "auto" and bool(maps.triu(1).any()))
        uniform = (uniform_map if is_full else uniform_causal_map)(n)
    with warnings.catch_warnings():
        # Of uniform heads nothing differs, and their rows have nothing to standardise.
        warnings.simplefilter("ignore", UndefinedWarning)
        return _numbers(uniform[None], wanted, LayerSupport(seen.support, None))[:, 0]


def _by_layer(values: np.ndarray[Any, Any]) -> Any:
    """Return a number that all layers share, else a list with that of each."""
    known = values[~np.isnan(values)]
    if len(known) and (known == known[0]).all():
        return plain(known[0])
    return plain(values) if len(known) else None


def _quantities() -> list[Quantity]:
    """Every exact quantity that attention alone gives: one number per map, means over queries.

    What uniform attention gives stands beside each.
    """
    means = (
        one.mean_over("query")
        for one in registry().quantities
        if (one.protocol, one.scope, one.needs) == ("exact", "map", ("attention",))
    )
    return [one for one in means if not one.axes and not one.name.endswith("_uniform")]


def _one_sentence(attention: Tensor | Sequence[Tensor]) -> Tensor:
    """[layers, heads, n, n] on the CPU."""
    given: Any = attention
    if not hasattr(given, "__array__"):
        layers = list(given) if isinstance(given, Sequence) else []
        if not layers or not all(hasattr(layer, "__array__") for layer in layers):
            raise ValueError(
                "view: want a model and a text, results, a tensor, or one tensor per layer, "
                f"got {type(given).__name__}"
            )
        layers = [_checks.float_tensor("view", "attention", layer) for layer in layers]
        shapes = {tuple(layer.shape) for layer in layers}
        if len(shapes) > 1:
            raise ValueError(f"view: layers must have one shape, got {sorted(shapes)}")
        given = torch.stack([layer.cpu() for layer in layers])
    maps = _checks.float_tensor("view", "attention", given).cpu()
    if maps.ndim == 5 and maps.shape[1] == 1:
        maps = maps[:, 0]
    if not 2 <= maps.ndim <= 4 or maps.shape[-1] != maps.shape[-2] or 0 in maps.shape:
        raise ValueError(
            "view: attention of one sentence must be [layers, heads, n, n], [heads, n, n] or [n, n], "
            f"got shape {tuple(given.shape)}"
        )
    return maps.reshape((1,) * (4 - maps.ndim) + tuple(maps.shape))
