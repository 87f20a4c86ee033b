# SPDX-License-Identifier: MIT
"""Attention of queries and keys without its map: every measure against the map in float64 NumPy."""

import copy
import math
import pickle
import signal
import time
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnscope as asc
from attnscope import devices
from lazy_oracle import dense_attention, lazy_and_map, random_vectors, row_measures

PAIRS = torch.Generator().manual_seed(5)
BIAS = torch.randn(2, 130, 130, generator=PAIRS)
MASK = torch.rand(130, 130, generator=PAIRS) > 0.4
OPTIONS = {
    "plain": {},
    "full": {"causal": False},
    "scaling": {"scaling": 0.7},
    "window of one": {"window": 1},
    "window": {"window": 37},
    "window, not causal": {"window": 37, "causal": False},
    "softcap": {"softcap": 1.5, "scaling": 2.0},
    "slopes": {"bias": torch.tensor([0.5, 0.01])},
    "slopes, not causal": {"bias": torch.tensor([0.5, 0.01]), "causal": False},
    "bias": {"bias": BIAS},
    "bias of all heads": {"bias": BIAS[0]},
    "learned sink": {"sink_logits": torch.tensor([3.0, 40.0])},
    "mask": {"mask": MASK},
    "mask without a row": {"mask": MASK & (torch.arange(130)[:, None] != 77)},
    "lengths": {"lengths": 101},
    "everything": {
        "scaling": 0.5,
        "window": 90,
        "softcap": 2.0,
        "bias": BIAS,
        "sink_logits": torch.tensor([0.5, -1.0]),
        "mask": MASK,
    },
}


def assert_measures(lazy, log_z, maps, tolerance, positions=None):
    expected = row_measures(log_z, maps, positions)
    for name, values in lazy.row_measures().items():
        np.testing.assert_allclose(
            values.numpy(), expected[name], rtol=tolerance, atol=tolerance, err_msg=name
        )


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize(("precision", "tolerance"), [("exact", 1e-12), ("fast", 1e-5)])
def test_measures_and_map_equal_those_of_numpy(name, precision, tolerance):
    options = OPTIONS[name]
    query, key = random_vectors()
    lazy = asc.LazyAttention(query, key, precision=precision, **options)
    log_z, maps = dense_attention(query, key, **options)
    assert_measures(lazy, log_z, maps, tolerance)
    np.testing.assert_allclose(lazy.dense().numpy(), maps, rtol=0, atol=tolerance)
    incoming, squares = lazy.take([("incoming", None), ("squares", None)])
    inside = np.arange(130) < options.get("lengths", 130)
    np.testing.assert_allclose(
        incoming[:, inside], np.nansum(maps, -2)[:, inside], rtol=tolerance, atol=tolerance
    )
    np.testing.assert_allclose(
        squares[:, inside], np.nansum(maps**2, -2)[:, inside], rtol=tolerance, atol=tolerance
    )
    assert bool(incoming[:, ~inside].isnan().all())


@pytest.mark.parametrize("name", OPTIONS)
def test_products_equal_those_of_the_map(name):
    options = {**OPTIONS[name]}
    if "lengths" in options:
        return
    lazy, maps = lazy_and_map(*random_vectors(), **options)
    generator = torch.Generator().manual_seed(1)
    for channels in (1, 5, 21):
        x = torch.randn(2, 130, channels, generator=generator, dtype=torch.float64)
        np.testing.assert_allclose((lazy @ x).numpy(), maps @ x.numpy(), atol=1e-12)
        np.testing.assert_allclose((lazy.T @ x).numpy(), maps.swapaxes(-1, -2) @ x.numpy(), atol=1e-12)
    assert lazy.T.shape == (2, 130, 130)
    assert lazy.T.T is lazy


@pytest.mark.parametrize("n", [1, 2, 3, 5, 31, 33, 95, 96, 97, 193])
@pytest.mark.parametrize("width", [11, 48])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_sizes_and_types(n, dtype, width):
    query, key = random_vectors(rows=n, width=width, dtype=dtype)
    exact = dtype == torch.float64
    assert_measures(asc.LazyAttention(query, key), *dense_attention(query, key), 1e-12 if exact else 1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_what_its_numbers_give(dtype):
    """Whether pairs are multiplied by one instruction or widened first: only float32 sums are rounded."""
    query, key = random_vectors(rows=300, width=64, sharpness=3.0, dtype=dtype)
    half = asc.LazyAttention(query, key, scaling=0.3, softcap=30.0)
    wide = asc.LazyAttention(query.float(), key.float(), scaling=0.3, softcap=30.0)
    for name, values in half.row_measures().items():
        np.testing.assert_allclose(
            values.numpy(), wide.row_measures(name)[name].numpy(), rtol=2e-5, atol=2e-5
        )


def test_strides_and_arrays_are_read_in_place():
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(50, 2, 12, generator=generator).transpose(0, 1)
    key = torch.randn(2, 12, 50, generator=generator).mT
    expected = asc.LazyAttention(query.contiguous(), key.contiguous()).row_measures()
    lazy = asc.LazyAttention(query, key)
    assert lazy.query.data_ptr() == query.data_ptr()
    assert lazy.key.data_ptr() == key.data_ptr()
    for name, values in lazy.row_measures().items():
        assert torch.equal(values, expected[name]), name
    arrays = asc.LazyAttention(query.numpy(), key.numpy())
    assert arrays.query.data_ptr() == query.data_ptr()
    assert torch.equal(arrays.log_z, expected["log_z"])

    class Exchanged:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, **options):
            return self.tensor.__dlpack__()

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    assert torch.equal(asc.LazyAttention(Exchanged(query), Exchanged(key)).log_z, expected["log_z"])


@pytest.mark.parametrize(("rows", "keys", "causal"), [(40, 130, True), (1, 130, True), (130, 40, False)])
def test_rectangles_are_aligned_at_the_end(rows, keys, causal):
    query, key = random_vectors(rows=rows, keys=keys)
    lazy, maps = lazy_and_map(query, key, causal=causal)
    assert lazy.shape == (2, rows, keys)
    np.testing.assert_allclose(lazy.dense().numpy(), maps, atol=1e-12)


def test_rows_of_a_square_are_those_of_its_rectangle():
    query, key = random_vectors()
    square = asc.LazyAttention(query, key).row_measures()
    part = asc.LazyAttention(query[:, 64:], key).row_measures()
    for name, values in part.items():
        assert torch.equal(values, square[name][:, 64:]), name


def test_positions_of_queries():
    positions = torch.tensor([5, 60, 2, 2, 128, 0])
    query, key = random_vectors(rows=6, keys=130)
    lazy = asc.LazyAttention(query, key, query_positions=positions, window=50, precision="exact")
    log_z, maps = dense_attention(query, key, query_positions=positions, window=50)
    assert_measures(lazy, log_z, maps, 1e-12, positions)


def test_grouped_queries_share_keys():
    query, key = random_vectors(heads=6, kv=2)
    lazy, maps = lazy_and_map(query, key)
    np.testing.assert_allclose(lazy.dense().numpy(), maps, atol=1e-12)
    assert lazy.heads == 6
    repeated = asc.LazyAttention(query, key.repeat_interleave(3, 0), precision="exact")
    assert torch.equal(repeated.log_z, lazy.log_z)


def test_leading_axes_and_ragged_lengths():
    generator = torch.Generator().manual_seed(2)
    query, key = torch.randn(3, 4, 70, 8, generator=generator), torch.randn(3, 2, 70, 8, generator=generator)
    lengths = torch.tensor([70, 33, 1])
    padded = asc.LazyAttention(query, key, lengths=lengths)
    for text, length in enumerate(lengths.tolist()):
        cut = asc.LazyAttention(query[text, :, :length], key[text, :, :length])
        for name, values in cut.row_measures().items():
            assert torch.equal(padded.row_measures(name)[name][text, :, :length], values)
            assert bool(padded.row_measures(name)[name][text, :, length:].isnan().all())


def test_a_function_gives_the_bias_tile_by_tile():
    query, key = random_vectors(rows=200)
    slopes = torch.tensor([0.3, 0.02])

    def lean(rows, keys):
        assert rows.dtype == keys.dtype == torch.int64
        return -slopes[:, None, None].double() * (rows[:, None] - keys).abs()

    expected = asc.LazyAttention(query, key, bias=slopes, precision="exact")
    lazy = asc.LazyAttention(query, key, bias=lean, precision="exact")
    for name, values in lazy.row_measures().items():
        torch.testing.assert_close(values, expected.row_measures(name)[name], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lazy.tile(slice(50, 70), slice(3, 60)), expected.dense()[:, 50:70, 3:60])
    assert torch.equal(lazy.at_least(0.05).keys, expected.at_least(0.05).keys)


def test_slabs_of_a_function_are_put_together(monkeypatch):
    from attnscope.metrics.lazy import lazy_attention

    query, key = random_vectors(rows=200)
    lazy = asc.LazyAttention(query, key, bias=lambda rows, keys: -0.1 * (rows[:, None] - keys).double())
    x = torch.ones(200, 3)
    once = (
        lazy.row_measures(),
        lazy.take([("incoming", None)]),
        lazy.at_least(0.1),
        lazy @ x,
        lazy.T @ x,
        lazy.top(3),
    )
    monkeypatch.setattr(lazy_attention, "_BIAS_BYTES", 64 * 200 * 8)
    slabs = (
        lazy.row_measures(),
        lazy.take([("incoming", None)]),
        lazy.at_least(0.1),
        lazy @ x,
        lazy.T @ x,
        lazy.top(3),
    )
    for undivided, in_slabs in zip(once, slabs, strict=True):
        fields = (
            zip(undivided.values(), in_slabs.values(), strict=True) if isinstance(undivided, dict) else None
        )
        pairs = fields or (
            zip(undivided, in_slabs, strict=True)
            if isinstance(undivided, (tuple, list))
            else [(undivided, in_slabs)]
        )
        for first, second in pairs:
            torch.testing.assert_close(first, second, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["plain", "window", "mask", "learned sink", "full"])
def test_top_keys_and_entries(name):
    lazy, maps = lazy_and_map(*random_vectors(sharpness=3.0), **OPTIONS[name])
    for k in (1, 3, 8, 140):
        top = lazy.top(k)
        order = np.argsort(-maps, -1, kind="stable")[..., :k]
        weights = np.take_along_axis(maps, order, -1)
        padded = np.zeros((*maps.shape[:-1], k))
        padded[..., : weights.shape[-1]] = weights
        np.testing.assert_allclose(top.weights.numpy(), padded, atol=1e-12)
        places = np.full(padded.shape, -1)
        places[..., : order.shape[-1]] = np.where(weights > 0, order, -1)
        assert (top.keys.numpy() == places).all()
    threshold = 0.02
    entries = lazy.at_least(threshold)
    rows, keys = np.nonzero(maps.reshape(-1, maps.shape[-1]) >= threshold)
    assert (np.repeat(np.arange(2 * 130), entries.offsets.diff(dim=-1).flatten().numpy()) == rows).all()
    assert (entries.keys.numpy() == keys).all()
    np.testing.assert_allclose(
        entries.weights.numpy(), maps.reshape(-1, maps.shape[-1])[rows, keys], rtol=1e-12
    )
    assert len(entries.keys) <= 2 * 130 / threshold


def test_parts_of_the_map():
    lazy, maps = lazy_and_map(*random_vectors())
    np.testing.assert_allclose(lazy.rows(slice(-3, None)).numpy(), maps[:, -3:], atol=1e-12)
    np.testing.assert_allclose(lazy.rows(7).numpy(), maps[:, 7:8], atol=1e-12)
    np.testing.assert_allclose(
        lazy.tile(slice(60, 129), slice(1, 100)).numpy(), maps[:, 60:129, 1:100], atol=1e-12
    )
    assert lazy.tile(slice(5, 5), slice(None)).shape == (2, 0, 130)


@pytest.mark.parametrize("precision", ["fast", "exact"])
def test_nan_stays_with_the_queries_that_see_it(precision):
    query, key = random_vectors()
    key[0, 100, 3] = math.nan
    query[1, 20] = math.inf
    clean_query, clean_key = random_vectors()
    clean = asc.LazyAttention(clean_query, clean_key, precision=precision)
    lazy = asc.LazyAttention(query, key, window=40, precision=precision)
    clean = asc.LazyAttention(clean_query, clean_key, window=40, precision=precision)
    spoiled = torch.zeros(2, 130, dtype=torch.bool)
    spoiled[0, 100:] = True
    spoiled[0, 140:] = False
    spoiled[1, 20] = True
    for name, values in lazy.row_measures().items():
        assert torch.equal(values.isnan(), spoiled), name
        assert torch.equal(values[~spoiled], clean.row_measures(name)[name][~spoiled])
    incoming, reference = (attention.take([("incoming", None)])[0] for attention in (lazy, clean))
    seen = torch.zeros(2, 130, dtype=torch.bool)
    seen[0, 61:] = True
    seen[1, :21] = True
    assert torch.equal(incoming.isnan(), seen)
    assert torch.equal(incoming[~seen], reference[~seen])
    assert bool(lazy.dense()[0, 100:, 100].isnan().all())


def test_nan_of_a_product_reaches_the_queries_that_see_it():
    lazy, _ = lazy_and_map(*random_vectors())
    x = torch.ones(130, 2)
    x[70, 1] = math.nan
    product = lazy @ x
    assert bool(product[:, 70:, 1].isnan().all())
    assert not product[:, :70].isnan().any()
    assert not product[..., 0].isnan().any()
    transposed = lazy.T @ x
    assert bool(transposed[:, :71, 1].isnan().all())
    assert not transposed[:, 71:].isnan().any()


def test_scores_beyond_half_precision_are_widened_first():
    query = torch.full((1, 40, 8), 200.0, dtype=torch.float16)
    key = torch.full((1, 40, 8), 200.0, dtype=torch.float16)
    entropy = asc.LazyAttention(query, key).row_measures("entropy")["entropy"]
    np.testing.assert_allclose(entropy[0].numpy(), np.log(np.arange(1, 41)), atol=1e-5)


@pytest.mark.parametrize("precision", ["fast", "exact"])
def test_closed_forms_at_32768_tokens(precision):
    n = 32768
    query = torch.ones(1, n, 1)
    lazy = asc.LazyAttention(query, torch.zeros(1, n, 1), precision=precision)
    i = np.arange(1, n + 1)
    entropy, incoming = lazy.take([("entropy", None), ("incoming", None)])
    tolerance = 1e-10 if precision == "exact" else 1e-5
    np.testing.assert_allclose(entropy[0].numpy(), np.log(i), rtol=tolerance, atol=tolerance)
    assert entropy[0, 0] == 0.0
    np.testing.assert_allclose(incoming[0].numpy(), np.cumsum(1 / i[::-1])[::-1], rtol=tolerance)
    distance = lazy.row_measures("distance")["distance"]
    np.testing.assert_allclose(distance[0].numpy(), (i - 1) / 2, rtol=tolerance, atol=tolerance)


def test_a_perfect_sink_at_32768_tokens():
    n = 32768
    key = torch.zeros(1, n, 1)
    key[0, 0] = 60.0
    lazy = asc.LazyAttention(torch.ones(1, n, 1), key)
    (first,) = lazy.take([("first", 1)])
    np.testing.assert_allclose(first[0].numpy(), 1.0, atol=1e-12)
    entries = lazy.at_least(0.5)
    assert not entries.keys.any()
    assert len(entries.keys) == n


def test_a_head_too_long_to_wait_for_log_z_is_gone_through_twice():
    rows, n = 64, 120_000  # 15 MB of weights for a block
    generator = torch.Generator().manual_seed(4)
    query, key = torch.randn(1, rows, 4, generator=generator), torch.randn(1, n, 4, generator=generator)
    lazy = asc.LazyAttention(query, key)
    _, maps = dense_attention(query, key)
    np.testing.assert_allclose(lazy.take([("incoming", None)])[0].numpy(), maps.sum(-2), rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(
        (lazy.T @ torch.ones(rows, 1)).numpy()[..., 0], maps.sum(-2), rtol=1e-4, atol=1e-7
    )


def test_bits_do_not_depend_on_threads():
    query, key = random_vectors(heads=3, rows=3000, width=8)
    lazy = asc.LazyAttention(query, key)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(
                (*lazy.take([("entropy", None), ("incoming", None)]), lazy.T @ torch.ones(3000, 2))
            )
            results[-1] += tuple(lazy.at_least(0.05))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(first, second) for first, second in zip(results[0], other, strict=True))


def test_ctrl_c_ends_a_pass():
    """A pass over 200 heads of 8,192 tokens takes many seconds; the signal comes after a fifth of one."""
    query, key = torch.zeros(200, 8192, 8), torch.zeros(1, 8192, 8)
    lazy = asc.LazyAttention(query, key)
    begin = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            lazy.row_measures()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - begin < 5


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 70), st.integers(1, 20), st.integers(0, 2**31), st.floats(-50, 50))
def test_a_shift_of_all_scores_and_a_permutation_of_heads_change_nothing(n, width, seed, shift):
    query, key = random_vectors(heads=3, rows=n, width=width, seed=seed, dtype=torch.float64)
    plain = asc.LazyAttention(query, key).row_measures()
    shifted = asc.LazyAttention(
        query, key, bias=torch.full((n, n), shift, dtype=torch.float64)
    ).row_measures()
    permuted = asc.LazyAttention(query[[2, 0, 1]], key[[2, 0, 1]]).row_measures()
    for name, values in plain.items():
        offset = shift if name == "log_z" else 0.0
        np.testing.assert_allclose(shifted[name].numpy(), values.numpy() + offset, rtol=1e-10, atol=1e-11)
        assert torch.equal(permuted[name], values[[2, 0, 1]])


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 200), st.integers(0, 2**31), st.data())
def test_a_prefix_of_a_text_has_the_same_rows(n, seed, data):
    query, key = random_vectors(heads=1, rows=n, seed=seed)
    cut = data.draw(st.integers(1, n))
    text = asc.LazyAttention(query, key).row_measures()
    prefix = asc.LazyAttention(query[:, :cut], key[:, :cut]).row_measures()
    for name, values in prefix.items():
        np.testing.assert_allclose(values.numpy(), text[name][:, :cut].numpy(), rtol=1e-6, atol=1e-6)


def test_a_learned_sink_takes_its_share():
    query, key = random_vectors()
    lazy = asc.LazyAttention(query, key, sink_logits=torch.tensor([0.0, 2.0]), precision="exact")
    np.testing.assert_allclose((lazy.row_measures("mass")["mass"] + lazy.sink_mass).numpy(), 1.0, atol=1e-12)
    assert not asc.LazyAttention(query, key).sink_mass.any()


QUERY, KEY = random_vectors(heads=4, rows=6, width=8, kv=2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"key": KEY[..., :5]}, "one width d, got 8 and 5"),
        ({"key": KEY[[0, 0, 1]]}, "3 key heads do not divide 4"),
        ({"key": KEY[None]}, "same leading axes"),
        ({"query": QUERY[0]}, r"must be \[..., heads, tokens, d\], got shape \(6, 8\)"),
        ({"query": QUERY[:, :0]}, "at least one number"),
        ({"query": QUERY.long()}, "float16, bfloat16, float32 or float64"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"lengths": 0}, "lengths must lie between 1 and n = 6, got 0"),
        ({"lengths": 7}, "got 7"),
        ({"softcap": 0.0}, "softcap must be above 0, got 0.0"),
        ({"scaling": math.inf}, "scaling must be finite, got inf"),
        ({"bias": torch.zeros(3)}, "for each of 4 heads"),
        ({"bias": torch.zeros(5, 6)}, "does not broadcast to attention of shape"),
        ({"mask": torch.zeros(6, 6)}, "mask must be boolean"),
        ({"mask": torch.zeros(5, 6, dtype=torch.bool)}, "does not broadcast"),
        ({"sink_logits": torch.zeros(2)}, "for each of 4 heads"),
        ({"query_positions": torch.tensor([0.5] * 6)}, "must be integers"),
        ({"query_positions": torch.tensor([-1] * 6)}, "between 0 and 5"),
        ({"precision": "quick"}, "'fast', 'exact'"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_value(change, words):
    options = {"query": QUERY, "key": KEY, **change}
    with pytest.raises((ValueError, TypeError), match=words):
        asc.LazyAttention(options.pop("query"), options.pop("key"), **options)


def test_arguments_of_methods_are_refused_with_their_value():
    lazy = asc.LazyAttention(QUERY, KEY)
    with pytest.raises(ValueError, match="strictly between 0 and 1, got 0"):
        lazy.at_least(0)
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        lazy.top(0)
    with pytest.raises(ValueError, match=r"x must be \[..., 6, channels\], got shape \(5, 2\)"):
        lazy @ torch.zeros(5, 2)
    with pytest.raises(ValueError, match="between -6 and 5, got 6"):
        lazy.rows(6)
    with pytest.raises(ValueError, match="step 1, got step 2"):
        lazy.rows(slice(None, None, 2))
    with pytest.raises(ValueError, match="'log_z', 'entropy'"):
        lazy.row_measures("spread")
    with pytest.raises(AttributeError, match="cannot be changed"):
        lazy.window = 3


def test_a_repr_names_what_changes_scores():
    query, key = random_vectors(heads=1, rows=64, width=4)
    assert repr(asc.LazyAttention(query, key)) == "LazyAttention(shape=(1, 64, 64), causal, precision='fast')"
    lazy = asc.LazyAttention(
        query, key, causal=False, window=3, bias=torch.ones(1), softcap=2, precision="exact"
    )
    assert repr(lazy) == "LazyAttention(shape=(1, 64, 64), window=3, softcap=2.0, bias, precision='exact')"


def sides_mask(n, before, after):
    back = torch.arange(n)[:, None] - torch.arange(n)
    return (back <= before) & (-back <= after)


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize(("before", "after"), [(5, 9), (0, 0), (40, 0), (0, 40), (200, 3), (2, 200)])
def test_a_window_of_two_sides_is_its_mask(before, after, precision):
    query, key = random_vectors(heads=2, rows=131)
    lazy = asc.LazyAttention(query, key, causal=False, window=(before, after), precision=precision)
    log_z, maps = dense_attention(query, key, causal=False, mask=sides_mask(131, before, after))
    tolerance = 1e-12 if precision == "exact" else 1e-5
    np.testing.assert_allclose(lazy.dense().numpy(), maps, atol=tolerance)
    np.testing.assert_allclose(lazy.tile(slice(40, 70), slice(30, 90)), maps[:, 40:70, 30:90], atol=tolerance)
    np.testing.assert_allclose(lazy.row_measures("log_z")["log_z"].numpy(), log_z, atol=10 * tolerance)
    x = torch.randn(131, 3, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose((lazy @ x).numpy(), maps @ x.numpy(), atol=10 * tolerance)
    np.testing.assert_allclose((lazy.T @ x).numpy(), maps.swapaxes(1, 2) @ x.numpy(), atol=10 * tolerance)
    masked = asc.LazyAttention(
        query, key, causal=False, mask=sides_mask(131, before, after), precision=precision
    )
    for test in (asc.sink_test, asc.sink_rate, asc.incoming_attention):
        for ours, theirs in zip(
            *(torch.utils._pytree.tree_leaves(test(a)) for a in (lazy, masked)), strict=True
        ):
            assert torch.allclose(ours.double(), theirs.double(), atol=1e-5, equal_nan=True), test


def test_a_window_without_a_bound_on_one_side_is_causal_or_full():
    query, key = random_vectors(heads=2, rows=50)
    causal, full = asc.LazyAttention(query, key), asc.LazyAttention(query, key, causal=False)
    assert torch.equal(asc.LazyAttention(query, key, causal=False, window=(None, 0)).dense(), causal.dense())
    assert torch.equal(asc.LazyAttention(query, key, causal=False, window=(None, None)).dense(), full.dense())
    one_sided = asc.LazyAttention(query, key, window=7)
    assert torch.equal(asc.LazyAttention(query, key, causal=False, window=(6, 0)).dense(), one_sided.dense())


@pytest.mark.parametrize("window", [(1, 2, 3), (-1, 2), (2, -1), (1.5, 2)])
def test_windows_of_other_shapes_are_refused(window):
    with pytest.raises((ValueError, TypeError), match="LazyAttention: window must be"):
        asc.LazyAttention(*random_vectors(rows=20), window=window)


@pytest.mark.parametrize("window", [2**62, 2**63 - 1, (2**62, None), (2**63 - 1, 2**63 - 1), (None, 2**62)])
@pytest.mark.parametrize("implementation", ["core", "torch"])
def test_a_window_beyond_all_positions_hides_no_key(window, implementation):
    """Sums of it and of positions do not fit in 64 bits."""
    query, key = random_vectors(heads=2, rows=50)
    metrics = ["attention_entropy", "incoming_attention", "sink_share", "sink_test"]
    with asc.devices.use(implementation):
        wide, plain = (
            asc.measure(asc.LazyAttention(query, key, causal=False, window=width), metrics)
            for width in (window, None)
        )
    for ours, theirs in zip(*map(torch.utils._pytree.tree_leaves, (wide, plain)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def test_an_empty_part_of_a_map_with_a_function_of_the_bias():
    query, key = random_vectors(rows=20)
    lazy = asc.LazyAttention(query, key, bias=lambda queries, keys: torch.zeros(len(queries), len(keys)))
    for start in (0, 7, 20):
        assert lazy.tile(slice(start, start), slice(3, 9)).shape == (2, 0, 6)


def test_a_near_window_beyond_64_bits_holds_all_keys():
    query, key = random_vectors(rows=20)
    lazy = asc.LazyAttention(query, key)
    for attention in (lazy, lazy.dense()):
        for implementation in ("core", "torch"):
            with asc.devices.use(implementation):
                assert (asc.local_global_ratio(attention, window=1e300) == math.inf).all()


@pytest.mark.parametrize("name", [*OPTIONS, "positions"])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda lazy: pickle.loads(pickle.dumps(lazy))])
def test_copies_are_the_same_attention(name, copied):
    options = OPTIONS.get(
        name, {"query_positions": torch.arange(130).flip(0), "window": (3, 9), "causal": False}
    )
    lazy = asc.LazyAttention(*random_vectors(), **options)
    with_sums = lazy.with_log_z(lazy.log_z)
    for original in (lazy, with_sums):
        other = copied(original)
        assert other is not original
        assert repr(other) == repr(original)
        torch.testing.assert_close(other.dense(), original.dense(), rtol=0, atol=0, equal_nan=True)
        with pytest.raises(AttributeError, match="cannot be changed"):
            other.window = 3


def test_a_deep_copy_has_vectors_of_its_own_and_is_refused_a_gradient_as_the_original_is():
    query, key = (vectors.clone() for vectors in random_vectors())
    weights = torch.ones(query.shape[-1], requires_grad=True)
    lazy = asc.LazyAttention(query * weights, key)
    plain = asc.LazyAttention(query, key)
    entropy = asc.attention_entropy(plain)
    deep, shallow = copy.deepcopy(plain), copy.copy(plain)
    query.zero_()
    assert torch.equal(asc.attention_entropy(deep), entropy)
    assert not torch.equal(asc.attention_entropy(shallow), entropy)
    for other in (copy.copy(lazy), copy.deepcopy(lazy), pickle.loads(pickle.dumps(lazy))):
        with pytest.raises(NotImplementedError, match="LazyAttention has no derivative"):
            asc.attention_entropy(other).sum().backward()


def test_queries_behind_the_last_key_are_refused():
    query, key = random_vectors(rows=6)
    for positions in ([0, 1, 2, 3, 4, 7], [1 << 20] * 6):
        message = f"between 0 and 5, the last key, or be 6 for padding, got {positions[-1]}"
        with pytest.raises(ValueError, match=message):
            asc.LazyAttention(query, key, query_positions=positions)
    lazy = asc.LazyAttention(query, key, query_positions=[0, 1, 2, 3, 4, 6])
    entropy = asc.attention_entropy(lazy)
    assert torch.equal(entropy.isnan(), torch.tensor([False] * 5 + [True]).expand(entropy.shape))


@pytest.mark.parametrize("precision", ["exact", "fast"])
@pytest.mark.parametrize("path", ["core", "torch"])
@pytest.mark.parametrize("logit", [-math.inf, -1e300, -1e5, 0.0, 300.0, 1e5, 1e300, math.inf, math.nan])
def test_a_learned_sink_of_any_size_is_one_more_key_of_a_softmax(logit, path, precision):
    """Nothing is left to the keys below a huge sink, and a sink of +inf or NaN spoils its head."""
    generator = torch.Generator().manual_seed(11)
    query, key = torch.randn(2, 2, 5, 8, generator=generator, dtype=torch.float64)
    sinks = torch.tensor([0.5, logit], dtype=torch.float64)
    lazy = asc.LazyAttention(query, key, sink_logits=sinks, precision=precision)
    scores = (query @ key.mT / math.sqrt(8)).masked_fill(~torch.ones(5, 5).tril().bool(), -math.inf)
    with_sink = torch.cat([scores, sinks[:, None, None].expand(2, 5, 1)], -1)
    shares = with_sink.softmax(-1)
    log_z = with_sink.logsumexp(-1)
    if not logit < math.inf:
        shares[1], log_z[1] = math.nan, math.nan
    with devices.use("torch") if path == "torch" else nullcontext():
        measures = lazy.row_measures()
        incoming, squares = lazy.take([("incoming", None), ("squares", None)])
        sink_mass = lazy.sink_mass
    maps = shares[..., :-1].numpy()
    expected = row_measures(log_z.numpy(), maps)
    tolerance = 1e-12 if precision == "exact" else 1e-5
    for name, values in measures.items():
        np.testing.assert_allclose(
            values.numpy(), expected[name], rtol=tolerance, atol=tolerance, err_msg=name
        )
    for values, of_keys in ((incoming, maps.sum(-2)), (squares, (maps**2).sum(-2))):
        np.testing.assert_allclose(values.numpy(), of_keys, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(sink_mass.numpy(), shares[..., -1].numpy(), rtol=1e-5, atol=tolerance)
    of_pairs = np.where(np.tri(5, dtype=bool), maps, 0.0)  # a hidden pair has no weight, whatever the sink
    np.testing.assert_allclose(lazy.dense().numpy(), of_pairs, atol=tolerance)
