# SPDX-License-Identifier: MIT
"""Edits of what goes in (embeddings, position ids, rotary frequencies) and of what modules hand on."""

import pytest
import torch

import models
from attnscope.capture import capture, edit
from attnscope.capture.edits import (
    AddDirection,
    AddLogits,
    Project,
    Scale,
    SetEmbedding,
    SetPositionIds,
    SetRotary,
    SetState,
)
from models import ROTARY, changed, layers_of, made, out

TABLE_OF_POSITIONS = ("gpt2", "opt", "bert", "roberta")


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "bert", "albert", "falcon", "bloom", "gemma2"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_states_are_changed_where_they_are_said_to_be(name):
    model, inputs = made(name, "left")
    last = models.tiny(name).config.num_hidden_layers - 1
    direction = torch.randn(96, generator=torch.Generator().manual_seed(0))
    with capture(model, sites=("block_output",)) as recording:
        base = list(recording.run(**inputs))
    for value, kind in ((direction, AddDirection), (direction, SetState), (direction, Project)):
        found = layers_of(model, inputs, ("block_output",), kind(1, value, [4, -1]))
        assert torch.equal(found[0].block_output, base[0].block_output)
        for sample, first in enumerate((0, 9)):
            touched = [first + 4, 36]
            rest = [i for i in range(first, 37) if i not in touched]
            before, after = base[1].block_output[sample], found[1].block_output[sample]
            assert torch.equal(after[rest], before[rest])
            if kind is AddDirection:
                assert torch.equal(after[touched], before[touched] + direction)
            elif kind is SetState:
                assert torch.equal(after[touched], direction.expand(2, -1))
            else:
                unit = direction / direction.norm()
                assert float((after[touched] @ unit).abs().max()) < 1e-5
                left = before[touched] - after[touched]
                assert torch.allclose(left, (left @ unit)[:, None] * unit, atol=1e-5)
                assert float(left.norm()) > 1e-3
        if name not in ("bert", "albert"):  # earlier positions cannot see it
            for one, two in zip(found, base, strict=True):
                for sample, first in enumerate((0, 9)):
                    upto = slice(first, first + 4)
                    assert torch.equal(one.block_output[sample, upto], two.block_output[sample, upto])
    assert last >= 2


@pytest.mark.parametrize("padding", ["left", "right"])
def test_the_last_token_is_the_last_real_one(padding):
    model, inputs = made("llama", padding)
    with capture(model, sites=("block_output",)) as recording:
        base = list(recording.run(**inputs))[-1].block_output
    found = layers_of(model, inputs, ("block_output",), AddDirection(-1, torch.ones(2, 96)))[-1].block_output
    moved = (found != base).any(-1)
    wanted = torch.zeros(2, 37, dtype=torch.bool)
    wanted[0, 36] = wanted[1, 36 if padding == "left" else 27] = True
    assert torch.equal(moved, wanted)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox"])
def test_the_state_of_another_text_gives_its_logits(name):
    model, inputs = made(name, "none")
    other = models.text(model, seed=5)
    with capture(model, sites=("block_output",)) as recording:
        states = list(recording.run(**other))[-1].block_output
    patched = changed(model, inputs, SetState(-1, states, "all"))
    assert torch.equal(patched, out(model, other))
    patched = changed(model, inputs, SetState(-1, states[:, -1]))
    assert torch.equal(patched[:, -1], out(model, other)[:, -1])
    assert torch.equal(patched[:, :-1], out(model, inputs)[:, :-1])


def test_edits_of_one_site_follow_one_another():
    model, inputs = made("llama", "none")
    direction = torch.randn(96)
    after = layers_of(
        model, inputs, ("block_output",), SetState(1, direction, "all"), AddDirection(1, direction, "all")
    )[1].block_output
    assert torch.equal(after, (2 * direction).expand_as(after))
    with edit(model, SetState(1, direction, "all")):
        nested = layers_of(model, inputs, ("block_output",), Scale("block_output", 3.0, [1]))[1].block_output
    assert torch.equal(nested, (3 * direction).expand_as(nested))


def test_scaled_heads_and_sites():
    model, inputs = made("llama", "none")
    weights = torch.tensor([0.0, 1.0, 2.0, 1.0])[:, None]
    base = layers_of(model, inputs, ("head_output",), Scale("head_output", 1.0))
    found = layers_of(model, inputs, ("head_output",), Scale("head_output", weights, [0]))
    assert torch.equal(found[0].head_output, base[0].head_output * weights[None, :, None])
    quiet = layers_of(
        model, inputs, ("hidden", "block_output"), Scale("attention_output", 0.0), Scale("mlp_output", 0.0)
    )
    for layer in quiet:
        assert torch.equal(layer.block_output, layer.hidden)


def test_added_logits():
    model, inputs = made("llama")
    values = torch.randn(models.VOCABULARY)
    assert torch.equal(changed(model, inputs, AddLogits(values)), out(model, inputs) + values)
    ban = torch.zeros(models.VOCABULARY)
    ban[:90] = -torch.inf
    with edit(model, AddLogits(ban)):
        tokens = model.generate(**inputs, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert bool((tokens[:, 37:] >= 90).all())
    bert, text = made("bert")
    with pytest.raises(TypeError, match="AddLogits: BertModel gives no logits"):
        changed(bert, text, AddLogits(values))


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
