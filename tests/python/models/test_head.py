# SPDX-License-Identifier: MIT
"""The effective unembedding, by finite differences and from folders; what logits read of directions."""

import numpy as np
import pytest
import torch
from scipy import stats
from transformers import PreTrainedModel

import attnscope as asc
import models
from attnscope.models.head import subspace_of
from attnscope.models.unembedding import before_unembedding
from weight_models import FAMILIES, tiny

ENCODERS = ("bert", "roberta", "distilbert", "modernbert")
CAUSAL = [name for name in FAMILIES if name not in ENCODERS]
#: Constant factors and bounds of logits, which the map leaves out; small logits make a bound linear.
FACTORS = {
    "cohere": lambda c: c.logit_scale,
    "cohere2_moe": lambda c: c.logit_scale,
    "granite": lambda c: 1 / c.logits_scaling,
}


def last_state(model, ids):
    """What enters the final norm, and what it makes of it."""
    seen = []
    name = before_unembedding(model, asc.weight_map(model))[0]
    hook = model.get_submodule(name).register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    hook.remove()
    return seen[0], logits


@pytest.mark.parametrize("name", CAUSAL)
def test_the_readout_is_the_models_own(name):
    model = tiny(name)
    ids = torch.arange(3, 12)[None]
    hidden, logits = last_state(model, ids)
    with torch.no_grad():
        torch.testing.assert_close(asc.readout(model)(hidden), logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", CAUSAL)
def test_equals_finite_differences_of_logits(name):
    capped = ("gemma2", "vaultgemma")
    changes = {"final_logit_softcapping": None} if name in capped else {}
    model = tiny(name, **changes)
    result = asc.weight_map(model)
    hidden, _ = last_state(model, torch.arange(3, 12)[None])
    model = model.double()
    h = hidden[0, 4].double()
    d = len(h)
    with torch.no_grad():
        logits = asc.readout(model)
        moved = torch.stack(
            [(logits(h + 1e-2 * e) - logits(h - 1e-2 * e)) / 2e-2 for e in torch.eye(d).double()]
        )
    moved = (moved - moved.mean(1, keepdim=True)).mT * (1 / FACTORS.get(name, lambda c: 1)(model.config))
    centring = torch.eye(d).double() - (1 / d if result.layer_norm else 0)
    unit = centring @ h
    scale = unit.norm() / d**0.5
    unit = unit / unit.norm()
    gram = asc.effective_unembedding(model).gram
    around = centring - torch.outer(unit, unit)
    expected = around @ gram @ around / scale**2
    assert float((moved.mT @ moved - expected).abs().max()) < 1e-4 * float(expected.abs().max())


@pytest.mark.parametrize("name", CAUSAL)
def test_a_folder_and_its_model_agree(name, tmp_path):
    model: PreTrainedModel = tiny(name)
    model.save_pretrained(tmp_path)
    first, other = asc.effective_unembedding(tmp_path), asc.effective_unembedding(model)
    scale = float(other.gram.abs().max())
    torch.testing.assert_close(first.gain, other.gain, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(first.gram / scale, other.gram / scale, rtol=0, atol=3e-5)


def test_options_leave_out_what_they_say():
    model = tiny("llama")
    raw = asc.effective_unembedding(model, fold_norm=False, center=False)
    weight = model.lm_head.weight.detach().double()
    torch.testing.assert_close(raw.gram, weight.mT @ weight)
    few = asc.effective_unembedding(model, fold_norm=False, rows=50)
    centred = weight[:50] - weight[:50].mean(0)
    torch.testing.assert_close(few.gram, centred.mT @ centred)
    assert few.tokens == 50
    folded = asc.effective_unembedding(model, center=False)
    gain = model.model.norm.weight.detach().double()
    torch.testing.assert_close(folded.gain, gain, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(folded.gram, folded.gain[:, None] * raw.gram * folded.gain)


def test_the_prediction_subspace_is_that_of_the_matrix():
    model = tiny("gpt2")
    result = asc.prediction_subspace(model, 5)
    weight = model.lm_head.weight.detach().double()
    folded = (weight - weight.mean(0)) * asc.effective_unembedding(model).gain
    folded = folded - folded.mean(1, keepdim=True)
    _, values, vectors = torch.linalg.svd(folded, full_matrices=False)
    torch.testing.assert_close(result.energies[:40], values.square()[:40], rtol=1e-8, atol=1e-8)
    overlap = torch.linalg.svdvals(result.basis.mT @ vectors[:5].mT)
    torch.testing.assert_close(overlap, torch.ones(5).double(), rtol=1e-6, atol=1e-6)
    assert float(result.share) == pytest.approx(float(values[:5].square().sum() / values.square().sum()))


@pytest.mark.parametrize("name", ["bert", "distilbert", "roberta"])
def test_encoders_with_a_transform_are_refused(name):
    with pytest.raises(NotImplementedError, match="transform before its unembedding"):
        asc.prediction_subspace(tiny(name))


def test_bad_input():
    model = tiny("llama")
    with pytest.raises(ValueError, match=r"k must lie in 1 .. 48, the numerical rank, got 49"):
        asc.prediction_subspace(model, 49)
    with pytest.raises(ValueError, match=r"rows must lie in 2 .. 97, got 98"):
        asc.prediction_subspace(model, rows=98)
    assert subspace_of(torch.diag(torch.tensor([1.0, 0, 0]))).basis.shape == (3, 1)


@pytest.fixture(scope="module")
def read():
    return asc.readout(models.tiny("llama"))


def test_gain_is_that_of_the_unembedding(read):
    model = models.tiny("llama")
    rows = model.lm_head.weight.detach().double().numpy() * model.model.norm.weight.detach().double().numpy()
    rows = rows - rows.mean(0)
    b = np.random.default_rng(0).standard_normal(96)
    gain = np.sum((rows @ b) ** 2) / (b @ b) / (np.sum(rows**2) / 96)
    assert read.gain(torch.tensor(b)).item() == pytest.approx(gain, rel=1e-6)
    gains = asc.alignment_gain(torch.tensor(np.outer(b, b)), read.gram, side="in").gain
    assert read.gain(torch.tensor(b)).item() == pytest.approx(gains.item(), rel=1e-9)
    axes = np.linalg.svd(rows)[2]
    for k in (1, 16, 95):
        share = np.sum((axes[:k] @ b) ** 2) / (b @ b)
        assert read.share(torch.tensor(b), k).share == pytest.approx(share, rel=1e-6)
        below = np.sum((axes[-k:] @ b) ** 2) / (b @ b)
        assert read.share(torch.tensor(b), k, "bottom").share == pytest.approx(below, rel=1e-6)


def test_the_mean_gain_is_one_and_all_axes_hold_everything(read):
    assert read.gain(read.axes.T).mean().item() == pytest.approx(1.0, abs=1e-12)
    result = read.share(torch.randn(96), 96)
    assert result.share == pytest.approx(1.0)
    assert (result.chance, result.p_value) == (1.0, 1.0)


def test_p_values_of_isotropic_directions_are_uniform(read):
    draws = torch.randn(400, 96, generator=torch.Generator().manual_seed(1))
    p = [read.share(draw, 20).p_value for draw in draws]
    assert stats.kstest(p, "uniform").pvalue > 0.01


def test_bad_arguments_of_a_readout(read):
    with pytest.raises(ValueError, match=r"readout: k must lie in 1 .. 96, got 0"):
        read.share(torch.ones(96), 0)
    with pytest.raises(ValueError, match="which must be"):
        read.share(torch.ones(96), 3, "middle")
    with pytest.raises(ValueError, match=r"got norm 0\.0"):
        read.gain(torch.zeros(96))
    with pytest.raises(ValueError, match=r"a direction must be \[..., 96\], got \(95,\)"):
        read.gain(torch.ones(95))
