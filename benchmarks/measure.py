# SPDX-License-Identifier: MIT
"""`measure` with several metrics of rows and columns, against vectorised torch and against our own functions
one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import attnscope as asc
from harness import Benchmark, sizes
from kernels.sinks import visible
from maps import all_maps

# of rows alone under `fast`
FAST_TARGET = 15.0
METRICS = (
    "attention_entropy",
    "incoming_attention",
    "sink_share",
    "sink_rate",
    "sink_position",
    "top_mass",
    "head_divergence",
)
#: The key of largest incoming attention, which is what a line of torch gives.
OPTIONS = {"sink_position": {"rule": "largest"}}
REQUEST = {name: OPTIONS.get(name, {}) for name in METRICS}
TARGET, LIMIT = 25.0, 60.0
HEADS = 8


def in_torch(a: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same seven, vectorised, on heads [layers, h, n, n]."""
    n = a.shape[-1]
    seen = mask.sum(0)
    mass = a.sum(-2)
    incoming = mass / seen
    plogp = torch.xlogy(a, a)
    mean = a.mean(-3, keepdim=True)
    return {
        "attention_entropy": -plogp.sum(-1),
        "incoming_attention": incoming,
        "sink_share": a[..., 0].mean(-1),
        "sink_rate": incoming[..., 0] > 0.3,
        "sink_position": torch.where(seen >= -(-3 * n // 10), incoming, -1.0).argmax(-1),
        "top_mass": mass.amax(-1) / mass.sum(-1),
        "head_divergence": (plogp - torch.xlogy(a, mean)).sum(-1).mean(-1),
    }


def in_torch_without_divergence(a: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same without the divergence, which is no row metric."""
    seen = mask.sum(0)
    mass = a.sum(-2)
    incoming = mass / seen
    return {
        "attention_entropy": -torch.xlogy(a, a).sum(-1),
        "incoming_attention": incoming,
        "sink_share": a[..., 0].mean(-1),
        "sink_rate": incoming[..., 0] > 0.3,
        "top_mass": mass.amax(-1) / mass.sum(-1),
    }


ROW_METRICS = ("attention_entropy", "incoming_attention", "sink_share", "sink_rate", "top_mass")


def agree_fast(peer: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    for name in ROW_METRICS:
        our_value, other = (getattr(value[name], "share", value[name]) for value in (ours, theirs))
        np.testing.assert_allclose(
            our_value.double().numpy(),
            other.double().numpy(),
            rtol=1e-5,
            atol=2e-5,
            err_msg=f"{peer}, {name}",
        )


def one_by_one(a: torch.Tensor) -> dict[str, Any]:
    return {name: getattr(asc, name)(a, **options) for name, options in REQUEST.items()}


def agree(peer: str, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    tolerance = 0.0 if peer == "ours one by one" else 2e-5 if "float32" in peer else 1e-10
    for name in METRICS:
        our_value, other = ours[name], theirs[name]
        if name == "sink_share":
            our_value = our_value.share
            other = other.share if peer == "ours one by one" else other
        np.testing.assert_allclose(
            our_value.double().numpy(),
            other.double().numpy(),
            rtol=0,
            atol=tolerance,
            err_msg=f"{peer}, {name}",
        )


def main() -> None:
    benchmark = Benchmark("measure", __doc__ or "")
    for n in sizes(benchmark, (32, 64, 128, 256, 512, 1024), (64,)):
        # In float32 the head mean of llama2xs's sharpest rows is 0, and torch's divergence infinite.
        inputs = all_maps(n, regimes=("sink", "diffuse", "bidirectional"), models=("stories260K",))
        for name, attention in inputs.items():
            count = len(attention) // HEADS * HEADS
            heads = (attention[:count] if count else attention).reshape(-1, min(HEADS, len(attention)), n, n)
            wide, mask = heads.double(), visible(attention)
            benchmark.compare(
                name,
                heads.shape[0] * heads.shape[1],
                lambda a=heads: asc.measure(a, REQUEST),
                {
                    "torch float32": lambda a=heads, m=mask: in_torch(a, m),
                    "torch float64": lambda a=wide, m=mask: in_torch(a, m),
                    "ours one by one": lambda a=heads: one_by_one(a),
                },
                agree=agree,
                target=TARGET,
                limit=LIMIT,
                against="torch float32",
                reads=heads.nbytes,
                facts={"n": n, "heads": HEADS},
            )
            benchmark.compare(
                f"{name} rows, fast",
                heads.shape[0] * heads.shape[1],
                lambda a=heads: asc.measure(a, ROW_METRICS, precision="fast"),
                {
                    "torch float32": lambda a=heads, m=mask: in_torch_without_divergence(a, m),
                    "ours exact": lambda a=heads: asc.measure(a, ROW_METRICS),
                },
                agree=agree_fast,
                target=FAST_TARGET,
                against="torch float32",
                reads=heads.nbytes,
                facts={"n": n, "heads": HEADS, "precision": "fast"},
            )
    benchmark.finish()


if __name__ == "__main__":
    main()
