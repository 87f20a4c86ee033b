# SPDX-License-Identifier: MIT
"""Edits of what goes in: embeddings, position ids, rotary frequencies."""

import pytest
import torch

from attnscope.capture import capture, edit
from attnscope.capture.edits import SetEmbedding, SetPositionIds, SetRotary
from models import ROTARY, changed, layers_of, made, out

TABLE_OF_POSITIONS = ("gpt2", "opt", "bert", "roberta")


@pytest.mark.parametrize("name", ROTARY)
def test_a_shift_of_all_positions_moves_no_score_of_a_rotary_model(name):
    model, inputs = made(name)
    sites = ("scores",)
    base = layers_of(model, inputs, sites, SetPositionIds())
    assert torch.equal(changed(model, inputs, SetPositionIds()), out(model, inputs))
    shifted = layers_of(model, inputs, sites, SetPositionIds(shift=17))
    layer, usual = shifted[0], base[0]
    seen = usual.scores > -torch.inf
    largest = float(usual.scores[seen].abs().max())
    gap = float((layer.scores - usual.scores)[seen].abs().max())
    assert gap <= torch.finfo(torch.float32).eps * (37 + 17) * max(1.0, largest), gap
    for one, two in zip(shifted, base, strict=True):
        assert torch.allclose(one.scores[seen], two.scores[seen], atol=0.02 * largest)


@pytest.mark.parametrize("name", TABLE_OF_POSITIONS)
def test_a_shift_moves_the_scores_of_learned_positions(name):
    model, inputs = made(name)
    assert torch.equal(changed(model, inputs, SetPositionIds()), out(model, inputs))
    base = layers_of(model, inputs, ("scores",), SetPositionIds())[0].scores
    moved = layers_of(model, inputs, ("scores",), SetPositionIds(shift=5))[0].scores
    seen = base > -torch.inf
    assert float((moved - base)[seen].abs().max()) > 1e-3


def test_given_positions_are_those_of_the_model():
    model, inputs = made("llama")
    ids = torch.randint(0, 50, (2, 37))
    wanted = out(model, {**inputs, "position_ids": ids + 0})
    assert torch.equal(changed(model, inputs, SetPositionIds(ids=ids)), wanted)
    plain = {"input_ids": inputs["input_ids"]}
    mask = torch.ones_like(ids)
    wanted = out(model, {**plain, "attention_mask": mask, "position_ids": 2 * torch.arange(37)[None]})
    assert torch.equal(changed(model, plain, SetPositionIds(ids=2 * torch.arange(37))), wanted)


@pytest.mark.parametrize("name", ROTARY)
def test_rotary_frequencies(name):
    model, inputs = made(name)
    base = out(model, inputs)
    before = [b.clone() for n, b in model.named_buffers() if n.endswith("inv_freq")]
    own = before[0]
    for one in (SetRotary(("ntk", 1.0)), SetRotary(("interpolate", 1.0)), SetRotary(own)):
        assert torch.equal(changed(model, inputs, one), base)
    for one in (SetRotary("none"), SetRotary(("ntk", 4.0)), SetRotary(("interpolate", 4.0))):
        assert not torch.equal(changed(model, inputs, one), base)
    after = [b for n, b in model.named_buffers() if n.endswith("inv_freq")]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    with edit(model, SetRotary("none")), edit(model, SetPositionIds(shift=9)):
        still = out(model, inputs)
    assert torch.equal(still, changed(model, inputs, SetRotary("none"))), "nothing turns, nothing moves"


def test_ntk_and_interpolation_by_hand():
    model, _ = made("llama")
    old = model.model.rotary_emb.inv_freq.double()
    with edit(model, SetRotary(("ntk", 4.0))) as applied:
        new = model.model.rotary_emb.inv_freq.double()
        model(torch.arange(4)[None])
    assert applied[0].count == 1
    wanted = torch.tensor([t * 4 ** (-2 * k / (24 - 2)) for k, t in enumerate(old.tolist())])
    assert torch.allclose(new, wanted.double(), rtol=1e-6)
    # All frequencies of a model that interpolates are those of positions divided by the factor.
    inputs = {"input_ids": torch.arange(4, 16)[None]}
    sparse = changed(model, inputs, SetPositionIds(ids=4 * torch.arange(12)), SetRotary(("interpolate", 4.0)))
    assert torch.allclose(sparse, out(model, inputs), atol=1e-5)


def test_an_embedding_at_one_position():
    model, inputs = made("llama", "left")
    vector = torch.randn(2, 96)
    with capture(model, sites=("hidden",)) as recording:
        base = list(recording.run(**inputs))
    found = layers_of(model, inputs, ("hidden",), SetEmbedding(3, vector))
    for sample, column in ((0, 3), (1, 12)):
        assert torch.equal(found[0].hidden[sample, column], vector[sample])
        for one, two in zip(found, base, strict=True):
            before = slice(9 * sample, column)
            assert torch.equal(one.hidden[sample, before], two.hidden[sample, before])
        rest = [i for i in range(37) if i != column]
        assert torch.equal(found[0].hidden[sample, rest], base[0].hidden[sample, rest])
    zero = layers_of(model, inputs, ("hidden", "scores"), SetEmbedding(0, torch.zeros(96)))
    for layer in zero:  # without biases, nothing at position 0 stays nothing
        assert not layer.hidden[0, 0].any()
        assert not layer.scores[0, :, :, 0].any()
