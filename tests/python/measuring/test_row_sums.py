# SPDX-License-Identifier: MIT
"""What is not attention is named, with its likely cause, and once."""

import warnings

import pytest
import torch

import attnscope as asc
from attnscope._row_sums import judge_rows
from attnscope._warn import NotAttentionWarning

LOGITS = torch.randn(2, 4, 9, 9, generator=torch.Generator().manual_seed(0))
MAPS = LOGITS.softmax(-1)
HIDDEN = torch.ones(9, 9).triu(1).bool()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (LOGITS, "rows of 8 of 8 maps .* logits, which softmax"),
        (LOGITS.masked_fill(HIDDEN, -torch.inf), "look like logits"),
        (100 * MAPS, r"the first: 100\): they look like percent"),
        (MAPS / 2, r"the first: 0.5\): queries of padding .* learned sink"),
        (MAPS.mT, "columns do, so the maps look transposed"),
        (3 * MAPS, "divide each row by its sum"),
    ],
)
def test_the_cause_is_named(given, words):
    with pytest.warns(NotAttentionWarning, match=words):
        asc.sink_share(given)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_attention_of_any_type_is_passed_without_a_word(dtype):
    causal = LOGITS.masked_fill(HIDDEN, -torch.inf).softmax(-1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotAttentionWarning)
        for maps in (MAPS, causal, torch.cat([MAPS, torch.zeros_like(MAPS)])):
            asc.attention_entropy(maps.to(dtype))


def test_the_last_row_of_each_length_is_the_one_that_is_looked_at():
    maps = MAPS.clone()
    maps[0, 0, 5:] = 0
    maps[0, 0, :, 5:] = 0
    maps[0, 0, :5] /= maps[0, 0, :5].sum(-1, keepdim=True)
    lengths = torch.full((2, 4), 9)
    lengths[0, 0] = 5
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotAttentionWarning)
        asc.sink_share(maps, lengths=lengths)
    with pytest.warns(NotAttentionWarning, match="rows of 7 of 8 maps"):
        asc.sink_share(MAPS, lengths=torch.where(lengths == 5, 9, 5))


def test_rows_that_are_not_numbers_are_another_warnings_matter():
    maps = MAPS.clone()
    maps[0, 0, -1, 0] = torch.nan
    maps[0, 1, -1, 0] = torch.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotAttentionWarning)
        assert judge_rows("f", maps, None) is None


def test_a_million_views_of_one_map_are_judged_by_some():
    many = (MAPS[0, 0] * 2).expand(2**20, 9, 9)
    with pytest.warns(NotAttentionWarning, match="rows of 64 of 64 maps"):
        judge_rows("f", many, None)


def test_singular_values_are_of_any_matrix():
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotAttentionWarning)
        asc.singular_values(LOGITS)


def test_validate_refuses_what_is_not_attention_but_not_a_learned_sinks_rows():
    even = torch.full((2, 4, 4), 0.375)
    with pytest.raises(ValueError, match="columns do, so the maps look transposed"):
        asc.sink_share(MAPS.mT, validate=True)
    with pytest.raises(ValueError, match=r"rows of 2 of 2 maps do not sum to 1 \(the first: 1.5\): divide"):
        asc.sink_share(even, validate=True)
    with pytest.warns(NotAttentionWarning, match="learned sink"):
        asc.sink_share(MAPS * 0.5, validate=True)


def test_maps_of_several_metrics_are_looked_at_once(monkeypatch):
    looked = []
    monkeypatch.setattr("attnscope._row_sums._is_off", lambda maps, lengths: bool(looked.append(maps)))
    asc.measure(MAPS, ["sink_share", "attention_entropy", "local_global_ratio"])
    assert len(looked) == 1
    asc.measure(MAPS, ["sink_share"])
    assert len(looked) == 2
    asc.sink_share(MAPS)
    asc.sink_share(MAPS)
    assert len(looked) == 4
