# SPDX-License-Identifier: MIT
"""A matrix changed by rank one: only that matrix, by what was said, and back to the last bit."""

import pytest
import torch

import models
import weight_models
from attnscope.capture import Forward, Gradient, edit, forward
from attnscope.capture.edits import ReplaceWeight
from attnscope.models.architecture import weight_map

#: Without a map of their weights.
UNMAPPED = {
    "albert": "no tensor lies in a numbered list of blocks",
    "t5": "3 stacks of blocks",
    "deberta_v2": "no rule claims",
}


def vectors(entry):
    generator = torch.Generator().manual_seed(3)
    return torch.randn(entry.shape[0], generator=generator), torch.randn(entry.shape[1], generator=generator)


@pytest.mark.parametrize("name", models.ALL_FAMILIES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_one_matrix_of_every_role_and_no_other(name):
    model, inputs = models.kept_with_inputs(name, "none")
    if name in UNMAPPED:
        replacement = ReplaceWeight(1, "q", torch.ones(96), torch.ones(96))
        with torch.no_grad(), pytest.raises(ValueError, match=UNMAPPED[name]), edit(model, replacement):
            pass
        return
    of_experts = name == "jamba"  # its block without attention has them alone
    changed_alone(model, inputs, {"q", "k", "v", "o"} | (set() if of_experts else {"up", "down"}))


@pytest.mark.parametrize("name", models.few(weight_models.FAMILIES, weight_models.QUICK))
def test_one_matrix_of_every_layout_and_no_other(name):
    model = weight_models.tiny(name)
    changed_alone(model, models.text(model, n=12), {"q", "o", "up", "down"})


def is_called(model, inputs, entry):
    """Return True if the module that holds a matrix runs in a forward pass."""
    calls = []
    owner = model.get_submodule(entry.tensor.rpartition(".")[0])
    handle = owner.register_forward_pre_hook(lambda *_: calls.append(1))
    model(**inputs)
    handle.remove()
    return bool(calls)


def changed_alone(model, inputs, roles):
    entries = [entry for entry in weight_map(model) if entry.layer == 1 and entry.expert in (None, 2)]
    assert roles <= {entry.role for entry in entries}
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    with torch.no_grad():
        base = model(**inputs)[0]
        for entry in entries:
            u, v = vectors(entry)
            if not is_called(model, inputs, entry):  # a router whose block reads its weight itself
                with (
                    pytest.raises(RuntimeError, match="ReplaceWeight never acted"),
                    edit(model, ReplaceWeight(1, entry.role, u, v, 0.1, entry.expert)),
                ):
                    model(**inputs)
                continue
            with edit(model, ReplaceWeight(1, entry.role, u, v, 0.0, entry.expert)):
                assert torch.equal(model(**inputs)[0], base), entry.title
            replacement = ReplaceWeight(
                -model.config.num_hidden_layers + 1, entry.role, u, v, 0.1, entry.expert
            )
            with edit(model, replacement) as applied:
                edited = model(**inputs)[0]
                for other in entries:
                    parameter = model.get_parameter(other.tensor)
                    change = (other.of(parameter) - other.of(before[other.tensor])).double()
                    if other.key == entry.key:
                        size = 0.1 * other.of(before[other.tensor]).double().norm()
                        expected = size * torch.outer(u.double(), v.double()) / (u.norm() * v.norm()).double()
                        assert torch.allclose(change, expected, atol=1e-6), entry.title
                    else:
                        assert not change.any(), (entry.title, other.title)
            assert applied[0].count >= 1
            if entry.expert is None and "router" not in entry.role:  # routes may stay as they are
                assert not torch.equal(edited, base), entry.title
            assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def test_the_last_down_projection_moves_the_last_state_as_it_must():
    model = models.tiny("llama")
    inputs = models.text(model)
    down = model.model.layers[-1].mlp.down_proj
    read = []
    handle = down.register_forward_pre_hook(lambda _, args: read.append(args[0]))
    entry = weight_map(model)[2, "down"]
    u, v = vectors(entry)
    states = []
    for edits in ((), (ReplaceWeight(-1, "down", u, v, 0.2),)):
        with forward(model, inputs, Forward(sites=("block_output",), layers=[-1], edits=edits)) as run:
            states.append(next(iter(run)).block_output)
            list(run)
    handle.remove()
    c = 0.2 * down.weight.detach().norm()
    along = read[-1] @ (v / v.norm())
    assert torch.allclose(states[1] - states[0], c * along[..., None] * (u / u.norm()), atol=1e-4)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_weights_are_restored_after_an_error(error):
    model = models.tiny("gpt2")
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    u, v = vectors(weight_map(model)[0, "k"])
    with (
        torch.no_grad(),
        pytest.raises(error, match="in the block"),
        edit(model, ReplaceWeight(0, "k", u, v), ReplaceWeight(0, "v", u, v)),
    ):
        raise error("in the block")
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


def test_what_is_refused():
    model = models.tiny("llama")
    inputs = models.text(model)
    u, v = torch.ones(96), torch.ones(96)
    replacement = ReplaceWeight(0, "q", u, v)
    with pytest.raises(RuntimeError, match=r"run it under torch\.no_grad\(\)"), edit(model, replacement):
        pass
    differentiated = Forward(
        edits=(replacement,), gradient=Gradient(of=lambda outputs: outputs.logits.sum(), at=("hidden",))
    )
    with (
        pytest.raises(RuntimeError, match=r"torch\.no_grad\(\)"),
        forward(model, inputs, differentiated) as run,
    ):
        list(run)
    with torch.no_grad():
        with (
            pytest.raises(ValueError, match="two ReplaceWeight on one target"),
            edit(model, replacement, replacement),
        ):
            pass
        with edit(model, replacement):
            other = ReplaceWeight(0, "q", v, u)
            with pytest.raises(ValueError, match="two ReplaceWeight on one target"), edit(model, other):
                pass
            model(**inputs)
        for wrong, words in (
            (ReplaceWeight(0, "q", u[:5], v), r"layer 0 q has shape \(96, 96\), got u and v of 5 and 96"),
            (ReplaceWeight(0, "query", u, v), "no such matrix"),
            (ReplaceWeight(7, "q", u, v), "layer 7 of LlamaForCausalLM, which has 3 layers"),
            (ReplaceWeight(0, "q", 0 * u, v), "must be finite and not 0"),
        ):
            with pytest.raises(ValueError, match=words), edit(model, wrong):
                pass


def test_weights_that_hold_no_numbers_are_refused():
    model = models.tiny("llama")
    entry = weight_map(model)[0, "q"]
    u, v = vectors(entry)
    owner = model.model.layers[0].self_attn.q_proj
    owner.weight = torch.nn.Parameter(owner.weight.detach().to("meta"))
    with (
        torch.no_grad(),
        pytest.raises(NotImplementedError, match=r"q_proj\.weight holds no weights to add to \(meta\)"),
        edit(model, ReplaceWeight(0, "q", u, v)),
    ):
        pass
    owner.weight = torch.nn.Parameter(torch.zeros(96, 96, dtype=torch.int8), requires_grad=False)
    with (
        torch.no_grad(),
        pytest.raises(ValueError, match=r"q_proj\.weight is quantised \(int8\)"),
        edit(model, ReplaceWeight(0, "q", u, v)),
    ):
        pass
