# SPDX-License-Identifier: MIT
"""Eight identities of edits that hold on any decoder: what a study of directions rests on."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM

import attnscope as asc
import models
import weight_models
from attnscope.capture import Forward, forward
from attnscope.capture.directions.steps import PromptSteps
from attnscope.capture.edits import AddDirection, AddLogits, Project, Scale, SetState
from models import DATA

FAMILIES = ("llama", "gpt2", "gpt_neox", "gemma2", "cohere")
FOLDERS = ("stories260K", "llama2xs")


@pytest.fixture(scope="module", params=[*FAMILIES, *FOLDERS])
def model(request):
    torch.set_num_threads(1)
    if request.param in FOLDERS:
        folder = DATA / request.param / "hf"
        if not folder.exists():
            pytest.skip(f"no {folder}")
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    if request.param == "cohere":
        return weight_models.tiny("cohere").double().eval()
    return models.tiny(request.param, implementation="eager").double()


@pytest.fixture(scope="module")
def width(model):
    return model.config.hidden_size


def ids_of(model, seed, n=12):
    size = model.get_input_embeddings().weight.shape[0]
    return torch.randint(3, size, (1, n), generator=torch.Generator().manual_seed(seed))


def passed(model, ids, *edits, mask=None):
    """States of every block and logits."""
    mask = torch.ones_like(ids) if mask is None else mask
    inputs = {"input_ids": ids, "attention_mask": mask}
    inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp_min(0)
    with forward(model, inputs, Forward(("block_output", "logits"), edits=edits)) as run:
        states = [layer.block_output for layer in run]
        return states, run.outputs.logits


def drawn(width, seed=0):
    return torch.randn(width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_an_edit_by_nothing_changes_no_bit(model, width):
    ids = ids_of(model, 1)
    _, base = passed(model, ids)
    zero = torch.zeros(width, dtype=torch.float64)
    for neutral in (
        AddDirection(0, zero),
        Scale("block_output", 1.0),
        AddLogits(torch.zeros(base.shape[-1])),
    ):
        assert torch.equal(passed(model, ids, neutral)[1], base), neutral


def test_an_edit_moves_its_state_and_nothing_before_it(model, width):
    ids, move = ids_of(model, 1), drawn(width)
    states, base = passed(model, ids)
    for edit, expected in (
        (AddDirection(1, move), states[1][0, -1] + move),
        (SetState(1, move), move),
        (Project(1, move), states[1][0, -1] - move * (move @ states[1][0, -1]) / (move @ move)),
    ):
        edited, logits = passed(model, ids, edit)
        torch.testing.assert_close(edited[1][0, -1], expected, rtol=1e-10, atol=1e-10)
        for a, b in zip(edited, states, strict=True):
            assert torch.equal(a[:, :-1], b[:, :-1])
        assert torch.equal(logits[:, :-1], base[:, :-1])
        assert not torch.equal(logits[:, -1], base[:, -1])


def test_the_last_block_is_read_out(model, width):
    ids, move = ids_of(model, 1), drawn(width)
    read = asc.readout(model)
    states, base = passed(model, ids)
    with torch.no_grad():
        torch.testing.assert_close(read(states[-1]), base, rtol=1e-12, atol=1e-12)
        logits = passed(model, ids, AddDirection(-1, move))[1]
        torch.testing.assert_close(read(states[-1][:, -1] + move), logits[:, -1], rtol=1e-12, atol=1e-12)


def test_another_prompts_last_state_gives_its_logits(model):
    ids, other_ids = ids_of(model, 1), ids_of(model, 2, n=9)
    states, base = passed(model, other_ids)
    logits = passed(model, ids, SetState(-1, states[-1][:, -1]))[1]
    torch.testing.assert_close(logits[:, -1], base[:, -1], rtol=1e-12, atol=1e-12)


def test_a_cached_step_is_the_whole_pass(model, width):
    ids, moves = ids_of(model, 1), torch.stack([drawn(width, seed) for seed in (0, 1)])
    steps = PromptSteps(model, ids[0])
    for layer in (0, -1):
        _, outputs = steps.step(2, (AddDirection(layer, moves[:, None], steps="all"),))
        for row, move in enumerate(moves):
            expected = passed(model, ids, AddDirection(layer, move))[1][0, -1]
            torch.testing.assert_close(outputs.logits[row, -1], expected, rtol=1e-5, atol=1e-6)


def test_padding_on_either_side_is_no_padding(model, width):
    model = copy.deepcopy(model).float()  # where float32 softmax meets float64 masks, padding gives NaN
    ids, move = ids_of(model, 1), drawn(width)
    states, base = passed(model, ids, AddDirection(1, move))
    pad, real = torch.zeros(1, 4, dtype=torch.long), torch.ones_like(ids)
    for side in ("left", "right"):
        parts, masks = ((pad, ids), (pad, real)) if side == "left" else ((ids, pad), (real, pad))
        padded, logits = passed(model, torch.cat(parts, 1), AddDirection(1, move), mask=torch.cat(masks, 1))
        at = slice(4, None) if side == "left" else slice(0, ids.shape[1])
        for of_padded, expected in ((padded[-1][:, at], states[-1]), (logits[:, at], base)):
            assert float((of_padded - expected).norm() / expected.norm()) < 1e-5


def test_hidden_states_of_transformers_are_the_states_but_for_the_last(model):
    ids = ids_of(model, 1)
    states, _ = passed(model, ids)
    with torch.no_grad():
        hidden = model(input_ids=ids, output_hidden_states=True).hidden_states
    for state, other in zip(states[:-1], hidden[1:-1], strict=True):
        torch.testing.assert_close(state, other, rtol=1e-12, atol=1e-12)
    with forward(model, {"input_ids": ids}, Forward(("final_norm",))) as run:
        torch.testing.assert_close(run.outputs.final_norm, hidden[-1], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(states[-1], hidden[-1])


@pytest.mark.parametrize("kind", ["add", "set", "project", "scale", "logits"])
def test_generation_with_a_cache_is_the_whole_pass(model, width, kind):
    """Each step's logits are those of one edited pass over the text so far."""
    ids, move = ids_of(model, 1), drawn(width)
    size = model.get_output_embeddings().weight.shape[0]
    step_edit, pass_edit = {
        "add": (AddDirection(1, move), AddDirection(1, move, [11])),
        "set": (SetState(1, move, [3]), SetState(1, move, [3])),
        "project": (Project(1, move, "all", steps="all"), Project(1, move, "all")),
        "scale": (Scale("mlp_output", 0.5, [1]), Scale("mlp_output", 0.5, [1])),
        "logits": (AddLogits(drawn(size), "first"), None),
    }[kind]
    mask = torch.ones_like(ids)
    with asc.edit(model, step_edit):
        generated = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=4,
            do_sample=False,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
            eos_token_id=None,
        )
    logits = passed(model, generated.sequences, *([pass_edit] if pass_edit else []))[1]
    for step, step_logits in enumerate(generated.logits):
        expected = logits[:, 11 + step]
        expected = expected + drawn(size) if kind == "logits" and step == 0 else expected
        torch.testing.assert_close(step_logits.double(), expected.double(), rtol=1e-4, atol=1e-4)
    assert torch.equal(passed(model, ids)[1], passed(model, ids)[1])


def test_an_edit_of_a_layer_that_does_not_run_says_so(model, width):
    quiet = asc.edit(model, AddDirection(0, torch.zeros(width)))
    with pytest.raises(RuntimeError, match="AddDirection never acted"), quiet:
        pass
