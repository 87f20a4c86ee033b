# SPDX-License-Identifier: MIT
"""Statistics of thresholded graphs, as the Laplacian and the Fiedler notebook compute them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from attnscope import _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.arguments import scalars
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.closed_forms import first_key_map
from attnscope.metrics.quantity import ClosedForm, Quantity, attribute_reader
from attnscope.protocols.ruscio2025._maps import declared, head_mean, type_in_numpy

Variant = Literal["laplacian", "fiedler"]
# The Laplacian notebook drops isolated nodes from the degrees of graphs with more nodes than this.
MANY_NODES = 50
# Paths and clustering are for graphs of at most so many nodes.
FEW_NODES = 30
# Exact numbers of a simple graph; the last one identifies the graph.
_OF_SIMPLE = ("graph_fiedler_value", "graph_laplacian_gap", "density")


@shown_by_shape
class GraphStatistics(NamedTuple):
    """One number per map and threshold in each field, all [..., T].

    B = 1[Ā > t] directed with self-loops, W = (B + Bᵀ)/2, d the in-degrees of B.

    Attributes:
        fiedler_value: λ2 of diag(W·1) − W.
        laplacian_gap: λ3 − λ2, the notebooks' spectral gap; 0 for n < 3.
        hub_share: basic star, max d/(n−1).
        gini: 2Σ k·d_(k)/(nΣd) − (n+1)/n.
        star_likeness: 0.3·hub_share + 0.7·gini, or hub_share in the Fiedler notebook.
        centralization: Σ(max d − d_j)/(n−1)².
        degree_variance: population variance of d.
        density: number of edges over n².
        average_shortest_path: of the largest component; NaN without links and for n > 30.
        average_clustering: of all nodes, 0 without links; NaN for n > 30 and for degenerate graphs.
        degenerate: bool, fewer than two edges or n < 2; every number is 0 then.
        effective: bool, density within [0.05, 0.95].
    """

    fiedler_value: Tensor
    laplacian_gap: Tensor
    hub_share: Tensor
    gini: Tensor
    star_likeness: Tensor
    centralization: Tensor
    degree_variance: Tensor
    density: Tensor
    average_shortest_path: Tensor
    average_clustering: Tensor
    degenerate: Tensor
    effective: Tensor


@memory_errors("graph_statistics")
@without_derivative("it is the published code's number, made for comparing")
def graph_statistics(
    attention: Tensor, thresholds: Sequence[float] | Tensor | float, *, variant: Variant = "laplacian"
) -> GraphStatistics:
    """Return connectivity, hubs and inequality of the graphs 1[Ā > t], as two of the notebooks compute them.

    Quirks: the graph is directed and keeps its self-loops, so that a hub that all others see has d = n and
    a basic star above 1; W halves every one-way edge, so that λ2 of a causal graph is half that of the
    simple graph; d counts only incoming edges; the formulas divide by n − 1 although a node has n possible
    sources. Isolated nodes (no edge at all, none of their own either) are dropped from n and d, by the
    Fiedler notebook always and by the Laplacian notebook for n > 50; λ2 and density always take all n.
    Thresholds are rounded to the maps' own type before they are compared, so that an entry of 1/10 in
    float32 does not exceed 0.1.

    Not reproduced: for n > 50 the Laplacian notebook asks ARPACK for the three smallest eigenvalues
    (`eigsh(which="SM")`), which misses repeated zeros: on uniform causal attention of 51 tokens at 0.02,
    whose last two tokens are isolated, it gives λ2 = 24.5; the true value, and this function's, is 0. Its
    result depends on the build of ARPACK and cannot be frozen.

    Args:
        attention: head mean [..., n, n]; bfloat16, which the notebooks cannot hold, counts as float32.
        thresholds: numbers in (0, 1); an entry equal to one is no edge.
        variant: the notebook, which decides `star_likeness` and when isolated nodes are dropped.

    Returns:
        GraphStatistics of [..., T] tensors: float64, the two flags bool. A map with a NaN or infinite entry
        is NaN and False.

    Raises:
        ValueError: an unknown variant, a threshold outside (0, 1).

    Example:
        The causal star with self-loops: key 0 has all n incoming edges, so that a "share" is n/(n−1).

        >>> import torch
        >>> from attnscope.protocols import ruscio2025
        >>> star = torch.eye(30) / 2; star[:, 0] = 0.5; star[0, 0] = 1
        >>> result = ruscio2025.graph_statistics(star, 0.1)
        >>> [round(result.gini.item(), 4), round(result.star_likeness.item(), 4)]
        [0.4751, 0.6429]
        >>> result.fiedler_value.item(), round(result.hub_share.item() * 29, 9)
        (0.5, 30.0)

    References:
        Ruscio et al., What are you sinking?, arXiv 2508.02546, Laplacian and Fiedler notebooks.
    """
    scalars.choice_argument("ruscio2025.graph_statistics", "variant", variant, ("laplacian", "fiedler"))
    return _by_variant(attention, thresholds, (variant,))[variant]


def _by_variant(
    attention: Tensor,
    thresholds: Sequence[float | str] | Tensor | float,
    variants: Sequence[Variant] = ("laplacian", "fiedler"),
    *,
    held: torch.dtype | None = None,
    measured: Mapping[str, Tensor] | None = None,
) -> dict[str, GraphStatistics]:
    """Compute `graph_statistics` of some of the notebooks; shared work is done once.

    `held` is the type in which the model holds its maps, in which the notebooks keep their mean and compare
    thresholds; `measured` may hold numbers of the simple graphs of the same maps, [..., 1, T] by name.
    """
    attention = attention if held is None else attention.to(type_in_numpy(held))
    name = "ruscio2025.graph_statistics"
    maps, bad, checked = head_mean(name, attention)
    levels = _checks.thresholds_argument(name, thresholds, checked).flatten()
    levels = levels.to(type_in_numpy(checked.tensor.dtype)).double()
    n = checked.n
    maps = maps.reshape(-1, n, n)
    counted = []
    for level in levels.tolist():
        edges = maps > level
        edge_flags = edges.float()  # whose sums are exact below 2**24, and quick
        counted.append((edge_flags.sum(-2).double(), edge_flags.sum(-1).double(), *_paths(edges)))
    incoming, outgoing, paths, clustering = (torch.stack(parts, 1) for parts in zip(*counted, strict=True))
    total = incoming.sum(-1)
    density, degenerate = total / n**2, (total < 2) | (n < 2)
    spectra = {**_spectra(maps, levels, total, measured or {}), "density": density}
    missing = {"average_shortest_path": paths, "average_clustering": clustering}
    flags = {"degenerate": degenerate, "effective": (density >= 0.05) & (density <= 0.95) & ~degenerate}
    is_good = ~bad.reshape(-1, 1)
    result = {}
    for variant in variants:
        numbers = spectra | _degrees(incoming, outgoing, variant)
        fields = {name: torch.where(degenerate, 0.0, values) for name, values in numbers.items()}
        fields |= {name: torch.where(degenerate, math.nan, values) for name, values in missing.items()}
        fields = {name: torch.where(is_good, values, math.nan) for name, values in fields.items()}
        fields |= {name: values & is_good for name, values in flags.items()}
        shape = (*checked.leading, len(levels))
        result[variant] = GraphStatistics(**{name: values.reshape(shape) for name, values in fields.items()})
    return _calls.warn_non_finite(name, checked, result, int(bad.sum()))


def _degrees(degree: Tensor, outgoing: Tensor, variant: Variant) -> dict[str, Tensor]:
    """Return the fields computed from the in-degrees [m, T, n] of graphs."""
    n = degree.shape[-1]
    # a dropped node has no part in any sum: its degree is 0, so that it comes first in the order
    isolated = (degree + outgoing) == 0
    if variant == "laplacian" and n <= MANY_NODES:
        isolated = torch.zeros_like(isolated)
    dropped = isolated.sum(-1, keepdim=True)
    nodes = (n - dropped.squeeze(-1)).double()
    largest, total = degree.amax(-1), degree.sum(-1)
    rank = torch.arange(1, n + 1, dtype=torch.float64, device="cpu") - dropped
    gini = 2 * (rank * degree.sort(-1).values).sum(-1) / (nodes * total) - (nodes + 1) / nodes
    hub_share = largest / (nodes - 1)
    mean = (total / nodes).unsqueeze(-1)
    squares = torch.where(isolated, 0.0, (degree - mean).square()).sum(-1)
    return {
        "hub_share": hub_share,
        "gini": gini,
        "star_likeness": 0.3 * hub_share + 0.7 * gini if variant == "laplacian" else hub_share,
        "centralization": (nodes * largest - total) / (nodes - 1).square(),
        "degree_variance": squares / nodes,
    }


def _spectra(
    maps: Tensor, levels: Tensor, total: Tensor, measured: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """λ2 and λ3 − λ2 [m, T] of the Laplacians of (B + Bᵀ)/2, of `total` edges; self-loops cancel in them.

    Half the simple graph's where no edge goes both ways. Two graphs of the largest entries of a map that have
    as many edges are one, independent of thresholds and rounding: their `measured` numbers are reused.
    """
    n = maps.shape[-1]
    fiedler = torch.zeros(len(maps), len(levels), dtype=torch.float64, device="cpu")
    gap = fiedler.clone()
    lowest = maps > float(levels.min())
    both_ways = (lowest & lowest.mT & ~torch.eye(n, dtype=torch.bool, device="cpu")).any(-1).any(-1)
    one_way = ~both_ways
    if "density" in measured:
        value, exact_gap, density = (measured[name].flatten(0, -2) for name in _OF_SIMPLE)
        edges = total - (maps.diagonal(0, -2, -1).unsqueeze(1) > levels.unsqueeze(-1)).sum(-1)
        is_same_graph = one_way & (edges / (0.5 * n * (n - 1)) == density).all(-1)
        fiedler[is_same_graph], gap[is_same_graph] = (
            value[is_same_graph] / 2,
            exact_gap[is_same_graph].nan_to_num(nan=0.0) / 2,
        )
        one_way &= ~is_same_graph
    if one_way.any():
        # As under a causal mask: the simple graph's spectrum is quick. Its edges reach a threshold where
        # these exceed it, so the next larger number is used.
        larger = torch.nextafter(levels, torch.full_like(levels, math.inf))
        simple, _ = _core.graph_statistics(maps[one_way].contiguous(), None, larger)
        fiedler[one_way] = simple[0] / 2
        gap[one_way] = simple[1].nan_to_num(nan=0.0) / 2
    if both_ways.any():
        for at, level in enumerate(levels):
            weights = (maps[both_ways] > float(level)).float()
            values, _ = _core.laplacian_eigenvalues(weights, None, min(n, 3), "mean", None, False)
            fiedler[both_ways, at] = values[:, 1]
            gap[both_ways, at] = values[:, 2] - values[:, 1] if n >= 3 else 0.0
    return {"fiedler_value": fiedler, "laplacian_gap": gap}


def _paths(edges: Tensor) -> tuple[Tensor, Tensor]:
    """Average shortest path of the largest component and average clustering, of graphs [m, n, n]."""
    m, n = edges.shape[0], edges.shape[-1]
    undefined = torch.full((m,), math.nan, dtype=torch.float64, device="cpu")
    if n > FEW_NODES:
        return undefined, undefined
    links = (edges | edges.mT) & ~torch.eye(n, dtype=torch.bool, device="cpu")
    steps = links.float()
    degree = steps.double().sum(-1)
    triangles = (steps @ steps * steps).double().sum(-1)
    pairs = degree * (degree - 1)
    clustering = torch.where(pairs > 0, triangles / pairs.clamp(min=1), 0.0).double().mean(-1)
    distance = torch.where(links, 1.0, math.inf)
    distance.diagonal(0, -2, -1).zero_()
    for k in range(n):  # ways through the first k nodes, as Floyd and Warshall find them
        distance = torch.minimum(distance, distance[..., k, None] + distance[..., k, None, :])
    reached = distance.isfinite()
    inside = reached[torch.arange(m, device="cpu"), reached.sum(-1).argmax(-1)]
    size = inside.sum(-1).double()
    among = inside.unsqueeze(-1) & inside.unsqueeze(-2)
    path = torch.where(among, distance, 0.0).double().sum((-2, -1)) / (size * (size - 1)).clamp(min=1)
    return torch.where(links.any(-1).any(-1), path, math.nan), clustering


SOURCES = (_by_variant,)
DERIVED = {"graph_statistics": ("_by_variant", lambda by_variant, variant="laplacian": by_variant[variant])}


def _of_graph(
    name: str, label: str, meaning: str, expected: float, *, variant: Variant = "laplacian", **fields: Any
) -> Quantity:
    """Return a field, with its value on the star of six tokens with its self-loop."""
    return declared(
        name,
        "graph_statistics",
        label,
        meaning,
        ClosedForm(expected, first_key_map(6), entry=(0,), options={"thresholds": (0.1,)}),
        low=0,
        options={"variant": variant},
        read=attribute_reader(name.removeprefix("graph_").removesuffix("_fiedler")),
        axes=("threshold",),
        **fields,
    )


#: Numbers that both notebooks on graphs give, with another meaning in the second.
_OF_DEGREES = (
    ("hub_share", "largest in-degree", "Largest in-degree, self-loop included, over n − 1.", 1.2, 1.2),
    ("gini", "Gini of in-degrees", "Inequality of the in-degrees.", 5 / 6, 5 / 6),
    ("centralization", "centralisation of in-degrees", "Σ(max d − d)/(n − 1)² of the in-degrees.", 1.2, 1.2),
    ("degree_variance", "variance of in-degrees", "Population variance of the in-degrees.", 5.0, 5.0),
    (
        "star_likeness",
        "star-likeness",
        "0.3 of the largest in-degree's share and 0.7 of the Gini; the Fiedler notebook's is that share.",
        0.3 * 1.2 + 0.7 * 5 / 6,
        1.2,
    ),
)

QUANTITIES = (
    _of_graph(
        "graph_fiedler_value",
        "Fiedler value of the graph",
        "Second smallest eigenvalue of the Laplacian of (B + Bᵀ)/2, B the entries above the threshold.",
        0.5,
    ),
    _of_graph(
        "graph_laplacian_gap",
        "Laplacian gap of the graph",
        "Distance from its second to its third eigenvalue.",
        0.0,
    ),
    *(_of_graph(name, label, meaning, expected) for name, label, meaning, expected, _ in _OF_DEGREES),
    _of_graph("density", "density", "Entries above the threshold over n².", 1 / 6, high=1),
    _of_graph(
        "average_shortest_path",
        "average shortest path",
        "Mean length of shortest paths in the largest component, of at most 30 tokens.",
        5 / 3,
    ),
    _of_graph(
        "average_clustering",
        "average clustering",
        "Mean clustering coefficient, of at most 30 tokens.",
        0.0,
        high=1,
    ),
    _of_graph(
        "degenerate", "fewer than two edges", "Whether every number is 0 for want of edges.", 0, kind="flag"
    ),
    _of_graph(
        "effective",
        "density within bounds",
        "Whether the density lies within [0.05, 0.95].",
        1,
        kind="flag",
        high=1,
    ),
    *(
        _of_graph(
            f"{name}_fiedler",
            f"{label} (Fiedler notebook)",
            f"{meaning} Isolated nodes are dropped.",
            expected,
            variant="fiedler",
        )
        for name, label, meaning, _, expected in _OF_DEGREES
    ),
)
