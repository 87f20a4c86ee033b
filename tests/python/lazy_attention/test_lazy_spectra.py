# SPDX-License-Identifier: MIT
"""Singular values, ranks and traces of lazy attention: bounds hold, intervals cover, values are near."""

import numpy as np
import pytest
import torch

import attnscope as asc
from lazy_oracle import random_vectors

N = 150
DRAWS = 400


def kinds(n=N):
    """Return attention of several kinds: diffuse, sharp, with a sink, uniform, local and without a mask."""
    query, key = random_vectors(heads=1, rows=n, width=16)
    sink_query, sink_key = query + 1.0, key.clone()
    sink_key[0, 0] += 2.0
    slopes = {"bias": torch.tensor([1.5])}
    zeros = torch.zeros_like(key)
    return {
        "diffuse": ((query, key), {}),
        "sharp": ((4 * query, key), {}),
        "sink": ((sink_query, sink_key), {}),
        "uniform": ((query, zeros), {}),
        "local": ((query, zeros), slopes),
        "full": ((2 * query, key), {"causal": False}),
    }


def lazy_of(kind, n=N, **options):
    vectors, of_kind = kinds(n)[kind]
    return asc.LazyAttention(*vectors, **of_kind, **options)


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize("n", [1, 2, 40, N])
def test_bounds_of_singular_values_hold(n, kind, precision):
    lazy = lazy_of(kind, n, precision=precision)
    maps = lazy_of(kind, n, precision="exact").dense()
    result = asc.singular_values(lazy, 5 if n >= 5 else None)
    expected = asc.singular_values(maps)[..., :5]
    assert result.value.shape == expected.shape
    slack = 1e-12 if precision == "exact" else 1e-5
    np.testing.assert_allclose(result.value[..., 0], expected[..., 0], rtol=1e-3)
    assert bool((result.low <= expected + slack).all())
    assert bool((expected <= result.high + slack).all())
    energy = maps.square().sum((-1, -2))
    np.testing.assert_allclose(result.energy, energy, rtol=slack)


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("n", [5, 8, 33, 130])
@pytest.mark.parametrize("width", [1, 2, 17])
def test_bounds_hold_values_far_below_the_largest(width, n, precision):
    # scores of few dimensions make maps of few directions: the other values are rounding of the largest
    vectors = [states.double() for states in random_vectors(heads=4, rows=n, width=width)]
    options = {"causal": False, "precision": precision}
    result = asc.singular_values(asc.LazyAttention(*vectors, **options))
    exact = torch.linalg.svdvals(torch.softmax(vectors[0] @ vectors[1].mT * width**-0.5, -1))
    exact = exact[..., : result.value.shape[-1]]
    rounding = n * 2.0**-52 * exact[..., :1]
    assert bool((result.low <= exact + rounding).all())
    assert bool((exact <= result.high + rounding).all())


@pytest.mark.parametrize("kind", kinds())
def test_ranks_and_gaps_of_bounds(kind):
    lazy = lazy_of(kind, precision="exact")
    maps = lazy.dense()
    for function in (asc.stable_rank, asc.spectral_gap, asc.spectral_ratio):
        result, expected = function(lazy), function(maps)
        assert bool((result.low <= expected + 1e-9).all())
        assert bool((expected <= result.high + 1e-9).all())
        np.testing.assert_allclose(result.value, expected, rtol=1e-3, atol=1e-3)
        measured = asc.measure(lazy, function.__name__)[function.__name__]
        assert torch.equal(measured.value, result.value)


def test_the_largest_singular_value_of_a_sink_is_certain():
    """The bound of the largest is within 1e-6 where one key has nearly everything."""
    result = asc.singular_values(lazy_of("sink", precision="exact"))
    assert float((result.high - result.low)[0, 0] / result.value[0, 0]) < 1e-6


def test_padding_changes_no_singular_value():
    query, key = random_vectors(heads=2, rows=120, width=16, sharpness=3.0)
    lengths = torch.tensor([120, 50])
    padded = asc.LazyAttention(query, key, lengths=lengths, precision="exact")
    unpadded = asc.LazyAttention(query[1:, :50], key[1:, :50], precision="exact")
    for function in (asc.singular_values, asc.participation_ratio):
        of_padded, expected = function(padded), function(unpadded)
        for field in ("value", "low", "high"):
            ours = getattr(of_padded, field)[1]
            np.testing.assert_allclose(ours, getattr(expected, field)[0], rtol=5e-2)
    maps = unpadded.dense()
    exact = asc.participation_ratio(maps)
    estimate = asc.participation_ratio(padded)
    assert float(estimate.low[1]) <= float(exact) <= float(estimate.high[1])


def test_a_map_with_nan_has_none():
    query, key = random_vectors(heads=2, rows=60)
    query[1, 4] = torch.nan
    lazy = asc.LazyAttention(query, key)
    for function in (asc.singular_values, asc.stable_rank, asc.participation_ratio):
        with pytest.warns(asc._warn.NonFiniteWarning, match="1 of 2"):
            result = function(lazy)
        of_first, of_second = (result.value[head].reshape(-1) for head in range(2))
        assert bool(of_first.isfinite().all())
        assert bool(of_second.isnan().all())


def covering(kind, draws):
    """Return the share of seeds whose interval of the participation ratio holds the exact one."""
    lazy = lazy_of(kind, precision="exact")
    exact = float(asc.participation_ratio(lazy.dense()))
    inside = 0
    for seed in range(draws):
        result = asc.participation_ratio(lazy, seed=seed)
        inside += float(result.low) <= exact <= float(result.high)
    return inside / draws


@pytest.mark.parametrize("kind", ["sharp", "local", "full"])
def test_intervals_of_the_participation_ratio_cover_in_40_draws(kind):
    # of 40 draws of 95 % at least 34 cover in all but 3 of 1,000 cases
    assert covering(kind, 40) >= 34 / 40


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["diffuse", "sharp", "sink", "local", "full"])
def test_intervals_of_the_participation_ratio_cover_in_400_draws(kind):
    assert 0.93 <= covering(kind, DRAWS) <= 0.97


def test_a_seed_gives_the_same_and_another_seed_something_else():
    lazy = lazy_of("sharp")
    first, again, other = (asc.participation_ratio(lazy, seed=seed).value for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda lazy: asc.singular_values(lazy, 0), ValueError, "between 1 and 150, got 0"),
        (lambda lazy: asc.singular_values(lazy.dense(), 151), ValueError, "between 1 and 150, got 151"),
        (lambda lazy: asc.participation_ratio(lazy, spectrum="other"), ValueError, "got 'other'"),
        (lambda lazy: asc.participation_ratio(lazy, seed=-1), ValueError, "seed must"),
    ],
)
def test_bad_arguments(call, error, words):
    with pytest.raises(error, match=words):
        call(lazy_of("sharp"))


def test_k_cuts_the_values_of_a_map():
    maps = lazy_of("sharp", 20).dense()
    assert torch.equal(asc.singular_values(maps, 3), asc.singular_values(maps)[..., :3])


def test_the_laplacian_of_a_map_on_its_diagonal_is_not_rounding():
    # tokens that see themselves alone have no edge; those that see little else have edges of 1e-13
    single_token = asc.LazyAttention(*random_vectors(rows=1), precision="exact")
    assert asc.participation_ratio(single_token, spectrum="laplacian").isnan().all()
    window = asc.LazyAttention(*random_vectors(rows=40), precision="exact", window=1)
    assert asc.participation_ratio(window, spectrum="laplacian").isnan().all()
    points = torch.linalg.qr(torch.randn(24, 24, generator=torch.Generator().manual_seed(4)).double()).Q
    points = points + 0.02 * torch.randn(24, 24, generator=torch.Generator().manual_seed(5))
    for causal in (True, False):
        lazy = asc.LazyAttention(points[None], points[None], scaling=30.0, causal=causal, precision="exact")
        maps = lazy.dense()
        assert maps.diagonal(dim1=-2, dim2=-1).min() > 1 - 1e-9
        expected = asc.participation_ratio(maps, spectrum="laplacian")
        np.testing.assert_allclose(asc.participation_ratio(lazy, spectrum="laplacian"), expected, rtol=1e-9)
