# SPDX-License-Identifier: MIT
"""Position 0: its states are those of the first token alone, and what heads write of it is their weights'."""

from pathlib import Path

import pytest
import torch

import attnscope as asc
import models

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
CAUSAL = ("llama", "mistral", "gemma2", "gpt2", "gpt_neox", "opt", "gpt_oss", "bloom")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 2e-2}


def inputs(model, padding="none", bos=True):
    encoded = models.text(model, padding=padding, n=20)
    if bos:
        first = encoded["attention_mask"].int().argmax(-1)
        encoded["input_ids"][torch.arange(2), first] = 1
    return encoded


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("name", models.few(CAUSAL))
def test_no_later_token_changes_the_first_state(name, dtype):
    if name == "gpt_oss" and dtype == torch.float64:
        pytest.skip("torch multiplies no experts of gpt_oss in float64")
    model = models.tiny(name, implementation="eager").to(dtype)
    trajectory = asc.first_token_trajectory(model, inputs(model))
    assert len(trajectory.gap) == model.config.num_hidden_layers + 1
    assert float(trajectory.gap.max()) <= TOLERANCE[dtype]
    assert float(trajectory.across.max()) == 0.0


@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "opt"])
def test_padding_changes_nothing_of_it(name, padding):
    model = models.tiny(name)
    padded = asc.first_token_trajectory(model, inputs(model, padding))
    assert float(padded.gap.max()) <= 1e-5
    unpadded = asc.first_token_trajectory(model, inputs(model))
    torch.testing.assert_close(padded.norm, unpadded.norm, rtol=1e-5, atol=0)


def test_texts_that_begin_differently_have_different_first_states():
    model = models.tiny("llama")
    trajectory = asc.first_token_trajectory(model, inputs(model, bos=False))
    assert float(trajectory.across.min()) > 0.1
    assert float(trajectory.gap.max()) <= 1e-5


def test_norm_and_cosine_are_those_of_the_models_own_states():
    model = models.tiny("llama")
    encoded = inputs(model, bos=False)
    with torch.no_grad():
        states = model(**encoded, output_hidden_states=True).hidden_states
    trajectory = asc.first_token_trajectory(model, encoded)
    first_states = torch.stack([state[:, 0].double() for state in states[:-1]])
    torch.testing.assert_close(trajectory.norm[:-1], first_states.norm(dim=-1).mean(-1), rtol=1e-6, atol=0)
    cosine = torch.cosine_similarity(first_states[:-1], first_states[1:], dim=-1).mean(-1)
    torch.testing.assert_close(trajectory.cosine[: len(cosine)], cosine, rtol=1e-6, atol=0)
    assert trajectory.cosine[-1].isnan()


@pytest.mark.parametrize("name", ["bert", "bart", "t5"])
def test_models_that_see_later_tokens_are_refused(name):
    model = models.tiny(name)
    with pytest.raises(NotImplementedError, match=rf"{type(model).__name__}.*a causal map is needed"):
        asc.first_token_trajectory(model, {"input_ids": torch.tensor([[5, 6, 7]])})


@pytest.mark.parametrize(
    ("encoded", "message"),
    [
        ({}, r"must hold input_ids \[B, n\], got \[\]"),
        ({"input_ids": torch.zeros(2, 0, dtype=torch.long)}, "must hold input_ids"),
        (
            {
                "input_ids": torch.ones(2, 3, dtype=torch.long),
                "attention_mask": torch.tensor([[1] * 3, [0] * 3]),
            },
            "a text without a token, row 1",
        ),
    ],
)
def test_bad_inputs(encoded, message):
    with pytest.raises(ValueError, match=message):
        asc.first_token_trajectory(models.tiny("llama"), encoded)


def captured(model, encoded):
    with asc.capture(model, sites=("attention", "value", "head_output", "attention_output")) as recording:
        return list(recording.run(**encoded))


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "gpt_oss"])
def test_what_heads_write_adds_up_to_the_attention_output(name):
    """Σ_h W_O^h z_h + b is what the attention module hands on, whose projection is read by hand here."""
    model = models.tiny(name)
    for layer in captured(model, inputs(model)):
        matrix = asc.output_projection(model, layer.index).double()
        sum_of_heads = torch.einsum("Dhd,bhnd->bnD", matrix, layer.head_output.double())
        rest = layer.attention_output.double() - sum_of_heads
        # what is left is the bias, one vector for all tokens
        assert float((rest - rest[:1, :1]).norm() / layer.attention_output.double().norm()) < 1e-5


@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_a_fingerprint_by_hand(padding):
    model = models.tiny("llama")
    for layer in captured(model, inputs(model, padding)):
        matrix = asc.output_projection(model, layer.index)
        measured = asc.fingerprint(layer, matrix)
        w_o = model.model.layers[layer.index].self_attn.o_proj.weight.detach().double()
        for b in range(2):
            real = layer.valid[b].nonzero().flatten().tolist()
            for h in range(4):
                part = w_o[:, 24 * h : 24 * (h + 1)]
                values = layer.value[b, layer.kv_heads[h]].double()
                u = part @ values[real[0]]
                torch.testing.assert_close(measured.write[b, h], u, rtol=1e-6, atol=1e-9)
                share, along = [], []
                for i in real[1:]:
                    z = part @ layer.head_output[b, h, i].double()
                    a = layer.attention[b, h, i, real[0]].double()
                    share.append(a * u.norm() / z.norm())
                    along.append(a * (u @ z) / (z @ z))
                torch.testing.assert_close(measured.share[b, h], torch.stack(share).mean(), rtol=1e-6, atol=0)
                torch.testing.assert_close(
                    measured.projection[b, h], torch.stack(along).mean(), rtol=1e-6, atol=1e-12
                )
                others = torch.stack([values[i].norm() for i in real[1:]]).mean()
                torch.testing.assert_close(
                    measured.value_ratio[b, h], values[real[0]].norm() / others, rtol=1e-6, atol=0
                )


def test_texts_with_one_first_token_have_one_fingerprint():
    model = models.tiny("llama")
    for layer in captured(model, inputs(model)):
        write = asc.fingerprint(layer, asc.output_projection(model, layer.index)).write
        assert torch.equal(write[0], write[1])


def test_a_projection_of_another_shape_is_refused():
    model = models.tiny("llama")
    layer = captured(model, inputs(model))[0]
    with pytest.raises(ValueError, match=r"projection must have shape \[D, 4, 24\], got \(96, 96\)"):
        asc.fingerprint(layer, torch.zeros(96, 96))


def test_a_text_of_one_token_reads_nothing_later():
    model = models.tiny("llama")
    layer = captured(model, {"input_ids": torch.tensor([[1]])})[0]
    measured = asc.fingerprint(layer, asc.output_projection(model, 0))
    assert measured.write.isfinite().all()
    assert measured.share.isnan().all()
    assert measured.value_ratio.isnan().all()


@pytest.mark.parametrize("folder", ["stories260K/hf", "llama2xs/hf"])
def test_trained_models(folder):
    if not (DATA / folder).exists():
        pytest.skip(f"{folder} is not here")
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(DATA / folder).eval()
    ids = torch.randint(3, model.config.vocab_size, (3, 33), generator=torch.Generator().manual_seed(0))
    trajectory = asc.first_token_trajectory(model, {"input_ids": ids})
    assert float(trajectory.gap.max()) < 1e-5
    assert float(trajectory.across.max()) > 0.1
    ids[:, 0] = 1
    assert float(asc.first_token_trajectory(model, {"input_ids": ids}).across.max()) == 0.0
