# SPDX-License-Identifier: MIT
"""The bounds that `precision="fast"` states for spectra, against NumPy and against "exact"."""

import numpy as np
import pytest
import torch

import attnscope as asc
from strategies import KINDS, attention_map

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
# both sides of every pack (eight and sixteen maps), of the largest sizes of float32 packs and of packs
SIZES = [1, 2, 3, 7, 8, 9, 31, 33, 64, 96, 97, 128, 129, 200, 256, 257, 300]


def regimes(n):
    """Maps of every kind, sharp and flat, and degenerate ones: equal rows, identity, ties, zeros."""
    maps = [attention_map(n, kind, n, sharpness) for kind in KINDS for sharpness in (0.1, 1.5, 6.0)]
    return torch.tensor(np.array([*maps, np.full((n, n), 1.0 / n), np.eye(n), np.zeros((n, n))]))


def laplacian(a, normalized):
    w = (a + a.T) / 2
    np.fill_diagonal(w, 0.0)
    degree = w.sum(0)
    if not normalized:
        return np.diag(degree) - w
    root = np.sqrt(np.where(degree > 0, degree, 1.0))
    return np.diag((degree > 0).astype(float)) - w / root / root[:, None]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
def test_singular_values_and_what_is_read_off_them(n, dtype):
    maps = regimes(n).to(dtype)
    wide = maps.double()
    sigma = np.linalg.svd(wide.numpy(), compute_uv=False)
    fast = asc.singular_values(maps, precision="fast").numpy()
    assert np.all(np.abs(fast - sigma) <= 1e-5 * sigma[:, :1])
    nonzero = wide[:-1]
    for function, relative in ((asc.stable_rank, 1e-5), (asc.effective_rank, 1e-3)):
        torch.testing.assert_close(
            function(nonzero, precision="fast"), function(nonzero), rtol=relative, atol=0
        )
    gaps = [asc.spectral_gap(nonzero, precision=precision) for precision in ("fast", "exact")]
    assert n == 1 or bool(((gaps[0] - gaps[1]).abs() <= 2e-5 * torch.tensor(sigma[:-1, 0])).all())
    if n > 1:
        assert asc.spectral_ratio(wide[-3], precision="fast").isinf()


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("n", SIZES)
def test_laplacian_eigenvalues(n, normalized):
    maps = regimes(n)
    expected = np.linalg.eigvalsh(np.array([laplacian(a, normalized) for a in maps.numpy()]))
    for dtype in DTYPES if n in (33, 128) else DTYPES[:1]:
        low = maps.to(dtype)
        truth = expected
        if dtype != torch.float64:
            truth = np.linalg.eigvalsh(np.array([laplacian(a, normalized) for a in low.double().numpy()]))
        fast = asc.laplacian_eigenvalues(low, normalized=normalized, precision="fast").numpy()
        assert np.all(np.abs(fast - truth) <= 1e-5 * truth[:, -1:] + 1e-14)
        exact = asc.laplacian_eigenvalues(low, normalized=normalized).numpy()
        assert np.all((fast == 0)[exact == 0]), "components are counted, not solved for"
    if n >= 3:
        gap = asc.laplacian_gap(maps, normalized=normalized, precision="fast").numpy()
        assert np.all(np.abs(gap - (expected[:, 2] - expected[:, 1])) <= 2e-5 * expected[:, -1] + 1e-14)


def test_distances_from_random_rows_are_exact():
    """The laws are steep where eigenvalues crowd: float32 would move ks by more than 1e-4 on most maps."""
    maps = regimes(40)[:6]
    exact = asc.marchenko_pastur_deviation(maps)
    assert torch.equal(asc.marchenko_pastur_deviation(maps, precision="fast"), exact)


@pytest.mark.parametrize("n", [20, 128, 260])
def test_neighbours_change_no_bit(n):
    maps = regimes(n)
    broken = torch.full((1, n, n), torch.nan, dtype=torch.float64)
    batch = torch.cat([maps, broken, broken + torch.inf, maps])
    for function in (asc.singular_values, asc.laplacian_eigenvalues):
        with pytest.warns(RuntimeWarning):
            values = function(batch, precision="fast")
        single = function(maps[4], precision="fast")
        assert torch.equal(values[4], single)
        assert values[len(maps)].isnan().all()
        assert torch.equal(values[len(maps) + 6], values[4])


@pytest.mark.parametrize("exponent", [-200, -60, 60, 200])
@pytest.mark.parametrize("n", [40, 100, 260])
def test_entries_that_float32_cannot_square(exponent, n):
    maps = regimes(n)
    for function in (asc.singular_values, asc.laplacian_eigenvalues):
        scaled = function(maps * 2.0**exponent, precision="fast") * 2.0**-exponent
        bound = 2e-5 * function(maps).amax(-1, keepdim=True)
        assert bool(((scaled - function(maps)).abs() <= bound).all())


def test_negative_weights_have_their_exact_eigenvalues():
    maps = torch.randn(3, 20, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exact, fast = (asc.laplacian_eigenvalues(maps, precision=precision) for precision in ("exact", "fast"))
    assert torch.equal(exact, fast)


@pytest.mark.parametrize("spread", [12.0, 30.0, 80.0])
@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_columns_that_all_but_vanish_leave_the_large_values_as_they_are(precision, spread):
    """Squares of 1e-20 are subnormal in float32: a reflector made of them would not be orthogonal."""
    generator = torch.Generator().manual_seed(1)
    of_keys, of_pairs = (
        torch.randn(2000, rows, 32, generator=generator, dtype=torch.float64) for rows in (1, 32)
    )
    scores = (spread * of_keys + 0.3 * of_pairs).masked_fill(~torch.ones(32, 32).tril().bool(), -torch.inf)
    maps = scores.softmax(-1).float()
    expected = torch.linalg.svdvals(maps.double())
    error = (asc.singular_values(maps, precision=precision) - expected).abs().amax(-1) / expected[:, 0]
    assert float(error.max()) < (1e-13 if precision == "exact" else 1e-5)


@pytest.mark.parametrize("n", [16, 33, 64, 96, 97, 128, 256, 257])
def test_nearly_equal_weights_keep_their_effective_rank(n):
    """Maps of untrained encoders: a singular value of 1, and n − 1 at the rounding of A·Aᵀ and above."""
    draw = np.random.default_rng(n)
    for size in 10.0 ** np.arange(-9.0, -1.0, 0.5):
        logits = size * draw.standard_normal((4, n, n))
        maps = torch.tensor(logits).softmax(-1)
        sigma = np.linalg.svd(maps.numpy(), compute_uv=False)
        share = sigma / sigma.sum(-1, keepdims=True)
        expected = np.exp(-np.sum(share * np.log(np.maximum(share, 1e-300)), -1))
        fast = asc.effective_rank(maps, precision="fast").numpy()
        np.testing.assert_allclose(fast, expected, rtol=1e-3, atol=0, err_msg=f"logits of size {size:.1e}")
