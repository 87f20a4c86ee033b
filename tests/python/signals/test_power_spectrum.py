# SPDX-License-Identifier: MIT
"""power_spectrum against scipy.signal.periodogram, pure tones, impulses, Parseval and laws.

softmax_harmonics against mpmath and NumPy's transform, harmonic_distortion against Fourier series.
"""

import math
from contextlib import nullcontext

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import periodogram, welch

import attnscope as asc
from attnscope import devices
from strategies import attention_batch, attention_map, of_signal, signals

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
FIELDS = ("low", "mid", "high", "selectivity", "peak", "flatness", "entropy")


def fast_length(count):
    """The smallest multiple of 4 without a prime factor above 5."""
    while True:
        rest = count
        for p in (2, 3, 5):
            while rest % p == 0:
                rest //= p
        if rest == 1 and count % 4 == 0:
            return count
        count += 1


def oracle(x, *, detrend="none", window="hann", padding=1.0):
    """The statistics of one signal by SciPy and NumPy."""
    size = fast_length(math.ceil(padding * len(x)))
    f, p = periodogram(
        np.asarray(x, float),
        window="hann" if window == "hann" else "boxcar",
        nfft=size,
        detrend="constant" if detrend == "mean" else False,
        scaling="spectrum",
    )
    f, p = f / 0.5, p / p.sum()
    p = np.where(p <= 1e-28, 0, p)
    with np.errstate(divide="ignore"):
        flatness = np.exp(np.log(p).mean()) / p.mean()
    logs = np.log2(p, where=p > 0, out=np.zeros_like(p))
    return [
        p[f < 0.25].sum(),
        p[(f >= 0.25) & (f < 0.75)].sum(),
        p[f >= 0.75].sum(),
        p.max(),
        f[p.argmax()],
        flatness,
        -(p * logs).sum(),
    ]


def stacked(result):
    return torch.stack([getattr(result, name) for name in FIELDS], -1).numpy()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [32, 33, 37, 64, 97])
def test_equals_scipy_for_every_row_size_and_dtype(n, dtype):
    maps = attention_batch((6,), n, dtype, seed=n)
    result = stacked(asc.power_spectrum(maps))
    for index, map_of_batch in enumerate(maps):
        rows = signals(map_of_batch.double().numpy())
        for i in range(n):
            if i in rows and rows[i].any():
                np.testing.assert_allclose(result[index, i], oracle(rows[i]), rtol=1e-9, atol=1e-12)
            else:
                assert np.isnan(result[index, i]).all()


@pytest.mark.parametrize("signal", ["rows", "last", "mean", "offset"])
@pytest.mark.parametrize("drop_first", [False, True])
@pytest.mark.parametrize("kind", ["causal", "full", "sink"])
@pytest.mark.parametrize(
    "options", [{}, {"detrend": "mean"}, {"window": "none", "padding": 3.0}, {"padding": 2.0}]
)
def test_every_signal_and_option_equals_scipy(signal, drop_first, kind, options):
    attention = attention_map(49, kind, seed=3)
    result = stacked(
        asc.power_spectrum(
            torch.tensor(attention), signal=signal, drop_first=drop_first, min_keys=20, **options
        )
    ).reshape(-1, len(FIELDS))
    expected = signals(attention, signal=signal, drop_first=drop_first, min_keys=20)
    assert set(np.flatnonzero(np.isfinite(result[:, 0]))) == set(expected)
    for index, x in expected.items():
        np.testing.assert_allclose(result[index], oracle(x, **options), rtol=1e-8, atol=1e-11)


def test_a_tone_is_one_bin_and_a_hann_window_spreads_it_over_three():
    t = np.arange(64)
    for k in (3, 10, 30):
        tone = of_signal(np.cos(2 * np.pi * k * t / 64))
        plain = asc.power_spectrum(tone, signal="last", window="none")
        assert plain.selectivity.item() == pytest.approx(1, abs=1e-12)
        assert plain.peak.item() == pytest.approx(k / 32, abs=1e-15)
        assert plain.flatness.item() == 0.0
        assert plain.entropy.item() == pytest.approx(0, abs=1e-9)
        hann = asc.power_spectrum(tone, signal="last")
        assert hann.selectivity.item() == pytest.approx(2 / 3, abs=1e-12)  # amplitudes 1/4, 1/2, 1/4
        share = [hann.low, hann.mid, hann.high][0 if k < 8 else 1 if k < 24 else 2]
        assert share.item() == pytest.approx(1, abs=1e-12)


def test_an_impulse_is_white():
    impulse = np.zeros(64)
    impulse[20] = 1
    result = asc.power_spectrum(of_signal(impulse), signal="last", window="none", bands=0)
    bins = np.array([1, *[2] * 31, 1]) / 64
    assert result.entropy.item() == pytest.approx(-(bins * np.log2(bins)).sum(), abs=1e-12)
    assert result.flatness.item() == pytest.approx(np.exp(np.log(bins).mean()) / bins.mean(), abs=1e-12)
    assert result.low.item() == pytest.approx(bins[:8].sum(), abs=1e-12)
    assert result.bands.shape == (0,)


def test_a_chirp_fills_the_band_that_it_sweeps():
    t = np.arange(256)
    chirp = np.cos(2 * np.pi * (0.14 * t + 0.5 * (0.22 / 256) * t**2))  # .28 to .72 of Nyquist
    result = asc.power_spectrum(of_signal(chirp), signal="last")
    assert result.mid.item() > 0.99
    bands = result.bands.numpy()
    assert bands[9:23].sum() > 0.99
    assert result.flatness.item() < 0.2


def test_uniform_rows_have_the_closed_form_of_the_window():
    n = 60
    uniform = torch.ones(n, n, dtype=torch.float64).tril()
    uniform /= uniform.sum(-1, keepdim=True)
    result = asc.power_spectrum(uniform)
    exact = [i for i in range(31, n) if fast_length(i + 1) == i + 1]  # no padding
    assert exact == [31, 35, 39, 47, 59]
    np.testing.assert_allclose(result.selectivity[exact], 2 / 3, atol=1e-12)
    entropy = -(2 / 3 * math.log2(2 / 3) + 1 / 3 * math.log2(1 / 3))
    np.testing.assert_allclose(result.entropy[exact], entropy, atol=1e-10)
    assert asc.power_spectrum(uniform, detrend="mean").entropy.isnan().all()


def test_the_mean_of_scipys_segments_is_welchs_method():
    """A map whose rows are the segments of one long signal: the mean of their bands is Welch's estimate."""
    x = np.random.default_rng(0).standard_normal(64 * 64)
    maps = torch.tensor(x.reshape(64, 64))
    f, p = welch(x, window="hann", nperseg=64, noverlap=0, detrend=False, scaling="spectrum")
    rows = [
        periodogram(row, window="hann", scaling="spectrum", detrend=False)[1] for row in x.reshape(64, 64)
    ]
    np.testing.assert_allclose(np.mean(rows, 0), p, rtol=1e-10)
    result = asc.power_spectrum(maps, support="full")
    total = np.sum(rows, 1)
    low = (result.low.numpy() * total).mean() / total.mean()
    assert low == pytest.approx(p[f < 0.125].sum() / p.sum(), abs=1e-12)


@settings(max_examples=60)
@given(
    n=st.integers(6, 80),
    seed=st.integers(0, 10**6),
    bands=st.integers(1, 50),
    signal=st.sampled_from(["rows", "last", "mean", "offset"]),
    scale=st.floats(1e-3, 1e3),
)
def test_shares_sum_to_one_and_scaling_changes_nothing(n, seed, bands, signal, scale):
    attention = torch.tensor(attention_map(n, "causal", seed))
    options = {"signal": signal, "min_keys": 6, "bands": bands}
    result = asc.power_spectrum(attention, **options)
    is_defined = ~result.low.isnan()
    np.testing.assert_allclose((result.low + result.mid + result.high)[is_defined], 1, atol=1e-12)
    np.testing.assert_allclose(result.bands[is_defined].sum(-1), 1, atol=1e-12)
    assert ((result.entropy >= 0) & (result.entropy <= math.log2(n + 1)))[is_defined].all()
    assert ((result.flatness >= 0) & (result.flatness <= 1))[is_defined].all()
    assert (result.selectivity[is_defined] <= 1 + 1e-12).all()
    scaled = asc.power_spectrum(scale * attention, **options)
    np.testing.assert_allclose(stacked(scaled), stacked(result), rtol=1e-7, atol=1e-9)


def test_parseval_holds_without_a_window():
    """With the mean square known, the share of the zero bin is the squared mean over the mean square."""
    attention = torch.tensor(attention_map(64, "full", 5))
    result = asc.power_spectrum(attention, window="none", bands=0)
    zero_bin = (attention.mean(-1) ** 2 / (attention**2).mean(-1)).numpy()
    at_zero = result.peak.numpy() == 0
    assert at_zero.sum() > 60
    np.testing.assert_allclose(result.selectivity[at_zero], zero_bin[at_zero], atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_lengths_and_supports(dtype):
    maps = attention_batch((4,), 40, dtype)
    wide = torch.zeros(4, 80, 120, dtype=dtype)
    wide[:, ::2, ::3] = maps
    options = {"min_keys": 8}
    expected = asc.power_spectrum(maps, **options)
    for actual, other in zip(asc.power_spectrum(wide[:, ::2, ::3], **options), expected, strict=True):
        np.testing.assert_array_equal(actual, other)
    cut = asc.power_spectrum(maps, lengths=[40, 20, 8, 7], **options)
    for index, length in enumerate([40, 20, 8, 7]):
        single_result = asc.power_spectrum(maps[index, :length, :length].clone(), **options)
        np.testing.assert_array_equal(cut.entropy[index, :length], single_result.entropy)
        assert cut.entropy[index, length:].isnan().all()
    window = torch.ones(40, 40, dtype=torch.bool).tril() & ~torch.ones(40, 40, dtype=torch.bool).tril(-12)
    banded = asc.power_spectrum(maps[1], support=window, **options)
    for i, x in signals(maps[1].double().numpy(), visible=window.numpy(), min_keys=8).items():
        assert banded.entropy[i].item() == pytest.approx(oracle(x)[-1], abs=1e-9)


def test_long_signals_of_changing_length_have_windows_of_their_own():
    maps = attention_batch((4,), 1300, torch.float32)
    lengths = [1100, 1300, 1025, 1024]
    result = stacked(asc.power_spectrum(maps, signal="last", lengths=lengths, bands=0))
    for at, length in enumerate(lengths):
        expected = oracle(maps[at, length - 1, :length].double().numpy())
        np.testing.assert_allclose(result[at], expected, rtol=1e-9, atol=1e-12)


def test_the_shortest_signals_and_the_finest_bins():
    attention = torch.tensor(attention_map(9, "causal", seed=1))
    result = asc.power_spectrum(attention, min_keys=2, padding=64.0)
    assert result.bands.shape == (9, 32)
    peak = FIELDS.index("peak")  # through the window two keys are an impulse, whose bins are all alike
    for i, x in signals(attention, min_keys=2).items():
        ours, theirs = np.delete(stacked(result)[i], peak), np.delete(oracle(x, padding=64.0), peak)
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-11)
    assert result.low.isnan().tolist() == [True] + [False] * 8


def test_a_non_finite_map_leaves_its_neighbours_alone():
    maps = attention_batch((3,), 36)
    maps[1, 2, 1] = torch.inf
    with pytest.warns(RuntimeWarning, match="power_spectrum: 1 of 3 matrices"):
        result = asc.power_spectrum(maps)
    assert result.low[1].isnan().all()
    np.testing.assert_array_equal(result.low[[0, 2]], asc.power_spectrum(maps[[0, 2]]).low)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_number_of_threads_changes_nothing(threads):
    maps = attention_batch((9,), 40)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        result = asc.power_spectrum(maps)
    finally:
        torch.set_num_threads(before)
    np.testing.assert_array_equal(result.entropy[4], asc.power_spectrum(maps[4]).entropy)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"signal": "row"}, r"signal must be one of 'rows', 'last', 'mean', 'offset', got 'row'"),
        ({"window": "hamming"}, r"window must be one of 'hann', 'none'"),
        ({"detrend": "linear"}, r"detrend must be one of 'none', 'mean'"),
        ({"padding": 0.5}, r"padding must lie between 1 and 64, got 0.5"),
        ({"padding": 64.5}, r"padding must lie between 1 and 64, got 64.5"),
        ({"bands": -1}, r"bands must be a whole number of at least 0, got -1"),
        ({"min_keys": 1}, r"min_keys must be a whole number of at least 2, got 1"),
        ({"min_keys": True}, r"min_keys must be a whole number, got True"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises((TypeError, ValueError), match="power_spectrum: " + message):
        asc.power_spectrum(torch.eye(40), **options)


@pytest.mark.parametrize("strength", [-3.0, 0.0, 0.3, 2.0, 30.0, 900.0])
def test_softmax_harmonics_are_bessel_functions(strength):
    result = asc.softmax_harmonics(strength, 6)
    expected = [float(mpmath.besseli(n, strength) / mpmath.besseli(0, strength)) for n in range(7)]
    np.testing.assert_allclose(result, expected, rtol=1e-11, atol=1e-15)


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
    signals = torch.cos(theta[:, None] * position + 0.4)
    assert (asc.harmonic_distortion(signals, theta) < 1e-7).all()
    single_result = asc.harmonic_distortion(signals[1].relu(), 0.9)
    np.testing.assert_array_equal(asc.harmonic_distortion(signals.relu(), theta)[1], single_result)
    assert asc.harmonic_distortion(torch.ones(512), 0.2).isnan().all()


def test_neither_phase_nor_size_matters():
    theta = 2 * math.pi * 40 / 1000
    position = torch.arange(1000, dtype=torch.float64) * theta
    expected = [(4 / (3 * math.pi)) ** 2, 0, (4 / (15 * math.pi)) ** 2]
    for phase in (0.0, 0.7, 1.5, 2.9):
        for size in (1e-140, 1.0, 1e140):
            result = asc.harmonic_distortion(size * torch.cos(position + phase).relu(), theta)
            np.testing.assert_allclose(result, expected, atol=2e-3)
    # Each signal is judged by its own size, and nothing at θ is no base to divide by.
    other = torch.stack([torch.cos(position), 1e-9 * torch.cos(position), torch.cos(2 * position)])
    assert asc.harmonic_distortion(other, theta).isnan().all(-1).tolist() == [False, False, True]
    assert asc.harmonic_distortion(torch.zeros(1000), theta).isnan().all()
    beside = torch.stack([1e20 * torch.cos(position), torch.cos(position).relu()])
    np.testing.assert_allclose(asc.harmonic_distortion(beside, theta)[1], expected, atol=2e-3)
    assert asc.softmax_harmonics(1.0, 0).tolist() == [1.0]


def test_two_cycles_and_one_harmonic_are_the_least():
    """Tones of whole cycles, two and more apart, do not see each other through a Hann window."""
    theta = 4 * math.pi / 64
    x = torch.arange(64, dtype=torch.float64) * theta
    signal = torch.cos(x) + 0.5 * torch.cos(4 * x)
    (second,) = asc.harmonic_distortion(torch.cos(x) + 0.5 * torch.cos(2 * x), theta, 2).tolist()
    assert second == pytest.approx(0.25, rel=1e-12)
    assert asc.harmonic_distortion(signal, theta)[2].item() == pytest.approx(0.25, rel=1e-12)
    slower = torch.tensor([theta, 0.99 * theta], dtype=torch.float64)
    with pytest.raises(
        ValueError, match=f"^harmonic_distortion: .* 64 positions of {slower[1].item()} radians$"
    ):
        asc.harmonic_distortion(signal.expand(2, 64), slower)


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
def test_bad_arguments_of_harmonics_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("path", ["core", "torch"])
@pytest.mark.parametrize("window", ["hann", "none"])
def test_the_peak_of_attention_to_a_single_key_is_the_first_of_its_equal_bins(window, path):
    keys = 50
    heads = torch.eye(keys, dtype=torch.float64)[
        torch.randperm(keys, generator=torch.Generator().manual_seed(2))
    ]
    with devices.use("torch") if path == "torch" else nullcontext():
        peak = asc.power_spectrum(heads, support="full", window=window).peak
    defined = ~peak.isnan()
    assert defined.sum() >= keys - 1  # the window is 0 at key 0
    # the transform of 50 keys is one of 60: bin 1 of 30
    assert torch.equal(peak[defined], torch.full_like(peak[defined], 1 / 30))


@pytest.mark.parametrize("path", ["core", "torch"])
def test_a_row_without_key_0_counts_all_its_keys_in_the_mean(path):
    # Under this mask each query sees 10 or 11 keys; half of them do not see key 0, which is left out.
    n, least = 24, 10
    visible = np.zeros((n, n), dtype=bool)
    for i in range(n):
        visible[i, (np.arange(least) * 2 + i) % (n - 1) + 1] = True
    visible[::2, 0] = True
    attention = torch.from_numpy(attention_map(n, "full", seed=5))
    expected = signals(attention, signal="mean", min_keys=least, drop_first=True, visible=visible)
    with devices.use("torch") if path == "torch" else nullcontext():
        result = asc.power_spectrum(
            attention,
            signal="mean",
            min_keys=least,
            drop_first=True,
            support=torch.from_numpy(visible),
        )
    np.testing.assert_allclose(stacked(result), oracle(expected[0]), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("path", ["core", "torch"])
@pytest.mark.parametrize("drop_first", [False, True])
@pytest.mark.parametrize("signal", ["mean", "offset"])
@pytest.mark.parametrize("n", [50, 100])
def test_means_that_differ_by_rounding_alone_are_constant(n, signal, drop_first, path):
    # 1/50 is no binary number: sums of fewer and more of them, divided by their number, differ in last bits.
    uniform = torch.full((n, n), 1 / n, dtype=torch.float64)
    varied = uniform.clone()
    varied[:, ::7] *= 1 + 1e-9
    options = {"signal": signal, "drop_first": drop_first, "detrend": "mean", "support": "full"}
    with devices.use("torch") if path == "torch" else nullcontext():
        spectrum, transform = (
            asc.power_spectrum(uniform, **options),
            asc.wavelet_transform(uniform, **options),
        )
        assert np.isnan(stacked(spectrum)).all()
        assert transform.energy.isnan().all()
        assert not np.isnan(stacked(asc.power_spectrum(varied, **options))).any()


def test_a_frequency_that_is_not_finite_is_named():
    with pytest.raises(ValueError, match="harmonic_distortion: theta must be finite, got inf"):
        asc.harmonic_distortion(torch.zeros(2, 200), torch.tensor([0.1, math.inf]))


@pytest.mark.parametrize("path", ["core", "torch"])
@pytest.mark.parametrize("drop_first", [False, True])
@pytest.mark.parametrize("step", [2, 3])
def test_distances_that_no_visible_pair_has_are_left_out(step, drop_first, path):
    """Strided attention: the mean over nothing is no 0, which would be a comb of the highest frequency."""
    n = 60
    distance = np.subtract.outer(np.arange(n), np.arange(n))
    visible = (distance >= 0) & (distance % step == 0)
    attention = np.where(visible, attention_map(n, "causal", seed=5) + 0.01, 0.0)
    expected = signals(attention, signal="offset", min_keys=12, drop_first=drop_first, visible=visible)
    assert len(expected[0]) == (n - drop_first + step - 1) // step
    seen = {"signal": "offset", "min_keys": 12, "support": torch.from_numpy(visible)}
    uniform = torch.where(torch.from_numpy(visible), 0.25, 0.0).double()
    with devices.use("torch") if path == "torch" else nullcontext():
        result = asc.power_spectrum(torch.from_numpy(attention), drop_first=drop_first, **seen)
        transform = asc.wavelet_transform(uniform, **seen)
    np.testing.assert_allclose(stacked(result), oracle(expected[0]), rtol=1e-9, atol=1e-12)
    assert transform.energy[0].item() == pytest.approx(1, abs=1e-12)
