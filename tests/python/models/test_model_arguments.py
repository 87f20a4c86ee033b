# SPDX-License-Identifier: MIT
"""Arguments that are no model, no layer or no folder are refused by their type, before anything runs."""

import pytest
import torch

import attnscope as asc
from attnscope.capture import Forward, forward
from models import enlarged

IDS = torch.arange(5)[None]
INPUTS = {"input_ids": IDS}
ROW = torch.ones(1, 16)
LLAMA = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 8, "num_attention_heads": 2}
CALLS = {
    "capture": lambda model: asc.capture(model),
    "capture: lazy": lambda model: asc.capture(model, lazy=True),
    "forward": lambda model: forward(model, INPUTS, Forward(("attention",))).__enter__(),
    "edit": lambda model: asc.edit(model, asc.edits.HideKeys([0])).__enter__(),
    "first_token_trajectory": lambda model: asc.first_token_trajectory(model, INPUTS),
    "position_profile": lambda model: asc.position_profile(model, INPUTS, n=5, groups=1),
    "output_kl": lambda model: asc.output_kl(model, INPUTS, [0]),
    "rank_one_effect": lambda model: asc.rank_one_effect(model, INPUTS, 0, "o", ROW, ROW),
    "sensitivity": lambda model: asc.sensitivity(model, INPUTS, 0, ROW),
    "token_likelihood": lambda model: asc.token_likelihood(model, INPUTS),
    "word_likelihood": lambda model: asc.word_likelihood(model, INPUTS, [[1, 2]]),
    "fisher_trace": lambda model: asc.fisher_trace(model, [INPUTS]),
}


@pytest.mark.parametrize("model", ["gpt2", None])
@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_model_is_refused_by_its_type(name, model):
    function = name.partition(":")[0]
    message = rf"^{function}: model must be a torch module, got {type(model).__name__}"
    with pytest.raises(TypeError, match=message):
        CALLS[name](model)


def test_weights_are_those_of_a_model_or_a_folder():
    with pytest.raises(TypeError, match=r"^weight_map: source must be a model, a folder .* got NoneType"):
        asc.head_circuits(None, 0)


def test_changes_of_weights_are_those_of_folders(tmp_path):
    model = enlarged("LlamaForCausalLM", "LlamaConfig", {**LLAMA, "num_hidden_layers": 1})
    model.save_pretrained(tmp_path)
    for sides, name in (((model, tmp_path), "before"), ((tmp_path, model), "after")):
        with pytest.raises(TypeError, match=rf"^weight_deltas: {name} must be a folder .* got Llama"):
            list(asc.weight_deltas(*sides))


def test_a_fingerprint_is_that_of_a_layer():
    model = enlarged("LlamaForCausalLM", "LlamaConfig", {**LLAMA, "num_hidden_layers": 1})
    projection = asc.output_projection(model, 0)
    with pytest.raises(TypeError, match=r"^fingerprint: layer must be .* got LlamaForCausalLM"):
        asc.fingerprint(model, projection)
    with asc.capture(model, lazy=True) as recording:
        (lazy,) = recording.run(**INPUTS)
    with pytest.raises(TypeError, match=r"^fingerprint: layer must be .* got LazyLayer"):
        asc.fingerprint(lazy, projection)
    with asc.capture(model, sites=("attention", "value", "head_output")) as recording:
        (layer,) = recording.run(**INPUTS)
    with pytest.raises(TypeError, match=r"^fingerprint: projection must be .* got NoneType"):
        asc.fingerprint(layer, None)
    results = [asc.fingerprint(layer, matrix) for matrix in (projection, projection.numpy())]
    assert torch.equal(results[0].share, results[1].share)
    with pytest.raises(KeyError, match=r"layer 5 of LlamaForCausalLM has none; its 1 layers"):
        asc.output_projection(model, 5)
