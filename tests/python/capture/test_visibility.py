# SPDX-License-Identifier: MIT
"""Layers of different kinds in one model: who sees whom, and metrics against loops over those keys."""

import warnings

import numpy as np
import pytest
import torch

import attnscope as asc
import models
from attnscope.capture import capture

KINDS = models.LAYER_KINDS


def inputs_of(padding, lengths=(30, 19), n=30):
    generator = torch.Generator().manual_seed(4)
    ids = torch.randint(3, models.VOCABULARY, (len(lengths), n), generator=generator)
    mask = torch.zeros_like(ids)
    for row, size in enumerate(lengths):
        mask[row, (slice(n - size, n) if padding == "left" else slice(0, size))] = 1
    return {"input_ids": torch.where(mask.bool(), ids, 0), "attention_mask": mask}


def layers_of(name, padding, sites=("attention",)):
    with capture(models.tiny(name), sites=sites) as recording:
        return list(recording.run(**inputs_of(padding)))


def seen_by(kind, n):
    """The visible pairs of one text, from the kind's words."""
    back = np.subtract.outer(np.arange(n), np.arange(n))
    return {
        "causal": back >= 0,
        "full": back < n,
        "window 7": (back >= 0) & (back < 7),
        "window 7+7": np.abs(back) <= 7,
    }[kind]


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("name", KINDS)
def test_every_layer_knows_who_sees_whom(name, padding):
    layers = layers_of(name, padding)
    assert [layer.visibility.name for layer in layers] == KINDS[name]
    for layer, kind in zip(layers, KINDS[name], strict=True):
        maps = layer.matrices()
        for text, size in enumerate(layer.lengths.tolist()):
            seen = seen_by(kind, size)
            maps_of_text = maps[text, :, :size, :size].double().numpy()
            # A key outside the support gets exactly nothing, one inside something.
            assert (maps_of_text[:, ~seen] == 0).all()
            assert (maps_of_text[:, seen] > 0).all()


@pytest.mark.parametrize("name", KINDS)
def test_metrics_of_each_layer_are_those_of_its_own_keys(name):
    """Entropies, uniform shares, incoming attention and the sink test, by loops over the visible keys."""
    for layer, kind in zip(layers_of(name, "right"), KINDS[name], strict=True):
        maps, lengths, support = layer.matrices(), layer.lengths[:, None], layer.visibility.support
        learned = layer.states("sink_mass")
        mass = learned if bool(learned.any()) else None
        options = {"support": support, "lengths": lengths}
        share = asc.sink_share(maps, sink_mass=mass, **options)
        entropy = asc.attention_entropy(maps, normalized=True, sink_mass=mass, **options)
        incoming = asc.incoming_attention(maps, **options)
        test = asc.sink_test(maps, **options)
        measured = asc.measure(maps, ["sink_share", "incoming_attention"], **options)
        torch.testing.assert_close(measured["incoming_attention"], incoming, equal_nan=True)
        for text, size in enumerate(layer.lengths.tolist()):
            seen = seen_by(kind, size)
            maps_of_text = maps[text, :, :size, :size].double().numpy()
            learned_mass = (
                np.zeros(maps_of_text.shape[:2]) if mass is None else mass[text, :, :size].double().numpy()
            )
            uniform = np.mean(seen[:, 0] / seen.sum(1))
            np.testing.assert_allclose(share.uniform[text], uniform, rtol=1e-12)
            np.testing.assert_allclose(share.share[text], maps_of_text[:, :, 0].mean(1), rtol=1e-12)
            np.testing.assert_allclose(share.learned[text], learned_mass.mean(1), rtol=1e-12)
            np.testing.assert_allclose(
                incoming[text, :, :size], maps_of_text.sum(1) / seen.sum(0), rtol=1e-12
            )
            outcomes = seen.sum(1) + (mass is not None)
            with np.errstate(divide="ignore", invalid="ignore"):
                sum_p_log_p = np.where(maps_of_text > 0, maps_of_text * np.log(maps_of_text), 0).sum(
                    -1
                ) + np.where(learned_mass > 0, learned_mass * np.log(learned_mass), 0)
                expected = np.where(outcomes > 1, -sum_p_log_p / np.log(outcomes), np.nan)
            np.testing.assert_allclose(entropy[text, :, :size], expected, rtol=1e-9)
            test_of_text = asc.sink_test(maps[text, :, :size, :size], support=torch.as_tensor(seen))
            assert torch.equal(test.sinks[text, :, :size], test_of_text.sinks)
            torch.testing.assert_close(test.excess[text, :, :size], test_of_text.excess, equal_nan=True)


def test_what_a_window_is_when_it_is_read_as_causal():
    """The same map of a window, judged by itself and by its support."""
    n = 64
    back = torch.arange(n)[:, None] - torch.arange(n)
    band = (back >= 0) & (back < 7)
    uniform = band.double() / band.sum(-1, keepdim=True)
    by_itself, with_support = asc.sink_share(uniform), asc.sink_share(uniform, support=band)
    assert with_support.boost.item() == pytest.approx(1, rel=1e-12)
    assert by_itself.boost.item() < 0.6  # uniform attention is read as avoiding the first key
    entropies = [
        asc.attention_entropy(uniform, normalized=True, **options).nanmean()
        for options in ({}, {"support": band})
    ]
    assert entropies[1].item() == pytest.approx(1, rel=1e-9)
    assert entropies[0].item() < 0.7


@pytest.mark.parametrize("sites", [("attention",), ("attention", "lse")])
def test_the_learned_sink_takes_what_rows_leave(sites):
    for layer in layers_of("gpt_oss", "left", sites):
        mass, maps = layer.states("sink_mass").double(), layer.matrices().double()
        for text, size in enumerate(layer.lengths.tolist()):
            rows = maps[text, :, :size, :size].sum(-1) + mass[text, :, :size]
            torch.testing.assert_close(rows, torch.ones_like(rows), rtol=0, atol=1e-5)
    for layer in layers_of("llama", "left"):
        assert not layer.sink_mass.any()


def test_maps_without_a_mask_are_judged_by_themselves():
    from test_capture_layer import make

    layer = make(torch.ones(2, 5))
    assert (layer.visibility.kind, layer.visibility.support) == ("auto", "auto")


def test_a_mask_without_a_rule_is_itself():
    from attnscope.capture.visibility import visibility_of

    seen = torch.rand(2, 1, 6, 6, generator=torch.Generator().manual_seed(0)) < 0.5
    real = [torch.arange(6), torch.tensor([1, 2, 4])]
    visibility = visibility_of(seen, real)
    assert visibility.kind == "mask"
    assert torch.equal(visibility.support[0, 0], seen[0, 0])
    assert torch.equal(visibility.support[1, 0, :3, :3], seen[1, 0][real[1]][:, real[1]])
    assert not visibility.support[1, 0, 3:].any()


def user_mask(batch, n):
    """A mask of the caller's own, boolean [B, 1, n, n]: two texts packed into each sample."""
    text = torch.arange(n) // 20
    seen = torch.ones(n, n).tril().bool() & (text[:, None] == text)
    return seen.expand(batch, 1, n, n).clone()


def must_agree(layer):
    """No mass outside of the support, no entry inside that is zero in all heads and texts."""
    maps, support, lengths = layer.matrices(), layer.visibility.support, layer.lengths.tolist()
    size = maps.shape[-1]
    if isinstance(support, str):
        rows = torch.ones(size, size).bool()
        support = rows.tril() if support == "causal" else rows
    support = support.expand(*maps.shape)
    inside, seen = torch.zeros(size, size).bool(), torch.zeros(size, size).bool()
    for text, length in enumerate(lengths):
        for head in range(maps.shape[1]):
            visible = support[text, head, :length, :length]
            of_head = maps[text, head, :length, :length]
            assert bool((of_head[~visible] == 0).all()), layer
            inside[:length, :length] |= visible
            seen[:length, :length] |= of_head > 0
    assert torch.equal(inside, seen), layer


@pytest.mark.parametrize("name", models.few(models.VISIBLE, (*models.QUICK, "mpt", "openai_gpt", "gpt_neo")))
def test_the_support_of_every_family_agrees_with_its_maps(name):
    """In three paddings; weights are not sharpened, so that no visible entry is too small for float32."""
    model = models.tiny(name, sharpness=1.0)
    for padding in ("none", "left", "right"):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="capture: which keys")
            with capture(model) as recording:
                for layer in recording.run(**models.text(model, padding=padding)):
                    if not layer.cross:
                        assert layer.visibility.kind != "auto"
                        must_agree(layer)


@pytest.mark.parametrize("name", models.few((*models.CAUSAL, "gptj"), ("llama", "mistral", "gptj")))
def test_the_callers_own_mask_is_what_queries_see(name):
    model = models.tiny(name, sharpness=1.0)
    ids = models.text(model)["input_ids"]
    seen = user_mask(*ids.shape)
    if model.config._attn_implementation == "eager":  # which would add a boolean mask
        seen = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    # Without positions OPT counts them along its mask, and fails by itself where that is no mask of padding.
    positions = {"position_ids": torch.arange(ids.shape[1]).expand(*ids.shape)} if name == "opt" else {}
    with capture(model) as recording:
        for layer in recording.run(input_ids=ids, attention_mask=seen, **positions):
            must_agree(layer)
            assert layer.visibility.kind == "mask"


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])
def test_eager_attention_that_adds_a_boolean_mask_is_refused(name, lazy):
    """It hides nothing in the model's own pass; maps that hide keys would be those of another model."""
    model = models.tiny(name, sharpness=1.0)
    model.set_attn_implementation("eager")
    ids = models.text(model)["input_ids"]
    seen = user_mask(*ids.shape)
    maps = model(input_ids=ids, attention_mask=seen, output_attentions=True).attentions[0]
    assert bool((maps[~seen.expand(maps.shape)] > 0).any())
    with (
        capture(model, lazy=lazy) as recording,
        pytest.raises(ValueError, match=r"adds a boolean .*as numbers"),
    ):
        list(recording.run(input_ids=ids, attention_mask=seen))
    numbers = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    with capture(model) as recording:
        expected = model(input_ids=ids, attention_mask=numbers, output_attentions=True).attentions
        for layer in recording.run(input_ids=ids, attention_mask=numbers):
            torch.testing.assert_close(layer.attention, expected[layer.index], rtol=0, atol=1e-6)


def test_heads_that_see_different_keys_are_measured_by_their_own():
    """Hidden keys of one head, and a mask by head: entropy is divided by the log of the head's count."""
    model = models.cached_model("llama")
    ids = models.text(model, batch=1, n=12)["input_ids"]
    with asc.edit(model, asc.edits.HideKeys([0, 1, 2, 3], heads=[1])), capture(model) as recording:
        for layer in recording.run(input_ids=ids):
            must_agree(layer)
            raw, normalised = (
                layer.measure("attention_entropy", normalized=flag)["attention_entropy"][0, :, -1]
                for flag in (False, True)
            )
            counts = torch.tensor([12.0, 8.0, 12.0, 12.0], dtype=torch.float64)
            torch.testing.assert_close(normalised, raw / counts.log())
    tri, text = torch.ones(12, 12).tril().bool(), torch.arange(12) // 6
    masks = tri.expand(1, 4, 12, 12).clone()
    masks[:, :3] &= text[:, None] == text
    with capture(model, heads=[3, 0]) as recording:
        for layer in recording.run(input_ids=ids, attention_mask=masks):
            assert torch.equal(layer.visibility.support[0], masks[0, [3, 0]])
            entropy = layer.measure("attention_entropy", normalized=True)["attention_entropy"][0, :, 6]
            assert entropy.isnan().tolist() == [False, True]  # the query of head 0 sees itself alone


def test_a_mask_with_one_row_holds_for_all_queries():
    from attnscope.capture.visibility import visibility_of

    row = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]).bool()[:, None, None]
    real = [torch.arange(2, 5), torch.arange(5)]
    assert visibility_of(row, real).name == "full"
    assert visibility_of(torch.where(row, 0.0, torch.finfo(torch.float32).min), real).name == "full"


def test_a_support_that_the_maps_contradict_is_unknown_and_said():
    """A mask argument that is not all that hides keys, and one that says the opposite."""
    from test_capture_layer import make

    layer = make(torch.ones(1, 5))
    layer.tensors["attention"] = torch.ones(5, 5).tril().expand(1, 4, 5, 5) / torch.arange(1, 6)[:, None]
    layer.exact_mask = False
    full = torch.ones(1, 1, 5, 5).bool()
    for mask, words in (
        (full, "entries inside of it are 0"),
        (~full.tril(), "entries outside of it have mass"),
    ):
        layer.mask, layer._visibility = mask, None
        with pytest.warns(UserWarning, match=words):
            assert layer.visibility.support == "auto"
    layer.mask, layer._visibility = full.tril(), None
    assert layer.visibility.name == "causal"
    # a mask that is added and neither hides an entry nor leaves it in float32
    layer.exact_mask, layer._visibility = True, None
    layer.mask = torch.where(full.tril(), 0.0, -1000.0)
    with pytest.warns(UserWarning, match="entries inside of it are 0"):
        assert layer.visibility.support == "auto"


def test_a_token_that_a_sparse_layer_leaves_to_no_query_is_no_padding():
    """Queries look at four keys each: without a mask of the tokens all of them are real, in each step too."""
    models.needs_configuration("DeepseekV32Config")
    from transformers import DeepseekV32Config, DeepseekV32ForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "v_head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 16, "kv_lora_rank": 16}
    heads |= {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "first_k_dense_replace": 1}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    sparse = {"index_topk": 4, "index_n_heads": 2, "index_head_dim": 16}
    config = DeepseekV32Config(
        vocab_size=64, num_hidden_layers=2, pad_token_id=0, **sizes, **heads, **experts, **sparse
    )
    model = DeepseekV32ForCausalLM(config).eval()
    ids = torch.randint(3, 64, (2, 12), generator=torch.Generator().manual_seed(1))
    unseen = 0
    with capture(model) as recording:
        for layer in recording.run(input_ids=ids):
            unseen += int((layer.attention.sum((1, 2)) == 0).sum())
            assert layer.lengths.tolist() == [12, 12]
        assert unseen > 0
        options = {"max_new_tokens": 3, "eos_token_id": None, "pad_token_id": 0, "do_sample": False}
        for layer in recording.generate(input_ids=ids, **options):
            assert layer.lengths.tolist() == [12 + layer.step] * 2
        for layer in recording.assembled():
            assert layer.lengths.tolist() == [14, 14]
            assert layer.answer_start.tolist() == [12, 12]
