# SPDX-License-Identifier: MIT
"""Distances from random rows and effective ranks of lazy attention: intervals hold what the map has."""

import math

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.metrics.lazy import effective_rank, null_distance, quadrature
from lazy_oracle import random_vectors

DRAWS = 400
#: Tokens of maps of which the steps of Lanczos leave nothing open.
TOKENS = {"marchenko_pastur_deviation": 90, "effective_rank": 60}
FUNCTIONS = {
    "marchenko_pastur_deviation": null_distance,
    "effective_rank": effective_rank,
}


def kinds(n):
    """Return attention of several kinds: diffuse, sharp, with a sink, local and without a mask."""
    query, key = random_vectors(heads=1, rows=n, width=16)
    sink_query, sink_key = query + 1.0, key.clone()
    sink_key[0, 0] += 2.0
    zeros = torch.zeros_like(key)
    return {
        "diffuse": ((query, key), {}),
        "sharp": ((4 * query, key), {}),
        "sink": ((sink_query, sink_key), {}),
        "local": ((query, zeros), {"bias": torch.tensor([1.5])}),
        "full": ((2 * query, key), {"causal": False}),
    }


def lazy_of(kind, n, **options):
    vectors, of_kind = kinds(n)[kind]
    return asc.LazyAttention(*vectors, precision="exact", **of_kind, **options)


@pytest.fixture
def without_maps(monkeypatch):
    """Estimate small maps too, whose truth is at hand."""
    for module in FUNCTIONS.values():
        monkeypatch.setattr(module, "_DENSE_TOKENS", 0)


def covering(function, kind, draws):
    """Return the share of seeds whose interval holds the number of the map."""
    measure, lazy = getattr(asc, function), lazy_of(kind, TOKENS[function])
    exact = float(measure(lazy.dense()))
    results = [measure(lazy, seed=seed) for seed in range(draws)]
    return sum(float(result.low) <= exact <= float(result.high) for result in results) / draws


@pytest.mark.parametrize("kind", kinds(8))
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_small_map_is_exact(function, kind):
    lazy = lazy_of(kind, 200)
    measure = getattr(asc, function)
    result, expected = measure(lazy), float(measure(lazy.dense()))
    assert float(result.value) == pytest.approx(expected, abs=1e-9)
    assert float(result.low) <= expected <= float(result.high)


@pytest.mark.parametrize("kind", kinds(8))
@pytest.mark.parametrize("function", FUNCTIONS)
def test_intervals_hold_what_the_map_has(function, kind):
    """At 300 tokens the steps of Lanczos leave something open, which the intervals hold."""
    lazy = lazy_of(kind, 300)
    measure = getattr(asc, function)
    result, expected = measure(lazy), float(measure(lazy.dense()))
    assert float(result.low) <= expected <= float(result.high)
    assert float(result.value) == pytest.approx(expected, rel=0.2)
    assert float(result.high) - float(result.low) < 0.8 * expected


@pytest.mark.usefixtures("without_maps")
@pytest.mark.parametrize("kind", ["sharp", "full"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_intervals_cover_in_40_draws(function, kind):
    # of 40 draws of 95 % at least 34 cover in all but 3 of 1,000 cases
    assert covering(function, kind, 40) >= 34 / 40


@pytest.mark.slow
@pytest.mark.usefixtures("without_maps")
@pytest.mark.parametrize("kind", kinds(8))
@pytest.mark.parametrize("function", FUNCTIONS)
def test_intervals_cover_in_400_draws(function, kind):
    """The random vectors alone leave something open where the steps exhaust the space."""
    assert 0.93 <= covering(function, kind, DRAWS) <= 0.97


@pytest.mark.usefixtures("without_maps")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_padding_and_other_maps_change_nothing(function):
    query, key = random_vectors(heads=2, rows=80, width=16, sharpness=3.0)
    padded = asc.LazyAttention(query, key, lengths=torch.tensor([80, 50]), precision="exact")
    unpadded = asc.LazyAttention(query[1:, :50], key[1:, :50], precision="exact")
    measure = getattr(asc, function)
    for ours, theirs in zip(measure(padded, seed=1), measure(unpadded, seed=1), strict=True):
        np.testing.assert_allclose(ours[1], theirs[0], rtol=1e-9)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_map_with_nan_has_no_number(function):
    query, key = random_vectors(heads=2, rows=60)
    query[1, 4] = torch.nan
    with pytest.warns(asc._warn.NonFiniteWarning, match="1 of 2"):
        result = getattr(asc, function)(asc.LazyAttention(query, key))
    for field in result:
        assert bool(field[0].isfinite())
        assert bool(field[1].isnan())


@pytest.mark.usefixtures("without_maps")
def test_measure_gives_what_the_functions_give():
    lazy = lazy_of("sharp", 70)
    measured = asc.measure(lazy, [*FUNCTIONS, "stable_rank", "attention_entropy"])
    for function in FUNCTIONS:
        for ours, theirs in zip(measured[function], getattr(asc, function)(lazy), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.usefixtures("without_maps")
def test_closed_forms():
    """Even attention of causal queries varies in no row; of a near permutation all directions are equal."""
    n = 64
    zeros = torch.zeros(1, n, 4, dtype=torch.float64)
    with pytest.warns(asc._warn.UndefinedWarning, match="no row that varies"):
        assert bool(asc.marchenko_pastur_deviation(asc.LazyAttention(zeros, zeros)).value.isnan())
    turned = torch.eye(n, dtype=torch.float64)[None]
    permutation = asc.LazyAttention(turned.roll(1, 1), turned, scaling=800.0, causal=False)
    ranks = asc.effective_rank(permutation)
    assert float(ranks.value) == pytest.approx(n, rel=1e-9)
    # X has n − 1 eigenvalues n/(n − 1) and one of 0: the law of aspect 1 is the farther side of the step
    law = asc._core.null_law_cdf([n / (n - 1)], 1.0, False)[0]
    expected = max(1 - law, law - 1 / n)
    result = asc.marchenko_pastur_deviation(permutation)
    assert float(result.low) <= expected <= float(result.high)
    assert float(result.value) == pytest.approx(expected, abs=0.02)


def test_a_quadrature_of_all_steps_is_the_spectrum():
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(12, 12, generator=generator, dtype=torch.float64)
    matrix = root @ root.mT
    start = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    measures = quadrature.gauss_quadrature(quadrature.run_lanczos(lambda x: matrix @ x, start, 12))
    values, vectors = np.linalg.eigh(matrix.numpy())
    shares = (vectors.T @ (start / start.norm(dim=0)).numpy()) ** 2
    for column in range(3):
        np.testing.assert_allclose(measures.nodes[column], values, atol=1e-9)
        np.testing.assert_allclose(measures.weights[column], shares[:, column], atol=1e-9)


def test_rules_of_few_steps_enclose_the_trace_of_a_root():
    values = torch.linspace(0, 3, 40, dtype=torch.float64)
    start = torch.ones(40, 1, dtype=torch.float64)
    runs = quadrature.run_lanczos(lambda x: values[:, None] * x, start, 6)
    gauss, radau = (
        float((rule.weights * rule.nodes.clamp(min=0).sqrt()).sum())
        for rule in (quadrature.gauss_quadrature(runs), quadrature.radau_quadrature(runs))
    )
    truth = float(values.sqrt().mean())
    assert radau < truth < gauss
    assert math.isclose(radau, gauss, rel_tol=0.05)


@pytest.mark.parametrize("spectrum", ["eigen", "laplacian"])
@pytest.mark.parametrize("options", [{}, {"causal": False}, {"window": 20}], ids=["causal", "full", "window"])
def test_other_participation_ratios_are_exact(options, spectrum):
    query, key = random_vectors(heads=2, rows=150, sharpness=2.0)
    lazy = asc.LazyAttention(query, key, precision="exact", **options)
    if spectrum == "eigen" and not options.get("causal", True):
        with pytest.raises(ValueError, match="known where it is causal"):
            asc.participation_ratio(lazy, spectrum=spectrum)
        return
    ours = asc.participation_ratio(lazy, spectrum=spectrum)
    np.testing.assert_allclose(ours, asc.participation_ratio(lazy.dense(), spectrum=spectrum), rtol=1e-10)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda lazy: asc.marchenko_pastur(lazy), TypeError, "ks alone"),
        (lambda lazy: asc.marchenko_pastur_deviation(lazy, null="permutation"), ValueError, "'permutation'"),
        (lambda lazy: asc.marchenko_pastur_deviation(lazy, support="full"), ValueError, "'auto', got 'full'"),
        (lambda lazy: asc.effective_rank(lazy, seed=-1), ValueError, "seed must"),
    ],
)
def test_what_is_not_known_is_refused(call, error, words):
    with pytest.raises(error, match=words):
        call(lazy_of("sharp", 40))


def test_a_window_has_no_law():
    lazy = asc.LazyAttention(*random_vectors(rows=40), window=10)
    with pytest.raises(ValueError, match="got 'window 10'"):
        asc.marchenko_pastur_deviation(lazy)
