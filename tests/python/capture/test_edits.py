# SPDX-License-Identifier: MIT
"""Every edit: what changes nothing, what they share, what they must leave alone, and what is refused."""

import threading

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
from models import ALL_FAMILIES, DATA, build_tokenizer, changed, layers_of, out


def own_embedding(model, inputs):
    with torch.no_grad():
        first = inputs["attention_mask"].argmax(-1)
        ids = inputs["input_ids"][torch.arange(len(first)), first + 2]
        return model.get_input_embeddings()(ids)


def neutral_edits(model, inputs):
    """Edits that change nothing, by name."""
    width = model.get_input_embeddings()(inputs["input_ids"][:1, :1]).shape[-1]
    hidden = model.config.hidden_size
    with_heads = [1, 3] if model.config.model_type == "jamba" else None
    return {
        "set_embedding": SetEmbedding(2, own_embedding(model, inputs).detach()),
        "no_direction": AddDirection(-1, torch.zeros(hidden), "all"),
        "no_subspace": Project(0, torch.zeros(0, hidden), "all"),
        "factor_1": Scale("block_output", 1.0),
        "heads_by_1": Scale("head_output", torch.ones(4, 1), with_heads),
        "mlp_by_1": Scale("mlp_output", 1.0, [1]),
        "width": SetEmbedding(-1, torch.zeros(width)),
    }


@pytest.mark.parametrize("name", models.few(ALL_FAMILIES))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_changes_nothing_changes_no_bit(name):
    model, inputs = build_tokenizer(name)
    base = out(model, inputs)
    edits = neutral_edits(model, inputs)
    other = edits.pop("width")
    for kind, neutral in edits.items():
        assert torch.equal(changed(model, inputs, neutral).nan_to_num(), base.nan_to_num()), kind
    assert torch.equal(changed(model, inputs, *edits.values()).nan_to_num(), base.nan_to_num())
    assert not torch.equal(changed(model, inputs, other).nan_to_num(), base.nan_to_num())
    assert torch.equal(out(model, inputs).nan_to_num(), base.nan_to_num())


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "gpt_oss"])
def test_generation_with_a_cache_is_the_whole_pass(name):
    """Every step's logits equal those of one edited pass over the text so far."""
    model, inputs = build_tokenizer(name, "none")
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
                **short,
                max_new_tokens=5,
                do_sample=False,
                pad_token_id=0,
                output_logits=True,
                return_dict_in_generate=True,
                eos_token_id=None,
            )
        text_so_far = {"input_ids": made_by.sequences, "attention_mask": torch.ones_like(made_by.sequences)}
        logits = changed(model, text_so_far, *edits)
        for step, step_logits in enumerate(made_by.logits):
            assert torch.allclose(step_logits, logits[:, 11 + step], atol=2e-4), (edits, step)


def test_two_that_set_one_thing_contradict():
    model, inputs = build_tokenizer("llama")
    vector = torch.zeros(96)
    pairs = [
        (SetEmbedding(1, vector), SetEmbedding(1, vector)),
        (SetPositionIds(shift=1), SetPositionIds(shift=2)),
        (SetRotary("none"), SetRotary(("ntk", 2.0))),
        (SetState(1, vector), SetState(1, vector)),
    ]
    for first, second in pairs:
        with (
            pytest.raises(ValueError, match=f"two {type(first).__name__} on one target"),
            edit(model, first, second),
        ):
            pass
        with (
            pytest.raises(ValueError, match=f"two {type(first).__name__} on one target"),
            edit(model, first),
            edit(model, second),
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


def is_equal(first, second):
    return (
        all(torch.equal(a, second[0][name]) for name, a in first[0].items())
        and all(torch.equal(a, b) for a, b in zip(first[1], second[1], strict=True))
        and first[2:] == second[2:]
    )


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_the_model_is_restored(error):
    model, inputs = build_tokenizer("llama")
    base, before = out(model, inputs), snapshot(model)
    edits = (
        SetRotary("none"),
        SetEmbedding(0, torch.zeros(96)),
        HideKeys([1]),
        LimitWindow(9),
        SubtractRead([0]),
        SetState(0, torch.zeros(96)),
        Scale("mlp_output", 2.0),
        AddLogits(torch.ones(97)),
        SetPositionIds(1),
    )

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
    assert is_equal(snapshot(model), before)
    assert torch.equal(out(model, inputs), base)


def test_an_edit_that_never_acts_says_so():
    model, inputs = build_tokenizer("llama")
    embeds = model.get_input_embeddings().weight[inputs["input_ids"]]
    unused = SetEmbedding(0, torch.zeros(96))
    with (
        pytest.raises(RuntimeError, match="SetEmbedding never acted on LlamaForCausalLM"),
        edit(model, unused),
    ):
        model(inputs_embeds=embeds)
    with pytest.raises(ZeroDivisionError), edit(model, unused):
        raise ZeroDivisionError  # what went wrong is not hidden by what did not happen


def test_what_cannot_be_reached_is_refused_by_name():
    llama, _ = build_tokenizer("llama")
    bloom, _ = build_tokenizer("bloom")
    gpt2, _ = build_tokenizer("gpt2")
    t5 = models.tiny("t5")
    for refused in (HideKeys([0]), LimitWindow(3), SubtractRead([0])):
        with (
            pytest.raises(
                NotImplementedError, match=f"{type(refused).__name__}: the attention of BloomForCausalLM"
            ),
            edit(bloom, refused),
        ):
            pass
    for model, refused, words in (
        (gpt2, SetRotary("none"), "GPT2LMHeadModel has no rotary frequencies"),
        (bloom, SetPositionIds(shift=1), "BloomForCausalLM takes no position ids"),
        (t5, HideKeys([0]), r"encoder and a decoder.*edit\(model.get_encoder\(\)"),
    ):
        with pytest.raises(NotImplementedError, match=words), edit(model, refused):
            pass
    setting = "rope_parameters" if hasattr(llama.config, "rope_parameters") else "rope_scaling"
    usual = getattr(llama.config, setting)
    for kind in ("dynamic", "longrope"):
        setattr(llama.config, setting, {**(usual or {}), "rope_type": kind})
        for refused in (SetRotary(("ntk", 2.0)), SetPositionIds(shift=1)):
            with pytest.raises(NotImplementedError, match=f"{kind!r} frequencies"), edit(llama, refused):
                pass
    setattr(llama.config, setting, usual)
    llama.train()
    with (
        pytest.raises(RuntimeError, match="edit: LlamaForCausalLM is in training mode"),
        edit(llama, HideKeys([0])),
    ):
        pass


@pytest.mark.parametrize(
    ("invalid", "words"),
    [
        (HideKeys([37]), r"HideKeys: positions must lie between -28 and 27 \(the shortest sample\), got"),
        (HideKeys([1.5]), r"HideKeys: positions must be whole numbers, got \[1.5\]"),
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
def test_arguments_out_of_range(invalid, words):
    model, inputs = build_tokenizer("llama")
    before = snapshot(model)
    with pytest.raises(ValueError, match=words), edit(model, invalid):
        out(model, inputs)
    assert is_equal(snapshot(model), before)


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
    model, _ = build_tokenizer("llama")
    with pytest.raises(TypeError, match="str is no edit"), edit(model, "HideKeys"):
        pass


def test_another_thread_is_left_alone():
    model, inputs = build_tokenizer("llama")
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
    model, inputs = build_tokenizer("llama")
    with edit(model, AddDirection(0, torch.ones(96), "all")), capture(model) as recording:
        list(recording.run(**inputs))
        assert recording.tier == 1


@pytest.mark.parametrize("folder", ["stories260K/hf", "llama2xs/hf"])
def test_identities_of_trained_models(folder):
    if not (DATA / folder).exists():
        pytest.skip(f"{folder} is not here")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(DATA / folder, attn_implementation="eager").eval()
    ids = torch.randint(3, model.config.vocab_size, (2, 33), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    base = out(model, inputs)
    for neutral in (
        HideKeys([]),
        LimitWindow(33),
        SubtractRead([0], heads=()),
        SetRotary(("ntk", 1.0)),
        SetPositionIds(),
        AddDirection(-1, torch.zeros(model.config.hidden_size)),
        Scale("block_output", 1.0),
    ):
        assert torch.equal(changed(model, inputs, neutral), base)
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
