# SPDX-License-Identifier: MIT
"""What the page shows of tensors: every metric of one number per head, and every matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from attnscope import _checks
from attnscope.view.maps import Maps, number


class _Column(NamedTuple):
    """A number per head: the metric it comes from, that call's options, what of its result."""

    name: str
    metric: str
    options: dict[str, Any]
    take: Callable[[Any], torch.Tensor]


def _whole(result: Any) -> torch.Tensor:
    tensor: torch.Tensor = result
    return tensor


def _by_dimension(metric: str) -> list[_Column]:
    def take(dimension: int) -> Callable[[Any], torch.Tensor]:
        return lambda result: result[..., dimension]

    return [_Column(f"{metric}_{dimension}", metric, {}, take(dimension)) for dimension in (0, 1)]


_COLUMNS = (
    _Column("sink_share", "sink_share", {}, lambda result: result.share),
    _Column("sink_boost", "sink_share", {}, lambda result: result.boost),
    _Column("top_mass", "top_mass", {"k": 1}, _whole),
    _Column("entropy", "attention_entropy", {}, lambda result: result.mean(-1)),
    _Column(
        "entropy_normalized", "attention_entropy", {"normalized": True}, lambda result: result.nanmean(-1)
    ),
    _Column("fiedler_value", "fiedler_value", {}, _whole),
    _Column("fiedler_value_normalized", "fiedler_value", {"normalized": True}, _whole),
    _Column("participation_ratio", "participation_ratio", {}, _whole),
    _Column("participation_ratio_laplacian", "participation_ratio", {"spectrum": "laplacian"}, _whole),
    _Column("stable_rank", "stable_rank", {}, _whole),
    _Column("effective_rank", "effective_rank", {}, _whole),
    _Column("spectral_gap", "spectral_gap", {}, _whole),
    _Column("spectral_ratio", "spectral_ratio", {}, _whole),
    *_by_dimension("bar_count"),
    *_by_dimension("total_persistence"),
    *_by_dimension("max_persistence"),
    *_by_dimension("persistent_entropy"),
    _Column("head_divergence", "head_divergence", {}, _whole),
    _Column("laplacian_gap", "laplacian_gap", {}, _whole),
)
_AGAINST_THE_LAW = (
    _Column("mp_ks", "marchenko_pastur", {}, lambda result: result.ks),
    _Column("mp_wasserstein", "marchenko_pastur", {}, lambda result: result.wasserstein),
    _Column("mp_outliers", "marchenko_pastur", {}, lambda result: result.outliers),
    _Column("mp_outlier_energy", "marchenko_pastur", {}, lambda result: result.outlier_energy),
)


def contents_of_tensors(
    attention: torch.Tensor | Sequence[torch.Tensor], tokens: Sequence[str] | None, max_bytes: int
) -> dict[str, Any]:
    """Measures every head of one sentence.

    Args:
        attention: [layers, heads, n, n], [heads, n, n], [n, n], or one tensor per layer.
        tokens: n of them, or None.
        max_bytes: of the matrices in the page.

    Raises:
        ValueError: another shape, or tokens that do not match.
    """
    from attnscope.plots.quantities import quantity

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

    columns = [*_COLUMNS, *(_AGAINST_THE_LAW if n >= 8 else ())]
    found = _measured(maps, columns)
    # Rows of uniform attention have nothing to standardise: no law is compared with it.
    baseline = _measured(uniform.expand(1, 1, n, n), list(_COLUMNS))
    metrics, values, baselines = [], [], []
    for column in columns:
        about = quantity(column.name)
        metrics.append(
            {"name": column.name, "label": about.label, "meaning": about.meaning, "group": "heads"}
        )
        values.append([[number(cell) for cell in row] for row in found[column.name].tolist()])
        baselines.append(number(baseline[column.name]) if column.name in baseline else None)

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


def _measured(maps: torch.Tensor, columns: Sequence[_Column]) -> dict[str, torch.Tensor]:
    from attnscope.metrics.measure import measure

    requests = {column.name: {"metric": column.metric, **column.options} for column in columns}
    found = measure(maps, requests)
    return {column.name: column.take(found[column.name]).double() for column in columns}


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
