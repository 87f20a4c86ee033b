# SPDX-License-Identifier: MIT
"""`LazyAttention` of queries and keys on a device against the same attention measured by the core.

On a CUDA device, or in Triton's interpreter: TRITON_INTERPRET=1 pytest tests/devices
"""

import os

import numpy as np
import pytest
import torch

import attnscope as asc

pytest.importorskip("triton", reason="triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# the interpreter multiplies with NumPy, which has no bfloat16
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16
pytestmark = [
    pytest.mark.skipif(
        DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1",
        reason="neither a CUDA device nor TRITON_INTERPRET=1",
    ),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of the interpreter
]

CASES = {
    "causal, grouped heads": {},
    "window": {"window": 7},
    "window of both sides": {"causal": False, "window": (5, 3)},
    "later keys to a bound": {"causal": False, "window": (None, 3), "lengths": torch.tensor([20, 33])},
    "softcap": {"softcap": 3.0},
    "slopes": {"bias": torch.tensor([0.5, 0.1, 0.2, 0.05])},
    "learned sinks": {"sink_logits": torch.tensor([4.0, -1.0, 0.0, 1.0])},
    "lengths": {"lengths": torch.tensor([20, 33])},
    "full": {"causal": False},
}


def queries_and_keys(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """Return two texts of four heads of queries and two of keys, [2, h, 33, 16]."""
    generator = torch.Generator().manual_seed(5)
    return tuple(torch.randn(2, heads, 33, 16, generator=generator).mul(2).to(dtype) for heads in (4, 2))  # type: ignore[return-value]


def on_core(monkeypatch: pytest.MonkeyPatch, query: torch.Tensor, key: torch.Tensor, **options):
    """Return the attention as the core measures it, in float64."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    return asc.LazyAttention(query.cpu(), key.cpu(), precision="exact", **options)


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_public_measures_equal_the_core(name, dtype, monkeypatch):
    query, key = queries_and_keys(dtype)
    measures = {
        "attention_entropy": asc.attention_entropy,
        "incoming_attention": asc.incoming_attention,
        "sink_share": lambda lazy: asc.sink_share(lazy, first=2).share,
        "top_mass": asc.top_mass,
        "log_z": lambda lazy: lazy.log_z,
        "mass": lambda lazy: lazy.row_measures("mass")["mass"],
        "distance": lambda lazy: lazy.row_measures("distance")["distance"],
    }
    lazy = asc.LazyAttention(query.to(DEVICE), key.to(DEVICE), **CASES[name])
    have = {measure: function(lazy) for measure, function in measures.items()}
    core = on_core(monkeypatch, query, key, **CASES[name])
    for measure, function in measures.items():
        np.testing.assert_allclose(have[measure], function(core), rtol=3e-5, atol=3e-5, err_msg=measure)


@pytest.mark.parametrize("name", CASES)
def test_the_kernels_of_the_device_measure(name, monkeypatch):
    """The core is not asked for what the device gives."""
    from attnscope import _core

    def refuse(*_):
        raise AssertionError("the core was asked")

    query, key = (part.to(DEVICE) for part in queries_and_keys())
    monkeypatch.setattr(_core, "lazy_measures", refuse)
    lazy = asc.LazyAttention(query, key, **CASES[name])
    asc.attention_entropy(lazy)
    asc.incoming_attention(lazy)


def test_what_the_kernels_do_not_know_is_measured_by_the_core(monkeypatch):
    query, key = queries_and_keys()
    mask = torch.rand(33, 33, generator=torch.Generator().manual_seed(1)) > 0.5
    mask |= torch.eye(33, dtype=torch.bool)
    lazy = asc.LazyAttention(query.to(DEVICE), key.to(DEVICE), mask=mask)
    entropy, sparse = asc.attention_entropy(lazy), lazy.at_least(0.2)
    core = on_core(monkeypatch, query, key, mask=mask)
    np.testing.assert_allclose(entropy, asc.attention_entropy(core), rtol=1e-5, atol=1e-5)
    assert torch.equal(sparse.keys, core.at_least(0.2).keys)


def test_tensors_of_two_devices_are_refused():
    if DEVICE == "cpu":
        pytest.skip("there is one device here")
    query, key = queries_and_keys()
    with pytest.raises(ValueError, match="one device, got cuda:0 and cpu"):
        asc.LazyAttention(query.to(DEVICE), key)
