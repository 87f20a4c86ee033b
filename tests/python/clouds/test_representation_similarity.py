# SPDX-License-Identifier: MIT
"""CKA and shared neighbours: invariances, loops, independent clouds, and what is refused."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

import attnscope as asc


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unbiased(k, other):
    """Song et al.'s estimate as a mean over quadruples of different points."""
    n = len(k)
    total = 0.0
    for i, j, q, r in itertools.permutations(range(n), 4):
        total += k[i, j] * (other[i, j] + other[q, r] - 2 * other[i, q])
    return total / (n * (n - 1) * (n - 2) * (n - 3))


@pytest.mark.parametrize("debiased", [False, True])
def test_turns_scales_and_offsets_change_nothing(debiased):
    x = drawn(20, 5)
    turn = torch.linalg.qr(drawn(5, 5, seed=1)).Q
    assert asc.cka(x, 3 * x @ turn + 7, debiased=debiased).item() == pytest.approx(1, abs=1e-10)
    assert asc.cka(x, x + 1e6, debiased=debiased).item() == pytest.approx(1, abs=1e-6)
    value = asc.cka(x, drawn(20, 9, seed=2), debiased=debiased)
    assert asc.cka(drawn(20, 9, seed=2), x, debiased=debiased).item() == pytest.approx(
        value.item(), abs=1e-12
    )


def test_the_debiased_estimate_is_a_mean_over_quadruples():
    x, y = drawn(7, 3), drawn(7, 4, seed=1)
    of_x, of_y = (x @ x.T).numpy(), (y @ y.T).numpy()
    expected = unbiased(of_x, of_y) / np.sqrt(unbiased(of_x, of_x) * unbiased(of_y, of_y))
    assert asc.cka(x, y).item() == pytest.approx(expected, abs=1e-10)


def test_points_that_agree_but_for_one_have_no_debiased_estimate():
    # Σ over quadruples of different points is exactly 0, whatever the other representation
    for n in (4, 5, 8, 20):
        outlier = torch.full((n, 3), 0.1, dtype=torch.float64)
        outlier[0] += torch.tensor([1.0, 2.0, 0.3], dtype=torch.float64)
        other = torch.randn(n, 4, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
        assert asc.cka(outlier, other).isnan()
        assert asc.cka(outlier, outlier).isnan()
        assert asc.cka(other, outlier, debiased=False).isfinite()


@pytest.mark.parametrize("size", [1, 2**10, 2**20])
def test_a_point_far_out_costs_no_digits(size):
    # massive activations: one coordinate of one token, a million times the others
    draw = torch.Generator().manual_seed(0)
    x, y = (torch.randint(-8, 9, (6, 3), generator=draw) for _ in range(2))
    x[0, 0], y[0, 1] = size, size

    def kernel(points):
        return [
            [Fraction(sum(a * b for a, b in zip(row, other, strict=True))) for other in points]
            for row in points
        ]

    def hsic(first, other, n=6):
        sums = [[sum(row) - row[i] for i, row in enumerate(gram)] for gram in (first, other)]
        pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
        products = sum(first[i][j] * other[i][j] for i, j in pairs)
        rows = sum(a * b for a, b in zip(*sums, strict=True))
        return products + sum(sums[0]) * sum(sums[1]) / ((n - 1) * (n - 2)) - 2 * rows / (n - 2)

    k, other = kernel(x.tolist()), kernel(y.tolist())
    expected = float(hsic(k, other)) / math.sqrt(hsic(k, k) * hsic(other, other))
    assert asc.cka(x.double(), y.double()).item() == pytest.approx(expected, rel=1e-9)


def test_independent_points_of_many_dimensions():
    x, y = drawn(40, 400), drawn(40, 400, seed=1)
    assert abs(asc.cka(x, y).item()) < 0.2
    assert asc.cka(x, y, debiased=False) > 0.8


def test_neighbours_are_those_of_a_loop():
    x, y = drawn(2, 12, 3), drawn(2, 12, 5, seed=1)
    for k in (1, 4, 11):
        result = asc.neighbourhood_overlap(x, y, k)
        for b in range(2):
            shared = 0
            for i in range(12):
                sets = []
                for points in (x[b].numpy(), y[b].numpy()):
                    apart = [(np.linalg.norm(points[i] - points[j]), j) for j in range(12) if j != i]
                    sets.append({j for _, j in sorted(apart)[:k]})
                shared += len(sets[0] & sets[1])
            assert result[b].item() == pytest.approx(shared / (12 * k))
    assert asc.neighbourhood_overlap(x, x, 3).tolist() == [1, 1]


def test_independent_representations_share_as_many_as_chance_gives():
    x, y = drawn(300, 10), drawn(300, 10, seed=1)
    assert asc.neighbourhood_overlap(x, y, 30).item() == pytest.approx(30 / 299, abs=0.01)


def test_ties_go_by_index():
    line = torch.zeros(4, 1)
    assert asc.neighbourhood_overlap(line, line, 1) == 1


def test_what_does_not_vary_or_is_not_finite():
    x = drawn(6, 3)
    assert asc.cka(x, torch.ones(6, 2)).isnan()
    broken = x.clone()
    broken[0, 0] = torch.nan
    for call in (lambda: asc.cka(x, broken), lambda: asc.neighbourhood_overlap(broken, x, 2)):
        with pytest.warns(asc.errors.NonFiniteWarning, match="1 of 1 clouds hold NaN or infinite entries"):
            assert call().isnan()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: asc.cka(drawn(6, 3), drawn(5, 3)),
            r"x and y must hold the same points, got shapes \(6, 3\) and",
        ),
        (lambda: asc.cka(drawn(3, 3), drawn(3, 3)), "the debiased estimate needs at least 4 points, got 3"),
        (
            lambda: asc.neighbourhood_overlap(drawn(6, 3), drawn(6, 3), 6),
            "k must be at most n - 1 = 5, got 6",
        ),
        (lambda: asc.neighbourhood_overlap(drawn(6, 3), drawn(6, 3), 0), "k must be at least 1, got 0"),
    ],
)
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
