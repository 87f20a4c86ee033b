# SPDX-License-Identifier: MIT
"""betti_numbers: against bars, connected components, closed forms and the Euler characteristic."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components

import attnscope as asc
from topology_inputs import DTYPES, KINDS, attention_map, gudhi_bars, weights_of

THRESHOLDS = [0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("symmetrize", ["max", "mean", "min"])
@pytest.mark.parametrize("n", [1, 2, 3, 8, 40, 70])
def test_equal_the_bars_alive(kind, symmetrize, n):
    a = torch.from_numpy(attention_map(kind, n))
    bars = asc.persistence(a, symmetrize=symmetrize)
    expected = asc.betti_curve(bars, [1.0 - t for t in THRESHOLDS])
    assert torch.equal(asc.betti_numbers(a, THRESHOLDS, symmetrize=symmetrize), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_pieces_are_connected_components(kind, dtype):
    a = torch.from_numpy(attention_map(kind, 45, seed=2)).to(dtype)
    result = asc.betti_numbers(a, THRESHOLDS)
    assert result.dtype == torch.int64
    for k, threshold in enumerate(THRESHOLDS):
        graph = (weights_of(a) >= threshold) & ~np.eye(45, dtype=bool)
        assert result[k, 0] == connected_components(graph, directed=False)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_loops_equal_gudhi_on_the_thresholded_graph(kind):
    a = attention_map(kind, 30, seed=3)
    result = asc.betti_numbers(torch.from_numpy(a), THRESHOLDS)
    for k, threshold in enumerate(THRESHOLDS):
        # Distance 1 inside the graph and 2 outside: what is alive from 1 on is the complex itself.
        distance = np.where(weights_of(a) >= threshold, 1.0, 2.0)
        np.fill_diagonal(distance, 0.0)
        alive = [int(((bars[:, 0] <= 1.0) & (bars[:, 1] > 1.0)).sum()) for bars in gudhi_bars(distance)]
        assert result[k].tolist() == alive


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("symmetrize", ["max", "mean", "min"])
def test_fast_counts_the_float32_weights(dtype, symmetrize):
    a = torch.stack([torch.from_numpy(attention_map(kind, 24)) for kind in KINDS]).to(dtype)
    narrow = a.float() if dtype == torch.float64 else a
    # on either side of weights, where a float64 weight and its float32 neighbour part
    thresholds = np.unique(narrow[0].double().clamp(1e-6, 0.999).numpy())[:40].tolist()
    fast = asc.betti_numbers(a, thresholds, symmetrize=symmetrize, precision="fast")
    assert torch.equal(fast, asc.betti_numbers(narrow, thresholds, symmetrize=symmetrize))


def test_an_unknown_precision_is_refused():
    with pytest.raises(ValueError, match="betti_numbers: precision must be"):
        asc.betti_numbers(torch.eye(3), [0.5], precision="quick")


@settings(max_examples=60)
@given(
    st.integers(1, 25),
    st.sampled_from(KINDS),
    st.integers(0, 10_000),
    st.permutations(range(len(THRESHOLDS))),
)
def test_order_of_thresholds_and_tokens_is_free(n, kind, seed, order):
    a = attention_map(kind, n, seed)
    plain = asc.betti_numbers(torch.from_numpy(a), THRESHOLDS)
    shuffled = asc.betti_numbers(torch.from_numpy(a), [THRESHOLDS[k] for k in order])
    assert torch.equal(shuffled, plain[list(order)])
    tokens = np.random.default_rng(seed).permutation(n)
    assert torch.equal(asc.betti_numbers(torch.from_numpy(a[tokens][:, tokens]), THRESHOLDS), plain)


@settings(max_examples=40)
@given(st.integers(1, 25), st.sampled_from(KINDS), st.integers(0, 10_000))
def test_pieces_only_split_as_the_threshold_rises(n, kind, seed):
    pieces = asc.betti_numbers(torch.from_numpy(attention_map(kind, n, seed)), THRESHOLDS)[:, 0]
    assert (pieces.diff() >= 0).all()
    assert (pieces >= 1).all()
    assert (pieces <= n).all()


def test_closed_forms():
    ring = torch.zeros(6, 6)
    ring[range(6), [1, 2, 3, 4, 5, 0]] = 0.5
    assert asc.betti_numbers(ring, [0.25, 0.5, 0.75]).tolist() == [[1, 1], [1, 1], [6, 0]]
    assert asc.betti_numbers(torch.full((6, 6), 0.5), 0.25).tolist() == [[1, 0]]
    assert asc.betti_numbers(torch.ones(1, 1), 0.25).tolist() == [[1, 0]]
    octahedron = 0.5 * (1 - torch.eye(6).flip(0)).to(torch.float16)
    assert asc.betti_numbers(octahedron, 0.25).tolist() == [[1, 0]]


def test_thresholds_in_words_follow_each_maps_length():
    a = torch.full((2, 8, 8), 0.25)
    result = asc.betti_numbers(a, ["1/n", "2/n", 0.3], lengths=[8, 4])
    # 2/n is 1/4 of eight tokens (edges of exactly that weight are in) and 1/2 of four.
    assert result.tolist() == [[[1, 0], [1, 0], [8, 0]], [[1, 0], [4, 0], [4, 0]]]
    assert asc.betti_numbers(torch.ones(2, 2), "4/n").tolist() == [[2, 0]]


def test_nan_in_one_map_leaves_other_maps_alone():
    a = torch.from_numpy(np.stack([attention_map("softmax", 12, seed) for seed in range(3)]))
    clean = asc.betti_numbers(a, THRESHOLDS)
    a[2, 0, 11] = torch.inf
    with pytest.warns(RuntimeWarning, match="betti_numbers: 1 of 3 matrices"):
        result = asc.betti_numbers(a, THRESHOLDS)
    assert (result[2] == -1).all()
    assert torch.equal(result[:2], clean[:2])


def test_strides_lengths_and_threads():
    big = torch.from_numpy(np.stack([attention_map(kind, 50) for kind in KINDS]))
    plain = asc.betti_numbers(big[:, 3:40:2, 3:40:2].contiguous(), THRESHOLDS)
    assert torch.equal(asc.betti_numbers(big[:, 3:40:2, 3:40:2], THRESHOLDS), plain)
    assert torch.equal(asc.betti_numbers(big.transpose(1, 2), THRESHOLDS), asc.betti_numbers(big, THRESHOLDS))
    lengths = torch.tensor([1, 2, 50, 17, 33, 49])
    cut = asc.betti_numbers(big, THRESHOLDS, lengths=lengths)
    for k, m in enumerate(lengths.tolist()):
        assert torch.equal(cut[k], asc.betti_numbers(big[k, :m, :m], THRESHOLDS))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        single_result = asc.betti_numbers(big, THRESHOLDS)
        torch.set_num_threads(2)
        assert torch.equal(asc.betti_numbers(big, THRESHOLDS), single_result)
    finally:
        torch.set_num_threads(threads)


def test_bad_arguments_name_themselves():
    with pytest.raises(ValueError, match=r"strictly between 0 and 1, got 1\.0"):
        asc.betti_numbers(torch.rand(3, 3), [0.5, 1.0])
    with pytest.raises(ValueError, match="betti_numbers: thresholds must hold at least one value"):
        asc.betti_numbers(torch.rand(3, 3), [])
    with pytest.raises(ValueError, match="betti_numbers: symmetrize must be one of"):
        asc.betti_numbers(torch.rand(3, 3), 0.5, symmetrize="sum")
    with pytest.raises(ValueError, match="betti_numbers: attention must be square"):
        asc.betti_numbers(torch.rand(3, 4), 0.5)


def test_a_threshold_over_n_of_one_or_more_is_the_empty_graph_here_and_in_graph_statistics():
    star = torch.zeros(4, 4)
    star[:, 0] = 1
    statistics = asc.graph_statistics(star, ["4/n", "9/n", "1/n"])
    assert statistics.components.tolist() == [4, 4, 1]
    assert statistics.density.tolist() == [0.0, 0.0, 0.5]
    assert asc.betti_numbers(star, ["4/n", "9/n", "1/n"])[:, 0].tolist() == [4, 4, 1]
