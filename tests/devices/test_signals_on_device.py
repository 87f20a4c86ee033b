# SPDX-License-Identifier: MIT
"""Spectra, wavelets and uncertainty in torch operations, against the compiled core and closed forms."""

import math

import pytest
import torch

import attnscope as asc
from attnscope.devices import call_counts, placement
from on_device import CPU, DEVICES, DTYPES, assert_equal, attention, on_device

pytestmark = pytest.mark.filterwarnings(
    "ignore::attnscope.errors.NonFiniteWarning", "ignore::attnscope.errors.NotAttentionWarning"
)
SIGNALS = ("rows", "last", "mean", "offset")
SUPPORTS = ("auto", "causal", "full", "mask")


@pytest.fixture(autouse=True)
def every_size_on_the_device(monkeypatch):
    """Measure small maps on the device too, where the CPU would be faster."""
    monkeypatch.setattr(placement, "FEWEST_BYTES", 0)


def spectrum_but_for_peaks(maps, **options):
    """Return the spectrum without its peaks: of equal bins, the strongest is a matter of rounding."""
    result = asc.power_spectrum(maps, **options)
    return tuple(field for name, field in result._asdict().items() if name != "peak")


def every_signal_measure(device, maps, **options):
    """Compare all measures of signals with the core, each with options of its own."""
    # a row of a causal map is an impulse for a support that sees more than the row holds
    alike = options.get("support") in ("causal", "auto", None)
    spectrum = asc.power_spectrum if alike else spectrum_but_for_peaks
    assert_equal(asc.spectral_uncertainty, device, maps, **options)
    assert_equal(asc.spectral_uncertainty, device, maps, amplitude="signal", **options)
    for detrend in ("none", "mean"):
        assert_equal(spectrum, device, maps, detrend=detrend, **options)
        assert_equal(asc.wavelet_transform, device, maps, resample=5, detrend=detrend, **options)
    assert_equal(spectrum, device, maps, window="none", padding=1.7, bands=3, **options)
    if options["signal"] != "rows":
        assert_equal(asc.morlet_scalogram, device, maps, [2.0, 5.5], **options)


def assert_equal_for_every_option(device, kind, n, dtype):
    mask = torch.rand(n, n, generator=torch.Generator().manual_seed(1)) < 0.7
    for lengths in (None, torch.tensor([[n - 3], [n]])):
        for support in SUPPORTS:
            for signal in SIGNALS:
                for drop_first in (False, True):
                    every_signal_measure(
                        device,
                        attention(kind, n, dtype),
                        lengths=lengths,
                        support=mask if support == "mask" else support,
                        signal=signal,
                        drop_first=drop_first,
                        min_keys=8,
                    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n", [9, 34])
@pytest.mark.parametrize("kind", ["causal", "full", "sink"])
def test_measures_of_signals_equal_the_core(device, kind, n):
    assert_equal_for_every_option(device, kind, n, torch.float64)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_signals_of_every_element_type_equal_the_core(device, dtype):
    maps = attention("causal", 30, dtype)
    for signal in SIGNALS:
        every_signal_measure(device, maps, signal=signal, min_keys=8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("signal", SIGNALS)
def test_signals_of_any_strides_and_batches_equal_the_core(device, signal):
    maps = attention("causal", 20, torch.float32)
    transposed = maps.mT.contiguous().mT
    shared = maps[:, :1].expand(2, 3, 20, 20)
    for view in (transposed, shared, maps[0, 0], maps[:0], maps[..., :1, :1]):
        every_signal_measure(device, view, signal=signal, min_keys=8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("exponent", [-600, 600])
def test_squares_of_extreme_entries_neither_vanish_nor_overflow(device, exponent):
    maps = attention("causal", 20, torch.float64)[0] * 2.0**exponent
    for signal in SIGNALS:
        every_signal_measure(device, maps, signal=signal, min_keys=8)


@pytest.mark.parametrize("device", DEVICES)
def test_signals_without_power_are_nan(device):
    """Nothing at all; a constant without its mean; a row with nothing beside key 0; a negative entry."""
    n = 17  # sixteenths add up without rounding, also over the sixteen keys beside the first
    maps = torch.zeros(4, n, n, dtype=torch.float64)
    maps[1] = 1 / 16
    maps[2, :, 0] = 1
    maps[3] = torch.rand(n, n, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    maps[3, :, 5] = -0.5
    options = {"min_keys": 8, "support": "full"}
    for signal in SIGNALS:
        every_signal_measure(device, maps, signal=signal, **options)
        every_signal_measure(device, maps, signal=signal, drop_first=True, **options)
    spectrum = on_device(asc.power_spectrum, device, maps[:2], signal="last", detrend="mean", **options)
    assert spectrum.low.isnan().all()


@pytest.mark.parametrize("device", DEVICES)
def test_known_signals(device):
    """A cosine of six cycles is one bin; an impulse is white and has a Morlet peak of 1/(s√π)."""
    n = 48
    tone = 1 / n + 0.5 / n * torch.cos(2 * math.pi * 6 * torch.arange(n, dtype=torch.float64) / n)
    impulse = torch.zeros(n, dtype=torch.float64)
    impulse[20] = 1
    maps = torch.stack([tone, impulse])[:, None].expand(2, n, n)
    spectrum = on_device(asc.power_spectrum, device, maps, signal="last", detrend="mean", window="none")
    assert spectrum.selectivity[0].item() == pytest.approx(1, abs=1e-12)
    assert spectrum.peak[0].item() == 6 / (n / 2)
    assert spectrum.entropy[0].item() == pytest.approx(0, abs=1e-12)
    spread = on_device(asc.spectral_uncertainty, device, maps, signal="last")
    assert spread.position_entropy[1].item() == 0
    assert spread.spectral_entropy[1].item() == pytest.approx(math.log(n), abs=1e-12)
    assert spread.frequency_variance[1].item() == pytest.approx(math.pi**2 / 3, abs=1e-12)
    power = on_device(asc.morlet_scalogram, device, maps, [4.0])
    assert power[1, 0].argmax().item() == 20
    assert power[1, 0, 20].item() == pytest.approx(1 / (4 * math.sqrt(math.pi)), abs=1e-12)
    transform = on_device(asc.wavelet_transform, device, maps, signal="last")
    assert transform.reconstruction_error.max().item() < 1e-14


@pytest.mark.parametrize("device", DEVICES)
def test_change_with_the_length_of_the_text_equals_the_core(device):
    maps = attention("causal", 40, torch.float32)[0]
    for compare in ("energy", "coefficients"):
        assert_equal(asc.scale_sensitivity, device, maps, maps[:, :34, :34].contiguous(), compare=compare)


@pytest.mark.parametrize("function", ["power_spectrum", "spectral_uncertainty", "wavelet_transform"])
def test_provenance_says_where_signals_were_measured(function, monkeypatch):
    monkeypatch.setattr(call_counts, "_WHERE", {})
    on_device(getattr(asc, function), CPU, attention("causal", 34, torch.float32))
    assert asc.devices.measured_where() == {"cpu": [function]}


def test_slabs_of_one_map_give_the_signals_of_the_batch(monkeypatch):
    from attnscope.devices import slabs

    maps = attention("causal", 34, torch.float32)
    together = on_device(asc.wavelet_transform, CPU, maps, resample=4)
    monkeypatch.setattr(slabs, "DEFAULT_BYTES", 1)
    apart = on_device(asc.wavelet_transform, CPU, maps, resample=4)
    for have, want in zip(apart, together, strict=True):
        torch.testing.assert_close(have, want, rtol=0, atol=1e-15, equal_nan=True)
