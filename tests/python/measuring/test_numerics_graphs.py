# SPDX-License-Identifier: MIT
"""Thresholded graphs, their loops and null laws of spectra against rational numbers and 100 digits."""

import itertools
import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
import torch

import attnscope as asc
from strategies import EPS, apart, eigenvalues, exact, hard_maps, some_quick

HARD = hard_maps()
each_kind = pytest.mark.parametrize("kind", some_quick(HARD))


def thresholds_of(matrix):
    """Entries themselves, where a comparison is a tie, and their neighbours; 1/n and the smallest number."""
    inside = np.unique(matrix[(matrix > 0) & (matrix < 1)])
    chosen = inside[:: max(1, len(inside) // 5)].tolist()
    levels = [level for x in chosen for level in (np.nextafter(x, 0), x, np.nextafter(x, 1))]
    return sorted({float(level) for level in [*levels, 1 / len(matrix), 5e-324] if 0 < level < 1})


def rational(matrix):
    return [[Fraction(float(x)) for x in row] for row in matrix]


def simple_graph(a, t):
    n = len(a)
    return [[i != j and max(a[i][j], a[j][i]) >= t for j in range(n)] for i in range(n)]


def component_count(graph):
    left, count = set(range(len(graph))), 0
    while left:
        count += 1
        reached = [left.pop()]
        for i in reached:
            neighbours = {j for j in left if graph[i][j]}
            left -= neighbours
            reached.extend(neighbours)
    return count


def gini(degrees):
    n, d = len(degrees), sorted(degrees)
    if not sum(d):
        return Fraction(0)
    return Fraction(sum((2 * k - n - 1) * x for k, x in enumerate(d, 1)), n * sum(d))


def statistics(a, t):
    """Every field but the two eigenvalues as a rational number."""
    n = len(a)
    graph = simple_graph(a, t)
    d = [sum(row) for row in graph]
    into = [sum(a[i][j] >= t for i in range(n) if i != j) for j in range(n)]
    hub = d.index(max(d))
    rest = sum(graph[i][j] for i in range(n) for j in range(n) if hub not in (i, j))
    mean = Fraction(sum(d), n)
    share = Fraction(max(d), n - 1)
    return {
        "components": Fraction(component_count(graph)),
        "density": Fraction(sum(d), n * (n - 1)),
        "hub_share": share,
        "gini": gini(d),
        "centralization": Fraction(sum(max(d) - x for x in d), (n - 1) * (n - 2)),
        "degree_variance": sum((x - mean) ** 2 for x in d) / n,
        "star_likeness": share * (1 - Fraction(rest, (n - 1) * (n - 2))),
        "in_degree_gini": gini(into),
        "in_degree_centralization": Fraction(sum(max(into) - x for x in into), (n - 1) ** 2),
        "effective": Fraction(Fraction(0.05) <= Fraction(sum(d), n * (n - 1)) <= Fraction(0.95)),
    }


@each_kind
def test_graph_statistics(kind):
    a, levels = rational(HARD[kind]), thresholds_of(HARD[kind])
    result = asc.graph_statistics(torch.tensor(HARD[kind]), levels)
    spectra = {}
    for k, t in enumerate(levels):
        expected = statistics(a, Fraction(t))
        for field, true in expected.items():
            value = Fraction(getattr(result, field)[k].item())
            # A few roundings; star likeness takes a density from 1.
            size = 1 if field == "star_likeness" else true
            assert abs(value - true) <= 4 * Fraction(EPS) * size, (kind, field, t)
        graph = simple_graph(a, Fraction(t))
        key = tuple(itertools.chain(*graph))
        if key not in spectra:
            degree = mp.diag([sum(row) for row in graph])
            spectra[key] = eigenvalues(degree - mp.matrix([[int(x) for x in row] for row in graph]))
        bound = len(a) * 2.0**-50 * max(1, max(map(sum, graph)))
        values = spectra[key]
        assert apart(result.fiedler_value[k], values[1]) <= bound, (kind, t)
        assert apart(result.laplacian_gap[k], values[2] - values[1]) <= 2 * bound, (kind, t)
        assert (result.fiedler_value[k].item() == 0.0) == (expected["components"] > 1)


def rank(rows):
    """Over Z/2, of rows whose bits are the entries of a matrix."""
    basis = {}
    for row in rows:
        while row and (lead := row.bit_length()) in basis:
            row ^= basis[lead]
        if row:
            basis[row.bit_length()] = row
    return len(basis)


def betti(graph):
    """beta_0 and beta_1 of the clique complex by the ranks of its boundary maps."""
    n = len(graph)
    edges = {
        pair: at for at, pair in enumerate(itertools.combinations(range(n), 2)) if graph[pair[0]][pair[1]]
    }
    boundary = [1 << i | 1 << j for i, j in edges]
    triangles = [
        sum(1 << edges[pair] for pair in itertools.combinations(three, 2))
        for three in itertools.combinations(range(n), 3)
        if all(pair in edges for pair in itertools.combinations(three, 2))
    ]
    first = rank(boundary)
    return n - first, len(edges) - first - rank(triangles)


@pytest.mark.parametrize("symmetrize", ["max", "min", "mean"])
@each_kind
def test_betti_numbers(kind, symmetrize):
    matrix = HARD[kind]
    n = len(matrix)
    a, levels = rational(matrix), thresholds_of(matrix)
    rule = {"max": max, "min": min, "mean": lambda x, y: (x + y) / 2}[symmetrize]
    result = asc.betti_numbers(torch.tensor(matrix), levels, symmetrize=symmetrize).tolist()
    for t, counted in zip(levels, result, strict=True):
        weights = [[rule(a[i][j], a[j][i]) for j in range(n)] for i in range(n)]
        # A mean is rounded, so one within rounding of the threshold may be on either side of it.
        close = [abs(w - Fraction(t)) <= Fraction(EPS) * w for row in weights for w in row if w]
        if symmetrize == "mean" and any(close):
            continue
        graph = [[i != j and weights[i][j] >= Fraction(t) for j in range(n)] for i in range(n)]
        assert tuple(counted) == betti(graph), (kind, symmetrize, t)


def test_betti_numbers_of_rings_that_ties_close():
    # 0.3 in float32 is above 0.3 in float64, and in bfloat16 above both: the graph is that of the numbers.
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        ring = torch.zeros(6, 6, dtype=dtype)
        ring[range(6), [1, 2, 3, 4, 5, 0]] = 0.3
        entry = float(ring[0, 1])
        levels = [np.nextafter(entry, 0), entry, np.nextafter(entry, 1), 0.3]
        expected = [betti(simple_graph(rational(ring.double().numpy()), Fraction(float(t)))) for t in levels]
        assert expected[:3] == [(1, 1), (1, 1), (6, 0)]
        assert [tuple(counts) for counts in asc.betti_numbers(ring, levels).tolist()] == expected


def standardised(matrix, causal):
    """The rows that vary over their visible keys, as mpmath's numbers."""
    n = len(matrix)
    a = exact(matrix)
    rows = []
    for i in range(n):
        seen = [a[i, j] for j in range(i + 1 if causal else n)]
        if all(x == seen[0] for x in seen):
            continue
        mean = mp.fsum(seen) / len(seen)
        std = mp.sqrt(mp.fsum((x - mean) ** 2 for x in seen) / len(seen))
        rows.append([(x - mean) / std for x in seen] + [mp.mpf(0)] * (n - len(seen)))
    return mp.matrix(rows) if rows else None


def triangular_law(x):
    if x >= mp.e:
        return mp.mpf(1)
    low, high = mp.mpf(0), mp.pi  # x falls from e to 0 as v rises
    for _ in range(120):
        v = (low + high) / 2
        if mp.sin(v) / v * mp.exp(v * mp.cot(v)) > x:
            low = v
        else:
            high = v
    return 1 - v / mp.pi + mp.sin(v) ** 2 / (mp.pi * v)


def marchenko_pastur_law(x, aspect):
    """The integral of its density, which is smooth over the angle t with x = a + (b - a) sin²(t/2)."""
    root = mp.sqrt(aspect)
    low, high = (1 - root) ** 2, (1 + root) ** 2
    if x <= low:
        return mp.mpf(0)
    if x >= high:
        return mp.mpf(1)
    end = 2 * mp.asin(mp.sqrt((x - low) / (high - low)))

    def density(t):
        at = low + (high - low) * mp.sin(t / 2) ** 2
        return (high - low) ** 2 / 4 * mp.sin(t) ** 2 / (2 * mp.pi * aspect * at)

    with mp.workdps(30):
        return mp.quad(density, [0, end / 2, end])


@pytest.mark.parametrize("law", ["full", "causal"])
@pytest.mark.filterwarnings("ignore:marchenko_pastur.*no row that varies")
@each_kind
def test_marchenko_pastur(kind, law):
    matrix = np.tril(HARD[kind]) if law == "causal" else HARD[kind]
    n = len(matrix)
    result = asc.marchenko_pastur(torch.tensor(matrix), null=law, support=law)
    x = standardised(matrix, law == "causal")
    if x is None:
        assert math.isnan(result.ks)
        assert result.outliers == -1
        return
    spectrum = eigenvalues(x * x.T / n)
    k = len(spectrum)
    aspect = mp.mpf(k) / n
    edge = mp.e if law == "causal" else (1 + mp.sqrt(aspect)) ** 2
    cdf = triangular_law if law == "causal" else (lambda value: marchenko_pastur_law(value, aspect))
    assert not any(1e-14 * edge < value < 1e-10 * edge for value in spectrum), "chosen to be clear of the cut"
    below = sum(value < 1e-12 * edge for value in spectrum)
    expected = abs(mp.mpf(below) / k - cdf(1e-12 * edge))
    for at, value in list(enumerate(spectrum))[below:]:
        law_there = cdf(value)
        expected = max(expected, abs(mp.mpf(at) / k - law_there), abs(mp.mpf(at + 1) / k - law_there))
    assert apart(result.ks, expected) <= 1e-11, (kind, float(result.ks), mp.nstr(expected, 17))
    assert apart(result.edge, edge) <= 4 * EPS * edge
    assert apart(result.largest, spectrum[-1]) <= 1e-11 * spectrum[-1]
    bound = edge * (1 + mp.mpf(n) ** (-mp.mpf(2) / 3))
    out = [value for value in spectrum if value > bound]
    assert result.outliers == len(out)
    assert apart(result.outlier_energy, mp.fsum(out) / mp.fsum(spectrum)) <= 1e-11
