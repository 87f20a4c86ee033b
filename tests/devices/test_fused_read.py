# SPDX-License-Identifier: MIT
"""The one read of maps in Triton against the core, on a CUDA device or in Triton's interpreter."""

import math
import os

import pytest
import torch

import attnscope as asc

pytest.importorskip("triton", reason="triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = [
    pytest.mark.skipif(
        DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1",
        reason="neither a CUDA device nor TRITON_INTERPRET=1",
    ),
    pytest.mark.filterwarnings("ignore::attnscope.errors.NonFiniteWarning"),
]


@pytest.fixture(autouse=True)
def every_size_on_the_device(monkeypatch):
    """Measure small maps on the device too, where the CPU would be faster."""
    from attnscope.devices import placement

    monkeypatch.setattr(placement, "FEWEST_BYTES", 0)


@pytest.mark.parametrize("n", [1, 5, 130])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_sums_of_one_read_equal_the_core(n, dtype):
    logits = torch.randn(1, 2, n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
    causal = logits.masked_fill(hidden, -math.inf).softmax(-1).to(dtype)
    if n > 4:
        causal[0, 1, 2, 3] = math.nan
    for maps in (causal, causal.mT.contiguous().mT):
        for lengths in (None, torch.tensor([max(1, n - 3)])):
            for support in ("auto", "causal"):
                options = {"lengths": lengths, "support": support}
                for function in (
                    asc.attention_entropy,
                    asc.incoming_attention,
                    asc.top_mass,
                    asc.sink_position,
                ):
                    expected = function(maps, **options)
                    with asc.devices.use("torch"):
                        computed = function(maps.to(DEVICE), **options)
                    torch.testing.assert_close(computed, expected, rtol=1e-12, atol=1e-13, equal_nan=True)


def test_the_class_in_use_is_the_fused_one():
    from attnscope.devices import fused_read, slabs

    assert slabs._slab_type(torch.device(DEVICE), None) is fused_read.FusedSlab
