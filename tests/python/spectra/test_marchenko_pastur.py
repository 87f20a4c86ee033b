# SPDX-License-Identifier: MIT
"""Distances of spectra from their null laws, against a NumPy version with its own laws."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch

import attnscope as asc

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def attention(n, count=1, causal=True, sharpness=1.0, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(count, n, n, generator=generator, dtype=torch.float64)
    if causal:
        logits = logits + torch.full((n, n), -math.inf, dtype=torch.float64).triu(1)
    return logits.softmax(-1).to(dtype)


def standardized(matrix, mask):
    a = np.asarray(matrix.double())
    rows = []
    for values, visible in zip(a, np.asarray(mask), strict=True):
        seen = values[visible]
        if seen.size == 0 or np.all(seen == seen[0]):
            continue
        row = np.zeros(len(a))
        row[visible] = (seen - seen.mean()) / seen.std()
        rows.append(row)
    return np.array(rows)


def eigenvalues(matrix, mask):
    x = standardized(matrix, mask)
    return np.sort(np.linalg.svd(x, compute_uv=False)[: len(x)] ** 2 / x.shape[1])


def triangular_cdf(x):
    """Tabulated on the angle and interpolated by bisection, independent of the kernel's Newton steps."""
    x = np.asarray(x, dtype=float)
    low, high = np.zeros_like(x), np.full_like(x, math.pi)
    for _ in range(60):
        middle = (low + high) / 2
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            value = np.log(np.sin(middle) / middle) + middle / np.tan(middle)
            above = value > np.log(x)
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    v = (low + high) / 2
    return np.where(x >= math.e, 1.0, np.where(x <= 0, 0.0, 1 - v / math.pi + np.sin(v) ** 2 / (math.pi * v)))


def marchenko_pastur_cdf(x, gamma):
    """By Gauss–Legendre quadrature of the density over the angle."""
    root = math.sqrt(gamma)
    low, high = (1 - root) ** 2, (1 + root) ** 2
    # entire in the angle for square matrices; of others the pole comes near where γ is near 1
    nodes, weights = np.polynomial.legendre.leggauss(24 if gamma == 1 else 120)
    inside = np.clip(np.asarray(x, dtype=float), low, high)
    end = 2 * np.arctan2(np.sqrt(inside - low), np.sqrt(high - inside))
    half = np.sin(end[..., None] * (nodes + 1) / 4) ** 2  # x = low + 4√γ·half
    f = (2 / math.pi) * 4 * half * (1 - half) / np.maximum(low + 4 * root * half, 1e-300)
    return (f * weights).sum(-1) * end / 2


def ks(x, cdf, edge):
    floor = 1e-12 * edge
    x = np.sort(x)
    k = len(x)
    below = np.searchsorted(x, floor)
    at = cdf(x[below:])
    steps = np.arange(below, k)
    return max(
        abs(below / k - cdf(np.array([floor]))[0]),
        np.max(np.abs(steps / k - at)),
        np.max(np.abs((steps + 1) / k - at)),
    )


def wasserstein(x, cdf, ends):
    """∫ |F_emp − F| to ten digits: in pieces that grow away from both of their ends.

    Pieces end at the values, at the ends of the law's support, and where the law crosses the empirical one.
    """
    nodes, weights = np.polynomial.legendre.leggauss(20)
    steps = np.geomspace(1e-14, 0.5, 50)
    marks = np.concatenate([[0.0], steps, 1 - steps[-2::-1], [1.0]])
    total = 0.0
    for left, right in itertools.pairwise(np.unique([0.0, *x, *ends])):
        level = np.mean(x <= left)
        low, high = left, right
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if cdf(np.array([middle]))[0] < level else (low, middle)
        for start, stop in ((left, low), (low, right)):
            edges = start + (stop - start) * marks
            half = np.diff(edges)[:, None] / 2
            t = edges[:-1, None] + half * (nodes + 1)
            total += abs(np.sum(weights * (level - cdf(t.ravel()).reshape(t.shape)) * half))
    return total


def check(result, matrix, mask, kind, index=()):
    n = matrix.shape[-1]
    x = eigenvalues(matrix, mask)
    gamma = len(x) / n
    edge = math.e if kind == "causal" else (1 + math.sqrt(gamma)) ** 2
    cdf = triangular_cdf if kind == "causal" else (lambda v: marchenko_pastur_cdf(v, gamma))
    bound = edge * (1 + n ** (-2 / 3))
    assert abs(result.edge[index].item() / edge - 1) < 1e-14
    assert abs(result.largest[index].item() / x[-1] - 1) < 1e-10
    assert result.outliers[index].item() == np.sum(x > bound)
    assert abs(result.outlier_energy[index].item() - x[x > bound].sum() / x.sum()) < 1e-10
    assert abs(result.ks[index].item() - ks(x, cdf, edge)) < 1e-10
    if n < 10:
        ends = (math.e,) if kind == "causal" else ((1 - math.sqrt(gamma)) ** 2, edge)
        assert abs(result.wasserstein[index].item() - wasserstein(x, cdf, ends)) < 1e-10
    assert math.isnan(result.p_value[index].item())


@pytest.mark.parametrize(
    "n", [8, pytest.param(9, marks=pytest.mark.slow), 16, 33, 64, 128, 150, 256, 257, 300]
)
@pytest.mark.parametrize("causal", [True, False])
def test_equals_numpy(n, causal):
    maps = torch.cat([attention(n, 1, causal, s) for s in (0.2, 1.0, 6.0)])
    mask = torch.ones(n, n, dtype=torch.bool)
    result = asc.marchenko_pastur(maps)
    for index, matrix in enumerate(maps):
        check(result, matrix, mask.tril() if causal else mask, "causal" if causal else "full", index)
    assert torch.equal(asc.marchenko_pastur_deviation(maps), result.ks)


def hard_maps(n):
    """Causal maps whose small eigenvalues decide, are many, or drown in a rounding of the largest."""
    generator = torch.Generator().manual_seed(n)
    causal = torch.ones(n, n, dtype=torch.float64).tril()
    sink = attention(n, 1, seed=1)[0] * 1e-3
    sink[:, 0] += 1 - sink.sum(-1)
    few = torch.rand(n, 4, generator=generator, dtype=torch.float64)
    rank_four = (few @ few.mT) * causal
    graded = torch.logspace(0, -9, n, dtype=torch.float64) * causal
    graded = graded * (1 + 1e-3 * torch.rand(n, n, generator=generator, dtype=torch.float64))
    # every second row is the one before but for 3e-5, so that half the eigenvalues lie around 1e-9
    pairs = torch.rand(n, n, generator=generator, dtype=torch.float64) * causal
    for i in range(1, n - n % 2, 2):
        pairs[i, :i] = pairs[i - 1, :i]
        pairs[i, i] = pairs[i, :i].mean()
    pairs = pairs + 3e-5 * torch.rand(n, n, generator=generator, dtype=torch.float64) * causal
    one_hot = torch.eye(n, dtype=torch.float64)
    local = attention(n, 1, sharpness=8.0, seed=3)[0]
    maps = torch.stack([sink, rank_four, graded, pairs, one_hot, local])
    return maps / maps.sum(-1, keepdim=True)


@pytest.mark.parametrize("n", [12, 48, 97, 270])
def test_small_eigenvalues_are_exact_where_they_decide(n):
    maps = hard_maps(n)
    causal = torch.ones(n, n, dtype=torch.bool).tril()
    result = asc.marchenko_pastur(maps)
    for index, matrix in enumerate(maps):
        check(result, matrix, causal, "causal", index)
    full = maps @ maps.mT
    result = asc.marchenko_pastur(full, support="full")
    for index, matrix in enumerate(full):
        check(result, matrix, causal | True, "full", index)


@pytest.mark.parametrize(("n", "seed"), [(17, 0), (64, 1), (128, 2)])
def test_columns_that_all_but_vanish(n, seed):
    """Softmax of causal logits that fall by up to forty from key to key: a map lies in few columns."""
    generator = torch.Generator().manual_seed(seed)
    fall = torch.logspace(-1, math.log10(40), 8, dtype=torch.float64)[:, None, None]
    logits = torch.randn(8, n, n, generator=generator, dtype=torch.float64) - fall * torch.arange(n)
    maps = logits.masked_fill(torch.ones(n, n).triu(1).bool(), -math.inf).softmax(-1)
    causal = torch.ones(n, n, dtype=torch.bool).tril()
    result = asc.marchenko_pastur(maps)
    for index, matrix in enumerate(maps):
        check(result, matrix, causal, "causal", index)


@pytest.mark.parametrize("n", [40, 261])
def test_a_map_has_the_same_result_in_any_company(n):
    maps = torch.cat([hard_maps(n), attention(n, 3, sharpness=2.0), attention(n, 4, causal=False)])
    together = asc.marchenko_pastur(maps)
    order = torch.randperm(len(maps), generator=torch.Generator().manual_seed(5))
    shuffled = asc.marchenko_pastur(maps[order])
    for index in range(len(maps)):
        single_result = asc.marchenko_pastur(maps[index])
        for field, values in zip(together, single_result, strict=True):
            assert torch.equal(field[index], values) or values.isnan()
    for field, other in zip(together, shuffled, strict=True):
        assert torch.equal(field[order], other) or other.isnan().any()


def test_mean_distances_on_random_triangles_and_softmax():
    # measured values of the definition: softmax of Gaussian logits, n = 32, 64, 128
    measured = ((32, 300, 0.070, 0.059), (64, 120, 0.042, 0.034), (128, 40, 0.026, 0.019))
    for n, count, softmax, triangle in measured:  # means over seeds; standard errors below 0.0015
        result = asc.marchenko_pastur_deviation(attention(n, count, seed=n))
        assert abs(result.mean().item() - softmax) < 0.004
        # the triangle itself, not standardised: the law's own statement
        generator = torch.Generator().manual_seed(n)
        raw = torch.randn(count, n, n, generator=generator, dtype=torch.float64).tril()
        x = (asc.singular_values(raw) ** 2 / n).flip(-1).numpy()
        assert abs(np.mean([ks(row, triangular_cdf, math.e) for row in x]) - triangle) < 0.004


def test_full_law_holds_on_gaussian_rows():
    maps = torch.randn(20, 128, 128, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    result = asc.marchenko_pastur(maps)
    assert result.ks.mean() < 0.03
    assert result.wasserstein.mean() < 0.03
    wrong = asc.marchenko_pastur(maps.tril(), null="full")
    assert wrong.ks.min() > 0.15, "a square law under a causal mask must be seen to be wrong"


def test_constant_rows_are_dropped():
    n = 24
    matrix = attention(n, 1, causal=False)[0]
    matrix[5] = 1 / n
    matrix[9] = 0.1 + 0.2  # not exactly representable; its computed deviation need not be 0
    result = asc.marchenko_pastur(matrix)
    check(result, matrix, torch.ones(n, n, dtype=torch.bool), "full")
    assert abs(result.edge.item() - (1 + math.sqrt(22 / 24)) ** 2) < 1e-14


def test_one_hot_rows_have_a_closed_form():
    n = 16
    result = asc.marchenko_pastur(torch.eye(n, dtype=torch.float64).roll(1, 0))
    assert abs(result.largest.item() - n / (n - 1)) < 1e-12
    # n − 1 equal eigenvalues x0 and one 0: the distance is F(x0) − 1/n or 1 − F(x0)
    at = marchenko_pastur_cdf(n / (n - 1), 1.0)
    assert abs(result.ks.item() - max(at - 1 / n, 1 - at)) < 1e-10


def test_support_rules():
    n = 20
    maps = attention(n, 3)
    causal = torch.ones(n, n, dtype=torch.bool).tril()
    auto = asc.marchenko_pastur(maps)
    for support in ("causal", causal, causal.expand(3, n, n)):
        for field, expected in zip(asc.marchenko_pastur(maps, support=support), auto, strict=True):
            assert torch.equal(field, expected) or field.isnan().all()
    check(asc.marchenko_pastur(maps, support="full"), maps[1], torch.ones(n, n, dtype=torch.bool), "full", 1)
    check(asc.marchenko_pastur(maps, null="full"), maps[1], causal, "full", 1)
    window = causal & ~causal.tril(-6)
    result = asc.marchenko_pastur(maps, support=window)
    assert result.p_value.isfinite().all()
    batch_of_masks = torch.stack([causal, window, window])
    mixed = asc.marchenko_pastur(maps, support=batch_of_masks)
    assert mixed.p_value.isnan().tolist() == [True, False, False]
    assert mixed.ks[0] == auto.ks[0]
    assert mixed.ks[2] == result.ks[2]


def test_permutation_null_is_reproducible_and_independent_of_place():
    maps = attention(24, 6)
    first = asc.marchenko_pastur(maps, null="permutation", draws=7, seed=3)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            again = asc.marchenko_pastur(maps, null="permutation", draws=7, seed=3)
            assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    finally:
        torch.set_num_threads(threads)
    for index in range(6):
        single_result = asc.marchenko_pastur(maps[index], null="permutation", draws=7, seed=3)
        assert all(torch.equal(a, b[index]) for a, b in zip(single_result, first, strict=True))
    other = asc.marchenko_pastur(maps, null="permutation", draws=7, seed=4)
    assert not torch.equal(first.edge, other.edge)
    assert torch.equal(first.largest, other.largest)
    grid = (first.p_value * 8 - 1).round()
    torch.testing.assert_close(first.p_value, (1 + grid) / 8)


@pytest.mark.parametrize("function", [asc.marchenko_pastur, asc.marchenko_pastur_deviation])
def test_twenty_draws_of_seed_0_by_default(function):
    maps = attention(16, 2)

    def null(**options):  # a deviation, which draws decide where the support has no law
        window = torch.ones(16, 16, dtype=torch.bool).tril() & ~torch.ones(16, 16, dtype=torch.bool).tril(-6)
        result = function(maps, support=window, **options)
        return result if isinstance(result, torch.Tensor) else result.ks

    assert torch.equal(null(), null(draws=20, seed=0))
    assert not torch.equal(null(), null(draws=21, seed=0))
    assert not torch.equal(null(), null(draws=20, seed=1))
    single_result = asc.marchenko_pastur(maps, null="permutation", draws=1)
    assert set(single_result.p_value.tolist()) <= {0.5, 1.0}


@pytest.mark.parametrize("causal", [True, False])
def test_p_values_of_exchangeable_rows_are_uniform(causal):
    count, draws = 300, 19
    maps = attention(12, count, causal=causal, sharpness=2.0, seed=5)
    p = asc.marchenko_pastur(maps, null="permutation", draws=draws).p_value.numpy()
    counts = np.bincount(np.round(p * 20).astype(int) - 1, minlength=20)
    assert counts.sum() == count
    chi = ((counts - count / 20) ** 2 / (count / 20)).sum()
    assert chi < 43.8, counts  # the 99.9 % point of χ² with 19 degrees of freedom
    assert abs(p.mean() - 0.525) < 4 * 0.2887 / math.sqrt(count)


def test_permutation_null_sees_structure():
    n = 40
    rows = torch.arange(n, dtype=torch.float64)
    sink = 0.5 * torch.eye(n, dtype=torch.float64)[0] + 0.5 * torch.exp(-(rows[:, None] - rows).abs() / 4)
    sink = sink.tril() / sink.tril().sum(-1, keepdim=True)
    result = asc.marchenko_pastur(sink, null="permutation", draws=39)
    assert result.p_value.item() == 1 / 40
    assert result.outliers.item() >= 1


def test_one_hot_rows_under_permutation_have_no_spurious_distance():
    # every shuffle of a one-hot matrix is one-hot; atoms must not be split by rounding
    result = asc.marchenko_pastur(torch.eye(30), null="permutation", draws=30, seed=1)
    assert 1 / 31 <= result.p_value.item() <= 1
    assert result.ks.item() <= 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes_and_strides(dtype):
    base = attention(40, 3, causal=False, dtype=dtype)
    for view in (base, base.mT, base[:, ::2, ::2], base[:, 3:30, 5:32]):
        for null in ("auto", "permutation"):
            result = asc.marchenko_pastur(view, null=null, draws=3)
            expected = asc.marchenko_pastur(view.double().contiguous(), null=null, draws=3)
            for a, b in zip(result, expected, strict=True):
                assert torch.equal(a.nan_to_num(-7.0), b.nan_to_num(-7.0))


def test_ragged_short_and_non_finite():
    maps = attention(30, 8)
    lengths = torch.tensor([30, 12, 7, 8, 30, 29, 1, 30])
    maps[4, 3, 1] = math.nan
    with pytest.warns(RuntimeWarning) as record:
        result = asc.marchenko_pastur(maps, lengths=lengths)
    messages = " | ".join(str(entry.message) for entry in record)
    assert "2 of 8 matrices have fewer than 8 tokens" in messages
    assert "1 of 8 matrices hold NaN" in messages
    assert result.outliers.dtype == torch.int64
    assert (result.outliers == -1).tolist() == [i in (2, 4, 6) for i in range(8)]
    assert result.ks.isnan().tolist() == [i in (2, 4, 6) for i in range(8)]
    for index in (0, 1, 3, 5, 7):
        k = int(lengths[index])
        single_result = asc.marchenko_pastur(maps[index, :k, :k])
        for a, b in zip(single_result, result, strict=True):
            assert torch.equal(a.nan_to_num(-7.0), b[index].nan_to_num(-7.0))


def test_uniform_attention_has_no_row_that_varies():
    uniform = torch.tril(torch.ones(12, 12)) / torch.arange(1, 13)[:, None]
    with pytest.warns(RuntimeWarning, match="1 of 1 matrices have fewer than 8 tokens or no row that varies"):
        result = asc.marchenko_pastur(uniform)
    assert result.ks.isnan()
    assert result.outliers.item() == -1


def test_tiny_entries_still_vary():
    matrix = attention(12, 1, causal=False)[0]
    matrix[3] = torch.linspace(0, 1, 12, dtype=torch.float64) * 1e-250
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = asc.marchenko_pastur(matrix)
    scaled = matrix.clone()
    scaled[3] = torch.linspace(0, 1, 12, dtype=torch.float64)
    torch.testing.assert_close(result.ks, asc.marchenko_pastur_deviation(scaled), rtol=0, atol=1e-10)


def test_relabelling_keys_of_a_full_map_changes_nothing():
    maps = attention(30, 2, causal=False)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    result, relabelled = (asc.marchenko_pastur(m) for m in (maps, maps[:, order][:, :, order]))
    for a, b in zip(result[:6], relabelled[:6], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_repr_names_shapes():
    assert "ks=float64[2, 3]" in repr(asc.marchenko_pastur(attention(9, 6).reshape(2, 3, 9, 9)))


@pytest.mark.parametrize("function", [asc.marchenko_pastur, asc.marchenko_pastur_deviation])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"null": "law"}, "null must be one of .*got 'law'"),
        ({"draws": 0}, "draws must be at least 1, got 0"),
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"attention": torch.rand(9, 8)}, "9 queries cannot stand at the last of 8 keys"),
        ({"support": "window"}, "support"),
        ({"support": torch.ones(8, 8, dtype=torch.bool)}, "support"),
    ],
)
def test_bad_arguments(function, options, words):
    with pytest.raises(ValueError, match=f"{function.__name__}: {words}"):
        function(**{"attention": torch.rand(9, 9), **options})
