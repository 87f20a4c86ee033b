# SPDX-License-Identifier: MIT
"""The page's data of tensors: every metric with a number per head, and every matrix with its contents."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnscope import _checks
from attnscope.errors import UndefinedWarning
from attnscope.metrics.closed_forms import uniform_causal_map, uniform_map
from attnscope.metrics.discovery import registry
from attnscope.metrics.quantity import Quantity
from attnscope.metrics.support import LayerSupport, measure_layer
from attnscope.models.inputs.token_layout import Grid
from attnscope.view.matrices import Maps, plain

#: Numbers of heads that a page holds, of all its inputs and checkpoints.
MOST_NUMBERS = 1_200_000


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
    numbers: Sequence[int] = ()  # of the layers in their model; none: from 0
    heads: Sequence[int] = ()  # numbers of the heads in their layers; none: from 0

    def number(self, layer: int) -> int:
        """Return the number of a layer, its place where layers have none or share it."""
        return self.numbers[layer] if len(set(self.numbers)) == len(self.layers) else layer

    def support(self, layer: int) -> LayerSupport:
        """Return what the queries of a layer see."""
        return self.supports[layer] if self.supports else LayerSupport("auto", None)


class ShownText(NamedTuple):
    """A text of the page: its name, its attention by kinds, and its pictures."""

    label: str
    stacks: Sequence[Stack]
    pictures: Sequence[dict[str, Any]] = ()


class _Numbers(NamedTuple):
    """The numbers of a stack: of its heads [quantity, layer, head], and of uniform attention."""

    values: np.ndarray[Any, Any]
    uniform: np.ndarray[Any, Any]
    layers: Sequence[int]
    heads: Sequence[int]


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


def contents_of_stacks(stacks: Sequence[Stack], max_bytes: int) -> dict[str, Any]:
    """Return the contents of a page of one text."""
    return contents_of_texts([ShownText("", stacks)], 1, max_bytes)


def contents_of_texts(texts: Iterable[ShownText], count: int, max_bytes: int) -> dict[str, Any]:
    """Return the contents of a page: every head of every text measured.

    Args:
        texts: one after the other; of texts that the page has no room for no more are asked for.
        count: how many texts there are.
        max_bytes: room of all matrices, of which each text has an equal part.
    """
    quantities = _quantities()
    collected = Maps(0)
    measured: list[ShownText] = []
    numbers: list[dict[str, _Numbers]] = []
    for text in texts:
        collected.add_room(max_bytes // count)
        place = len(measured)
        numbers.append(
            {stack.name: _measure_stack(stack, quantities, collected, place) for stack in text.stacks}
        )
        measured.append(text._replace(stacks=[stack._replace(layers=()) for stack in text.stacks]))
        size = sum(part.values.size for part in numbers[0].values())
        if len(measured) * size > MOST_NUMBERS - size:
            break
    return _assembled(measured, numbers, quantities, collected, count)


def _measure_stack(stack: Stack, quantities: Sequence[Quantity], collected: Maps, text: int) -> _Numbers:
    """Return the numbers of a stack, whose matrices are collected."""
    heads = stack.heads or range(max(len(layer) for layer in stack.layers))
    values = np.full((len(quantities), len(stack.layers), len(heads)), np.nan)
    uniform = np.full((len(quantities), len(stack.layers)), np.nan)
    for layer, maps in enumerate(stack.layers):
        seen = stack.support(layer)
        values[:, layer, : len(maps)] = _numbers(maps, quantities, seen, cross=stack.cross)
        is_like_previous = layer and _is_like(seen, maps, stack.support(layer - 1), stack.layers[layer - 1])
        uniform[:, layer] = (
            uniform[:, layer - 1]
            if is_like_previous
            else _of_uniform(maps, quantities, seen, cross=stack.cross)
        )
        for head, matrix in zip(heads, maps, strict=False):
            place = {
                "layer": stack.number(layer),
                "head": head,
                "checkpoint": 0,
                "text": text,
                "input": stack.name,
            }
            collected.add(matrix, stack.keys, stack.queries, seen.support, stack.answer, **place)
    return _Numbers(values, uniform, [stack.number(layer) for layer in range(len(stack.layers))], heads)


def _assembled(
    texts: Sequence[ShownText],
    numbers: Sequence[Mapping[str, _Numbers]],
    quantities: Sequence[Quantity],
    collected: Maps,
    count: int,
) -> dict[str, Any]:
    """Return the contents of a page whose inputs are every kind of attention of every text, in this order."""
    names = list(dict.fromkeys(name for part in numbers for name in part))
    stacks = [part for parts in numbers for part in parts.values()]
    layers = sorted({layer for part in stacks for layer in part.layers})
    heads = sorted({head for part in stacks for head in part.heads})
    sizes = (len(texts), len(names), len(quantities), len(layers))
    values: np.ndarray[Any, Any] = np.full((*sizes, len(heads)), np.nan)
    uniform: np.ndarray[Any, Any] = np.full(sizes, np.nan)
    for text, parts in enumerate(numbers):
        for name, part in parts.items():
            rows, columns = map(layers.index, part.layers), map(heads.index, part.heads)
            at_rows, at_columns = np.ix_(list(rows), list(columns))
            values[text, names.index(name)][:, at_rows, at_columns] = part.values
            uniform[text, names.index(name)][:, at_rows[:, 0]] = part.uniform
    values, uniform = values.reshape(-1, *values.shape[2:]), uniform.reshape(-1, *uniform.shape[2:])
    for matrix in collected.stored:
        matrix["input"] = matrix.pop("text") * len(names) + names.index(matrix["input"])
    has_values = np.asarray(~np.isnan(values).all(axis=(0, 2, 3)))
    notes, without = _notes(collected, len(texts), count)
    return {
        "notes": notes,
        "layers": layers,
        "heads": heads,
        "checkpoints": [""],
        "texts": [text.label for text in texts],
        "inputs": names,
        "is_of_texts": len(names) * len(texts) > 1,
        "pictures": [picture for text in texts for picture in text.pictures],
        "grids": _grids(texts, names),
        "metrics": [
            {
                "name": quantity.name,
                "label": quantity.label,
                "meaning": quantity.meaning,
                "group": "heads",
                "kind": quantity.kind,
            }
            for quantity in itertools.compress(quantities, has_values)
        ],
        "values": [plain(values[:, has_values])],
        "uniform": [[_by_layer(row) for row in rows] for rows in uniform[:, has_values]],
        "laws": collected.laws,
        "maps": collected.stored,
        "without": without,
    }


def _notes(collected: Maps, shown: int, count: int) -> tuple[list[str], str]:
    """Return the notes about what the page has no room for, and why a head has no matrix."""
    notes = []
    if shown < count:
        notes.append(f"The page holds the first {shown} of {count} texts.")
    if not collected.refused:
        return notes, "There is no such head here."
    stored = len(collected.stored)
    of_texts = "" if shown == 1 else f" of {shown} texts, those of the first layers of each"
    cure = "Pass fewer layers" if shown == 1 else "Pass fewer texts or layers"
    notes.append(
        f"The page holds the matrices of the first {stored} of {stored + collected.refused} heads{of_texts}; "
        f"more would make it larger than max_bytes. {cure} to see the others."
    )
    return notes, "The page is full: this head's matrix was left out."


def _grids(texts: Sequence[ShownText], names: Sequence[str]) -> list[list[dict[str, Any]]]:
    """Return the grids of pictures by input, each with the number of its picture on the page."""
    grids, before = [], 0
    for text in texts:
        stacks = {stack.name: stack for stack in text.stacks}
        for name in names:
            part = stacks[name].grids if name in stacks else ()
            grids.append([{**asdict(grid), "picture": grid.picture + before} for grid in part])
        before += len(text.pictures)
    return grids


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
            is_empty = isinstance(stacked, tuple) and not layers
            if stacked is None or is_empty or (layers and all(layer is None for layer in layers)):
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
