# SPDX-License-Identifier: MIT
"""rope_bands against rotations made here, in both layouts, and a loop over bands."""

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.metrics.positions.rope_bands import band_scores, rotary_layout

D = 16


def rotated(x, layout, rotary=D):
    """RoPE of content [..., n, d], the frequencies of the original paper."""
    n, pairs = x.shape[-2], rotary // 2
    angle = torch.arange(n, dtype=torch.float64)[:, None] * 10000.0 ** -(torch.arange(pairs) / pairs)
    half = layout == "half"
    a, b = (slice(0, pairs), slice(pairs, rotary)) if half else (slice(0, rotary, 2), slice(1, rotary, 2))
    out = x.clone()
    out[..., a] = x[..., a] * angle.cos() - x[..., b] * angle.sin()
    out[..., b] = x[..., a] * angle.sin() + x[..., b] * angle.cos()
    return out


def content(n=24, heads=2, constant=False, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.randn(2, heads, 1 if constant else n, D, generator=generator, dtype=torch.float64)
    return q.expand(heads, n, D), k.expand(heads, n, D)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("rotary", [None, 8])
def test_bands_sum_to_the_scores(layout, rotary):
    q, k = content()
    parts = band_scores(q, k, bands=3, layout=layout, rotary=rotary)
    assert parts.shape[-3] == (3 if rotary is None else 4)
    np.testing.assert_allclose(parts.sum(-3), q @ k.mT, atol=1e-12)
    result = asc.rope_bands(q, k, bands=3, layout=layout, rotary=rotary, scaling=0.25)
    np.testing.assert_allclose(result.share.sum(-1), 1, atol=1e-12)
    np.testing.assert_allclose(result.norm_share.sum(-1), 1, atol=1e-12)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("rotary", [D, 8])
def test_the_layout_is_found_by_measuring(layout, rotary):
    q, k = (rotated(x, layout, rotary) for x in content(constant=True))
    assert rotary_layout(q, k, rotary=rotary) == layout
    other = content(seed=3)
    options = {"bands": 4, "scaling": 0.25, "rotary": rotary}
    auto = asc.rope_bands(*other, layout="auto", repeated=(q.float(), k.float()), **options)
    for actual, two in zip(auto, asc.rope_bands(*other, layout=layout, **options), strict=True):
        np.testing.assert_array_equal(actual, two)


def test_no_layout_is_an_error():
    q, k = content()
    with pytest.raises(
        ValueError, match=r"no layout makes bands functions of the offset; .*half .*interleaved"
    ):
        rotary_layout(q, k)


def test_ablation_is_that_of_a_loop():
    q, k = content(n=9, heads=1)
    result = asc.rope_bands(q, k, bands=8, layout="interleaved", scaling=0.3, softcap=2.0)
    causal = torch.ones(9, 9, dtype=torch.bool).tril()
    for band in range(8):
        a, b = q.clone(), k.clone()
        a[..., 2 * band : 2 * band + 2] = 0
        scores = [2 * torch.tanh(0.3 * x @ y.mT / 2)[0] for x, y in ((q, k), (a, b))]
        p, other = (torch.softmax(s.masked_fill(~causal, -torch.inf), -1).numpy() for s in scores)
        kl = np.mean([(p[i, : i + 1] * np.log(p[i, : i + 1] / other[i, : i + 1])).sum() for i in range(1, 9)])
        np.testing.assert_allclose(result.kl[0, band], kl, rtol=1e-10)
        np.testing.assert_allclose(result.tv[0, band], np.abs(p - other).sum(-1)[1:].mean() / 2, rtol=1e-10)
    s = 0.3 * (q @ k.mT)[0][causal].numpy()
    part = 0.3 * (q[..., :2] @ k[..., :2].mT)[0][causal].numpy()
    np.testing.assert_allclose(result.share[0, 0], np.cov(part, s, ddof=0)[0, 1] / s.var(), rtol=1e-10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bands": 9}, r"between 1 and the 8 pairs, got 9"),
        ({"rotary": 7}, r"even and between 2 and d = 16, got 7"),
        ({"rotary": 18}, r"got 18"),
        ({"layout": "auto"}, r"needs repeated"),
        ({"layout": "pairs"}, r"got 'pairs'"),
        ({"softcap": 0}, r"softcap must be above 0, got 0"),
        ({"softcap": float("nan")}, r"softcap must be finite, got nan"),
        ({"scaling": float("inf")}, r"scaling must be finite, got inf"),
        ({"sink_logit": [0.0, float("nan")]}, r"sink_logit must be below \+inf, got nan"),
        ({"sink_logit": [0.0]}, r"sink_logit must have shape \(2,\), got \(1,\)"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        asc.rope_bands(*content(), **{"bands": 4, "layout": "half", "scaling": 1.0, **options})


def test_queries_and_keys_of_one_token_repeated_are_a_pair():
    with pytest.raises(TypeError, match=r"rope_bands: repeated must be queries and keys \(query, key\), got"):
        asc.rope_bands(*content(), bands=4, layout="auto", scaling=1.0, repeated=content()[0])


def test_a_head_without_an_axis_and_a_support_of_numpy():
    q, k = content(n=9, heads=1)
    options = {"bands": 4, "layout": "half", "scaling": 0.3, "sink_logit": [0.5]}
    window = torch.ones(9, 9, dtype=torch.bool).tril().triu(-3)
    expected = asc.rope_bands(q, k, support=window, **options)
    result = asc.rope_bands(q[0], k[0], support=window.numpy(), **options)
    for actual, of_heads in zip(result, expected, strict=True):
        torch.testing.assert_close(actual, of_heads[0], rtol=1e-12, atol=1e-14)


def test_shapes_must_agree():
    q, k = content()
    with pytest.raises(ValueError, match=r"one shape \[..., n, d\], got \(2, 24, 16\) and \(24, 16\)"):
        asc.rope_bands(q, k[0], bands=2, layout="half", scaling=1.0)


def test_a_window_and_a_learned_sink_are_those_of_a_loop():
    q, k = content(n=9, heads=2)
    seen = torch.ones(9, 9, dtype=torch.bool).tril().triu(-3)
    sinks = torch.tensor([0.5, -1.0])
    result = asc.rope_bands(q, k, bands=8, layout="interleaved", scaling=0.3, support=seen, sink_logit=sinks)
    for head, band in ((0, 0), (1, 5)):
        s = 0.3 * (q @ k.mT)[head].numpy()
        at = slice(2 * band, 2 * band + 2)
        part = 0.3 * (q[..., at] @ k[..., at].mT)[head].numpy()
        kl, tv = [], []
        for i in range(1, 9):
            visible = seen[i].numpy()
            p, other = (np.exp(np.append(x[i][visible], sinks[head])) for x in (s, s - part))
            p, other = p / p.sum(), other / other.sum()
            kl.append((p * np.log(p / other)).sum())
            tv.append(np.abs(p - other).sum() / 2)
        np.testing.assert_allclose(result.kl[head, band], np.mean(kl), rtol=1e-10)
        np.testing.assert_allclose(result.tv[head, band], np.mean(tv), rtol=1e-10)
        covariance = np.cov(part[seen], s[seen], ddof=0)[0, 1]
        np.testing.assert_allclose(result.share[head, band], covariance / s[seen].var(), rtol=1e-10)


@pytest.mark.parametrize("support", ["full", torch.ones(4, 4), torch.zeros(6, 6, dtype=torch.bool)])
def test_a_support_that_leaves_a_query_without_keys_is_refused(support):
    q, k = content(n=6, heads=1)
    with pytest.raises(ValueError, match=r"rope_bands: support must be 'causal' or a boolean tensor"):
        asc.rope_bands(q, k, bands=2, layout="half", scaling=1.0, support=support)
