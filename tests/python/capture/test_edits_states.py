# SPDX-License-Identifier: MIT
"""Edits of what goes in (embeddings, position ids, rotary frequencies) and of what modules hand on."""

import pytest
import torch
import transformers
from transformers import DynamicCache

import models
from attnscope.capture import Forward, capture, edit, forward
from attnscope.capture.edits import (
    AddDirection,
    AddLogits,
    HideKeys,
    Project,
    Scale,
    SetEmbedding,
    SetPositionIds,
    SetRotary,
    SetState,
)
from attnscope.capture.edits.edit import cache_name
from models import ALL_FAMILIES, build_tokenizer, changed, layers_of, out
from models import kept_with_inputs as kept


def blocks_of(model, inputs, *edits):
    """Every block's states, of those without attention too."""
    with forward(model, inputs, Forward(("block_output",), edits=edits)) as run:
        return list(run)


@pytest.mark.parametrize("name", ALL_FAMILIES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_states_are_changed_where_they_are_said_to_be(name):
    model, inputs = kept(name, "left")
    direction = torch.randn(model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    base = blocks_of(model, inputs)
    for value, kind in ((direction, AddDirection), (direction, SetState), (direction, Project)):
        edited = blocks_of(model, inputs, kind(1, value, [4, -1]))
        assert torch.equal(edited[0].block_output, base[0].block_output)
        for sample, first in enumerate((0, 9)):
            touched = [first + 4, 36]
            rest = [i for i in range(first, 37) if i not in touched]
            before, after = base[1].block_output[sample], edited[1].block_output[sample]
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
        if name in models.DECODERS:  # earlier positions cannot see it
            for edited_layer, base_layer in zip(edited, base, strict=True):
                for sample, first in enumerate((0, 9)):
                    upto = slice(first, first + 4)
                    assert torch.equal(
                        edited_layer.block_output[sample, upto], base_layer.block_output[sample, upto]
                    )


@pytest.mark.parametrize("padding", ["left", "right"])
def test_the_last_token_is_the_last_real_one(padding):
    model, inputs = build_tokenizer("llama", padding)
    with capture(model, sites=("block_output",)) as recording:
        base = list(recording.run(**inputs))[-1].block_output
    edited = layers_of(model, inputs, ("block_output",), AddDirection(-1, torch.ones(2, 96)))[-1].block_output
    moved = (edited != base).any(-1)
    expected = torch.zeros(2, 37, dtype=torch.bool)
    expected[0, 36] = expected[1, 36 if padding == "left" else 27] = True
    assert torch.equal(moved, expected)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox"])
def test_the_state_of_another_text_gives_its_logits(name):
    model, inputs = build_tokenizer(name, "none")
    other = models.text(model, seed=5)
    with capture(model, sites=("block_output",)) as recording:
        states = list(recording.run(**other))[-1].block_output
    patched = changed(model, inputs, SetState(-1, states, "all"))
    expected, rounding = out(model, other), models.eager_rounding(name)
    torch.testing.assert_close(patched, expected, rtol=0, atol=rounding)
    patched = changed(model, inputs, SetState(-1, states[:, -1]))
    torch.testing.assert_close(patched[:, -1], expected[:, -1], rtol=0, atol=rounding)
    assert torch.equal(patched[:, :-1], out(model, inputs)[:, :-1])


def test_edits_of_one_site_follow_one_another():
    model, inputs = build_tokenizer("llama", "none")
    direction = torch.randn(96)
    after = layers_of(
        model, inputs, ("block_output",), SetState(1, direction, "all"), AddDirection(1, direction, "all")
    )[1].block_output
    assert torch.equal(after, (2 * direction).expand_as(after))
    with edit(model, SetState(1, direction, "all")):
        nested = layers_of(model, inputs, ("block_output",), Scale("block_output", 3.0, [1]))[1].block_output
    assert torch.equal(nested, (3 * direction).expand_as(nested))


def test_scaled_heads_and_sites():
    model, inputs = build_tokenizer("llama", "none")
    weights = torch.tensor([0.0, 1.0, 2.0, 1.0])[:, None]
    base = layers_of(model, inputs, ("head_output",), Scale("head_output", 1.0))
    scaled = layers_of(model, inputs, ("head_output",), Scale("head_output", weights, [0]))
    assert torch.equal(scaled[0].head_output, base[0].head_output * weights[None, :, None])
    quiet = layers_of(
        model, inputs, ("hidden", "block_output"), Scale("attention_output", 0.0), Scale("mlp_output", 0.0)
    )
    for layer in quiet:
        assert torch.equal(layer.block_output, layer.hidden)


def test_added_logits():
    model, inputs = build_tokenizer("llama")
    values = torch.randn(models.VOCABULARY)
    assert torch.equal(changed(model, inputs, AddLogits(values)), out(model, inputs) + values)
    ban = torch.zeros(models.VOCABULARY)
    ban[:90] = -torch.inf
    with edit(model, AddLogits(ban)):
        tokens = model.generate(**inputs, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert bool((tokens[:, 37:] >= 90).all())
    bert, text = build_tokenizer("bert")
    with pytest.raises(TypeError, match="AddLogits: BertModel gives no logits"):
        changed(bert, text, AddLogits(values))


CHANGES = [
    lambda direction: AddDirection(1, direction),
    lambda direction: AddDirection(1, direction, [7]),
    lambda direction: SetState(1, direction, "last"),
    lambda _: AddLogits(torch.linspace(0, 1, models.VOCABULARY), steps="first"),
]


def last_logits(model, tokens, *edits, **options):
    """Logits behind the last token of a pass."""
    with edit(model, *edits), torch.no_grad():
        return model(input_ids=tokens, **options).logits[:, -1]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("cached", [5, 8])
def test_the_prompt_behind_a_filled_cache_is_changed(change, cached):
    """It was taken for a step of a generation, which these edits leave alone, and nothing was said."""
    model = models.tiny("llama")
    direction = torch.randn(96, generator=torch.Generator().manual_seed(0))
    tokens = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(1))
    edits = change(direction)
    if cached == 8 and getattr(edits, "positions", None) == [7]:
        return  # that position came before
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(tokens[:, :cached], **{cache_name(model): cache}, use_cache=True)
    changed_logits = last_logits(
        model, tokens[:, cached:], edits, **{cache_name(model): cache}, use_cache=True
    )
    torch.testing.assert_close(changed_logits, last_logits(model, tokens, edits), rtol=0, atol=1e-4)
    assert not torch.allclose(changed_logits, last_logits(model, tokens), atol=1e-3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (AddDirection(1, torch.ones(96)), "a pass of 4 tokens behind 4 in the cache may be a piece"),
        (SetState(1, torch.ones(96), "all"), "a pass of 4 tokens behind 4 in the cache may be a piece"),
        # before transformers 5 pieces but the last pass the model's hooks by
        (
            AddLogits(torch.ones(models.VOCABULARY), "first"),
            "a pass of (4 tokens behind 4|one token behind 8)",
        ),
        (SetState(1, torch.ones(96), [-2], steps="all"), "the prompt is read in pieces, whose last tokens"),
        (HideKeys([-2]), "the prompt is read in pieces, whose last tokens"),
    ],
)
def test_the_end_of_a_prompt_that_is_read_in_pieces_is_not_known(change, words):
    """The last token of its first piece was changed, and what stands behind it was left."""
    model = models.tiny("llama")
    inputs = {"input_ids": torch.randint(3, 60, (2, 9)), "attention_mask": torch.ones(2, 9, dtype=torch.long)}
    with (
        edit(model, change),
        pytest.raises(NotImplementedError, match=f"^{type(change).__name__}: {words}"),
    ):
        model.generate(**inputs, max_new_tokens=4, do_sample=False, prefill_chunk_size=4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (AddDirection(1, torch.ones(96)), "a pass of one token behind 8 in the cache may be a piece"),
        (AddLogits(torch.ones(models.VOCABULARY), "first"), "a pass of one token behind 8 in the cache"),
        (SetState(1, torch.ones(96), "last", steps="all"), "the prompt is read in pieces, whose last tokens"),
        (HideKeys([-2]), "the prompt is read in pieces, whose last tokens"),
    ],
)
def test_a_last_piece_of_one_token_is_no_step(change, words):
    """It was taken for a step, so that the last token but one was changed in the place of the last."""
    model = models.tiny("llama")
    inputs = {"input_ids": torch.randint(3, 60, (2, 9)), "attention_mask": torch.ones(2, 9, dtype=torch.long)}
    options = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None}
    with (
        edit(model, change),
        pytest.raises(NotImplementedError, match=f"^{type(change).__name__}: {words}"),
    ):
        model.generate(**inputs, **options, prefill_chunk_size=8)
    with edit(model, change):
        at_once = model.generate(**inputs, **options)
    if transformers.__version__.startswith("4."):
        return  # the last token is always a piece of its own
    with edit(model, change):  # all of it in the first piece
        assert torch.equal(model.generate(**inputs, **options, prefill_chunk_size=9), at_once)


def test_all_tokens_of_a_prompt_that_is_read_in_pieces():
    model = models.tiny("llama")
    inputs = {"input_ids": torch.randint(3, 60, (2, 9)), "attention_mask": torch.ones(2, 9, dtype=torch.long)}
    options = {"max_new_tokens": 4, "do_sample": False, "eos_token_id": None, "output_logits": True}
    logits = []
    for pieces in ({}, {"prefill_chunk_size": 4}, {"prefill_chunk_size": 1}):
        with edit(model, AddDirection(1, torch.linspace(-1, 1, 96), "all", steps="all")):
            written = model.generate(**inputs, **options, **pieces, return_dict_in_generate=True)
        logits.append(torch.stack(written.logits))
    for in_pieces in logits[1:]:
        torch.testing.assert_close(in_pieces, logits[0], rtol=0, atol=1e-4)


def test_tokens_behind_a_step_may_be_a_prompt_or_guesses():
    model = models.tiny("llama")
    tokens = torch.randint(3, 60, (1, 9), generator=torch.Generator().manual_seed(1))
    cache = {cache_name(model): DynamicCache(config=model.config), "use_cache": True}
    with edit(model, AddDirection(1, torch.ones(96))), torch.no_grad():
        model(tokens[:, :4], **cache)
        model(tokens[:, 4:5], **cache)
        with pytest.raises(
            NotImplementedError, match="AddDirection: a pass of 4 tokens behind 5 in the cache"
        ):
            model(tokens[:, 5:], **cache)


def test_given_positions_are_those_of_the_model():
    model, inputs = build_tokenizer("llama")
    ids = torch.randint(0, 50, (2, 37))
    expected = out(model, {**inputs, "position_ids": ids + 0})
    assert torch.equal(changed(model, inputs, SetPositionIds(ids=ids)), expected)
    plain = {"input_ids": inputs["input_ids"]}
    mask = torch.ones_like(ids)
    expected = out(model, {**plain, "attention_mask": mask, "position_ids": 2 * torch.arange(37)[None]})
    assert torch.equal(changed(model, plain, SetPositionIds(ids=2 * torch.arange(37))), expected)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_given_positions_are_as_many_as_the_tokens_of_a_pass(name):
    """The step of a generation, which has one, ended in an error of torch."""
    model = models.cached_model(name)
    tokens = torch.randint(3, 60, (1, 8), generator=torch.Generator().manual_seed(0))
    change = SetPositionIds(ids=torch.arange(8))
    with (
        edit(model, change),
        pytest.raises(
            ValueError, match=r"ids must have shape \[1\] or \[1, 1\], .* got \(8,\); a generation"
        ),
    ):
        model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=3, pad_token_id=0)
    with edit(model, change), pytest.raises(ValueError, match=r"\[7\] or \[1, 7\], .* got \(8,\)"):
        model(tokens[:, :7])


def test_ntk_and_interpolation_by_hand():
    model, _ = build_tokenizer("llama")
    old = model.model.rotary_emb.inv_freq.double()
    with edit(model, SetRotary(("ntk", 4.0))) as applied:
        new = model.model.rotary_emb.inv_freq.double()
        model(torch.arange(4)[None])
    assert applied[0].count == 1
    expected = torch.tensor([t * 4 ** (-2 * k / (24 - 2)) for k, t in enumerate(old.tolist())])
    assert torch.allclose(new, expected.double(), rtol=1e-6)
    # All frequencies of a model that interpolates are those of positions divided by the factor.
    inputs = {"input_ids": torch.arange(4, 16)[None]}
    sparse = changed(model, inputs, SetPositionIds(ids=4 * torch.arange(12)), SetRotary(("interpolate", 4.0)))
    assert torch.allclose(sparse, out(model, inputs), atol=1e-5)


def test_an_embedding_at_one_position():
    model, inputs = build_tokenizer("llama", "left")
    vector = torch.randn(2, 96)
    with capture(model, sites=("hidden",)) as recording:
        base = list(recording.run(**inputs))
    edited = layers_of(model, inputs, ("hidden",), SetEmbedding(3, vector))
    for sample, column in ((0, 3), (1, 12)):
        assert torch.equal(edited[0].hidden[sample, column], vector[sample])
        for edited_layer, base_layer in zip(edited, base, strict=True):
            before = slice(9 * sample, column)
            assert torch.equal(edited_layer.hidden[sample, before], base_layer.hidden[sample, before])
        rest = [i for i in range(37) if i != column]
        assert torch.equal(edited[0].hidden[sample, rest], base[0].hidden[sample, rest])
    zero = layers_of(model, inputs, ("hidden", "scores"), SetEmbedding(0, torch.zeros(96)))
    for layer in zero:  # without biases, nothing at position 0 stays nothing
        assert not layer.hidden[0, 0].any()
        assert not layer.scores[0, :, :, 0].any()
