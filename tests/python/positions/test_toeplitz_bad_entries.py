# SPDX-License-Identifier: MIT
"""Scores are read as sums: an entry that is no score shows in one, and so do numbers too large for theirs."""

import pytest
import torch

import attnscope as asc


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("n", [7, 20, 33])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_what_is_no_score_is_found_wherever_it_stands(dtype, n, bad):
    places = [(i, j) for i in range(n // 2 * 2) for j in range(i + 1)]
    s = torch.randn(n, n, generator=torch.Generator().manual_seed(n)).to(dtype)
    for own in (s, s.masked_fill(torch.ones(n, n, dtype=torch.bool).tril(-3), -torch.inf)):
        each = own.repeat(len(places), 1, 1)
        for index, (i, j) in enumerate(places):
            each[index, i, j] = bad
        for result in (*asc.toeplitz_split(each), *asc.mask_only(each, queries=[0])):
            assert result.isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_whose_sum_is_none_are_scores(dtype):
    s = torch.zeros(20, 20, dtype=dtype)
    s[2:, :2] = torch.finfo(dtype).max
    found = asc.mask_only(s).lse[:3].exp()
    torch.testing.assert_close(found, torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    assert not asc.toeplitz_split(s).lse.isnan().any()
