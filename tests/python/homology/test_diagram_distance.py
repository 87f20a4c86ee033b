# SPDX-License-Identifier: MIT
"""Distances of diagrams: rings by hand, gudhi and persim, and what is refused."""

import math

import gudhi
import numpy as np
import persim
import pytest
import torch
from scipy.optimize import linear_sum_assignment

import attnscope as asc


def maps(*shape, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(*shape, generator=draw, dtype=torch.float64)).softmax(-1)


def ring(weight):
    result = torch.zeros(4, 4, dtype=torch.float64)
    result[range(4), [1, 2, 3, 0]] = weight
    return result


def test_two_rings_by_hand():
    near, far = asc.persistence(ring(0.5)), asc.persistence(ring(0.25))
    assert asc.diagram_distance(near, far).tolist() == [0.75, 0.25]
    assert asc.diagram_distance(near, far, order=2).tolist() == [math.sqrt(3 / 16), 0.25]
    assert asc.diagram_distance(near, far, order=math.inf).tolist() == [0.25, 0.25]
    # the loop alone goes to the diagonal, at half its length
    none = asc.persistence(torch.full((4, 4), 0.5))
    assert asc.diagram_distance(near, none)[1] == 0.25


@pytest.mark.parametrize("size", [1.0, 1e-12, 1e9])
@pytest.mark.parametrize("order", [2, 30, 600, 1e6])
def test_high_orders_come_near_the_largest_cost(order, size):
    square = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)
    near, far = (asc.cloud_persistence(scale * size * square, metric="euclidean") for scale in (1.0, 1.5))
    # three bars of length 1 against three of length 1.5
    result = asc.diagram_distance(near, far, order=order)[0].item()
    assert result == pytest.approx(0.5 * size * 3 ** (1 / order), rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_gudhi_and_persim_agree(seed):
    first, second = asc.persistence(maps(13, 13, seed=seed)), asc.persistence(maps(12, 12, seed=seed + 10))
    for dimension in (0, 1):
        a, b = (bars[()][dimension] for bars in (first, second))
        a, b = (bars[np.isfinite(bars[:, 1])] for bars in (a, b))
        bottleneck = asc.diagram_distance(first, second, order=math.inf)[dimension].item()
        assert bottleneck == pytest.approx(gudhi.bottleneck_distance(a, b), abs=1e-9)
        # with the largest norm, as ours; persim measures to the diagonal with the Euclidean norm
        cost = np.block(
            [
                [np.abs(a[:, None] - b[None]).max(-1), np.tile((a[:, 1] - a[:, 0])[:, None] / 2, len(a))],
                [np.tile((b[:, 1] - b[:, 0])[None] / 2, (len(b), 1)), np.zeros((len(b), len(a)))],
            ]
        )
        rows, columns = linear_sum_assignment(cost)
        ours = asc.diagram_distance(first, second)[dimension].item()
        assert ours == pytest.approx(cost[rows, columns].sum(), abs=1e-12)
        assert persim.bottleneck(a, b) == pytest.approx(bottleneck, abs=1e-6)


def test_it_is_a_metric_over_a_batch():
    first, second = asc.persistence(maps(2, 3, 9, 9)), asc.persistence(maps(2, 3, 9, 9, seed=1))
    forth, back = asc.diagram_distance(first, second), asc.diagram_distance(second, first)
    torch.testing.assert_close(forth, back, rtol=0, atol=1e-12)
    assert (asc.diagram_distance(first, first) == 0).all()
    pair = (asc.persistence(maps(2, 3, 9, 9, seed=seed)[1, 2]) for seed in (0, 1))
    single = asc.diagram_distance(*pair)
    assert torch.equal(forth[1, 2], single)


def test_maps_that_are_not_finite_are_nan():
    attention = maps(2, 6, 6)
    attention[0, 0, 0] = torch.nan
    with pytest.warns(RuntimeWarning, match="1 of 2"):
        bars = asc.persistence(attention)
    result = asc.diagram_distance(bars, asc.persistence(maps(2, 6, 6)))
    assert result.isnan().all(-1).tolist() == [True, False]


def test_bad_input_is_named():
    bars, others = asc.persistence(maps(2, 6, 6)), asc.persistence(maps(3, 6, 6))
    with pytest.raises(ValueError, match=r"barcodes must be of as many maps, got shapes \(2,\) and \(3,\)"):
        asc.diagram_distance(bars, others)
    with pytest.raises(ValueError, match=r"order must be at least 1, got 0.5"):
        asc.diagram_distance(bars, bars, order=0.5)
    with pytest.raises(TypeError, match="b must be the result of persistence, got Tensor"):
        asc.diagram_distance(bars, maps(2, 6, 6))
