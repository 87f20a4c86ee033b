# SPDX-License-Identifier: MIT
"""All that a forward pass takes reaches the model from analyze and view: each case against capture's maps."""

import numpy as np
import pandas as pd
import pytest
import torch
import transformers

import attnscope as asc
from attnscope.models import LoadError
from folders import tokenizer
from models import text, tiny

IDS = torch.tensor([[2, 10, 11, 12, 3, 20, 21, 22, 3]])
SMALL = dict(vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)


def build(kind, factor=6.0, **changes):
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**{**SMALL, **changes})
    model = getattr(transformers, f"{kind}Model")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)
    return model


def captured(model, inputs):
    """The Fiedler value of each self-attention layer's heads [layers][batch, heads], by capture alone."""
    with asc.capture(model) as recording, torch.no_grad():
        return [
            layer.measure("fiedler_value")["fiedler_value"]
            for layer in recording.run(**inputs)
            if not layer.cross
        ]


def analyzed(results):
    heads = results["heads"].sort_values(["layer", "sample", "head"])
    return [group["fiedler_value"].to_numpy() for _, group in heads.groupby("layer")]


SEGMENTS = torch.tensor([[0] * 5 + [1] * 4])
BOXES = torch.randint(0, 1000, (1, 9, 4), generator=torch.Generator().manual_seed(2)).sort(-1).values
CASES = {
    "segments": ("Bert", {}, {"token_type_ids": SEGMENTS}),
    "boxes": ("LayoutLM", {}, {"bbox": BOXES}),
    "packed texts": ("Llama", {}, {"position_ids": torch.tensor([[0, 1, 2, 3, 0, 1, 0, 1, 2]])}),
    "a mask of queries by keys": (
        "Llama",
        {},
        {"attention_mask": torch.ones(9, 9).tril().triu(-3).bool()[None, None]},
    ),
    "languages": ("XLM", dict(emb_dim=32, n_layers=1, n_heads=2, n_langs=3), {"langs": SEGMENTS}),
}


@pytest.mark.parametrize("case", CASES)
def test_what_the_forward_pass_takes_reaches_the_model(case):
    kind, changes, further_inputs = CASES[case]
    if kind == "XLM":
        changes = {**changes, "n_words": 60}
    model = build(kind, **changes)
    inputs = {"input_ids": IDS, **further_inputs}
    results = asc.analyze(model, inputs, ["fiedler_value"])
    want = captured(model, inputs)
    for got, values in zip(analyzed(results), want, strict=True):
        np.testing.assert_allclose(got, values.flatten(), rtol=1e-6)
    without = captured(model, {"input_ids": IDS})
    assert not torch.allclose(want[0], without[0], rtol=1e-3)  # the input matters for this model
    page = asc.view(model, inputs)
    at = next(
        place for place, metric in enumerate(page.contents["metrics"]) if metric["name"] == "fiedler_value"
    )
    np.testing.assert_allclose(page.contents["values"][0][0][at][0], want[0][0], rtol=1e-4)
    again = asc.view(results, sample=0)  # the results remember what the sample was read with
    assert again.contents["maps"][0]["entries"] == page.contents["maps"][0]["entries"]


def test_texts_of_one_mapping_are_cut_and_padded_with_all_that_is_theirs():
    """Twelve texts of two lengths: those of a length share a pass, and each has its own segments."""
    model = build("Bert", max_position_embeddings=9)
    draw = torch.Generator().manual_seed(5)
    rows = [torch.randint(5, 60, (12 if at % 2 else 6,), generator=draw).tolist() for at in range(12)]
    segments = [torch.randint(0, 2, (len(row),), generator=draw).tolist() for row in rows]
    with pytest.warns(RuntimeWarning, match="6 of 12 texts were longer than 9 tokens and are cut"):
        results = asc.analyze(model, {"input_ids": rows, "token_type_ids": segments}, ["fiedler_value"])
    samples = results["samples"]
    assert samples["n_tokens"].tolist() == [6, 9] * 6
    assert samples["truncated"].tolist() == [False, True] * 6
    for at, (ids, kinds) in enumerate(zip(rows, segments, strict=True)):
        want = captured(
            model,
            {"input_ids": torch.tensor([ids[:9]]), "token_type_ids": torch.tensor([kinds[:9]])},
        )
        got = results["heads"].query(f"sample == {at}")["fiedler_value"]
        np.testing.assert_allclose(got, want[0].flatten(), rtol=1e-4)


def test_pairs_have_their_segments():
    from tokenizers import processors

    reader = tokenizer()
    reader.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    reader.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    model = build("Bert")
    pair = ("the cat sat", "it went home")
    encoding = reader(*pair, return_tensors="pt")
    assert encoding["token_type_ids"].any()
    results = asc.analyze(model, [pair], ["fiedler_value"], tokenizer=reader)
    np.testing.assert_allclose(analyzed(results)[0], captured(model, encoding)[0].flatten(), rtol=1e-6)
    assert results["samples"]["tokens"][0].tolist()[4:6] == ["</s>", "it"]


def test_images_and_embeddings_are_measured_with_places_and_numbers_for_tokens():
    vision = dict(image_size=12, patch_size=4)
    vit = transformers.ViTModel(transformers.ViTConfig(**{**SMALL, **vision})).eval()
    pixels = {"pixel_values": torch.randn(2, 3, 12, 12)}
    results = asc.analyze(vit, pixels, ["fiedler_value"])
    np.testing.assert_allclose(analyzed(results)[0], captured(vit, pixels)[0].flatten(), rtol=1e-6)
    patches = [f"patch ({row}, {column})" for row in range(3) for column in range(3)]
    assert results["samples"]["tokens"][1].tolist() == ["CLS", *patches]
    assert results["samples"]["n_tokens"].tolist() == [10, 10]
    assert results["samples"]["token_ids"].map(len).tolist() == [0, 0]
    assert len(asc.view(vit, {"pixel_values": pixels["pixel_values"][:1]}).contents["maps"]) == 2
    llama = build("Llama")
    states = {"inputs_embeds": torch.randn(1, 5, 32)}
    results = asc.analyze(llama, states, ["fiedler_value"])
    np.testing.assert_allclose(analyzed(results)[0], captured(llama, states)[0].flatten(), rtol=1e-6)
    assert results["samples"]["tokens"][0].tolist() == [str(place) for place in range(5)]


def test_a_decoder_with_a_text_is_measured_behind_its_encoder():
    model = tiny("bart")
    inputs = text(model, batch=1, n=9)
    results = asc.analyze(model, inputs, ["fiedler_value", "sink_position"])
    heads = results["heads"]
    assert heads.groupby("layer")["n_tokens"].first().tolist() == [9, 9, 11, 11, 9, 9]
    kinds = ["encoder", "encoder", "decoder", "decoder", "cross", "cross"]
    assert heads.groupby("layer")["attention"].first().tolist() == kinds
    *of_squares, _, _ = analyzed(results)
    for got, values in zip(of_squares, captured(model, inputs), strict=True):
        np.testing.assert_allclose(got, values.flatten(), rtol=1e-5)
    text_results = asc.analyze(model, {"input_ids": inputs["input_ids"]}, ["fiedler_value"])
    assert sorted(set(text_results["heads"]["layer"])) == [0, 1]
    assert "attention" not in text_results["heads"]


def test_cross_attention_is_no_map_of_tokens_by_the_same_tokens():
    """A graph of it is refused with its sizes, and view shows its matrices without numbers of graphs."""
    model = tiny("bart")
    inputs = text(model, batch=1, n=9)
    with asc.capture(model) as recording, torch.no_grad():
        for layer in recording.run(**inputs):
            if layer.cross:
                with pytest.raises(ValueError, match=r"fiedler_value: .* 11 queries x 9 keys"):
                    layer.measure("fiedler_value")
    page = asc.view(model, inputs).contents
    assert page["inputs"] == ["encoder", "decoder", "cross"]
    cross = [page_map for page_map in page["maps"] if page_map["input"] == 2]
    assert {(len(page_map["tokens"]), len(page_map["queries"])) for page_map in cross} == {(9, 11)}
    names = [metric["name"] for metric in page["metrics"]]
    assert all(cell is None for row in page["values"][0][2][names.index("fiedler_value")] for cell in row)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_with_segments_leaves_the_numbers_of_the_layer(side):
    """What cannot be taken apart from its padding is run as it came, and measured without padding."""
    model = build("Bert")
    ids = torch.randint(5, 60, (2, 12), generator=torch.Generator().manual_seed(7))
    mask = torch.ones_like(ids)
    mask[1, : 4 if side == "left" else None][-4 if side == "right" else 0 :] = 0
    segments = (torch.arange(12) > 5).long().expand(2, 12)
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
    results = asc.analyze(model, inputs, ["fiedler_value", "attention_entropy"])
    assert results["samples"]["n_tokens"].tolist() == [12, 8]
    with asc.capture(model) as recording, torch.no_grad():
        layer = next(iter(recording.run(**inputs)))
        measured = layer.measure(["fiedler_value", "attention_entropy"])
    heads = results["heads"].sort_values(["sample", "head"])
    for column, values in (
        ("fiedler_value", measured["fiedler_value"]),
        ("entropy", measured["attention_entropy"].nanmean(-1)),
    ):
        np.testing.assert_allclose(heads[column], values.flatten(), rtol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "options", "words"),
    [
        ({"input_ids": IDS, "bbox": BOXES}, {}, "LlamaModel takes no bbox; it takes attention_mask,"),
        ({"input_ids": IDS, "token_type_ids": SEGMENTS}, {}, "LlamaModel takes no token_type_ids"),
        ({"tokens": [[1, 2]]}, {}, "a mapping of inputs needs input_ids, .* got tokens|which column"),
        (
            {"inputs": IDS, "attention_mask": IDS},
            {},
            "a mapping of inputs needs input_ids, .* got inputs, att",
        ),
        (
            {"input_ids": IDS, "attention_mask": torch.ones(1, 4)},
            {},
            r"attention_mask must have shape \(1, 9\)",
        ),
        ({"input_ids": IDS[None]}, {}, r"input_ids must have shape \[texts, tokens\], got \(1, 1, 9\)"),
        ({"input_ids": IDS.float()}, {}, "input_ids must be integers, got torch.float32"),
        (torch.rand(1, 9), {}, r"must hold token ids .* got shape \(1, 9\) of torch.float32"),
        (["a cat", 5], {}, "input 1 must be a sentence or a list of token ids, got 5"),
        (b"a cat", {}, "inputs must be sentences, token ids, .* got bytes"),
        (pd.DataFrame({"a": ["x"], "b": ["y"]}), {}, "which column of the DataFrame holds the texts"),
        (pd.DataFrame({"a": ["x"]}), {"column": "c"}, "the DataFrame has no column 'c', only a"),
        (["x"], {"column": "c"}, "column 'c' goes with a table, got list"),
        ([{"role": "user", "content": "a"}], {}, "has no chat template for a conversation of 1 messages"),
        (__file__, {}, "inputs is a path, .*read the file first"),
    ],
)
def test_what_cannot_be_handed_on_is_refused_by_name(inputs, options, words):
    model = build("Llama")
    with pytest.raises(ValueError, match=f"analyze: .*({words})"):
        asc.analyze(model, inputs, ["fiedler_value"], tokenizer=tokenizer(), **options)


def test_segments_of_zeros_say_nothing_and_are_dropped():
    model = build("Llama")
    zeros = {"input_ids": IDS, "token_type_ids": torch.zeros_like(IDS), "special_tokens_mask": IDS}
    plain = asc.analyze(model, IDS, ["fiedler_value"])["heads"]
    pd.testing.assert_frame_equal(asc.analyze(model, zeros, ["fiedler_value"])["heads"], plain)


TEXTS = ["the cat sat", "rain fell over the old town"]


@pytest.mark.parametrize(
    "inputs",
    [
        pd.Series(TEXTS),
        pd.DataFrame({"text": TEXTS, "label": ["a", "b"]}),
        pd.DataFrame({"label": [0, 1], "words": TEXTS}),
        {"sentence": TEXTS, "label": [0, 1]},
        np.array(TEXTS),
        (line for line in TEXTS),
    ],
    ids=["series", "text", "the only texts", "columns", "array", "generator"],
)
def test_columns_of_texts_are_the_texts_themselves(inputs):
    results = asc.analyze(build("Llama"), inputs, ["fiedler_value"], tokenizer=tokenizer())
    assert results["samples"]["text"].tolist() == TEXTS


def test_a_data_set_and_a_conversation_are_read():
    datasets = pytest.importorskip("datasets")
    model, reader = build("Llama"), tokenizer()
    data = datasets.Dataset.from_dict({"content": TEXTS, "label": [0, 1]})
    results = asc.analyze(model, data, ["fiedler_value"], tokenizer=reader)
    assert results["samples"]["text"].tolist() == TEXTS
    encoded = data.map(lambda row: {"input_ids": reader(row["content"])["input_ids"]})
    assert asc.analyze(model, encoded, ["fiedler_value"])["samples"]["n_tokens"].tolist() == [4, 7]
    reader.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    messages = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]
    results = asc.analyze(model, messages, ["fiedler_value"], tokenizer=reader)
    assert results["samples"]["tokens"][0].tolist()[-3:] == ["the", "cat", "sat"]


def test_an_argument_in_the_place_of_another_is_named():
    model = build("Llama")
    with pytest.raises(
        TypeError, match=r"analyze: the first argument must be a model, got a tensor of shape"
    ):
        asc.analyze(torch.ones(2, 4, 4), IDS)
    with pytest.raises(
        TypeError, match=r"analyze: metrics must be names, got a .*Tokenizer.*tokenizer=\.\.\."
    ):
        asc.analyze(model, IDS, tokenizer())
    held = type("Pipeline", (), {"model": model})()
    with pytest.raises(TypeError, match=r"analyze: model must be .* got Pipeline; .* may be its \.model"):
        asc.analyze(held, IDS, ["fiedler_value"])
    results = asc.analyze(model, IDS, ["fiedler_value"], layers=0)
    assert set(results["heads"]["layer"]) == {0}


def test_a_model_whose_maps_are_no_squares_says_so():
    longformer = build("Longformer", max_position_embeddings=64, attention_window=[4])
    with pytest.raises(LoadError, match=r"LongformerModel.*(no layer gave a map|captured|square)"):
        asc.analyze(longformer, IDS, ["fiedler_value"])
    needs = transformers.LxmertModel(
        transformers.LxmertConfig(
            vocab_size=60,
            hidden_size=32,
            num_attention_heads=4,
            intermediate_size=32,
            l_layers=1,
            x_layers=1,
            r_layers=1,
            visual_feat_dim=8,
        )
    ).eval()
    with pytest.raises((LoadError, ValueError), match="visual_feats"):
        asc.analyze(needs, IDS, ["fiedler_value"])


def test_layers_with_numbers_of_heads_of_their_own():
    """A configuration that differs by layer has no number of heads: the largest one bounds the memory."""
    from attnscope.models.architecture import largest_setting

    config = transformers.LlamaConfig(**{**SMALL, "num_hidden_layers": 2})
    try:
        config.per_layer_config = {1: {"num_attention_heads": 4}}
    except (AttributeError, TypeError) as error:
        pytest.skip(f"this transformers has no configurations by layer: {error}")
    with pytest.raises(RuntimeError, match="per-layer attribute"):
        _ = config.num_attention_heads
    assert largest_setting(config, "num_attention_heads", 1) == 4
    assert largest_setting(config, "hidden_size", 1) == 32
