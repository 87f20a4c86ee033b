# SPDX-License-Identifier: MIT
"""Trained models against the forward pass of an independent NumPy reader in float64."""

from pathlib import Path

import numpy as np
import pytest
import torch

from attnscope.capture import capture

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
# Maximal absolute gaps that float32 leaves (measured: 3.3e-6 and 3.8e-5 in the maps, 7e-6 and 8e-6 in the
# logits; the residual stream of llama2xs reaches norms of 2,600).
TOLERANCE = {"stories260K": (1e-5, 2e-5), "llama2xs": (1e-4, 2e-5)}

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"needs the trained models in {DATA}")


@pytest.fixture(scope="module", params=TOLERANCE, ids=str)
def trained(request):
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(1)
    return request.param, transformers.AutoModelForCausalLM.from_pretrained(
        DATA / request.param / "hf"
    ).eval()


@pytest.mark.parametrize("text", ["bos64", "nobos64"])
def test_trained_maps_equal_the_golden_ones(trained, text):
    name, model = trained
    golden = np.load(DATA / name / f"golden_{text}.npz")
    ids = torch.from_numpy(golden["tokens"].astype(np.int64))[None]
    with capture(model, sites=("attention", "hidden", "attention_output", "mlp_output")) as recording:
        assert recording.tier == 1
        layers = list(recording.run(input_ids=ids))
    assert [layer.index for layer in layers] == list(range(5))
    maps, logits = TOLERANCE[name]
    for layer in layers:
        gap = np.abs(layer.attention[0].numpy() - golden["attn"][layer.index]).max()
        assert gap <= maps, f"layer {layer.index}: {gap}"
        norms = layer.hidden[0].double().norm(dim=-1).numpy()
        np.testing.assert_allclose(norms, golden["resid_norm"][layer.index], rtol=1e-4)
        after = (layer.hidden + layer.attention_output + layer.mlp_output)[0].double().norm(dim=-1).numpy()
        np.testing.assert_allclose(after, golden["resid_norm"][layer.index + 1], rtol=1e-4)
    np.testing.assert_allclose(recording.output.logits[0, -1].numpy(), golden["logits_last"], atol=logits)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_cut_before_the_metrics(trained, side):
    """The golden text beside a longer one: its trimmed maps are those it has alone."""
    name, model = trained
    golden = np.load(DATA / name / "golden_bos64.npz")
    short = torch.from_numpy(golden["tokens"].astype(np.int64))
    longer = torch.cat([short, short[1:11]])
    ids, mask = torch.zeros(2, len(longer), dtype=torch.int64), torch.zeros(2, len(longer), dtype=torch.int64)
    ids[0], mask[0] = longer, 1
    place = slice(len(longer) - 64, None) if side == "left" else slice(0, 64)
    ids[1, place], mask[1, place] = short, 1
    positions = (mask.cumsum(-1) - 1).clamp_min(0)
    with capture(model) as recording:
        for layer in recording.run(input_ids=ids, attention_mask=mask, position_ids=positions):
            assert layer.lengths.tolist() == [74, 64]
            maps = layer.matrices()
            assert maps.shape == (2, 8, 74, 74)
            trimmed = maps[1, :, :64, :64].numpy()
            assert np.abs(trimmed - golden["attn"][layer.index]).max() <= 2 * TOLERANCE[name][0]
            sums = maps[0].sum(-1)
            assert float((sums - 1).abs().max()) < 1e-5
            if side == "left":
                assert float(maps[1, :, 64:].abs().sum() + maps[1, :, :, 64:].abs().sum()) == 0.0


def test_the_sink_head_of_llama2xs_is_seen(trained):
    name, model = trained
    golden = np.load(DATA / name / "golden_bos64.npz")
    ids = torch.from_numpy(golden["tokens"].astype(np.int64))[None]
    with capture(model) as recording:
        share = torch.stack([layer.attention[0, :, 1:, 0].mean(-1) for layer in recording.run(input_ids=ids)])
    if name == "llama2xs":
        assert divmod(int(share.argmax()), 8) == (2, 7)
        assert float(share.max()) == pytest.approx(0.62, abs=0.005)
    else:
        assert float(share.max()) < 0.17
