# SPDX-License-Identifier: MIT
"""The identities of edits on every family that capture is tested with, or that it refuses an edit by name."""

import inspect

import pytest
import torch

import models
from attnscope.capture import Forward, edit, forward
from attnscope.capture.edits import (
    AddLogits,
    HideKeys,
    LimitWindow,
    SetPositionIds,
    SetRotary,
    SetState,
    SubtractRead,
)
from models import ALL_FAMILIES, LEARNED_POSITIONS, ROTARY, SLOPES, WITHOUT_POSITIONS, changed, layers_of, out
from models import kept_with_inputs as kept

N = 37
TAKES_IDS = (*ROTARY, *SLOPES, *WITHOUT_POSITIONS, *LEARNED_POSITIONS)
#: Whose rotation is a table of sines, or which do not rotate.
NO_FREQUENCIES = tuple(name for name in ALL_FAMILIES if name not in ROTARY or name == "gptj")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def takes_ids(name, model):
    """Return False for families without positions, and for DistilBERT before transformers 5."""
    return name in TAKES_IDS and (
        name != "distilbert" or "position_ids" in inspect.signature(model.forward).parameters
    )


def states_of(model, inputs):
    """What each block hands on, under the model's own attention."""
    with forward(model, inputs, Forward(("block_output",))) as run:
        return [layer.block_output.nan_to_num() for layer in run]


@pytest.mark.parametrize("name", ALL_FAMILIES)
def test_added_logits_are_added_and_zeros_change_no_bit(name):
    model, inputs = kept(name)
    values = torch.randn(models.VOCABULARY, generator=torch.Generator().manual_seed(0))
    if model.get_output_embeddings() is None:
        words = f"AddLogits: {type(model).__name__} gives no logits"
        with pytest.raises(TypeError, match=words), edit(model, AddLogits(values)):
            out(model, inputs)
        return
    base = out(model, inputs).nan_to_num()
    assert torch.equal(changed(model, inputs, AddLogits(0 * values)).nan_to_num(), base)
    assert torch.equal(changed(model, inputs, AddLogits(values)).nan_to_num(), base + values)


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("name", ALL_FAMILIES)
def test_its_own_states_change_no_bit_and_those_of_another_text_give_its_output(name, padding):
    model, inputs = kept(name, padding)
    other = models.text(model, padding=padding, seed=5)
    other = {name: other[name] for name in inputs}
    real = inputs["attention_mask"].bool()
    base, states_of_blocks = out(model, inputs)[real], states_of(model, inputs)
    assert bool(base.isfinite().all())
    for layer, states in enumerate(states_of_blocks):
        assert torch.equal(changed(model, inputs, SetState(layer, states, "all"))[real], base), layer
    patched = changed(model, inputs, SetState(-1, states_of(model, other)[-1], "all"))[real]
    assert torch.equal(patched, out(model, other)[real])
    assert not torch.equal(patched, base)


@pytest.mark.parametrize("name", ALL_FAMILIES)
def test_a_shift_of_all_positions(name):
    """It moves scores by rounding alone, unless positions are learned; ids that stay change no bit."""
    model, inputs = kept(name)
    if not takes_ids(name, model):
        words = f"SetPositionIds: {type(model).__name__} takes no position ids"
        with pytest.raises(NotImplementedError, match=words), edit(model, SetPositionIds(shift=1)):
            pass
        return
    unshifted = changed(model, inputs, SetPositionIds()).nan_to_num()
    assert torch.equal(unshifted, out(model, inputs).nan_to_num())
    sites = ("scores",) if models.has_attention_interface(name) else ("attention",)
    base = layers_of(model, inputs, sites, SetPositionIds())
    for shift in (17, 64):
        moved = layers_of(model, inputs, sites, SetPositionIds(shift=shift))
        for layer, (layer_moved, layer_before) in enumerate(zip(moved, base, strict=True)):
            gap, most = gap_of(
                layer_moved, layer_before, sites[0], torch.finfo(torch.float32).eps * (N + shift)
            )
            assert (gap > 1e3 * most) if name in LEARNED_POSITIONS else (gap <= most), (layer, gap, most)


def gap_of(moved, base, site, relative):
    """How far scores have moved, and how far rounding may move them.

    Where a model hides its scores, logarithms of its attention stand for them: they are the scores but for a
    number a query, which moves by as much as the largest score at most, and half their spread in a row is at
    most the largest score.
    """
    moved_values, base_values = moved.tensors[site], base.tensors[site]
    seen = base_values > -torch.inf if site == "scores" else base_values > 1e-30
    if site == "scores":
        return float((moved_values - base_values)[seen].abs().max()), relative * float(
            base_values[seen].abs().max()
        )
    logs = torch.where(seen, base_values.log(), torch.nan)
    spread = float(logs.nan_to_num(-torch.inf).amax() - logs.nan_to_num(torch.inf).amin())
    return float((moved_values.log() - logs)[seen].abs().max()), relative * spread


def test_every_family_has_positions_of_one_kind():
    assert len(set(TAKES_IDS)) == len(TAKES_IDS)
    assert set(ALL_FAMILIES) - set(TAKES_IDS) == {"t5", "bart", "bloom"}


@pytest.mark.parametrize("name", SLOPES)
def test_ids_of_ones_own_are_refused_where_attention_reads_slopes(name):
    """Falcon makes the slopes from its mask, so that other ids would change nothing and seem to act."""
    model, _ = kept(name)
    words = f"SetPositionIds: {type(model).__name__} makes its slopes from the mask"
    spread_ids = SetPositionIds(ids=2 * torch.arange(N))
    with pytest.raises(NotImplementedError, match=words), edit(model, spread_ids):
        pass


@pytest.mark.parametrize("name", ALL_FAMILIES)
def test_frequencies_of_the_rotation(name):
    model, inputs = kept(name)
    if name in NO_FREQUENCIES:
        words = f"SetRotary: {type(model).__name__} has no rotary frequencies"
        with pytest.raises(NotImplementedError, match=words), edit(model, SetRotary("none")):
            pass
        return
    base = out(model, inputs)
    before = {buffer: b.clone() for buffer, b in model.named_buffers() if buffer.endswith("inv_freq")}
    frequencies = {buffer: b for buffer, b in before.items() if "original" not in buffer}
    as_loaded = frequencies if len(frequencies) > 1 else next(iter(frequencies.values()))
    for rotary in (
        SetRotary(("ntk", 1.0)),
        SetRotary(("interpolate", 1.0)),
        SetRotary(frequencies),
        SetRotary(as_loaded),
    ):
        assert torch.equal(changed(model, inputs, rotary), base)
    for rotary in (SetRotary("none"), SetRotary(("ntk", 4.0)), SetRotary(("interpolate", 4.0))):
        assert not torch.equal(changed(model, inputs, rotary), base)
    assert all(torch.equal(b, before[buffer]) for buffer, b in model.named_buffers() if buffer in before)
    with edit(model, SetRotary("none")), edit(model, SetPositionIds(shift=9)):
        still = out(model, inputs)
    assert torch.equal(still, changed(model, inputs, SetRotary("none"))), "nothing turns, nothing moves"


@pytest.mark.parametrize("name", models.LEGACY)
@pytest.mark.parametrize(
    "softmax_edit",
    [HideKeys([0]), LimitWindow(3), SubtractRead([0])],
    ids=lambda softmax_edit: softmax_edit.name,
)
def test_a_softmax_out_of_reach_is_refused_by_name(name, softmax_edit):
    model, _ = kept(name)
    if models.has_attention_interface(name):
        pytest.skip(f"{name} has an attention interface in this transformers")
    words = f"{softmax_edit.name}: the attention of {type(model).__name__}"
    with pytest.raises(NotImplementedError, match=words), edit(model, softmax_edit):
        pass
