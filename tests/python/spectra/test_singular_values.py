# SPDX-License-Identifier: MIT
"""Singular values and what is read off them, against LAPACK and closed forms."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnscope as asc
from attnscope.metrics.spectra import singular_values as module

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
READ_OFF = ("stable_rank", "effective_rank", "spectral_gap", "spectral_ratio")


def attention(n, count=1, causal=True, sharpness=1.0, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(count, n, n, generator=generator, dtype=torch.float64)
    if causal:
        logits = logits + torch.full((n, n), -math.inf, dtype=torch.float64).triu(1)
    return logits.softmax(-1).to(dtype)


def assert_values(result, matrices):
    expected = np.linalg.svd(np.asarray(matrices.double()), compute_uv=False)
    error = np.abs(result.numpy() - expected)
    assert np.all(error <= 1e-12 * expected[..., :1]), error.max()
    large = expected > 1e-2 * expected[..., :1]
    assert np.all(error[large] <= 1e-10 * expected[large])


@pytest.mark.parametrize(
    "n", [1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 160, 257]
)
@pytest.mark.parametrize("causal", [True, False])
def test_equals_lapack(n, causal):
    maps = torch.cat([attention(n, 3, causal, sharpness) for sharpness in (0.3, 1.0, 3.0, 10.0)])
    result = asc.singular_values(maps)
    assert result.dtype == torch.float64
    assert result.shape == maps.shape[:-1]
    assert torch.all(result[..., :-1] >= result[..., 1:])
    assert torch.all(result >= 0)
    assert_values(result, maps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_the_exactly_converted_matrix(dtype):
    maps = attention(24, 5, dtype=dtype)
    assert torch.equal(asc.singular_values(maps), asc.singular_values(maps.double()))
    assert_values(asc.singular_values(maps), maps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_views_are_read_in_place(dtype):
    base = attention(40, 6, causal=False, dtype=dtype)
    before = base.clone()
    for view in (base[:, ::2, ::2], base[::2, 3:20, 5:22], base[0].expand(3, 40, 40), base[:, :17, :17]):
        assert torch.equal(asc.singular_values(view), asc.singular_values(view.contiguous()))
    transposed = asc.singular_values(base.mT)
    assert torch.equal(transposed, asc.singular_values(base.mT.contiguous()))
    torch.testing.assert_close(transposed, asc.singular_values(base), rtol=0, atol=1e-14)
    assert torch.equal(base, before)


def test_ragged_lengths_are_leading_blocks():
    maps = attention(50, 9, causal=False)
    lengths = torch.tensor([50, 1, 2, 17, 33, 49, 17, 5, 32])
    result = asc.singular_values(maps, lengths=lengths)
    for index, length in enumerate(lengths.tolist()):
        single_result = asc.singular_values(maps[index, :length, :length])
        assert torch.equal(result[index, :length], single_result)
        assert result[index, length:].isnan().all()
    for name in READ_OFF:
        together = getattr(asc, name)(maps, lengths=lengths)
        pairs = zip(maps, lengths.tolist(), strict=True)
        single_values = torch.stack([getattr(asc, name)(m[:k, :k]) for m, k in pairs])
        torch.testing.assert_close(together, single_values, rtol=1e-12, atol=0, equal_nan=True)


@pytest.mark.parametrize("n", [6, 32, 65, 150])
def test_a_non_finite_matrix_leaves_its_neighbours_alone(n):
    maps = attention(n, 11)
    clean = asc.singular_values(maps)
    maps[3, 0, 0] = math.nan
    maps[7, n - 1, 1] = math.inf
    with pytest.warns(RuntimeWarning, match="singular_values: 2 of 11 matrices"):
        result = asc.singular_values(maps)
    good = [i for i in range(11) if i not in (3, 7)]
    assert torch.equal(result[good], clean[good])
    assert result[[3, 7]].isnan().all()
    for name in READ_OFF:
        with pytest.warns(RuntimeWarning, match=f"{name}: 2 of 11 matrices"):
            assert getattr(asc, name)(maps).isnan().tolist() == [i in (3, 7) for i in range(11)]
    with pytest.raises(
        ValueError, match=r"singular_values: attention must hold finite .* at index \(3, 0, 0\)"
    ):
        asc.singular_values(maps, validate=True)


@pytest.mark.parametrize("n", [5, 32, 96, 140, 200])
def test_batch_is_a_loop_bit_for_bit(n):
    maps = torch.cat([attention(n, 5, sharpness=s, seed=1) for s in (0.1, 2.0, 30.0)])
    maps = torch.cat(
        [maps, torch.zeros(1, n, n, dtype=torch.float64), torch.eye(n, dtype=torch.float64)[None]]
    )
    together = asc.singular_values(maps)
    for index, single in enumerate(maps):
        assert torch.equal(together[index], asc.singular_values(single))
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            assert torch.equal(together, asc.singular_values(maps))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("n", [2, 9, 64, 130, 256])
def test_closed_forms(n):
    eye = torch.eye(n, dtype=torch.float64)
    shift = eye.roll(1, 0)
    torch.testing.assert_close(
        asc.singular_values(shift), torch.ones(n, dtype=torch.float64), rtol=0, atol=1e-14
    )
    uniform = asc.singular_values(torch.full((n, n), 1 / n, dtype=torch.float64))
    assert abs(uniform[0].item() - 1) < 1e-13
    assert uniform[1:].max() < 1e-14
    star = torch.zeros(n, n, dtype=torch.float64)
    star[:, 0] = 1
    assert abs(asc.singular_values(star)[0].item() - math.sqrt(n)) < 1e-12
    assert asc.singular_values(torch.zeros(n, n)).eq(0).all()
    # the inverse of the matrix of running sums: 2·cos(kπ/(2n + 1))
    steps = eye - torch.diag(torch.ones(n - 1, dtype=torch.float64), -1)
    expected = [2 * math.cos(k * math.pi / (2 * n + 1)) for k in range(1, n + 1)]
    torch.testing.assert_close(
        asc.singular_values(steps), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("n", [12, 60, 128, 200])
@pytest.mark.parametrize("kind", ["clusters", "graded", "low rank", "two blocks", "ties"])
def test_hard_spectra(n, kind):
    generator = np.random.default_rng(7)
    left, right = (np.linalg.qr(generator.standard_normal((n, n)))[0] for _ in range(2))
    if kind == "clusters":
        sigma = np.repeat([1.0, 1.0 - 1e-9, 1e-3], [n // 3, n // 3, n - 2 * (n // 3)])
    elif kind == "graded":
        sigma = 10.0 ** -np.linspace(0, 18, n)
    elif kind == "low rank":
        sigma = np.r_[np.linspace(1, 2, 4)[::-1], np.zeros(n - 4)]
    else:
        sigma = np.linspace(1, 2, n)[::-1]
    matrix = left @ np.diag(sigma) @ right
    if kind == "two blocks":
        matrix[: n // 2, n // 2 :] = matrix[n // 2 :, : n // 2] = 0
    if kind == "ties":
        matrix = np.round(matrix * 4) / 4
    assert_values(asc.singular_values(torch.from_numpy(matrix)), torch.from_numpy(matrix))


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e-40, 1e40, 1e150, 1e300])
def test_magnitudes_far_from_one(scale):
    maps = attention(20, 3)
    torch.testing.assert_close(
        asc.singular_values(maps * scale) / scale, asc.singular_values(maps), rtol=1e-9, atol=1e-13
    )
    torch.testing.assert_close(asc.stable_rank(maps * scale), asc.stable_rank(maps), rtol=1e-9, atol=0)


@settings(max_examples=40)
@given(n=st.integers(1, 40), seed=st.integers(0, 10_000), sharpness=st.floats(0.01, 20))
def test_laws(n, seed, sharpness):
    matrix = attention(n, 1, causal=seed % 2 == 0, sharpness=sharpness, seed=seed)[0]
    sigma = asc.singular_values(matrix)
    assert abs(sigma.square().sum() - matrix.square().sum()) <= 1e-12 * n
    generator = torch.Generator().manual_seed(seed)
    rows, columns = (torch.randperm(n, generator=generator) for _ in range(2))
    close = {"rtol": 0, "atol": 1e-13 * sigma[0].item() * n}
    torch.testing.assert_close(asc.singular_values(matrix[rows][:, columns]), sigma, **close)
    torch.testing.assert_close(asc.singular_values(matrix.mT), sigma, **close)
    torch.testing.assert_close(asc.singular_values(0.5 * matrix), 0.5 * sigma, **close)
    assert 1 - 1e-12 <= asc.stable_rank(matrix) <= n + 1e-9
    assert asc.stable_rank(matrix) <= asc.effective_rank(matrix) ** 2 + 1e-9
    assert 1 - 1e-12 <= asc.effective_rank(matrix) <= n + 1e-9
    if n > 1:
        assert asc.spectral_gap(matrix) >= 0
        assert asc.spectral_ratio(matrix) >= 1


@pytest.mark.parametrize("n", [2, 3, 10, 40, 90, 150])
@pytest.mark.parametrize("causal", [True, False])
def test_read_off_equals_numpy(n, causal):
    maps = torch.cat([attention(n, 4, causal, s) for s in (0.2, 1.0, 5.0)])
    sigma = np.linalg.svd(maps.numpy(), compute_uv=False)
    share = sigma / sigma.sum(-1, keepdims=True)
    expected = {
        "stable_rank": (maps.numpy() ** 2).sum((-1, -2)) / sigma[:, 0] ** 2,
        "effective_rank": np.exp(-(share * np.log(np.maximum(share, 1e-300))).sum(-1)),
        "spectral_gap": sigma[:, 0] - sigma[:, 1],
        "spectral_ratio": sigma[:, 0] / sigma[:, 1],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(getattr(asc, name)(maps).numpy(), values, rtol=1e-10, err_msg=name)
        np.testing.assert_allclose(
            getattr(module, f"{name}_of")(asc.singular_values(maps)).numpy(), values, rtol=1e-10, err_msg=name
        )


def test_stable_rank_of_hard_leading_pairs():
    n = 48
    for gap in (0.0, 1e-14, 1e-9, 1e-5, 1e-2):
        matrix = torch.zeros(n, n, dtype=torch.float64)
        matrix[: n // 2, : n // 2] = 2 / n
        matrix[n // 2 :, n // 2 :] = (2 / n) * (1 - gap)
        expected = 1 + (1 - gap) ** 2
        assert abs(asc.stable_rank(matrix).item() - expected) < 1e-10, gap
    signed = torch.randn(n, n, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    expected = np.linalg.norm(signed.numpy()) ** 2 / np.linalg.norm(signed.numpy(), 2) ** 2
    assert abs(asc.stable_rank(signed).item() / expected - 1) < 1e-10


def test_one_token_and_zeros():
    single_token = torch.ones(1, 1)
    assert asc.singular_values(single_token).tolist() == [1.0]
    assert asc.singular_values(-3.0 * single_token).tolist() == [3.0]
    assert asc.stable_rank(single_token).item() == 1
    assert asc.effective_rank(single_token).item() == 1
    assert math.isnan(asc.spectral_gap(single_token).item())
    assert math.isnan(asc.spectral_ratio(single_token).item())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zeros = torch.zeros(2, 4, 4)
        assert asc.stable_rank(zeros).isnan().all()
        assert asc.effective_rank(zeros).isnan().all()
        assert asc.spectral_gap(zeros).eq(0).all()
        assert asc.spectral_ratio(zeros).isnan().all()
    assert asc.spectral_ratio(torch.full((6, 6), 1 / 6)).item() == math.inf


def test_a_single_token_of_many_maps():
    for name in ("spectral_gap", "spectral_ratio"):
        result = getattr(asc, name)(torch.ones(3, 2, 1, 1))
        assert result.dtype == torch.float64
        assert result.shape == (3, 2)
        assert result.isnan().all()


def test_where_rounding_begins_to_decide():
    """σ2 <= n·2⁻⁵²·σ1 counts as 0, with the map's own n and σ1, whatever stands beside it."""
    eps, nan = 2.0**-52, math.nan
    sigma = [[1, 2 * eps, nan, nan], [1, 3 * eps, nan, nan], [1, 4 * eps, 0, 0], [1, 5 * eps, 0, 0]]
    sigma += [[4, 15 * eps, eps, 0], [4, 17 * eps, eps, 0], [0.5, eps, nan, nan], [0.5, 3 * eps, 0, nan]]
    result = module.spectral_ratio_of(torch.tensor(sigma, dtype=torch.float64))
    finite = [1 / (3 * eps), 1 / (5 * eps), 4 / (17 * eps), 1 / (6 * eps)]
    expected = [value for finite_value in finite for value in (math.inf, finite_value)]
    assert result.tolist() == expected


def test_bad_arguments():
    for name in ("singular_values", *READ_OFF):
        function = getattr(asc, name)
        with pytest.raises(ValueError, match=f"{name}: 8 queries cannot stand at the last of 7 keys"):
            function(torch.rand(2, 4, 8, 7))
        with pytest.raises(ValueError, match=rf"{name}: .*at least one token"):
            function(torch.rand(3, 0, 0))
        with pytest.raises(ValueError, match=rf"{name}: .*got torch.int64"):
            function(torch.ones(3, 3, dtype=torch.int64))
        with pytest.raises(ValueError, match=rf"{name}: lengths must lie between 1 and n = 3, got 4"):
            function(torch.rand(3, 3), lengths=4)
        with pytest.raises(TypeError, match=rf"{name}: attention must be a torch.Tensor"):
            function([[1.0]])
    assert asc.singular_values(torch.rand(0, 5, 5)).shape == (0, 5)
    assert asc.stable_rank(torch.rand(0, 5, 5)).shape == (0,)


@pytest.mark.parametrize("name", ["effective_rank", "stable_rank", "spectral_gap", "spectral_ratio"])
def test_the_padding_of_a_batch_changes_no_bit(name):
    function = getattr(asc, name)
    for n in (3, 7, 12):
        single_map = torch.softmax(
            torch.randn(50, n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64), -1
        )
        expected = function(single_map)
        for size in range(n + 1, n + 12):
            padded = torch.full((50, size, size), torch.nan, dtype=torch.float64)
            padded[:, :n, :n] = single_map
            assert torch.equal(function(padded, lengths=n), expected), (n, size)
