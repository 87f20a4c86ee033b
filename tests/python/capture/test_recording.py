# SPDX-License-Identifier: MIT
"""A recording: when it runs, what it keeps of the model's output, which layers it spends memory on."""

import warnings

import pytest
import torch

import models
from attnscope.capture import Layer, capture
from attnscope.capture import recording as recording_module
from models import MapCount

LAYERS = 6


@pytest.fixture
def model():
    torch.set_num_threads(1)
    return models.tiny("llama", num_hidden_layers=LAYERS)


def test_nothing_runs_outside_its_block(model):
    with capture(model) as recording:
        pass
    with pytest.raises(RuntimeError, match="run: the recording is closed"):
        recording.run(**models.text(model))


def test_the_output_of_the_model_is_kept(model):
    inputs = models.text(model)
    with torch.no_grad():
        expected = models.tiny("llama", num_hidden_layers=LAYERS, implementation="eager")(**inputs).logits
    with capture(model) as recording:
        assert recording.output is None
        for layer in recording.run(**inputs):
            assert isinstance(layer, Layer)
        assert torch.equal(recording.output.logits, expected)


def test_layers_are_skipped_without_spending_memory_on_them(model, monkeypatch):
    inputs = models.text(model)
    with capture(model, layers=[-1, 1]) as recording:
        count = MapCount(monkeypatch)
        assert [layer.index for layer in recording.run(**inputs)] == [1, LAYERS - 1]
    assert count.born == 2


def test_the_preflight_runs_once_per_model(model, monkeypatch):
    calls = []
    original = recording_module.preflight._make
    monkeypatch.setattr(
        recording_module.preflight, "_make", lambda *a, **k: calls.append(1) or original(*a, **k)
    )
    for _ in range(3):
        with capture(model) as recording:
            next(recording.run(**models.text(model)))
    assert len(calls) == 1
    model.to(torch.float64)
    with capture(model):
        pass
    assert len(calls) == 2


@pytest.mark.parametrize("lazy", [False, True])
def test_positions_with_steps_are_said_to_part_texts(lazy):
    """Without a mask and a cache transformers parts the texts there; the model's usual pass does not."""
    model = models.tiny("llama", implementation="eager")
    ids = torch.randint(3, 90, (1, 8), generator=torch.Generator().manual_seed(0))
    positions = 2 * torch.arange(8)[None]
    with torch.no_grad():
        expected = model(input_ids=ids, position_ids=positions, output_attentions=True).attentions
    with capture(model, lazy=lazy) as recording:
        with pytest.warns(
            UserWarning, match=r"run: without attention_mask .* steps other than 1 between posi"
        ):
            (first, *_) = recording.run(input_ids=ids, position_ids=positions)
        assert torch.equal(maps_of(first), torch.eye(8).expand(1, 4, 8, 8))
        mask = torch.ones_like(ids)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            layers = list(recording.run(input_ids=ids, position_ids=positions, attention_mask=mask))
            list(recording.run(input_ids=ids, position_ids=positions, use_cache=False))
            list(recording.run(input_ids=ids, position_ids=positions - positions // 2))
    for layer, eager in zip(layers, expected, strict=True):
        torch.testing.assert_close(maps_of(layer), eager, rtol=0, atol=1e-5)


def maps_of(layer):
    maps = layer.attention
    return maps if torch.is_tensor(maps) else maps.dense().float()
