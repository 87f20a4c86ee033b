# SPDX-License-Identifier: MIT
"""Sink metrics, one by one and as a study asks for them, against vectorised torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import attnscope as asc
from harness import Benchmark, sizes
from maps import all_maps, variants


def visible(attention: torch.Tensor) -> torch.Tensor:
    """Where queries see keys, [n, n]: every map of a benchmark has the same mask."""
    all_pairs = torch.ones(attention.shape[-2:], dtype=torch.bool)
    return all_pairs if bool(attention[0].triu(1).any()) else all_pairs.tril()


def torch_incoming(a: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return a.sum(-2) / mask.sum(0)


def torch_tokens(a: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    a = a.double()
    tau = torch.quantile(a[..., mask], 0.9, dim=-1)[:, None, None]
    seen = mask.sum(0)
    strong = ((a.double() >= tau) & mask).sum(-2) / seen >= 0.4
    return strong & (seen >= math.ceil(0.3 * len(mask) - 1e-9))


def torch_share(a: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The same with NaN for a map that holds NaN or infinity anywhere, which a sum times 0 tells."""
    valid = a.sum((-1, -2)) * 0.0
    return torch.stack([a[..., 0].mean(-1) + valid, (1.0 / mask.sum(1, dtype=torch.float64)).mean() + valid])


def torch_all(a: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Share, rate, position, count, top mass and mean entropy, as the sink study stores them."""
    alpha = torch_incoming(a, mask)
    competing = torch.where(mask.sum(0) >= math.ceil(0.3 * len(mask) - 1e-9), alpha, -1.0)
    mass = a.sum(-2)
    columns = (
        a[..., 0].mean(-1),
        (alpha[..., 0] > 0.3),
        competing.argmax(-1),
        torch_tokens(a, mask).sum(-1),
        mass.amax(-1) / mass.sum(-1),
        torch.special.entr(a).sum(-1).mean(-1),
    )
    return torch.stack([column.double() for column in columns])


def our_all(a: torch.Tensor) -> torch.Tensor:
    result = asc.measure(
        a,
        {
            "sink_share": {},
            "sink_rate": {},
            "sink_position": {"rule": "largest"},
            "sink_tokens": {"rule": "frequency"},
            "top_mass": {},
            "attention_entropy": {},
        },
    )
    columns = (
        result["sink_share"].share,
        result["sink_rate"],
        result["sink_position"],
        result["sink_tokens"].sum(-1),
        result["top_mass"],
        result["attention_entropy"].mean(-1),
    )
    return torch.stack([column.double() for column in columns])


CASES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "incoming_attention": (asc.incoming_attention, torch_incoming),
    "sink_tokens": (
        lambda a: asc.sink_tokens(a, rule="frequency").double(),
        lambda a, mask: torch_tokens(a, mask).double(),
    ),
    "sink_share": (lambda a: torch.stack(asc.sink_share(a)[:2]), torch_share),
    "all of a study": (our_all, torch_all),
}


#: Cases whose answers are sums; those that compare entries answer otherwise where torch rounds them.
SUMS = ("incoming_attention", "sink_share")


#: Row of "all of a study" that holds the key with the largest incoming attention.
POSITION = 2


def agree_to(
    case: str, a: torch.Tensor, mask: torch.Tensor
) -> Callable[[str, torch.Tensor, torch.Tensor], None]:
    """Return the comparison of answers for torch's rounding, which adds up in the maps' own type.

    Two keys whose incoming attention is equal but for that rounding may both be the largest.
    """
    tolerance = 100.0 * torch.finfo(a.dtype).eps

    def close(peer: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        np.testing.assert_allclose(
            ours.numpy(), theirs.numpy(), rtol=tolerance, atol=tolerance / 5, err_msg=peer
        )

    def agree(peer: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        theirs = theirs.double()
        if case == "all of a study":
            incoming = torch_incoming(a.double(), mask)
            largest = [incoming.gather(-1, side[POSITION].long()[:, None]) for side in (ours, theirs)]
            close(f"{peer}, position", *largest)
            ours, theirs = (torch.cat([side[:POSITION], side[POSITION + 1 :]]) for side in (ours, theirs))
        close(peer, ours, theirs)

    return agree


def main() -> None:
    benchmark = Benchmark("sinks", __doc__ or "")
    for n in sizes(benchmark, (16, 32, 64, 128, 256, 512, 1024, 2048), (64,)):
        inputs = variants(all_maps(n, regimes=("sink", "peaky", "bidirectional")))
        for case, (ours, theirs) in CASES.items():
            for name, attention in inputs.items():
                if attention.dtype != torch.float32 and case not in SUMS:
                    continue
                mask = visible(attention)
                benchmark.compare(
                    f"{case}: {name}",
                    len(attention),
                    lambda a=attention, f=ours: f(a),
                    {"torch": lambda a=attention, f=theirs, m=mask: f(a, m)},
                    agree=agree_to(case, attention, mask),
                    reads=attention.nbytes,
                    facts={"n": n, "case": case},
                )
    benchmark.finish()


if __name__ == "__main__":
    main()
