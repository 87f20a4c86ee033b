# SPDX-License-Identifier: MIT
"""`LazyAttention` measured in torch operations, a tile of queries at a time, against a softmax of the map."""

import math

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope import _core
from attnscope.devices.lazy import torch_tiles

HEADS, KEY_HEADS, WIDTH = 4, 2, 16
CASES = {
    "causal": {},
    "window": {"window": 7},
    "window of both sides": {"causal": False, "window": (5, 3)},
    "softcap": {"softcap": 3.0},
    "slopes": {"bias": torch.tensor([0.5, 0.1, 0.2, 0.05])},
    "learned sinks": {"sink_logits": torch.tensor([4.0, -1.0, 0.0, 40.0])},
    "lengths": {"lengths": torch.tensor([20, 33])},
    "lengths of heads": {"lengths": torch.tensor([[20, 33, 1, 5], [33, 2, 3, 4]])},
    "full": {"causal": False},
}
#: Of "exact", and of "fast" as the class states it for scores of this size.
BOUNDS = {"exact": 1e-12, "fast": 2e-5}


def queries_and_keys(queries: int = 33, keys: int = 33, dtype: torch.dtype = torch.float32):
    """Return two texts of queries and keys, [2, h, n, d], of which the heads lie side by side."""
    generator = torch.Generator().manual_seed(5)
    parts = (
        torch.randn(2, n, heads, WIDTH, generator=generator).mul(2).to(dtype).transpose(1, 2)
        for n, heads in ((queries, HEADS), (keys, KEY_HEADS))
    )
    return tuple(parts)


def softmax_of(
    query, key, *, causal=True, window=None, softcap=None, bias=None, sink_logits=None, lengths=None
):
    """Return the map in float64 by a softmax, and log Z; rows and columns of padding are NaN."""
    n, m = query.shape[-2], key.shape[-2]
    # a number is how many keys a query sees, its own among them; two are keys on both sides of that
    before, after = window if isinstance(window, tuple) else (window and window - 1, None)
    scores = query.double() @ key.double().repeat_interleave(HEADS // KEY_HEADS, 1).mT / math.sqrt(WIDTH)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    i, j = torch.arange(m - n, m)[:, None], torch.arange(m)
    if bias is not None:
        scores = scores - bias.double()[:, None, None] * (i - j).abs()
    seen = torch.ones(2, HEADS, n, m, dtype=torch.bool)
    seen &= (j <= i) | (not causal)
    seen &= (i - j <= before) if before is not None else True
    seen &= (j - i <= after) if after is not None else True
    sizes = torch.full((2, HEADS), m) if lengths is None else lengths.reshape(2, -1).expand(2, HEADS)
    seen &= (j < sizes[..., None, None]) & (i < sizes[..., None, None])
    scores = scores.masked_fill(~seen, -torch.inf)
    log_z = scores.logsumexp(-1)
    if sink_logits is not None:
        log_z = torch.logaddexp(log_z, sink_logits.double()[:, None])
    maps = torch.where(seen, (scores - log_z[..., None]).exp(), 0.0)
    real = (i[:, 0] < sizes[..., None]).expand(2, HEADS, n)
    return maps, log_z, real, (j < sizes[..., None]).expand(2, HEADS, m)


def expected_results(query, key, **options):
    maps, log_z, real, real_keys = softmax_of(query, key, **options)
    n, m = maps.shape[-2:]
    distance = (torch.arange(m - n, m)[:, None] - torch.arange(m)).abs()
    rows = {
        ("log_z", None): log_z,
        ("mass", None): maps.sum(-1),
        ("entropy", None): torch.special.entr(maps).sum(-1),
        ("collision", None): maps.square().sum(-1),
        ("largest", None): maps.amax(-1),
        ("distance", None): (maps * distance).sum(-1),
        ("first", 2): maps[..., :2].sum(-1),
    }
    columns = {("incoming", None): maps.sum(-2), ("squares", None): maps.square().sum(-2)}
    return {key: values.where(real, torch.tensor(torch.nan)) for key, values in rows.items()} | {
        key: values.where(real_keys, torch.tensor(torch.nan)) for key, values in columns.items()
    }


@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("pairs", [1, 1 << 11, 1 << 22], ids="{} pairs".format)
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_a_softmax(name, pairs, precision, monkeypatch):
    monkeypatch.setattr(torch_tiles, "PAIRS", pairs)
    query, key = queries_and_keys()
    expected = expected_results(query, key, **CASES[name])
    monkeypatch.setattr(_core, "lazy_measures", None)  # not called
    with asc.devices.use("torch"):
        lazy = asc.LazyAttention(query, key, precision=precision, **CASES[name])
        results = dict(zip(expected, lazy.take(list(expected)), strict=True))
    for key_of_result, values in results.items():
        assert values.dtype == torch.float64
        assert values.is_cpu
        bound = BOUNDS[precision]
        message = str(key_of_result)
        np.testing.assert_allclose(values, expected[key_of_result], rtol=bound, atol=bound, err_msg=message)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("queries", [1, 9, 33])
def test_rectangles_of_every_type(queries, dtype):
    query, key = queries_and_keys(queries, 33, dtype)
    expected = expected_results(query, key)
    with asc.devices.use("torch"):
        lazy = asc.LazyAttention(query, key)
        results = lazy.take(list(expected))
    bound = BOUNDS["exact" if dtype == torch.float64 else "fast"]
    for (name, _), values, by_softmax in zip(expected, results, expected.values(), strict=True):
        np.testing.assert_allclose(values, by_softmax, rtol=bound, atol=bound, err_msg=name)


def test_a_key_that_is_not_finite_spoils_the_queries_that_see_it_alone():
    query, key = queries_and_keys()
    key[0, 1, 20] = torch.nan
    with asc.devices.use("torch"):
        entropy = asc.LazyAttention(query, key).row_measures("entropy")["entropy"]
    assert entropy[0, 2:, 20:].isnan().all()
    assert entropy.isnan().sum() == 2 * 13


def test_a_query_of_one_key_has_the_entropy_zero():
    query, key = queries_and_keys()
    with asc.devices.use("torch"):
        assert (asc.attention_entropy(asc.LazyAttention(query, key))[..., 0] == 0).all()


def test_a_device_without_float64_adds_up_with_compensation(monkeypatch):
    from attnscope.devices import slab

    monkeypatch.setattr(torch_tiles, "arithmetic_type", lambda device: torch.float32)
    monkeypatch.setattr(slab, "arithmetic_type", lambda device: torch.float32)
    query, key = queries_and_keys()
    expected = expected_results(query, key)
    with asc.devices.use("torch"):
        results = asc.LazyAttention(query, key).take(list(expected))
        # what asks for float64 is measured by the core
        exact = asc.LazyAttention(query, key, precision="exact").take([("entropy", None)])[0]
    for (name, _), values, by_softmax in zip(expected, results, expected.values(), strict=True):
        np.testing.assert_allclose(values, by_softmax, rtol=2e-5, atol=2e-5, err_msg=name)
    np.testing.assert_allclose(exact, expected["entropy", None], rtol=1e-12, atol=1e-12)


def test_a_mask_is_measured_by_the_core():
    query, key = queries_and_keys()
    mask = torch.eye(33, dtype=torch.bool)
    with asc.devices.use("torch"):
        entropy = asc.attention_entropy(asc.LazyAttention(query, key, mask=mask))
    assert (entropy == 0).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("name", CASES)
def test_exact_results_on_a_device(name):
    query, key = queries_and_keys()
    expected = expected_results(query, key, **CASES[name])
    lazy = asc.LazyAttention(query.cuda(), key.cuda(), precision="exact", **CASES[name])
    for (result, _), values, by_softmax in zip(
        expected, lazy.take(list(expected)), expected.values(), strict=True
    ):
        np.testing.assert_allclose(values, by_softmax, rtol=1e-12, atol=1e-12, err_msg=result)


@pytest.mark.parametrize("options", [{}, {"window": 5}, {"causal": False, "window": (3, 2)}], ids=str)
def test_queries_before_the_first_key_see_nothing(options):
    """The last query stands at the last key, so of more queries than keys the first stand before key 0."""
    query, key = queries_and_keys(33, 20)
    names = [("log_z", None), ("mass", None), ("entropy", None), ("collision", None)]
    names += [("largest", None), ("distance", None), ("first", 2), ("incoming", None), ("squares", None)]
    metrics = ["incoming_attention", "attention_entropy", "sink_share", "top_mass"]
    lazy = asc.LazyAttention(query, key, precision="exact", **options)
    with asc.devices.use("torch"):
        results, measured = lazy.take(names), asc.measure(lazy, metrics)
    for (name, _), values, of_core in zip(names, results, lazy.take(names), strict=True):
        np.testing.assert_allclose(values, of_core, rtol=1e-12, atol=1e-12, err_msg=name)
    maps = lazy.dense()
    seen = lazy.visibility.rows(0, 33)
    assert not seen[..., 0, :].any()
    expected = asc.measure(maps, metrics, support=seen, cross=True)
    for name in metrics:
        leaves = zip(*map(torch.utils._pytree.tree_leaves, (measured[name], expected[name])), strict=True)
        for values, of_map in leaves:
            np.testing.assert_allclose(values, of_map, rtol=1e-12, atol=1e-12, err_msg=name)


def test_a_head_whose_sink_takes_nothing_is_one_without_a_sink():
    query, key = queries_and_keys(33, 20)
    names = [("log_z", None), ("mass", None), ("entropy", None), ("incoming", None)]
    with asc.devices.use("torch"):
        closed, none = (
            asc.LazyAttention(query, key, precision="exact", sink_logits=sinks).take(names)
            for sinks in (torch.full((HEADS,), -torch.inf), None)
        )
    for values, expected in zip(closed, none, strict=True):
        np.testing.assert_array_equal(values, expected)


def test_autocast_around_a_measure_changes_no_product():
    query, key = queries_and_keys()
    with asc.devices.use("torch"):
        expected = asc.attention_entropy(asc.LazyAttention(query, key))
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(asc.attention_entropy(asc.LazyAttention(query, key)), expected)
