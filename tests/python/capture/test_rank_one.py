# SPDX-License-Identifier: MIT
"""Changes of rank one: blocks before the changed matrix run once, and nothing else changes."""

from contextlib import nullcontext

import pytest
import torch

import attnscope as asc
from attnscope.capture.weights import rank_one
from attnscope.models import architecture
from models import VOCABULARY, tiny

FAMILIES = ("llama", "gpt2", "gpt_neox", "gemma2")


def setting(name, role):
    model = tiny(name).eval()
    shape = asc.weight_map(model)[asc.weight_map(model).layers - 1, role].shape
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(3, VOCABULARY, (1, 9), generator=draw)
    return model, ids, torch.randn(3, shape[0], generator=draw), torch.randn(shape[1], generator=draw)


@pytest.mark.parametrize("role", ["q", "down"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_change_in_the_last_block_runs_the_others_once(name, role, monkeypatch):
    model, ids, us, v = setting(name, role)
    stack = asc.weight_map(model).blocks
    blocks = model.get_submodule(stack)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    calls = [0] * len(blocks)
    hooks = []
    for number, block in enumerate(blocks):

        def count(*_, number=number):
            calls[number] += 1

        hooks.append(next(iter(block.children())).register_forward_hook(count))
    effect = asc.rank_one_effect(model, ids, -1, role, us, v)
    first, last = calls[0], calls[-1]
    for hook in hooks:
        hook.remove()
    assert first <= 4  # the base, and what the closed form captures
    assert last >= first + len(us)
    assert not any("forward" in vars(block) for block in blocks)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    monkeypatch.setattr(rank_one, "recorded_blocks", lambda *_: nullcontext())
    expected = asc.rank_one_effect(model, ids, -1, role, us, v)
    for field, expected_field in zip(effect, expected, strict=True):
        torch.testing.assert_close(field, expected_field, rtol=0, atol=0, equal_nan=True)


def test_changes_of_attention_are_those_of_whole_passes(monkeypatch):
    model, ids, us, v = setting("llama", "q")
    changes = rank_one.attention_change(model, ids[0], -1, "q", us, v)
    assert (changes > 0).all()
    monkeypatch.setattr(rank_one, "recorded_blocks", lambda *_: nullcontext())
    assert torch.equal(changes, rank_one.attention_change(model, ids[0], -1, "q", us, v))


def test_blocks_are_given_back_after_an_error():
    model, ids, us, v = setting("llama", "q")
    with pytest.raises(ValueError, match=r"ReplaceWeight: u and v must be finite and not 0"):
        asc.rank_one_effect(model, ids, -1, "q", us * 0, v)
    blocks = model.get_submodule(asc.weight_map(model).blocks)
    assert not any("forward" in vars(block) for block in blocks)


def test_the_map_of_a_model_is_read_once_while_its_parameters_stay(monkeypatch):
    model = tiny("llama")
    reads = []
    read = architecture._read
    monkeypatch.setattr(architecture, "_read", lambda *arguments: reads.append(1) or read(*arguments))
    first = asc.weight_map(model)
    assert asc.weight_map(model) is first
    assert len(reads) == 1
    block = model.get_submodule(f"{first.blocks}.0")
    block.self_attn.q_proj = torch.nn.Linear(*reversed(block.self_attn.q_proj.weight.shape), bias=True)
    asc.weight_map(model)
    assert len(reads) == 2
