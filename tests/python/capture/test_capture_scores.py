# SPDX-License-Identifier: MIT
"""The argument of the softmax and its log-sum, against the maps and against scores made by hand."""

from pathlib import Path

import pytest
import torch

import models
from attnscope.capture import Layer, capture
from attnscope.capture.sites import SITES, TABLE

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
TIER_1 = (*models.INTERFACE, "gptj")
SCORE_SITES = ("attention", "scores", "lse")


def run(model, sites, inputs, **options):
    with capture(model, sites=sites, **options) as recording:
        return list(recording.run(**inputs))


def agrees(layer):
    """exp(s − Λ) = A within the rounding of s, for every query that sees a key."""
    seen = (layer.scores > -torch.inf).any(-1)
    largest = layer.scores[layer.scores > -torch.inf].abs().max().clamp(min=1)
    gap = ((layer.scores - layer.lse[..., None]).exp() - layer.attention).abs()[seen].max()
    assert float(gap) <= 2 * torch.finfo(layer.scores.dtype).eps * float(largest), float(gap)
    return seen


@pytest.mark.parametrize("padding", [pytest.param("none", marks=pytest.mark.slow), "left", "right"])
@pytest.mark.parametrize("name", models.few(TIER_1))
def test_the_exponential_of_scores_less_their_log_sum_is_the_attention(name, padding):
    models.needs_attention_interface(name)
    model = models.cached_model(name)
    inputs = models.text(model, padding=padding)
    for layer in run(model, SCORE_SITES, inputs):
        seen = agrees(layer)
        real = layer.valid if layer.scores.shape[-1] == layer.scores.shape[-2] else seen[:, 0]
        assert bool(seen.mT[real].all()), "a real query saw nothing"
        hidden = layer.scores == -torch.inf
        assert not bool(layer.attention[hidden & seen[..., None]].any())
        assert bool(hidden[~layer.valid[:, None, None].expand_as(hidden)].all()), "padding is visible"


@pytest.mark.parametrize(
    ("name", "options"), [("gemma2", {"attn_logit_softcapping": 0.5}), ("gpt_oss", {}), ("t5", {})]
)
def test_scores_of_capped_sunk_and_biased_softmaxes_by_hand(name, options):
    if name == "t5":
        models.needs_attention_interface(name)
    model = models.tiny(name, **options)
    layers = run(model, (*SCORE_SITES, "query", "key"), models.text(model))
    scaling = 1.0 if name == "t5" else model.config.head_dim**-0.5
    if name == "gemma2":
        scaling = model.config.query_pre_attn_scalar**-0.5
    for layer in layers:
        visible = layer.scores > -torch.inf
        raw = layer.query.double() @ layer.key[:, list(layer.kv_heads)].double().mT * scaling
        if name == "gemma2":
            raw = 0.5 * (raw / 0.5).tanh()
            assert float(raw.abs().max()) > 0.4
        gap = torch.where(visible, layer.scores.double() - raw, 0.0)
        if name == "t5":
            # What is left is a bias of the offset alone, the same in every sample; none across sequences.
            assert torch.allclose(gap[0], gap[1], atol=1e-4)
            assert layer.cross == (float(gap.abs().max()) < 1e-4)
        else:
            assert float(gap.abs().max()) < 2e-5
        if name == "gpt_oss":
            learned_sinks = model.model.layers[layer.index].self_attn.sinks
            assert torch.equal(layer.sink_logits, learned_sinks)
            assert torch.allclose(layer.sink_mass + layer.attention.sum(-1), torch.ones(()), atol=1e-6)
            assert float(layer.sink_mass.max()) > 0.01
        else:
            assert layer.sink_logits is None
            assert not bool(layer.sink_mass.any())


def test_asking_for_scores_changes_nothing_else():
    model = models.tiny("gpt_oss")
    inputs = models.text(model, padding="left")
    for by_itself, with_scores in zip(
        run(model, ("attention",), inputs), run(model, (*SCORE_SITES, "block_output"), inputs), strict=True
    ):
        assert torch.equal(by_itself.attention, with_scores.attention)


@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_scores_of_some_heads(chunk):
    model = models.tiny("gpt_oss")
    inputs = models.text(model, padding="right")
    for all_heads, two_heads in zip(
        run(model, SCORE_SITES, inputs),
        run(model, SCORE_SITES, inputs, heads=[-1, 1], chunk=chunk),
        strict=True,
    ):
        for site in SCORE_SITES:
            assert torch.allclose(two_heads.tensors[site], all_heads.tensors[site][:, [3, 1]], atol=1e-6)
        assert torch.equal(two_heads.sink_logits, all_heads.sink_logits[[3, 1]])


@pytest.mark.parametrize("name", models.LEGACY)
@pytest.mark.parametrize("site", ["scores", "lse"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_models_without_an_attention_function_refuse_by_name(name, site):
    if models.has_attention_interface(name):
        pytest.skip(f"{name} has an attention interface in this transformers")
    model = models.cached_model(name)
    with pytest.raises(RuntimeError, match=rf"{type(model).__name__} does not let \['{site}'\] be captured"):
        capture(model, sites=("attention", site)).__enter__()


@pytest.mark.parametrize("folder", ["stories260K/hf", "llama2xs/hf"])
def test_scores_of_trained_models(folder):
    if not (DATA / folder).exists():
        pytest.skip(f"{folder} is not here")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(DATA / folder).eval()
    ids = torch.randint(3, model.config.vocab_size, (2, 33), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, :7] = 0
    for layer in run(model, SCORE_SITES, {"input_ids": ids, "attention_mask": mask}):
        agrees(layer)


def test_scores_without_padding_and_their_log_sums():
    model = models.tiny("llama")
    inputs = models.text(model, padding="left")
    short = {name: tensor[1:, 9:] for name, tensor in inputs.items()}
    for padded, unpadded in zip(run(model, SCORE_SITES, inputs), run(model, SCORE_SITES, short), strict=True):
        assert padded.lengths.tolist() == [37, 28]
        triangle = torch.ones(28, 28).tril().bool()
        cut = padded.matrices("scores")[1, :, :28, :28]
        assert torch.allclose(cut[:, triangle], unpadded.scores[0][:, triangle], atol=1e-3)
        assert torch.allclose(padded.states("lse")[1, :, :28], unpadded.lse[0], atol=1e-3)
        with pytest.raises(ValueError, match="'scores' has two token axes"):
            padded.states("scores")
        with pytest.raises(ValueError, match="site must be among attention, scores, got 'lse'"):
            padded.matrices("lse")


def test_half_precision_scores_are_single():
    model = models.tiny("llama").to(torch.bfloat16)
    for layer in run(model, SCORE_SITES, models.text(model, padding="right")):
        assert {layer.tensors[site].dtype for site in SCORE_SITES} == {torch.float32}
        agrees(layer)


@pytest.mark.parametrize(
    "name", ["llama", "gpt2", "bert", "opt", "phi", "bloom", "falcon", "gptj", "mixtral"]
)
def test_what_heads_hand_on_and_what_the_feed_forward_part_reads(name):
    model = models.tiny(name)
    if name != "bloom":
        model.set_attn_implementation("eager")
    sites = ("attention", "head_output", "attention_output", "mlp_input", "mlp_output")
    with capture(model, sites=sites) as recording:
        layers = list(recording.run(**models.text(model)))
        parts = recording._plan.parts
    for core, layer in zip(parts, layers, strict=True):
        assert layer.head_output.shape == (2, 4, 37, 24)
        projection = model.get_submodule(parts[core].projection)
        with torch.no_grad():
            joined = layer.head_output.transpose(1, 2).flatten(2)
            assert torch.equal(projection(joined), layer.attention_output)
        if name in ("llama", "gpt2", "phi"):
            mlp = model.get_submodule(parts[core].feed_forward)
            with torch.no_grad():
                assert torch.equal(mlp(layer.mlp_input), layer.mlp_output)
        assert layer.mlp_input.shape == (2, 37, 96)


def test_the_table_in_the_docstring_is_the_table_of_sites():
    for site in SITES:
        row = next(r for r in Layer.__doc__.splitlines() if f"``{site}``" in r and r.strip().startswith("|"))
        assert f"``{TABLE[site].shape}``" in row, (site, row)
