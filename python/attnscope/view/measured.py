# SPDX-License-Identifier: MIT
"""What the page shows of tensors: every metric of one number per head, and every matrix."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch

from attnscope import _checks
from attnscope._warn import UndefinedWarning
from attnscope.metrics.discovery import found
from attnscope.metrics.measure import measure_quantities
from attnscope.metrics.quantity import Quantity
from attnscope.view.maps import Maps, number


def contents_of_tensors(
    attention: torch.Tensor | Sequence[torch.Tensor], tokens: Sequence[str] | None, max_bytes: int
) -> dict[str, Any]:
    """Measures every head of one sentence.

    Raises:
        ValueError: another shape, or tokens that do not match.
    """
    maps = _one_sentence(attention)
    layers, heads, n, _ = maps.shape
    if tokens is None:
        tokens = [str(place) for place in range(n)]
    tokens = [str(token) for token in tokens]
    if len(tokens) != n:
        raise ValueError(f"view: attention of {n} tokens needs as many names, got {len(tokens)} tokens")
    causal = n > 1 and bool((maps.triu(1) == 0).all())
    ones = torch.ones(n, n, dtype=torch.float64)
    uniform = ones.tril() if causal else ones
    uniform = uniform / uniform.sum(-1, keepdim=True)

    wanted = _quantities()
    measured = measure_quantities({"attention": maps}, wanted, heads=range(heads))
    with warnings.catch_warnings():
        # Of uniform heads nothing differs, and their rows have nothing to standardise.
        warnings.simplefilter("ignore", UndefinedWarning)
        baseline = measure_quantities({"attention": uniform.expand(1, 1, n, n)}, wanted, heads=[0])
    metrics, values, baselines = [], [], []
    for one in wanted:
        if bool(measured.defined[one].any()):
            metrics.append({"name": one.name, "label": one.label, "meaning": one.meaning, "group": "heads"})
            numbers = measured.values[one].double().where(measured.defined[one], torch.nan)
            values.append([[number(cell) for cell in row] for row in numbers.tolist()])
            alike = baseline.values[one].item() if bool(baseline.defined[one]) else None
            baselines.append(None if alike is None else number(alike))
    collected = Maps(max_bytes)
    for layer in range(layers):
        for head in range(heads):
            collected.add(
                maps[layer, head],
                tokens,
                layer=layer,
                head=head,
                checkpoint=0,
                input=0,
            )
    notes = []
    if collected.refused:
        kept = len(collected.stored)
        notes.append(
            f"The page holds the matrices of the first {kept} of {layers * heads} heads; more would make it "
            "larger than max_bytes. Pass fewer layers to see the others."
        )
    return {
        "notes": notes,
        "layers": list(range(layers)),
        "heads": list(range(heads)),
        "checkpoints": [""],
        "inputs": [""],
        "metrics": metrics,
        "values": [[values]],
        "uniform": [baselines],
        "kind": "causal" if causal else "full",
        "laws": collected.laws,
        "maps": collected.stored,
        "without": "The page is full: this head's matrix was left out.",
    }


def _quantities() -> list[Quantity]:
    """Every exact quantity that attention alone gives: one number per map, means over queries."""
    means = (
        one.mean_over("query")
        for one in found().quantities
        if (one.protocol, one.scope, one.needs) == ("exact", "map", ("attention",))
    )
    return [one for one in means if not one.axes]


def _one_sentence(attention: torch.Tensor | Sequence[torch.Tensor]) -> torch.Tensor:
    """[layers, heads, n, n] on the CPU."""
    given: Any = attention
    if not hasattr(given, "__array__"):
        layers = list(given) if isinstance(given, Sequence) else []
        if not layers or not all(hasattr(layer, "__array__") for layer in layers):
            raise ValueError(
                f"view: want results, a tensor, or one tensor per layer, got {type(given).__name__}"
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
