# SPDX-License-Identifier: MIT
"""Participation ratios against their spectra, computed by LAPACK, and closed forms."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnscope as asc

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SPECTRA = ("singular", "eigen", "laplacian")


def attention(n, count=1, causal=True, sharpness=1.0, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(count, n, n, generator=generator, dtype=torch.float64)
    if causal:
        logits = logits + torch.full((n, n), -math.inf, dtype=torch.float64).triu(1)
    return logits.softmax(-1).to(dtype)


def from_spectrum(matrix, spectrum):
    a = np.asarray(matrix.double())
    if spectrum == "singular":
        energies = np.linalg.svd(a, compute_uv=False) ** 2
    elif spectrum == "eigen":
        energies = np.abs(np.linalg.eigvals(a))
    else:
        w = (a + a.T) / 2
        np.fill_diagonal(w, 0)
        energies = np.linalg.eigvalsh(np.diag(w.sum(0)) - w)
    return energies.sum() ** 2 / (energies**2).sum()


@pytest.mark.parametrize("n", [7, 64, 193])
def test_rounding_does_not_leave_the_range(n):
    """Equal energies give exactly n, a single direction exactly 1, at any scale."""
    for scale in (0.1, 1 / 3, 0.7, 1e-3):
        equal = scale * torch.eye(n, dtype=torch.float64)
        single = scale * torch.full((n, n), 1 / n, dtype=torch.float64)
        ratios = asc.participation_ratio(torch.stack([equal, single])).tolist()
        assert min(ratios) >= 1.0
        assert max(ratios) <= n
        assert ratios == pytest.approx([n, 1.0], rel=1e-12)


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 31, 33, 64, 65, 100, 130])
def test_equals_its_spectrum(n, causal, spectrum):
    maps = torch.cat([attention(n, 2, causal, s) for s in (0.3, 1.0, 4.0)])
    result = asc.participation_ratio(maps, spectrum=spectrum)
    assert result.dtype == torch.float64
    np.testing.assert_allclose(result.numpy(), [from_spectrum(m, spectrum) for m in maps], rtol=1e-10)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n", [128, 193, 256, 257, 511, 1024, 1025])
def test_maps_that_no_cache_holds(n, causal):
    a = attention(n, 1, causal)[0]
    wide = a.double().numpy()
    expected = (wide * wide).sum() ** 2 / np.square(wide.T @ wide).sum()
    np.testing.assert_allclose(asc.participation_ratio(a).item(), expected, rtol=1e-11)


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_and_strides(dtype, spectrum):
    base = attention(30, 4, causal=False, dtype=dtype)
    expected = asc.participation_ratio(base.double(), spectrum=spectrum)
    assert torch.equal(asc.participation_ratio(base, spectrum=spectrum), expected)
    for view in (base.mT, base[:, ::2, ::2], base[:, 4:21, 2:19]):
        result = asc.participation_ratio(view, spectrum=spectrum)
        assert torch.equal(result, asc.participation_ratio(view.contiguous(), spectrum=spectrum))


def test_closed_forms():
    for n in (10, 20, 30, 40, 50):
        uniform = torch.tril(torch.ones(n, n, dtype=torch.float64)) / torch.arange(1, n + 1)[:, None]
        harmonic = sum(1 / k for k in range(1, n + 1))
        squares = sum(1 / k**2 for k in range(1, n + 1))
        result = asc.participation_ratio(uniform, spectrum="eigen").item()
        assert abs(result / (harmonic**2 / squares) - 1) < 1e-12
        shift = torch.eye(n, dtype=torch.float64).roll(1, 0)
        assert abs(asc.participation_ratio(shift).item() / n - 1) < 1e-12
        assert abs(asc.participation_ratio(shift, spectrum="eigen").item() / n - 1) < 1e-12
        full = torch.full((n, n), 1 / n, dtype=torch.float64)
        assert abs(asc.participation_ratio(full).item() - 1) < 1e-12
        # complete graph: n − 1 equal eigenvalues; star: {0, 1 (n − 2 times), n}
        assert abs(asc.participation_ratio(full, spectrum="laplacian").item() / (n - 1) - 1) < 1e-12
        star = torch.zeros(n, n)
        star[:, 0] = 1
        expected = (2 * n - 2) ** 2 / (n * n + n - 2)
        assert abs(asc.participation_ratio(star, spectrum="laplacian").item() / expected - 1) < 1e-12
        assert abs(asc.participation_ratio(star).item() - 1) < 1e-12
    published = {10: 5.536, 20: 8.109, 30: 9.900, 40: 11.298, 50: 12.456}
    for n, value in published.items():
        uniform = torch.tril(torch.ones(n, n, dtype=torch.float64)) / torch.arange(1, n + 1)[:, None]
        assert round(asc.participation_ratio(uniform, spectrum="eigen").item(), 3) == value


def test_rotation_has_complex_eigenvalues():
    # eigenvalues of the n-cycle's shift plus its square, all known: |1 + ω|
    n = 12
    shift = torch.eye(n, dtype=torch.float64).roll(1, 0)
    matrix = 0.5 * (shift + shift @ shift)
    sizes = [
        0.5 * abs(1 + complex(math.cos(t), math.sin(t))) for t in (2 * math.pi * k / n for k in range(n))
    ]
    expected = sum(sizes) ** 2 / sum(s * s for s in sizes)
    assert abs(asc.participation_ratio(matrix, spectrum="eigen").item() / expected - 1) < 1e-10


@pytest.mark.parametrize("spectrum", SPECTRA)
def test_zeros_and_one_token(spectrum):
    assert asc.participation_ratio(torch.zeros(2, 5, 5), spectrum=spectrum).isnan().all()
    single_result = asc.participation_ratio(torch.ones(1, 1), spectrum=spectrum).item()
    assert math.isnan(single_result) if spectrum == "laplacian" else single_result == 1


@pytest.mark.parametrize("spectrum", SPECTRA)
@pytest.mark.parametrize("n", [9, 40, 70])
def test_ragged_non_finite_threads(n, spectrum):
    maps = attention(n, 9, causal=False)
    lengths = torch.tensor([n, 3, n - 1, 5, n // 2, n, 2, 7, n - 2])
    clean = asc.participation_ratio(maps, spectrum=spectrum, lengths=lengths)
    single_map = [
        asc.participation_ratio(m[:k, :k], spectrum=spectrum) for m, k in zip(maps, lengths, strict=True)
    ]
    assert torch.equal(clean, torch.stack(single_map))
    maps[4, 0, 0] = math.nan
    with pytest.warns(RuntimeWarning, match="participation_ratio: 1 of 9 matrices"):
        result = asc.participation_ratio(maps, spectrum=spectrum, lengths=lengths)
    assert result.isnan().tolist() == [i == 4 for i in range(9)]
    good = [i for i in range(9) if i != 4]
    assert torch.equal(result[good], clean[good])
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        single = asc.participation_ratio(maps[good], spectrum=spectrum)
        torch.set_num_threads(2)
        assert torch.equal(single, asc.participation_ratio(maps[good], spectrum=spectrum))
    finally:
        torch.set_num_threads(threads)


@settings(max_examples=60)
@given(n=st.integers(2, 40), seed=st.integers(0, 10_000), sharpness=st.floats(0.01, 20))
def test_laws(n, seed, sharpness):
    matrix = attention(n, 1, causal=seed % 2 == 0, sharpness=sharpness, seed=seed)[0]
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    for spectrum in ("singular", "laplacian"):
        value = asc.participation_ratio(matrix, spectrum=spectrum).item()
        assert 1 - 1e-12 <= value <= n * (1 + 1e-12)
        relabelled = asc.participation_ratio(matrix[order][:, order], spectrum=spectrum).item()
        scaled = asc.participation_ratio(0.3 * matrix, spectrum=spectrum).item()
        assert abs(relabelled / value - 1) < 1e-12
        assert abs(scaled / value - 1) < 1e-12
    assert 1 - 1e-12 <= asc.participation_ratio(matrix, spectrum="eigen").item() <= n * (1 + 1e-12)


@pytest.mark.parametrize("scale", [1e-300, 1e-90, 1e80, 1e300])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_magnitudes_far_from_one(scale, spectrum):
    maps = attention(20, 3, causal=False)
    expected = asc.participation_ratio(maps, spectrum=spectrum)
    torch.testing.assert_close(
        asc.participation_ratio(maps * scale, spectrum=spectrum), expected, rtol=1e-9, atol=0
    )


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"participation_ratio: spectrum must be one of .*got 'energy'"):
        asc.participation_ratio(torch.rand(3, 3), spectrum="energy")
    with pytest.raises(ValueError, match="participation_ratio: 4 queries cannot stand at the last of 3 keys"):
        asc.participation_ratio(torch.rand(4, 3))
    with pytest.raises(ValueError, match=r"participation_ratio: attention must be square .*\(3, 4\)"):
        asc.participation_ratio(torch.rand(3, 4), spectrum="laplacian")
    with pytest.raises(ValueError, match=r"participation_ratio: .*got torch.complex64"):
        asc.participation_ratio(torch.ones(3, 3, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"participation_ratio: attention must hold finite .*got -1\.0"):
        asc.participation_ratio(-torch.ones(3, 3), validate=True)
    assert asc.participation_ratio(torch.rand(0, 4, 4)).shape == (0,)


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("causal", [True, False])
def test_threads_share_the_products_of_a_large_map(causal, precision):
    """Fewer maps than threads are worked on by all of them, and no bit tells how many there were."""
    maps = attention(600, 2, causal, dtype=torch.float32)
    maps = maps.permute(1, 2, 0).contiguous().permute(2, 0, 1)
    wide = maps.double()
    gram = wide.mT @ wide
    expected = (wide.square().sum((1, 2)) ** 2 / gram.square().sum((1, 2))).numpy()
    threads = torch.get_num_threads()
    ratios = []
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            ratios += [
                asc.participation_ratio(maps, precision=precision),
                torch.stack([asc.participation_ratio(a.contiguous(), precision=precision) for a in maps]),
                # these are filled in once more, scaled, and the power of two changes no bit
                torch.stack([asc.participation_ratio(2.0**400 * a, precision=precision) for a in wide]),
            ]
    finally:
        torch.set_num_threads(threads)
    for ratio in ratios:
        assert torch.equal(ratio, ratios[0])
    np.testing.assert_allclose(ratios[0].numpy(), expected, rtol=1e-10 if precision == "exact" else 1e-5)


def cyclic_keys(targets):
    """Keys on cycles of a map whose queries attend to one key each: those that n steps from any lead to."""
    reached = np.arange(len(targets))
    for _ in range(len(targets)):
        reached = targets[reached]
    return len(set(reached.tolist()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_eigenvalues_of_heads_that_attend_to_one_key_are_those_of_its_cycles(dtype):
    generator = np.random.default_rng(4)
    for n in (2, 9, 34, 49, 70) * 6:
        targets = generator.integers(0, n, n)
        heads = torch.zeros(n, n, dtype=dtype)
        heads[torch.arange(n), torch.tensor(targets)] = 1
        assert abs(asc.participation_ratio(heads, spectrum="eigen").item() / cyclic_keys(targets) - 1) < 1e-12
