# SPDX-License-Identifier: MIT
"""softmax_harmonics against mpmath and NumPy's transform, harmonic_distortion against Fourier series."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnscope as asc


@pytest.mark.parametrize("strength", [-3.0, 0.0, 0.3, 2.0, 30.0, 900.0])
def test_softmax_harmonics_are_bessel_functions(strength):
    found = asc.softmax_harmonics(strength, 6)
    expected = [float(mpmath.besseli(n, strength) / mpmath.besseli(0, strength)) for n in range(7)]
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-15)


@settings(max_examples=40)
@given(strength=st.floats(0, 12))
def test_they_are_the_transform_of_a_softmax_over_one_turn(strength):
    """exp(r cos x) = Σ I_n(r) e^{inx}: the Fourier coefficients of attention over a full turn."""
    n = 256
    weights = torch.softmax(strength * torch.cos(2 * math.pi * torch.arange(n, dtype=torch.float64) / n), 0)
    coefficients = np.fft.fft(weights.numpy()).real
    np.testing.assert_allclose(coefficients[:9], asc.softmax_harmonics(strength, 8), atol=1e-12)


def test_relu_squares_and_activations_with_a_linear_odd_part():
    tone = torch.cos(0.37 * torch.arange(4096, dtype=torch.float64))
    relu = asc.harmonic_distortion(tone.relu(), 0.37, 6)
    series = np.array([2 / (3 * math.pi), 0, 2 / (15 * math.pi), 0, 2 / (35 * math.pi)]) / 0.5
    np.testing.assert_allclose(relu, series**2, atol=1e-5)
    cubic = asc.harmonic_distortion(tone**3, 0.37)  # cos³ = (3 cos x + cos 3x)/4
    np.testing.assert_allclose(cubic, [0, 1 / 9, 0], atol=1e-9)
    for activation in (torch.nn.functional.silu, torch.nn.functional.gelu, torch.relu):
        odd = asc.harmonic_distortion(activation(3 * tone), 0.37, 5)[[1, 3]]
        assert (odd < 1e-8).all(), "x·g(x) with g(x) + g(−x) = 1 has an odd part of x/2"
    assert asc.harmonic_distortion(torch.tanh(3 * tone), 0.37, 5)[1] > 1e-3


def test_a_rotation_has_none_and_frequencies_broadcast():
    theta = torch.tensor([0.2, 0.9], dtype=torch.float64)
    position = torch.arange(512, dtype=torch.float64)
    both = torch.cos(theta[:, None] * position + 0.4)
    assert (asc.harmonic_distortion(both, theta) < 1e-7).all()
    alone = asc.harmonic_distortion(both[1].relu(), 0.9)
    np.testing.assert_array_equal(asc.harmonic_distortion(both.relu(), theta)[1], alone)
    assert asc.harmonic_distortion(torch.ones(512), 0.2).isnan().all()


def test_neither_phase_nor_size_matters():
    theta = 2 * math.pi * 40 / 1000
    position = torch.arange(1000, dtype=torch.float64) * theta
    wanted = [(4 / (3 * math.pi)) ** 2, 0, (4 / (15 * math.pi)) ** 2]
    for phase in (0.0, 0.7, 1.5, 2.9):
        for size in (1e-140, 1.0, 1e140):
            found = asc.harmonic_distortion(size * torch.cos(position + phase).relu(), theta)
            np.testing.assert_allclose(found, wanted, atol=2e-3)
    # Each signal is judged by its own size, and nothing at θ is no base to divide by.
    other = torch.stack([torch.cos(position), 1e-9 * torch.cos(position), torch.cos(2 * position)])
    assert asc.harmonic_distortion(other, theta).isnan().all(-1).tolist() == [False, False, True]
    assert asc.harmonic_distortion(torch.zeros(1000), theta).isnan().all()
    beside = torch.stack([1e20 * torch.cos(position), torch.cos(position).relu()])
    np.testing.assert_allclose(asc.harmonic_distortion(beside, theta)[1], wanted, atol=2e-3)
    assert asc.softmax_harmonics(1.0, 0).tolist() == [1.0]


def test_two_cycles_and_one_harmonic_are_the_least():
    """Tones of whole cycles, two and more apart, do not see each other through a Hann window."""
    theta = 4 * math.pi / 64
    x = torch.arange(64, dtype=torch.float64) * theta
    both = torch.cos(x) + 0.5 * torch.cos(4 * x)
    (second,) = asc.harmonic_distortion(torch.cos(x) + 0.5 * torch.cos(2 * x), theta, 2).tolist()
    assert second == pytest.approx(0.25, rel=1e-12)
    assert asc.harmonic_distortion(both, theta)[2].item() == pytest.approx(0.25, rel=1e-12)
    slower = torch.tensor([theta, 0.99 * theta], dtype=torch.float64)
    with pytest.raises(
        ValueError, match=f"^harmonic_distortion: .* 64 positions of {slower[1].item()} radians$"
    ):
        asc.harmonic_distortion(both.expand(2, 64), slower)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: asc.harmonic_distortion(torch.ones(10), 0.1), "two cycles of every theta, got 10 positions"),
        (
            lambda: asc.harmonic_distortion(torch.ones(100), 1.0, 1),
            "^harmonic_distortion: orders must be a whole",
        ),
        (
            lambda: asc.harmonic_distortion(torch.ones(9), torch.tensor(True)),
            "theta must be real, got torch.bool",
        ),
        (
            lambda: asc.harmonic_distortion(torch.ones(9), torch.tensor(2 + 1j)),
            "theta must be real, got torch.c",
        ),
        (lambda: asc.harmonic_distortion(torch.tensor(1.0), 1.0), "at least one dimension"),
        (lambda: asc.softmax_harmonics(math.inf, 2), "strength must be a finite number, got inf"),
        (lambda: asc.softmax_harmonics(1.0, -1), "orders must be a whole number of at least 0, got -1"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
