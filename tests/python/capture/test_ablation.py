# SPDX-License-Identifier: MIT
"""output_kl against the model's own eager attention with its mask changed by hand: the same bits."""

import sys

import pytest
import torch

import attnscope as asc
import models

PREDICTING = (*models.CAUSAL, "jamba")


def by_hand(model, inputs, removed, monkeypatch):
    """Log-probabilities of the model under eager attention whose mask hides the keys."""
    lowest = torch.finfo(model.dtype).min
    modules = {sys.modules[type(m).__module__] for m in model.modules()}
    with monkeypatch.context() as patch:
        for module in modules:
            eager = getattr(module, "eager_attention_forward", None)
            if eager is None:
                continue

            def hidden(m, query, key, value, attention_mask, eager=eager, **options):
                mask = attention_mask[..., : key.shape[-2]]
                hidden_keys = removed[:, None, None, :]
                left = ((mask > lowest / 2) & ~hidden_keys).any(-1, keepdim=True)
                return eager(m, query, key, value, torch.where(left & hidden_keys, lowest, mask), **options)

            patch.setattr(module, "eager_attention_forward", hidden)
        with torch.no_grad():
            return model(**inputs, use_cache=False).logits.double().log_softmax(-1)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("padding", [pytest.param("none", marks=pytest.mark.slow), "left", "right"])
@pytest.mark.parametrize("name", models.few(PREDICTING))
def test_two_passes_have_the_bits_of_eager_attention(name, padding, dtype, monkeypatch):
    models.needs_attention_interface(name)
    model = models.tiny(name, implementation="eager").to(dtype)
    inputs = models.text(model, padding=padding)
    real = inputs["attention_mask"].bool()
    removed = torch.zeros_like(real)
    removed[torch.arange(2), real.int().argmax(-1)] = True
    removed[0, 11] = True
    p = by_hand(model, inputs, torch.zeros_like(removed), monkeypatch)
    q = by_hand(model, inputs, removed, monkeypatch)
    divergence = (p.exp() * (p - q)).sum(-1).clamp(min=0)
    expected_kl = torch.where(real, divergence, 0.0).sum(-1) / real.sum(-1)
    ablation = asc.output_kl(model, inputs, removed)
    assert torch.equal(ablation.kl, expected_kl)
    assert float(expected_kl.min()) > 0
    scored = real[:, 1:] & real[:, :-1]
    for log_p, loss in ((p, ablation.loss_before), (q, ablation.loss_after)):
        token = log_p[:, :-1].gather(-1, inputs["input_ids"][:, 1:, None]).squeeze(-1)
        assert torch.equal(loss, -torch.where(scored, token, 0.0).sum(-1) / scored.sum(-1))


def test_every_module_keeps_the_mode_that_it_had():
    model = models.tiny("gpt2")
    inputs = models.text(model)
    expected = asc.output_kl(model, inputs, [0])
    model.train()
    model.get_input_embeddings().eval()
    modes = [module.training for module in model.modules()]
    assert torch.equal(asc.output_kl(model, inputs, [0]).kl, expected.kl)
    assert [module.training for module in model.modules()] == modes
