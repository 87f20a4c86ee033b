# SPDX-License-Identifier: MIT
"""Lazy capture: the model's own attention runs, and its queries and keys give the maps of eager attention."""

import subprocess
import sys
import textwrap

import pytest
import torch
import transformers

import attnscope as asc
from attnscope.capture.lazy import lazy_recording
from models import enlarged

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 8}
T5 = {"vocab_size": 64, "d_model": 32, "d_ff": 32, "num_layers": 2, "num_heads": 4, "d_kv": 8}
GPT2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 1}
WINDOW = {**GROUPED, "sliding_window": 7}
SOFTCAP = {**WINDOW, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8}
EXPERTS = {**WINDOW, "num_local_experts": 2, "num_experts_per_tok": 1, "eos_token_id": 1, "pad_token_id": 0}
LOCAL = {
    **SMALL,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "cls_token_id": 1,
    "sep_token_id": 1,
}
MODELS = {
    "grouped queries": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "window": ("MistralForCausalLM", "MistralConfig", WINDOW),
    "softcap": ("Gemma2ForCausalLM", "Gemma2Config", SOFTCAP),
    "window and global": ("Gemma3ForCausalLM", "Gemma3TextConfig", {**WINDOW, "query_pre_attn_scalar": 8}),
    "learned sink": ("GptOssForCausalLM", "GptOssConfig", EXPERTS),
    "full": ("BertModel", "BertConfig", SMALL),
    "older": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "bias of positions": ("T5EncoderModel", "T5Config", T5),
    "window on both sides": ("ModernBertModel", "ModernBertConfig", {**LOCAL, "local_attention": 8}),
}


def build(name):
    return enlarged(*MODELS[name])


def inputs_with(padding):
    ids = torch.randint(3, 60, (2, 24), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(2, 24, dtype=torch.long)
    if padding == "behind":
        mask[1, 15:] = 0
    if padding == "in front":
        mask[1, :9] = 0
    return {"input_ids": ids, "attention_mask": mask}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("padding", ["none", "behind", "in front"])
@pytest.mark.parametrize("name", MODELS)
def test_attention_is_that_of_eager_attention(name, padding):
    model, inputs = build(name), inputs_with(padding)
    with asc.capture(model) as recording:
        maps = [layer.matrices().double() for layer in recording.run(**inputs)]
        output = recording.output[0]
    before = model.config._attn_implementation
    with asc.capture(model, lazy=True, precision="exact") as recording:
        layers = list(recording.run(**inputs))
        lazy_output = recording.output[0]
    assert model.config._attn_implementation == before
    assert [layer.index for layer in layers] == [0, 1]
    lengths = inputs["attention_mask"].sum(-1)
    for layer, expected in zip(layers, maps, strict=True):
        assert torch.equal(layer.lengths, lengths)
        dense = layer.attention.dense()
        for text, length in enumerate(lengths.tolist()):
            part = dense[text, :, :length, :length]
            torch.testing.assert_close(part, expected[text, :, :length, :length], rtol=0, atol=2e-5)
    real = inputs["attention_mask"].bool()
    torch.testing.assert_close(lazy_output[real], output[real], rtol=1e-4, atol=1e-4)


def test_what_changes_scores_is_taken_from_the_model():
    attention = {
        name: next(iter(_layers(build(name)))).attention for name in ("window", "softcap", "learned sink")
    }
    assert attention["window"].window == 7
    assert attention["softcap"].softcap == 2.0
    assert attention["learned sink"].sink_logits.shape == (4,)
    assert attention["window"].key.shape[1] == 2
    assert bool((attention["learned sink"].sink_mass > 0).all())


def test_a_window_on_both_sides_takes_no_mask():
    """ModernBERT's local layers see half of their width on either side, 4 of 8."""
    _, local = (layer.attention for layer in _layers(build("window on both sides"))[:2])
    assert (local.window, local.after, local.visibility.mask) == (5, 4, None)


def _layers(model, **options):
    with asc.capture(model, lazy=True, **options) as recording:
        return list(recording.run(**inputs_with("none")))


def test_output_of_plain_attention_is_the_models_own_to_the_bit():
    model, inputs = build("grouped queries"), inputs_with("none")
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        expected = model(**inputs, use_cache=False).logits
    with asc.capture(model, lazy=True) as recording:
        for layer in recording.run(**inputs):
            assert isinstance(layer.attention, asc.LazyAttention)
    assert torch.equal(recording.output.logits, expected)


@pytest.mark.parametrize("name", ["grouped queries", "full"])
def test_padding_behind_a_text_leaves_the_output_of_its_tokens_as_it_is(name):
    """By the model's own attention: no second attention is computed for the sake of padding."""
    model, inputs = build(name), inputs_with("behind")
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        expected = model(**inputs)[0]
    with (
        pytest.MonkeyPatch.context() as patch,
        asc.capture(model, lazy=True) as recording,
    ):
        patch.setattr(lazy_recording, "_multiply", None)
        list(recording.run(**inputs))
    real = inputs["attention_mask"].bool()
    assert not bool(real.all())
    torch.testing.assert_close(recording.output[0][real], expected[real], rtol=1e-5, atol=1e-5)


class SilentAttention(torch.nn.Module):
    """Attention that computes its weights itself, and draws random numbers."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, hidden_states, **options):
        del options
        torch.rand(1)
        weights = (hidden_states @ hidden_states.transpose(-1, -2)).softmax(-1)
        return weights @ hidden_states, None


def test_modules_that_keep_their_queries_are_found_in_one_pass_that_leaves_no_trace():
    model, inputs = build("grouped queries"), {"input_ids": torch.arange(3, 11)[None]}
    assert lazy_recording.modules_without_queries(model, inputs) == []
    model.model.layers[1].self_attn = SilentAttention(model.model.layers[1].self_attn)
    model.train()
    state = torch.random.get_rng_state()
    assert lazy_recording.modules_without_queries(model, inputs) == ["model.layers.1.self_attn"]
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(module.training for module in model.modules())


def test_layers_and_heads_are_chosen():
    model = build("grouped queries")
    all_layers = _layers(model, precision="exact")
    (layer,) = _layers(model, layers=[-1], heads=[3, 0], precision="exact")
    assert (layer.index, layer.heads) == (1, (3, 0))
    torch.testing.assert_close(layer.attention.dense(), all_layers[1].attention.dense()[:, [3, 0]])


def test_measure_equals_that_of_the_ordinary_capture():
    model, inputs = build("grouped queries"), inputs_with("in front")
    metrics = ["attention_entropy", "incoming_attention", "sink_share"]
    with asc.capture(model) as recording:
        expected = [layer.measure(metrics) for layer in recording.run(**inputs)]
    with asc.capture(model, lazy=True) as recording:
        results = [layer.measure(metrics) for layer in recording.run(**inputs)]
    for ours, theirs in zip(results, expected, strict=True):
        torch.testing.assert_close(
            ours["attention_entropy"], theirs["attention_entropy"], rtol=1e-4, atol=1e-4, equal_nan=True
        )
        torch.testing.assert_close(ours["sink_share"].share, theirs["sink_share"].share, rtol=1e-4, atol=1e-5)


def test_an_unknown_argument_is_refused_by_name(monkeypatch):
    from attnscope.capture.lazy import lazy_recording

    model = build("grouped queries")
    plain = lazy_recording.attention_function

    def with_gate(*arguments, **options):
        return plain(*arguments, gate=torch.ones(1), **options)

    lazy_recording.register()
    transformers.AttentionInterface.register(lazy_recording.NAME, with_gate)
    try:
        with pytest.raises(NotImplementedError, match=r"unknown to lazy capture: \{'gate': 'Tensor'\}"):
            _layers(model)
    finally:
        transformers.AttentionInterface.register(lazy_recording.NAME, plain)


def test_models_and_options_that_do_not_fit_are_refused():
    bloom = transformers.BloomModel(
        transformers.BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=4)
    )
    with pytest.raises(RuntimeError, match="did not call its attention through transformers' interface"):
        _layers(bloom.eval())
    with pytest.raises(ValueError, match="neither sites nor chunk"):
        asc.capture(bloom, lazy=True, sites=("value",))
    with pytest.raises(ValueError, match="precision belongs to lazy=True"):
        asc.capture(bloom, precision="exact")
    with asc.capture(bloom.train(), lazy=True):
        assert not any(module.training for module in bloom.modules())
    assert bloom.training
    recording = asc.capture(bloom.eval(), lazy=True)
    with pytest.raises(RuntimeError, match="recording is closed"):
        recording.run(input_ids=torch.ones(1, 3, dtype=torch.long))


def test_padding_inside_a_text_with_a_window_is_refused():
    inputs = inputs_with("none")
    inputs["attention_mask"][0, 10] = 0
    with (
        pytest.raises(NotImplementedError, match="not inside it"),
        asc.capture(build("window"), lazy=True) as recording,
    ):
        list(recording.run(**inputs))


MEMORY = """
    import resource, torch, transformers, attnscope as asc
    config = transformers.MistralConfig(
        vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=16384, sliding_window={window})
    model = transformers.MistralModel(config).eval()
    if {two_sided}:
        config = transformers.ModernBertConfig(
            vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=16384, local_attention=1000, pad_token_id=0, bos_token_id=1,
            eos_token_id=1, cls_token_id=1, sep_token_id=1)
        model = transformers.ModernBertModel(config).eval()
    if {padded}:
        config = transformers.BertConfig(
            vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            max_position_embeddings=16384)
        model = transformers.BertModel(config).eval()
    ids = torch.randint(0, 64, (1, 16384))
    def measure(inputs):
        with asc.capture(model, lazy=True) as recording:
            mask = torch.ones_like(inputs)
            mask[:, -50:] = 1 - {padded}
            for layer in recording.run(input_ids=inputs, attention_mask=mask):
                layer.measure(["attention_entropy", "incoming_attention", "sink_test"])
    measure(ids[:, :512])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    measure(ids)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("window", "two_sided", "padded"), [(None, 0, 0), (1000, 0, 0), (None, 1, 0), (None, 0, 1)]
)
def test_nothing_of_the_size_of_a_map_is_allocated(window, two_sided, padded):
    """One head's map of 16,384 tokens has 268 million entries: 262,144 KB as booleans."""
    script = textwrap.dedent(MEMORY.format(window=window, two_sided=two_sided, padded=padded))
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(finished.stdout) < 131_072


ENCODER_DECODERS = {
    "bias of positions": ("T5ForConditionalGeneration", "T5Config", {**T5, "decoder_start_token_id": 0}),
    "learned positions": (
        "BartForConditionalGeneration",
        "BartConfig",
        {
            **{
                f"{side}_{name}": size
                for side in ("encoder", "decoder")
                for name, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 32))
            },
            "vocab_size": 64,
            "d_model": 32,
        },
    ),
}


@pytest.mark.filterwarnings("ignore:capture. attention holds padding")
@pytest.mark.parametrize("decoder_padding", ["none", "left", "right"])
@pytest.mark.parametrize("queries", [6, 9])
@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_cross_attention_is_that_of_the_ordinary_capture(name, padding, queries, decoder_padding):
    """The decoder's tokens have no part in the padding of the encoder's, as many as these or not."""
    torch.manual_seed(0)
    model_name, config, options = ENCODER_DECODERS[name]
    model = getattr(transformers, model_name)(getattr(transformers, config)(**options)).eval()
    mask = torch.ones(2, 9, dtype=torch.int64)
    mask[1, slice(0, 4) if padding == "left" else slice(5, 9)] = int(padding == "none")
    ids = torch.randint(3, 64, (2, 9), generator=torch.Generator().manual_seed(1))
    inputs = {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids[:, :queries]}
    real_queries = torch.ones(2, queries, dtype=torch.int64)
    if decoder_padding != "none":
        real_queries[0, slice(0, 2) if decoder_padding == "left" else slice(queries - 2, queries)] = 0
        inputs["decoder_attention_mask"] = real_queries
    metrics = ["attention_entropy", "incoming_attention", "sink_share", "top_mass"]
    with torch.no_grad():
        with asc.capture(model) as recording:
            layers = list(recording.run(**inputs))
        with asc.capture(model, lazy=True, precision="exact") as recording:
            lazy_layers = list(recording.run(**inputs))
        logits = recording.output.logits
        real = real_queries.bool()
        torch.testing.assert_close(logits[real], model(**inputs).logits[real], rtol=1e-4, atol=1e-5)
    assert [(layer.stack, layer.index, layer.cross) for layer in layers] == [
        (layer.stack, layer.index, layer.cross) for layer in lazy_layers
    ]
    for layer, lazy in zip(layers, lazy_layers, strict=True):
        measured = lazy.measure(metrics)
        for key, expected in layer.measure(metrics).items():
            for ours, theirs in zip(*map(_tensors, (measured[key], expected)), strict=True):
                part = ours[..., : theirs.shape[-1]]  # the ordinary capture cuts where the longest text ends
                torch.testing.assert_close(part, theirs, rtol=1e-3, atol=1e-5, equal_nan=True)
        if layer.cross:
            parts = zip(layer.attention, real_queries.bool(), layer.valid, strict=True)
            real_pairs = [maps[:, rows][:, :, keys] for maps, rows, keys in parts]
            for dense, expected in zip(lazy.attention.dense().float(), real_pairs, strict=True):
                rows, keys = expected.shape[1:]
                torch.testing.assert_close(dense[:, :rows, :keys], expected, rtol=1e-3, atol=1e-6)
                assert not dense[:, :rows, keys:].any()
                assert dense[:, rows:].isnan().all()
            for metric in ("sink_test", "sink_position", "local_global_ratio", "causal_spectrum"):
                with pytest.raises(ValueError, match=rf"^measure: {metric} asks where queries stand"):
                    lazy.measure([metric])
            lazy.measure({"sink_position": {"rule": "largest"}})


@pytest.mark.filterwarnings("ignore:capture. attention holds padding")
@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("padding", ["none", "in front", "behind"])
@pytest.mark.parametrize("name", ["grouped queries", "window"])
def test_the_last_tokens_of_a_cached_text_are_those_of_the_ordinary_capture(name, padding, cache, queries):
    """Queries stand at the last keys of their text, whatever a cache holds, dropped or has room for."""
    is_transformers_4 = transformers.__version__.startswith("4.")
    if (name, cache, queries) == ("window", "static", 5) and is_transformers_4:
        pytest.skip(f"static windows of transformers {transformers.__version__} take one token at a time")
    model, inputs = build(name), inputs_with(padding)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    metrics = {"attention_entropy": {}, "sink_share": {}, "top_mass": {}, "sink_test": {}, "sink_excess": {}}
    results = []
    for options in ({}, {"lazy": True, "precision": "exact"}):
        if cache == "dynamic":
            past = transformers.DynamicCache(config=model.config)
        else:
            past = transformers.StaticCache(config=model.config, max_cache_len=30)
        with torch.no_grad():
            first = {"input_ids": ids[:, :-queries], "attention_mask": mask[:, :-queries]}
            model(**first, past_key_values=past, use_cache=True)
        last = {"input_ids": ids[:, -queries:], "attention_mask": mask, "past_key_values": past}
        with asc.capture(model, **options) as recording:
            layers = list(recording.run(**last))
        if padding == "behind" and queries == 1:  # the second text has no query
            results.append([(layer.valid, {}) for layer in layers])
            continue
        results.append([(layer.valid, layer.measure(metrics)) for layer in layers])
    for (valid, expected), (lazy_valid, measured) in zip(*results, strict=True):
        assert torch.equal(valid, lazy_valid)
        for key in expected:
            for ours, theirs in zip(*map(_tensors, (measured[key], expected[key])), strict=True):
                part = ours[..., : theirs.shape[-1]]
                torch.testing.assert_close(part, theirs, rtol=1e-3, atol=1e-4, equal_nan=True)


def _tensors(result):
    return [result] if isinstance(result, torch.Tensor) else list(result)


def test_the_mass_of_a_learned_sink_comes_from_the_layer():
    model = build("learned sink")
    inputs = inputs_with("left")
    metrics = {
        "attention_entropy": {},
        "normalized": {"metric": "attention_entropy", "normalized": True},
        "head_divergence": {},
        "sink_share": {},
        "top_mass": {},
    }
    with torch.no_grad():
        with asc.capture(model) as recording:
            expected = [layer.measure(metrics) for layer in recording.run(**inputs)]
        with asc.capture(model, lazy=True, precision="exact") as recording:
            measured = [layer.measure(metrics) for layer in recording.run(**inputs)]
    for ours, theirs in zip(measured, expected, strict=True):
        for key in metrics:
            for lazily, eagerly in zip(*map(_tensors, (ours[key], theirs[key])), strict=True):
                torch.testing.assert_close(
                    lazily[..., : eagerly.shape[-1]], eagerly, rtol=1e-3, atol=1e-4, equal_nan=True
                )
        assert (ours["sink_share"].learned > 0.05).all()
