# SPDX-License-Identifier: MIT
"""Maps of fewer queries than keys give the same numbers in torch operations as in the core."""

from typing import Any

import pytest
import torch

import attnscope as asc
from every_call import answer

QUERIES, KEYS = 3, 7
#: Metrics that take rectangles, and what they need besides one.
METRICS: dict[str, dict[str, Any]] = {
    "attention_entropy": {},
    "incoming_attention": {},
    "sink_share": {},
    "sink_rate": {},
    "top_mass": {},
    "head_divergence": {},
    "sink_removal": {"keys": [0]},
    "span_attention": {"spans": [0, 2]},
    "local_global_ratio": {},
    "power_spectrum": {},
    "singular_values": {},
    "effective_rank": {},
    "stable_rank": {},
    "spectral_ratio": {},
    "participation_ratio": {},
    "marchenko_pastur_deviation": {},
    "lookback": {"answer": [5, 7]},
}


@pytest.fixture(scope="module")
def maps() -> torch.Tensor:
    scores = torch.randn(2, KEYS, KEYS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    hidden = torch.ones(KEYS, KEYS, dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)[:, -QUERIES:]


@pytest.mark.parametrize("name", METRICS)
def test_a_rectangle_in_torch_equals_the_core(name: str, maps: torch.Tensor) -> None:
    arguments = {"heads" if name in ("head_divergence", "sink_removal") else "attention": maps}
    core = answer(getattr(asc, name), {**arguments, **METRICS[name]})
    with asc.devices.use("torch"):
        other = answer(getattr(asc, name), {**arguments, **METRICS[name]})
    pairs = list(zip(_tensors(core), _tensors(other), strict=True))
    assert pairs
    for expected, result in pairs:
        torch.testing.assert_close(result, expected, atol=1e-9, rtol=1e-9, equal_nan=True)


def test_a_graph_metric_refuses_with_both_sizes(maps: torch.Tensor) -> None:
    with asc.devices.use("torch"), pytest.raises(ValueError, match=rf"{QUERIES}, {KEYS}"):
        asc.fiedler_value(maps)


def _tensors(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    fields = vars(result).values() if hasattr(result, "__dict__") and vars(result) else result
    return [part for field in fields for part in _tensors(field)]
