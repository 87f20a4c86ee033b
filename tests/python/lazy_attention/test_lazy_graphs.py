# SPDX-License-Identifier: MIT
"""Graphs, Betti numbers and bars of lazy attention equal those of its map."""

import math

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.metrics.lazy import threshold_graphs
from lazy_oracle import random_vectors

THRESHOLDS = (0.02, 0.05, 0.15, 0.4)


def lazy_with_loops(n=80, seed=0, **options):
    query, key = random_vectors(heads=3, rows=n, width=6, seed=seed, sharpness=3.0)
    return asc.LazyAttention(query, key, precision="exact", **options)


def sparse_map(lazy, threshold):
    """Return the entries of at least a threshold as a dense map, to the bit."""
    entries = lazy.at_least(threshold)
    maps = torch.zeros(lazy.shape, dtype=torch.float64).flatten(0, 1)
    row = torch.repeat_interleave(torch.arange(len(maps)), entries.offsets.diff(dim=-1).flatten())
    maps[row, entries.keys.long()] = entries.weights
    return maps.reshape(lazy.shape)


@pytest.mark.parametrize("options", [{}, {"causal": False}, {"window": 20}], ids=["causal", "full", "window"])
def test_betti_numbers_are_those_of_the_map(options):
    lazy = lazy_with_loops(**options)
    expected = asc.betti_numbers(lazy.dense(), THRESHOLDS)
    assert torch.equal(asc.betti_numbers(lazy, THRESHOLDS), expected)
    if not options.get("causal", True):
        assert int(expected[..., 1].max()) > 0


@pytest.mark.parametrize("n", [1, 2, 3, 30, 80])
def test_graph_statistics_are_those_of_the_map(n):
    lazy = lazy_with_loops(n)
    ours, theirs = (
        asc.graph_statistics(attention, (*THRESHOLDS, "2/n")) for attention in (lazy, lazy.dense())
    )
    for field in ours._fields:
        of_lazy, of_map = getattr(ours, field), getattr(theirs, field)
        assert of_lazy.dtype == of_map.dtype
        np.testing.assert_allclose(
            of_lazy.double().numpy(), of_map.double().numpy(), atol=1e-10, err_msg=field
        )


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("threshold", [0.02, 0.15, 0.4, 0.95])
def test_laplacian_eigenvalues_of_a_graph_are_those_of_the_map(threshold, normalized):
    lazy = lazy_with_loops(60, lengths=torch.tensor([60, 41, 1]))
    options = {"threshold": threshold, "normalized": normalized}
    lengths = {"lengths": torch.tensor([60, 41, 1])}
    for k in (None, 1, 5):
        ours = asc.laplacian_eigenvalues(lazy, k, **options)
        theirs = asc.laplacian_eigenvalues(lazy.dense(), k, **options, **lengths)
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=1e-10)
    ours, theirs = asc.laplacian_gap(lazy, **options), asc.laplacian_gap(lazy.dense(), **options, **lengths)
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=1e-10)


def test_few_eigenvalues_of_a_large_graph_come_from_a_sparse_factor():
    """The star of a sink has the spectrum 0, 1 (n − 2 times) and n, and its small end is found first."""
    n = 3000
    key = torch.zeros(1, n, 4)
    key[0, 0] = 30.0
    star = asc.LazyAttention(torch.ones(1, n, 4), key)
    values = asc.laplacian_eigenvalues(star, 4, threshold=0.5)
    np.testing.assert_allclose(values[0].numpy(), [0, 1, 1, 1], atol=1e-9)


def test_too_many_eigenvalues_of_a_large_graph_are_refused_with_the_numbers(monkeypatch):
    monkeypatch.setattr(threshold_graphs, "MOST_VERTICES", 50)
    with pytest.raises(ValueError, match=r"80 tokens .* 80 eigenvalues of at most 50"):
        asc.laplacian_eigenvalues(lazy_with_loops(80), threshold=0.001)


def test_the_laplacian_of_all_weights_is_refused():
    with pytest.raises(ValueError, match="give threshold="):
        asc.laplacian_eigenvalues(lazy_with_loops(20), 3)


def test_fiedler_value_of_a_graph_is_that_of_the_map():
    lazy = lazy_with_loops(60)
    for normalized in (False, True):
        for threshold in (0.001, 0.05):
            options = {"threshold": threshold, "normalized": normalized}
            ours, theirs = asc.fiedler_value(lazy, **options), asc.fiedler_value(lazy.dense(), **options)
            np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=1e-10)
    assert bool((asc.fiedler_value(lazy, threshold=0.001) > 0).any())


def test_a_large_graph_is_solved_by_shifted_lanczos():
    """Every query attends to key 0: a star of 1,500 tokens has λ2 = 1 and λ3 = 1."""
    key = torch.zeros(1, 1500, 1)
    key[0, 0] = 60.0
    statistics = asc.graph_statistics(asc.LazyAttention(torch.ones(1, 1500, 1), key), 0.5)
    assert statistics.fiedler_value.item() == pytest.approx(1.0, abs=1e-9)
    assert statistics.laplacian_gap.item() == pytest.approx(0.0, abs=1e-9)
    assert statistics.hub_share.item() == 1.0


@pytest.mark.parametrize("threshold", [0.01, 0.1])
def test_bars_down_to_a_weight_are_those_of_the_map_to_the_bit(threshold):
    lazy = lazy_with_loops(60, causal=False)
    bars = asc.persistence(lazy, at_least=threshold)
    bars_of_map = asc.persistence(sparse_map(lazy, threshold))
    cut = 1.0 - threshold
    loops = 0
    for head in range(3):
        for dimension in (0, 1):
            ours, theirs = bars[head][dimension], bars_of_map[head][dimension]
            theirs = theirs[theirs[:, 0] <= cut]
            theirs = np.where((theirs > cut) & np.isfinite(theirs), cut, theirs)
            theirs = theirs[theirs[:, 0] < theirs[:, 1]]
            order = np.lexsort(theirs.T[::-1])
            assert (ours == theirs[order]).all()
            loops += dimension * len(ours)
        closes = bars.edges(head)[0][:, 1]
        assert (closes[bars[head][0][:, 1] == cut] == -1).all()
    assert loops > 0


@pytest.mark.parametrize("options", [{}, {"causal": False}, {"window": 9}], ids=["causal", "full", "window"])
@pytest.mark.parametrize("n", [1, 2, 5, 90])
def test_h0_of_whole_maps_is_that_of_persistence_to_the_bit(n, options):
    lazy = lazy_with_loops(n, **options)
    ours = asc.persistence(lazy, max_dimension=0)
    theirs = asc.persistence(lazy.dense(), max_dimension=0)
    assert torch.equal(ours.death, theirs.death)
    assert torch.equal(ours.offsets, theirs.offsets)
    assert torch.equal(ours.death_edge, theirs.death_edge)


def test_h0_in_tiles_of_a_few_rows(monkeypatch):
    from attnscope.metrics.lazy import spanning_tree

    lazy = lazy_with_loops(50)
    undivided = asc.persistence(lazy, max_dimension=0)
    monkeypatch.setattr(spanning_tree, "_TILE_ENTRIES", 7 * 50 * 3)
    in_tiles = asc.persistence(lazy, max_dimension=0)
    assert torch.equal(in_tiles.death, undivided.death)
    assert torch.equal(in_tiles.death_edge, undivided.death_edge)


def test_equal_keys_tie_as_they_do_in_the_map():
    lazy = asc.LazyAttention(torch.ones(1, 20, 2), torch.zeros(1, 20, 2), causal=False, precision="exact")
    ours, theirs = asc.persistence(lazy, max_dimension=0), asc.persistence(lazy.dense(), max_dimension=0)
    assert torch.equal(ours.death_edge, theirs.death_edge)


def test_lengths_and_spoiled_maps():
    query, key = random_vectors(heads=2, rows=40, width=6, sharpness=3.0)
    query[1, 30] = math.nan
    lazy = asc.LazyAttention(query, key, lengths=torch.tensor([25, 40]), precision="exact")
    first = asc.LazyAttention(query[:1, :25], key[:1, :25], precision="exact")
    with pytest.warns(asc._warn.NonFiniteWarning):
        betti = asc.betti_numbers(lazy, 0.1)
    assert torch.equal(betti[0], asc.betti_numbers(first, 0.1)[0])
    assert betti[1].tolist() == [[-1, -1]]
    with pytest.warns(asc._warn.NonFiniteWarning):
        bars = asc.persistence(lazy, max_dimension=0)
    assert (bars[0][0] == asc.persistence(first, max_dimension=0)[0][0]).all()
    assert len(bars[1][0]) == 0


def test_components_of_8192_tokens_are_planted():
    """Tokens attend to the first of their own block of 64."""
    n, block = 8192, 64
    place = torch.arange(n) // block
    query = torch.nn.functional.one_hot(place, n // block).float()
    key = torch.zeros(n, n // block)
    key[::block] = 60 * torch.eye(n // block)
    lazy = asc.LazyAttention(query[None], key[None], scaling=1.0)
    assert asc.betti_numbers(lazy, 0.3).tolist() == [[[n // block, 0]]]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda lazy: asc.persistence(lazy), "give at_least="),
        (lambda lazy: asc.persistence(lazy, max_dimension=0, metric="hellinger"), "'attention' alone"),
        (lambda lazy: asc.betti_numbers(lazy, 0.1, symmetrize="mean"), "got 'mean'"),
        (lambda lazy: asc.persistence(lazy, at_least=1.5), "strictly between 0 and 1, got 1.5"),
        (lambda lazy: asc.persistence(lazy.dense(), at_least=0.5), "for LazyAttention"),
    ],
)
def test_what_lazy_attention_cannot_answer_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call(lazy_with_loops(12))


def test_rectangles_are_no_graphs():
    query, key = random_vectors(rows=5, keys=9)
    with pytest.raises(ValueError, match="got 5 queries and 9 keys"):
        asc.betti_numbers(asc.LazyAttention(query, key), 0.1)


@pytest.mark.parametrize("options", [{}, {"causal": False}, {"window": 20}], ids=["causal", "full", "window"])
def test_pieces_of_many_tokens_have_the_bars_of_small_ones(options, monkeypatch):
    """A spanning forest of sparse entries gives the bars that the kernel for dense maps gives, to the bit."""
    lazy = lazy_with_loops(80, **options)
    expected = asc.persistence(lazy, max_dimension=0, at_least=0.02)
    monkeypatch.setattr(threshold_graphs, "MOST_VERTICES", 3)
    ours = asc.persistence(lazy, max_dimension=0, at_least=0.02)
    for field in ("birth", "death", "dimension", "birth_edge", "death_edge", "offsets"):
        assert torch.equal(getattr(ours, field), getattr(expected, field)), field
    with pytest.raises(ValueError, match=r"homology of at most 3 fits in memory"):
        asc.persistence(lazy, max_dimension=1, at_least=0.02)


def test_bars_of_more_tokens_than_a_dense_map_has_room_for():
    """The star of a sink joins 9,000 tokens; each ends a bar at the weight that it gives the sink."""
    n = 9000
    key = torch.zeros(1, n, 4)
    key[0, 0] = 30.0
    query = torch.ones(1, n, 4)
    query[0, 1:] *= torch.linspace(0.13, 0.17, n - 1)[:, None]
    lazy = asc.LazyAttention(query, key, precision="exact")
    bars = asc.persistence(lazy, max_dimension=0, at_least=0.3)
    to_sink = lazy.tile(slice(1, None), slice(0, 1))[0, :, 0]
    deaths = (1 - to_sink[to_sink >= 0.3]).sort().values
    np.testing.assert_allclose(bars.death[bars.death < 0.7].numpy(), deaths[deaths < 0.7].numpy(), atol=1e-12)
    assert int(bars.death.isinf().sum()) == 1


def test_a_threshold_over_n_is_over_the_tokens_of_each_text():
    lengths = torch.tensor([60, 41, 2])
    lazy = lazy_with_loops(60, lengths=lengths)
    maps = lazy.dense().nan_to_num()
    assert torch.equal(asc.betti_numbers(lazy, "2/n"), asc.betti_numbers(maps, "2/n", lengths=lengths))
    ours, theirs = asc.graph_statistics(lazy, "2/n"), asc.graph_statistics(maps, "2/n", lengths=lengths)
    np.testing.assert_allclose(ours.density, theirs.density, atol=1e-12)


def test_an_answer_behind_the_tokens_of_a_text_is_refused():
    lazy = lazy_with_loops(60, lengths=torch.tensor([60, 41, 60]))
    with pytest.raises(ValueError, match=r"lookback: answer must hold .* <= 41.* got \(30, 50\)"):
        asc.lookback(lazy, (30, 50))
