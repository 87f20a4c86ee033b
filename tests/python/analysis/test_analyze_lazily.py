# SPDX-License-Identifier: MIT
"""`analyze` of rows and columns takes queries and keys; its tables are those of the maps."""

import numpy as np
import pytest
import torch
import transformers

import attnscope as asc
from attnscope import _core
from attnscope.analysis.recipe import Recipe
from attnscope.study_api import forward

METRICS = [
    *("attention_entropy", "sink_share", "sink_position", "sink_rate", "top_mass", "sink_excess"),
    *("incoming_attention", "local_global_ratio", "head_divergence", "sink_test"),
]
SMALL = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
HEADS = {**SMALL, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1, "eos_token_id": 1, "pad_token_id": 0}
MODELS = {
    "causal": ("LlamaForCausalLM", "LlamaConfig", HEADS),
    "window": ("MistralForCausalLM", "MistralConfig", {**HEADS, "sliding_window": 7}),
    "learned sink": ("GptOssForCausalLM", "GptOssConfig", {**HEADS, **EXPERTS, "sliding_window": 7}),
    "full": ("BertModel", "BertConfig", {**SMALL, "num_attention_heads": 4}),
}
#: Texts of several lengths, so that a batch has padding.
TEXTS = [list(range(3, 27)), list(range(20, 40)), list(range(5, 26))]


def build(kind):
    torch.manual_seed(0)
    model, config, options = kind
    built = getattr(transformers, model)(getattr(transformers, config)(**options)).eval()
    with torch.no_grad():
        for name, parameter in built.named_parameters():
            if parameter.ndim == 2:
                parameter.mul_(3.0)
            if name.endswith("sinks"):  # heads whose sinks differ, or a mean of them would be any of them
                parameter.add_(torch.linspace(-1.0, 2.0, len(parameter)))
    return built


def assert_equal_tables(ours, theirs):
    assert set(ours.tables()) == set(theirs.tables())
    for name in set(theirs.tables()) - {"samples"}:
        keys = [key for key in ("sample", "layer", "head", "index") if key in theirs.table(name).columns]
        tables = [results.table(name).sort_values(keys) for results in (ours, theirs)]
        assert set(tables[0].columns) == set(tables[1].columns)
        for column in tables[1].select_dtypes(["number", "boolean"]).columns:
            numbers = (table[column].astype(float).to_numpy() for table in tables)
            np.testing.assert_allclose(*numbers, rtol=2e-4, atol=1e-5, err_msg=f"{name}.{column}")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", MODELS)
def test_tables_are_those_of_the_maps(name, monkeypatch):
    model = build(MODELS[name])
    ours = asc.analyze(model, TEXTS, METRICS)
    monkeypatch.setattr(Recipe, "needs_no_map", False)
    theirs = asc.analyze(model, TEXTS, METRICS)
    assert (ours.provenance["attention"], theirs.provenance["attention"]) == ("queries and keys", "maps")
    assert set(ours.provenance["left_out"]) == set(theirs.provenance["left_out"])
    assert_equal_tables(ours, theirs)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_maps_are_computed_where_something_needs_them():
    model = build(MODELS["causal"])
    for metrics in (["attention_entropy", "fiedler_value"], {"sink_share": {"support": "full"}}):
        assert asc.analyze(model, TEXTS, metrics).provenance["attention"] == "maps"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_layer_is_read_once_for_its_heads_and_once_for_their_mean(monkeypatch):
    passes = []
    measure = _core.lazy_measures
    monkeypatch.setattr(_core, "lazy_measures", lambda *values: passes.append(1) or measure(*values))
    asc.analyze(build(MODELS["causal"]), TEXTS, METRICS)
    assert len(passes) == 2 * SMALL["num_hidden_layers"]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_model_that_keeps_its_queries_to_itself_is_measured_from_maps():
    bloom = transformers.BloomModel(
        transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4)
    ).eval()
    assert asc.analyze(bloom, TEXTS, ["attention_entropy"]).provenance["attention"] == "maps"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_model_is_asked_for_its_queries_until_it_changes(monkeypatch):
    model = build(MODELS["causal"])
    calls = []
    find = forward._find_refusal
    monkeypatch.setattr(forward, "_find_refusal", lambda *values: calls.append(1) or find(*values))
    ways = [asc.analyze(model, TEXTS, ["attention_entropy"]).provenance["attention"] for _ in range(2)]
    assert (ways, len(calls)) == (["queries and keys"] * 2, 1)
    attention = model.model.layers[1].self_attn
    attention.forward = type(attention).forward.__get__(attention)
    asc.analyze(model, TEXTS, ["attention_entropy"])
    assert len(calls) == 2
