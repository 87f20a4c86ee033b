# SPDX-License-Identifier: MIT
"""Shape of a head's thresholded graphs: connectivity, hubs, inequality of degrees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from attnscope import _calls, _checks, _core
from attnscope._memory import memory_errors
from attnscope.gradients.dispatch import without_derivative
from attnscope.metrics._named import shown_by_shape
from attnscope.metrics.closed_forms import first_key_map
from attnscope.metrics.quantity import ClosedForm, Quantity, attribute_reader


@shown_by_shape
class GraphStatistics(NamedTuple):
    """One number per map and threshold in each field, all [..., T].

    d_i is the degree of node i in the simple graph 1[max(A_ij, A_ji) >= t], d_(k) the k-th smallest.

    Attributes:
        fiedler_value: λ2 of D − W; 0 exactly when the graph is disconnected.
        laplacian_gap: λ3 − λ2; NaN for n < 3.
        components: number of connected components, int64 (−1 for a map that is not finite).
        density: edges / (n(n−1)/2); NaN for n < 2.
        hub_share: max d / (n−1); NaN for n < 2.
        gini: Σ_k (2k−n−1) d_(k) / (n Σ d); 0 without edges.
        centralization: Freeman's Σ (max d − d_i) / ((n−1)(n−2)); NaN for n < 3.
        degree_variance: population variance of d.
        star_likeness: hub_share · (1 − density among the other nodes); NaN for n < 3.
        in_degree_gini: gini of the in-degrees of the directed graph 1[A_ij >= t], i ≠ j.
        in_degree_centralization: Σ (max d − d_j) / (n−1)² of those in-degrees; NaN for n < 2.
        effective: density within [0.05, 0.95], a flag and never a filter.
        strong_components: number of strongly connected components of the directed graph 1[A_ij >= t],
            i ≠ j, int64 (−1 for a map that is not finite); n under a causal mask.
    """

    fiedler_value: torch.Tensor
    laplacian_gap: torch.Tensor
    components: torch.Tensor
    density: torch.Tensor
    hub_share: torch.Tensor
    gini: torch.Tensor
    centralization: torch.Tensor
    degree_variance: torch.Tensor
    star_likeness: torch.Tensor
    in_degree_gini: torch.Tensor
    in_degree_centralization: torch.Tensor
    effective: torch.Tensor
    strong_components: torch.Tensor


@memory_errors("graph_statistics")
@without_derivative("a threshold makes the graph of a map a step function of its entries")
def graph_statistics(
    attention: torch.Tensor,
    thresholds: Sequence[float | str] | torch.Tensor | float | str,
    *,
    precision: _checks.Precision = "exact",
    lengths: _checks.Lengths = None,
    validate: bool = False,
) -> GraphStatistics:
    """Statistics of the simple graphs that join tokens i and j where max(A_ij, A_ji) reaches a threshold.

    The formulas are those of `GraphStatistics`; one pass over the map serves all thresholds. The larger entry
    of the two decides, as for the Betti numbers, so that components are β0.

    Args:
        attention: attention maps [..., n, n], any strides, CPU or CUDA; rows are queries.
        thresholds: numbers in (0, 1), or "k/n" for k over each map's own number of tokens, because uniform
            attention is 1/n. 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2 is the paper's list.
        precision: "fast" has an error of `fiedler_value` below 1e-6 of itself and of `laplacian_gap` below
            5e-6·n, in less time, where a graph has at most 160 tokens that are not joined to all others. All
            else is exact.
        lengths: tokens per map, broadcast against the leading axes; each map is cut to its leading block.
        validate: refuse NaN, infinite, negative and > 1.01 entries instead of returning NaN for that map.

    Returns:
        GraphStatistics, [..., T] in the order of `thresholds`: float64, `components` and `strong_components`
        int64, `effective` bool.

    Raises:
        ValueError: not square, empty, wrong dtype, a threshold outside (0, 1), lengths outside 1..n.

    Example:
        The star: every query attends to key 0 alone.

        >>> import torch, attnscope as asc
        >>> star = torch.zeros(6, 6); star[:, 0] = 1
        >>> shape = asc.graph_statistics(star, [0.1, "2/n"])
        >>> shape.hub_share
        tensor([1., 1.], dtype=torch.float64)
        >>> shape.centralization
        tensor([1., 1.], dtype=torch.float64)
        >>> shape.components
        tensor([1, 1])
        >>> asc.graph_statistics(torch.eye(4), 0.5).components
        tensor([4])
        >>> asc.graph_statistics(torch.eye(4).roll(1, 0), 0.5).strong_components  # a ring
        tensor([1])

    References:
        Freeman, Centrality in social networks, 1978. Fiedler, Algebraic connectivity of graphs, 1973. Ruscio
        et al., What are you sinking?, 2025.
    """
    name = "graph_statistics"
    precision = _checks.precision_argument(name, precision, attention)
    checked = _checks.attention_argument(name, attention, lengths, validate=validate)
    levels = _checks.thresholds_argument(name, thresholds, checked)
    return GraphStatistics(
        *_calls.call_and_warn(_core.graph_statistics, name, checked, levels, precision=precision)
    )


def _of_graph(field: str, label: str, meaning: str, expected: float, **fields: Any) -> Quantity:
    """Declare a field, with its value on the simple star of six nodes; a share unless `fields` says
    otherwise.
    """
    closed_form = ClosedForm(expected, first_key_map(6), entry=(0,), options={"thresholds": (0.1,)})
    fields = {
        "name": field,
        "low": 0,
        "high": 1,
        "read": attribute_reader(field),
        "axes": ("threshold",),
        **fields,
    }
    return Quantity(
        metric="graph_statistics", label=label, meaning=meaning, closed_form=closed_form, **fields
    )


QUANTITIES = (
    _of_graph(
        "fiedler_value",
        "Fiedler value of the graph",
        "Second smallest eigenvalue of the Laplacian of the thresholded graph; 0 when it falls apart.",
        1.0,
        name="graph_fiedler_value",
        symbol=r"$\lambda_2$",
        high=None,
    ),
    _of_graph(
        "laplacian_gap",
        "Laplacian gap of the graph",
        "Distance from the second to the third eigenvalue of the thresholded graph's Laplacian.",
        0.0,
        name="graph_laplacian_gap",
        symbol=r"$\lambda_3-\lambda_2$",
        high=None,
    ),
    _of_graph(
        "components",
        "connected components",
        "Connected components of the thresholded graph.",
        1,
        kind="count",
        low=1,
        high=float,
    ),
    _of_graph("density", "density", "Edges of the thresholded graph over all pairs.", 1 / 3),
    _of_graph("hub_share", "hub share", "Largest degree over n − 1.", 1.0),
    _of_graph("gini", "Gini of degrees", "Inequality of the degrees of the thresholded graph.", 1 / 3),
    _of_graph("centralization", "centralisation", "Freeman's degree centralisation; 1 for a star.", 1.0),
    _of_graph(
        "degree_variance", "variance of degrees", "Population variance of the degrees.", 20 / 9, high=None
    ),
    _of_graph("star_likeness", "star-likeness", "Hub share times the sparsity among the others.", 1.0),
    _of_graph(
        "in_degree_gini",
        "Gini of in-degrees",
        "Inequality of the in-degrees of the directed thresholded graph.",
        5 / 6,
    ),
    _of_graph(
        "in_degree_centralization",
        "centralisation of in-degrees",
        "Centralisation of the in-degrees of the directed thresholded graph.",
        1.0,
    ),
    _of_graph(
        "effective", "density within bounds", "Whether the density lies within [0.05, 0.95].", 1, kind="flag"
    ),
    _of_graph(
        "strong_components",
        "strongly connected components",
        "Strongly connected components of the directed thresholded graph; n under a causal mask.",
        6,
        kind="count",
        low=1,
        high=float,
    ),
)
