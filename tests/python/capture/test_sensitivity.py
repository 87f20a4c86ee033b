# SPDX-License-Identifier: MIT
"""Derivatives along directions against double reverse mode, divergences of finite steps, and by hand."""

import numpy as np
import pytest
import torch

import attnscope as asc
import models
from attnscope.capture.directions.sensitivity import sensitivity_of
from attnscope.capture.directions.steps import PromptSteps
from attnscope.capture.edits import AddDirection
from models import out
from support import sweep

FAMILIES = ("llama", "gpt2", "gpt_neox", "gemma2")


def model_with_text(name, n=12):
    model = models.tiny(name, implementation="eager").double()
    inputs = models.text(model, padding="left", n=n + 9)
    directions = torch.randn(3, 96, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return model, inputs, directions


def last_logits(model, ids, layer, move):
    """By a plain hook of this test's own on the whole prompt."""
    blocks = [m for n, m in model.named_modules() if n.split(".")[-1] == str(layer) and "." in n]

    def hook(_, args, output):
        states = output[0] if isinstance(output, tuple) else output
        new = torch.cat([states[:, :-1], states[:, -1:] + move], 1)
        return (new, *output[1:]) if isinstance(output, tuple) else new

    handle = blocks[0].register_forward_hook(hook)
    try:
        return model(input_ids=ids[None]).logits[0, -1].double()
    finally:
        handle.remove()


@pytest.mark.parametrize("name", FAMILIES)
def test_fisher_is_that_of_double_reverse_mode(name):
    model, inputs, directions = model_with_text(name)
    measured = asc.sensitivity(model, inputs, 1, directions, refusal=[3, 4])
    for row, (ids, mask) in enumerate(zip(inputs["input_ids"], inputs["attention_mask"], strict=True)):
        text = ids[mask.bool()]
        move = torch.zeros(96, dtype=torch.float64, requires_grad=True)
        logits = last_logits(model, text, 1, move)
        dummy = torch.ones_like(logits, requires_grad=True)
        (vjp,) = torch.autograd.grad(logits, move, dummy, create_graph=True)
        p = logits.softmax(-1).detach()
        log_p = logits.log_softmax(-1)
        (slope,) = torch.autograd.grad(-(log_p.exp() * log_p).sum(), move, retain_graph=True)
        refused = log_p[[3, 4]].logsumexp(0)
        (rho,) = torch.autograd.grad(refused - (1 - refused.exp()).log(), move, retain_graph=True)
        for at, u in enumerate(directions):
            (dz,) = torch.autograd.grad(vjp, dummy, u, retain_graph=True)
            fisher = float((p * dz**2).sum() - (p * dz).sum() ** 2)
            assert measured.directional_fisher[row, at].item() == pytest.approx(fisher, rel=1e-6)
            assert measured.entropy_slope[row, at].item() == pytest.approx(
                float(slope @ u), rel=1e-5, abs=1e-9
            )
            assert measured.refusal_slope[row, at].item() == pytest.approx(float(rho @ u), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize(("name", "layer"), [("gpt2", 1), ("gpt_neox", 1), ("llama", 2), ("gemma2", 3)])
def test_fisher_is_twice_the_symmetric_divergence_of_a_small_step(name, layer):
    """½[KL(p‖q) + KL(q‖p)]/ε² is half of it; where softmax is float32 inside, behind the last block."""
    model, inputs, directions = model_with_text(name)
    directions = directions / directions.norm(dim=-1, keepdim=True)
    measured = asc.sensitivity(model, inputs, layer, directions)
    ids = inputs["input_ids"][0]
    with torch.no_grad():
        p = last_logits(model, ids, layer, torch.zeros(96, dtype=torch.float64)).log_softmax(-1)
        for at, u in enumerate(directions):
            values = []
            for step in (1e-3, -1e-3):
                q = last_logits(model, ids, layer, step * u).log_softmax(-1)
                values.append(0.5 * float(((p.exp() - q.exp()) * (p - q)).sum()) / step**2)
            assert measured.directional_fisher[0, at].item() == pytest.approx(2 * np.mean(values), rel=1e-3)


def test_curvature_and_amplification_by_hand():
    model, inputs, directions = model_with_text("gpt2")
    measured = asc.sensitivity(model, inputs, 0, directions, relative_step=1e-3)
    ids = inputs["input_ids"][0]
    move = torch.zeros(96, dtype=torch.float64, requires_grad=True)
    logits = last_logits(model, ids, 0, move)
    loss = -logits.log_softmax(-1)[logits.argmax()]
    (first,) = torch.autograd.grad(loss, move, create_graph=True)
    for at, u in enumerate(directions):
        (second,) = torch.autograd.grad(first @ u, move, retain_graph=True)
        assert measured.curvature[0, at].item() == pytest.approx(float(second @ u), rel=1e-4, abs=1e-8)
    with asc.edit(model, AddDirection(0, torch.zeros(96))), torch.no_grad():
        pass_states = lambda step: states_after(model, ids, step)  # noqa: E731
        for at, u in enumerate(directions):
            grown = (pass_states(1e-4 * u) - pass_states(-1e-4 * u)).norm() / (2e-4 * u.norm())
            assert measured.amplification[0, at].item() == pytest.approx(float(grown), rel=1e-5)
    assert asc.sensitivity(model, inputs, -1, directions).amplification.isnan().all()


def states_after(model, ids, move):
    """The last token's state behind block 1 when that behind block 0 moves."""
    states = {}

    def keep(_, args, output):
        states["state"] = (output[0] if isinstance(output, tuple) else output)[0, -1]

    handle = model.transformer.h[1].register_forward_hook(keep)
    try:
        last_logits(model, ids, 0, move)
    finally:
        handle.remove()
    return states["state"].double()


@pytest.mark.parametrize("name", [*FAMILIES, "mistral"])
def test_cached_steps_are_whole_passes(name):
    model, inputs, directions = model_with_text(name)
    ids = inputs["input_ids"][0]
    depth = model.config.num_hidden_layers
    cached, uncached = (PromptSteps(model, ids, cached=is_cached) for is_cached in (True, False))
    for layer in (depth - 1, 0, 1):  # one cache serves them all, in any order
        of_cache = sensitivity_of(cached, layer, directions, depth=depth, refusal=[5])
        of_whole_pass = sensitivity_of(uncached, layer, directions, depth=depth, refusal=[5])
        for a, b in zip(of_cache, of_whole_pass, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-9, equal_nan=True)


def test_steps_of_recurrent_layers_are_whole_passes():
    """Each step wrote its states over those of the cache, and the next one began there."""
    model = models.tiny("jamba")
    ids = torch.tensor([[5, 9, 3, 7, 11, 2]])
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits[:, -1]
    steps = PromptSteps(model, ids[0])
    for size in (1, 1, 2):
        _, outputs = steps.step(size)
        torch.testing.assert_close(outputs.logits[:, -1], expected.expand(size, -1))
    along = torch.randn(2, 96, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    single, first_of_two = (
        asc.sensitivity(model, inputs, 1, directions, method="difference").directional_fisher[0, 0]
        for directions in (along[:1], along)
    )
    torch.testing.assert_close(single, first_of_two, rtol=1e-3, atol=0)


def test_a_model_without_forward_derivatives_is_sent_to_differences(monkeypatch):
    """Experts that are multiplied in groups have none: it was torch's own error."""
    from attnscope.capture.directions import sensitivity

    def without(*arguments):
        raise NotImplementedError("forward AD with _grouped_mm is not there. Please file an issue")

    monkeypatch.setattr(sensitivity, "_exact", without)
    model, inputs, directions = model_with_text("llama")
    match = (
        r"LlamaForCausalLM has an operation .* \(forward AD with _grouped_mm is not there\); method='differ"
    )
    with pytest.raises(NotImplementedError, match=match):
        asc.sensitivity(model, inputs, 0, directions)
    assert (
        asc.sensitivity(model, inputs, 0, directions, method="difference").directional_fisher.isfinite().all()
    )


def test_expected_curvature_over_sampled_labels_is_the_fisher_information():
    """By all labels: Σ_y p_y d²(−log p_y) = Var_p(Ju), as the mean logit's curvature cancels."""
    model, inputs, directions = model_with_text("gpt2")
    ids = inputs["input_ids"][0]
    move = torch.zeros(96, dtype=torch.float64, requires_grad=True)
    p = last_logits(model, ids, 2, torch.zeros(96, dtype=torch.float64)).softmax(-1).detach()
    loss = -(p * last_logits(model, ids, 2, move).log_softmax(-1)).sum()
    (first,) = torch.autograd.grad(loss, move, create_graph=True)
    fisher = asc.sensitivity(model, inputs, 2, directions).directional_fisher[0]
    logits_curve = []
    for u in directions:
        (second,) = torch.autograd.grad(first @ u, move, retain_graph=True)
        logits_curve.append(float(second @ u))
    # the cross-entropy's curvature holds Σ p_y (E_p z̈ − z̈_y) = 0 besides
    np.testing.assert_allclose(fisher, logits_curve, rtol=1e-6)


def test_padding_side_and_batch_change_nothing():
    model, left, directions = model_with_text("llama")
    short = left["input_ids"][1, 9:]
    right = {
        "input_ids": torch.cat([short, torch.zeros(9, dtype=torch.long)])[None],
        "attention_mask": (torch.arange(len(short) + 9) < len(short)).long()[None],
    }
    of_left = asc.sensitivity(model, left, 0, directions)
    of_right = asc.sensitivity(model, right, 0, directions)
    for a, b in zip(of_left, of_right, strict=True):
        torch.testing.assert_close(a[1], b[0], rtol=1e-9, atol=1e-12, equal_nan=True)


def test_a_decoder_whose_forward_pass_has_no_switch_for_its_cache():
    """GraniteMoe's takes a cache alone, and was sent away as a model without a next token."""
    model = sweep.build(*sweep.classes("causal", "granitemoe"))
    ids = torch.randint(5, 60, (1, 8), generator=torch.Generator().manual_seed(0))
    directions = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
    for parameter in model.parameters():
        parameter.data.mul_(3)
    result = asc.sensitivity(
        model, {"input_ids": ids}, 0, directions, method="difference", relative_step=1e-3
    )
    logits = []
    for sign in (-1, 0, 1):
        for direction in directions:
            with torch.no_grad(), asc.edit(model, asc.edits.AddDirection(0, sign * 1e-3 * direction)):
                logits.append(model(input_ids=ids).logits[0, -1])
    before, at, behind = torch.stack(logits).view(3, 3, -1)
    moved = (behind - before) / 2e-3
    p = at.softmax(-1)
    expected = (p * moved.square()).sum(-1) - (p * moved).sum(-1).square()
    torch.testing.assert_close(result.directional_fisher[0], expected.double(), rtol=2e-2, atol=0)


def test_several_streams_of_states_are_refused_by_name():
    model = sweep.build(*sweep.classes("causal", "prophetnet"))
    with pytest.raises(
        NotImplementedError, match=r"sensitivity: behind layer 0 .* several streams of states of 64"
    ):
        asc.sensitivity(model, {"input_ids": torch.arange(5, 13)[None]}, 0, torch.eye(64)[:2])


def test_bad_arguments():
    model, inputs, directions = model_with_text("llama")
    with pytest.raises(ValueError, match=r"sensitivity: LlamaForCausalLM is in torch.bfloat16"):
        asc.sensitivity(models.tiny("llama").bfloat16(), inputs, 0, directions)
    with pytest.raises(
        ValueError, match=r"directions must be \[m, 96\] or \[2, m, 96\], got shape \(3, 95\)"
    ):
        asc.sensitivity(model, inputs, 0, directions[:, 1:])
    with pytest.raises(ValueError, match=r"got one of norm 0.0"):
        asc.sensitivity(model, inputs, 0, 0 * directions)
    with pytest.raises(ValueError, match=r"got one of norm nan"):
        asc.sensitivity(model, inputs, 0, directions * torch.nan)
    with pytest.raises(ValueError, match="layer 3 of LlamaForCausalLM, which has 3 layers"):
        asc.sensitivity(model, inputs, 3, directions)
    with pytest.raises(ValueError, match=r"refusal must name some, not all, of 97 tokens, got \[\]"):
        asc.sensitivity(model, inputs, 0, directions, refusal=[])
    with pytest.raises(ValueError, match=r"refusal must name .* got \[97\]"):
        asc.sensitivity(model, inputs, 0, directions, refusal=[97])
    with pytest.raises(ValueError, match="method must be"):
        asc.sensitivity(model, inputs, 0, directions, method="adjoint")
    with pytest.raises(ValueError, match="relative_step must lie in"):
        asc.sensitivity(model, inputs, 0, directions, relative_step=0)
    bert = models.tiny("bert")
    with pytest.raises(NotImplementedError, match="sensitivity: BertModel has no next token"):
        asc.sensitivity(bert, models.text(bert), 0, directions)
    empty = {**inputs, "attention_mask": inputs["attention_mask"] * 0}
    with pytest.raises(ValueError, match=r"prompt 0 has no token"):
        asc.sensitivity(model, empty, 0, directions)


def test_the_model_is_left_as_it_was():
    model, inputs, directions = model_with_text("llama")
    before = out(model, inputs)
    asc.sensitivity(model, inputs, 1, directions)
    assert torch.equal(out(model, inputs).nan_to_num(), before.nan_to_num())
    assert all(p.requires_grad for p in model.parameters())
    assert model.config._attn_implementation == "eager"


def test_the_whole_prompt_runs_once():
    """It showed whether the steps behind its cache are right, once more for each number of directions."""
    model = models.tiny("llama")
    ids = torch.randint(3, 90, (1, 9), generator=torch.Generator().manual_seed(0))
    lengths = []
    hook = model.register_forward_pre_hook(
        lambda _module, _arguments, inputs: lengths.append(inputs["input_ids"].shape[1]), with_kwargs=True
    )
    asc.sensitivity(model, {"input_ids": ids}, 1, torch.eye(96)[:3])
    hook.remove()
    assert (lengths.count(9), lengths.count(8)) == (1, 1)
