# SPDX-License-Identifier: MIT
"""A layer's padding: what reaches the metrics is the block of real tokens, wherever the padding is."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.capture import Layer


def make(valid, *, cross=False, queries=None, heads=(0, 1, 2, 3), sites=("attention", "value", "hidden")):
    valid = torch.as_tensor(valid, dtype=torch.bool)
    batch, keys = valid.shape
    queries = keys if queries is None else queries
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "attention": (batch, len(heads), queries, keys),
        "value": (batch, 2, keys, 3),
        "query": (batch, len(heads), queries, 3),
        "hidden": (batch, queries, 5),
    }
    return Layer(
        2,
        "model.layers.*.self_attn",
        0,
        step=0,
        cross=cross,
        heads=heads,
        kv_heads=[h // 2 for h in heads],
        valid=valid,
        key_offset=0,
        tensors={site: torch.rand(shapes[site], generator=generator) for site in sites},
    )


@given(
    spans=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=4),
    n=st.integers(10, 12),
)
def test_matrices_hold_every_samples_real_block(spans, n):
    valid = torch.zeros(len(spans), n, dtype=torch.bool)
    for b, (start, length) in enumerate(spans):
        valid[b, start : start + length] = True
    layer = make(valid)
    lengths = layer.lengths
    assert lengths.dtype == torch.int64
    assert lengths.tolist() == [length for _, length in spans]
    maps, states = layer.matrices(), layer.states("hidden")
    values = layer.states("value", per_head=True)
    longest = max(length for _, length in spans)
    assert maps.shape == (len(spans), 4, longest, longest)
    assert states.shape == (len(spans), longest, 5)
    assert values.shape == (len(spans), 4, longest, 3)
    for b, (start, m) in enumerate(spans):
        real = slice(start, start + m)
        assert torch.equal(maps[b, :, :m, :m], layer.attention[b, :, real, real])
        assert torch.equal(layer.samples()[b], layer.attention[b, :, real, real])
        assert torch.equal(states[b, :m], layer.hidden[b, real])
        for head in range(4):
            assert torch.equal(values[b, head, :m], layer.value[b, head // 2, real])


def test_holes_in_the_mask_are_closed():
    layer = make([[True, False, True, True], [False, True, True, False]])
    kept = layer.attention[0][:, [0, 2, 3]][:, :, [0, 2, 3]]
    assert torch.equal(layer.matrices()[0], kept)
    assert torch.equal(layer.samples()[0], kept)
    assert torch.equal(layer.matrices()[1, :, :2, :2], layer.attention[1, :, 1:3, 1:3])
    assert float(layer.matrices()[1, :, 2:].abs().sum()) == 0.0


@pytest.mark.parametrize(
    "valid", [[[True] * 5] * 2, [[True] * 5, [True] * 3 + [False] * 2], [[False, True, True, True, True]]]
)
def test_nothing_is_copied_without_need(valid):
    layer = make(valid)
    assert layer.matrices().untyped_storage().data_ptr() == layer.attention.untyped_storage().data_ptr()
    assert all(
        s.untyped_storage().data_ptr() == layer.attention.untyped_storage().data_ptr()
        for s in layer.samples()
    )


def test_an_uncaptured_site_is_an_error_that_says_how_to_get_it():
    layer = make([[True] * 4], sites=("attention",))
    with pytest.raises(AttributeError, match=r"holds \['attention'\], not 'value'.*sites=\('value'"):
        _ = layer.value
    assert not hasattr(layer, "mlp_output")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cross": True}, "cross attention, 4 queries x 4 keys"),
        ({"queries": 1}, "decoding step.*1 queries x 4 keys"),
        ({"queries": 9}, "part of the keys, 9 queries x 4 keys"),
    ],
)
def test_only_square_maps_have_matrices(options, words):
    layer = make([[True] * 4], **options)
    for call in (layer.matrices, layer.samples, lambda: layer.states("hidden")):
        with pytest.raises(ValueError, match=words):
            call()


def test_states_refuses_the_maps():
    with pytest.raises(ValueError, match="use matrices"):
        make([[True] * 4]).states("attention")


def test_repr_shows_shapes():
    text = repr(make([[True] * 4], sites=("attention", "value")))
    assert text == (
        "Layer(index=2, stack='model.layers.*.self_attn', call=0, attention=[1, 4, 4, 4] float32, "
        "value=[1, 2, 4, 3] float32, valid=[1, 4], key_offset=0)"
    )
