# SPDX-License-Identifier: MIT
"""λ2 and gap of simple graphs of many shapes, against NumPy, and the same bits in any company."""

from collections import Counter

import numpy as np
import pytest
import torch
from scipy.sparse.csgraph import connected_components

import attnscope as asc
from attnscope._precision import count_fallbacks
from strategies import attention_map


def shapes(sizes):
    """Simple graphs of many shapes by name, as matrices of 0 and 1."""
    rng = np.random.default_rng(5)

    def of(n, edges):
        a = np.zeros((n, n))
        for i, j in edges:
            a[i, j] = a[j, i] = 1
        return a

    def join(a, b):
        return np.block([[a, np.ones((len(a), len(b)))], [np.ones((len(b), len(a))), b]])

    def union(a, b):
        return np.block([[a, np.zeros((len(a), len(b)))], [np.zeros((len(b), len(a))), b]])

    def sparse(n, degree):
        a = np.triu(rng.random((n, n)) < degree / n, 1).astype(float)
        return a + a.T

    def tree(n):
        return of(n, [(i, rng.integers(0, i)) for i in range(1, n)])

    def complete(n):
        return 1 - np.eye(n)

    result = {}
    for n in sizes:
        path = of(n, [(i, i + 1) for i in range(n - 1)])
        cycle = of(n, [(i, (i + 1) % n) for i in range(n)])
        grid = of(n, [(i, i + 1) for i in range(n - 1) if (i + 1) % 8] + [(i, i + 8) for i in range(n - 8)])
        half = n // 2
        result |= {
            f"empty {n}": np.zeros((n, n)),
            f"complete {n}": complete(n),
            f"one edge less {n}": complete(n) - of(n, [(0, n - 1)]),
            f"a path less {n}": complete(n) - path,
            f"path {n}": path,
            f"cycle {n}": cycle,
            f"grid {n}": grid,
            f"tree {n}": tree(n),
            f"star with loose ends {n}": of(n, [(0, i) for i in range(1, half + 1)]),
            f"double star {n}": of(n, [(0, 1)] + [(i % 2, i) for i in range(2, n)]),
            f"bipartite {n}": join(np.zeros((half, half)), np.zeros((n - half, n - half))),
            f"barbell {n}": union(complete(half), complete(n - half)) + of(n, [(0, half)]),
            f"two trees {n}": union(tree(half), tree(n - half)),
            f"cone of a cycle {n}": join(np.zeros((1, 1)), cycle),
            f"cone of two paths {n}": join(np.zeros((1, 1)), union(path, tree(half))),
            f"three cones of a sparse one {n}": join(complete(3), sparse(n, 4)),
            f"nodes alike, apart {n}": np.kron(sparse(-(-n // 3), 3), np.ones((3, 3))),
            f"nodes alike, joined {n}": np.kron(sparse(-(-n // 3), 3) + np.eye(-(-n // 3)), np.ones((3, 3))),
            f"sparse {n}": sparse(n, 5),
            f"dense {n}": complete(n) - sparse(n, 5),
            f"middling {n}": sparse(n, n / 2),
            f"regular {n}": of(n, [(i, (i + k) % n) for i in range(n) for k in (1, 2, 5) if k < n]),
        }
    return {name: a * (1 - np.eye(len(a))) for name, a in result.items()}


# Up to 160 nodes graphs are solved together, larger ones alone.
@pytest.mark.parametrize(
    "sizes", [(3, 4, 5, 9, 34, 65), pytest.param((130, 161, 193, 260, 301, 420), marks=pytest.mark.slow)]
)
def test_spectra_of_many_shapes_equal_numpys(sizes):
    for name, a in shapes(sizes).items():
        n = len(a)
        order = np.random.default_rng(n).permutation(n)
        result = asc.graph_statistics(torch.tensor(0.5 * a[np.ix_(order, order)]), [0.5])
        values = np.linalg.eigvalsh(np.diag(a.sum(0)) - a)
        bound = 4e-15 * n * max(1, a.sum(0).max())
        assert result.fiedler_value.item() == pytest.approx(values[1], rel=1e-9, abs=bound), name
        assert result.laplacian_gap.item() == pytest.approx(values[2] - values[1], rel=0, abs=2 * bound), name
        assert result.components.item() == connected_components(a)[0], name
        assert (result.fiedler_value.item() == 0) == (result.components.item() > 1), name


def test_fast_spectra_of_many_shapes_are_within_their_bounds():
    # a row of 64 or 128 edges ends with a word of bits
    for n in (3, 9, 34, 64, 65, 128, 150):
        for name, a in shapes([n]).items():
            maps, size = torch.tensor(0.5 * a), len(a)
            fast = asc.graph_statistics(maps, [0.5], precision="fast")
            values = np.linalg.eigvalsh(np.diag(a.sum(0)) - a)
            rounding = 4e-15 * size * max(1, a.sum(0).max())
            assert fast.fiedler_value.item() == pytest.approx(values[1], rel=1e-6, abs=rounding), name
            gap = values[2] - values[1]
            assert fast.laplacian_gap.item() == pytest.approx(gap, rel=0, abs=5e-6 * size), name
            assert (fast.fiedler_value.item() == 0) == (connected_components(a)[0] > 1), name


def test_a_graph_whose_third_eigenvalue_is_too_near_is_solved_exactly_and_its_map_counted():
    of_shape = shapes([120])
    maps = torch.tensor(np.stack([0.5 * of_shape[f"{name} 120"] for name in ("middling", "path", "cycle")]))
    counts = Counter()
    with count_fallbacks(counts):
        fast = asc.graph_statistics(maps, [0.3, 0.5, 0.7], precision="fast")
    exact = asc.graph_statistics(maps, [0.3, 0.5, 0.7])
    # the two graphs of the path and of the cycle
    assert counts == {"graph_statistics": 2}
    for field in ("fiedler_value", "laplacian_gap"):
        assert torch.equal(getattr(fast, field)[1:], getattr(exact, field)[1:]), field
    assert not torch.equal(fast.fiedler_value[0], exact.fiedler_value[0])


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("n", [12, 33, 70, pytest.param(150, marks=pytest.mark.slow), 270])
def test_a_graph_has_the_same_bits_in_any_company(n, precision):
    rng = np.random.default_rng(n)
    # hubs that touch everybody leave graphs of many sizes, which wait for each other
    a = np.stack(
        [
            attention_map(n, kind, seed=k)
            for k in range(4 if n < 200 else 1)
            for kind in ("full", "causal", "local")
        ]
    )
    for k, map_of_batch in enumerate(a):
        map_of_batch[rng.choice(n, k, replace=False)] += 0.06
    a = torch.tensor(a)
    thresholds = [0.005, 0.01, 0.02, 0.05]
    together = asc.graph_statistics(a, thresholds, precision=precision)
    for k in rng.permutation(len(a)):
        single_result = asc.graph_statistics(a[k], thresholds, precision=precision)
        statistics = [asc.graph_statistics(a[k], t, precision=precision) for t in thresholds]
        for field in ("fiedler_value", "laplacian_gap"):
            assert torch.equal(getattr(together, field)[k], getattr(single_result, field)), (field, k)
            for place, single in enumerate(statistics):
                assert getattr(single, field).item() == getattr(single_result, field)[place].item(), (
                    field,
                    k,
                )
    backwards = asc.graph_statistics(a.flip(0), thresholds, precision=precision)
    assert torch.equal(backwards.fiedler_value.flip(0), together.fiedler_value)
    assert torch.equal(backwards.laplacian_gap.flip(0), together.laplacian_gap)
