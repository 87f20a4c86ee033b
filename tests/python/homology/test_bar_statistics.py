# SPDX-License-Identifier: MIT
"""Statistics of bars: a ring by hand, loops over bars, ties, and what is refused."""

import numpy as np
import pytest
import torch

import attnscope as asc


def maps(*shape, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=draw, dtype=torch.float64).softmax(-1)


def ring(weight=0.5):
    result = torch.zeros(4, 4, dtype=torch.float64)
    result[range(4), [1, 2, 3, 0]] = weight
    return result


def test_the_ring_of_four_by_hand():
    result = asc.bar_statistics(asc.persistence(ring()), [0.25, 0.5, 1.0])
    assert result.deviation.tolist() == [0, 0]
    assert result.longest_birth.tolist() == [0, 0.5]
    assert result.longest_death.tolist() == [0.5, 1]
    assert result.born.tolist() == [[3, 0], [3, 1], [3, 1]]
    assert result.died.tolist() == [[3, 1], [3, 1], [0, 1]]


def test_every_field_is_that_of_a_loop_over_bars():
    levels = (0.1, 0.5, 0.9, 0.95)
    bars = asc.persistence(maps(3, 2, 14, 14))
    result = asc.bar_statistics(bars, levels)
    for index in np.ndindex(3, 2):
        for dimension, ends in enumerate(bars[index]):
            finite = ends[np.isfinite(ends[:, 1])]
            lengths = finite[:, 1] - finite[:, 0]
            fields = [float(field[(*index, dimension)]) for field in result[:3]]
            if len(finite):
                longest = finite[np.argmax(lengths)]
                np.testing.assert_allclose(fields, [lengths.std(), *longest], rtol=0, atol=1e-14)
            else:
                assert np.isnan(fields).all()
            for place, level in enumerate(levels):
                assert result.born[(*index, place, dimension)] == (finite[:, 0] <= level).sum()
                assert result.died[(*index, place, dimension)] == (finite[:, 1] >= level).sum()


def test_of_equal_bars_the_first_is_the_longest():
    """Two rings at different scales, of one length of loop each."""
    two_rings = torch.zeros(8, 8, dtype=torch.float64)
    two_rings[:4, :4], two_rings[4:, 4:] = ring(0.75) + 0.5 * torch.eye(4).roll(2, 0), ring(0.5)
    two_rings[4:, 4:] += 0.25 * torch.eye(4).roll(2, 0)
    bars = asc.persistence(two_rings)
    loops = bars[()][1]
    assert (loops[:, 1] - loops[:, 0]).tolist() == [0.25, 0.25]
    assert asc.bar_statistics(bars).longest_birth[1] == 0.25


def test_without_bars_and_of_maps_that_are_not_finite():
    single = asc.bar_statistics(asc.persistence(torch.ones(1, 1)))
    assert single.deviation.isnan().all()
    assert (single.born == 0).all()
    attention = maps(2, 6, 6)
    attention[0, 0, 0] = torch.nan
    with pytest.warns(RuntimeWarning, match="persistence: 1 of 2"):
        bars = asc.persistence(attention)
    result = asc.bar_statistics(bars)
    assert result.deviation[0].isnan().all()
    assert (result.born[0] == -1).all()
    assert (result.died[1] >= 0).all()


def test_it_shares_the_bars_of_other_metrics():
    measured = asc.measure(maps(3, 9, 9), ["bar_statistics", "total_persistence"])
    expected = asc.bar_statistics(asc.persistence(maps(3, 9, 9)))
    assert torch.equal(measured["bar_statistics"].longest_death, expected.longest_death)


@pytest.mark.parametrize("levels", [[], [float("nan")], [[0.1], [0.2]]])
def test_levels_that_are_none_are_named(levels):
    with pytest.raises(ValueError, match="bar_statistics: levels must be one or more numbers, got"):
        asc.bar_statistics(asc.persistence(ring()), levels)


def test_something_else_than_bars_is_named():
    with pytest.raises(
        TypeError, match="bar_statistics: barcodes must be the result of persistence, got Ten"
    ):
        asc.bar_statistics(ring())
