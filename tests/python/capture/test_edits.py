# SPDX-License-Identifier: MIT
"""Every edit against its identity, against what it is said to do, and against what it must leave alone."""

import threading
from pathlib import Path

import pytest
import torch

import attnscope as asc
import models
from attnscope.capture import capture, edit
from attnscope.capture.edits import (
    AddDirection,
    AddLogits,
    HideKeys,
    LimitWindow,
    Project,
    Scale,
    SetEmbedding,
    SetPositionIds,
    SetRotary,
    SetState,
    SubtractRead,
)
from attnscope.capture.implementation import configs

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
INTERFACE = (*models.CAUSAL, *models.ENCODERS, *models.SEQ2SEQ)
FAMILIES = (*INTERFACE, *models.LEGACY)
ROTARY = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "gemma2", "gpt_neox", "phi", "olmo2", "gpt_oss")
TABLE_OF_POSITIONS = ("gpt2", "opt", "bert", "roberta")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


def made(name, padding="left", **changes):
    """The model (of an encoder-decoder the encoder), computing as edits of its softmax do, and its inputs."""
    if name == "t5":
        models.needs_attention_interface(name)
    model = models.tiny(name, implementation="eager", **changes)
    if name in models.SEQ2SEQ:
        model = model.get_encoder()
    inputs = models.text(model, padding=padding)
    inputs.pop("decoder_input_ids", None)
    return model, inputs


def out(model, inputs):
    with torch.no_grad():
        return model(**inputs)[0]


def changed(model, inputs, *edits):
    with edit(model, *edits) as applied:
        result = out(model, inputs)
    assert all(one.count > 0 for one in applied)
    return result


def layers_of(model, inputs, sites, *edits):
    with edit(model, *edits), capture(model, sites=sites) as tape:
        return list(tape.run(**inputs))


def own_embedding(model, inputs):
    with torch.no_grad():
        first = inputs["attention_mask"].argmax(-1)
        ids = inputs["input_ids"][torch.arange(len(first)), first + 2]
        return model.get_input_embeddings()(ids)


def nothing(model, inputs):
    """Edits that change nothing, by name."""
    width = model.get_input_embeddings()(inputs["input_ids"][:1, :1]).shape[-1]
    zero = torch.zeros(96)
    return {
        "set_embedding": SetEmbedding(2, own_embedding(model, inputs).detach()),
        "no_direction": AddDirection(-1, zero, "all"),
        "no_subspace": Project(0, torch.zeros(0, 96), "all"),
        "factor_1": Scale("block_output", 1.0),
        "heads_by_1": Scale("head_output", torch.ones(4, 1)),
        "mlp_by_1": Scale("mlp_output", 1.0, [0]),
        "width": SetEmbedding(-1, torch.zeros(width)),
    }


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_changes_nothing_changes_no_bit(name):
    model, inputs = made(name)
    base = out(model, inputs)
    edits = nothing(model, inputs)
    other = edits.pop("width")
    for kind, one in edits.items():
        assert torch.equal(changed(model, inputs, one).nan_to_num(), base.nan_to_num()), kind
    assert torch.equal(changed(model, inputs, *edits.values()).nan_to_num(), base.nan_to_num())
    assert not torch.equal(changed(model, inputs, other).nan_to_num(), base.nan_to_num())
    assert torch.equal(out(model, inputs).nan_to_num(), base.nan_to_num())


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", INTERFACE)
def test_hiding_nothing_and_a_wide_window_change_no_bit(name, padding):
    model, inputs = made(name, padding)
    base = out(model, inputs)
    for one in (HideKeys([]), HideKeys([0], heads=()), LimitWindow(64), LimitWindow(37, keep_first=3)):
        assert torch.equal(changed(model, inputs, one), base)
    # What is read is taken away by our own arithmetic, which is that of capture.
    with capture(model, sites=("attention",)) as tape:
        list(tape.run(**inputs))
        captured = tape.output[0]
    for one in (SubtractRead([0], heads=()), SubtractRead([])):
        assert torch.equal(changed(model, inputs, one), captured)


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", INTERFACE)
def test_a_hidden_key_is_seen_by_no_query_that_sees_another(name, padding):
    model, inputs = made(name, padding)
    sites = ("attention", "scores")
    base = layers_of(model, inputs, sites, HideKeys([]))
    for layer, usual in zip(layers_of(model, inputs, sites, HideKeys([3])), base, strict=True):
        first = inputs["attention_mask"].argmax(-1)
        for sample in range(2):
            column = int(first[sample]) + 3
            others = usual.scores[sample] > -torch.inf
            others[..., column] = False
            seeing = others.any(-1)
            assert float(layer.attention[sample, ..., column][seeing].abs().max()) == 0.0
            assert bool((layer.scores[sample, ..., column][seeing] == -torch.inf).all())
        real = layer.valid
        if layer.sink_logits is None:
            assert torch.allclose(layer.attention.sum(-1), usual.attention.sum(-1), atol=1e-5)
        assert torch.equal(layer.valid, usual.valid), "a hidden key is still a real one"
        assert bool(real.any())


def test_hidden_keys_are_united_and_leave_every_query_one():
    model, inputs = made("llama", "none")
    both = layers_of(model, inputs, ("attention",), HideKeys([0]), HideKeys([1, 2]))
    with edit(model, HideKeys([0])), edit(model, HideKeys([1])):
        nested = layers_of(model, inputs, ("attention",), HideKeys([2]))
    once = layers_of(model, inputs, ("attention",), HideKeys([2, 0, 1]))
    for one, two, three in zip(both, nested, once, strict=True):
        assert torch.equal(one.attention, three.attention)
        assert torch.equal(two.attention, three.attention)
        assert torch.allclose(one.attention.sum(-1), torch.ones(()), atol=1e-5)
        assert float(one.attention[..., 1:3, :3].sum(-1).min()) > 0.999  # queries 1 and 2 keep what they see


def test_hidden_keys_of_some_heads_layers_and_queries():
    model, inputs = made("llama", "left")
    base = layers_of(model, inputs, ("attention",), HideKeys([]))
    some = layers_of(model, inputs, ("attention",), HideKeys([1], heads=[(0, 2), (0, -4)], skip_queries=[5]))
    one, usual = some[0].attention, base[0].attention
    assert torch.equal(one[:, [1, 3]], usual[:, [1, 3]])
    for sample, first in enumerate((0, 9)):
        rows = torch.arange(first + 2, 37)
        rows = rows[rows != first + 5]
        assert not one[sample, [0, 2]][:, rows, first + 1].any()
        assert torch.equal(one[sample, :, first + 5], usual[sample, :, first + 5])
    flags = torch.zeros(2, 37, dtype=torch.bool)
    flags[0, 1] = flags[1, 10] = True
    for a, b in zip(
        layers_of(model, inputs, ("attention",), HideKeys([1])),
        layers_of(model, inputs, ("attention",), HideKeys(flags)),
        strict=True,
    ):
        assert torch.equal(a.attention, b.attention)


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "bert", "gpt_oss", "t5"])
def test_a_window_is_what_a_mask_by_hand_is(name):
    model, inputs = made(name, "left")
    layers = layers_of(model, inputs, ("scores",), LimitWindow(4, keep_first=2))
    base = layers_of(model, inputs, ("scores",), LimitWindow(64))
    query, key = torch.arange(37)[:, None], torch.arange(37)[None]
    for layer, usual in zip(layers, base, strict=True):
        for sample, first in enumerate((0, 9)):
            inside = ((query - key).abs() < 4) | ((key >= first) & (key < first + 2))
            wanted = (usual.scores[sample] > -torch.inf) & inside
            wanted[:, :first] = usual.scores[sample, :, :first] > -torch.inf
            found = layer.scores[sample] > -torch.inf
            assert torch.equal(found[:, first:], wanted[:, first:])


def test_a_window_of_one_and_a_hidden_key():
    """The query sees itself alone, so that hiding itself must leave it that."""
    model, inputs = made("llama", "none")
    for layer in layers_of(model, inputs, ("attention",), LimitWindow(1), HideKeys([5])):
        assert torch.equal(layer.attention, torch.eye(37).expand_as(layer.attention))


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "gpt_oss", "gemma2", "t5"])
def test_a_read_is_taken_from_what_the_heads_hand_on(name):
    model, inputs = made(name, "left")
    sites = ("attention", "value", "head_output")
    heads = [1, 3]
    edited = layers_of(model, inputs, sites, SubtractRead([2], heads=heads, skip_queries=[2]))
    layer = edited[0]
    value = layer.value[:, list(layer.kv_heads)]
    for sample, first in enumerate((0, 9)):
        whole = layer.attention[sample] @ value[sample]
        read = layer.attention[sample, :, :, first + 2, None] * value[sample, :, first + 2, None]
        wanted = whole.clone()
        wanted[heads] -= read[heads]
        wanted[:, first + 2] = whole[:, first + 2]
        assert torch.allclose(layer.head_output[sample, :, first:], wanted[:, first:], atol=1e-5)
    base = layers_of(model, inputs, sites, SubtractRead([]))
    assert torch.equal(layer.attention, base[0].attention), "the probabilities stay"
    assert not torch.equal(edited[1].attention, base[1].attention)


@pytest.mark.parametrize("name", ROTARY)
def test_a_shift_of_all_positions_moves_no_score_of_a_rotary_model(name):
    model, inputs = made(name)
    sites = ("scores",)
    base = layers_of(model, inputs, sites, SetPositionIds())
    assert torch.equal(changed(model, inputs, SetPositionIds()), out(model, inputs))
    shifted = layers_of(model, inputs, sites, SetPositionIds(shift=17))
    layer, usual = shifted[0], base[0]
    seen = usual.scores > -torch.inf
    largest = float(usual.scores[seen].abs().max())
    gap = float((layer.scores - usual.scores)[seen].abs().max())
    assert gap <= torch.finfo(torch.float32).eps * (37 + 17) * max(1.0, largest), gap
    for one, two in zip(shifted, base, strict=True):
        assert torch.allclose(one.scores[seen], two.scores[seen], atol=0.02 * largest)


@pytest.mark.parametrize("name", TABLE_OF_POSITIONS)
def test_a_shift_moves_the_scores_of_learned_positions(name):
    model, inputs = made(name)
    assert torch.equal(changed(model, inputs, SetPositionIds()), out(model, inputs))
    base = layers_of(model, inputs, ("scores",), SetPositionIds())[0].scores
    moved = layers_of(model, inputs, ("scores",), SetPositionIds(shift=5))[0].scores
    seen = base > -torch.inf
    assert float((moved - base)[seen].abs().max()) > 1e-3


def test_given_positions_are_those_of_the_model():
    model, inputs = made("llama")
    ids = torch.randint(0, 50, (2, 37))
    wanted = out(model, {**inputs, "position_ids": ids + 0})
    assert torch.equal(changed(model, inputs, SetPositionIds(ids=ids)), wanted)
    plain = {"input_ids": inputs["input_ids"]}
    mask = torch.ones_like(ids)
    wanted = out(model, {**plain, "attention_mask": mask, "position_ids": 2 * torch.arange(37)[None]})
    assert torch.equal(changed(model, plain, SetPositionIds(ids=2 * torch.arange(37))), wanted)


@pytest.mark.parametrize("name", ROTARY)
def test_rotary_frequencies(name):
    model, inputs = made(name)
    base = out(model, inputs)
    before = [b.clone() for n, b in model.named_buffers() if n.endswith("inv_freq")]
    own = before[0]
    for one in (SetRotary(("ntk", 1.0)), SetRotary(("interpolate", 1.0)), SetRotary(own)):
        assert torch.equal(changed(model, inputs, one), base)
    for one in (SetRotary("none"), SetRotary(("ntk", 4.0)), SetRotary(("interpolate", 4.0))):
        assert not torch.equal(changed(model, inputs, one), base)
    after = [b for n, b in model.named_buffers() if n.endswith("inv_freq")]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    with edit(model, SetRotary("none")), edit(model, SetPositionIds(shift=9)):
        still = out(model, inputs)
    assert torch.equal(still, changed(model, inputs, SetRotary("none"))), "nothing turns, nothing moves"


def test_ntk_and_interpolation_by_hand():
    model, _ = made("llama")
    old = model.model.rotary_emb.inv_freq.double()
    with edit(model, SetRotary(("ntk", 4.0))) as applied:
        new = model.model.rotary_emb.inv_freq.double()
        model(torch.arange(4)[None])
    assert applied[0].count == 1
    wanted = torch.tensor([t * 4 ** (-2 * k / (24 - 2)) for k, t in enumerate(old.tolist())])
    assert torch.allclose(new, wanted.double(), rtol=1e-6)
    # All frequencies of a model that interpolates are those of positions divided by the factor.
    inputs = {"input_ids": torch.arange(4, 16)[None]}
    sparse = changed(model, inputs, SetPositionIds(ids=4 * torch.arange(12)), SetRotary(("interpolate", 4.0)))
    assert torch.allclose(sparse, out(model, inputs), atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "bert", "albert", "falcon", "bloom", "gemma2"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_states_are_changed_where_they_are_said_to_be(name):
    model, inputs = made(name, "left")
    last = models.tiny(name).config.num_hidden_layers - 1
    direction = torch.randn(96, generator=torch.Generator().manual_seed(0))
    with capture(model, sites=("block_output",)) as tape:
        base = list(tape.run(**inputs))
    for value, kind in ((direction, AddDirection), (direction, SetState), (direction, Project)):
        found = layers_of(model, inputs, ("block_output",), kind(1, value, [4, -1]))
        assert torch.equal(found[0].block_output, base[0].block_output)
        for sample, first in enumerate((0, 9)):
            touched = [first + 4, 36]
            rest = [i for i in range(first, 37) if i not in touched]
            before, after = base[1].block_output[sample], found[1].block_output[sample]
            assert torch.equal(after[rest], before[rest])
            if kind is AddDirection:
                assert torch.equal(after[touched], before[touched] + direction)
            elif kind is SetState:
                assert torch.equal(after[touched], direction.expand(2, -1))
            else:
                unit = direction / direction.norm()
                assert float((after[touched] @ unit).abs().max()) < 1e-5
                left = before[touched] - after[touched]
                assert torch.allclose(left, (left @ unit)[:, None] * unit, atol=1e-5)
                assert float(left.norm()) > 1e-3
        if name not in ("bert", "albert"):  # earlier positions cannot see it
            for one, two in zip(found, base, strict=True):
                for sample, first in enumerate((0, 9)):
                    upto = slice(first, first + 4)
                    assert torch.equal(one.block_output[sample, upto], two.block_output[sample, upto])
    assert last >= 2


@pytest.mark.parametrize("padding", ["left", "right"])
def test_the_last_token_is_the_last_real_one(padding):
    model, inputs = made("llama", padding)
    with capture(model, sites=("block_output",)) as tape:
        base = list(tape.run(**inputs))[-1].block_output
    found = layers_of(model, inputs, ("block_output",), AddDirection(-1, torch.ones(2, 96)))[-1].block_output
    moved = (found != base).any(-1)
    wanted = torch.zeros(2, 37, dtype=torch.bool)
    wanted[0, 36] = wanted[1, 36 if padding == "left" else 27] = True
    assert torch.equal(moved, wanted)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox"])
def test_the_state_of_another_text_gives_its_logits(name):
    model, inputs = made(name, "none")
    other = models.text(model, seed=5)
    with capture(model, sites=("block_output",)) as tape:
        states = list(tape.run(**other))[-1].block_output
    patched = changed(model, inputs, SetState(-1, states, "all"))
    assert torch.equal(patched, out(model, other))
    patched = changed(model, inputs, SetState(-1, states[:, -1]))
    assert torch.equal(patched[:, -1], out(model, other)[:, -1])
    assert torch.equal(patched[:, :-1], out(model, inputs)[:, :-1])


def test_edits_of_one_site_follow_one_another():
    model, inputs = made("llama", "none")
    direction = torch.randn(96)
    after = layers_of(
        model, inputs, ("block_output",), SetState(1, direction, "all"), AddDirection(1, direction, "all")
    )[1].block_output
    assert torch.equal(after, (2 * direction).expand_as(after))
    with edit(model, SetState(1, direction, "all")):
        nested = layers_of(model, inputs, ("block_output",), Scale("block_output", 3.0, [1]))[1].block_output
    assert torch.equal(nested, (3 * direction).expand_as(nested))


def test_scaled_heads_and_sites():
    model, inputs = made("llama", "none")
    weights = torch.tensor([0.0, 1.0, 2.0, 1.0])[:, None]
    base = layers_of(model, inputs, ("head_output",), Scale("head_output", 1.0))
    found = layers_of(model, inputs, ("head_output",), Scale("head_output", weights, [0]))
    assert torch.equal(found[0].head_output, base[0].head_output * weights[None, :, None])
    quiet = layers_of(
        model, inputs, ("hidden", "block_output"), Scale("attention_output", 0.0), Scale("mlp_output", 0.0)
    )
    for layer in quiet:
        assert torch.equal(layer.block_output, layer.hidden)


def test_an_embedding_at_one_position():
    model, inputs = made("llama", "left")
    vector = torch.randn(2, 96)
    with capture(model, sites=("hidden",)) as tape:
        base = list(tape.run(**inputs))
    found = layers_of(model, inputs, ("hidden",), SetEmbedding(3, vector))
    for sample, column in ((0, 3), (1, 12)):
        assert torch.equal(found[0].hidden[sample, column], vector[sample])
        for one, two in zip(found, base, strict=True):
            before = slice(9 * sample, column)
            assert torch.equal(one.hidden[sample, before], two.hidden[sample, before])
        rest = [i for i in range(37) if i != column]
        assert torch.equal(found[0].hidden[sample, rest], base[0].hidden[sample, rest])
    zero = layers_of(model, inputs, ("hidden", "scores"), SetEmbedding(0, torch.zeros(96)))
    for layer in zero:  # without biases, nothing at position 0 stays nothing
        assert not layer.hidden[0, 0].any()
        assert not layer.scores[0, :, :, 0].any()


def test_added_logits():
    model, inputs = made("llama")
    values = torch.randn(models.VOCABULARY)
    assert torch.equal(changed(model, inputs, AddLogits(values)), out(model, inputs) + values)
    ban = torch.zeros(models.VOCABULARY)
    ban[:90] = -torch.inf
    with edit(model, AddLogits(ban)):
        tokens = model.generate(**inputs, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert bool((tokens[:, 37:] >= 90).all())
    bert, text = made("bert")
    with pytest.raises(TypeError, match="AddLogits: BertModel gives no logits"):
        changed(bert, text, AddLogits(values))


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "gpt_oss"])
def test_generation_with_a_cache_is_the_whole_pass(name):
    """Every step's logits equal those of one edited pass over the text so far."""
    model, inputs = made(name, "none")
    short = {key: value[:, :12] for key, value in inputs.items()}
    direction = torch.randn(96)
    for edits in (
        [HideKeys([0, 2])],
        [LimitWindow(5, keep_first=1)],
        [SubtractRead([0], skip_queries=[0])],
        [SetEmbedding(0, torch.randn(96))],
        [AddDirection(0, direction, "all", steps="all")],
        [SetPositionIds(shift=3)],
        [AddDirection(0, direction, [2]), HideKeys([1])],
    ):
        with edit(model, *edits):
            made_by = model.generate(
                **short, max_new_tokens=5, do_sample=False, pad_token_id=0, output_logits=True,
                return_dict_in_generate=True, eos_token_id=None,
            )  # fmt: skip
        whole = {"input_ids": made_by.sequences, "attention_mask": torch.ones_like(made_by.sequences)}
        logits = changed(model, whole, *edits)
        for step, one in enumerate(made_by.logits):
            assert torch.allclose(one, logits[:, 11 + step], atol=2e-4), (edits, step)


def test_two_that_set_one_thing_contradict():
    model, inputs = made("llama")
    vector = torch.zeros(96)
    pairs = [
        (SetEmbedding(1, vector), SetEmbedding(1, vector)),
        (SetPositionIds(shift=1), SetPositionIds(shift=2)),
        (SetRotary("none"), SetRotary(("ntk", 2.0))),
        (SetState(1, vector), SetState(1, vector)),
    ]
    for one, two in pairs:
        with (
            pytest.raises(ValueError, match=f"two {type(one).__name__} on one target"),
            edit(model, one, two),
        ):
            pass
        with (
            pytest.raises(ValueError, match=f"two {type(one).__name__} on one target"),
            edit(model, one),
            edit(model, two),
        ):
            pass
    changed(model, inputs, SetEmbedding(1, vector), SetEmbedding(2, vector))


def snapshot(model):
    return (
        {name: tensor.clone() for name, tensor in model.state_dict().items()},
        [b.clone() for b in model.buffers()],
        [c._attn_implementation_internal for c in configs(model)],
        [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
    )


def same(one, two):
    return (
        all(torch.equal(a, two[0][name]) for name, a in one[0].items())
        and all(torch.equal(a, b) for a, b in zip(one[1], two[1], strict=True))
        and one[2:] == two[2:]
    )


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_the_model_is_restored(error):
    model, inputs = made("llama")
    base, before = out(model, inputs), snapshot(model)
    edits = (
        SetRotary("none"), SetEmbedding(0, torch.zeros(96)), HideKeys([1]), LimitWindow(9), SubtractRead([0]),
        SetState(0, torch.zeros(96)), Scale("mlp_output", 2.0), AddLogits(torch.ones(97)), SetPositionIds(1),
    )  # fmt: skip

    def consume():
        with edit(model, *edits):
            out(model, inputs)
            if error:
                raise error("in the block")

    if error is None:
        consume()
    else:
        with pytest.raises(error, match="in the block"):
            consume()
    assert same(snapshot(model), before)
    assert torch.equal(out(model, inputs), base)


def test_an_edit_that_never_acts_says_so():
    model, inputs = made("llama")
    embeds = model.get_input_embeddings().weight[inputs["input_ids"]]
    one = SetEmbedding(0, torch.zeros(96))
    with pytest.raises(RuntimeError, match="SetEmbedding never acted on LlamaForCausalLM"), edit(model, one):
        model(inputs_embeds=embeds)
    with pytest.raises(ZeroDivisionError), edit(model, one):
        raise ZeroDivisionError  # what went wrong is not hidden by what did not happen


def test_what_cannot_be_reached_is_refused_by_name():
    llama, _ = made("llama")
    bloom, _ = made("bloom")
    gpt2, _ = made("gpt2")
    t5 = models.tiny("t5")
    for one in (HideKeys([0]), LimitWindow(3), SubtractRead([0])):
        with (
            pytest.raises(
                NotImplementedError, match=f"{type(one).__name__}: the attention of BloomForCausalLM"
            ),
            edit(bloom, one),
        ):
            pass
    for model, one, words in (
        (gpt2, SetRotary("none"), "GPT2LMHeadModel has no rotary frequencies"),
        (bloom, SetPositionIds(shift=1), "BloomForCausalLM takes no position ids"),
        (t5, HideKeys([0]), r"encoder and a decoder.*edit\(model.get_encoder\(\)"),
    ):
        with pytest.raises(NotImplementedError, match=words), edit(model, one):
            pass
    for kind in ("dynamic", "longrope"):
        llama.config.rope_parameters["rope_type"] = kind
        for one in (SetRotary(("ntk", 2.0)), SetPositionIds(shift=1)):
            with pytest.raises(NotImplementedError, match=f"{kind!r} frequencies"), edit(llama, one):
                pass
    llama.config.rope_parameters["rope_type"] = "default"
    llama.train()
    with (
        pytest.raises(RuntimeError, match="edit: LlamaForCausalLM is in training mode"),
        edit(llama, HideKeys([0])),
    ):
        pass


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (HideKeys([37]), r"HideKeys: positions must lie between -28 and 27 \(the shortest sample\), got"),
        (HideKeys([0], heads=[4]), "HideKeys: head 4 of layer 0, which has 4"),
        (HideKeys(torch.zeros(3, dtype=torch.bool)), r"HideKeys: keys must have shape \(2, 37\), got \(3,\)"),
        (SetEmbedding(0, torch.zeros(5)), r"vector must have shape \[96\] or \[B, 96\], got \(5,\)"),
        (SetEmbedding(30, torch.zeros(96)), "SetEmbedding: positions must lie between -28 and 27"),
        (AddDirection(3, torch.zeros(96)), "AddDirection: layer 3 of LlamaForCausalLM, which has 3 layers"),
        (AddDirection(0, torch.zeros(5)), r"AddDirection: value must have shape \[96\]"),
        (AddDirection(0, torch.zeros(96), site="scores"), "site must be one that a module hands on"),
        (Project(0, torch.zeros(1, 96)), "must not hold a direction of norm 0"),
        (SetRotary(torch.ones(5)), r"rotary_emb.inv_freq has \(12,\) frequencies, got \(5,\)"),
    ],
)
def test_arguments_out_of_range(one, words):
    model, inputs = made("llama")
    before = snapshot(model)
    with pytest.raises(ValueError, match=words), edit(model, one):
        out(model, inputs)
    assert same(snapshot(model), before)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: LimitWindow(0), "width must be at least 1"),
        (lambda: AddDirection(0, torch.tensor([torch.nan])), "a tensor of finite numbers"),
        (lambda: AddDirection(0, torch.zeros(9), "first"), "positions must be 'last', 'all' or numbers"),
        (lambda: AddDirection(0, torch.zeros(9), steps="once"), "steps must be 'first' or 'all'"),
        (lambda: SetRotary(("yarn", 2.0)), "rule must be 'none'"),
        (lambda: SetRotary(("ntk", 0.0)), "the factor must be positive"),
        (lambda: SetPositionIds(shift=1, ids=torch.arange(3)), "either shift or ids"),
    ],
)
def test_arguments_that_make_no_sense(build, words):
    with pytest.raises(ValueError, match=words):
        build()


def test_something_that_is_no_edit():
    model, _ = made("llama")
    with pytest.raises(TypeError, match="str is no edit"), edit(model, "HideKeys"):
        pass


def test_another_thread_is_left_alone():
    model, inputs = made("llama")
    base = out(model, inputs)
    seen = []
    with edit(model, HideKeys([0]), AddDirection(0, torch.ones(96), "all")):
        edited = out(model, inputs)
        thread = threading.Thread(target=lambda: seen.append(out(model, inputs)))
        thread.start()
        thread.join()
    assert torch.allclose(seen[0], base, atol=1e-5)
    assert not torch.allclose(edited, base, atol=1e-2)


def test_the_preflight_is_of_the_model_and_not_of_the_edit():
    model, inputs = made("llama")
    with edit(model, AddDirection(0, torch.ones(96), "all")), capture(model) as tape:
        list(tape.run(**inputs))
        assert tape.tier == 1


@pytest.mark.parametrize("folder", ["stories260K/hf", "llama2xs/hf"])
def test_identities_of_trained_models(folder):
    if not (DATA / folder).exists():
        pytest.skip(f"{folder} is not here")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(DATA / folder, attn_implementation="eager").eval()
    ids = torch.randint(3, model.config.vocab_size, (2, 33), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    base = out(model, inputs)
    for one in (
        HideKeys([]), LimitWindow(33), SubtractRead([0], heads=()), SetRotary(("ntk", 1.0)), SetPositionIds(),
        AddDirection(-1, torch.zeros(model.config.hidden_size)), Scale("block_output", 1.0),
    ):  # fmt: skip
        assert torch.equal(changed(model, inputs, one), base)
    sites = ("scores", "attention")
    usual = layers_of(model, inputs, sites, HideKeys([]))
    for layer, before in zip(layers_of(model, inputs, sites, SetPositionIds(shift=17)), usual, strict=True):
        seen = before.scores > -torch.inf
        largest = max(1.0, float(before.scores[seen].abs().max()))
        gap = float((layer.scores - before.scores)[seen].abs().max())
        assert gap <= torch.finfo(torch.float32).eps * (33 + 17) * largest
    for layer in layers_of(model, inputs, sites, HideKeys([0])):
        assert not layer.attention[:, :, 1:, 0].any()


def test_the_public_names():
    assert asc.edit is edit
    assert asc.edits.HideKeys is HideKeys
