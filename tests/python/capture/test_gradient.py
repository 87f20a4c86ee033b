# SPDX-License-Identifier: MIT
"""Gradients of a declared pass against autograd on the model itself and against differences."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

import models
from attnscope.capture import Forward, Gradient, capture, forward
from attnscope.capture.edits import AddDirection, HideKeys, SetState, SubtractRead
from attnscope.capture.implementation import configs

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"


def loss(outputs):
    return outputs.logits[:, -1].log_softmax(-1)[:, 7].sum()


def differentiated(model, inputs, sites, at, *edits, of=loss, **options):
    specification = Forward(sites=sites, edits=edits, gradient=Gradient(of=of, at=at, **options))
    with forward(model, inputs, specification) as run:
        return list(run), run.outputs


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "bloom", "gemma2", "mamba"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_gradient_at_a_block_is_that_of_autograd(name):
    model = models.tiny(name)
    inputs = models.text(model)
    flags = [p.requires_grad for p in model.parameters()]
    states = []
    blocks = next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))

    def keep(_, args, output):
        first = output if torch.is_tensor(output) else output[0]
        first.retain_grad()
        states.append(first)

    handles = [block.register_forward_hook(keep) for block in blocks]
    log_p = model(**inputs).logits[:, -1].log_softmax(-1)[:, 7].sum()
    log_p.backward()
    for handle in handles:
        handle.remove()
    model.zero_grad()
    model.get_input_embeddings().weight.grad = users_gradient = torch.ones(3)[:0].new_ones(
        97, states[0].shape[-1]
    )
    layers, outputs = differentiated(model, inputs, ("block_output",), ("block_output", "hidden"))
    assert torch.allclose(outputs.value, log_p.detach(), atol=1e-5)
    for layer, tensor in zip(layers, states, strict=True):
        scale = float(tensor.grad.abs().max())
        assert scale > 0
        assert torch.allclose(layer.gradients["block_output"], tensor.grad, atol=1e-4 * scale)
        assert set(layer.tensors) == {"block_output"}
        assert not layer.block_output.requires_grad
        assert not layer.gradients["block_output"].requires_grad
    for layer, after in pairwise(layers):
        assert torch.equal(layer.gradients["block_output"], after.gradients["hidden"])
    assert [p.requires_grad for p in model.parameters()] == flags
    assert model.get_input_embeddings().weight.grad is users_gradient
    assert sum(p.grad is not None for p in model.parameters()) == 1
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "gpt_oss"])
def test_gradients_inside_the_attention(name):
    """Against the chain rule by hand, and against differences."""
    model = models.tiny(name, implementation="eager")
    exact = name != "gpt_oss"  # whose experts multiply in float32 alone
    model = model.double() if exact else model
    inputs = models.text(model)
    at = ("scores", "attention", "value", "query", "head_output", "attention_output", "mlp_input")
    layers, outputs = differentiated(model, inputs, ("attention", "scores", "lse"), at)
    layer = layers[1]
    a, g = layer.attention, layer.gradients
    # Backward through the softmax by hand; a learned sink takes its part of every row but has no value.
    by_hand = a * (g["attention"] - (g["attention"] * a).sum(-1, keepdim=True))
    largest = float(by_hand.abs().max())
    assert largest > 1e-9
    assert torch.allclose(g["scores"], by_hand, atol=1e-5 * largest)
    if layer.sink_logits is None:  # what all keys share gets no gradient
        assert float(g["scores"].sum(-1).abs().max()) < 1e-5 * largest
    # The value's gradient is the transposed maps times that of what the heads hand on.
    read = a.mT @ g["head_output"]
    groups = torch.zeros_like(g["value"])
    groups.index_add_(1, torch.tensor(layer.kv_heads), read.to(groups))
    assert torch.allclose(groups, g["value"], atol=1e-5 * float(g["value"].abs().max()))
    with capture(model, sites=("attention",)) as recording:
        usual = list(recording.run(**inputs))[1]
    assert torch.allclose(usual.attention, a, atol=1e-6)
    step = 1e-5 if exact else 1e-2
    direction = torch.randn(96, dtype=a.dtype)
    moved = []
    for sign in (1, -1):
        addition = AddDirection(1, sign * step * direction, [5], site="attention_output")
        with forward(model, inputs, Forward(sites=("logits",), edits=(addition, HideKeys([])))) as run:
            moved.append(loss(run.outputs))
    slope = (moved[0] - moved[1]) / (2 * step)
    expected_slope = (g["attention_output"][:, 5] @ direction).sum()
    assert torch.allclose(slope, expected_slope, rtol=2e-2, atol=1e-6 if exact else 1e-3)
    assert outputs.tensors == {}


def test_parameters_by_name():
    model = models.tiny("llama")
    inputs = models.text(model)
    model(**inputs).logits[:, -1].log_softmax(-1)[:, 7].sum().backward()
    expected = {name: p.grad for name, p in model.named_parameters() if "o_proj" in name}
    model.zero_grad(set_to_none=True)
    model.lm_head.weight.requires_grad_(False)
    _, outputs = differentiated(model, inputs, (), (), parameters=lambda name: "o_proj" in name)
    assert outputs.parameters.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.allclose(outputs.parameters[name], gradient, atol=1e-5 * float(gradient.abs().max()))
    assert all(p.grad is None for p in model.parameters())
    assert not model.lm_head.weight.requires_grad
    assert sum(not p.requires_grad for p in model.parameters()) == 1


@pytest.mark.parametrize("sites", [(), ("attention",)])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "gpt_neox"])
def test_tangents_are_derivatives_along_the_direction(name, sites):
    model = models.tiny(name, implementation="eager").double()
    inputs = models.text(model)
    direction = torch.randn(96, dtype=torch.float64)

    def probabilities(outputs):
        return outputs.logits[:, -1].log_softmax(-1)

    edits = (AddDirection(1, direction, [7, -1]),)
    at = ("block_output", *sites)
    layers, outputs = differentiated(model, inputs, at, at, *edits, of=probabilities, mode="forward")
    with torch.no_grad():
        base = model(**inputs).logits[:, -1].log_softmax(-1)
    assert torch.allclose(outputs.value, base, atol=1e-6)
    moved = []
    for size in (1e-3, -1e-3):
        addition = AddDirection(1, size * direction, [7, -1])
        with forward(model, inputs, Forward(sites=("logits", "block_output"), edits=(addition,))) as run:
            states = [layer.block_output for layer in run]
            moved.append((probabilities(run.outputs), states))
    slope = (moved[0][0] - moved[1][0]) / 2e-3
    assert torch.allclose(outputs.derivative, slope, rtol=2e-2, atol=2e-2 * float(slope.abs().max()))
    assert float(slope.abs().max()) > 1e-4
    for layer, plus, minus in zip(layers, moved[0][1], moved[1][1], strict=True):
        along = (plus - minus) / 2e-3
        assert torch.allclose(
            layer.gradients["block_output"], along, atol=2e-2 * max(1e-9, float(along.abs().max()))
        )
    assert not layers[0].gradients["block_output"].any()
    assert torch.equal(layers[1].gradients["block_output"][0, 7], direction)


def test_edits_are_part_of_what_is_differentiated():
    model = models.tiny("llama", implementation="eager")
    inputs = models.text(model)
    edits = (SubtractRead([0]), HideKeys([3]), SetState(2, torch.ones(96), "all"))
    layers, _ = differentiated(model, inputs, (), ("block_output",), *edits)
    counts = [bool(layer.gradients["block_output"].any()) for layer in layers]
    assert counts == [False, False, True], "the last state is set, so nothing before it counts"


@pytest.mark.parametrize("at", ["attention_output", "head_output"])
def test_blocks_without_attention_do_not_take_the_gradients_of_others(at):
    model = models.tiny("jamba")
    inputs = models.text(model)
    layers, _ = differentiated(model, inputs, ("block_output", at), (at,))
    having = [layer.index for layer in layers if at in layer.tensors]
    assert having == [layer.index for layer in layers if layer.gradients] == [1, 3]
    for layer in (layers[1], layers[3]):
        assert layer.gradients[at].shape == layer.tensors[at].shape
        assert layer.gradients[at].any()


def test_bits_without_a_gradient_are_those_of_before():
    model = models.tiny("llama")
    inputs = models.text(model, padding="left")
    sites = ("attention", "scores", "block_output", "logits")

    def run_plain():
        with forward(model, inputs, Forward(sites=sites)) as run:
            return [t for layer in run for t in layer.tensors.values()], run.outputs.logits

    before, logits = run_plain()
    differentiated(model, inputs, (), ("scores", "block_output"))
    after, again = run_plain()
    assert torch.equal(logits, again)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert not torch.is_inference(logits)
    assert {c._attn_implementation_internal for c in configs(model)} == {"sdpa"}


def test_memory_is_bounded_before_it_is_taken():
    model = models.tiny("llama")
    specification = Forward(gradient=Gradient(of=loss, at=("block_output",)))
    with (
        pytest.raises(MemoryError, match=r"the graph of this pass holds .* MiB, where 0\.1 may be had"),
        forward(model, models.text(model), specification, max_memory=100_000) as run,
    ):
        list(run)
    assert all(p.requires_grad for p in model.parameters())
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_what_cannot_be_differentiated():
    model = models.tiny("llama")
    inputs = models.text(model)
    with pytest.raises(ValueError, match=r"gradients in torch\.bfloat16 under- and overflow"):
        differentiated(models.tiny("llama").to(torch.bfloat16), inputs, (), ("hidden",))
    with pytest.raises(ValueError, match="of must give one number, got"):
        differentiated(model, inputs, (), ("hidden",), of=lambda outputs: outputs.logits)
    with pytest.raises(ValueError, match="depends on none of"):
        differentiated(model, inputs, (), ("hidden",), of=lambda outputs: torch.zeros(()))
    with pytest.raises(ValueError, match="needs an AddDirection among the edits"):
        differentiated(model, inputs, (), (), mode="forward")
    with pytest.raises(NotImplementedError, match="Gradient: the attention of BloomForCausalLM"):
        differentiated(models.tiny("bloom"), inputs, (), ("scores",))
    with pytest.raises(ValueError, match="nothing passes through"):
        Gradient(of=loss, at=("lse",))
    with pytest.raises(ValueError, match="mode must be 'reverse' or 'forward'"):
        Gradient(of=loss, mode="backward")


@pytest.mark.parametrize("folder", ["stories260K/hf", "llama2xs/hf"])
def test_the_last_state_has_no_gradient_along_itself(folder):
    """An RMSNorm follows it."""
    if not (DATA / folder).exists():
        pytest.skip(f"{folder} is not here")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(DATA / folder).eval()
    ids = torch.randint(3, model.config.vocab_size, (2, 33), generator=torch.Generator().manual_seed(0))
    layers, _ = differentiated(model, {"input_ids": ids}, ("block_output",), ("block_output",))
    last = layers[-1]
    state, slope = last.block_output[:, -1], last.gradients["block_output"][:, -1]
    assert float((state * slope).sum(-1).abs().max()) < 1e-3 * float(state.norm() * slope.norm())
