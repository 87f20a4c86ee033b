# SPDX-License-Identifier: MIT
"""Spectra, wavelets, uncertainty and locality of attention signals against 100 digits on hard maps.

EPS is one rounding; each bound counts how many of them, and by what they are magnified.
"""

import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
import torch

import attnscope as asc
from strategies import EPS, TINY, apart, hard_maps, some_quick

N = 12
HARD = hard_maps(N)
each_kind = pytest.mark.parametrize("kind", some_quick(HARD))
signal_kinds = pytest.mark.parametrize("signal", ["rows", "last", "mean", "offset"])
SHORTEST = 6
# Power below this share of the total counts as rounding; what lies so near to it may fall on either side.
ROUNDING, NEAR = mp.mpf("1e-28"), mp.mpf("1e4")


def signals(matrix, signal, drop_first=False):
    """{query: signal} in 100 digits, query 0 where there is one signal."""
    n = len(matrix)
    causal = not np.triu(matrix, 1).any()
    first = 1 if drop_first else 0
    rows = {}
    for i in range(n):
        row = [mp.mpf(float(x)) for x in matrix[i, first : i + 1 if causal else n]]
        total = mp.fsum(row)
        if drop_first and not total:
            continue
        rows[i] = [x / total for x in row] if drop_first else row
    long = {i: row for i, row in rows.items() if len(row) >= SHORTEST}
    if signal == "rows":
        return long
    if signal == "last":
        return {0: long[n - 1]} if n - 1 in long else {}
    if signal == "mean":
        if not long:
            return {}
        columns = [[r[j] for r in long.values() if j < len(r)] for j in range(n - first)]
        return {0: [mp.fsum(column) / len(column) for column in columns if column]}
    at = {}
    for i, row in rows.items():
        for j, x in enumerate(row, first):
            at.setdefault(abs(i - j), []).append(x)
    means = [
        mp.fsum(at.get(d, [mp.mpf(0)])) / max(1, len(at.get(d, []))) for d in range(max(at, default=-1) + 1)
    ]
    return {0: means} if len(means) >= SHORTEST else {}


def signals_of(matrix, signal, drop_first):
    """Every signal with its place in the result."""
    for i, x in signals(matrix, signal, drop_first).items():
        yield (i,) if signal == "rows" else (), x


def entropy(shares, log):
    return -mp.fsum(p * log(p) for p in shares if p > 0)


def log2(x):
    return mp.log(x, 2)


def fourier(x, size):
    """The discrete transform of x, padded with zeros."""
    turn = [mp.expjpi(mp.mpf(-2 * k) / size) for k in range(size)]
    return [mp.fsum(v * turn[t * k % size] for t, v in enumerate(x)) for k in range(size)]


def fast_length(count):
    while count % 4 or max(p for p in range(1, count + 1) if count % p == 0 and is_prime(p)) > 5:
        count += 1
    return count


def is_prime(p):
    return p == 1 or all(p % q for q in range(2, math.isqrt(p) + 1))


def spectrum(x, padding, window):
    """Shares of power of the bins from 0 to the Nyquist frequency, and their frequencies."""
    m = len(x)
    size = fast_length(math.ceil(padding * m))
    largest = max(x)
    if window == "hann":
        x = [v * (1 - mp.cospi(mp.mpf(2 * t) / m)) / 2 for t, v in enumerate(x)]
    power = [abs(z) ** 2 for z in fourier(x, size)[: size // 2 + 1]]
    power = [p * (1 if k in (0, size // 2) else 2) for k, p in enumerate(power)]
    total = mp.fsum(power)
    if not total:
        return None
    if total < mp.mpf(TINY / EPS) ** 2 < 1e-9 * largest**2:  # the window leaves what has no digits
        return ()
    return [p / total for p in power], [mp.mpf(2 * k) / size for k in range(len(power))]


@pytest.mark.parametrize("window", ["hann", "none"])
@signal_kinds
@each_kind
def test_power_spectrum(kind, signal, window):
    matrix = HARD[kind]
    drop_first, padding, bands = signal == "mean", 1.5, 5
    result = asc.power_spectrum(
        torch.tensor(matrix),
        signal=signal,
        min_keys=SHORTEST,
        drop_first=drop_first,
        window=window,
        padding=padding,
        bands=bands,
    )
    for place, x in signals_of(matrix, signal, drop_first):
        reference = spectrum(x, padding, window)
        values = {name: tensor[place] for name, tensor in result._asdict().items()}
        if reference is None:
            assert all(value.isnan().all() for value in values.values())
            continue
        if not reference:
            continue
        share, frequency = reference
        exact = [p if p > ROUNDING else mp.mpf(0) for p in share]
        slack = 32 * EPS
        low = mp.fsum(p for p, f in zip(exact, frequency, strict=True) if f < 0.25)
        high = mp.fsum(p for p, f in zip(exact, frequency, strict=True) if f >= 0.75)
        assert apart(values["low"], low) <= slack
        assert apart(values["high"], high) <= slack
        assert apart(values["mid"], mp.fsum(exact) - low - high) <= slack
        assert apart(values["selectivity"], max(exact)) <= slack
        strongest = [f for p, f in zip(exact, frequency, strict=True) if p >= max(exact) - slack]
        assert min(apart(values["peak"], f) for f in strongest) <= EPS
        # p log p is steepest at small p, where rounding is as the root of p.
        uncertain = mp.fsum(mp.sqrt(p) * (2 + abs(log2(p))) for p in exact if p > 0)
        assert apart(values["entropy"], entropy(exact, log2)) <= 8 * EPS * uncertain, (kind, place)
        half = mp.mpf(1) / (2 * (len(share) - 1))
        for b, value in enumerate(values["bands"]):
            inside = mp.mpf(0)
            for p, f in zip(exact, frequency, strict=True):
                left, right = max(f - half, 0), min(f + half, 1)
                inside += (
                    p
                    * max(0, min(right, mp.mpf(b + 1) / bands) - max(left, mp.mpf(b) / bands))
                    / (right - left)
                )
            assert apart(value, inside) <= slack
        if any(ROUNDING / NEAR < p < ROUNDING * NEAR for p in share):
            continue
        if min(exact) == 0:
            assert values["flatness"] == 0.0
            continue
        expected = mp.exp(mp.fsum(map(mp.log, exact)) / len(exact)) * len(exact)
        magnified = mp.fsum(1 / mp.sqrt(p) for p in exact) / len(exact)
        assert apart(values["flatness"], expected) <= 16 * EPS * magnified * expected, (kind, place)


ROOT = mp.sqrt(3)
LOW = [(1 - ROOT) / mp.sqrt(32), (3 - ROOT) / mp.sqrt(32), (3 + ROOT) / mp.sqrt(32), (1 + ROOT) / mp.sqrt(32)]
HIGH = [-LOW[3], LOW[2], -LOW[1], LOW[0]]


def wavelet(x, levels):
    """Coefficients from the coarsest: the periodised transform, the last entry repeated where odd."""
    details = []
    for _ in range(levels):
        x = [*x, x[-1]] if len(x) % 2 else x
        size = len(x)
        step = [
            [mp.fsum(f[j] * x[(2 * k + 2 - j) % size] for j in range(4)) for k in range(size // 2)]
            for f in (LOW, HIGH)
        ]
        x, detail = step
        details.append(detail)
    return [x, *details[::-1]]


def test_the_transform_of_these_tests_is_the_orthogonal_one():
    scales = wavelet([mp.mpf(k == 3) for k in range(8)], 2)
    assert abs(mp.fsum(c**2 for scale in scales for c in scale) - 1) < mp.mpf("1e-90")
    line = wavelet([mp.mpf(k) for k in range(12)], 1)[1]
    assert all(abs(c) < mp.mpf("1e-90") for c in line[1:-1])  # no detail but where the period wraps round


@signal_kinds
@each_kind
def test_wavelet_transform(kind, signal):
    matrix = HARD[kind]
    levels = 2 if signal == "last" else 1
    drop_first = signal == "mean"
    shortest = 12 if levels == 2 else SHORTEST
    points = 5
    result = asc.wavelet_transform(
        torch.tensor(matrix),
        signal=signal,
        min_keys=shortest,
        levels=levels,
        drop_first=drop_first,
        resample=points,
    )
    profiles = []
    for place, x in signals_of(matrix, signal, drop_first):
        energy = result.energy[place]
        if not any(x):
            assert energy.isnan().all()
            continue
        scales = wavelet(x, levels)
        powers = [mp.fsum(c**2 for c in scale) for scale in scales]
        share = [p / mp.fsum(powers) for p in powers]
        for value, true in zip(energy, share, strict=True):
            assert apart(value, true) <= 16 * EPS
        uncertain = mp.fsum(mp.sqrt(p) * (2 + abs(log2(p))) for p in share if p > 0)
        assert apart(result.scale_entropy[place], entropy(share, log2)) <= 8 * EPS * uncertain
        for at, (scale, power, p) in enumerate(zip(scales, powers, share, strict=True)):
            value = result.position_entropy[place][at]
            if p < ROUNDING / NEAR:
                assert value.isnan()
            elif p > ROUNDING * NEAR:
                expected = entropy([c**2 / power for c in scale], log2)
                assert apart(value, expected) <= 128 * EPS / mp.sqrt(p), (kind, place, at)
        assert result.reconstruction_error[place] <= 16 * EPS
        profiles.append(scales)
    if signal == "rows" or not profiles:
        return
    for value, scale in zip(result.profile, profiles[0], strict=True):
        largest = max(map(abs, (c for coefficients in profiles[0] for c in coefficients)))
        for at in range(points):
            place = mp.mpf(at) * (len(scale) - 1) / (points - 1)
            left = min(int(place), len(scale) - 2)
            expected = scale[left] + (scale[left + 1] - scale[left]) * (place - left)
            assert apart(value[at], expected) <= 16 * EPS * largest + 5e-324


@pytest.mark.parametrize("signal", ["last", "offset"])
@each_kind
def test_morlet_scalogram(kind, signal):
    matrix = HARD[kind]
    widths, omega = [0.75, 3.0], mp.mpf(6)
    result = asc.morlet_scalogram(torch.tensor(matrix), widths, signal=signal, min_keys=SHORTEST)
    for _, x in signals_of(matrix, signal, False):
        for row, s in zip(result, map(mp.mpf, widths), strict=True):
            for b, value in enumerate(row[: len(x)]):
                terms = [
                    v * mp.exp(-(((t - b) / s) ** 2) / 2) * mp.expj(-omega * (t - b) / s)
                    for t, v in enumerate(x)
                ]
                front = 1 / (mp.sqrt(s) * mp.pi ** mp.mpf("0.25"))
                size = front * abs(mp.fsum(terms))
                # The wavelet is cut where it is below 1e-17 of its peak.
                slack = front * (64 * EPS * mp.fsum(map(abs, terms)) + 1e-17 * mp.fsum(x))
                assert apart(value, size**2) <= 2 * size * slack + slack**2 + 5e-324, (kind, b)


@pytest.mark.parametrize("amplitude", ["root", "signal"])
@signal_kinds
@each_kind
def test_spectral_uncertainty(kind, signal, amplitude):
    matrix = HARD[kind]
    drop_first = signal == "mean"
    result = asc.spectral_uncertainty(
        torch.tensor(matrix), amplitude=amplitude, signal=signal, min_keys=SHORTEST, drop_first=drop_first
    )
    for place, x in signals_of(matrix, signal, drop_first):
        values = [tensor[place] for tensor in result]
        total, m = mp.fsum(x), len(x)
        if min(x) < 0 or not total:
            assert all(value.isnan() for value in values)
            continue
        p = [v / total for v in x]
        psi = (
            [mp.sqrt(v) for v in p]
            if amplitude == "root"
            else [v / mp.sqrt(mp.fsum(u**2 for u in p)) for v in p]
        )
        spread = [v**2 for v in psi]
        transformed = [abs(z) ** 2 / m for z in fourier(psi, m)]
        mean = mp.fsum(t * v for t, v in enumerate(spread))
        lags = {lag: 2 * mp.mpf(-1) ** lag / lag**2 if lag else mp.pi**2 / 3 for lag in range(m)}
        expected = [
            entropy(p, mp.log),
            entropy(transformed, mp.log),
            mp.log(m),
            mp.fsum((t - mean) ** 2 * v for t, v in enumerate(spread)),
            mp.fsum(u * v * lags[abs(s - t)] for s, u in enumerate(psi) for t, v in enumerate(psi)),
            (1 - mp.fsum((-1) ** t * v for t, v in enumerate(psi)) ** 2) ** 2 / 4,
        ]
        uncertain = mp.fsum(mp.sqrt(v) * (2 + abs(mp.log(v))) for v in transformed if v > 1e-40)
        bounds = [16, 8 * uncertain, 4, 4 * m**2, 16 * m, 8]
        for value, true, bound in zip(values, expected, bounds, strict=True):
            assert apart(value, true) <= bound * EPS, (kind, place, float(value), mp.nstr(true, 17))


@pytest.mark.parametrize("window", [0, 3, N])
@pytest.mark.parametrize("drop_first", [False, True])
@each_kind
def test_local_global_ratio(kind, window, drop_first):
    matrix = HARD[kind]
    near = far = Fraction(0)
    for i, row in enumerate(matrix):
        for j, x in enumerate(row):
            if j or not drop_first:
                near, far = (
                    (near + Fraction(float(x)), far)
                    if abs(i - j) <= window
                    else (near, far + Fraction(float(x)))
                )
    result = asc.local_global_ratio(torch.tensor(matrix), window=window, drop_first=drop_first).item()
    if not far:
        assert result == math.inf if near else math.isnan(result)
    elif near > Fraction(2) ** 1023 * far:
        assert result == math.inf or result > 1e307
    else:
        assert abs(Fraction(result) - near / far) <= 2 * N * Fraction(EPS) * near / far
