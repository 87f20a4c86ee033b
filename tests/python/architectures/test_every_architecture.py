# SPDX-License-Identifier: MIT
"""Every type of model that transformers' auto classes know and a tiny configuration builds, captured once.

`tests/support/sweep.py` says what is compared, and prints the outcome of each type when it is run by itself.
"""

from collections import Counter

import pytest
import torch
import transformers

import attnscope as asc
from attnscope.capture.preflight import structure_of
from attnscope.errors import LoadError, SitesRefused
from support import sweep

#: Outcomes that a capture must never have.
WRONG = {"different", "visibility", "changed", "numbers", "crashed"}
#: Of each kind a few types, for a look at a time: the whole list takes most of an hour.
QUICK = ("openai-gpt", "gpt_neo")


def parameters():
    for kind in sweep.KINDS:
        for name in sweep.types(kind):
            few = kind == "causal" and name in QUICK
            yield pytest.param(kind, name, marks=() if few else pytest.mark.slow)


@pytest.mark.parametrize(("kind", "name"), parameters())
def test_what_comes_of_a_type(kind, name):
    """Maps equal eager's, or the type is refused by name; visibility, numbers and the model are right."""
    outcome = sweep.outcome(*sweep.classes(kind, name))
    if outcome.result == "not built":
        pytest.skip(f"{name} is not built from a tiny configuration: {outcome.words}")
    assert outcome.result not in WRONG, f"{name}: {outcome.words}"


def built(kind, name):
    if name not in sweep.types(kind):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    return sweep.build(*sweep.classes(kind, name))


@pytest.mark.parametrize("name", ["deepseek_v4", "gemma3n_text"])
@pytest.mark.filterwarnings("ignore")
def test_several_states_of_a_token_are_left_out(name):
    """Metrics of the residual stream need one state a token; the others of `analyze` are measured."""
    model = built("causal", name)
    inputs = sweep.inputs_of(model, "left")
    results = asc.analyze(model, inputs, progress=False)
    reasons = dict(results.left_out.set_index("column")["reason"])
    assert "carries several states of each token" in reasons["signal_smoothness"]
    assert results["heads"]["entropy"].notna().all()
    with pytest.raises(
        SitesRefused, match=r"analyze: block_output of .*several states.*leave out graph_signal"
    ):
        asc.analyze(model, inputs, "graph_signal", progress=False)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cpmant", r"sensitivity: CpmAnt\w+ hands on a tensor of shape .* so a token's states are not known"),
        ("deepseek_v4", "sensitivity: behind layer 0 each token has 256 numbers, several streams of states"),
    ],
)
@pytest.mark.parametrize("method", ["jvp", "difference"])
def test_sensitivity_names_what_it_does_not_measure(name, words, method):
    model = built("causal", name)
    inputs = sweep.inputs_of(model, "left")
    with pytest.raises(NotImplementedError, match=words):
        asc.sensitivity(model, inputs, 0, torch.eye(64)[:2], method=method)


def test_sensitivity_behind_a_cache_that_is_not_repeated():
    """Qwen3-VL's step behind a repeated cache fails once it wrote; the whole prompt runs instead."""
    model = built("image-text", "qwen3_vl")
    ids = torch.randint(5, 90, (1, 9), generator=torch.Generator().manual_seed(0))
    model.generate(ids[:, :4], max_new_tokens=2, do_sample=False)  # which the model keeps a trace of
    block = model.get_submodule("model.language_model.layers.0")

    def logits(move):
        def after(_module, _arguments, output):
            states = (output[0] if isinstance(output, tuple) else output).clone()
            states[:, -1] += move
            return (states, *output[1:]) if isinstance(output, tuple) else states

        hook = block.register_forward_hook(after)
        try:
            return model(input_ids=ids, use_cache=False).logits[0, -1].double()
        finally:
            hook.remove()

    directions = torch.randn(2, 64, generator=torch.Generator().manual_seed(1))
    jacobian = torch.autograd.functional.jacobian(logits, torch.zeros(64))
    p = logits(torch.zeros(64)).softmax(-1).detach()
    slopes = directions.double() @ jacobian.double().T
    expected = (p * (slopes - (p * slopes).sum(-1, keepdim=True)).square()).sum(-1)
    result = asc.sensitivity(model, {"input_ids": ids}, 0, directions)
    torch.testing.assert_close(result.directional_fisher[0], expected, rtol=1e-4, atol=0)


#: Two texts, and as many as tokens, where the shape does not tell which axis is which.
TEXTS = [2, sweep.TOKENS]


def inputs_of_texts(model, texts):
    return {name: tokens.repeat(texts // 2, 1) for name, tokens in sweep.inputs_of(model, "none").items()}


@pytest.mark.parametrize("texts", TEXTS)
def test_states_of_a_model_whose_tokens_come_first(texts):
    """FSMT's blocks hand on [q, B, D]; sites are [B, q, D], and an edit changes the tokens that it names."""
    model = built("seq2seq", "fsmt")
    inputs = inputs_of_texts(model, texts)
    with torch.no_grad():
        expected = model(**inputs, output_hidden_states=True).encoder_hidden_states
    with asc.capture(model, sites=("hidden", "head_output")) as recording:
        layers = [layer for layer in recording.run(**inputs) if "encoder.layers" in layer.stack]
    for number, layer in enumerate(layers):
        torch.testing.assert_close(layer.hidden, expected[number])
        heads = layer.head_output.transpose(1, 2).flatten(-2)
        assert heads.shape == layer.hidden.shape


@pytest.mark.parametrize("texts", TEXTS)
def test_an_edit_of_a_model_whose_tokens_come_first(texts):
    """XLNet's blocks hand on [q, B, D]; an edit changes the tokens that it names, of every text."""
    model = built("causal", "xlnet")
    inputs = inputs_of_texts(model, texts)
    last = structure_of(model).depth - 1
    with torch.no_grad():
        expected = model(**inputs, output_hidden_states=True).hidden_states[-1]
        with asc.edit(model, asc.edits.AddDirection(last, torch.full((64,), 7.0), [3])):
            states = model(**inputs, output_hidden_states=True).hidden_states[-1]
    is_changed = ((states - expected).abs() > 1e-3).any(-1)
    assert is_changed.nonzero().tolist() == [[text, 3] for text in range(texts)]


def test_an_edit_of_a_module_without_a_known_list_of_blocks_says_so():
    """FSMT's encoder is no model of its own; its layer 0 was refused as outside of 0 layers."""
    encoder = built("seq2seq", "fsmt").get_encoder()
    edit = asc.edits.AddDirection(0, torch.ones(64), [3])
    words = "AddDirection: no list of blocks was found in FSMTEncoder"
    with pytest.raises(NotImplementedError, match=words), asc.edit(encoder, edit):
        pass


@pytest.mark.parametrize(
    "inputs", [{"input_ids": torch.arange(5, 14)[None]}, {"pixel_values": torch.zeros(1, 3, 64, 64)}]
)
def test_a_model_that_needs_more_inputs_says_so(inputs):
    """CLIP reads a text and a picture, and fails in its own code on one of them."""
    part = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.CLIPConfig(
        text_config={**part, "vocab_size": 60}, vision_config={**part, "image_size": 64, "patch_size": 32}
    )
    model = transformers.CLIPModel(config).eval()
    (name,) = inputs
    with pytest.raises(
        LoadError, match=f"analyze: CLIPModel does not run on {name}.* alone .* as its processor"
    ):
        asc.analyze(model, inputs, "attention_entropy", progress=False)


def test_gradients_need_one_embedding():
    model = built("masked", "ibert")
    ids = torch.randint(5, 90, (2, 9), generator=torch.Generator().manual_seed(0))
    with pytest.raises(NotImplementedError, match=r"second_moments: the token embedding .* several tensors"):
        asc.second_moments(model, ids, gradients=True)


@pytest.mark.slow
def test_most_types_are_built():
    """A sweep that builds nothing would find nothing."""
    outcomes = Counter()
    for name in list(sweep.types("causal"))[:20]:
        try:
            sweep.build(*sweep.classes("causal", name))
        except ValueError:
            outcomes["not built"] += 1
        else:
            outcomes["built"] += 1
    assert outcomes["built"] >= 15, outcomes
