# SPDX-License-Identifier: MIT
"""The bounds that `precision="fast"` states for spectra, against NumPy and against "exact"."""

from collections import Counter

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope._precision import count_fallbacks
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


def standardised(maps):
    """Rows over the keys that they see; those that do not vary become 0."""
    n = maps.shape[-1]
    causal = np.triu(maps, 1).max(axis=(1, 2), keepdims=True) == 0
    visible = np.where(causal, np.tril(np.ones((n, n))), 1.0)
    count = visible.sum(-1, keepdims=True)
    for _ in range(2):  # the first mean's rounding is not small beside entries that hardly differ
        maps = (maps - (maps * visible).sum(-1, keepdims=True) / count) * visible
    deviation = np.sqrt((maps**2).sum(-1, keepdims=True) / count)
    return np.where(deviation > 1e-14, maps / np.where(deviation > 0, deviation, 1.0), 0.0), causal[:, 0, 0]


def distance(values, size, law):
    """ks of the largest `size` values, ascending, against a law F with an upper edge."""
    cdf, edge = law
    values, floor = values[-size:], 1e-12 * edge
    rank = np.arange(size)
    at = cdf(np.maximum(values, floor))
    steps = np.maximum(np.abs((rank + 1) / size - at), np.abs(at - rank / size))[values >= floor]
    below = np.count_nonzero(values < floor) / size
    return max(steps.max(initial=0.0), abs(below - cdf(np.array([floor]))[0]))


def triangular(x):
    """F of the triangular law by bisection in its angle: x = (sin t/t)·exp(t cot t)."""
    low, high = np.full_like(x, 1e-12), np.full_like(x, np.pi - 1e-12)
    for _ in range(100):
        t = (low + high) / 2
        above = np.log(np.sin(t) / t) + t / np.tan(t) > np.log(x)
        low, high = np.where(above, t, low), np.where(above, high, t)
    return np.where(x >= np.e, 1.0, 1 - t / np.pi + np.sin(t) ** 2 / (np.pi * t))


def marchenko_pastur_law(aspect):
    """F by its integral in the angle, for eigenvalues 1 + γ + 2√γ cos t."""
    root = np.sqrt(aspect)

    def cdf(x):
        begin = np.arccos(np.clip((x - 1 - aspect) / (2 * root), -1, 1))
        half = (np.linspace(0, 1, 4001)[:, None] * (np.pi - begin) + begin) / 2
        cosine = np.cos(half) ** 2
        density = np.sin(half) ** 2 * cosine / ((1 - root) ** 2 + 4 * root * cosine)
        return 8 / np.pi * np.trapezoid(density, 2 * half, axis=0)

    return cdf, (1 + root) ** 2


@pytest.mark.parametrize(("n", "dtype"), [*((257, dtype) for dtype in DTYPES), (300, DTYPES[0])])
def test_distances_from_random_rows(n, dtype):
    maps = regimes(n).to(dtype)
    rows, causal = standardised(maps.double().numpy())
    sizes = np.any(rows != 0, axis=-1).sum(-1)
    spectra = np.sort(np.linalg.svd(rows, compute_uv=False) ** 2 / n)
    with pytest.warns(RuntimeWarning, match="no row that varies"):
        fast, exact = (asc.marchenko_pastur(maps, precision=precision) for precision in ("fast", "exact"))
    distances = asc.marchenko_pastur_deviation(maps[:4], precision="fast")
    assert torch.equal(distances, fast.ks[:4])
    assert torch.equal(fast.outliers, exact.outliers)
    assert torch.equal(fast.ks.isnan(), torch.tensor(sizes == 0))
    for at in np.flatnonzero(sizes):
        law = (triangular, np.e) if causal[at] else marchenko_pastur_law(sizes[at] / n)
        assert abs(fast.ks[at] - distance(spectra[at], sizes[at], law)) <= 1e-4, at
    for name in ("wasserstein", "largest", "edge", "outlier_energy"):
        numbers = (getattr(result, name) for result in (fast, exact))
        torch.testing.assert_close(*numbers, rtol=1e-5, atol=1e-7, equal_nan=True, msg=name)


def test_distances_of_other_sizes_supports_and_nulls_are_exact():
    def exact_and_fast(maps, **options):
        return [asc.marchenko_pastur_deviation(maps, precision=p, **options) for p in ("exact", "fast")]

    packed, large = regimes(256)[:6], regimes(270)[:2]
    window = torch.ones(270, 270, dtype=torch.bool).tril().triu(-40)
    assert torch.equal(*exact_and_fast(packed))
    assert torch.equal(*exact_and_fast(large[:, :260]))
    assert torch.equal(*exact_and_fast(large, null="permutation", draws=2))
    assert torch.equal(*exact_and_fast(large, support=window, draws=2))


def nearly_equal_pairs(n, size):
    """A causal map whose rows come in pairs that standardise to the same but for `size`: half of its singular
    values are as small.
    """
    draw = np.random.default_rng(0)
    a = np.tril(draw.random((n, n)))
    for row in range(1, n, 2):
        a[row, :row] = a[row - 1, :row]
        a[row, row] = a[row, :row].mean()
        a[row, : row + 1] *= 1 + size * draw.standard_normal(row + 1)
    return a


@pytest.mark.parametrize("size", [1e-6, 3e-6, 1e-5])
def test_maps_whose_distance_float32_leaves_open_fall_back_and_are_counted(size):
    """Float32 knows no digit of singular values so small, and the triangular law still rises there."""
    maps = torch.tensor(np.stack([nearly_equal_pairs(260, size), np.tril(attention_map(260, "causal", 1))]))
    counts: Counter[str] = Counter()
    with count_fallbacks(counts):
        fast = asc.marchenko_pastur(maps, precision="fast")
    assert counts == {"marchenko_pastur": 1}
    exact = asc.marchenko_pastur(maps)
    for name, values in fast._asdict().items():
        torch.testing.assert_close(values[0], getattr(exact, name)[0], rtol=0, atol=0, equal_nan=True)
    assert not torch.equal(fast.ks[1], exact.ks[1])
    assert bool((fast.ks - exact.ks).abs()[1] < 1e-4)


@pytest.mark.parametrize("share", [1e-3, 1e-6, 1e-9])
def test_sinks_with_a_huge_largest_eigenvalue_keep_the_distance(share):
    n = 280
    sink = torch.zeros(n, n, dtype=torch.float64)
    sink[:, 0] = 1.0
    logits = torch.randn(2, n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
    rest = torch.stack([logits[0].masked_fill(hidden, -torch.inf), logits[1]]).softmax(-1)
    maps = (1 - share) * sink + share * rest
    fast, exact = (asc.marchenko_pastur(maps, precision=precision) for precision in ("fast", "exact"))
    assert bool((exact.largest > 100).all())
    assert bool(((fast.ks - exact.ks).abs() <= 1e-4).all())
    torch.testing.assert_close(fast.largest, exact.largest, rtol=1e-5, atol=0)
    assert torch.equal(fast.outliers, exact.outliers)


@pytest.mark.parametrize("n", [20, 128, 260])
def test_neighbours_change_no_bit(n):
    maps = regimes(n)
    broken = torch.full((1, n, n), torch.nan, dtype=torch.float64)
    batch = torch.cat([maps, broken, broken + torch.inf, maps])
    for function in (asc.singular_values, asc.laplacian_eigenvalues, asc.marchenko_pastur_deviation):
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


@pytest.mark.parametrize("n", [33, 64])
def test_a_whole_pack_that_falls_back_is_exact(n):
    """A fast pack may hold more maps than an exact one."""
    generator = torch.Generator().manual_seed(n)
    maps = (1e-5 * torch.randn(40, n, n, generator=generator, dtype=torch.float64)).softmax(-1)
    counts: Counter[str] = Counter()
    with count_fallbacks(counts):
        fast = asc.singular_values(maps, precision="fast")
    assert counts == {"singular_values": 40}
    assert torch.equal(fast, asc.singular_values(maps))
