# SPDX-License-Identifier: MIT
"""position_share against the double sum over pairs of texts, simulated shares and laws."""

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.metrics.positions.position_share import PositionMoments


def states(texts, n=12, d=5, between=0.5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(texts, n, d, generator=generator, dtype=torch.float64)
    fixed = torch.randn(n, d, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    return noise + between * fixed + 3 * torch.randn(texts, 1, d, generator=generator, dtype=torch.float64)


def slow_share(x, positions):
    x = x[:, positions].numpy()
    texts, p, _ = x.shape
    y = x - x.mean(1, keepdims=True)
    between = common = 0.0
    for t in range(texts):
        for u in range(texts):
            if t != u:
                between += (y[t] * y[u]).sum() / p
                common += x[t].mean(0) @ x[u].mean(0)
    pairs = texts * (texts - 1)
    return between / pairs / ((x**2).sum() / (texts * p) - common / pairs)


def test_it_is_the_double_sum_over_texts():
    x = states(7)
    np.testing.assert_allclose(asc.position_share(x), slow_share(x, range(1, 6)), rtol=1e-12)
    chosen = [0, 3, 11]
    np.testing.assert_allclose(asc.position_share(x, positions=chosen), slow_share(x, chosen), rtol=1e-12)
    layers = torch.stack([x, 2 * x, states(7, seed=4)])
    result = asc.position_share(layers)
    assert result.shape == (3,)
    np.testing.assert_allclose(result[0], result[1], rtol=1e-12)


def test_it_is_unbiased_where_the_plain_share_is_not():
    fixed = 0.3 * torch.randn(12, 5, generator=torch.Generator().manual_seed(99), dtype=torch.float64)[1:6]
    truth_between = float(((fixed - fixed.mean(0)) ** 2).sum(-1).mean())
    numerators, plains = [], []
    for seed in range(40):
        x = states(8, between=0.3, seed=seed)[:, 1:6]
        y = x - x.mean(1, keepdim=True)
        plains.append(float((y.mean(0) ** 2).sum(-1).mean()))
        moments = PositionMoments()
        moments.add(x, positions=range(5))
        centred = ((moments.sum - moments.sum.mean(0)) ** 2).sum()
        numerators.append(float((centred - moments.squares + moments.centre) / (8 * 7 * 5)))
    assert abs(np.mean(numerators) - truth_between) < 4 * np.std(numerators) / 40**0.5
    assert np.mean(plains) - truth_between > 4 * np.std(plains) / 40**0.5


def test_streams_merge_and_other_batches_give_the_same_bits():
    x = states(9)
    moments_of_all = PositionMoments()
    moments_of_all.add(x)
    parts = PositionMoments()
    for start in range(0, 9, 2):
        parts.add(x[start : start + 2])
    for name, values in parts.state().items():
        np.testing.assert_array_equal(values, moments_of_all.state()[name])
    first, two = PositionMoments(), PositionMoments()
    first.add(x[:4])
    two.add(x[4:])
    first.merge(two)
    again = PositionMoments.from_state({name: v.numpy() for name, v in first.state().items()})
    np.testing.assert_allclose(asc.position_share(again), asc.position_share(x), rtol=1e-12)


def test_degenerate_states():
    assert asc.position_share(states(1)).isnan()
    assert asc.position_share(torch.ones(4, 8, 3)).isnan()
    for missing in (torch.nan, torch.inf, -torch.inf):
        x = states(5)
        x[2, 3, 1] = missing
        moments = PositionMoments()
        moments.add(x)
        assert (moments.count, moments.left_out) == (4, 1)
        np.testing.assert_array_equal(asc.position_share(moments), asc.position_share(x[[0, 1, 3, 4]]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: asc.position_share(torch.rand(3, 4)), r"\[..., texts, n, D\], got \(3, 4\)"),
        (lambda: asc.position_share(torch.rand(2, 4, 3)), r"at least 2 positions are needed, got \[1\]"),
        (lambda: asc.position_share(torch.rand(2, 4, 3), positions=[1, 4]), r"n - 1 = 3, got 4"),
        (lambda: PositionMoments().add(torch.rand(4, 3)), r"\[texts, n, D\], got \(4, 3\)"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
