# SPDX-License-Identifier: MIT
"""toeplitz_split, mask_only and offset_variance against double loops in NumPy, closed forms and laws."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnscope as asc

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
KINDS = ("random", "tied", "windowed", "large")


def scores(*shape, kind="random", seed=0, dtype=torch.float64):
    """Scores with -inf above the diagonal."""
    generator = torch.Generator().manual_seed(seed)
    s = 2.0 * torch.randn(*shape, generator=generator, dtype=torch.float64)
    n = shape[-1]
    if kind == "tied":
        s = s.round()
    if kind == "large":
        s = 1000 * torch.sign(s)
    s = s.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -torch.inf)
    if kind == "windowed":
        s = s.masked_fill(torch.ones(n, n, dtype=torch.bool).tril(-3), -torch.inf)
    return s.to(dtype)


def visible(x):
    return x > -np.inf


def slow_split(s, late=True, weights=None):
    """The page's definitions, one entry at a time."""
    n = len(s)
    m = n // 2 if late else n
    profile = np.full(m, np.nan)
    for offset in range(m):
        rows = range(m, 2 * m) if late else range(offset, n)
        seen = [s[i, i - offset] for i in rows if visible(s[i, i - offset])]
        if seen:
            profile[offset] = math.fsum(seen) / len(seen)
    residual = np.full((m, m), np.nan)
    row, variance, first, lse = (np.full(m, np.nan) for _ in range(4))
    for i in range(m):
        for j in range(i + 1):
            if visible(s[i, j]) and not np.isnan(profile[i - j]):
                residual[i, j] = s[i, j] - profile[i - j]
        body = [j for j in range(1, i + 1) if not np.isnan(residual[i, j])]
        w = np.array([1.0 if weights is None else weights[i, j] for j in body])
        if w.sum() > 0:
            w = w / w.sum()
            row[i] = sum(a * residual[i, j] for a, j in zip(w, body, strict=True))
            if (w > 0).sum() >= 2:
                variance[i] = sum(a * (residual[i, j] - row[i]) ** 2 for a, j in zip(w, body, strict=True))
        if body:
            first[i] = residual[i, 0] - np.mean([residual[i, j] for j in body])
        seen = [s[i, j] for j in range(i + 1) if visible(s[i, j])]
        if seen:
            lse[i] = log_sum(seen)
    return profile, residual, row, variance, first, lse


def log_sum(values):
    top = max(values)
    return top + math.log(math.fsum(math.exp(v - top) for v in values))


def slow_mask(s, body=False, sink=-np.inf):
    m = len(s) // 2
    rows = [i for i in range(m, 2 * m) if visible(s[i, i])]
    lse, cut, share = np.full(m, np.nan), np.full(m, np.nan), np.full(m, np.nan)
    attention = np.full((m, m), np.nan)
    if not rows:
        return lse, cut, share, attention
    sums = np.array([[log_sum([sink, *(s[r, r - d] for d in range(i + 1))]) for i in range(m)] for r in rows])
    lse = sums.mean(0)
    cut = (sums[:, -1:] - sums).mean(0)
    share = 1 - np.exp(sums - sums[:, -1:]).mean(0)
    for i in range(m):
        if body and i == 0:
            continue
        attention[i] = 0.0
        farthest = i - 1 if body else i
        for offset in range(farthest + 1):
            attention[i, i - offset] = np.mean(
                [math.exp(s[r, r - offset] - sums[k, farthest]) for k, r in enumerate(rows)]
            )
    return lse, cut, share, attention


def close(result, expected, tolerance=1e-12):
    np.testing.assert_allclose(result.numpy(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [2, 3, 6, 17, 34, 65])
def test_split_and_mask_only_equal_the_double_loop(n, kind, dtype):
    s = scores(2, n, n, kind=kind, seed=n, dtype=dtype)
    for flag, estimator in ((True, "late"), (False, "simple")):
        split, mask = asc.toeplitz_split(s, estimator=estimator), asc.mask_only(s, body=flag)
        for index, scores_of_map in enumerate(s.double().numpy()):
            for fields, slow in (
                (split, slow_split(scores_of_map, flag)),
                (mask, slow_mask(scores_of_map, flag)),
            ):
                for actual, expected in zip(fields, slow, strict=True):
                    scale = 1e-12 * max(1.0, np.nanmax(np.abs(expected), initial=0.0))
                    np.testing.assert_allclose(actual[index].numpy(), expected, rtol=1e-12, atol=scale)


@pytest.mark.parametrize("n", [258, 1100])
def test_long_maps_take_the_logarithm_of_many_rows(n):
    s = scores(n, n, seed=5)
    result = asc.mask_only(s, queries=[0, 7, n // 2 - 1])
    m = n // 2
    late = torch.stack([s[i, i - m + 1 : i + 1].flip(0) for i in range(m, 2 * m)])
    sums = late.logcumsumexp(-1)
    close(result.lse, sums.mean(0), 1e-11)
    close(result.share, 1 - (sums - sums[:, -1:]).exp().mean(0), 1e-11)
    close(result.attention[1, :8].flip(0), (late[:, :8] - sums[:, 7:8]).exp().mean(0))


def test_queries_choose_rows_and_sinks_count_in_every_sum():
    s = scores(3, 2, 40, 40, seed=3)
    full_result = asc.mask_only(s)
    chosen_queries = asc.mask_only(s, queries=[0, 3, 4, 11, 19])
    close(chosen_queries.attention, full_result.attention[..., [0, 3, 4, 11, 19], :], 1e-14)
    logits = torch.tensor([-torch.inf, 1.5])
    with_sink = asc.mask_only(s, sink_logit=logits, body=True)
    for text in range(3):
        for head, sink in enumerate(logits.tolist()):
            for actual, expected in zip(with_sink, slow_mask(s[text, head].numpy(), True, sink), strict=True):
                close(actual[text, head], expected)
    assert (with_sink.attention[:, 1, 5].sum(-1) < 1).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_offset_variance_is_numpys(dtype):
    values = scores(3, 17, 17, kind="windowed", dtype=dtype) + 1000
    result = asc.offset_variance(values)
    for index in range(3):
        for offset in range(17):
            diagonal = np.diagonal(values[index].double().numpy(), -offset)
            diagonal = diagonal[visible(diagonal)]
            assert result.count[index, offset] == len(diagonal)
            if len(diagonal):
                np.testing.assert_allclose(result.mean[index, offset], diagonal.mean(), rtol=1e-13)
                np.testing.assert_allclose(
                    result.variance[index, offset], diagonal.var(), rtol=1e-10, atol=1e-12
                )
            else:
                assert result.mean[index, offset].isnan()


def test_weights_are_normalised_over_the_body():
    s = scores(2, 12, 12, seed=1)
    weights = torch.rand(2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weights[0, 4] = 0.0
    weights[0, 5, 1:5] = 0.0
    result = asc.toeplitz_split(s, weights=weights)
    for index in range(2):
        expected = slow_split(s[index].numpy(), weights=weights[index].numpy())
        for actual, other in zip(result, expected, strict=True):
            close(actual[index], other)
    assert result.variance[0, 4:].isnan().all()
    single_result = asc.toeplitz_split(s, weights=weights[1])
    close(single_result.variance[1], result.variance[1])


def test_equal_scores_are_the_mask_and_nothing_else():
    m = 16
    s = torch.full((2 * m, 2 * m), 0.75, dtype=torch.float64).tril()
    result = asc.mask_only(s)
    key_counts = torch.arange(1, m + 1, dtype=torch.float64)
    close(result.cut, (m / key_counts).log())
    close(result.share, 1 - key_counts / m)
    close(result.lse, 0.75 + key_counts.log())
    close(result.attention, torch.ones(m, m).tril() / key_counts[:, None])
    split = asc.toeplitz_split(s)
    assert (split.residual[torch.ones(m, m).bool().tril()] == 0).all()


@pytest.mark.parametrize("seed", range(4))
def test_a_profile_and_row_constants_leave_no_residual(seed):
    generator = torch.Generator().manual_seed(seed)
    n = 40
    profile = torch.randn(n, generator=generator, dtype=torch.float64)
    constants = 50 * torch.randn(n, generator=generator, dtype=torch.float64)
    offsets = torch.arange(n)[:, None] - torch.arange(n)
    s = (profile[offsets.clamp(min=0)] + constants[:, None]).tril()
    split, mask = asc.toeplitz_split(s), asc.mask_only(s, body=True)
    close(split.variance[2:], torch.zeros(18))
    close(split.first[1:], torch.zeros(19), 1e-11)
    close(split.row[1:], constants[1:20] - constants[20:].mean(), 1e-11)
    attention = torch.softmax(s.masked_fill(offsets < 0, -torch.inf), -1)[:20, :20]
    bodies = attention / (1 - attention[:, :1])
    moved = (bodies - mask.attention)[1:, 1:]
    close(moved, torch.zeros(19, 19))


def test_each_key_takes_its_share_from_the_nearer_ones():
    """Λ_{i+1} − Λ_i = −log(1 − a_{i+1}) where every late row holds the same scores by offset."""
    by_offset = torch.tensor([0.3, 1.2, -0.4], dtype=torch.float64)
    s = torch.zeros(6, 6, dtype=torch.float64)
    for i in range(3, 6):
        s[i, i - 2 : i + 1] = by_offset.flip(0)
    result = asc.mask_only(s)
    late_attention = torch.softmax(by_offset, 0)
    for i in range(2):
        newest = torch.softmax(by_offset[: i + 2], 0)[-1]
        close(result.lse[i + 1] - result.lse[i], -torch.log1p(-newest))
        cut = torch.cat([torch.softmax(by_offset[: i + 1], 0), torch.zeros(2 - i)])
        close(result.share[i], (cut - late_attention).abs().sum() / 2)


def test_a_window_cuts_nothing_once_it_is_full():
    s = scores(64, 64, kind="windowed", seed=2)
    result = asc.mask_only(s)
    assert (result.cut[2:] == 0).all()
    assert (result.share[2:] == 0).all()
    assert (result.cut[:2] > 0).all()
    split = asc.toeplitz_split(s)
    assert split.profile[3:].isnan().all()
    assert not split.profile[:3].isnan().any()


def test_what_stands_above_the_diagonal_plays_no_part():
    s = scores(3, 21, 21, seed=4)
    hidden = s.masked_fill(torch.ones(21, 21, dtype=torch.bool).triu(1), torch.nan)
    for function in (asc.toeplitz_split, asc.mask_only, asc.offset_variance):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for actual, other in zip(function(s), function(hidden), strict=True):
                np.testing.assert_array_equal(actual, other)
                np.testing.assert_array_equal(function(hidden.mT.contiguous().mT)[0], function(s)[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_are_read_in_place(dtype):
    s = scores(2, 14, 14, dtype=dtype)
    wide = torch.zeros(2, 28, 42, dtype=dtype)
    wide[:, ::2, ::3] = s
    for function in (asc.toeplitz_split, asc.mask_only, asc.offset_variance):
        for actual, other in zip(function(wide[:, ::2, ::3]), function(s), strict=True):
            np.testing.assert_array_equal(actual, other)
        for actual, other in zip(function(s[:1].expand(3, 14, 14)), function(s), strict=True):
            np.testing.assert_array_equal(actual[2], other[0])


def test_lengths_cut_each_map():
    s = scores(3, 20, 20, seed=6)
    lengths = [20, 11, 1]
    split, mask, offsets = (
        function(s, lengths=lengths) for function in (asc.toeplitz_split, asc.mask_only, asc.offset_variance)
    )
    for index, length in enumerate(lengths):
        m = length // 2
        single_map = s[index, :length, :length].clone()
        for actual, other in zip(split, asc.toeplitz_split(single_map), strict=True):
            np.testing.assert_array_equal(actual[index][tuple(slice(m) for _ in other.shape)], other)
            assert actual[index][m:].isnan().all()
        mask_result = asc.mask_only(single_map)
        np.testing.assert_array_equal(mask.cut[index, :m], mask_result.cut)
        np.testing.assert_array_equal(mask.attention[index, :m, :m], mask_result.attention)
        assert mask.lse[index, m:].isnan().all()
        assert mask.attention[index, m:].isnan().all()
        assert (offsets.count[index, length:] == -1).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("place", [(1, 0), (3, 3), (8, 0), (9, 9)])
def test_a_bad_matrix_leaves_its_neighbours_alone(bad, place):
    s = scores(3, 10, 10, seed=7)
    s[(1, *place)] = bad
    for function in (asc.toeplitz_split, asc.mask_only, asc.offset_variance):
        with pytest.warns(RuntimeWarning, match=rf"{function.__name__}: 1 of 3 matrices hold NaN or \+inf"):
            result = function(s)
        for actual, other in zip(result, function(s[[0, 2]]), strict=True):
            np.testing.assert_array_equal(actual[[0, 2]], other)
            assert (actual[1].isnan() | (actual[1] == -1)).all()
        with pytest.raises(ValueError, match=rf"at index \(1, {place[0]}, {place[1]}\)"):
            function(s, validate=True)


def test_rows_without_visible_keys_are_nan():
    s = scores(12, 12)
    s[3] = -torch.inf
    s[4, 1:] = -torch.inf
    s[7] = -torch.inf
    split = asc.toeplitz_split(s)
    assert split.lse[3].isnan()
    assert split.variance[[0, 1, 3, 4]].isnan().all()
    assert split.first[4].isnan()
    assert not split.variance[[2, 5]].isnan().any()
    for actual, expected in zip(asc.mask_only(s), slow_mask(s.numpy()), strict=True):
        close(actual, expected)
    s[6:] = -torch.inf
    for values in asc.mask_only(s):
        assert values.isnan().all()


def test_one_token_has_no_halves_and_five_have_no_variance():
    for n, m in ((1, 0), (5, 2)):
        split, mask = asc.toeplitz_split(torch.zeros(n, n)), asc.mask_only(torch.zeros(n, n))
        assert split.profile.shape == mask.cut.shape == (m,)
        assert mask.attention.shape == split.residual.shape == (m, m)
        assert split.variance.isnan().all()


def test_an_odd_last_query_is_not_used():
    s = scores(13, 13)
    for function in (asc.toeplitz_split, asc.mask_only):
        other = s.clone()
        other[12] = 5.0
        for actual, two in zip(function(s), function(other), strict=True):
            np.testing.assert_array_equal(actual, two)


@settings(max_examples=40)
@given(n=st.integers(2, 40), seed=st.integers(0, 10**6), scale=st.floats(0.1, 20), shift=st.floats(-50, 50))
def test_laws_of_constants_and_scale(n, seed, scale, shift):
    s = scores(n, n, seed=seed)
    base = asc.toeplitz_split(s)
    moved = asc.toeplitz_split(scale * s + shift)
    np.testing.assert_allclose(moved.variance, scale**2 * base.variance, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(moved.profile, scale * base.profile + shift, rtol=1e-9, atol=1e-9)
    mask = asc.mask_only(s + shift)
    np.testing.assert_allclose(mask.cut, asc.mask_only(s).cut, atol=1e-10)
    assert (mask.cut >= 0).all()
    assert ((mask.share >= 0) & (mask.share <= 1)).all()
    np.testing.assert_allclose(mask.attention.sum(-1), 1, rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: asc.toeplitz_split(torch.rand(3, 4)), r"be square in its last two .* shape \(3, 4\)"),
        (lambda: asc.mask_only(torch.rand(3)), r"at least two dimensions"),
        (lambda: asc.offset_variance(torch.ones(3, 3).long()), r"values must be .* got torch.int64"),
        (lambda: asc.toeplitz_split(torch.ones(3, 3, dtype=torch.complex64)), r"got torch.complex64"),
        (lambda: asc.toeplitz_split(torch.rand(4, 4), estimator="early"), r"'late', 'simple', got 'early'"),
        (lambda: asc.toeplitz_split(torch.rand(4, 4), weights="felt"), r"'uniform' or a tensor, got 'felt'"),
        (lambda: asc.toeplitz_split(torch.rand(4, 4), weights=torch.rand(3, 3)), r"do not broadcast"),
        (lambda: asc.toeplitz_split(torch.rand(4, 4), weights=-torch.eye(2)), r"not negative, got -1.0"),
        (lambda: asc.mask_only(torch.rand(4, 4), queries=[2]), r"between 0 and m - 1 = 1, got 2"),
        (lambda: asc.mask_only(torch.rand(8, 8), queries=[2, 1]), r"must ascend, got \[2, 1\]"),
        (lambda: asc.mask_only(torch.rand(8, 8), queries=[0.5]), r"list of integers"),
        (lambda: asc.mask_only(torch.rand(8, 8), sink_logit=torch.inf), r"below \+inf, got inf"),
        (lambda: asc.mask_only(torch.rand(2, 8, 8), sink_logit=torch.ones(3)), r"does not broadcast"),
        (lambda: asc.mask_only(torch.rand(4, 4), lengths=5), r"lengths must lie between 1 and n = 4, got 5"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_threads_change_no_bit():
    s = scores(64, 40, 40, seed=8)
    before = torch.get_num_threads()
    try:
        result = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            result.append((*asc.toeplitz_split(s), *asc.mask_only(s), *asc.offset_variance(s)))
    finally:
        torch.set_num_threads(before)
    for actual, other in zip(*result, strict=True):
        np.testing.assert_array_equal(actual, other)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("n", [7, 20, 33])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_score_is_found_wherever_it_stands(dtype, n, bad):
    """Scores are read as sums: an entry that is no score shows in one."""
    places = [(i, j) for i in range(n // 2 * 2) for j in range(i + 1)]
    s = torch.randn(n, n, generator=torch.Generator().manual_seed(n)).to(dtype)
    for case in (s, s.masked_fill(torch.ones(n, n, dtype=torch.bool).tril(-3), -torch.inf)):
        repeated = case.repeat(len(places), 1, 1)
        for index, (i, j) in enumerate(places):
            repeated[index, i, j] = bad
        for result in (*asc.toeplitz_split(repeated), *asc.mask_only(repeated, queries=[0])):
            assert result.isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_whose_sum_is_none_are_scores(dtype):
    s = torch.zeros(20, 20, dtype=dtype)
    s[2:, :2] = torch.finfo(dtype).max
    result = asc.mask_only(s).lse[:3].exp()
    torch.testing.assert_close(result, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    assert not asc.toeplitz_split(s).lse.isnan().any()
