# SPDX-License-Identifier: MIT
"""Every kernel against arithmetic of 100 digits on small maps that are hard for float64.

Each bound is the one that the metric's docstring states.
"""

import math

import mpmath as mp
import numpy as np
import pytest
import torch

import attnscope as asc
from strategies import EPS, TINY, apart, eigenvalues, exact, hard_maps

HARD = hard_maps()
ordinary = pytest.mark.parametrize("kind", [kind for kind in HARD if "subnormal" not in kind])
each_kind = pytest.mark.parametrize("kind", HARD)


def graph(matrix, rule):
    n = len(matrix)
    a = exact(matrix)
    w = mp.matrix(n, n)
    for i in range(n):
        for j in range(n):
            if i != j:
                w[i, j] = (a[i, j] + a[j, i]) / 2 if rule == "mean" else max(a[i, j], a[j, i])
    return w


def laplacian(matrix, rule, normalized):
    w = graph(matrix, rule)
    n = w.rows
    degree = [mp.fsum(w[i, :]) for i in range(n)]
    result = mp.matrix(n, n)
    for i in range(n):
        for j in range(n):
            if normalized:
                diagonal = mp.mpf(1) if i == j and degree[i] > 0 else mp.mpf(0)
                edge = w[i, j] / mp.sqrt(degree[i] * degree[j]) if w[i, j] else mp.mpf(0)
            else:
                diagonal, edge = (degree[i] if i == j else mp.mpf(0)), w[i, j]
            result[i, j] = diagonal - edge
    return result, max(degree)


def singular_values(matrix):
    a = exact(matrix)
    return sorted((mp.sqrt(max(x, mp.mpf(0))) for x in eigenvalues(a.T * a)), reverse=True)


@pytest.mark.parametrize("normalized", [False, True])
@each_kind
def test_laplacian_eigenvalues_and_the_fiedler_value(kind, normalized):
    matrix = HARD[kind]
    n = len(matrix)
    attention = torch.tensor(matrix)
    operator, largest = laplacian(matrix, "mean", normalized)
    expected = eigenvalues(operator)
    scale = 1 if normalized else largest
    result = asc.laplacian_eigenvalues(attention, normalized=normalized)
    slack = n * TINY
    for value, true in zip(result, expected, strict=True):
        assert apart(value, true) <= 4 * n * EPS * scale + slack, (kind, float(value), mp.nstr(true, 17))
    for precision, relative in (("exact", 1e-9), ("fast", 1e-6)):
        value = asc.fiedler_value(attention, normalized=normalized, precision=precision)
        bound = relative * expected[1] + 4 * n * EPS * scale + slack
        assert apart(value, expected[1]) <= bound, (kind, precision, value.item(), mp.nstr(expected[1], 17))


@ordinary
def test_the_fiedler_vector_solves_its_equation(kind):
    matrix = HARD[kind]
    operator, largest = laplacian(matrix, "mean", False)
    vector = mp.matrix([mp.mpf(float(x)) for x in asc.fiedler_vector(torch.tensor(matrix))])
    residual = operator * vector - eigenvalues(operator)[1] * vector
    assert mp.norm(residual) <= 64 * len(matrix) * EPS * largest
    assert abs(mp.norm(vector) - 1) <= 8 * EPS
    assert abs(mp.fsum(vector)) <= 32 * EPS


@each_kind
def test_singular_values_and_what_is_made_of_them(kind):
    matrix = HARD[kind]
    attention = torch.tensor(matrix)
    expected = singular_values(matrix)
    for value, true in zip(asc.singular_values(attention), expected, strict=True):
        assert apart(value, true) <= 1e-12 * expected[0] + 5e-324, (kind, float(value), mp.nstr(true, 17))
    if kind in ("zeros", "only subnormal weights"):
        return
    energy = mp.fsum(s**2 for s in expected)
    share = [s / mp.fsum(expected) for s in expected]
    expected_by_metric = {
        asc.stable_rank: energy / expected[0] ** 2,
        asc.participation_ratio: energy**2 / mp.fsum(s**4 for s in expected),
        asc.effective_rank: mp.exp(-mp.fsum(p * mp.log(p) for p in share if p > 0)),
    }
    for metric, true in expected_by_metric.items():
        assert apart(metric(attention), true) <= 1e-11 * true, (kind, metric.__name__)
    assert apart(asc.spectral_gap(attention), expected[0] - expected[1]) <= 2e-12 * expected[0]


@each_kind
def test_entropy_of_every_query(kind):
    matrix = HARD[kind]
    result = asc.attention_entropy(torch.tensor(matrix), support="full")
    for value, row in zip(result, matrix, strict=True):
        entries = [mp.mpf(float(x)) for x in row if x > 0]
        terms = [-x * mp.log(x) for x in entries]
        assert (
            apart(value, mp.fsum(terms))
            <= 16 * EPS * (mp.fsum(map(abs, terms)) + sum(entries)) + 64 * len(row) * TINY
        )


@each_kind
def test_divergence_of_two_heads(kind):
    pair = np.stack([HARD[kind], HARD["softmax"]])
    result = asc.head_divergence(torch.tensor(pair), support="full")
    n = pair.shape[-1]
    for h in range(2):
        total = mp.mpf(0)
        size = mp.mpf(0)
        for i in range(n):
            for j in range(n):
                share, other = (mp.mpf(float(pair[k, i, j])) for k in (h, 1 - h))
                if share > 0:
                    term = share * (mp.log(share) - mp.log((share + other) / 2))
                    total += term
                    size += share * (1 + abs(mp.log(share)))
        assert apart(result[h], total / n) <= 16 * EPS * size / n + 64 * n * TINY, (kind, h)


@each_kind
def test_incoming_attention_and_its_largest_keys(kind):
    matrix = HARD[kind]
    n = len(matrix)
    attention = torch.tensor(matrix)
    mass = [mp.fsum(mp.mpf(float(x)) for x in matrix[:, j]) for j in range(n)]
    for value, true in zip(asc.incoming_attention(attention, support="full"), mass, strict=True):
        assert apart(value, true / n) <= 8 * EPS * true / n + 5e-324
    if sum(mass) > 0:
        share = mp.fsum(sorted(mass)[-3:]) / mp.fsum(mass)
        assert apart(asc.top_mass(attention, 3, support="full"), share) <= 16 * EPS


@ordinary
def test_participation_ratio_of_the_laplacian(kind):
    matrix = HARD[kind]
    operator, _ = laplacian(matrix, "mean", False)
    n = operator.rows
    trace = mp.fsum(operator[i, i] for i in range(n))
    result = asc.participation_ratio(torch.tensor(matrix), spectrum="laplacian")
    if trace == 0:
        assert math.isnan(result)
        return
    expected = trace**2 / mp.fsum(x**2 for x in operator)
    assert apart(result, expected) <= 16 * EPS * expected


@pytest.mark.parametrize("kind", ["softmax", "causal", "one-hot rows", "bfloat16", "nearly rank one"])
def test_alignment_and_reference_influence(kind):
    matrix = HARD[kind]
    n = len(matrix)
    states = np.random.default_rng(3).standard_normal((n, 3))
    a, s = exact(matrix), exact(states)
    rows = [s[i, :] for i in range(n)]
    dot = lambda x, y: mp.fsum(x[k] * y[k] for k in range(len(x)))  # noqa: E731
    cosine = lambda x, y: dot(x, y) / mp.sqrt(dot(x, x) * dot(y, y))  # noqa: E731
    pairs = [(a[i, j], cosine(rows[i], rows[j])) for i in range(n) for j in range(n) if i != j]
    mean_a, mean_c = (mp.fsum(p[k] for p in pairs) / len(pairs) for k in (0, 1))
    cross = mp.fsum((x - mean_a) * (c - mean_c) for x, c in pairs)
    norm = mp.fsum((x - mean_a) ** 2 for x, _ in pairs) * mp.fsum((c - mean_c) ** 2 for _, c in pairs)
    attention, tokens = torch.tensor(matrix), torch.tensor(states)
    result = asc.geometric_semantic_alignment(attention, tokens, support="full")
    assert apart(result, cross / mp.sqrt(norm)) <= 1e-14

    reference = torch.arange(n) < 3
    influence = asc.reference_influence(attention, tokens, reference, support="full")
    for i in range(3, n):
        inside = [mp.fsum(a[i, j] * s[j, k] for j in range(3)) for k in range(3)]
        outside = [mp.fsum(a[i, j] * s[j, k] for j in range(3, n)) for k in range(3)]
        total = [x + y for x, y in zip(inside, outside, strict=True)]
        if not dot(total, total):
            continue
        if dot(inside, inside):
            ratio = mp.sqrt(dot(inside, inside) / dot(total, total))
            assert apart(influence.relative_magnitude[i], ratio) <= 1e-14 * (1 + ratio)
            assert apart(influence.directional[i], cosine(inside, total)) <= 1e-14
        if dot(outside, outside):
            assert apart(influence.information_change[i], 1 - cosine(total, outside)) <= 1e-14


@each_kind
def test_bars_are_differences_that_float64_gives(kind):
    # 1 − w is one correctly rounded operation, so every end of a bar is the float64 nearest to the truth.
    matrix = HARD[kind]
    w = graph(matrix, "max")
    bars = asc.persistence(torch.tensor(matrix))
    for death, (i, j) in zip(bars.death.tolist(), bars.death_edge.tolist(), strict=True):
        if math.isfinite(death):
            assert death == float(1 - min(w[i, j], mp.mpf(1)))
