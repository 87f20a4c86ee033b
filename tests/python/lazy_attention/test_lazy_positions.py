# SPDX-License-Identifier: MIT
"""Lookback, the causal spectrum, offsets and the head mean of lazy attention equal those of its map."""

import math

import numpy as np
import pytest
import torch

import attnscope as asc
from lazy_oracle import KINDS, assert_equal_results, sink_like_vectors

ANSWERS = (
    ([60, 90], None),
    ([60, 90], 20),
    (torch.tensor([[30, 60], [-1, -1], [70, 96]]), torch.tensor([3, 0, 70])),
)


def lazy_and_support(kind):
    options, support = KINDS[kind]
    return asc.LazyAttention(*sink_like_vectors(), precision="exact", **options), support


@pytest.mark.filterwarnings("ignore::attnscope.errors.NotAttentionWarning")
@pytest.mark.parametrize("rows", ["predicting", "own"])
@pytest.mark.parametrize("kind", KINDS)
def test_lookback_is_that_of_the_map(kind, rows):
    lazy, support = lazy_and_support(kind)
    defined = 0
    for answer, context in ANSWERS:
        ours = asc.lookback(lazy, answer, context=context, rows=rows)
        theirs = asc.lookback(lazy.dense(), answer, context=context, rows=rows, support=support)
        assert_equal_results(ours, theirs, 1e-9)
        defined += int(ours.value.isfinite().sum())
    assert defined >= 5


@pytest.mark.filterwarnings("ignore::attnscope.errors.NotAttentionWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_the_causal_spectrum_is_that_of_the_map(kind):
    lazy, support = lazy_and_support(kind)
    assert_equal_results(asc.causal_spectrum(lazy), asc.causal_spectrum(lazy.dense(), support=support), 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_moments_of_distances_are_those_of_the_map(kind, monkeypatch):
    from attnscope.metrics.lazy import lazy_attention

    monkeypatch.setattr(lazy_attention, "_SLAB_ENTRIES", 3 * 96 * 17)  # several slabs, the last a part
    lazy, _ = lazy_and_support(kind)
    # what a query does not see is left out, which −∞ says in a map
    maps = torch.where(lazy.visibility.rows(0, 96), lazy.dense(), -math.inf)
    assert_equal_results(asc.offset_variance(lazy), asc.offset_variance(maps), 1e-9)
    shorter = lazy.with_lengths(torch.tensor([96, 50, 2]))
    maps = torch.where(shorter.visibility.rows(0, 96), shorter.dense(), -math.inf)
    lengths = shorter.sizes
    ours, theirs = (asc.offset_variance(values, lengths=lengths) for values in (lazy, maps))
    assert_equal_results(ours, theirs, 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_the_entropy_of_the_head_mean_is_that_of_the_map(kind):
    lazy, support = lazy_and_support(kind)
    mean = lazy.dense().mean(-3)
    expected = asc.attention_entropy(mean, support=support)
    np.testing.assert_allclose(lazy.head_mean_entropy().numpy(), expected.numpy(), atol=1e-10)


def test_what_is_measured_of_a_map_with_nan():
    query, key = sink_like_vectors()
    query[1, 5] = torch.nan
    lazy = asc.LazyAttention(query, key)
    with pytest.warns(asc._warn.NonFiniteWarning, match="1 of 3"):
        ratio = asc.lookback(lazy, [60, 90])
    assert ratio.value.isnan().tolist() == [False, True, False]
    with pytest.warns(asc._warn.NonFiniteWarning, match="1 of 3"):
        moments = asc.offset_variance(lazy)
    assert moments.mean[:, 3].isnan().tolist() == [False, True, False]
    assert moments.count[:, 3].tolist() == [93, -1, 93]


def test_a_rectangle_has_no_diagonal():
    query, key = sink_like_vectors()
    lazy = asc.LazyAttention(query[:, :40], key)
    with pytest.raises(ValueError, match="got 40 x 96"):
        lazy.diagonal()
    with pytest.raises(ValueError, match="got 40 queries and 96 keys"):
        asc.offset_variance(lazy)


def test_more_queries_than_keys_stand_at_no_key():
    """They were taken to stand in front of key 0, where maps of them are refused."""
    query, key = sink_like_vectors()
    lazy = asc.LazyAttention(query, key[:, :40], causal=False)
    words = "96 queries of lazy attention cannot stand at the last of 40 keys; give it query_positions"
    for call in (
        lambda: asc.local_global_ratio(lazy, window=3),
        lambda: asc.sink_test(lazy),
        lambda: asc.sink_excess(lazy),
        lambda: asc.sink_position(lazy),
        lambda: asc.sink_tokens(lazy),
        lambda: asc.lookback(lazy, [10, 30]),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    entropy = asc.attention_entropy(lazy)
    torch.testing.assert_close(entropy, asc.attention_entropy(lazy.dense(), cross=True), rtol=1e-5, atol=1e-5)
    places = torch.arange(96) * 40 // 96
    placed = asc.LazyAttention(query, key[:, :40], causal=False, query_positions=places)
    torch.testing.assert_close(
        asc.sink_excess(placed),
        asc.sink_excess(placed.dense(), query_positions=places, support="full"),
        rtol=1e-5,
        atol=1e-6,
    )
