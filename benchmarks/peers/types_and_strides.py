# SPDX-License-Identifier: MIT
"""Metrics whose peer is a line of torch, for maps of every type, both strides and every size.

A peer gets the maps in their own type or, where it computes in float32, with the conversion in its time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import attnscope as asc
from harness import Benchmark, sizes
from kernels.alignment import masked, vectorised
from kernels.participation_ratio import one_line
from kernels.reference_influence import vectorised as vectorised_influence
from kernels.sinks import torch_incoming, torch_share, visible
from maps import synthetic_maps, usual_count

SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048)
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
HEADS = 8
WIDTH = 64

Calls = tuple[Callable[[], Any], dict[str, Callable[[], Any]]]


def local_ratio(a: torch.Tensor, near: torch.Tensor) -> torch.Tensor:
    return (a * near).sum((-1, -2)) / (a * ~near).sum((-1, -2))


def of_maps(case: str, a: torch.Tensor, mask: torch.Tensor) -> Calls:
    """Return ours and the peers of a metric of maps alone."""
    n = a.shape[-1]
    if case == "incoming_attention":
        return lambda: asc.incoming_attention(a), {"torch": lambda: torch_incoming(a, mask)}
    if case == "sink_share":
        return lambda: torch.stack(asc.sink_share(a)[:2]), {"torch": lambda: torch_share(a, mask)}
    if case == "local_global_ratio":
        near = (torch.arange(n)[:, None] - torch.arange(n)).abs() <= 8
        return lambda: asc.local_global_ratio(a), {"torch": lambda: local_ratio(a, near)}
    if case == "attention_entropy":
        return lambda: asc.attention_entropy(a), {
            "torch entr": lambda: torch.special.entr(a).sum(-1),
            "torch log": lambda: -(a * a.clamp_min(torch.finfo(a.dtype).tiny).log()).sum(-1),
        }
    return lambda: asc.participation_ratio(a), widened(a, one_line)


def of_states(case: str, a: torch.Tensor, mask: torch.Tensor) -> Calls:
    """Return ours and the peers of a metric of maps and the states of their value heads."""
    n = a.shape[-1]
    heads = a.unflatten(0, (-1, HEADS)) if len(a) % HEADS == 0 else a[None]
    one_state = case.endswith("shared")
    shape = (len(heads), 1 if one_state else heads.shape[1], n, WIDTH * HEADS if one_state else WIDTH)
    states = torch.randn(shape, generator=torch.Generator().manual_seed(n))
    if case.startswith("reference"):
        reference = torch.arange(n) == 0
        return lambda: torch.stack(list(asc.reference_influence(heads, states, reference))), widened(
            heads, lambda x: vectorised_influence(x, states.to(x), reference)
        )
    pairs = mask & ~torch.eye(n, dtype=torch.bool)
    peers = widened(heads, lambda x: vectorised(x, states.to(x), pairs))
    for name, call in widened(heads, lambda x: masked(x, states.to(x), pairs.to(x))).items():
        peers[f"{name} masked"] = call
    return lambda: asc.geometric_semantic_alignment(heads, states), peers


def widened(a: torch.Tensor, line: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Callable[[], Any]]:
    """Return the peers that multiply matrices: in float32, half types converted first, or in float64."""
    if a.dtype == torch.float64:
        return {"torch": lambda: line(a)}
    return {"torch float32": lambda: line(a.float())}


CASES: dict[str, Callable[[str, torch.Tensor, torch.Tensor], Calls]] = {
    "incoming_attention": of_maps,
    "sink_share": of_maps,
    "local_global_ratio": of_maps,
    "attention_entropy": of_maps,
    "participation_ratio": of_maps,
    "alignment per head": of_states,
    "alignment shared": of_states,
    "reference_influence per head": of_states,
    "reference_influence shared": of_states,
}


def multiply_adds(case: str, attention: torch.Tensor, mask: torch.Tensor) -> float | None:
    """Return how many a call cannot do without, None where it multiplies no matrices."""
    n, pairs = attention.shape[-1], float(mask.sum())
    if case == "participation_ratio":  # a symmetric product, of triangles where maps are causal
        return len(attention) * n**3 / (2 if pairs == n * n else 6)
    if case.endswith("per head"):
        return len(attention) * pairs * WIDTH
    if case.startswith("reference"):
        return len(attention) * pairs * WIDTH * HEADS
    # cosines of a state that the heads of a layer share are computed once
    return len(attention) * pairs * WIDTH if case.startswith("alignment") else None


def inputs(n: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and maps of every regime, type and stride."""
    for regime in ("sink", "bidirectional"):
        maps = synthetic_maps(regime, n, usual_count(n))
        for dtype in TYPES:
            typed = maps.to(dtype)
            strided = typed.permute(1, 2, 0).contiguous().permute(2, 0, 1)
            for strides, attention in (("contiguous", typed), ("head-fastest", strided)):
                if strides == "contiguous" or len(maps) > 1:
                    yield f"{regime} n={n} {str(dtype).removeprefix('torch.')} {strides}", attention


def agree_to(dtype: torch.dtype) -> Callable[[str, torch.Tensor, torch.Tensor], None]:
    """Return the comparison of answers for the rounding of torch, which adds up in the maps' own type."""
    tolerance = 1e-9 if dtype == torch.float64 else 500.0 * torch.finfo(dtype).eps

    def agree(peer: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
        theirs = theirs.to(torch.float64)
        # float16 ends at 65504, and half types lose ratios of which one part nearly vanishes
        compared = ours.isfinite() & theirs.isfinite() & (theirs.abs() < 1e3)
        error = (ours - theirs)[compared].abs() / (1 + theirs[compared].abs())
        if error.numel() and not float(np.quantile(error.numpy(), 0.9)) <= tolerance:
            raise AssertionError(f"{peer}: answers differ by {float(error.max()):.1e}")

    return agree


def main() -> None:
    benchmark = Benchmark("types_and_strides", __doc__ or "")
    for case, calls in CASES.items():
        for n in sizes(benchmark, SIZES, (16, 64)):
            for name, attention in inputs(n):
                if not benchmark.wants(f"{case}: {name}"):
                    continue
                mask = visible(attention)
                ours, peers = calls(case, attention, mask)
                benchmark.compare(
                    f"{case}: {name}",
                    len(attention),
                    ours,
                    peers,
                    agree=agree_to(attention.dtype),
                    reads=attention.nbytes,
                    multiply_adds=multiply_adds(case, attention, mask),
                    facts={"n": n, "case": case},
                )
    benchmark.finish()


if __name__ == "__main__":
    main()
