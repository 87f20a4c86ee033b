# SPDX-License-Identifier: MIT
"""Protocol ruscio2025, thresholded graphs: the notebooks' steps in NumPy and NetworkX, and closed forms."""

import math

import networkx as nx
import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.metrics.discovery import quantity
from attnscope.metrics.measured import measure_quantities
from attnscope.protocols import ruscio2025

THRESHOLDS = [0.001, 0.02, 0.1, 0.2]


def maps(*shape, causal=True, seed=0, scale=3.0):
    logits = scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if causal:
        logits = logits.masked_fill(~torch.ones(shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return torch.softmax(logits, -1)


def uniform_causal(n):
    uniform = torch.ones(n, n, dtype=torch.float64).tril()
    return uniform / uniform.sum(-1, keepdim=True)


def transcription(attention, threshold, variant):
    """One map at one threshold, the definition written down line by line, compared in the map's own type."""
    a = np.asarray(attention)
    n = len(a)
    b = (a > threshold).astype(float)
    empty_statistics = dict.fromkeys(
        (
            "fiedler_value",
            "laplacian_gap",
            "hub_share",
            "gini",
            "star_likeness",
            "centralization",
            "degree_variance",
            "density",
        ),
        0.0,
    )
    if b.sum() < 2 or n < 2:
        return {
            **empty_statistics,
            "degenerate": True,
            "average_shortest_path": math.nan,
            "average_clustering": math.nan,
        }
    w = (b + b.T) / 2
    eigenvalues = np.sort(np.linalg.eigvalsh(np.diag(w @ np.ones(n)) - w))
    degrees = b.sum(0)
    if variant == "fiedler" or n > 50:
        degrees = degrees[(b.sum(0) + b.sum(1)) > 0]
    m = len(degrees)
    star = degrees.max() / (m - 1) if m > 1 else math.inf
    ranked = np.sort(degrees)
    gini = 2 * sum((k + 1) * d for k, d in enumerate(ranked)) / (m * degrees.sum()) - (m + 1) / m
    statistics = {
        "fiedler_value": eigenvalues[1],
        "laplacian_gap": eigenvalues[2] - eigenvalues[1] if n > 2 else 0.0,
        "hub_share": star,
        "gini": gini,
        "star_likeness": 0.3 * star + 0.7 * gini if variant == "laplacian" else star,
        "centralization": (degrees.max() - degrees).sum() / (m - 1) ** 2 if m > 1 else math.nan,
        "degree_variance": degrees.var(),
        "density": b.sum() / n**2,
        "degenerate": False,
        "average_shortest_path": math.nan,
        "average_clustering": math.nan,
    }
    graph = nx.from_numpy_array(((b + b.T) > 0).astype(int))
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    if n <= 30:
        largest = graph.subgraph(max(nx.connected_components(graph), key=len))
        if len(largest) > 1:
            statistics["average_shortest_path"] = nx.average_shortest_path_length(largest)
        statistics["average_clustering"] = nx.average_clustering(graph)
    return statistics


@pytest.mark.parametrize("variant", ["laplacian", "fiedler"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n", [2, 3, 7, 30, 31, 51])
def test_every_field_is_what_the_notebooks_steps_give(n, causal, variant):
    attention = maps(2, n, n, causal=causal, seed=n)
    result = ruscio2025.graph_statistics(attention, THRESHOLDS, variant=variant)
    for index in range(2):
        for at, threshold in enumerate(THRESHOLDS):
            expected = transcription(attention[index], threshold, variant)
            for field, value in expected.items():
                computed = getattr(result, field)[index, at].item()
                assert computed == pytest.approx(value, rel=1e-9, abs=1e-10, nan_ok=True), (field, threshold)
            assert result.effective[index, at].item() == (0.05 <= expected["density"] <= 0.95)


@pytest.mark.parametrize("variant", ["laplacian", "fiedler"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("n", [5, 10, 50, 60])
def test_thresholds_are_compared_in_the_maps_own_type(n, dtype, variant):
    attention = uniform_causal(n).to(dtype)
    result = ruscio2025.graph_statistics(attention, [0.02, 0.1, 0.2], variant=variant)
    for at, threshold in enumerate([0.02, 0.1, 0.2]):
        expected = transcription(attention.numpy(), threshold, variant)
        for field, value in expected.items():
            computed = getattr(result, field)[at].item()
            assert computed == pytest.approx(value, rel=1e-9, abs=1e-10, nan_ok=True), (field, threshold)


def test_a_tenth_in_float32_does_not_exceed_a_tenth_here_and_reaches_it_in_the_exact_graph():
    attention = uniform_causal(10).float()
    result = ruscio2025.graph_statistics(attention, [0.1, "1/n"])
    assert result.fiedler_value.tolist() == [0, 0]
    assert result.density.tolist() == [0.45, 0.45]
    # the same numbers as float64, where 0.1f is larger than 0.1
    wide = ruscio2025.graph_statistics(attention.double(), 0.1)
    assert [wide.fiedler_value.item(), wide.density.item()] == [pytest.approx(5), 0.55]
    assert asc.graph_statistics(attention, 0.1).density.item() == 1
    # 0.7f is smaller than 0.7, and the exact graph compares in float64
    assert asc.graph_statistics(torch.full((4, 4), 0.7), 0.7).density.item() == 0
    # NumPy holds no bfloat16, whose entries are compared as float32
    half = torch.full((3, 3), 0.1, dtype=torch.bfloat16)
    assert ruscio2025.graph_statistics(half, 0.1).density.item() == 1


def test_quantities_compare_in_the_type_of_the_models_maps():
    heads = uniform_causal(10).float().expand(1, 2, 10, 10)
    quantities = [quantity(name, "ruscio2025") for name in ("density", "graph_fiedler_value")]
    quantities = [quantity.with_options(thresholds=(0.1,)) for quantity in quantities]
    mean = heads.double().mean(1, keepdim=True)
    for maps, held in ((heads, None), (mean, torch.float32)):
        columns = measure_quantities({"attention": maps}, quantities, held=held).columns()
        assert set(columns["density"]) == {0.45}
        assert set(columns["graph_fiedler_value"]) == {0}
    assert (measure_quantities({"attention": mean}, quantities).columns()["density"] > 0.45).all()


def exact_beside_published():
    """Quantities of two thresholds from exact maps of 10, 40 and 100 tokens, and what they are of."""
    exact = ("stable_rank", "graph_fiedler_value", "graph_laplacian_gap", "density")
    published = ("stable_rank", "spectral_norm", "graph_fiedler_value", "graph_laplacian_gap")
    chosen = [
        [quantity(name, protocol) for name in names]
        for protocol, names in (("exact", exact), ("ruscio2025", published))
    ]
    return [
        [
            quantity.with_options(thresholds=(0.01, 0.1)) if quantity.axes else quantity
            for quantity in quantities
        ]
        for quantities in chosen
    ]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.filterwarnings("ignore:.*NaN or infinite")
def test_what_the_exact_protocol_found_of_the_same_graphs_changes_no_bit(causal, mean):
    lengths, exact, published = torch.tensor([10, 40, 100, 40]), *exact_beside_published()
    heads = torch.zeros(4, 3, 100, 100)
    for place, n in enumerate(lengths.tolist()):
        heads[place, :, :n, :n] = maps(3, n, n, causal=causal, seed=place)
    heads[0, 1, :10, :10] = uniform_causal(10)  # its entries of 0.1f are edges of the exact graph alone
    heads[3, 2, 5, 3] = torch.nan
    sites = {"attention": heads.double().mean(1, keepdim=True) if mean else heads}
    settings = {"lengths": lengths, "held": torch.float32}
    names = ("singular_values", "graph_fiedler_value", "graph_laplacian_gap", "density")
    exact_sites = measure_quantities(sites, exact, lengths=lengths, full_results=names[:1]).as_sites(*names)
    assert set(exact_sites) == set(names)
    alone_values, beside = (
        measure_quantities(sites | further_sites, published, **settings)
        for further_sites in ({}, exact_sites)
    )
    for column in published:
        assert torch.equal(
            alone_values.values[column].nan_to_num(-1), beside.values[column].nan_to_num(-1)
        ), column.name
    # numbers are taken where the graphs are the same and all edges go one way, and nowhere else
    exact_sites["graph_fiedler_value"] = exact_sites["graph_fiedler_value"] + 1
    other = measure_quantities(sites | exact_sites, published, **settings).values[published[2]]
    changed = (other != alone_values.values[published[2]]).all(-1) & alone_values.finite
    expected = alone_values.finite & causal
    if not mean:
        expected[0, 1] = False
    assert torch.equal(changed, expected)


def test_clustering_without_links_is_zero_and_only_the_path_is_missing():
    result = ruscio2025.graph_statistics(torch.eye(5), 0.1)
    assert result.average_clustering.item() == 0
    assert result.average_shortest_path.isnan().item()
    assert ruscio2025.graph_statistics(torch.eye(31), 0.1).average_clustering.isnan().item()


def test_repeated_zeros_of_many_nodes_are_found():
    # the notebook's sparse solver can miss them: it says 24.5, half the number of connected nodes
    result = ruscio2025.graph_statistics(uniform_causal(51), 0.02)
    assert result.fiedler_value.item() == pytest.approx(0, abs=1e-12)
    assert result.laplacian_gap.item() == pytest.approx(0, abs=1e-12)


def test_isolated_nodes_are_dropped_by_one_notebook_and_by_the_other_for_many_nodes():
    for n, equal in ((50, False), (51, True)):
        attention = torch.zeros(n, n)
        attention[1:4, 0] = 0.5
        first, other = (
            ruscio2025.graph_statistics(attention, 0.1, variant=v) for v in ("laplacian", "fiedler")
        )
        assert other.hub_share.item() == pytest.approx(3 / 3)
        assert first.hub_share.item() == pytest.approx(3 / 3 if equal else 3 / (n - 1))
        assert (first.gini == other.gini).item() == equal
        assert first.density.item() == other.density.item() == pytest.approx(3 / n**2)


def causal_star(n, loops=True):
    star = torch.zeros(n, n, dtype=torch.float64)
    star[:, 0] = 0.5
    if loops:
        star += torch.eye(n) / 2
    star[0, 0] = 1
    return star


def test_causal_star_closed_forms():
    n = 30
    result = ruscio2025.graph_statistics(causal_star(n), 0.1)
    b = (causal_star(n) > 0.1).double()
    w = (b + b.T) / 2
    eigenvalues = torch.linalg.eigvalsh(torch.diag(w.sum(-1)) - w)
    np.testing.assert_allclose(eigenvalues, [0, *[0.5] * (n - 2), n / 2], atol=1e-12)
    assert result.fiedler_value.item() == 0.5
    assert result.laplacian_gap.item() == pytest.approx(0, abs=1e-12)
    assert result.hub_share.item() == pytest.approx(n / (n - 1))
    assert result.centralization.item() == pytest.approx(1)
    assert result.gini.item() == pytest.approx(0.4751, abs=5e-5)
    assert result.star_likeness.item() == pytest.approx(0.6429, abs=5e-5)
    bare = ruscio2025.graph_statistics(causal_star(n, loops=False), 0.1)
    assert bare.gini.item() == pytest.approx(0.9667, abs=5e-5)
    assert bare.star_likeness.item() == pytest.approx(0.9870, abs=5e-5)
    assert bare.centralization.item() == pytest.approx(1.0345, abs=5e-5)


def test_full_causal_graph_closed_forms():
    n = 30
    result = ruscio2025.graph_statistics(uniform_causal(n), 0.01)
    assert result.fiedler_value.item() == pytest.approx(n / 2)
    assert result.gini.item() == pytest.approx(0.3222, abs=5e-5)
    assert result.star_likeness.item() == pytest.approx(0.5359, abs=5e-5)
    assert result.centralization.item() == pytest.approx(0.5172, abs=5e-5)
    assert result.average_shortest_path.item() == result.average_clustering.item() == 1


def test_an_entry_equal_to_the_threshold_is_no_edge_here_and_one_in_the_exact_graph():
    attention = torch.full((4, 4), 0.25, dtype=torch.float64)
    result = ruscio2025.graph_statistics(attention, 0.25)
    assert result.degenerate.item()
    assert result.density.item() == 0
    assert asc.graph_statistics(attention, 0.25).density.item() == 1


def test_degenerate_graphs_are_zeros_and_flagged():
    single_token = ruscio2025.graph_statistics(torch.ones(1, 1), 0.1)
    single = torch.zeros(3, 3)
    single[2, 1] = 1
    for result in (single_token, ruscio2025.graph_statistics(single, 0.1)):
        assert result.degenerate.item()
        assert not result.effective.item()
        for field in ("fiedler_value", "hub_share", "gini", "star_likeness", "centralization", "density"):
            assert getattr(result, field).item() == 0
        assert result.average_clustering.isnan().item()


def test_bad_maps_leave_their_neighbours_alone_and_batch_is_a_loop():
    attention = maps(2, 3, 9, 9)
    single_result = ruscio2025.graph_statistics(attention[1, 2], THRESHOLDS)
    attention[0, 1, 4, 2] = torch.nan
    with pytest.warns(RuntimeWarning, match="1 of 6"):
        result = ruscio2025.graph_statistics(attention, THRESHOLDS)
    assert result.gini[0, 1].isnan().all()
    assert not result.effective[0, 1].any()
    assert result.gini.isnan().sum() == len(THRESHOLDS)
    for field, value in single_result._asdict().items():
        assert torch.equal(getattr(result, field)[1, 2].nan_to_num(), value.nan_to_num())


def test_half_types_are_read_exactly_and_arguments_are_checked():
    attention = maps(8, 8).to(torch.bfloat16)
    result = ruscio2025.graph_statistics(attention, THRESHOLDS)
    wide = ruscio2025.graph_statistics(attention.double(), THRESHOLDS)
    assert torch.equal(result.gini, wide.gini)
    with pytest.raises(ValueError, match=r"ruscio2025\.graph_statistics: variant must be one of"):
        ruscio2025.graph_statistics(attention, 0.1, variant="star")
    with pytest.raises(ValueError, match=r"thresholds must lie strictly between 0 and 1, got 1\.5"):
        ruscio2025.graph_statistics(attention, 1.5)
