# SPDX-License-Identifier: MIT
"""wavelet_transform against PyWavelets and Parseval; morlet_scalogram against the direct sum and chirps."""

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
pywt = pytest.importorskip("pywt", reason="PyWavelets is the oracle")


def entropy(p):
    p = p[p > 0]
    return float(-(p * np.log2(p)).sum())


def oracle(x, levels):
    coefficients = pywt.wavedec(x, "db2", mode="periodization", level=levels)
    energies = np.array([(c**2).sum() for c in coefficients])
    shares = energies / energies.sum()
    within = [entropy(c**2 / e) if e > 0 else math.nan for c, e in zip(coefficients, energies, strict=True)]
    return shares, entropy(shares), within, coefficients


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [32, 33, 47, 64, 101])
def test_equals_pywavelets_for_every_row_size_and_dtype(n, dtype):
    maps = attention_batch((6,), n, dtype, seed=n)
    result = asc.wavelet_transform(maps)
    assert result.profile.shape == (6, 4, 0)
    assert result.energy.shape == (6, n, 4)  # level 3 for 32 keys and 4 taps, as pywt.dwt_max_level says
    assert pywt.dwt_max_level(32, "db2") == 3
    for index, map_of_batch in enumerate(maps):
        rows = signals(map_of_batch.double().numpy())
        for i in range(n):
            if i not in rows:
                assert result.energy[index, i].isnan().all()
                continue
            shares, between, within, _ = oracle(rows[i], 3)
            np.testing.assert_allclose(result.energy[index, i], shares, rtol=0, atol=1e-12)
            np.testing.assert_allclose(result.scale_entropy[index, i], between, rtol=0, atol=1e-12)
            # where a scale holds nothing but rounding its own entropy is rounding too
            held = shares > 1e-20
            np.testing.assert_allclose(
                result.position_entropy[index, i][held], np.array(within)[held], rtol=0, atol=1e-10
            )


@pytest.mark.parametrize("signal", ["last", "mean", "offset"])
@pytest.mark.parametrize("drop_first", [False, True])
@pytest.mark.parametrize("detrend", ["none", "mean"])
def test_coefficients_equal_pywavelets(signal, drop_first, detrend):
    attention = attention_map(75, "sink", seed=2)
    x = signals(attention, signal=signal, drop_first=drop_first)[0]
    x = x - x.mean() if detrend == "mean" else x
    result = asc.wavelet_transform(
        torch.tensor(attention), signal=signal, drop_first=drop_first, detrend=detrend, resample=11
    )
    _, _, _, coefficients = oracle(x, 3)
    for scale, c in enumerate(coefficients):
        expected = np.interp(np.linspace(0, 1, 11), np.linspace(0, 1, len(c)), c)
        np.testing.assert_allclose(result.profile[scale], expected, rtol=0, atol=1e-12)
    shares, *_ = oracle(x, 3)
    np.testing.assert_allclose(result.energy, shares, rtol=0, atol=1e-12)


def test_rows_average_their_profiles():
    attention = attention_map(40, "causal", seed=4)
    result = asc.wavelet_transform(torch.tensor(attention), resample=7)
    profiles = [
        [np.interp(np.linspace(0, 1, 7), np.linspace(0, 1, len(c)), c) for c in oracle(x, 3)[3]]
        for x in signals(attention).values()
    ]
    np.testing.assert_allclose(result.profile, np.mean(profiles, 0), rtol=0, atol=1e-12)


@settings(max_examples=60)
@given(n=st.integers(6, 90), seed=st.integers(0, 10**6), kind=st.sampled_from(["causal", "full", "sink"]))
def test_reconstruction_is_rounding_on_every_signal(n, seed, kind):
    """The published 1e-7 is float32's rounding: random rows give the same error as any others."""
    result = asc.wavelet_transform(torch.tensor(attention_map(n, kind, seed)), min_keys=6)
    is_defined = ~result.reconstruction_error.isnan()
    assert is_defined.any()
    assert (result.reconstruction_error[is_defined] < 1e-14).all()
    np.testing.assert_allclose(result.energy[is_defined].sum(-1), 1, atol=1e-12)
    scales = result.energy.shape[-1]
    assert (result.scale_entropy[is_defined] <= math.log2(scales) + 1e-12).all()


def test_parseval_on_whole_lengths():
    x = np.random.default_rng(1).random(64)
    coefficients = np.concatenate(oracle(x, 4)[3])
    result = asc.wavelet_transform(of_signal(x), signal="last", min_keys=64, levels=4, resample=0)
    assert (coefficients**2).sum() == pytest.approx((x**2).sum(), rel=1e-14)
    finest = (pywt.wavedec(x, "db2", "periodization", 4)[-1] ** 2).sum()
    assert result.energy[-1].item() == pytest.approx(finest / (x**2).sum(), rel=1e-12)


def test_two_vanishing_moments_and_an_impulse():
    t = np.arange(64.0)
    ramp = asc.wavelet_transform(of_signal(t), signal="last", levels=1)
    # a line has no detail but at the two places where the period wraps round, through an outer tap each
    outer = np.array([(1 - 3**0.5) ** 2, (1 + 3**0.5) ** 2]) / 8
    assert ramp.position_entropy[1].item() == pytest.approx(entropy(outer), abs=1e-12)
    impulse = np.zeros(64)
    impulse[33] = 1
    result = asc.wavelet_transform(of_signal(impulse), signal="last", levels=1)
    low = np.array([1 - 3**0.5, 3 - 3**0.5, 3 + 3**0.5, 1 + 3**0.5]) / (4 * 2**0.5)
    # key 33 is odd: it meets taps 1 and 3 of each filter
    assert result.energy[0].item() == pytest.approx(low[1] ** 2 + low[3] ** 2, abs=1e-14)


@pytest.mark.parametrize("omega", [5.0, 6.0, 100.0])
@pytest.mark.parametrize("signal", ["last", "mean", "offset"])
def test_scalogram_equals_the_direct_sum(signal, omega):
    attention = attention_map(45, "sink", seed=8)
    x = signals(attention, signal=signal, drop_first=True)[0]
    scales = [0.7, 2.0, 5.5, 40.0]
    result = asc.morlet_scalogram(
        torch.tensor(attention), scales, omega=omega, signal=signal, drop_first=True
    ).numpy()
    t = np.arange(len(x))
    for s, row in zip(scales, result, strict=True):
        z = (t[:, None] - t[None, :]) / s
        psi = np.pi**-0.25 * np.exp(1j * omega * z - z**2 / 2) / np.sqrt(s)
        np.testing.assert_allclose(row[: len(x)], np.abs(x @ psi.conj()) ** 2, rtol=1e-10, atol=1e-15)
        assert np.isnan(row[len(x) :]).all()


@pytest.mark.parametrize(("n", "largest"), [(12, 4.0), (16, 4.0), (45, 11.25)])
def test_scales_run_from_two_tokens_to_a_quarter_of_the_map(n, largest):
    attention = torch.tensor(attention_map(n, "sink", seed=8))
    result = asc.morlet_scalogram(attention, min_keys=2)
    assert result.shape == (24, n)
    options = {"min_keys": 2, "omega": 6.0, "signal": "last", "drop_first": False, "detrend": "none"}
    expected = asc.morlet_scalogram(attention, np.geomspace(2, largest, 24), **options)
    np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-18)


def test_the_ridge_follows_a_chirp():
    t = np.arange(256)
    rate = 0.2 / 256
    chirp = np.cos(2 * np.pi * (0.05 * t + 0.5 * rate * t**2))
    scales = np.geomspace(3, 24, 80)
    ridge = scales[asc.morlet_scalogram(of_signal(chirp), scales).numpy().argmax(0)]
    inside = slice(60, 200)
    frequency = 0.05 + rate * t
    # Torrence and Compo, table 1: the scale of the largest response
    expected = (6 + np.sqrt(2 + 36)) / (4 * np.pi * frequency)
    np.testing.assert_allclose(ridge[inside], expected[inside], rtol=0.06)


def test_a_tone_of_pywavelets_has_the_same_ridge():
    t = np.arange(200)
    tone = 1 + np.cos(2 * np.pi * t / 12.5)
    scales = np.geomspace(4, 40, 60)
    ours = asc.morlet_scalogram(of_signal(tone), scales, detrend="mean").numpy()[:, 100].argmax()
    theirs = np.abs(pywt.cwt(tone - tone.mean(), scales, "cmor2.0-0.954929658551372")[0])[:, 100].argmax()
    assert abs(int(ours) - int(theirs)) <= 1


def test_scale_sensitivity_is_one_minus_the_cosine():
    full_map, half = attention_map(80, "causal", 1), attention_map(40, "causal", 2)
    energies = [np.mean([oracle(x, 3)[0] for x in signals(a).values()], 0) for a in (full_map, half)]
    expected = 1 - energies[0] @ energies[1] / np.linalg.norm(energies[0]) / np.linalg.norm(energies[1])
    a, b = torch.tensor(full_map), torch.tensor(half)
    assert asc.scale_sensitivity(a, b).item() == pytest.approx(expected, abs=1e-12)
    profiles = [
        asc.wavelet_transform(attention, resample=32).profile.flatten().numpy() for attention in (a, b)
    ]
    cosine = profiles[0] @ profiles[1] / np.linalg.norm(profiles[0]) / np.linalg.norm(profiles[1])
    result = asc.scale_sensitivity(a, b, compare="coefficients")
    assert result.item() == pytest.approx(1 - cosine, abs=1e-12)
    assert asc.scale_sensitivity(a, a, compare="coefficients").item() == pytest.approx(0, abs=1e-12)
    assert asc.scale_sensitivity(a, b[:20, :20]).isnan()


@pytest.mark.parametrize("compare", ["energy", "coefficients"])
def test_scale_sensitivity_of_one_signal_a_map(compare):
    full_map, half = attention_map(80, "sink", 1), attention_map(40, "causal", 2)
    coefficients = [oracle(signals(a, signal="last")[0], 3)[3] for a in (full_map, half)]
    if compare == "energy":
        vectors = [np.array([(c**2).sum() for c in row]) for row in coefficients]
    else:
        at = np.linspace(0, 1, 32)
        vectors = [
            np.concatenate([np.interp(at, np.linspace(0, 1, len(c)), c) for c in row]) for row in coefficients
        ]
    expected = 1 - vectors[0] @ vectors[1] / np.linalg.norm(vectors[0]) / np.linalg.norm(vectors[1])
    a, b = torch.tensor(full_map), torch.tensor(half)
    result = asc.scale_sensitivity(a, b, compare=compare, signal="last")
    assert result.item() == pytest.approx(expected, abs=1e-12)
    # Of ragged maps each is cut to its own length; NaN behind it would reach what reads it.
    batch, prefixes = torch.stack([a, a.nan_to_num()]), torch.stack([b, b])
    batch[1, 50:] = batch[1, :, 50:] = prefixes[1, 33:] = prefixes[1, :, 33:] = torch.nan
    ragged = asc.scale_sensitivity(
        batch, prefixes, compare=compare, signal="last", lengths=[80, 50], prefix_lengths=[40, 33]
    )
    single_result = asc.scale_sensitivity(a[:50, :50], b[:33, :33], compare=compare, signal="last")
    np.testing.assert_allclose(ragged, [expected, single_result.item()], rtol=0, atol=1e-12)


@pytest.mark.parametrize("path", ["core", "torch"])
def test_a_profile_of_one_point_is_the_first_of_a_longer_one(path):
    maps = attention_batch((3,), 40, torch.float64)
    with devices.use("torch") if path == "torch" else nullcontext():
        first, profile = (asc.wavelet_transform(maps, resample=points).profile for points in (1, 9))
    np.testing.assert_allclose(first[..., 0], profile[..., 0], rtol=1e-12)


@pytest.mark.parametrize("path", ["core", "torch"])
@pytest.mark.parametrize("spread", [1.0, 1e-6, 1e-12])
def test_scale_sensitivity_of_small_details_is_that_of_large_ones(spread, path):
    maps, prefixes = (
        torch.from_numpy(attention_map(n, "full", seed)) - 1 / n for n, seed in ((80, 1), (40, 2))
    )
    options = {"compare": "coefficients", "support": "full", "detrend": "mean"}
    with devices.use("torch") if path == "torch" else nullcontext():
        expected = asc.scale_sensitivity(maps + 1, prefixes + 1, **options).item()
        result = asc.scale_sensitivity(maps * spread, prefixes * spread, **options).item()
    assert 0.01 < expected < 1.99
    assert result == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_and_lengths(dtype):
    maps = attention_batch((3,), 40, dtype)
    wide = torch.zeros(3, 80, 120, dtype=dtype)
    wide[:, ::2, ::3] = maps
    expected = asc.wavelet_transform(maps, resample=5)
    for actual, other in zip(asc.wavelet_transform(wide[:, ::2, ::3], resample=5), expected, strict=True):
        np.testing.assert_array_equal(actual, other)
    cut = asc.wavelet_transform(maps, lengths=[40, 36, 20], resample=5)
    single_result = asc.wavelet_transform(maps[1, :36, :36].clone(), resample=5)
    np.testing.assert_array_equal(cut.energy[1, :36], single_result.energy)
    np.testing.assert_array_equal(cut.profile[1], single_result.profile)
    assert cut.energy[2].isnan().all()
    assert cut.profile[2].isnan().all()
    power = asc.morlet_scalogram(maps, [3.0], lengths=[40, 36, 20])
    np.testing.assert_array_equal(power[1, :, :36], asc.morlet_scalogram(maps[1, :36, :36].clone(), [3.0]))
    assert power[1, :, 36:].isnan().all()


def test_a_non_finite_map_leaves_its_neighbours_alone():
    maps = attention_batch((3,), 36)
    maps[1, 35, 1] = torch.nan
    for call in (asc.wavelet_transform, lambda attention: (asc.morlet_scalogram(attention, [3.0]),)):
        with pytest.warns(RuntimeWarning, match="1 of 3 matrices"):
            result = call(maps)[0]
        assert result[1].isnan().all()
        np.testing.assert_array_equal(result[[0, 2]], call(maps[[0, 2]])[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda a: asc.wavelet_transform(a, levels=4),
            r"levels must lie between 1 and 3, which min_keys = 32",
        ),
        (lambda a: asc.wavelet_transform(a, levels=0), r"levels must lie between 1 and 3.*got 0"),
        (lambda a: asc.wavelet_transform(a, min_keys=5), r"signals of min_keys = 5 carry no level"),
        (lambda a: asc.wavelet_transform(a, resample=-1), r"resample must be a whole number"),
        (lambda a: asc.morlet_scalogram(a, [0.0]), r"scales must be positive numbers of tokens, got \[0.0\]"),
        (lambda a: asc.morlet_scalogram(a, []), r"scales must be positive"),
        (lambda a: asc.wavelet_transform(a, min_keys=5, levels=1), r"between 1 and 0, which min_keys = 5"),
        (lambda a: asc.morlet_scalogram(a, [2.0, math.inf]), r"scales must be positive.*got \[2.0, inf\]"),
        (lambda a: asc.morlet_scalogram(a, [2.0, -1.0]), r"scales must be positive.*got \[2.0, -1.0\]"),
        (lambda a: asc.morlet_scalogram(a, [1.0], omega=100.5), r"between 5 and 100, got 100.5"),
        (lambda a: asc.morlet_scalogram(a, [1.0], omega=2), r"omega must lie between 5 and 100, got 2"),
        (lambda a: asc.morlet_scalogram(a, [1.0], signal="rows"), r"one of 'last', 'mean', 'offset'"),
        (
            lambda a: asc.scale_sensitivity(a, a, compare="both"),
            r"one of 'energy', 'coefficients', got 'both'",
        ),
        (
            lambda a: asc.scale_sensitivity(a, a, compare="coefficients", resample=0),
            r"^scale_sensitivity: resample must be at least 1, got 0",
        ),
        (
            lambda a: asc.scale_sensitivity(a, a[None]),
            r"same leading axes, got shapes \(40, 40\) and \(1, 40",
        ),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.eye(40))


def test_the_mean_is_over_the_queries_that_see_a_key():
    """Rows that give every key they see the same: their mean is flat under any support, and has no spread."""
    n = 48
    place = torch.arange(n)
    for seen in (place[:, None] >= place, (place[:, None] >= place) & (place[:, None] - place < 12)):
        attention = torch.where(seen, 0.05, 0.0).double()
        result = asc.wavelet_transform(attention, signal="mean", support=seen, min_keys=6)

        assert result.energy.flatten()[0].item() == pytest.approx(1, abs=1e-12)
