# SPDX-License-Identifier: MIT
"""What matrices read and what the loss asks of their outputs: identities that hold on every causal family."""

import pytest
import torch

import attnscope as asc
import models
from attnscope.capture.weights.rank_one import final_state
from attnscope.capture.weights.second_moments import Tracer, identity_errors
from weight_models import FAMILIES, tiny

ENCODERS = ("bert", "roberta", "distilbert", "modernbert")
CAUSAL = [name for name in FAMILIES if name not in ENCODERS]
#: Twelve families of different blocks: fused, biased, parallel, of experts, of latents, of linear maps.
STEPPED = {
    "llama",
    "gemma2",
    "gpt2",
    "gpt_bigcode",
    "gpt_neox",
    "opt",
    "phi3",
    "falcon_new",
    "mixtral",
    "deepseek_v3",
    "gpt_oss",
    "qwen3_next",
}
IDS = torch.tensor([5, 17, 33, 2, 90, 44, 8, 61, 29, 70, 11, 52])


@pytest.mark.parametrize("name", CAUSAL)
def test_a_weight_gradient_is_the_sum_over_tokens(name):
    errors = identity_errors(Tracer(tiny(name), gradients=True), IDS)
    roles = {role for _, role in errors}
    assert {"o"} <= roles
    assert roles & {"q", "kv"}
    assert max(errors.values()) < 1e-5


@pytest.mark.parametrize(
    "name",
    [family if family in STEPPED else pytest.param(family, marks=pytest.mark.slow) for family in CAUSAL],
)
def test_a_plain_step_has_the_fractions_of_its_gradient(name, tmp_path):
    model = tiny(name)
    model.save_pretrained(tmp_path / "before")
    tracer = Tracer(model, gradients=True)
    _, gradients = tracer.traced(IDS, parameters=True)
    with torch.no_grad():
        for tensor, gradient in gradients.items():
            model.get_parameter(tensor).sub_(0.5 * gradient)
    model.save_pretrained(tmp_path / "after")
    moments = asc.second_moments(tiny(name), [IDS], gradients=True)
    for change in asc.weight_deltas(tmp_path / "before", tmp_path / "after", layers=[0, 1]):
        if not moments.has(change.layer, change.role):
            continue
        entry = tracer.map[change.layer, change.role, change.expert]
        gradient = entry.of(gradients[entry.tensor])
        if not bool(gradient.any()):  # an expert that no token came to
            assert not bool(change.delta.any())
            continue
        basis = moments.basis(change.layer, change.role, k=3)
        of_delta, of_gradient = (asc.subspace_fraction(m, basis).fraction for m in (change.delta, gradient))
        assert float(of_delta) == pytest.approx(float(of_gradient), rel=1e-5), (change.layer, change.role)


@pytest.mark.parametrize("name", CAUSAL)
def test_the_last_residual_gradient_is_orthogonal_to_the_residual(name):
    model = tiny(name)
    # ten times the state: the norm's ε, which the identity leaves out, has a hundredth of its share
    hidden = (10 * final_state(model, Tracer(model), IDS)).requires_grad_(True)
    logits = asc.readout(model)(hidden)
    loss = torch.nn.functional.cross_entropy(logits[:-1], IDS[1:])
    (gradient,) = torch.autograd.grad(loss, hidden)
    state = hidden.detach().double()[:-1]
    if asc.weight_map(model).layer_norm:
        state = state - state.mean(1, keepdim=True)
        along_ones = gradient[:-1].double().sum(1) / (
            gradient[:-1].double().norm(dim=1) * state.shape[1] ** 0.5
        )
        assert float(along_ones.abs().max()) < 1e-5
    cosine = torch.cosine_similarity(gradient[:-1].double(), state, dim=1)
    assert float(cosine.abs().max()) < 1e-5


def test_without_rotary_encoding_the_key_bias_gets_no_gradient():
    model = tiny("gpt2")
    loss = model(input_ids=IDS[None], labels=IDS[None]).loss
    bias = model.transformer.h[1].attn.c_attn.bias
    (gradient,) = torch.autograd.grad(loss, bias)
    query, key, _ = gradient.split(48)
    assert float(key.norm()) < 1e-5 * float(query.norm())


def test_inputs_are_those_of_the_projections():
    model = tiny("llama")
    seen = []
    hook = model.model.layers[1].mlp.down_proj.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    moments = asc.second_moments(model, [IDS])
    hook.remove()
    x = seen[0][0, 1:].double()
    torch.testing.assert_close(moments.second(1, "down"), x.mT @ x / len(x), rtol=1e-5, atol=1e-6)
    assert moments.tokens(1, "down") == len(IDS) - 1
    assert asc.second_moments(model, [IDS], skip_first=False).tokens(1, "down") == len(IDS)


def test_experts_read_the_block_of_experts():
    moments = asc.second_moments(tiny("mixtral"), [IDS])
    assert moments.has(0, "gate")
    assert moments.has(0, "router")
    assert not moments.has(0, "down")


def test_labels_may_be_drawn_from_the_model():
    model = tiny("llama")
    sampled = asc.second_moments(model, [IDS, IDS], gradients=True, labels="sampled")
    repeated = asc.second_moments(model, [IDS, IDS], gradients=True, labels="sampled")
    data = asc.second_moments(model, [IDS, IDS], gradients=True)
    assert torch.equal(sampled.second(0, "q", "out"), repeated.second(0, "q", "out"))
    assert not torch.equal(sampled.second(0, "q", "out"), data.second(0, "q", "out"))


def test_labels_of_a_text_do_not_depend_on_the_texts_before_it():
    """Each text is a group of its own, whose sums are kept apart."""
    model = tiny("llama")

    def of_the_last(before):
        texts = [before, IDS]
        moments = asc.second_moments(model, texts, gradients=True, labels="sampled", groups=2)
        return moments.without(0).second(0, "q", "out")

    assert torch.equal(of_the_last(IDS[:4]), of_the_last(IDS.flip(0)))


def test_the_model_is_left_as_it_was():
    model = tiny("llama")
    flags = [parameter.requires_grad for parameter in model.parameters()]
    asc.second_moments(model, [IDS], gradients=True)
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("size", [0.05, 0.005])
def test_a_change_of_the_last_down_matrix_has_its_closed_form(size):
    model = tiny("llama")
    ids = IDS[None]
    moments = asc.second_moments(model, [IDS])
    v = moments.basis(1, "down", k=1)[:, 0]
    directions = torch.randn(3, 48, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    effect = asc.rank_one_effect(model, ids, -1, "down", directions, v, size=size)
    tracer = Tracer(model, layers=[1])
    x = next(read for read in tracer.run(IDS) if read.role == "down").x.double()
    h = final_state(model, tracer, IDS).double()
    length = size * float(model.model.layers[1].mlp.down_proj.weight.detach().double().norm())
    logits = asc.readout(model)
    with torch.no_grad():
        base = logits(h.float()).double().log_softmax(-1)
        for number, u in enumerate(directions):
            moved = h + length * (x @ v)[:, None] * u / u.norm()
            changed = logits(moved.float()).double().log_softmax(-1)
            kl = (base.exp() * (base - changed)).sum(-1).mean()
            assert float(effect.kl[number, 0]) == pytest.approx(float(kl), abs=1e-4 * size)
    if size == 0.005:
        torch.testing.assert_close(effect.predicted_kl, effect.kl, rtol=0.05, atol=0)
    torch.testing.assert_close(effect.loss_change, -effect.target_shift)


def test_padding_changes_nothing():
    model = tiny("llama")
    directions, v = torch.eye(48)[:2], torch.ones(80)
    unpadded = asc.rank_one_effect(model, IDS[None], -1, "down", directions, v)
    padded = {
        "input_ids": torch.cat([IDS, torch.zeros(3, dtype=torch.int64)])[None],
        "attention_mask": torch.cat([torch.ones(12), torch.zeros(3)]).long()[None],
    }
    of_padded = asc.rank_one_effect(model, padded, -1, "down", directions, v)
    torch.testing.assert_close(unpadded.kl, of_padded.kl, rtol=1e-3, atol=1e-7)
    torch.testing.assert_close(unpadded.predicted_kl, of_padded.predicted_kl, rtol=1e-3, atol=1e-7)


def test_other_matrices_have_no_closed_form():
    effect = asc.rank_one_effect(tiny("llama"), IDS[None], 0, "q", torch.eye(48)[:1], torch.ones(48))
    assert torch.isnan(effect.predicted_kl).all()
    assert float(effect.kl) > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: asc.second_moments(model, []), "there are no inputs"),
        (
            lambda model: asc.second_moments(model, [IDS, [3, 4]]),
            "text 1 has 2 tokens, of which 1 behind the first, and two are needed",
        ),
        (lambda model: asc.second_moments(model, [[3]], skip_first=False), "text 0 has 1 tokens and two"),
        (lambda model: asc.second_moments(model, ["words"]), "input 0 is a text, which needs tokenizer="),
        (lambda model: asc.second_moments(model, [IDS], groups=0), "groups must be at least 1, got 0"),
        (lambda model: asc.second_moments(model, [IDS], labels="own"), "labels must be one of"),
        (
            lambda model: asc.second_moments(model, [[[1, 2]]]),
            r"input 0 must be a sentence or a list of token ids, got \[\[1, 2\]\]",
        ),
        (
            lambda model: asc.second_moments(model.half(), [IDS], gradients=True),
            "float16 under- and overflow",
        ),
        (
            lambda model: asc.rank_one_effect(model, IDS[None], 5, "q", torch.eye(48)[:1], torch.ones(48)),
            "layer 5",
        ),
        (
            lambda model: asc.rank_one_effect(model, IDS[None], 0, "qq", torch.eye(48)[:1], torch.ones(48)),
            "no such matrix",
        ),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(tiny("llama"))


def test_moments_of_a_model_in_training_mode_are_those_of_its_evaluation():
    """Its dropout was part of the sums."""
    model = models.tiny("gpt2", resid_pdrop=0.5, embd_pdrop=0.5)
    expected = asc.second_moments(model, [IDS], gradients=True).state()
    states = final_state(model, Tracer(model), IDS)
    model.train()
    for name, tensor in asc.second_moments(model, [IDS], gradients=True).state().items():
        assert not torch.is_tensor(tensor) or torch.equal(tensor, expected[name])
    assert torch.equal(final_state(model, Tracer(model), IDS), states)
    assert all(module.training for module in model.modules())
