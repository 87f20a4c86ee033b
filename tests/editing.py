# SPDX-License-Identifier: MIT
"""Models under edits, and what they compute."""

from pathlib import Path

import torch

import models
from attnscope.capture import capture, edit

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
INTERFACE = (*models.CAUSAL, *models.ENCODERS, *models.SEQ2SEQ)
FAMILIES = (*INTERFACE, *models.LEGACY)
ROTARY = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma2", "gpt_neox", "phi", "olmo2", "gpt_oss")


def made(name, padding="left", **changes):
    """The model (of an encoder-decoder the encoder), computing as edits of its softmax do, and its inputs."""
    if name == "t5":
        models.needs_attention_interface(name)
    return with_inputs(models.tiny(name, implementation="eager", **changes), name, padding)


def kept(name, padding="left"):
    """The same of a model that other tests have too, and that stays as it is."""
    if name == "t5":
        models.needs_attention_interface(name)
    return with_inputs(models.kept(name, "eager"), name, padding)


def with_inputs(model, name, padding):
    if name in models.SEQ2SEQ:
        model = model.get_encoder()
    inputs = models.text(model, padding=padding)
    inputs.pop("decoder_input_ids", None)
    return model, inputs


def out(model, inputs):
    with torch.no_grad():
        return model(**inputs)[0]


def changed(model, inputs, *edits):
    with edit(model, *edits) as applied:
        result = out(model, inputs)
    assert all(one.count > 0 for one in applied)
    return result


def layers_of(model, inputs, sites, *edits):
    with edit(model, *edits), capture(model, sites=sites) as recording:
        return list(recording.run(**inputs))
