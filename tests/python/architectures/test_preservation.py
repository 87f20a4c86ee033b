# SPDX-License-Identifier: MIT
"""A capture leaves a model, its configuration, its modules and every random state as they were."""

import random
import warnings

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import models
from attnscope.capture import Forward, capture, forward
from attnscope.capture.preservation import preserved
from fingerprint import differing, fingerprint

SHAPE = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 40}
BLOCKS = {"block_size": 4, "num_random_blocks": 1}


def big_bird():
    torch.manual_seed(0)
    config = transformers.BigBirdConfig(**SHAPE, **BLOCKS, num_hidden_layers=1)
    return transformers.BigBirdModel(config).eval()


def big_bird_pegasus():
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32}
    config = transformers.BigBirdPegasusConfig(
        vocab_size=60, d_model=32, encoder_layers=1, decoder_layers=1, decoder_ffn_dim=32, **heads, **BLOCKS
    )
    return transformers.BigBirdPegasusModel(config).eval()


def reformer(layer="lsh", **changes):
    torch.manual_seed(0)
    config = transformers.ReformerConfig(
        vocab_size=40,
        attention_head_size=8,
        hidden_size=16,
        num_attention_heads=2,
        attn_layers=[layer],
        axial_pos_embds=False,
        max_position_embeddings=256,
        lsh_attn_chunk_length=8,
        num_buckets=None,
        feed_forward_size=16,
        is_decoder=True,
        **{"hash_seed": 0, **changes},
    )
    return transformers.ReformerModel(config).eval()


def rotary():
    """Llama with frequencies that follow the longest text."""
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    return models.tiny("llama", rope_parameters=rope, max_position_embeddings=20, num_hidden_layers=1)


def text_of(n, vocabulary=40):
    ids = torch.randint(5, vocabulary, (1, n), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.mark.parametrize("build", [big_bird, big_bird_pegasus, reformer, rotary])
@pytest.mark.parametrize("n", [64, 12])
def test_a_model_that_changes_itself_is_put_back(build, n):
    model = build()
    inputs = text_of(n)
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = inputs["input_ids"][:, :7]
    before = fingerprint(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with capture(model) as recording:
                assert not differing(before, fingerprint(model))
                for layer in recording.run(**inputs):
                    del layer
        except RuntimeError as error:
            assert "cannot be captured" in str(error)  # noqa: PT017  (of Reformer, whose maps are no n x n)
    assert not differing(before, fingerprint(model))


def test_sparse_attention_stays_sparse():
    """The trial's text is too short for blocks; the maps are those of the model as it was built."""
    inputs = text_of(64)
    with torch.no_grad():
        right = big_bird()(**inputs, output_attentions=True).attentions[0]
    model = big_bird()
    with capture(model) as recording:
        layer = next(iter(recording.run(**inputs)))
        torch.testing.assert_close(layer.attention, right)
    assert model.attention_type == "block_sparse"
    assert float((right == 0).float().mean()) > 0.5


def test_a_refused_model_gives_the_outputs_that_it_gave():
    tried, fresh, inputs = reformer(), reformer(), {"input_ids": text_of(256)["input_ids"]}
    with pytest.raises(RuntimeError, match="cannot be captured"), capture(tried) as recording:
        list(recording.run(**inputs))
    with torch.no_grad():
        assert torch.equal(tried(**inputs)[0], fresh(**inputs)[0])


@pytest.mark.parametrize("name", models.few(models.VISIBLE, ("llama", "bert", "t5", "mpt", "jamba")))
def test_every_family_is_as_it_was(name):
    model = models.tiny(name)
    before = fingerprint(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with capture(model) as recording:
            list(recording.run(**models.text(model, padding="left")))
    if not model.config.is_encoder_decoder:
        with forward(model, models.text(model), Forward(sites=("hidden",))) as run:
            list(run)
    assert not differing(before, fingerprint(model))


class Drawing(nn.Module):
    """A module that changes itself in every way, and draws from every generator."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.mode = "sparse"
        self.seen = [1]
        self.register_buffer("state", torch.zeros(3))

    def forward(self):
        self.mode, self.extra = "full", 3
        self.seen.append(2)
        self.inner = nn.Linear(3, 3)
        self.state += torch.rand(3)
        self.register_buffer("more", torch.ones(1))
        np.random.seed(3)  # noqa: NPY002  (as BigBird does)
        random.random()


def test_every_kind_of_change_is_undone_and_named():
    model = Drawing()
    before = fingerprint(model)
    with preserved(model) as effects:
        model()
    assert not differing(before, fingerprint(model))
    assert set(effects.settings) == {"Drawing.mode", "Drawing.extra", "Drawing.seen", "Drawing.inner"}
    assert set(effects.tensors) >= {"Drawing.state", "Drawing.more"}
    assert effects.drew
    with preserved(model) as effects:
        model.inner(torch.zeros(2))
    assert not effects.has_changes
    assert not effects.drew
