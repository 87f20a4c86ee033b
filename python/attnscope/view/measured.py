# SPDX-License-Identifier: MIT
"""What the page shows of tensors: every metric of one number per head, and every matrix."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope import _checks
from attnscope._warn import UndefinedWarning
from attnscope.metrics.discovery import found
from attnscope.metrics.measure import measure_quantities
from attnscope.metrics.quantity import Quantity
from attnscope.view.maps import Maps, is_causal, number


class Stack(NamedTuple):
    """The layers of one kind of attention in one pass.

    Attributes:
        name: "encoder", "decoder", "cross", or "" where a model has one kind.
        layers: one tensor [heads, queries, keys] for each.
        keys: the tokens that are attended to.
        queries: the tokens that attend, where they are others.
    """

    name: str
    layers: Sequence[Tensor]
    keys: Sequence[str]
    queries: Sequence[str] | None = None


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
    numbers: list[dict[str, Any]] = []
    uniform: list[dict[str, float | None]] = []
    collected, causal = Maps(max_bytes), False
    for at, stack in enumerate(stacks):
        square = stack.queries is None
        causal = causal or (square and all(is_causal(layer) for layer in stack.layers))
        numbers.append(_numbers(stack.layers, wanted, depth, heads) if square else {})
        uniform.append(_of_uniform(stack.layers[0], wanted) if square else {})
        for layer, maps in enumerate(stack.layers):
            for head, matrix in enumerate(maps):
                place = {"layer": layer, "head": head, "checkpoint": 0, "input": at}
                collected.add(matrix, stack.keys, queries=stack.queries, **place)
    kept = [one for one in wanted if any(one.name in found for found in numbers)]
    empty = [[None] * heads for _ in range(depth)]
    notes = []
    if collected.refused:
        shown = len(collected.stored)
        notes.append(
            f"The page holds the matrices of the first {shown} of {shown + collected.refused} heads; more "
            "would make it larger than max_bytes. Pass fewer layers to see the others."
        )
    return {
        "notes": notes,
        "layers": list(range(depth)),
        "heads": list(range(heads)),
        "checkpoints": [""],
        "inputs": [one.name for one in stacks],
        "stacks": len(stacks) > 1,
        "metrics": [
            {"name": one.name, "label": one.label, "meaning": one.meaning, "group": "heads"} for one in kept
        ],
        "values": [[[found.get(one.name, empty) for one in kept] for found in numbers]],
        "uniform": [[found.get(one.name) for one in kept] for found in uniform],
        "kind": "causal" if causal else "full",
        "laws": collected.laws,
        "maps": collected.stored,
        "without": "The page is full: this head's matrix was left out."
        if collected.refused
        else "There is no such head here.",
    }


def _numbers(
    layers: Sequence[Tensor], wanted: Sequence[Quantity], depth: int, heads: int
) -> dict[str, list[list[float | None]]]:
    """By quantity a grid [depth][heads], null where there is no value; none where no head has one."""
    grids: dict[str, list[list[float | None]]] = {}
    for at, maps in enumerate(layers):
        measured = measure_quantities({"attention": maps[None]}, wanted, heads=range(len(maps)))
        for one in wanted:
            row = measured.values[one][0].double().where(measured.defined[one][0], torch.nan).tolist()
            grid = grids.setdefault(one.name, [[None] * heads for _ in range(depth)])
            grid[at][: len(row)] = [number(cell) for cell in row]
    return {
        name: grid for name, grid in grids.items() if any(cell is not None for row in grid for cell in row)
    }


def _of_uniform(maps: Tensor, wanted: Sequence[Quantity]) -> dict[str, float | None]:
    """What uniform attention of that size gives."""
    n = maps.shape[-1]
    ones = torch.ones(n, n, dtype=torch.float64)
    uniform = ones.tril() if is_causal(maps) else ones
    uniform = uniform / uniform.sum(-1, keepdim=True)
    with warnings.catch_warnings():
        # Of uniform heads nothing differs, and their rows have nothing to standardise.
        warnings.simplefilter("ignore", UndefinedWarning)
        found = measure_quantities({"attention": uniform.expand(1, 1, n, n)}, wanted, heads=[0])
    return {one.name: number(found.values[one].item()) for one in wanted if bool(found.defined[one])}


def _quantities() -> list[Quantity]:
    """Every exact quantity that attention alone gives: one number per map, means over queries.

    What uniform attention gives stands beside each.
    """
    means = (
        one.mean_over("query")
        for one in found().quantities
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
