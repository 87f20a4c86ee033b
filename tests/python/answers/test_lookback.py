# SPDX-License-Identifier: MIT
"""Lookback ratios: closed forms, a loop in NumPy, rectangles, and what is refused."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnscope as asc


def maps(*shape, causal=True, seed=0, dtype=torch.float64):
    logits = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 2
    if causal:
        logits = logits.masked_fill(~torch.ones(shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return logits.softmax(-1).to(dtype)


def loop(attention, start, stop, context, rows, visible):
    """The definition, one query after another."""
    a = attention.double().numpy()
    ratio = np.full(len(a), np.nan)
    shift = 1 if rows == "predicting" else 0
    for q in range(max(0, start - shift), stop - shift):
        before = [a[q, j] for j in range(len(a)) if visible[q, j] and j < context]
        behind = [a[q, j] for j in range(len(a)) if visible[q, j] and j >= context]
        if before and behind and np.mean(before) + np.mean(behind) > 0:
            ratio[q] = np.mean(before) / (np.mean(before) + np.mean(behind))
    defined = ratio[~np.isnan(ratio)]
    return ratio, defined.mean() if len(defined) else np.nan


def agrees(result, expected, atol=1e-14):
    np.testing.assert_allclose(result.ratio.numpy(), expected[0], rtol=0, atol=atol)
    np.testing.assert_allclose(result.value.numpy(), expected[1], rtol=0, atol=atol)


@pytest.mark.parametrize("rows", ["predicting", "own"])
def test_uniform_attention_is_one_half_on_any_support(rows):
    n = 9
    window = torch.ones(n, n, dtype=torch.bool).tril().triu(-4)
    for visible in (torch.ones(n, n, dtype=torch.bool), torch.ones(n, n, dtype=torch.bool).tril(), window):
        attention = visible.double() / visible.sum(-1, keepdim=True)
        result = asc.lookback(attention, [4, 7], rows=rows, support=visible)
        assert result.value.item() == pytest.approx(0.5, abs=1e-15)
        sinking = asc.lookback(attention * 0.3, [4, 7], rows=rows, support=visible)
        assert sinking.value.item() == pytest.approx(0.5, abs=1e-15)


def test_star_and_identity_by_hand():
    star = torch.zeros(6, 6)
    star[:, 0] = 1
    assert asc.lookback(star, [2, 6], rows="own").value == 1
    assert asc.lookback(torch.eye(6), [2, 6], rows="own").value == 0
    result = asc.lookback(star.tril(), [2, 6])
    # query 1 sees nothing but the two tokens of its context
    assert result.ratio.isnan().tolist() == [True, True, False, False, False, True]
    assert asc.lookback(star.tril(), [2, 6], context=1).ratio[1] == 1


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("span", "context"), [((3, 8), None), ((12, 13), 5), ((1, 13), 1), ((5, 6), 13)])
@pytest.mark.parametrize("rows", ["predicting", "own"])
def test_every_ratio_is_that_of_a_loop(causal, dtype, span, context, rows):
    attention = maps(13, 13, causal=causal, dtype=dtype)
    visible = np.tril(np.ones((13, 13), bool)) if causal else np.ones((13, 13), bool)
    expected = loop(attention, *span, span[0] if context is None else context, rows, visible)
    agrees(asc.lookback(attention, span, context=context, rows=rows), expected)


@given(st.integers(0, 10**6), st.integers(2, 40), st.data())
@settings(max_examples=40)
def test_masks_and_any_answer(seed, n, data):
    visible = torch.rand(n, n, generator=torch.Generator().manual_seed(seed)) < 0.6
    attention = maps(n, n, causal=False, seed=seed) * visible
    start = data.draw(st.integers(0, n - 1))
    stop = data.draw(st.integers(start + 1, n))
    context = data.draw(st.integers(0, n))
    result = asc.lookback(attention, [start, stop], context=context, support=visible)
    agrees(result, loop(attention, start, stop, context, "predicting", visible.numpy()))


def test_a_batch_is_a_loop_with_lengths_and_answers_of_each_text():
    attention = maps(3, 2, 11, 11)
    spans, contexts, lengths = [[2, 5], [-1, -1], [5, 9]], [2, 3, 4], [11, 7, 9]
    result = asc.lookback(
        attention,
        torch.tensor(spans)[:, None],
        context=torch.tensor(contexts)[:, None],
        lengths=torch.tensor(lengths)[:, None],
    )
    for s, h in np.ndindex(3, 2):
        if spans[s][0] < 0:
            assert result.ratio[s, h].isnan().all()
            assert result.value[s, h].isnan()
            continue
        m = lengths[s]
        single = asc.lookback(attention[s, h, :m, :m], spans[s], context=contexts[s])
        assert torch.equal(result.value[s, h], single.value)
        torch.testing.assert_close(result.ratio[s, h, :m], single.ratio, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_the_last_rows_give_what_the_square_map_gives(dtype):
    square = maps(2, 12, 12, dtype=dtype)
    for queries in (1, 4, 8):
        last = square[:, 12 - queries :]
        answer = [13 - queries, 12] if queries > 1 else [11, 12]
        rows = "predicting" if queries > 1 else "own"
        result = asc.lookback(last, answer, rows=rows)
        expected = asc.lookback(square, answer, rows=rows)
        assert torch.equal(result.value, expected.value)
        torch.testing.assert_close(
            result.ratio, expected.ratio[:, 12 - queries :], equal_nan=True, rtol=0, atol=0
        )
        copied = asc.lookback(last.mT.contiguous().mT, answer, rows=rows)
        torch.testing.assert_close(copied.value, expected.value, rtol=0, atol=1e-15)
    with pytest.raises(ValueError, match=r"among the last 4 of 12 queries, got answer \(5, 9\)"):
        asc.lookback(square[:, 8:], [5, 9])


def test_a_window_over_the_last_rows():
    visible = torch.ones(12, 12, dtype=torch.bool).tril().triu(-5)
    square = maps(12, 12, causal=False) * visible
    result = asc.lookback(square[7:], [9, 12], support=visible[7:])
    assert torch.equal(result.value, asc.lookback(square, [9, 12], support=visible).value)


def test_any_strides():
    wide = maps(2, 24, 24, causal=False)
    for view in (wide[:, 3:15, 5:17], wide[:, ::2, ::2], wide[:, :12, :12].mT):
        result, copied = asc.lookback(view, [4, 9]), asc.lookback(view.contiguous(), [4, 9])
        torch.testing.assert_close(result.value, copied.value, rtol=0, atol=1e-15)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_map_that_is_not_finite_is_nan_with_one_warning(bad):
    attention = maps(3, 8, 8)
    attention[1, 7, 0] = bad
    with pytest.warns(RuntimeWarning, match="lookback: 1 of 3 matrices hold NaN or infinite"):
        result = asc.lookback(attention, [4, 7])
    assert result.value.isnan().tolist() == [False, True, False]
    with pytest.warns(RuntimeWarning, match="lookback: 1 of 3"):
        last = asc.lookback(attention[:, 3:], [4, 7])
    assert torch.equal(last.value[::2], result.value[::2])
    assert last.value[1].isnan()
    for part in (attention, attention[:, 3:]):
        with pytest.raises(ValueError, match="lookback: attention must hold finite entries"):
            asc.lookback(part, [4, 7], validate=True)


def test_a_prompt_of_no_token_has_no_ratio():
    result = asc.lookback(maps(8, 8), [0, 4])
    assert result.value.isnan()
    assert result.ratio.isnan().all()


@pytest.mark.parametrize(
    ("answer", "options", "words"),
    [
        ([4, 4], {}, r"answer must hold 0 <= start < stop <= 8, .*got \(4, 4\)"),
        ([5, 3], {}, r"got \(5, 3\)"),
        ([4, 9], {}, r"got \(4, 9\)"),
        ([4, 7], {"lengths": 6}, r"0 <= start < stop <= 6, .* got \(4, 7\)"),
        ([1.0, 2.0], {}, "answer must be integers, got torch.float32"),
        ([[1, 2]] * 3, {}, r"answer of shape \(3, 2\) do not broadcast to \(2, 2\)"),
        ([1, 2], {"context": 9}, "context must lie between 0 and n = 8, got 9"),
        ([1, 2], {"context": 1.5}, "context must be integers"),
        ([1, 2], {"rows": "all"}, "rows must be one of 'predicting', 'own', got 'all'"),
        ([1, 2], {"support": "left"}, "support must be one of"),
    ],
)
def test_bad_input_is_named(answer, options, words):
    with pytest.raises(ValueError, match=f"lookback: .*{words}"):
        asc.lookback(maps(2, 8, 8), answer, **options)


def test_lengths_are_of_square_maps():
    with pytest.raises(ValueError, match=r"lookback: lengths are of square maps, .* \(2, 3, 8\)"):
        asc.lookback(maps(2, 8, 8)[:, 5:], [6, 8], lengths=[8, 8])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_map_that_looks_causal_at_first_is_full(dtype):
    # Rows are read some at a time, and the first of them give nothing to later keys.
    generator = torch.Generator().manual_seed(0)
    attention = torch.randn(60, 60, generator=generator, dtype=torch.float64).softmax(-1)
    attention[:40] = attention[:40].tril()
    attention = (attention / attention.sum(-1, keepdim=True)).to(dtype)
    result, of_full = (asc.lookback(attention, (3, 58), support=support) for support in ("auto", "full"))
    for values, expected in zip(result, of_full, strict=True):
        assert torch.equal(values.nan_to_num(-1), expected.nan_to_num(-1))
