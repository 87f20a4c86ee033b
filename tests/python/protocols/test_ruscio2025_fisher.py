# SPDX-License-Identifier: MIT
"""Protocol ruscio2025, Fisher information and head specialisation: the notebooks' steps by hand."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import attnscope as asc
from attnscope.protocols import ruscio2025
from attnscope.protocols.ruscio2025.fisher import group_parameters
from folders import tokenizer

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 43,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 160,
}


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, **SIZES)).eval()


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(0)
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES)).eval()


@pytest.fixture(scope="module")
def gpt2():
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=43, n_embd=16, n_layer=2, n_head=4, n_positions=160, eos_token_id=2
        )
    ).eval()


def place(name):
    """The notebook's branches, one after the other: its layer and group of a parameter."""
    layer = -1
    if "layers." in name:
        first = name.split("layers.")[1].split(".")[0]
        layer = int(first) if first.isdigit() else -1
    elif "layer." in name:
        first = name.split("layer.")[1].split(".")[0]
        layer = int(first) if first.isdigit() else -1
    low = name.lower()
    if any(key in low for key in ["attention", "attn", "self", "q_proj", "k_proj", "v_proj"]):
        return layer, "attention"
    if any(key in low for key in ["mlp", "feed_forward", "ffn", "dense", "fc"]):
        return layer, "mlp"
    if any(key in low for key in ["embed", "token", "wte", "wpe"]):
        return layer, "embedding"
    return None


def notebook(model, ids, mask, shown=None):
    """Squared gradient norms of padded rows, one at a time, by transformers' own loss on all positions."""
    traces = {}
    for row, row_mask in enumerate(mask):
        model.zero_grad()
        read = ids if shown is None else shown
        model(
            input_ids=read[row : row + 1], attention_mask=row_mask[None], labels=ids[row : row + 1]
        ).loss.backward()
        for name, parameter in model.named_parameters():
            where = place(name)
            if where is not None and parameter.grad is not None:
                square = parameter.grad.norm().item() ** 2 / len(ids)
                traces[where] = traces.get(where, 0.0) + square
    model.zero_grad()
    return traces


def assert_equal(table, expected):
    traces = table.set_index(["layer", "group"])["trace"]
    assert set(traces.index) == set(expected)
    for where, value in expected.items():
        assert traces[where] == pytest.approx(value, rel=1e-4, abs=1e-12), where


@pytest.mark.parametrize("which", ["llama", "gpt2"])
def test_all_texts_are_padded_to_the_longest_and_the_padding_is_counted(request, which):
    model = request.getfixturevalue(which)
    words = tokenizer()
    texts = ["the cat sat", "a", "nobody saw how it went home again before night came down"]
    encoded = words(texts, padding=True, return_tensors="pt")
    assert encoded["input_ids"].shape[1] == 12
    expected = notebook(model, encoded["input_ids"], encoded["attention_mask"])
    table = ruscio2025.fisher_trace(model, texts, tokenizer=words)
    assert_equal(table, expected)
    assert set(table["n"]) == {3}
    parameters = dict(model.named_parameters())
    for row in table.itertuples():
        sizes = [
            parameter.numel()
            for name, parameter in parameters.items()
            if place(name) == (row.layer, row.group)
        ]
        assert row.parameters == sum(sizes)
        assert row.trace_per_parameter == row.trace / row.parameters
    # without a tokenizer the token that ends a sequence pads, as the model's config gives it
    assert model.config.pad_token_id is None
    rows = [{"input_ids": words([text], return_tensors="pt")["input_ids"]} for text in texts]
    padded = encoded["input_ids"].masked_fill(encoded["attention_mask"] == 0, model.config.eos_token_id)
    assert_equal(ruscio2025.fisher_trace(model, rows), notebook(model, padded, encoded["attention_mask"]))


def test_padding_goes_where_the_tokenizer_puts_it(llama):
    words = tokenizer()
    words.padding_side = "left"
    texts = ["the cat sat", "the cat sat on a mat"]
    encoded = words(texts, padding=True, return_tensors="pt")
    assert encoded["attention_mask"][0, 0] == 0
    expected = notebook(llama, encoded["input_ids"], encoded["attention_mask"])
    assert_equal(ruscio2025.fisher_trace(llama, texts, tokenizer=words), expected)


def test_a_part_of_a_list_is_padded_to_the_whole_lists_longest(llama):
    words = tokenizer()
    texts = ["the cat sat", "a", "nobody saw how it went home again"]
    padded_traces = ruscio2025.fisher_trace(llama, texts, tokenizer=words, per_sentence=True)
    for sample, text in enumerate(texts):
        single_traces = ruscio2025.fisher_trace(
            llama, [text], tokenizer=words, padded_to=8, per_sentence=True
        )
        rows_of_text = padded_traces[padded_traces["sample"] == sample]
        np.testing.assert_allclose(single_traces["trace"], rows_of_text["trace"], rtol=1e-5)
    # no more than 128 tokens are ever read
    ids = [{"input_ids": torch.tensor([[1, 5, 9]])}]
    far, limit = (ruscio2025.fisher_trace(llama, ids, padded_to=n)["trace"] for n in (1000, 128))
    assert (far == limit).all()
    with pytest.raises(ValueError, match="texts hold no sentence of two tokens or more"):
        ruscio2025.fisher_trace(llama, [{"input_ids": torch.tensor([[1]])}])


def test_padding_is_predicted_here_and_not_in_the_exact_trace(llama):
    padded = {
        "input_ids": torch.tensor([[1, 5, 9, 0, 0, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 0, 0, 0]]),
    }
    bare = {"input_ids": torch.tensor([[1, 5, 9]])}
    exact, bare_trace = (asc.fisher_trace(llama, [text])["trace"].sum() for text in (padded, bare))
    assert exact == pytest.approx(bare_trace, rel=1e-4)
    counted, uncounted = (ruscio2025.fisher_trace(llama, [text])["trace"].sum() for text in (padded, bare))
    assert abs(counted - uncounted) > 1e-3 * uncounted


def test_encoders_read_masked_texts_and_are_scored_at_all_positions(bert):
    words = tokenizer()
    words.add_special_tokens({"mask_token": "saw"})
    ids = torch.randint(4, 30, (3, 40), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, 25:] = 0
    read = []

    def remember(module, args, kwargs):
        read.append(kwargs["input_ids"].clone())

    rows = [{"input_ids": ids[i : i + 1], "attention_mask": mask[i : i + 1]} for i in range(3)]
    hook = bert.register_forward_pre_hook(remember, with_kwargs=True)
    table = ruscio2025.fisher_trace(bert, rows, tokenizer=words, seed=3)
    hook.remove()
    shown = torch.cat(read)
    hidden = shown != ids
    assert (shown[hidden] == words.mask_token_id).all()
    assert not hidden[1, 25:].any()
    assert 0.05 < hidden[mask == 1].double().mean() < 0.3
    assert_equal(table, notebook(bert, ids, mask, shown))
    again, other = (ruscio2025.fisher_trace(bert, rows, tokenizer=words, seed=seed) for seed in (3, 4))
    assert table.equals(again)
    assert not table.equals(other)
    with pytest.raises(
        ValueError, match=r"ruscio2025\.fisher_trace: a masked-language model needs a tokenizer"
    ):
        ruscio2025.fisher_trace(bert, rows)


def test_masks_of_a_text_do_not_depend_on_the_texts_before_it(bert):
    words = tokenizer()
    words.add_special_tokens({"mask_token": "saw"})
    read = []

    def remember(module, args, kwargs):
        read.append(kwargs["input_ids"][0] == words.mask_token_id)

    texts = [{"input_ids": torch.full((1, 60), token)} for token in (5, 6, 7)]
    hook = bert.register_forward_pre_hook(remember, with_kwargs=True)
    ruscio2025.fisher_trace(bert, texts, tokenizer=words)
    ruscio2025.fisher_trace(bert, texts[1:], tokenizer=words, seed=1)
    hook.remove()
    assert torch.equal(read[1], read[3])
    assert torch.equal(read[2], read[4])
    assert not torch.equal(read[1], read[2])


def test_fifteen_in_a_hundred_tokens_are_masked(bert):
    words = tokenizer()
    words.add_special_tokens({"mask_token": "saw"})
    count = []

    def remember(module, args, kwargs):
        count.append((kwargs["input_ids"] == words.mask_token_id).double().mean().item())

    rows = [{"input_ids": torch.full((1, 128), 5)} for _ in range(30)]
    hook = bert.register_forward_pre_hook(remember, with_kwargs=True)
    ruscio2025.fisher_trace(bert, rows, tokenizer=words)
    hook.remove()
    # 3840 draws: four standard errors
    assert np.mean(count) == pytest.approx(0.15, abs=4 * math.sqrt(0.15 * 0.85 / 3840))


@pytest.mark.parametrize("which", ["llama", "bert", "gpt2"])
def test_groups_are_found_by_the_first_part_that_occurs(request, which):
    model = request.getfixturevalue(which)
    expected = {name: place(name) for name, _ in model.named_parameters() if place(name) is not None}
    assert group_parameters(model) == expected


def test_groups_of_known_names(llama, bert, gpt2):
    places = group_parameters(llama)
    assert places["model.layers.1.self_attn.q_proj.weight"] == (1, "attention")
    assert places["model.layers.1.post_attention_layernorm.weight"] == (1, "attention")
    assert places["model.layers.0.mlp.up_proj.weight"] == (0, "mlp")
    assert places["model.embed_tokens.weight"] == (-1, "embedding")
    skipped = {"model.layers.0.input_layernorm.weight", "model.norm.weight", "lm_head.weight"}
    assert not skipped & set(places)
    places = group_parameters(bert)
    assert places["bert.encoder.layer.1.intermediate.dense.weight"] == (1, "mlp")
    assert places["bert.embeddings.word_embeddings.weight"] == (-1, "embedding")
    assert places["bert.embeddings.LayerNorm.weight"] == (-1, "embedding")
    assert places["cls.predictions.transform.dense.weight"] == (-1, "mlp")
    assert "bert.encoder.layer.1.output.LayerNorm.weight" not in places
    # GPT-2's blocks are called h
    places = group_parameters(gpt2)
    assert places["transformer.h.1.attn.c_attn.weight"] == (-1, "attention")
    assert places["transformer.h.1.mlp.c_fc.weight"] == (-1, "mlp")
    assert {layer for layer, _ in places.values()} == {-1}


def test_texts_are_cut_to_500_characters_and_128_tokens(llama):
    words = tokenizer()
    words.model_max_length = 1000
    long, cut = "the cat sat on a mat " * 60, ("the cat sat on a mat " * 60)[:500]
    long_traces, other = (
        ruscio2025.fisher_trace(llama, [text], tokenizer=words)["trace"] for text in (long, cut)
    )
    assert (long_traces == other).all()
    ids = torch.tensor([words("a " * 200)["input_ids"]])
    full_traces = ruscio2025.fisher_trace(llama, [{"input_ids": ids}])["trace"]
    first = ruscio2025.fisher_trace(llama, [{"input_ids": ids[:, :128]}])["trace"]
    text = ruscio2025.fisher_trace(llama, ["a " * 200], tokenizer=words)["trace"]
    assert (full_traces == first).all()
    assert (text == first).all()
    with pytest.raises(
        ValueError, match=r"ruscio2025\.fisher_trace: texts that are strings need a tokenizer"
    ):
        ruscio2025.fisher_trace(llama, ["the cat"])
    with pytest.raises(ValueError, match=r"must be float32 or float64, got torch\.bfloat16"):
        ruscio2025.fisher_trace(transformers.LlamaForCausalLM(llama.config).bfloat16(), ["the cat"])


def test_depth_trend_is_scipys():
    values = np.random.default_rng(0).normal(size=9)
    result = ruscio2025.depth_trend(values)
    assert result[:2] == pytest.approx(tuple(stats.pearsonr(range(9), values)))
    assert result[2:4] == pytest.approx(tuple(stats.spearmanr(range(9), values)))
    np.testing.assert_allclose(result.smoothed, [values[k : k + 3].mean() for k in range(7)])
    assert math.isnan(ruscio2025.depth_trend([1.0, 1.0, 1.0]).pearson)
    assert ruscio2025.depth_trend([1.0, 2.0]).smoothed == []
    with pytest.raises(ValueError, match="must be a list of numbers"):
        ruscio2025.depth_trend([])


def test_specialisation_needs_five_samples_and_a_share():
    assert ruscio2025.head_specialization(["a"] * 4).specialised is False
    result = ruscio2025.head_specialization(["b", "a", "a", "c", "d", "e", "a", "f", "g", "h"])
    assert result == ("a", 0.3, 10, True, False)
    assert ruscio2025.head_specialization([0] * 5 + [1] * 5) == (0, 0.5, 10, True, True)
    with pytest.raises(ValueError, match="at least one sample"):
        ruscio2025.head_specialization([])
