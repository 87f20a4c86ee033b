# SPDX-License-Identifier: MIT
"""Digests of 42 results on 1,000 seeded square maps, as the code gave them before maps could be rectangles.

    python tests/python/rectangles/square_results.py

prints today's. `square_results.json` holds those of the last code that took square maps alone, for the
instruction set that it names: a digest is of every bit, and lanes of another width round otherwise. Those of
`local_global_ratio`, `geometric_semantic_alignment`, `participation_ratio`, `sink_test` and `sink_excess` are
later: they add up in another order since. So is that of `spectral_ratio`, whose NaN have another sign, and
that of `sink_removal`, which reduces nothing where no key is taken out. Those of `power_spectrum` changed
with the peak of bins that are alike, that of "participation_ratio eigen" with eigenvalues that are
diagonal entries, and those of `marchenko_pastur` with quantiles of laws that are solved for once a call: its
Wasserstein distance moved by 6e-15 at most, and nothing else.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import attnscope as asc
from attnscope import _isa

STORED = Path(__file__).with_suffix(".json")
CASES = 250
#: Functions of maps and their lengths, with nothing else to say.
PLAIN = (
    *("fiedler_value", "laplacian_eigenvalues", "laplacian_gap", "singular_values", "participation_ratio"),
    *("stable_rank", "effective_rank", "spectral_gap", "spectral_ratio", "marchenko_pastur"),
    *("attention_entropy", "incoming_attention", "sink_rate", "sink_tokens", "sink_position", "sink_excess"),
    *("sink_share", "sink_test", "top_mass", "local_global_ratio", "power_spectrum", "spectral_uncertainty"),
    "wavelet_transform",
)
SIGNALS = ("power_spectrum", "wavelet_transform")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class Case(NamedTuple):
    """Four square maps of one size, what their queries see, and states of their tokens."""

    maps: Tensor
    support: Any
    lengths: Tensor | None
    states: Tensor
    reference: Tensor


def draw_cases(generator: torch.Generator) -> Iterator[Case]:
    """Yield maps of all types, visibilities, sizes, strides, with ties, zero rows and NaN; the generator goes
    on to draw spans in between.
    """
    for case in range(CASES):
        n = int(torch.randint(1, 70, (1,), generator=generator)) if case % 25 else 150
        kind = ("causal", "full", "window")[case % 3]
        logits = torch.randn(4, n, n, generator=generator, dtype=torch.float64) * (0.2 + case % 5)
        query, key = torch.arange(n)[:, None], torch.arange(n)[None]
        visible = {
            "causal": key <= query,
            "full": torch.ones(n, n, dtype=torch.bool),
            "window": (key <= query) & (key > query - 5),
        }[kind]
        maps = logits.masked_fill(~visible, -torch.inf).softmax(-1)
        if case % 7 == 3:
            maps = maps.round(decimals=1)
        maps = maps.to(DTYPES[case % 4])
        if case % 11 == 5:
            maps[1, -1, -1] = torch.nan
        if case % 6 == 4:
            maps = maps.mT.contiguous().mT
        words = {"causal": "causal", "full": "auto", "window": visible}
        support = "auto" if case % 2 else words[kind]
        lengths = torch.randint(1, n + 1, (4,), generator=generator) if case % 3 == 1 else None
        states = torch.randn(4, n, 6, generator=generator)
        reference = torch.rand(4, n, generator=generator) < 0.3
        yield Case(maps, support, lengths, states, reference)


def plain_results(case: Case) -> Iterator[tuple[str, Any]]:
    """Yield the results of the functions that need maps alone, by name."""
    maps, support, lengths, *_ = case
    for name in PLAIN:
        function = getattr(asc, name)
        options: dict[str, Any] = {"lengths": lengths}
        if "support" in inspect.signature(function).parameters:
            options["support"] = support
        if name == "top_mass":
            options["k"] = min(3, maps.shape[-1])
        if name in (*SIGNALS, "spectral_uncertainty"):
            options["min_keys"] = 6
        yield name, function(maps, **options)
        if name in SIGNALS:
            for signal in ("last", "mean", "offset"):
                yield f"{name} {signal}", function(maps, signal=signal, **options)
        if name == "sink_tokens":
            yield "sink_tokens frequency", function(maps, rule="frequency", **options)
        if name == "marchenko_pastur":
            yield "marchenko_pastur permutation", function(maps, null="permutation", draws=5, **options)
        if name == "participation_ratio":
            for spectrum in ("eigen", "laplacian"):
                yield f"participation_ratio {spectrum}", function(maps, spectrum=spectrum, **options)


def other_results(case: Case, span: tuple[int, int]) -> Iterator[tuple[str, Any]]:
    """Yield the results of functions that read a whole layer, spans or states, by name."""
    maps, support, lengths, states, reference = case
    of_layer = {"support": support, "lengths": None if lengths is None else lengths[0]}
    of_maps = {"support": support, "lengths": lengths}
    yield "head_divergence", asc.head_divergence(maps, **of_layer)
    yield "sink_removal", asc.sink_removal(maps, reference[0], **of_layer)
    yield "span_attention", asc.span_attention(maps, span, support=support)
    yield "geometric_semantic_alignment", asc.geometric_semantic_alignment(maps, states, **of_maps)
    without = asc.geometric_semantic_alignment(maps, states, without=reference, **of_maps)
    yield "geometric_semantic_alignment without", without
    yield "reference_influence", asc.reference_influence(maps, states, reference, **of_maps)
    correlation = asc.entropy_magnitude_correlation(maps, states, states * 2, **of_maps)
    yield "entropy_magnitude_correlation", correlation
    names = ["sink_share", "top_mass", "attention_entropy", "incoming_attention", "stable_rank"]
    yield "measure", asc.measure(maps, names, k=1, **of_maps)
    bars = list(asc.persistence(maps, lengths=lengths).padded(0)) if maps.shape[-1] < 40 else 0.0
    yield "persistence", bars


def tensors_of(result: Any) -> list[Tensor]:
    """Return every tensor of a result, numbers as tensors."""
    if isinstance(result, Tensor):
        return [result]
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, Sequence) and not isinstance(result, str):
        return [tensor for inner in result for tensor in tensors_of(inner)]
    return [torch.as_tensor(result)] if isinstance(result, (int, float)) else []


def digests() -> dict[str, Any]:
    """Return the digest of all maps, and of each result on them."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(7)
    maps, by_name = hashlib.sha256(), {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for case in draw_cases(generator):
            maps.update(case.maps.double().contiguous().numpy().tobytes())
            results = list(plain_results(case))
            n = case.maps.shape[-1]
            first = int(torch.randint(0, n, (1,), generator=generator))
            span = first, int(torch.randint(first + 1, n + 1, (1,), generator=generator))
            for name, result in [*results, *other_results(case, span)]:
                digest = by_name.setdefault(name, hashlib.sha256())
                for tensor in tensors_of(result):
                    digest.update(str(tuple(tensor.shape)).encode())
                    digest.update(tensor.contiguous().numpy().tobytes())
    return {
        "maps": maps.hexdigest(),
        "results": {name: digest.hexdigest() for name, digest in sorted(by_name.items())},
    }


if __name__ == "__main__":
    json.dump({"isa": _isa.live(), **digests()}, sys.stdout, indent=1)
    print()
