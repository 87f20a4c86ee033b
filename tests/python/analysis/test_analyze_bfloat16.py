# SPDX-License-Identifier: MIT
"""Models in bfloat16: values are read where rounding explains their attention, else refused with a way on."""

import pytest
import torch

import attnscope as asc
from attnscope.capture import interface
from attnscope.errors import SitesRefused
from models import tiny

IDS = torch.arange(3, 27)[None] % 30


@pytest.fixture
def model():
    return tiny("llama").to(torch.bfloat16)


def test_sharp_attention_in_bfloat16_has_its_values(model):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                parameter.mul_(8)
    results = asc.analyze(model, IDS, ["geometric_semantic_alignment"])
    assert results["heads"]["alignment_value"].notna().all()


def test_a_model_that_computes_otherwise_is_refused_with_a_way_on(model, monkeypatch):
    original = interface._captured
    monkeypatch.setattr(
        interface, "_captured", lambda recorder, call: original(recorder, call._replace(mask=None))
    )
    with pytest.raises(SitesRefused) as caught:
        asc.analyze(model, IDS, ["geometric_semantic_alignment", "sink_share"])
    words = str(caught.value)
    assert words.startswith("analyze: Llama")
    assert "does not let ['value'" in words
    assert "the map of layer 0 differs by" in words
    assert "tolerance of bfloat16: 0.5 and 0.01" in words
    assert words.endswith("load the model in float32; or leave out geometric_semantic_alignment")


def test_without_named_metrics_its_columns_are_left_out_with_the_reason(model, monkeypatch):
    original = interface._captured
    monkeypatch.setattr(
        interface, "_captured", lambda recorder, call: original(recorder, call._replace(mask=None))
    )
    with pytest.warns(RuntimeWarning, match="columns have no value; results.left_out has the reasons"):
        results = asc.analyze(model, IDS)
    reasons = results.left_out.set_index("column")["reason"]
    assert "load the model in float32" in reasons["alignment_value"]
    assert results["heads"]["sink_share"].notna().all()
