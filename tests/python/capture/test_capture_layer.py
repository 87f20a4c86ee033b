# SPDX-License-Identifier: MIT
"""A layer's padding: what reaches the metrics is the block of real tokens, wherever the padding is.

`Layer.measure` leaves padding out on either side, and knows who sees whom.
"""

import math
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attnscope as asc
import models
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
    visible_part = layer.attention[0][:, [0, 2, 3]][:, :, [0, 2, 3]]
    assert torch.equal(layer.matrices()[0], visible_part)
    assert torch.equal(layer.samples()[0], visible_part)
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


LONG, SHORT = [1, 5, 9, 7, 3, 2, 11], [1, 8, 4]


@pytest.fixture(scope="module")
def model():
    return models.tiny_llama()


def shares(model, rows, mask, metrics=("sink_share",)):
    with asc.capture(model) as recording:
        return [
            {name: values for name, values in layer.measure(list(metrics)).items()}
            for layer in recording.run(input_ids=torch.tensor(rows), attention_mask=torch.tensor(mask))
        ]


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_text_measures_as_it_does_alone(model, side):
    pad = len(LONG) - len(SHORT)
    short, mask = [0] * pad + SHORT, [0] * pad + [1] * len(SHORT)
    if side == "right":
        short, mask = SHORT + [0] * pad, mask[::-1]
    batch = shares(model, [LONG, short], [[1] * len(LONG), mask])
    for row, ids in ((0, LONG), (1, SHORT)):
        single = shares(model, [ids], [[1] * len(ids)])
        for together, apart in zip(batch, single, strict=True):
            assert torch.allclose(together["sink_share"].share[row], apart["sink_share"].share[0], atol=1e-6)


def test_padding_in_attention_is_said_where_a_user_reads_it(model):
    rows, mask = torch.tensor([LONG, [*SHORT, 0, 0, 0, 0]]), torch.tensor([[1] * 7, [1] * 3 + [0] * 4])
    with asc.capture(model) as recording:
        for _ in range(2):  # once a run, whichever lines read it
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for layer in recording.run(input_ids=rows, attention_mask=mask):
                    shapes = {layer.attention.shape, layer.attention.shape}
                    layer.measure("fiedler_value")
                assert shapes == {(2, 4, 7, 7)}
            (warning,) = caught
            assert "attention holds padding; layer.measure" in str(warning.message)
            assert warning.filename == __file__
    with asc.capture(model) as recording, warnings.catch_warnings():
        warnings.simplefilter("error")
        for layer in recording.run(input_ids=rows[:1]):
            assert layer.attention.shape[-1] == 7


def test_options_reach_the_metrics_and_mistakes_are_named(model):
    with asc.capture(model) as recording:
        layer = next(iter(recording.run(input_ids=torch.tensor([LONG]))))
        measured = layer.measure(["sink_share", "fiedler_value"], first=2)
        assert torch.equal(measured["sink_share"].share, asc.sink_share(layer.attention, first=2).share)
        assert torch.equal(measured["fiedler_value"], asc.fiedler_value(layer.attention))
        assert list(layer.measure(iter(["sink_share", "fiedler_value"]), first=2)) == list(measured)
        with pytest.raises(TypeError, match="takes the option 'fist'"):
            layer.measure("sink_share", fist=2)
        with pytest.raises(ValueError, match="unknown metric 'sink_shore'"):
            layer.measure("sink_shore")


def test_a_window_and_a_learned_sink_reach_the_metrics():
    """Under a window of two tokens, uniform attention has the whole entropy that is to be had."""
    maps = torch.zeros(1, 1, 5, 5, dtype=torch.float64)
    mask = torch.full((1, 1, 5, 5), -torch.inf)
    for query in range(5):
        seen = slice(max(0, query - 1), query + 1)
        maps[0, 0, query, seen] = 1 / len(range(5)[seen])
        mask[0, 0, query, seen] = 0
    fields = {"step": 0, "cross": False, "heads": (0,), "kv_heads": (0,), "key_offset": 0}
    valid, tensors = torch.ones(1, 5, dtype=torch.bool), {"attention": maps}
    layer = Layer(0, "attention", 0, valid=valid, tensors=tensors, mask=mask, **fields)
    entropy_options = {"metric": "attention_entropy", "normalized": True}
    windowed = layer.measure({"own": entropy_options})["own"]
    assert torch.allclose(windowed[0, 0, 1:], torch.ones(4, dtype=torch.float64))
    causal = layer.measure({"own": {**entropy_options, "support": "causal"}})["own"]
    assert causal[0, 0, 4].item() == pytest.approx(math.log(2) / math.log(5))
    sinks = Layer(
        0,
        "attention",
        0,
        valid=valid,
        tensors={"attention": maps / 2},
        mask=mask,
        sink_logits=torch.zeros(1),
        **fields,
    )
    seen = {"support": layer.visibility.support, "sink_mass": torch.full((1, 1, 5), 0.5)}
    with pytest.warns(RuntimeWarning, match="a learned sink, whose rows rightly sum to less"):
        expected = asc.attention_entropy(maps / 2, **seen)
    assert torch.allclose(sinks.measure("attention_entropy")["attention_entropy"], expected)
