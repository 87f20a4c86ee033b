# SPDX-License-Identifier: MIT
"""persistence: against GUDHI, ripser.py, minimum spanning trees, and the laws that bars obey."""

import warnings
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse.csgraph import minimum_spanning_tree

import attnscope as asc
from attnscope.metrics.homology.persistence import attention_of_topology
from topology_inputs import (
    DTYPES,
    KINDS,
    attention_map,
    dissimilarity,
    gudhi_bars,
    lexicographic,
    weights_of,
)

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"


def assert_bars_equal(result, expected):
    for dimension, (ours, theirs) in enumerate(zip(result, expected, strict=True)):
        np.testing.assert_array_equal(ours, theirs, err_msg=f"H{dimension}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("symmetrize", ["max", "mean", "min"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 9, 33])
def test_bars_equal_gudhi_in_float64(kind, symmetrize, n):
    a = attention_map(kind, n)
    bars = asc.persistence(torch.from_numpy(a), symmetrize=symmetrize)
    assert_bars_equal(bars[()], gudhi_bars(dissimilarity(a, symmetrize)))


# 300 tokens make rows of eight words.
@pytest.mark.parametrize(
    ("kind", "n"), [*((kind, n) for kind in KINDS for n in (64, 65, 130)), ("causal", 300), ("sink", 300)]
)
def test_bars_of_larger_maps_equal_gudhi(kind, n):
    a = attention_map(kind, n, seed=1)
    assert_bars_equal(asc.persistence(torch.from_numpy(a))[()], gudhi_bars(dissimilarity(a)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("symmetrize", ["max", "mean", "min"])
def test_every_dtype_is_read_exactly(dtype, symmetrize):
    a = torch.stack([torch.from_numpy(attention_map(kind, 24)) for kind in KINDS]).to(dtype)
    bars = asc.persistence(a, symmetrize=symmetrize)
    for k in range(len(KINDS)):
        assert_bars_equal(bars[k], gudhi_bars(dissimilarity(a[k], symmetrize)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("symmetrize", ["max", "mean", "min"])
def test_fast_gives_the_bars_of_the_float32_weights(kind, symmetrize):
    a = torch.from_numpy(attention_map(kind, 33, seed=4))
    bars = asc.persistence(a, symmetrize=symmetrize, precision="fast")
    assert_bars_equal(bars[()], gudhi_bars(dissimilarity(a.float(), symmetrize)))


def test_fast_rounds_weights_that_differ_in_float64_alone():
    ring = torch.zeros(4, 4, dtype=torch.float64)
    ring[range(4), [1, 2, 3, 0]] = 0.75 - 2.0**-40 * torch.arange(4.0, dtype=torch.float64)
    exact, fast = (asc.persistence(ring, precision=precision)[()] for precision in ("exact", "fast"))
    assert np.unique(exact[0][:3, 1]).tolist() == [0.25, 0.25 + 2.0**-40, 0.25 + 2.0**-39]
    assert fast[0].tolist() == [[0.0, 0.25]] * 3 + [[0.0, np.inf]]
    assert fast[1].tolist() == [[0.25, 1.0]]


def test_what_measure_reads_off_fast_bars_is_of_the_float32_weights():
    a = torch.from_numpy(attention_map("tied", 20, seed=5)) - 2.0**-40 * torch.arange(400.0).reshape(20, 20)
    names = ["bar_count", "total_persistence", "betti_numbers"]
    fast = asc.measure(a, names, precision="fast", thresholds=[0.25, 0.5, 0.75])
    expected = asc.measure(a.float(), names, thresholds=[0.25, 0.5, 0.75])
    exact = asc.measure(a, names, thresholds=[0.25, 0.5, 0.75])
    for name in names:
        assert torch.equal(fast[name], expected[name])
        assert not torch.equal(fast[name], exact[name])


@pytest.mark.parametrize("options", [{}, {"max_dimension": 0}, {"metric": "hellinger"}])
@pytest.mark.parametrize("dtype", DTYPES)
def test_fast_and_exact_are_one_for_all_types_but_float64(dtype, options):
    a = torch.stack([torch.from_numpy(attention_map(kind, 24)) for kind in KINDS]).to(dtype)
    fast = asc.persistence(a, precision="fast", **options)
    expected = asc.persistence(a.float() if dtype == torch.float64 else a, **options)
    for field in ("birth", "death", "dimension", "birth_edge", "death_edge", "offsets"):
        assert torch.equal(getattr(fast, field), getattr(expected, field)), field


@pytest.mark.parametrize("kind", ["softmax", "causal", "tied"])
def test_bars_equal_ripser_bit_for_bit_in_float32(kind):
    ripser = pytest.importorskip("ripser").ripser
    # Entries on a grid of 2^-12, where 1 − w is exact in float32: both sides then see the same numbers.
    a = np.round(attention_map(kind, 40) * 4096) / 4096
    w = weights_of(a).astype(np.float32)
    distance = np.float32(1.0) - w
    np.fill_diagonal(distance, 0)
    theirs = ripser(distance, distance_matrix=True, maxdim=1)["dgms"]
    ours = asc.persistence(torch.from_numpy(a.astype(np.float32)))[()]
    assert_bars_equal(ours, [lexicographic(bars) for bars in theirs])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_deaths_of_components_are_the_minimum_spanning_tree(kind, dtype):
    a = torch.from_numpy(attention_map(kind, 50, seed=3)).to(dtype)
    distance = dissimilarity(a)
    # Zero distances mean "no edge" to SciPy, so all are lifted by 1 and the tree is read back.
    tree = minimum_spanning_tree(distance + 1.0 - np.eye(50))
    pairs = np.argwhere(tree.toarray() > 0)
    deaths = np.sort(distance[pairs[:, 0], pairs[:, 1]])
    for max_dimension in (0, 1):
        result = asc.persistence(a, max_dimension=max_dimension)[()][0]
        np.testing.assert_array_equal(result[:-1, 1], deaths[deaths > 0])
        assert result[-1].tolist() == [0.0, np.inf]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_components_alone_are_the_components_with_loops(kind, dtype):
    a = torch.from_numpy(attention_map(kind, 37, seed=4)).to(dtype)
    for symmetrize in ("max", "mean", "min"):
        both_results = asc.persistence(a, symmetrize=symmetrize)
        single_result = asc.persistence(a, symmetrize=symmetrize, max_dimension=0)
        components = both_results.dimension == 0
        assert not (single_result.dimension != 0).any()
        assert torch.equal(single_result.death, both_results.death[components])
        assert torch.equal(single_result.death_edge, both_results.death_edge[components])


def kruskal_edges(weights):
    """The edges of the tree of largest weights, ties by (row, column), in the order in which they join."""
    tree = list(range(len(weights)))
    joined = []
    rows, columns = np.tril_indices(len(weights), -1)
    for k in np.lexsort((columns, rows, -weights[rows, columns])):
        if tree[rows[k]] == tree[columns[k]]:
            continue
        merged = tree[rows[k]]
        tree = [tree[columns[k]] if label == merged else label for label in tree]
        joined.append([rows[k], columns[k]])
    return joined


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("levels", [1, 3, 40, 4000])
@pytest.mark.parametrize("n", [16, 65, 130])
def test_components_of_tied_weights_join_by_row_and_column(n, levels, dtype):
    generator = np.random.default_rng([n, levels])
    weights = generator.integers(1, levels + 1, (n, n)) / 8192.0
    result = asc.persistence(torch.from_numpy(weights).to(dtype), max_dimension=0)
    expected = kruskal_edges(np.maximum(weights, weights.T))
    assert result.death_edge[:-1].tolist() == expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("levels", [1, 3, 120])
@pytest.mark.parametrize("n", [2, 3, 5, 8, 9, 16, 17, 31, 33, 64, 67, 128, 129])
def test_components_of_causal_maps_join_by_row_and_column(n, levels, dtype):
    generator = np.random.default_rng([n, levels, 1])
    weights = np.tril(generator.integers(0, levels + 1, (n, n))) / 128.0  # many are tied, some are 0
    maps = torch.from_numpy(weights).to(dtype)
    expected = kruskal_edges(np.maximum(weights, weights.T))
    padded = torch.full((n, n + 3), torch.nan, dtype=dtype)[:, :n]
    padded.copy_(maps)
    for layout in (maps, padded, maps.mT.contiguous().mT, maps.mT):
        result = asc.persistence(layout, max_dimension=0)
        assert result.death_edge[:-1].tolist() == expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_broken", [False, True])
@pytest.mark.parametrize("n", [2, 3, 8, 17, 33, 64, 100, 128, 130, 200])
def test_components_of_maps_whose_first_key_is_nearest_to_all(n, is_broken, dtype):
    generator = np.random.default_rng([n, is_broken])
    # Many are tied with the first key's and each query's largest entry is its own.
    weights = np.tril(generator.integers(0, 9, (n, n))) / 128.0
    np.fill_diagonal(weights, 0.75)
    weights[1:, 0] = generator.integers(8, 12, n - 1) / 128.0
    if is_broken and n > 2:
        weights[n - 1, n - 2] = weights[n - 2, 0] + 1.0 / 128.0
    expected = kruskal_edges(np.maximum(weights, weights.T))
    assert all(column == 0 for _, column in expected) is not (is_broken and n > 2)
    maps = torch.from_numpy(weights).to(dtype)
    padded = torch.full((n, n + 3), torch.nan, dtype=dtype)[:, :n]
    padded.copy_(maps)
    for layout in (maps, padded):
        bars = asc.persistence(layout, max_dimension=0)
        assert bars.death_edge[:-1].tolist() == expected
        assert bars.death[:-1].tolist() == [1.0 - weights[tuple(edge)] for edge in expected]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [20, 35])
def test_one_entry_anywhere_that_is_nearer_than_the_first_key_joins_its_tokens(n, dtype):
    nearness = 0.25 + np.arange(n) / 128.0  # of each token to the first
    pairs = [(i, j) for i in range(1, n) for j in range(1, i)]
    maps = np.zeros((len(pairs), n, n))
    maps[:, 1:, 0] = nearness[1:]
    for index, (i, j) in enumerate(pairs):
        # Nearer than token j is to the first, which comes before token i is: j joins i instead.
        maps[index, i, j] = (nearness[j] + nearness[i]) / 2.0
    bars = asc.persistence(torch.from_numpy(maps).to(dtype), max_dimension=0)
    for index, (i, j) in enumerate(pairs):
        edges = bars.death_edge[int(bars.offsets[index]) : int(bars.offsets[index + 1]) - 1].tolist()
        assert sorted(edges) == sorted([[i, j], *([k, 0] for k in range(1, n) if k != j)]), (i, j)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [40, 120])
def test_components_of_sharp_causal_maps_with_many_weights_of_one(n, dtype):
    generator = np.random.default_rng(n)
    weights = np.zeros((n, n))
    weights[range(n), [generator.integers(0, i + 1) for i in range(n)]] = 1.0
    weights[1::3] = np.tril(generator.integers(0, 3, (n, n)))[1::3] / 4.0
    bars = asc.persistence(torch.from_numpy(weights).to(dtype), max_dimension=0)
    tree = kruskal_edges(np.maximum(weights, weights.T))
    assert bars.death_edge[:-1].tolist() == [edge for edge in tree if weights[tuple(edge)] < 1.0]


@pytest.mark.parametrize("outlier", [-0.5, 1.5])
@pytest.mark.parametrize("n", [3, 20, 40])
def test_components_of_causal_maps_with_weights_outside_0_and_1(n, outlier):
    weights = np.tril(np.random.default_rng(n).random((n, n))) / 2
    weights[n - 1, n - 2] = outlier
    bars = asc.persistence(torch.from_numpy(weights), max_dimension=0)
    tree = kruskal_edges(np.minimum(np.maximum(weights, weights.T), 1.0))
    expected = [edge for edge in tree if weights[tuple(edge)] < 1.0]
    assert bars.death_edge[:-1].tolist() == expected
    np.testing.assert_array_equal(bars.death[:-1], [1.0 - max(0.0, weights[tuple(e)]) for e in expected])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("symmetrize", ["max", "mean", "min"])
def test_edges_have_the_weight_at_which_they_act(kind, symmetrize):
    a = attention_map(kind, 40, seed=5)
    distance = dissimilarity(a, symmetrize)
    bars = asc.persistence(torch.from_numpy(a), symmetrize=symmetrize)
    for birth, death, dimension, opens, closes in zip(
        bars.birth.tolist(),
        bars.death.tolist(),
        bars.dimension.tolist(),
        bars.birth_edge.tolist(),
        bars.death_edge.tolist(),
        strict=True,
    ):
        if dimension == 0:
            assert opens == [-1, -1]
            assert birth == 0.0
        else:
            assert opens[0] > opens[1] >= 0
            assert distance[tuple(opens)] == birth
        if np.isinf(death):
            assert closes == [-1, -1]
        else:
            assert closes[0] > closes[1] >= 0
            assert distance[tuple(closes)] == death


def test_bars_are_sorted_by_dimension_birth_death_and_birth_edge():
    bars = asc.persistence(torch.from_numpy(attention_map("tied", 40, seed=6)))
    keys = np.column_stack([bars.dimension, bars.birth, bars.death, bars.birth_edge]).tolist()
    assert keys == sorted(keys)


@pytest.mark.parametrize("n", [12, 40])
def test_scratch_of_a_map_says_nothing_of_the_next(n):
    """Maps of one size follow each other in one scratch; a small one in between makes it anew."""
    scores = torch.randn(24, n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    maps, thresholds = (4.0 * scores).softmax(-1), (0.02, 0.05, 0.15, 0.4)  # loops stay open at the end
    together = asc.betti_numbers(maps, thresholds)
    bars = asc.persistence(maps)
    for place, single in enumerate(maps):
        asc.persistence(torch.eye(5))
        assert torch.equal(asc.betti_numbers(single, thresholds), together[place])
        asc.persistence(torch.eye(5))
        bars_of_map, start = asc.persistence(single), int(bars.offsets[place])
        for field in ("birth", "death", "dimension"):
            values = getattr(bars, field)[start : int(bars.offsets[place + 1])]
            assert torch.equal(getattr(bars_of_map, field), values)


@settings(max_examples=60)
@given(
    st.integers(2, 14),
    st.sampled_from(KINDS),
    st.integers(0, 10_000),
    st.sampled_from(["max", "mean", "min"]),
)
def test_relabelling_tokens_leaves_bars_unchanged(n, kind, seed, symmetrize):
    a = attention_map(kind, n, seed)
    order = np.random.default_rng(seed).permutation(n)
    ours = asc.persistence(torch.from_numpy(a), symmetrize=symmetrize)[()]
    assert_bars_equal(asc.persistence(torch.from_numpy(a[order][:, order]), symmetrize=symmetrize)[()], ours)


@settings(max_examples=60)
@given(st.integers(1, 16), st.sampled_from(KINDS), st.integers(0, 10_000))
def test_bars_equal_gudhi_on_random_maps(n, kind, seed):
    a = attention_map(kind, n, seed)
    assert_bars_equal(asc.persistence(torch.from_numpy(a))[()], gudhi_bars(dissimilarity(a)))


@settings(max_examples=40)
@given(st.integers(2, 24), st.integers(0, 10_000))
def test_mean_symmetrised_causal_bars_are_halfway_to_one(n, seed):
    a = torch.from_numpy(attention_map("causal", n, seed))
    largest = asc.persistence(a)[()]
    mean = asc.persistence(a, symmetrize="mean")[()]
    halfway = [(1.0 + largest[0][:, 1]) / 2, (1.0 + largest[1]) / 2]
    np.testing.assert_allclose(mean[0][:, 1], halfway[0], rtol=0, atol=1e-15)
    np.testing.assert_allclose(mean[1], halfway[1], rtol=0, atol=1e-15)


@settings(max_examples=40)
@given(st.integers(2, 20), st.sampled_from(KINDS), st.integers(0, 10_000))
def test_the_euler_characteristic_counts_bars(n, kind, seed):
    # Every edge of the full filtration joins two components, opens a loop, or fills a triangle; at a scale
    # where the complex is a graph without triangles, n − edges = β0 − β1.
    a = attention_map(kind, n, seed)
    distance = dissimilarity(a)
    edges = np.sort(distance[np.tril_indices(n, -1)])
    scale = edges[min(2, len(edges) - 1)]
    adjacency = (distance <= scale) & ~np.eye(n, dtype=bool)
    if np.trace(np.linalg.matrix_power(adjacency.astype(np.int64), 3)) == 0:
        curve = asc.betti_curve(asc.persistence(torch.from_numpy(a)), scale)[0]
        assert n - adjacency.sum() // 2 == (curve[0] - curve[1]).item()


def test_closed_forms():
    n = 7
    ring = torch.zeros(n, n, dtype=torch.float64)
    ring[range(n), [*range(1, n), 0]] = 0.75
    result = asc.persistence(ring)[()]
    assert result[0].tolist() == [[0.0, 0.25]] * (n - 1) + [[0.0, np.inf]]
    assert result[1].tolist() == [[0.25, 1.0]]
    star = torch.zeros(n, n)
    star[:, 0] = 1.0
    assert [bars.tolist() for bars in asc.persistence(star)[()]] == [[[0.0, np.inf]], []]
    assert asc.persistence(torch.full((n, n), 0.25))[()][0].tolist() == [[0.0, 0.75]] * (n - 1) + [
        [0.0, np.inf]
    ]


def test_weights_beyond_the_unit_interval():
    a = torch.zeros(4, 4)
    a[1, 0], a[2, 1], a[3, 2] = 1.004, -0.5, -0.0
    a[0, 3] = -1.0
    result = asc.persistence(a, symmetrize="max")[()][0]
    assert result[:, 1].tolist() == [1.0, 1.0, np.inf]  # 1.004 counts as 1; the other larger entries are 0
    negative = torch.full((3, 3), -0.5)
    assert asc.persistence(negative)[()][0][:, 1].tolist() == [1.5, 1.5, np.inf]


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_views_and_transposes_are_read_in_place(dtype):
    big = torch.from_numpy(np.stack([attention_map("softmax", 60, seed) for seed in range(4)])).to(dtype)
    copy = big.clone()
    views = {
        "slice": big[::2, 5:45, 5:45],
        "steps": big[:, ::2, ::2],
        "transpose": big.transpose(-1, -2),
        "heads last": big.permute(1, 2, 0).contiguous().permute(2, 0, 1),
        "expanded": big[0].expand(3, 60, 60),
    }
    for name, view in views.items():
        plain = asc.persistence(view.contiguous().clone())
        strided = asc.persistence(view)
        for field in ("birth", "death", "birth_edge", "death_edge", "offsets"):
            assert torch.equal(getattr(plain, field), getattr(strided, field)), (name, field)
    assert torch.equal(big, copy)


def test_lengths_cut_each_map_to_its_leading_block():
    a = torch.from_numpy(np.stack([attention_map("causal", 30, seed) for seed in range(6)])).reshape(
        2, 3, 30, 30
    )
    lengths = torch.tensor([[1, 2, 30], [7, 29, 16]])
    bars = asc.persistence(a, lengths=lengths)
    for index in np.ndindex(2, 3):
        m = int(lengths[index])
        assert_bars_equal(bars[index], asc.persistence(a[index][:m, :m])[()])


def test_nan_in_one_map_leaves_other_maps_alone():
    a = torch.from_numpy(np.stack([attention_map("softmax", 12, seed) for seed in range(3)]))
    clean = asc.persistence(a)
    non_finite = a.clone()
    non_finite[1, 3, 4] = torch.nan
    with pytest.warns(RuntimeWarning, match="persistence: 1 of 3 matrices"):
        bars = asc.persistence(non_finite)
    assert [len(part) for part in bars[1]] == [0, 0]
    for k in (0, 2):
        assert_bars_equal(bars[k], clean[k])
    with pytest.raises(ValueError, match=r"got nan at index \(1, 3, 4\)"):
        asc.persistence(non_finite, validate=True)


def test_results_do_not_depend_on_threads():
    a = torch.from_numpy(np.stack([attention_map(KINDS[seed % len(KINDS)], 40, seed) for seed in range(48)]))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        single_result = asc.persistence(a)
        torch.set_num_threads(2)
        two = asc.persistence(a)
    finally:
        torch.set_num_threads(threads)
    for field in ("birth", "death", "dimension", "birth_edge", "death_edge", "offsets"):
        assert torch.equal(getattr(single_result, field), getattr(two, field)), field


def test_hellinger_distances():
    a = attention_map("causal", 25)
    roots = np.sqrt(a)
    distance = np.linalg.norm(roots[:, None] - roots[None], axis=-1) / np.sqrt(2.0)
    ours = asc.persistence(torch.from_numpy(a), metric="hellinger")[()]
    for our, theirs in zip(ours, gudhi_bars(distance), strict=True):
        np.testing.assert_allclose(our, theirs, rtol=0, atol=1e-14)
    equal_weights = torch.full((5, 5), 0.2)
    assert asc.persistence(equal_weights, metric="hellinger")[()][0].tolist() == [[0.0, np.inf]]


def test_a_hellinger_distance_whose_square_overflows():
    large = torch.diag(torch.full((4,), 1.5e308, dtype=torch.float64))
    pieces, loops = asc.persistence(large, metric="hellinger")[()]
    np.testing.assert_allclose(pieces[:, 1], [*[1.5e308**0.5] * 3, np.inf], rtol=1e-14)
    assert len(loops) == 0


#: The triangles of the projective plane with six vertices.
PROJECTIVE_PLANE = ("012", "023", "034", "045", "051", "124", "235", "341", "452", "513")


def test_torsion_is_seen_over_z2():
    # Barycentric subdivision makes a flag complex of it: H1 is Z/2, so there is a loop over Z/2 alone.
    faces = {frozenset(map(int, face)) for face in PROJECTIVE_PLANE}
    edges = {edge for face in faces for edge in map(frozenset, combinations(face, 2))}
    assert all(sum(edge < face for face in faces) == 2 for edge in edges)
    assert len(edges) == 15
    simplices = [frozenset([v]) for v in range(6)] + sorted(edges, key=sorted) + sorted(faces, key=sorted)
    a = np.full((31, 31), 0.125)
    for (i, x), (j, y) in combinations(enumerate(simplices), 2):
        if x < y or y < x:
            a[i, j] = a[j, i] = 0.5
    result = asc.persistence(torch.from_numpy(a))[()]
    assert result[1].tolist() == [[0.5, 0.875]]
    assert_bars_equal(result, gudhi_bars(dissimilarity(a)))
    assert len(gudhi_bars(dissimilarity(a), field=3)[1]) == 0


def test_bars_of_a_dense_map_with_torsion_equal_gudhi():
    # Of random dense maps of 48 tokens few pair loops otherwise over Z/3; this is one.
    logits = torch.randn(48, 48, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    a = (2.0 * logits).softmax(-1).numpy()
    expected = gudhi_bars(dissimilarity(a))
    assert not np.array_equal(expected[1], gudhi_bars(dissimilarity(a), field=3)[1])
    assert_bars_equal(asc.persistence(torch.from_numpy(a))[()], expected)


def test_a_large_map():
    # 2,048 tokens: more words per row than any unrolled loop.
    a = torch.from_numpy(attention_map("sink", 2048)).to(torch.float32)
    bars = asc.persistence(a)
    tree = minimum_spanning_tree(dissimilarity(a) + 1.0 - np.eye(2048))
    deaths = np.sort(tree.data - 1.0)
    result = bars[()][0][:-1, 1]
    np.testing.assert_allclose(result, deaths[-len(result) :], rtol=0, atol=1e-12)
    assert asc.bar_count(bars)[1] >= 0


@pytest.mark.parametrize("model", ["stories260K", "llama2xs"])
def test_real_heads_equal_gudhi(model):
    file = DATA / model / "golden_bos64.npz"
    if not file.is_file():
        pytest.skip(f"{file} is absent: the real maps lie beside the checkout")
    heads = np.load(file)["attn"][:, ::3]
    bars = asc.persistence(torch.from_numpy(heads))
    for index in np.ndindex(heads.shape[:2]):
        assert_bars_equal(bars[index], gudhi_bars(dissimilarity(heads[index])))


def test_bad_arguments_name_themselves():
    square = torch.rand(3, 3)
    with pytest.raises(ValueError, match=r"persistence: attention must be square .* \(2, 3\)"):
        asc.persistence(torch.rand(2, 3))
    with pytest.raises(ValueError, match="persistence: attention must be float16"):
        asc.persistence(torch.ones(3, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="persistence: max_dimension must be 0 or 1, got 2"):
        asc.persistence(square, max_dimension=2)
    with pytest.raises(
        ValueError, match="persistence: symmetrize must be one of 'max', 'mean', 'min', got 'sum'"
    ):
        asc.persistence(square, symmetrize="sum")
    with pytest.raises(ValueError, match="persistence: metric must be one of 'attention', 'hellinger'"):
        asc.persistence(square, metric="euclid")
    with pytest.raises(ValueError, match="persistence: lengths must lie between 1 and n = 3, got 4"):
        asc.persistence(square, lengths=4)
    with pytest.raises(ValueError, match="persistence: attention must have at most 65535 tokens, got 70000"):
        asc.persistence(torch.zeros(1).expand(70000, 70000))


@pytest.mark.filterwarnings("ignore:persistence.* of memory")
def test_as_many_tokens_as_have_numbers_of_16_bits():
    most = torch.zeros(1).expand(65535, 65535)
    assert attention_of_topology("persistence", most, None, validate=False).n == 65535


def test_an_empty_batch_has_no_bars():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bars = asc.persistence(torch.zeros(0, 5, 4, 4))
    assert bars.shape == (0, 5)
    assert bars.offsets.tolist() == [0]
    assert asc.bar_count(bars).shape == (0, 5, 2)
