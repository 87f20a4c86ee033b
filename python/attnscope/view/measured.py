# SPDX-License-Identifier: MIT
"""The page's data of tensors: every metric with a number per head, and every matrix with its contents.

The contents of a matrix are its entries, its bars, and its spectrum next to the null law.
"""

from __future__ import annotations

import base64
import itertools
import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnscope import _checks
from attnscope._tokens import readable
from attnscope.errors import UndefinedWarning
from attnscope.metrics.closed_forms import uniform_causal_map, uniform_map
from attnscope.metrics.discovery import registry
from attnscope.metrics.homology.barcodes import Barcodes, betti_curve
from attnscope.metrics.homology.persistence import persistence
from attnscope.metrics.quantity import Quantity
from attnscope.metrics.spectra.null_law import Word, null_spectrum, undefined_because
from attnscope.metrics.support import LayerSupport, measure_layer
from attnscope.models.inputs.token_layout import Grid

_LAW_POINTS = 240


def number(value: Any) -> float | None:
    """Return a number for JSON, to six significant digits; None without one.

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
    return [[scale, *betti] for scale, betti in zip(scales.tolist(), numbers, strict=True)]


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


class Stack(NamedTuple):
    """The layers of one kind of attention in one pass, each [heads, queries, keys], and their tokens."""

    name: str  # "encoder", "decoder", "cross", a stack of modules, or "" where a model has one kind
    layers: Sequence[Tensor]
    keys: Sequence[str]
    queries: Sequence[str] | None = None  # the tokens that attend, where they are others
    supports: Sequence[LayerSupport] = ()  # of each layer; none if unknown
    grids: Sequence[Grid] = ()  # of the pictures among the keys
    cross: bool = False  # queries stand at no key
    answer: tuple[int, int] | None = None  # the first query of an answer and one past its last

    def support(self, layer: int) -> LayerSupport:
        """Return what the queries of a layer see."""
        return self.supports[layer] if self.supports else LayerSupport("auto", None)


def contents_of_tensors(
    attention: Tensor | Sequence[Tensor],
    tokens: Sequence[str] | None,
    max_bytes: int,
    answer: Any = None,
) -> dict[str, Any]:
    """Measure every head of one sentence, with the span of an answer among its tokens."""
    maps = _one_sentence(attention)
    n = maps.shape[-1]
    tokens = [str(place) for place in range(n)] if tokens is None else [str(token) for token in tokens]
    if len(tokens) != n:
        raise ValueError(f"view: attention of {n} tokens needs as many names, got {len(tokens)} tokens")
    span = answer_of(answer, n)
    return contents_of_stacks([Stack("", list(maps), tokens, answer=span)], max_bytes)


def answer_of(answer: Any, n: int) -> tuple[int, int] | None:
    """Return the span of an answer among n tokens, from its first token or from the span.

    >>> answer_of(3, 8), answer_of((3, 5), 8), answer_of(None, 8)
    ((3, 8), (3, 5), None)
    """
    if answer is None:
        return None
    ends = [answer, n] if isinstance(answer, (int, np.integer)) else list(answer)
    is_span = len(ends) == 2 and all(isinstance(end, (int, np.integer)) for end in ends)
    if not is_span or not 0 <= ends[0] < ends[1] <= n:
        raise ValueError(
            "view: answer must be the first token of the answer, or that and one past its last, of "
            f"{n} tokens, got {answer!r:.60}"
        )
    return int(ends[0]), int(ends[1])


def contents_of_stacks(
    stacks: Sequence[Stack], max_bytes: int, pictures: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """Measure every head of every stack; of maps that are not square what is defined for rectangles."""
    quantities = _quantities()
    depth = max(len(stack.layers) for stack in stacks)
    heads = max(len(layer) for stack in stacks for layer in stack.layers)
    values = np.full((len(stacks), len(quantities), depth, heads), np.nan)
    uniform = np.full((len(stacks), len(quantities), depth), np.nan)
    collected = Maps(max_bytes)
    for at, stack in enumerate(stacks):
        for layer, maps in enumerate(stack.layers):
            seen = stack.support(layer)
            values[at, :, layer, : len(maps)] = _numbers(maps, quantities, seen, cross=stack.cross)
            is_like_previous = layer and _is_like(
                seen, maps, stack.support(layer - 1), stack.layers[layer - 1]
            )
            uniform[at, :, layer] = (
                uniform[at, :, layer - 1]
                if is_like_previous
                else _of_uniform(maps, quantities, seen, cross=stack.cross)
            )
            for head, matrix in enumerate(maps):
                place = {"layer": layer, "head": head, "checkpoint": 0, "input": at}
                collected.add(matrix, stack.keys, stack.queries, seen.support, stack.answer, **place)
    has_values = ~np.isnan(values).all((0, 2, 3))
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
        "inputs": [stack.name for stack in stacks],
        "stacks": len(stacks) > 1,
        "pictures": list(pictures),
        "grids": [[asdict(grid) for grid in stack.grids] for stack in stacks],
        "metrics": [
            {"name": quantity.name, "label": quantity.label, "meaning": quantity.meaning, "group": "heads"}
            for quantity in itertools.compress(quantities, has_values)
        ],
        "values": [plain(values[:, has_values])],
        "uniform": [[_by_layer(row) for row in rows] for rows in uniform[:, has_values]],
        "laws": collected.laws,
        "maps": collected.stored,
        "without": without,
    }


def _numbers(
    maps: Tensor, quantities: Sequence[Quantity], seen: LayerSupport, *, cross: bool = False
) -> Tensor:
    """Return values of the heads of a layer, [quantity, head], NaN without a value."""
    places = _checks.Places(None, None, cross)
    sites = {"attention": maps[None]}
    measured = measure_layer(sites, quantities, seen, heads=range(len(maps)), places=places)
    return torch.stack(
        [
            measured.values[quantity][0].double().where(measured.defined[quantity][0], torch.nan)
            for quantity in quantities
        ]
    )


def _is_like(seen: LayerSupport, maps: Tensor, other: LayerSupport, others: Tensor) -> bool:
    """Return True where uniform attention of two layers is the same map."""
    if seen.kind != other.kind or maps.shape[-2:] != others.shape[-2:]:
        return False
    if isinstance(seen.support, Tensor):
        return torch.equal(seen.support, other.support)
    return seen.kind != "auto" or _looks_ahead(maps) == _looks_ahead(others)


def _looks_ahead(maps: Tensor) -> bool:
    """Return True if a query, which stands at one of the last keys, attends to a key behind its own."""
    queries, keys = maps.shape[-2:]
    return bool(maps.triu(keys - queries + 1).any())


def _of_uniform(
    maps: Tensor, quantities: Sequence[Quantity], seen: LayerSupport, *, cross: bool = False
) -> Tensor:
    """Return the values of uniform attention to the visible keys of every query, [quantity]."""
    rows, n = maps.shape[-2:]
    if cross:
        uniform = torch.full((rows, n), 1 / n, dtype=torch.float64, device="cpu")
    elif isinstance(seen.support, Tensor):
        visible = seen.support.reshape(-1, rows, n).any(0).double()
        uniform = visible / visible.sum(-1, keepdim=True).clamp_min(1)
    else:
        is_full = seen.support == "full" or (seen.support == "auto" and _looks_ahead(maps))
        uniform = (uniform_map if is_full else uniform_causal_map)(n)[n - rows :]
    with warnings.catch_warnings():
        # Uniform heads do not differ, and their rows cannot be standardised.
        warnings.simplefilter("ignore", UndefinedWarning)
        return _numbers(uniform[None], quantities, LayerSupport(seen.support, None), cross=cross)[:, 0]


def _by_layer(values: np.ndarray[Any, Any]) -> Any:
    """Return a number that all layers share, else a list with that of each."""
    defined = values[~np.isnan(values)]
    if len(defined) and (defined == defined[0]).all():
        return plain(defined[0])
    return plain(values) if len(defined) else None


def _quantities() -> list[Quantity]:
    """Return every exact quantity of attention: one number per map, means over queries.

    The page also has the value of uniform attention for each.
    """
    means = (
        quantity.mean_over("query")
        for quantity in registry().quantities
        if (quantity.protocol, quantity.scope, quantity.needs) == ("exact", "map", ("attention",))
    )
    return [quantity for quantity in means if not quantity.axes and not quantity.name.endswith("_uniform")]


def _one_sentence(attention: Tensor | Sequence[Tensor]) -> Tensor:
    """Return attention of a single text as [layers, heads, n, n] on the CPU."""
    stacked: Any = attention
    if not hasattr(stacked, "__array__"):
        layers = list(stacked) if isinstance(stacked, Sequence) else []
        if not layers or not all(hasattr(layer, "__array__") for layer in layers):
            if stacked is None or (layers and all(layer is None for layer in layers)):
                raise ValueError(
                    "view: transformers gave no attention (sdpa and flash attention give none); pass the "
                    "model and a text, or call model.set_attn_implementation('eager') before"
                )
            raise ValueError(
                "view: expected a model and a text, Results, a tensor, or one tensor per layer, "
                f"got {type(stacked).__name__}"
            )
        layers = [_checks.float_tensor("view", "attention", layer) for layer in layers]
        shapes = {tuple(layer.shape) for layer in layers}
        if len(shapes) > 1:
            raise ValueError(f"view: layers must have one shape, got {sorted(shapes)}")
        stacked = torch.stack([layer.cpu() for layer in layers])
    maps = _checks.float_tensor("view", "attention", stacked).cpu()
    if maps.ndim == 5 and maps.shape[1] == 1:
        maps = maps[:, 0]
    if not 2 <= maps.ndim <= 4 or maps.shape[-1] != maps.shape[-2] or 0 in maps.shape:
        raise ValueError(
            "view: attention of one sentence must be [layers, heads, n, n], [heads, n, n] or [n, n], "
            f"got shape {tuple(stacked.shape)}"
        )
    return maps.reshape((1,) * (4 - maps.ndim) + tuple(maps.shape))
