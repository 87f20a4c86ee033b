# SPDX-License-Identifier: MIT
"""`analyze` of cross attention: a row for each head's map of the decoder's tokens by the encoder's."""

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration

import attnscope as asc
from media_models import detr, picture, sound, whisper

KEYS, QUERIES = (7, 5), (9, 4)
KINDS = ["encoder"] * 2 + ["decoder"] * 3 + ["cross"] * 3


def mask(lengths):
    return (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    shape = dict(d_model=16, d_ff=16, d_kv=4, num_layers=2, num_decoder_layers=3, num_heads=4, vocab_size=30)
    return T5ForConditionalGeneration(T5Config(**shape)).eval()


@pytest.fixture(scope="module")
def inputs():
    """Two pairs of texts, the second padded on both sides of the model."""
    draws = torch.Generator().manual_seed(1)
    ids = [torch.randint(3, 30, (2, max(sizes)), generator=draws) for sizes in (KEYS, QUERIES)]
    return {
        "input_ids": ids[0],
        "attention_mask": mask(KEYS),
        "decoder_input_ids": ids[1],
        "decoder_attention_mask": mask(QUERIES),
    }


@pytest.fixture(scope="module")
def results(model, inputs):
    names = ["attention_entropy", "top_mass", "sink_share", "fiedler_value", "incoming_attention"]
    names += ["singular_values", "head_divergence", "stable_rank"]
    return asc.analyze(model, inputs, names, vectors=True)


@pytest.fixture(scope="module")
def maps(model, inputs):
    """Cross attention of transformers alone, [sample][layer, head, q, k] without padding."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        layers = torch.stack(model(**inputs, output_attentions=True).cross_attentions, 1)
    model.set_attn_implementation("sdpa")
    return [sample[..., :q, :k].double().numpy() for sample, q, k in zip(layers, QUERIES, KEYS, strict=True)]


def cross_rows(results, table, sample):
    rows = results[table]
    return rows[(rows["attention"] == "cross") & (rows["sample"] == sample)]


def test_the_kinds_count_on(results):
    heads = results["heads"]
    assert heads.groupby("layer")["attention"].first().tolist() == KINDS
    sizes = heads.groupby(["sample", "attention"])[["n_queries", "n_tokens"]].first()
    for sample in (0, 1):
        assert sizes.loc[sample, "encoder"].tolist() == [KEYS[sample]] * 2
        assert sizes.loc[sample, "decoder"].tolist() == [QUERIES[sample]] * 2
        assert sizes.loc[sample, "cross"].tolist() == [QUERIES[sample], KEYS[sample]]


@pytest.mark.parametrize("sample", [0, 1])
def test_a_row_is_of_a_head_s_rectangle(results, maps, sample):
    rows = cross_rows(results, "heads", sample).sort_values(["layer", "head"])
    assert rows[["layer", "head"]].values.tolist() == [[5 + at, head] for at in range(3) for head in range(4)]
    weights = maps[sample].reshape(12, QUERIES[sample], KEYS[sample])
    entropy = -(weights * np.log(weights)).sum(-1).mean(-1)
    np.testing.assert_allclose(rows["entropy"], entropy, rtol=1e-5)
    np.testing.assert_allclose(rows["sink_share"], weights[:, :, 0].mean(-1), rtol=1e-5)
    np.testing.assert_allclose(rows["sink_share_uniform"], 1 / KEYS[sample], rtol=1e-12)
    np.testing.assert_allclose(rows["top_mass"], weights.mean(1).max(-1), rtol=1e-5)
    singular = np.linalg.svd(weights, compute_uv=False)
    np.testing.assert_allclose(rows["stable_rank"], (singular**2).sum(-1) / singular[:, 0] ** 2, rtol=1e-5)
    mean = maps[sample].mean(1, keepdims=True)
    divergence = (maps[sample] * np.log(maps[sample] / mean)).sum(-1).mean(-1)
    np.testing.assert_allclose(rows["head_divergence"], divergence.ravel(), rtol=1e-4)
    assert rows["fiedler_value"].isna().all()  # a graph joins tokens with tokens
    assert (rows["n_queries"] == QUERIES[sample]).all()


@pytest.mark.parametrize("sample", [0, 1])
def test_numbers_of_queries_keys_and_ranks_end_where_theirs_end(results, maps, sample):
    rows = cross_rows(results, "vectors", sample)
    first = rows[(rows["layer"] == 5) & (rows["head"] == 2)].sort_values("index")
    weights = maps[sample][0, 2]
    q, k = weights.shape
    assert first["index"].tolist() == list(range(max(q, k)))
    np.testing.assert_allclose(first["entropy"][:q], -(weights * np.log(weights)).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(first["incoming_attention"][:k], weights.mean(0), rtol=1e-5)
    singular = np.linalg.svd(weights, compute_uv=False)
    np.testing.assert_allclose(first["singular_values"][: min(q, k)], singular, rtol=1e-5)
    for column, size in (("entropy", q), ("incoming_attention", k), ("singular_values", min(q, k))):
        assert first[column].notna().sum() == size


def test_head_means_have_their_cross_rows(results, maps):
    rows = cross_rows(results, "head_means", 1).sort_values("layer")
    mean = maps[1].mean(1)
    np.testing.assert_allclose(rows["entropy"], -(mean * np.log(mean)).sum(-1).mean(-1), rtol=1e-5)


def test_means_over_some_queries(model, inputs, maps):
    chosen = asc.analyze(model, inputs, ["attention_entropy", "stable_rank"], queries=slice(-2, None))
    unrestricted = asc.analyze(model, inputs, ["stable_rank"])
    for sample in (0, 1):
        rows = cross_rows(chosen, "heads", sample).sort_values(["layer", "head"])
        weights = maps[sample].reshape(12, QUERIES[sample], KEYS[sample])[:, -2:]
        np.testing.assert_allclose(rows["entropy"], -(weights * np.log(weights)).sum(-1).mean(-1), rtol=1e-5)
        others = cross_rows(unrestricted, "heads", sample).sort_values(["layer", "head"])
        np.testing.assert_array_equal(rows["stable_rank"], others["stable_rank"])


def test_a_column_of_graphs_is_left_out_of_a_stack_of_cross_attention_alone(model, inputs):
    results = asc.analyze(model, inputs, ["fiedler_value", "attention_entropy"], stack="EncDecAttention")
    assert set(results["heads"]["attention"]) == {"cross"}
    assert "cross" in results.left_out["reason"][results.left_out["column"] == "fiedler_value"].iloc[0]


def test_all_metrics_of_a_padded_pair(model, inputs):
    """Whatever a model gives: no metric refuses, and the rows of squares are those without cross rows."""
    results = asc.analyze(model, inputs)
    assert set(results["heads"]["attention"]) == {"encoder", "decoder", "cross"}
    squares = results["heads"].query("attention == 'encoder'")
    of_encoder = asc.analyze(model, {name: inputs[name] for name in ("input_ids", "attention_mask")})["heads"]
    for column in ("entropy", "fiedler_value", "stable_rank"):
        np.testing.assert_array_equal(squares[column], of_encoder[column])


def test_words_read_frames_and_object_queries_read_a_picture():
    speech, processor = whisper()
    heads = asc.analyze(speech, (sound(), "the cat"), "attention_entropy", processor=processor)["heads"]
    rows = heads[heads["attention"] == "cross"]
    assert set(rows["n_queries"]) == {2}
    assert set(rows["n_tokens"]) == set(heads[heads["attention"] == "encoder"]["n_tokens"])
    detector, processor = detr()
    heads = asc.analyze(detector, picture(), "attention_entropy", processor=processor)["heads"]
    assert heads.groupby("layer")["attention"].first().tolist() == [
        *["encoder"] * 2,
        *["decoder"] * 2,
        *["cross"] * 2,
    ]
    assert set(heads[heads["attention"] == "cross"]["n_queries"]) == {5}


def test_a_decoder_alone_that_is_given_states_has_no_encoder():
    """Its own attention, which is causal, was called the encoder's."""
    config = GPT2Config(vocab_size=30, n_embd=16, n_layer=2, n_head=2, add_cross_attention=True)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config).eval()
    draws = torch.Generator().manual_seed(1)
    inputs = {
        "input_ids": torch.randint(3, 30, (2, 5), generator=draws),
        "encoder_hidden_states": torch.randn(2, 7, 16, generator=draws),
        "encoder_attention_mask": mask((7, 4)),
    }
    heads = asc.analyze(model, inputs, ["attention_entropy", "stable_rank"])["heads"]
    assert heads.groupby("layer")["attention"].first().tolist() == ["decoder"] * 2 + ["cross"] * 2
    cross = heads[heads["attention"] == "cross"]
    assert cross.groupby("sample")[["n_queries", "n_tokens"]].first().values.tolist() == [[5, 7], [5, 4]]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        layers = model(**inputs, output_attentions=True).cross_attentions
    for sample, keys in enumerate((7, 4)):
        maps = torch.stack([layer[sample, ..., :keys] for layer in layers])
        rows = cross[cross["sample"] == sample].sort_values(["layer", "head"])
        expected = asc.stable_rank(maps, cross=True).flatten()
        np.testing.assert_allclose(rows["stable_rank"], expected, rtol=1e-5)


def test_features_and_pages_of_such_results(model, inputs):
    results = asc.analyze(model, inputs, ["attention_entropy", "fiedler_value"])
    assert {"attention", "layer", "head"} <= set(results.to_xarray().dims)
    contents = asc.view(results).contents
    assert contents["layers"] == list(range(8))


@pytest.mark.parametrize("side", ["behind", "in front"])
def test_a_captured_layer_leaves_out_the_queries_of_padding_as_analyses_do(model, inputs, side):
    if side == "in front":
        inputs = {**inputs, "decoder_attention_mask": inputs["decoder_attention_mask"].flip(1)}
    metrics = ["attention_entropy", "sink_share", "incoming_attention"]
    heads = asc.analyze(model, inputs, metrics)["heads"]
    with asc.capture(model) as recording:
        layers = [layer for layer in recording.run(**inputs) if layer.cross]
    assert len(layers) == 3
    for layer in layers:
        assert layer.query_valid.sum(-1).tolist() == list(QUERIES)
        of_layer = heads[(heads["attention"] == "cross") & (heads["layer"] == 5 + layer.index)]
        of_layer = of_layer.sort_values(["sample", "head"])
        result = layer.measure(metrics)
        entropy = result["attention_entropy"].nanmean(-1).flatten()
        np.testing.assert_allclose(of_layer["entropy"], entropy, rtol=1e-9)
        np.testing.assert_allclose(of_layer["sink_share"], result["sink_share"].share.flatten(), rtol=1e-9)


def test_queries_without_a_mask_are_all_real(model, inputs):
    inputs = {name: value for name, value in inputs.items() if name != "decoder_attention_mask"}
    with asc.capture(model) as recording:
        layers = [layer for layer in recording.run(**inputs) if layer.cross]
    assert layers
    assert all(layer.query_valid is None for layer in layers)
