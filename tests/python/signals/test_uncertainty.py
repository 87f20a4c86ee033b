# SPDX-License-Identifier: MIT
"""spectral_uncertainty against NumPy's transform and numerical integrals; both bounds on every signal."""

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnscope as asc
from attnscope import devices
from strategies import attention_batch, attention_map, of_signal, signals

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def entropy(p):
    p = p[p > 0]
    return float(-(p * np.log(p)).sum())


def oracle(x, amplitude):
    """The six numbers of one signal: NumPy's FFT, and a fine sum over the circle for the variance."""
    p = x / x.sum()
    psi = np.sqrt(p) if amplitude == "root" else p / np.linalg.norm(p)
    t = np.arange(len(x))
    spread = psi**2
    variance = (t**2 * spread).sum() - (t * spread).sum() ** 2
    # c_k of ω² integrated exactly: Σ over pairs ψ_s ψ_t c_{s−t}
    lag = t[:, None] - t[None, :]
    with np.errstate(divide="ignore"):
        c = np.where(lag == 0, np.pi**2 / 3, 2.0 * (-1.0) ** lag / np.maximum(lag**2, 1))
    return [
        entropy(p),
        entropy(np.abs(np.fft.fft(psi, norm="ortho")) ** 2),
        math.log(len(x)),
        variance,
        psi @ c @ psi,
        (1 - ((-1.0) ** t @ psi) ** 2) ** 2 / 4,
    ]


@pytest.mark.parametrize("amplitude", ["root", "signal"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [32, 37, 61, 64])
def test_equals_numpy_for_every_row_size_and_dtype(n, dtype, amplitude):
    maps = attention_batch((6,), n, dtype, seed=n)
    result = torch.stack(asc.spectral_uncertainty(maps, amplitude=amplitude), -1).numpy()
    for index, map_of_batch in enumerate(maps):
        rows = signals(map_of_batch.double().numpy())
        for i in range(n):
            if i in rows:
                np.testing.assert_allclose(result[index, i], oracle(rows[i], amplitude), rtol=1e-9, atol=1e-9)
            else:
                assert np.isnan(result[index, i]).all()


@pytest.mark.parametrize("signal", ["rows", "last", "mean", "offset"])
@pytest.mark.parametrize("drop_first", [False, True])
def test_every_signal_equals_numpy(signal, drop_first):
    attention = attention_map(49, "sink", seed=3)
    options = {"signal": signal, "drop_first": drop_first, "min_keys": 20}
    result = asc.spectral_uncertainty(torch.tensor(attention), **options)
    values = torch.stack(result, -1).reshape(-1, 6).numpy()
    expected = signals(attention, **options)
    assert set(np.flatnonzero(np.isfinite(values[:, 0]))) == set(expected)
    for index, x in expected.items():
        np.testing.assert_allclose(values[index], oracle(x, "root"), rtol=1e-9, atol=1e-9)


def test_the_variance_of_frequency_is_the_integral_over_the_circle():
    x = signals(attention_map(40, "full", 1))[7]
    psi = np.sqrt(x)
    omega = (np.arange(40001) + 0.5) / 40001 * 2 * np.pi - np.pi
    power = np.abs(np.exp(-1j * np.outer(omega, np.arange(len(x)))) @ psi) ** 2
    result = asc.spectral_uncertainty(of_signal(x), signal="last", support="full")
    assert result.frequency_variance.item() == pytest.approx((omega**2 * power).mean(), rel=1e-6)


@settings(max_examples=150)
@given(
    n=st.integers(2, 70),
    seed=st.integers(0, 10**6),
    amplitude=st.sampled_from(["root", "signal"]),
    kind=st.sampled_from(["causal", "full", "sink", "local", "tied"]),
    drop_first=st.booleans(),
    sharpness=st.sampled_from([0.0, 1.0, 8.0]),
)
def test_both_bounds_hold_for_every_signal(n, seed, amplitude, kind, sharpness, drop_first):
    attention = torch.tensor(attention_map(n, kind, seed, sharpness))
    result = asc.spectral_uncertainty(attention, amplitude=amplitude, min_keys=2, drop_first=drop_first)
    is_defined = ~result.entropy_bound.isnan()
    entropies = result.position_entropy + result.spectral_entropy
    assert (entropies >= result.entropy_bound - 1e-9)[is_defined].all()
    product = result.position_variance * result.frequency_variance
    assert (product >= result.variance_bound * (1 - 1e-9) - 1e-12)[is_defined].all()
    assert (result.frequency_variance[is_defined] <= math.pi**2 + 1e-9).all()


def test_the_textbook_bound_fails_for_sequences_and_holds_for_wide_gaussians():
    """σ_t²σ_ω² >= 1/4 belongs to the real line: attention to one key has product 0."""
    impulse = asc.spectral_uncertainty(torch.eye(64).double(), signal="last", support="full")
    assert (impulse.position_variance * impulse.frequency_variance).item() == 0.0
    assert impulse.variance_bound.item() == pytest.approx(0, abs=1e-15)
    assert impulse.frequency_variance.item() == pytest.approx(math.pi**2 / 3, rel=1e-12)
    t = np.arange(201) - 100.0
    gauss = of_signal(np.exp(-(t**2) / (2 * 8.0**2)))  # ψ = √p is a Gaussian of deviation 8√2
    wide = asc.spectral_uncertainty(gauss, signal="last", support="full")
    assert (wide.position_variance * wide.frequency_variance).item() == pytest.approx(0.25, rel=1e-6)
    assert wide.variance_bound.item() == pytest.approx(0.25, rel=1e-6)


@pytest.mark.parametrize("n", [33, 37, 64, 97])  # 37 and 97 go through the chirp
def test_the_entropic_bound_is_reached_by_combs(n):
    """Uniform and one-hot attention, and equal keys at equal steps, are the states of least uncertainty."""
    combs = [np.eye(n)[n // 2], np.ones(n)]
    if n % 8 == 0:
        combs.append((np.arange(n) % 8 == 3).astype(float))
    for comb in combs:
        result = asc.spectral_uncertainty(of_signal(comb), signal="last", support="full")
        total = (result.position_entropy + result.spectral_entropy).item()
        assert total == pytest.approx(math.log(n), abs=1e-9)


def test_the_windowed_entropy_obeys_no_such_bound():
    """Why the bound is stated for the unitary transform: through a window and one-sided it is broken."""
    windowed = asc.power_spectrum(torch.full((64, 64), 1 / 64).double(), signal="last", detrend="none")
    impulse = asc.power_spectrum(torch.eye(64).double(), signal="last", support="full", window="none")
    assert windowed.entropy.item() * math.log(2) > 0  # uniform attention: above it
    assert impulse.entropy.item() * math.log(2) < math.log(64)  # one key: below it


def test_lengths_strides_and_a_non_finite_map():
    maps = attention_batch((3,), 40)
    cut = asc.spectral_uncertainty(maps, lengths=[40, 33, 12])
    single_result = asc.spectral_uncertainty(maps[1, :33, :33].clone())
    np.testing.assert_array_equal(cut.frequency_variance[1, :33], single_result.frequency_variance)
    assert cut.position_entropy[2].isnan().all()
    wide = torch.zeros(3, 80, 80, dtype=torch.float64)
    wide[:, ::2, ::2] = maps
    np.testing.assert_array_equal(
        asc.spectral_uncertainty(wide[:, ::2, ::2]).spectral_entropy,
        asc.spectral_uncertainty(maps).spectral_entropy,
    )
    maps[1, 0, 0] = torch.nan
    with pytest.warns(RuntimeWarning, match="spectral_uncertainty: 1 of 3 matrices"):
        result = asc.spectral_uncertainty(maps)
    assert result.entropy_bound[1].isnan().all()
    assert not result.entropy_bound[0, 31:].isnan().any()


@pytest.mark.parametrize("path", ["core", "torch"])
@pytest.mark.parametrize("amplitude", ["root", "signal"])
@pytest.mark.filterwarnings("ignore::attnscope.errors.NotAttentionWarning")
def test_a_signal_with_a_negative_entry_has_no_uncertainty(amplitude, path):
    attention = torch.tensor(attention_map(40, "full", 4))
    attention[5, 7] = -1e-3
    with devices.use("torch") if path == "torch" else nullcontext():
        result = asc.spectral_uncertainty(attention, amplitude=amplitude, support="full")
    for values in result:
        assert values.isnan().nonzero().flatten().tolist() == [5]


def test_position_entropy_is_attention_entropy():
    maps = attention_batch((2,), 40)
    result = asc.spectral_uncertainty(maps)
    np.testing.assert_allclose(
        result.position_entropy[:, 31:], asc.attention_entropy(maps)[:, 31:], rtol=1e-12
    )


@pytest.mark.parametrize(
    ("attention", "options", "message"),
    [
        (torch.rand(40, 40), {"amplitude": "square"}, r"amplitude must be one of 'root', 'signal'"),
        (torch.rand(40, 40), {"signal": "all"}, r"signal must be one of"),
        (torch.rand(4, 3), {}, "4 queries cannot stand at the last of 3 keys"),
    ],
)
def test_bad_arguments_are_named(attention, options, message):
    with pytest.raises(ValueError, match="spectral_uncertainty: .*" + message):
        asc.spectral_uncertainty(attention, **options)
