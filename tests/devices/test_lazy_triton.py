# SPDX-License-Identifier: MIT
"""Measures from queries and keys by the Triton kernels, against the dense map in float64.

They run on a CUDA device, or in Triton's interpreter: TRITON_INTERPRET=1 pytest tests/devices
"""

import math
import os

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# the interpreter multiplies with NumPy, which has no bfloat16
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16
pytestmark = [
    pytest.mark.skipif(
        DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1",
        reason="neither a CUDA device nor TRITON_INTERPRET=1",
    ),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of the interpreter, for queries that see nothing
]

CASES = {
    "causal, grouped heads": ((1, 4, 2, 70, 70, 16), {}),
    "the last queries of a text": ((1, 2, 2, 20, 70, 24), {}),
    "cross attention": ((1, 2, 1, 33, 50, 8), {"causal": False}),
    "queries before the first key": ((1, 2, 1, 90, 20, 8), {}),
    "window": ((1, 2, 2, 80, 80, 16), {"window": 7}),
    "window of one": ((1, 2, 2, 20, 20, 16), {"window": 1}),
    "window of both sides": ((1, 2, 2, 200, 200, 16), {"causal": False, "window": 70, "after": 9}),
    "window of both sides, the last queries": (
        (1, 2, 1, 90, 260, 16),
        {"causal": False, "window": 4, "after": 71},
    ),
    "no later keys by a window": ((1, 2, 2, 150, 150, 16), {"causal": False, "after": 0}),
    "later keys to a bound, lengths": (
        (2, 2, 2, 150, 150, 16),
        {"causal": False, "after": 3, "lengths": torch.tensor([149, 70])},
    ),
    "causal hides the later keys of a window": ((1, 2, 2, 80, 80, 16), {"window": 7, "after": 5}),
    "softcap": ((1, 2, 2, 40, 40, 16), {"softcap": 3.0}),
    "ALiBi": ((1, 2, 2, 70, 70, 16), {"slopes": torch.tensor([0.5, 0.1])}),
    "learned sinks, one above all scores": (
        (1, 2, 2, 70, 70, 16),
        {"sink_logits": torch.tensor([40.0, -1.0])},
    ),
    "lengths": ((2, 2, 2, 70, 70, 16), {"lengths": torch.tensor([40, 70])}),
    "scaling": ((1, 1, 1, 30, 30, 16), {"scaling": 0.7}),
    "one token": ((1, 1, 1, 1, 1, 16), {}),
}


def dense_attention(
    query,
    key,
    scaling=None,
    causal=True,
    window=None,
    after=None,
    softcap=None,
    slopes=None,
    sink_logits=None,
    lengths=None,
):
    """Return weights [b, h, q, k], log Z, distances i − j, and which queries are inside, in float64."""
    query, key = query.double().cpu(), key.double().cpu()
    heads, queries, width = query.shape[1:]
    keys = key.shape[2]
    key = key.repeat_interleave(heads // key.shape[1], 1)
    scores = query @ key.mT * (width**-0.5 if scaling is None else scaling)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    i, j = torch.arange(queries)[:, None] + keys - queries, torch.arange(keys)
    distance = i - j
    if slopes is not None:
        scores = scores - slopes.double()[:, None, None] * distance.abs()
    sizes = torch.full((len(query),), keys) if lengths is None else lengths
    seen = (j < sizes[:, None, None, None]) & (
        torch.ones_like(distance, dtype=torch.bool) if not causal else distance >= 0
    )
    if window:
        seen = seen & (distance < window)
    if after is not None:
        seen = seen & (-distance <= after)
    scores = scores.masked_fill(~seen, -math.inf)
    if sink_logits is not None:
        sink = sink_logits.double()[:, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sink], -1)
    # a query that sees nothing has no weight
    weights = torch.where(seen, scores.softmax(-1)[..., :keys], 0.0)
    inside = i[None, None, :, 0] < sizes[:, None, None]
    return weights, scores.logsumexp(-1), distance, inside.expand(weights.shape[:3])


@pytest.mark.parametrize("dtype", [torch.float32, HALF], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_every_measure_equals_the_dense_map(name, dtype):
    from attnscope.devices.lazy.lazy_attention import key_measures, row_measures

    (batch, heads, key_heads, queries, keys, width), options = CASES[name]
    generator = torch.Generator().manual_seed(3)
    # heads behind positions in memory, as models hold them
    query = torch.randn(batch, queries, heads, width, generator=generator).transpose(1, 2).mul(2).to(dtype)
    key = torch.randn(batch, key_heads, keys, width, generator=generator).to(dtype)
    weights, log_z, distance, inside = dense_attention(query, key, **options)
    rows = row_measures(query.to(DEVICE), key.to(DEVICE), first=2, near=5, **options)
    key_options = {option: value for option, value in options.items() if option != "sink_logits"}
    received = key_measures(query.to(DEVICE), key.to(DEVICE), rows.log_z, squares=True, **key_options)
    counted = torch.where(inside[..., None], weights, 0.0)
    expected = {
        "log_z": log_z,
        "entropy": -torch.xlogy(weights, weights).sum(-1),
        "collision": weights.square().sum(-1),
        "largest": weights.amax(-1),
        "distance": (weights * distance.abs()).sum(-1),
        "first_mass": weights[..., :2].sum(-1),
        "near_mass": torch.where(distance.abs() < 5, weights, 0.0).sum(-1),
    }
    for measure, want in expected.items():
        have = getattr(rows, measure).cpu()
        assert bool(have[~inside].isnan().all())
        np.testing.assert_allclose(have[inside], want[inside], rtol=2e-5, atol=2e-5, err_msg=measure)
    key_inside = ~received.mass.isnan().cpu()
    np.testing.assert_allclose(
        received.mass.cpu()[key_inside], counted.sum(-2)[key_inside], rtol=2e-5, atol=2e-5
    )
    squares = counted.square().sum(-2)
    np.testing.assert_allclose(received.squares.cpu()[key_inside], squares[key_inside], rtol=2e-5, atol=2e-5)


def test_keys_of_zeros_give_uniform_attention():
    """Row i has entropy log(i + 1), key j receives Σ_{i>=j} 1/(i + 1)."""
    from attnscope.devices.lazy.lazy_attention import key_measures, row_measures

    n = 4096 if DEVICE == "cuda" else 200
    query = torch.randn(1, 1, n, 16, device=DEVICE)
    key = torch.zeros(1, 1, n, 16, device=DEVICE)
    rows = row_measures(query, key)
    mass = key_measures(query, key, rows.log_z).mass
    counts = torch.arange(1, n + 1, dtype=torch.float64)
    np.testing.assert_allclose(rows.entropy.cpu()[0, 0], counts.log(), rtol=1e-5, atol=1e-6)
    harmonic = (1 / counts).flip(0).cumsum(0).flip(0)
    np.testing.assert_allclose(mass.cpu()[0, 0], harmonic, rtol=1e-5)


def test_shapes_that_do_not_belong_together_are_refused():
    from attnscope.devices.lazy.lazy_attention import row_measures

    with pytest.raises(ValueError, match=r"shapes \(1, 2, 5, 8\) and \(1, 2, 5, 4\)"):
        row_measures(torch.zeros(1, 2, 5, 8), torch.zeros(1, 2, 5, 4))
    with pytest.raises(ValueError, match="3 key heads do not divide 4 query heads"):
        row_measures(torch.zeros(1, 4, 5, 8), torch.zeros(1, 3, 5, 8))
    with pytest.raises(ValueError, match="unknown measure 'mean'"):
        row_measures(torch.zeros(1, 4, 5, 8), torch.zeros(1, 2, 5, 8), ["mean"])
