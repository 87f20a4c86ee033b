# SPDX-License-Identifier: MIT
"""One declared pass: its layers, the model's own tensors, which backend ran, and what did not run."""

import threading
from itertools import pairwise

import pytest
import torch

import attnscope as asc
import media_models
import models
from attnscope.capture import Forward, forward
from attnscope.capture.edits import AddDirection, HideKeys, SetEmbedding, SubtractRead
from attnscope.capture.implementation import configs
from attnscope.capture.sites import MODEL_SITES, SITES, TABLE
from models import MapCount

ALL = (*models.CAUSAL, *models.ENCODERS, *models.SEQ2SEQ, *models.LEGACY, "jamba")
HOOKED = tuple(site for site in SITES if not TABLE[site].of_attention)


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    yield
    assert not [t for t in threading.enumerate() if t.name == "attnscope-capture"]


def plain(model, inputs):
    with torch.no_grad():
        return model(**inputs)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_sites_of_the_model_are_what_it_returns(name):
    """Under the model's own backend, bit for bit."""
    model = models.tiny(name)
    inputs = models.text(model, padding="left")
    # a cache moves T5's last bits before 5.13
    usual = plain(model, {**inputs, **({"use_cache": False} if name in models.SEQ2SEQ else {})})
    logits = "logits" in usual
    sites = ("embeddings", "final_norm", *(("logits",) if logits else ()))
    with forward(model, inputs, Forward(sites=sites)) as run:
        assert list(run) == []
        outputs = run.outputs
    assert run.tier == 0
    with torch.no_grad():
        body = model.get_encoder() if name in models.SEQ2SEQ else model
        assert torch.equal(outputs.embeddings, body.get_input_embeddings()(inputs["input_ids"]))
    if logits:
        assert torch.equal(outputs.logits.nan_to_num(), usual.logits.nan_to_num())
    else:
        assert torch.equal(outputs.final_norm.nan_to_num(), usual[0].nan_to_num())
    if name in ("llama", "gpt_neox", "qwen3"):
        assert torch.equal(model.get_output_embeddings()(outputs.final_norm), outputs.logits)


@pytest.mark.parametrize("name", [*ALL, "mamba"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_layer_for_each_block_of_every_model(name):
    model = models.tiny(name)
    inputs = models.text(model, padding="right")
    with forward(model, inputs, Forward(sites=("hidden", "block_output"))) as run:
        layers = list(run)
    with torch.no_grad():
        states = model(**inputs, output_hidden_states=True)
    stacks = {layer.stack for layer in layers}
    assert len(stacks) == (2 if name in models.SEQ2SEQ else 1)
    for stack in stacks:
        blocks = [layer for layer in layers if layer.stack == stack]
        assert [layer.index for layer in blocks] == list(range(len(blocks)))
        for block, following in pairwise(blocks):
            assert torch.equal(block.block_output, following.hidden)
        if "decoder" in stack and name in models.SEQ2SEQ:
            hidden_states = states.decoder_hidden_states
        else:
            hidden_states = getattr(states, "hidden_states", None) or states.encoder_hidden_states
            assert torch.equal(blocks[0].valid, inputs["attention_mask"].bool())
        if name == "mamba":  # its hidden_states are taken behind the blocks
            assert torch.allclose(blocks[0].block_output, hidden_states[0], atol=1e-5)
            assert torch.equal(blocks[0].hidden, model.get_input_embeddings()(inputs["input_ids"]))
        else:
            assert len(blocks) == len(hidden_states) - 1
            for block in blocks:
                assert torch.allclose(block.hidden, hidden_states[block.index], atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2", "phi", "bert", "albert", "opt", "gemma2", "gpt_oss", "t5"])
def test_hooks_alone_see_what_capture_sees(name):
    """The same sites under eager attention, with and without the attention itself."""
    models.needs_attention_interface(name)
    model = models.tiny(name, implementation="eager")
    if name == "t5":
        model = model.get_encoder()
    inputs = models.text(model, padding="left")
    inputs.pop("decoder_input_ids", None)
    with forward(model, inputs, Forward(sites=HOOKED)) as run:
        hooked = list(run)
    with forward(model, inputs, Forward(sites=(*HOOKED, "attention", "final_norm"))) as run:
        together = list(run)
        final = run.outputs.final_norm
    assert run.tier == 1
    real = inputs["attention_mask"].bool()
    if not models.eager_rounding(name):  # elsewhere padding queries read what others do not
        real = torch.ones_like(real)
    for of_hooks, of_capture in zip(hooked, together, strict=True):
        assert of_hooks.index == of_capture.index
        assert torch.equal(of_hooks.valid, of_capture.valid)
        for site in HOOKED:
            pair = (layer.tensors[site].movedim(-2, 1)[real] for layer in (of_hooks, of_capture))
            assert torch.allclose(*pair, atol=1e-5), site
        assert torch.equal(of_hooks.lengths, of_capture.lengths)
    body = getattr(model, "base_model", model)
    assert torch.allclose(final[real], plain(body, inputs)[0][real], atol=1e-5)


def test_the_backend_stays_the_models_own(monkeypatch):
    model = models.tiny("llama")
    seen = []
    handle = model.model.layers[0].self_attn.register_forward_hook(
        lambda m, *_: seen.append(m.config._attn_implementation)
    )
    inputs = models.text(model)
    with forward(model, inputs, Forward(sites=("block_output",))) as run:
        list(run)
    with forward(model, inputs, Forward(sites=("block_output", "lse"))) as run:
        list(run)
    handle.remove()
    assert seen[-2:] == ["sdpa", "attnscope"]
    assert {c._attn_implementation_internal for c in configs(model)} == {"sdpa"}


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "gemma2", "t5", "mamba", "bloom"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_vocabulary_head_runs_only_when_asked(name):
    model = models.tiny(name)
    inputs = models.text(model)
    rows = []
    handle = model.get_output_embeddings().register_forward_hook(lambda m, a, o: rows.append(o.shape[1]))
    with forward(model, inputs, Forward(sites=("final_norm", "hidden"))) as run:
        list(run)
        assert rows[-1] == 0
    with forward(model, inputs, Forward(sites=("logits",))) as run:
        logits = run.outputs.logits
    assert rows[-1] == logits.shape[1] > 0
    with forward(model, inputs, Forward(sites=("logits",), rows=torch.tensor([3, 1]))) as run:
        assert torch.allclose(run.outputs.logits, logits[:, [3, 1]], atol=1e-5)
    assert rows[-1] == 2
    row_of_text = torch.tensor([[5], [2]])
    with forward(model, inputs, Forward(sites=("logits",), rows=row_of_text)) as run:
        assert torch.allclose(run.outputs.logits[:, 0], logits[[0, 1], [5, 2]], atol=1e-5)
    handle.remove()


def test_some_layers_and_heads():
    model = models.tiny("llama")
    inputs = models.text(model)
    with forward(model, inputs, Forward(sites=("block_output", "head_output"))) as run:
        all_layers = list(run)
    part_of_model = Forward(sites=("block_output", "head_output"), layers=[-1, 0], heads=[-1, 1])
    with forward(model, inputs, part_of_model) as run:
        part = list(run)
    assert [layer.index for layer in part] == [0, 2]
    for layer in part:
        assert layer.heads == (3, 1)
        assert torch.equal(layer.block_output, all_layers[layer.index].block_output)
        assert torch.equal(layer.head_output, all_layers[layer.index].head_output[:, [3, 1]])


def test_at_most_two_layers_are_alive(monkeypatch):
    model = models.tiny("llama", num_hidden_layers=6)
    inputs = models.text(model)
    with forward(model, inputs, Forward(sites=("attention", "block_output"))) as run:
        count = MapCount(monkeypatch)
        for _layer in run:
            pass
    assert count.most == 2


def test_edits_are_of_this_run_alone():
    model = models.tiny("llama", implementation="eager")
    inputs = models.text(model)
    base = plain(model, inputs).logits
    edits = (SetEmbedding(0, torch.zeros(96)), AddDirection(1, torch.ones(96), "all"), HideKeys([1]))
    outside, hidden = [], []
    for sites in (("logits", "block_output"), ("logits", "block_output", "attention")):
        with forward(model, inputs, Forward(sites=sites, edits=edits)) as run:
            for layer in run:
                outside.append(plain(model, inputs).logits)
                if layer.index == 1:
                    hidden.append(layer.block_output)
            assert not torch.equal(run.outputs.logits, base)
    assert torch.allclose(hidden[0], hidden[1], atol=1e-5)
    for logits in outside:
        assert torch.allclose(logits, base, atol=1e-5)
    assert torch.equal(plain(model, inputs).logits, base)
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())


def test_two_passes_that_differ_by_hidden_keys_differ_by_them_alone():
    model = models.tiny("gpt_oss")
    inputs = models.text(model, padding="left")
    logits = []
    for keys in ([], [], [2]):
        with forward(model, inputs, Forward(sites=("logits",), edits=(HideKeys(keys),))) as run:
            logits.append(run.outputs.logits)
    assert torch.equal(logits[0], logits[1])
    assert not torch.equal(logits[0], logits[2])


def test_an_edit_that_never_acts_reaches_the_reader():
    model = models.tiny("llama")
    embeds = {"inputs_embeds": torch.zeros(1, 4, 96)}
    unused_edit = Forward(sites=("block_output",), edits=(SetEmbedding(0, torch.zeros(96)),))
    with (
        pytest.raises(RuntimeError, match="SetEmbedding never acted"),
        forward(model, embeds, unused_edit) as run,
    ):
        list(run)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_leaving_early_restores_the_model(error):
    model = models.tiny("llama")
    inputs = models.text(model)
    base = plain(model, inputs).logits
    edited_pass = Forward(sites=("hidden", "logits"), edits=(AddDirection(0, torch.ones(96)), HideKeys([0])))

    def consume():
        with forward(model, inputs, edited_pass) as run:
            for _layer in run:
                raise error("in the loop")

    with pytest.raises(error, match="in the loop"):
        consume()
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in model.modules())
    assert {c._attn_implementation_internal for c in configs(model)} == {"sdpa"}
    assert torch.equal(plain(model, inputs).logits, base)
    with forward(model, inputs, Forward(sites=("hidden",))) as run:
        for _layer in run:
            break
        run.close()
        with pytest.raises(RuntimeError, match="the pass was left before its end"):
            run.outputs  # noqa: B018


def test_what_is_out_of_reach_is_refused_by_name():
    inputs = models.text(models.tiny("llama"))
    with pytest.raises(ValueError, match=r"Forward: sites must be among .*logits, got \['atention'\]"):
        Forward(sites=("atention",))
    bloom, mamba = models.tiny("bloom"), models.tiny("mamba")
    with (
        pytest.raises(RuntimeError, match=r"BloomForCausalLM does not let \['scores'\] be captured"),
        forward(bloom, inputs, Forward(sites=("scores", "logits"))) as run,
    ):
        list(run)
    with (
        pytest.raises(RuntimeError, match="no place for site 'mlp_output' was found in MambaForCausalLM"),
        forward(mamba, inputs, Forward(sites=("mlp_output",))) as run,
    ):
        list(run)
    with (
        pytest.raises(NotImplementedError, match="HideKeys: the attention of BloomForCausalLM"),
        forward(bloom, inputs, Forward(edits=(HideKeys([0]),))),
    ):
        pass
    bert = models.tiny("bert")
    with (
        pytest.raises(TypeError, match="BertModel gives no logits"),
        forward(bert, inputs, Forward(sites=("logits",))) as run,
    ):
        list(run)
    with (
        pytest.raises(ValueError, match=r"layers of BertModel: \[7\] out of range for 3"),
        forward(bert, inputs, Forward(sites=("hidden",), layers=[7])) as run,
    ):
        list(run)
    bert.train()
    with pytest.raises(RuntimeError, match="BertModel is in training mode"), forward(bert, inputs, Forward()):
        pass


def test_a_tensor_that_was_not_asked_for_says_so():
    model = models.tiny("llama")
    with forward(model, models.text(model), Forward(sites=("final_norm",))) as run:
        outputs = run.outputs
    with pytest.raises(AttributeError, match=r"holds \['final_norm'\], not 'logits': ask for it with"):
        outputs.logits  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'losses'"):
        outputs.losses  # noqa: B018
    assert set(MODEL_SITES) == {"embeddings", "final_norm", "logits"}


def test_what_an_edit_tries_out_first_is_no_layer_of_the_pass():
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = dict(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=4, vocab_size=32
    )
    model = LlamaForCausalLM(LlamaConfig(**shape)).eval()
    ids = torch.arange(6)[None]
    shifted = Forward(sites=("scores", "attention"), edits=(asc.edits.SetPositionIds(shift=3),))
    with forward(model, {"input_ids": ids}, shifted) as run:
        assert [layer.index for layer in run] == [0, 1]


@pytest.mark.parametrize("edit", [HideKeys([0]), SubtractRead([0])])
def test_a_block_is_one_layer_under_edits_of_the_softmax(edit):
    model = models.tiny("llama")
    with forward(model, models.text(model), Forward(sites=("hidden",), edits=(edit,))) as run:
        assert [(layer.index, layer.stack) for layer in run] == [(i, "model.layers.*") for i in range(3)]


def test_states_of_patches_in_one_row_have_one_shape_with_and_without_their_attention():
    """A tower that packs the patches of all pictures hands on states without an axis of samples."""
    model, inputs = media_models.with_picture("qwen2_vl")
    states = []
    for sites in (("block_output",), ("block_output", "attention")):
        with forward(model, inputs, Forward(sites=sites)) as run:
            states.append([layer.block_output for layer in run])
    assert [tuple(state.shape) for state in states[1][:2]] == [(1, 32, 32)] * 2
    for without_attention, beside in zip(*states, strict=True):
        assert without_attention.shape == beside.shape
        torch.testing.assert_close(without_attention, beside, rtol=0, atol=1e-5)
