# SPDX-License-Identifier: MIT
"""Derivatives in closed form against finite differences, on random, ragged, causal and full maps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import attnscope as asc

LENGTHS = torch.tensor([5, 3])
REFERENCE = torch.tensor([True, False, False, True, False])


def maps_of(*leading: int, n: int = 5, causal: bool, seed: int = 0) -> Tensor:
    """Return softmax attention [*leading, n, n] in float64."""
    logits = torch.randn(*leading, n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    if causal:
        logits = logits.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
    return logits.softmax(-1)


def defined(result: Tensor) -> Tensor:
    """Return the result with 0 for what is undefined, which finite differences cannot compare."""
    return result.nan_to_num(0.0)


#: Measures of maps; each takes the maps and the options that all maps of a case share.
MEASURES: dict[str, Callable[..., Tensor]] = {
    "entropy": lambda a, **o: defined(asc.attention_entropy(a, **o)),
    "normalized entropy": lambda a, **o: defined(asc.attention_entropy(a, normalized=True, **o)),
    "entropy in bits": lambda a, **o: defined(asc.attention_entropy(a, base=2, **o)),
    "incoming attention": lambda a, **o: defined(asc.incoming_attention(a, **o)),
    "sink share": lambda a, **o: asc.sink_share(a, first=2, queries=3, **o).share,
    "sink boost": lambda a, **o: asc.sink_share(a, **o).boost,
    "top mass": lambda a, **o: asc.top_mass(a, 2, **o),
}
#: Measures that take no support.
SPECTRA: dict[str, Callable[..., Tensor]] = {
    "singular values": lambda a, **o: defined(asc.singular_values(a, **o)),
    "stable rank": asc.stable_rank,
    "effective rank": asc.effective_rank,
    "spectral gap": asc.spectral_gap,
    "spectral ratio": asc.spectral_ratio,
    "participation ratio": asc.participation_ratio,
    "participation of the Laplacian": lambda a, **o: asc.participation_ratio(a, spectrum="laplacian", **o),
    "λ2": asc.fiedler_value,
    "λ2 of the larger": lambda a, **o: asc.fiedler_value(a, symmetrize="max", **o),
    "normalised λ2": lambda a, **o: asc.fiedler_value(a, normalized=True, **o),
    "Laplacian eigenvalues": lambda a, **o: defined(asc.laplacian_eigenvalues(a, **o)),
    "normalised eigenvalues": lambda a, **o: defined(
        asc.laplacian_eigenvalues(a, 3, normalized=True, symmetrize="max", **o)
    ),
    "Laplacian gap": asc.laplacian_gap,
    "total persistence": lambda a, **o: asc.total_persistence(asc.persistence(a, **o)),
    "longest bar": lambda a, **o: asc.max_persistence(asc.persistence(a, symmetrize="mean", **o)),
    "persistent entropy": lambda a, **o: asc.persistent_entropy(asc.persistence(a, symmetrize="min", **o)),
}


def check(function: Callable[..., Tensor], *tensors: Tensor) -> None:
    inputs = [tensor.clone().requires_grad_() for tensor in tensors]
    assert torch.autograd.gradcheck(function, inputs, eps=1e-6, atol=1e-6)


@pytest.mark.parametrize("is_ragged", [False, True], ids=["whole", "ragged"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("name", MEASURES)
def test_measures_of_rows_and_keys(name: str, causal: bool, is_ragged: bool) -> None:
    options = {"support": "causal" if causal else "full", "lengths": LENGTHS if is_ragged else None}
    check(lambda a: MEASURES[name](a, **options), maps_of(2, causal=causal))


@pytest.mark.parametrize("is_ragged", [False, True], ids=["whole", "ragged"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("name", SPECTRA)
def test_spectra_graphs_and_bars(name: str, causal: bool, is_ragged: bool) -> None:
    lengths = LENGTHS if is_ragged else None
    check(lambda a: SPECTRA[name](a, lengths=lengths), maps_of(2, causal=causal))


@pytest.mark.parametrize("is_ragged", [False, True], ids=["whole", "ragged"])
def test_bars_of_distances_between_rows(is_ragged: bool) -> None:
    """Of positive entries: the root has no derivative at 0."""
    lengths = LENGTHS if is_ragged else None
    check(
        lambda a: asc.total_persistence(asc.persistence(a, metric="hellinger", lengths=lengths)),
        maps_of(2, causal=False),
    )


@pytest.mark.parametrize("lengths", [None, torch.tensor([4, 5])], ids=["whole", "ragged"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_divergence_of_heads(causal: bool, lengths: Tensor | None) -> None:
    support = "causal" if causal else "full"
    check(lambda a: asc.head_divergence(a, support=support, lengths=lengths), maps_of(2, 3, causal=causal))


@pytest.mark.parametrize("is_ragged", [False, True], ids=["whole", "ragged"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
@pytest.mark.parametrize("shared", [False, True], ids=["a state a map", "shared states"])
def test_alignment_of_attention_and_states(shared: bool, causal: bool, is_ragged: bool) -> None:
    options = {"support": "causal" if causal else "full", "lengths": LENGTHS if is_ragged else None}
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(*(() if shared else (2,)), 5, 3, dtype=torch.float64, generator=generator)
    without = torch.tensor([False, True, False, False, False])
    check(
        lambda a, s: defined(asc.geometric_semantic_alignment(a, s, without=without, **options)),
        maps_of(2, causal=causal),
        states,
    )


@pytest.mark.parametrize("part", range(3), ids=["magnitude", "direction", "change"])
@pytest.mark.parametrize("is_ragged", [False, True], ids=["whole", "ragged"])
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_influence_of_a_reference(part: int, causal: bool, is_ragged: bool) -> None:
    options = {"support": "causal" if causal else "full", "lengths": LENGTHS if is_ragged else None}
    generator = torch.Generator().manual_seed(2)
    states = torch.randn(2, 5, 3, dtype=torch.float64, generator=generator)
    check(
        lambda a, s: defined(asc.reference_influence(a, s, REFERENCE, **options)[part]),
        maps_of(2, causal=causal),
        states,
    )


def test_a_boolean_support() -> None:
    """A window of two keys, which "causal" does not describe."""
    n = 5
    distance = torch.arange(n)[:, None] - torch.arange(n)
    window = (distance >= 0) & (distance < 2)
    for name in ("entropy", "incoming attention", "sink share", "top mass"):
        maps = torch.where(window, maps_of(2, causal=True), 0.0)
        check(lambda a, name=name: MEASURES[name](a, support=window), maps)
