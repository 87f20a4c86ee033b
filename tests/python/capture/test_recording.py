# SPDX-License-Identifier: MIT
"""A recording: when it runs, what it keeps of the model's output, which layers it spends memory on."""

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
