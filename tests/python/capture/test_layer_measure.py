# SPDX-License-Identifier: MIT
"""`Layer.measure` leaves padding out on either side, and knows who sees whom."""

import math
import warnings

import pytest
import torch

import attnscope as asc
import models
from attnscope.capture import Layer

LONG, SHORT = [1, 5, 9, 7, 3, 2, 11], [1, 8, 4]


@pytest.fixture(scope="module")
def model():
    return models.tiny_llama()


def shares(model, rows, mask, metrics=("sink_share",)):
    with asc.capture(model) as recording:
        return [
            {name: found for name, found in layer.measure(list(metrics)).items()}
            for layer in recording.run(input_ids=torch.tensor(rows), attention_mask=torch.tensor(mask))
        ]


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_text_measures_as_it_does_alone(model, side):
    pad = len(LONG) - len(SHORT)
    short, mask = [0] * pad + SHORT, [0] * pad + [1] * len(SHORT)
    if side == "right":
        short, mask = SHORT + [0] * pad, mask[::-1]
    batch = shares(model, [LONG, short], [[1] * len(LONG), mask])
    for row, alone in ((0, LONG), (1, SHORT)):
        single = shares(model, [alone], [[1] * len(alone)])
        for together, apart in zip(batch, single, strict=True):
            assert torch.allclose(together["sink_share"].share[row], apart["sink_share"].share[0], atol=1e-6)


def test_padding_in_attention_is_said_where_a_user_reads_it(model):
    rows, mask = torch.tensor([LONG, [*SHORT, 0, 0, 0, 0]]), torch.tensor([[1] * 7, [1] * 3 + [0] * 4])
    with asc.capture(model) as recording:
        for layer in recording.run(input_ids=rows, attention_mask=mask):
            with pytest.warns(UserWarning, match="attention holds padding; layer.measure"):
                layer.attention  # noqa: B018
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                layer.measure("fiedler_value")
    with asc.capture(model) as recording, warnings.catch_warnings():
        warnings.simplefilter("error")
        for layer in recording.run(input_ids=rows[:1]):
            assert layer.attention.shape[-1] == 7


def test_options_reach_the_metrics_and_mistakes_are_named(model):
    with asc.capture(model) as recording:
        layer = next(iter(recording.run(input_ids=torch.tensor([LONG]))))
        own = layer.measure(["sink_share", "fiedler_value"], first=2)
        assert torch.equal(own["sink_share"].share, asc.sink_share(layer.attention, first=2).share)
        assert torch.equal(own["fiedler_value"], asc.fiedler_value(layer.attention))
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
    made = {"step": 0, "cross": False, "heads": (0,), "kv_heads": (0,), "key_offset": 0}
    valid, tensors = torch.ones(1, 5, dtype=torch.bool), {"attention": maps}
    layer = Layer(0, "attention", 0, valid=valid, tensors=tensors, mask=mask, **made)
    given = {"metric": "attention_entropy", "normalized": True}
    windowed = layer.measure({"own": given})["own"]
    assert torch.allclose(windowed[0, 0, 1:], torch.ones(4, dtype=torch.float64))
    causal = layer.measure({"own": {**given, "support": "causal"}})["own"]
    assert causal[0, 0, 4].item() == pytest.approx(math.log(2) / math.log(5))
    sinks = Layer(
        0, "attention", 0, valid=valid, tensors={"attention": maps / 2}, mask=mask,
        sink_logits=torch.zeros(1), **made,
    )  # fmt: skip
    seen = {"support": layer.visibility.support, "sink_mass": torch.full((1, 1, 5), 0.5)}
    with pytest.warns(RuntimeWarning, match="a learned sink, whose rows rightly sum to less"):
        expected = asc.attention_entropy(maps / 2, **seen)
    assert torch.allclose(sinks.measure("attention_entropy")["attention_entropy"], expected)
