# SPDX-License-Identifier: MIT
"""Other dtypes, autocast, masks of other kinds, compiled models, memory."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import models
from attnscope.capture import capture

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "bert", "t5", "gpt_oss"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)])
def test_half_precision_models_give_float32_maps(name, dtype):
    # T5 does not scale its logits: sharpened as the others, bfloat16 rounds them by whole units.
    sharpness = 2.0 if name == "t5" else models.SHARPEN
    model = models.tiny(name, sharpness=sharpness).to(dtype)
    full = models.tiny(name, sharpness=sharpness)
    inputs = models.text(model, padding="right")
    keep = inputs["attention_mask"].bool()
    with capture(model, layers=[0]) as recording, capture(full, layers=[0]) as exact:
        assert recording.tier == (1 if models.has_attention_interface(name) else 2)
        for layer, expected in zip(recording.run(**inputs), exact.run(**inputs), strict=True):
            # without an interface, as BERT and T5 before transformers 5, maps are as the model computes them
            is_rounded = recording.tier == 2
            assert layer.attention.dtype == (dtype if is_rounded else torch.float32)
            if name != "gpt_oss":  # its rows leave room for the learned sink
                bound = 2 * torch.finfo(dtype).eps if is_rounded else 2e-6
                assert float((layer.attention.float().sum(-1) - 1).abs().max()) < bound
            # One layer deep, the gap is that of rounded weights and inputs under sharpened logits.
            gap = (layer.attention - expected.attention).abs().transpose(1, 2)
            rows = keep if gap.shape[1] == keep.shape[1] else slice(None)
            assert float(gap[rows].mean()) < (2e-3 if dtype == torch.bfloat16 else 5e-4)


def test_half_precision_logits_stay_close_to_eager_ones():
    model, eager = models.tiny("llama").bfloat16(), models.tiny("llama", implementation="eager").bfloat16()
    inputs = models.text(model)
    with torch.no_grad():
        expected = eager(**inputs).logits.float()
    with capture(model) as recording:
        list(recording.run(**inputs))
        assert recording.output.logits.dtype == torch.bfloat16
        assert float((recording.output.logits.float() - expected).abs().mean()) < 2e-2


@pytest.mark.parametrize("padding", ["none", "left", "right"])
def test_float64_models_give_float64_maps(padding):
    model, single = models.tiny("llama").double(), models.tiny("llama")
    inputs = models.text(model, padding=padding)
    keep = inputs["attention_mask"].bool()
    with capture(model) as recording, capture(single) as rough:
        for layer, other in zip(recording.run(**inputs), rough.run(**inputs), strict=True):
            assert layer.attention.dtype == torch.float64
            assert float((layer.attention.sum(-1) - 1).abs().max()) < 1e-14
            gap = (layer.attention - other.attention).abs().transpose(1, 2)[keep]
            assert float(gap.max()) < 1e-4


def test_autocast_of_the_caller_reaches_the_model():
    model = models.tiny("llama")
    inputs = models.text(model)
    sites = ("attention", "value", "attention_output")
    with capture(model, sites=sites) as recording, torch.autocast("cpu", dtype=torch.bfloat16):
        layer = next(iter(recording.run(**inputs)))
        assert layer.value.dtype == torch.bfloat16
        # The mixing itself stays in float32: only its result is rounded.
        with torch.autocast("cpu", enabled=False):
            mixed = layer.attention @ layer.value[:, list(layer.kv_heads)].float()
        with torch.no_grad():
            output = model.model.layers[0].self_attn.o_proj(mixed.bfloat16().transpose(1, 2).flatten(2))
        assert float((output != layer.attention_output).float().mean()) < 0.02
        assert layer.attention_output.dtype == torch.bfloat16
        assert layer.attention.dtype == torch.float32
        assert float((layer.attention.sum(-1) - 1).abs().max()) < 2e-6


@pytest.mark.parametrize("name", ["llama", "falcon"])
@pytest.mark.parametrize("kind", [torch.bool, torch.float32])
def test_four_dimensional_masks_are_honoured_in_either_tier(name, kind):
    model = models.tiny(name)
    inputs = models.text(model, n=20)
    seen = torch.ones(20, 20, dtype=torch.bool).tril()
    seen[10:, :10] = False  # two documents in one row
    mask = seen.expand(2, 1, 20, 20)
    if kind != torch.bool:
        mask = torch.zeros(mask.shape).masked_fill(~mask, torch.finfo(kind).min)
    positions = torch.cat([torch.arange(10), torch.arange(10)])[None].expand(2, -1)
    with capture(model) as recording:
        for layer in recording.run(
            input_ids=inputs["input_ids"], attention_mask=mask, position_ids=positions
        ):
            assert float(layer.attention[..., ~seen].abs().max()) == 0.0
            assert float((layer.attention.sum(-1) - 1).abs().max()) < 1e-6
            assert bool(layer.valid.all())
        single_layers = list(recording.run(input_ids=inputs["input_ids"][:, 10:]))
        for layer in recording.run(
            input_ids=inputs["input_ids"], attention_mask=mask, position_ids=positions
        ):
            assert torch.allclose(
                layer.attention[..., 10:, 10:], single_layers[layer.index].attention, atol=1e-5
            )


def test_a_sliding_window_is_seen_in_the_maps():
    model = models.tiny("mistral")
    band = torch.ones(37, 37, dtype=torch.bool).tril().triu(-6)
    with capture(model) as recording:
        for layer in recording.run(**models.text(model)):
            assert float(layer.attention[..., ~band].abs().max()) == 0.0


def test_rows_of_a_model_with_learned_sinks_sum_to_less_than_one():
    model = models.tiny("gpt_oss")
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.sinks.fill_(1.0)
    with capture(model, sites=("attention", "query", "key")) as recording:
        for layer in recording.run(**models.text(model)):
            scores = layer.query.double() @ layer.key[:, list(layer.kv_heads)].double().mT * 24**-0.5
            visible = layer.attention > 0
            total = (scores.exp() * visible).sum(-1)
            assert torch.allclose(
                layer.attention.sum(-1).double(), total / (total + 2.718281828459045), atol=1e-5
            )


@pytest.mark.slow
@pytest.mark.parametrize("way", ["wrapped", "in place", "one layer"])
def test_compiled_models_are_captured_as_written(way):
    model = models.tiny("llama", num_hidden_layers=2)
    inputs = models.text(model)
    with capture(model) as recording:
        expected = [layer.attention.clone() for layer in recording.run(**inputs)]
    if way == "wrapped":
        compiled = torch.compile(model, backend="eager")
    elif way == "in place":
        model.compile(backend="eager")
        compiled = model
    else:
        model.model.layers[1] = torch.compile(model.model.layers[1], backend="eager")
        compiled = model
    with torch.no_grad():
        before = compiled(**inputs).logits
    with capture(compiled, sites=("attention", "hidden", "mlp_output")) as recording:
        layers = list(recording.run(**inputs))
        assert [layer.stack for layer in layers] == ["model.layers.*.self_attn"] * 2
        for layer in layers:
            assert torch.equal(layer.attention, expected[layer.index])
    with torch.no_grad():
        assert torch.equal(compiled(**inputs).logits, before)


@pytest.mark.slow
def test_peak_memory_is_that_of_two_layers():
    """12 layers of 8 heads x 1024 x 1024: 32 MiB of float32 each, 384 MiB together."""
    script = """
        import ctypes, sys, torch
        sys.path.insert(0, "tests")
        import models
        from attnscope.capture import capture

        def status(field):
            with open("/proc/self/status") as lines:
                return next(int(line.split()[1]) for line in lines if line.startswith(field))

        torch.set_num_threads(1)
        model = models.tiny("llama", num_hidden_layers=12, num_attention_heads=8, num_key_value_heads=8,
                            max_position_embeddings=1024)
        small, large = models.text(model, batch=1, n=32), models.text(model, batch=1, n=1024)
        with capture(model) as recording:
            list(recording.run(**small))
            ctypes.CDLL("libc.so.6").malloc_trim(0)
            with open("/proc/self/clear_refs", "w") as reset:
                reset.write("5")  # the peak starts again from here
            before = status("VmRSS")
            for layer in recording.run(**large):
                assert layer.attention.shape == (1, 8, 1024, 1024)
        print(status("VmHWM") - before)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    grown = int(done.stdout) / 1024
    print(f"peak memory grew by {grown:.0f} MiB")
    # Two maps of 32 MiB, and what the forward pass itself needs: masks, states, logits.
    assert 32 < grown < 4 * 32, f"grew by {grown:.0f} MiB"
