# SPDX-License-Identifier: MIT
"""Attention of a word: closed forms, loops in NumPy, and laws of where attention goes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnscope as asc

FIELDS = asc.SpanAttention._fields


def uniform_causal(n):
    maps = torch.ones(n, n, dtype=torch.float64).tril()
    return maps / maps.sum(-1, keepdim=True)


def maps(*shape, causal=False, seed=0, dtype=torch.float64):
    logits = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2
    if causal:
        logits = logits.masked_fill(~torch.ones(shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return logits.softmax(-1).to(dtype)


def loops(attention, start, stop, special=None, visible=None):
    """Every field by its definition, one entry after another."""
    a = attention.double().numpy()
    n = len(a)
    if visible is None:
        causal = n >= 2 and not np.triu(a, 1).any()
        visible = np.tril(np.ones((n, n), bool)) if causal else np.ones((n, n), bool)
    special = np.zeros(n, bool) if special is None else special
    sums = dict.fromkeys(FIELDS, 0.0)
    queries = 0
    for i in range(n):
        mass, seen = 0.0, 0
        for j in range(n):
            if visible[i, j] and start <= j < stop:
                mass, seen = mass + a[i, j], seen + 1
        even = seen / visible[i].sum() if seen else 0.0
        if start <= i < stop:
            sums["share"] += mass
            sums["uniform"] += even
            sums["diagonal"] += a[i, i] if visible[i, i] else 0.0
            for j in range(n):
                if visible[i, j] and not start <= j < stop:
                    sums["special" if special[j] else "context"] += a[i, j]
        elif seen:
            queries += 1
            sums["received"] += mass
            sums["received_uniform"] += even
    for name in ("share", "uniform", "diagonal", "special", "context"):
        sums[name] /= stop - start
    for name in ("received", "received_uniform"):
        sums[name] = sums[name] / queries if queries else np.nan
    sums["boost"] = sums["share"] / sums["uniform"] if sums["uniform"] else np.nan
    return sums


def agrees(result, expected, atol=1e-14):
    for name in FIELDS:
        np.testing.assert_allclose(
            getattr(result, name).numpy(), expected[name], rtol=0, atol=atol, err_msg=name
        )


def test_uniform_causal_attention_by_hand():
    result = asc.span_attention(uniform_causal(9), [3, 5], special=torch.arange(9) == 0)
    expected = {
        "share": (1 / 4 + 2 / 5) / 2,
        "uniform": (1 / 4 + 2 / 5) / 2,
        "boost": 1.0,
        "diagonal": (1 / 4 + 1 / 5) / 2,
        "special": (1 / 4 + 1 / 5) / 2,
        "context": (2 / 4 + 2 / 5) / 2,
        "received": (2 / 6 + 2 / 7 + 2 / 8 + 2 / 9) / 4,
        "received_uniform": (2 / 6 + 2 / 7 + 2 / 8 + 2 / 9) / 4,
    }
    agrees(result, expected, 1e-15)
    assert all(field.dtype == torch.float64 for field in result)


def test_full_uniform_attention_the_identity_and_a_span_at_the_end():
    n, m = 8, 3
    result = asc.span_attention(torch.full((n, n), 1 / n, dtype=torch.float64), [2, 5])
    assert result.share.item() == pytest.approx(m / n, abs=1e-15)
    assert result.diagonal.item() == pytest.approx(1 / n, abs=1e-15)
    assert result.boost.item() == pytest.approx(1, abs=1e-15)
    assert asc.span_attention(torch.eye(9), [2, 4]).share.item() == 1
    last = asc.span_attention(uniform_causal(9), [8, 9])
    assert last.received.isnan()
    assert last.received_uniform.isnan()
    single_token = asc.span_attention(torch.ones(1, 1), [0, 1])
    assert (single_token.share.item(), single_token.uniform.item(), single_token.boost.item()) == (1, 1, 1)
    assert single_token.received.isnan()


def test_a_map_without_a_span_is_nan_and_its_neighbours_are_not():
    attention_of_texts = maps(2, 9, 9)
    result = asc.span_attention(attention_of_texts, [[3, 5], [-1, -1]])
    single_result = asc.span_attention(attention_of_texts[0], [3, 5])
    for field, expected in zip(result, single_result, strict=True):
        assert torch.equal(field[0], expected)
        assert field[1].isnan()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("span", [(0, 1), (2, 6), (10, 13), (0, 13)])
def test_every_field_is_that_of_a_loop(causal, dtype, span):
    attention = maps(13, 13, causal=causal, dtype=dtype)
    special = torch.arange(13) % 4 == 0
    result = asc.span_attention(attention, span, special=special)
    agrees(result, loops(attention, *span, special.numpy()))


@given(st.integers(0, 10**6), st.integers(1, 17), st.booleans(), st.data())
@settings(max_examples=30)
def test_laws(seed, n, causal, data):
    """The parts are the row sum; what is special leaves the share alone; n·inner is the boost."""
    attention = maps(n, n, causal=causal, seed=seed)
    start = data.draw(st.integers(0, n - 1))
    stop = data.draw(st.integers(start + 1, n))
    special = torch.rand(n, generator=torch.Generator().manual_seed(seed)) < 0.3
    result = asc.span_attention(attention, [start, stop], special=special)
    none = asc.span_attention(attention, [start, stop])
    total = (result.share + result.special + result.context).item()
    assert total == pytest.approx(attention[start:stop].sum(-1).mean().item(), abs=1e-14)
    assert result.share == none.share
    assert (result.special + result.context).item() == pytest.approx(none.context.item(), abs=1e-14)
    assert none.special == 0
    if not causal:
        inner = attention[start:stop, start:stop].mean().item()
        assert n * inner == pytest.approx(result.boost.item(), abs=1e-13 * n)
        m = stop - start
        if m < n:
            outer = (attention.sum().item() - m * m * inner) / (n * n - m * m)
            assert outer == pytest.approx((n - m * m * inner) / (n * n - m * m), abs=1e-14)


def test_a_batch_is_a_loop_and_spans_broadcast():
    attention = maps(3, 2, 11, 11)
    spans = torch.tensor([[2, 4], [0, 1], [5, 9]])
    special = torch.arange(11) < torch.tensor([[1], [2], [0]])
    result = asc.span_attention(attention, spans[:, None], special=special[:, None])
    for s in range(3):
        for h in range(2):
            single_result = asc.span_attention(attention[s, h], spans[s], special=special[s])
            for field, expected in zip(result, single_result, strict=True):
                assert torch.equal(field[s, h], expected)


def test_lengths_are_leading_blocks():
    attention = maps(2, 12, 12, causal=True)
    padded = attention.clone()
    padded[1, 7:] = 0
    result = asc.span_attention(padded, [[3, 5], [3, 5]], lengths=[12, 7])
    single_result = asc.span_attention(attention[1, :7, :7], [3, 5])
    for field, expected in zip(result, single_result, strict=True):
        assert torch.equal(field[1], expected)


def test_any_strides_without_a_copy():
    wide = maps(2, 24, 24)
    views = {"slice": wide[:, 3:15, 5:17], "step": wide[:, ::2, ::2], "transpose": wide[:, :12, :12].mT}
    for name, view in views.items():
        for actual, other in zip(
            asc.span_attention(view, [4, 6]), asc.span_attention(view.contiguous(), [4, 6]), strict=True
        ):
            torch.testing.assert_close(actual, other, atol=1e-15, rtol=0, msg=name)
    expanded = wide[0, 0].expand(5, 24, 24)
    agrees(asc.span_attention(expanded[0], [2, 3]), loops(expanded[0], 2, 3))


def test_a_sliding_window_counts_the_keys_that_are_seen():
    n, window = 14, 4
    i, j = torch.arange(n)[:, None], torch.arange(n)
    visible = (j <= i) & (j > i - window)
    attention = maps(n, n).masked_fill(~visible, 0)
    attention /= attention.sum(-1, keepdim=True)
    result = asc.span_attention(attention, [5, 7], support=visible)
    agrees(result, loops(attention, 5, 7, visible=visible.numpy()))
    assert result.uniform.item() == pytest.approx((1 / 4 + 2 / 4) / 2, abs=1e-15)


def test_a_query_that_sees_nothing_counts_as_nothing():
    visible = torch.ones(6, 6, dtype=torch.bool)
    visible[2] = visible[5] = False
    attention = maps(6, 6) * visible
    agrees(
        asc.span_attention(attention, [1, 3], support=visible),
        loops(attention, 1, 3, visible=visible.numpy()),
    )


def test_learned_sinks_leave_row_sums_below_one():
    attention = maps(9, 9) * 0.6
    result = asc.span_attention(attention, [2, 5], support="full")
    assert (result.share + result.context).item() == pytest.approx(0.6, abs=1e-14)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_map_that_is_not_finite_is_nan_with_one_warning(bad):
    attention = maps(3, 8, 8)
    attention[1, 7, 0] = bad
    with pytest.warns(RuntimeWarning, match="span_attention: 1 of 3 matrices hold NaN or infinite"):
        result = asc.span_attention(attention, [2, 4])
    good = asc.span_attention(attention[::2], [2, 4])
    for field, expected in zip(result, good, strict=True):
        assert field[1].isnan()
        assert torch.equal(field[::2], expected)
    with pytest.raises(ValueError, match=r"span_attention: attention must hold finite entries"):
        asc.span_attention(attention, [2, 4], validate=True)


@pytest.mark.parametrize(
    ("spans", "options", "words"),
    [
        ([4, 4], {}, r"0 <= start < stop <= 8, the tokens of their map, or \(-1, -1\), got \(4, 4\)"),
        ([4, 9], {}, r"got \(4, 9\)"),
        ([4, 7], {"lengths": 6}, r"0 <= start < stop <= 6, .* got \(4, 7\)"),
        ([-1, 3], {}, r"got \(-1, 3\)"),
        ([1.0, 2.0], {}, "spans must be integers, got torch.float32"),
        ([[1, 2]] * 3, {}, r"spans of shape \(3, 2\) do not broadcast to \(2, 2\)"),
        ([1, 2], {"special": torch.zeros(8)}, "special must be boolean, got torch.float32"),
        ([1, 2], {"special": torch.zeros(7, dtype=torch.bool)}, "special of shape"),
        ([1, 2], {"support": "left"}, "support must be one of"),
    ],
)
def test_bad_input_is_named(spans, options, words):
    with pytest.raises(ValueError, match=f"span_attention: .*{words}"):
        asc.span_attention(maps(2, 8, 8), spans, **options)


def test_quantities_are_measured_at_the_sites_of_words():
    from attnscope.metrics.discovery import quantity
    from attnscope.metrics.measured import measure_quantities

    attention = maps(3, 2, 11, 11)
    spans = torch.tensor([[2, 4], [0, 1], [5, 9]])[:, None]
    special = (torch.arange(11) < 1).expand(3, 1, 11)
    sites = {"attention": attention, "word_span": spans, "special_keys": special}
    measured = measure_quantities(sites, [quantity(f"span_{name}") for name in FIELDS])
    result = asc.span_attention(attention, spans, special=special)
    for name in FIELDS:
        assert torch.equal(measured.values[quantity(f"span_{name}")], getattr(result, name))
