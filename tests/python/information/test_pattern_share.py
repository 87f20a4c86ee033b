# SPDX-License-Identifier: MIT
"""Shares of patterns: closed forms, sets in NumPy, and what is refused."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnscope as asc
from attnscope.metrics.discovery import quantity
from attnscope.metrics.measured import measure_quantities

NAMES = ("first", "self", "previous", "next", "duplicate", "induction")


def maps(*shape, causal=True, seed=0, dtype=torch.float64):
    logits = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2
    if causal:
        logits = logits.masked_fill(~torch.ones(shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return logits.softmax(-1).to(dtype)


def targets(pattern, i, visible, tokens):
    """T(i) by its definition; a mask marks it."""
    n = len(visible)
    if isinstance(pattern, np.ndarray):
        return [j for j in range(n) if visible[i, j] and pattern[i, j]]
    tests = {
        "first": lambda j: j == 0,
        "self": lambda j: j == i,
        "previous": lambda j: j == i - 1,
        "next": lambda j: j == i + 1,
        "duplicate": lambda j: j != i and tokens[j] == tokens[i],
        "induction": lambda j: j > 0 and j != i and j - 1 != i and tokens[j - 1] == tokens[i],
    }
    return [j for j in range(n) if visible[i, j] and tests[pattern](j)]


def by_sets(attention, pattern, visible, tokens=None, over="matching"):
    a = attention.double().numpy() * visible
    n = len(a)
    ideal, hits = np.zeros((n, n)), np.zeros((n, n))
    queries = 0
    for i in range(n):
        keys = targets(pattern, i, visible, tokens)
        queries += bool(keys)
        hits[i, keys] = 1
        ideal[i, keys] = 1 / max(1, len(keys))
    if not queries:
        return np.nan, np.nan, np.nan, 0, np.nan
    seen = visible.sum(1)
    even = visible / np.maximum(seen, 1)[:, None]
    share, uniform = ((weights * hits).sum() / queries for weights in (a, even))
    if over == "all":
        share, uniform = ((weights * hits).sum() / weights.sum() for weights in (a, even))
    distance = np.linalg.norm(a - ideal) / np.sqrt((a**2).sum() + (ideal**2).sum())
    return share, uniform, share / uniform, queries, distance


def agrees(result, expected, atol=1e-13):
    for field, other, name in zip(result, expected, asc.PatternShare._fields, strict=True):
        tolerance = atol * max(1.0, np.nan_to_num(abs(other)))
        np.testing.assert_allclose(field.item(), other, rtol=0, atol=tolerance, err_msg=name)


def test_the_map_of_the_token_before():
    before = torch.eye(4, dtype=torch.float64).roll(1, 0)
    before[0] = torch.eye(4)[0]
    result = asc.pattern_share(before, "previous")
    agrees(result, (1, 13 / 36, 36 / 13, 3, 7**-0.5), 1e-15)
    assert asc.pattern_share(torch.eye(5), "self").distance == 0


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("over", ["matching", "all"])
def test_patterns_are_those_of_sets(causal, dtype, over):
    attention = maps(13, 13, causal=causal, dtype=dtype)
    tokens = torch.randint(0, 4, (13,), generator=torch.Generator().manual_seed(3))
    visible = np.tril(np.ones((13, 13), bool)) if causal else np.ones((13, 13), bool)
    for name in NAMES:
        result = asc.pattern_share(attention, name, tokens=tokens, over=over)
        agrees(result, by_sets(attention, name, visible, tokens.numpy(), over))


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 5), st.booleans())
@settings(max_examples=40)
def test_any_support_tokens_and_masks(seed, n, kinds, pairs):
    draw = torch.Generator().manual_seed(seed)
    visible = torch.rand(n, n, generator=draw) < 0.7
    tokens = torch.randint(0, kinds, (n,), generator=draw)
    attention = maps(n, n, causal=False, seed=seed) * visible
    for name in NAMES:
        result = asc.pattern_share(attention, name, tokens=tokens, support=visible)
        agrees(result, by_sets(attention, name, visible.numpy(), tokens.numpy()))
    marked = torch.rand((n, n) if pairs else (n,), generator=draw) < 0.3
    mask = np.broadcast_to(marked.numpy(), (n, n))
    if n == 1 and not pairs:
        marked = marked[None]
    agrees(asc.pattern_share(attention, marked, support=visible), by_sets(attention, mask, visible.numpy()))


def test_several_patterns_are_a_last_axis_and_one_read(monkeypatch):
    attention = maps(3, 2, 11, 11)
    tokens = torch.randint(0, 4, (3, 1, 11), generator=torch.Generator().manual_seed(3))
    together = asc.pattern_share(attention, NAMES, tokens=tokens)
    for place, name in enumerate(NAMES):
        single = asc.pattern_share(attention, name, tokens=tokens)
        for field, expected in zip(together, single, strict=True):
            torch.testing.assert_close(field[..., place], expected, rtol=0, atol=0, equal_nan=True)
    calls = []
    module = __import__("attnscope.metrics.information.pattern_share", fromlist=["_core"])

    class Counting:
        def __getattr__(self, name):
            calls.append(name)
            return getattr(asc._core, name)

    monkeypatch.setattr(module, "_core", Counting())
    columns = [quantity(f"{name}_{field}") for name in NAMES for field in ("share", "boost")]
    sites = {"attention": attention, "tokens": tokens}
    measured = measure_quantities(sites, columns).values
    assert len(calls) == 2  # those that need tokens, and those that do not
    assert torch.equal(measured[quantity("previous_share")], together.share[..., 2])
    torch.testing.assert_close(
        measured[quantity("induction_boost")], together.boost[..., 5], equal_nan=True, rtol=0, atol=0
    )


def test_repeated_random_tokens_show_an_induction_head():
    """Each query of the second copy attends to what followed its token in the first."""
    n = 12
    tokens = torch.randperm(50, generator=torch.Generator().manual_seed(0))[:n].repeat(2)
    attention = torch.eye(2 * n)
    attention[n + 1 :] = 0
    for i in range(n, 2 * n - 1):
        attention[i] = torch.eye(2 * n)[i - n + 1]
    attention[2 * n - 1] = torch.eye(2 * n)[n]
    result = asc.pattern_share(attention, "induction", tokens=tokens)
    assert result.share == 1
    assert result.queries == n


def test_lengths_and_tokens_of_each_text():
    attention = maps(2, 12, 12)
    tokens = torch.randint(0, 3, (2, 12), generator=torch.Generator().manual_seed(3))
    result = asc.pattern_share(attention, NAMES, tokens=tokens, lengths=[12, 7])
    single = asc.pattern_share(attention[1, :7, :7], NAMES, tokens=tokens[1, :7])
    for field, expected in zip(result, single, strict=True):
        torch.testing.assert_close(field[1], expected, rtol=0, atol=0, equal_nan=True)


def test_any_strides():
    wide = maps(2, 24, 24, causal=False)
    tokens = torch.arange(12) % 5
    for view in (wide[:, 3:15, 5:17], wide[:, ::2, ::2], wide[:, :12, :12].mT):
        result = asc.pattern_share(view, NAMES, tokens=tokens)
        copied = asc.pattern_share(view.contiguous(), NAMES, tokens=tokens)
        for field, expected in zip(result, copied, strict=True):
            torch.testing.assert_close(field, expected, rtol=0, atol=1e-14, equal_nan=True)


def test_what_matches_nothing_is_nan_with_no_query():
    result = asc.pattern_share(maps(5, 5), ("next", "duplicate"), tokens=torch.arange(5))
    assert result.queries.tolist() == [0, 0]
    for field in (result.share, result.uniform, result.boost, result.distance):
        assert field.isnan().all()


def test_a_map_that_is_not_finite():
    attention = maps(2, 8, 8)
    attention[0, 7, 0] = torch.nan
    with pytest.warns(RuntimeWarning, match="pattern_share: 1 of 2 matrices hold NaN or infinite"):
        result = asc.pattern_share(attention, "first")
    assert result.share.isnan().tolist() == [True, False]
    assert result.queries.tolist() == [-1, 8]


@pytest.mark.parametrize(
    ("pattern", "options", "words"),
    [
        ("before", {}, "pattern must be one of 'first', .*, got 'before'"),
        ("induction", {}, "pattern 'induction' needs tokens, got None"),
        ("duplicate", {"tokens": torch.arange(7)}, r"tokens of shape \(7,\) do not broadcast to \(2, 8\)"),
        ("duplicate", {"tokens": torch.ones(8)}, "tokens must be integers, got torch.float32"),
        (torch.zeros(8), {}, "pattern must be boolean, got torch.float32"),
        (torch.zeros(7, dtype=torch.bool), {}, "pattern of shape"),
        ("first", {"over": "some"}, "over must be one of 'matching', 'all', got 'some'"),
    ],
)
def test_bad_input_is_named(pattern, options, words):
    with pytest.raises(ValueError, match=f"pattern_share: .*{words}"):
        asc.pattern_share(maps(2, 8, 8), pattern, **options)


def test_a_mask_that_may_be_of_keys_or_of_pairs_is_refused():
    marked = torch.zeros(8, 8, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"pattern of shape \(8, 8\) may be of keys or of queries and keys"):
        asc.pattern_share(maps(8, 8, 8), marked)
    keys = asc.pattern_share(maps(8, 8, 8), marked[:, None] | True)
    assert torch.allclose(keys.share, torch.ones(8, dtype=torch.float64))
