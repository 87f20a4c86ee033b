# SPDX-License-Identifier: MIT
"""Derivatives in closed form against finite differences, on random, ragged, causal and full maps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import attnscope as asc

LENGTHS = torch.tensor([5, 3])
#: The first and the third token are copies.
TOKENS = torch.tensor([4, 7, 4, 8, 9])
SIGNAL = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
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
    "causal spectrum": lambda a, **o: defined(asc.causal_spectrum(a, **o).laplacian),
    "log determinant": lambda a, **o: asc.causal_spectrum(a, **o).log_determinant,
    "lookback ratios": lambda a, **o: defined(asc.lookback(a, (1, 3), context=1, **o).ratio),
    "lookback of the tokens themselves": lambda a, **o: asc.lookback(a, (1, 3), rows="own", **o).value,
    "share of patterns": lambda a, **o: asc.pattern_share(a, ["first", "previous"], **o).share,
    "boost of the token itself": lambda a, **o: asc.pattern_share(a, "self", **o).boost,
    "distance to copies": lambda a, **o: asc.pattern_share(a, "duplicate", tokens=TOKENS, **o).distance,
    "share of all attention": lambda a, **o: asc.pattern_share(a, "previous", over="all", **o).share,
    "tree per token": lambda a, **o: asc.prompt_divergence(a, (1, 3), **o).per_token,
    "tree": lambda a, **o: asc.prompt_divergence(a, (2, 3), **o).total,
    "star": lambda a, **o: asc.prompt_divergence(a, (1, 3), **o).star,
    "smoothness": lambda a, **o: asc.graph_signal(a, SIGNAL, spectrum=False, **o).smoothness,
    "energy": lambda a, **o: asc.graph_signal(a, SIGNAL, normalized=False, center=True, **o).energy,
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
    "shape of the Laplacian": lambda a, **o: torch.stack(tuple(asc.laplacian_shape(a, **o))),
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


@pytest.mark.parametrize("batch", [(), (2,)], ids=["a layer", "two layers"])
def test_states_of_grouped_queries(batch: tuple[int, ...]) -> None:
    """Four heads read the states of two, whose gradients are those of both heads together."""
    generator = torch.Generator().manual_seed(4)
    states = torch.randn(*batch, 2, 5, 3, dtype=torch.float64, generator=generator)
    maps = maps_of(*batch, 4, causal=True)
    check(lambda a, s: defined(asc.geometric_semantic_alignment(a, s, support="causal")), maps, states)
    check(lambda a, s: defined(asc.reference_influence(a, s, REFERENCE, support="causal")[0]), maps, states)


@pytest.mark.parametrize("is_ragged", [False, True], ids=["whole", "ragged"])
def test_clouds_of_points(is_ragged: bool) -> None:
    lengths = torch.tensor([6, 4]) if is_ragged else None
    generator = torch.Generator().manual_seed(6)
    points = torch.randn(2, 6, 3, dtype=torch.float64, generator=generator)
    other = torch.randn(2, 6, 4, dtype=torch.float64, generator=generator)
    check(lambda x: asc.log_volume(x, lengths=lengths), points)
    for options in ({}, {"center": True}, {"unit": True}, {"normalized": True}):
        check(lambda x, options=options: asc.matrix_entropy(x, lengths=lengths, **options), points)
    for debiased in (False, True):
        check(lambda x, y, debiased=debiased: asc.cka(x, y, debiased=debiased), points, other)


def test_values_that_heads_write() -> None:
    generator = torch.Generator().manual_seed(7)
    value = torch.randn(2, 5, 3, dtype=torch.float64, generator=generator)
    projection = torch.randn(4, 4, 3, dtype=torch.float64, generator=generator)
    heads = maps_of(4, causal=True)
    check(asc.value_norms, value, projection)
    check(lambda v, w: asc.value_norms(v, w, layer=True), value, projection)
    check(lambda a, v, w: asc.weighted_attention(a, asc.value_norms(v, w)), heads, value, projection)
    check(
        lambda a, v, w: asc.weighted_attention(a, asc.value_norms(v, w, layer=True), layer=True).tril(),
        heads,
        value,
        projection,
    )


def test_rollout_over_layers() -> None:
    for lengths in (None, torch.tensor([5, 3])):
        check(
            lambda a, lengths=lengths: defined(asc.attention_rollout(a, lengths=lengths)),
            maps_of(3, 2, 2, causal=True),
        )


def test_uncertainty_of_answers() -> None:
    generator = torch.Generator().manual_seed(8)
    previous = torch.rand(2, 3, 2, 5, dtype=torch.float64, generator=generator)
    log_p = -torch.rand(2, 5, dtype=torch.float64, generator=generator)
    for lengths in (None, torch.tensor([5, 2])):
        check(lambda a, p, n=lengths: asc.recurrent_uncertainty(a, p, lengths=n).value, previous, log_p)


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "full"])
def test_the_last_rows_of_maps(causal: bool) -> None:
    """Decoding with a cache computes no others."""
    rows = maps_of(2, causal=True)[:, 2:] if causal else maps_of(2, causal=False)[:, 2:].tril(2)
    check(lambda a: asc.lookback(a, (3, 5), context=2).value, rows)
    check(lambda a: defined(asc.lookback(a, (3, 5), context=2).ratio), rows)
    check(lambda a: asc.prompt_divergence(a, (2, 5)).total, rows)
    leaf = rows.clone().requires_grad_()
    assert asc.lookback(leaf, (3, 5)).ratio.shape == asc.lookback(rows, (3, 5)).ratio.shape


def test_answers_of_each_map() -> None:
    answers = torch.tensor([[1, 4], [-1, -1], [2, 3]])
    maps = maps_of(3, causal=True)
    options = {"context": torch.tensor([1, 0, 1]), "support": "causal"}
    check(lambda a: defined(asc.lookback(a, answers, **options).value), maps)
    check(lambda a: defined(torch.stack(tuple(asc.prompt_divergence(a, answers)))), maps)


def test_a_mask_of_keys() -> None:
    marked = torch.tensor([True, False, True, False, False])
    for over in ("matching", "all"):
        check(
            lambda a, over=over: torch.stack(asc.pattern_share(a, marked, over=over, support="causal")[::4]),
            maps_of(2, causal=True),
        )


def test_a_boolean_support() -> None:
    """A window of two keys, which "causal" does not describe."""
    n = 5
    distance = torch.arange(n)[:, None] - torch.arange(n)
    window = (distance >= 0) & (distance < 2)
    names = ("entropy", "incoming attention", "sink share", "top mass", "lookback ratios", "tree")
    for name in (*names, "share of patterns", "boost of the token itself", "smoothness"):
        maps = torch.where(window, maps_of(2, causal=True), 0.0)
        check(lambda a, name=name: MEASURES[name](a, support=window), maps)


def test_a_hidden_entry_that_is_larger_has_no_gradient() -> None:
    """Rows below 0 are no attention, but their tree counts the hidden entries, which are 0."""
    maps = maps_of(2, causal=True)
    maps[:, 3] = -maps[:, 3]
    check(lambda a: asc.prompt_divergence(a, (2, 4), support="causal").total, maps)
    check(lambda a: asc.prompt_divergence(a, (2, 4), support="causal").star, maps)


def test_the_larger_of_two_equal_entries_shares_its_gradient() -> None:
    """A symmetric map has one graph under both rules, and so one derivative."""
    maps = maps_of(2, causal=False)
    maps = (maps + maps.mT) / 2
    for function in (asc.fiedler_value, asc.laplacian_gap):
        slopes = []
        for symmetrize in ("max", "mean"):
            leaf = maps.clone().requires_grad_()
            function(leaf, symmetrize=symmetrize).sum().backward()
            slopes.append(leaf.grad)
        torch.testing.assert_close(*slopes)


@pytest.mark.parametrize(
    "function",
    [asc.stable_rank, asc.effective_rank, asc.spectral_gap, asc.spectral_ratio, asc.participation_ratio],
)
@pytest.mark.filterwarnings("ignore")
def test_maps_without_a_value_leave_no_gradient(function):
    """A loss that leaves out NaN leaves out the maps that gave it: of zeros, of one token, of NaN."""
    maps = torch.softmax(torch.randn(4, 5, 5, generator=torch.Generator().manual_seed(1)).double(), -1)
    maps[1], maps[3, 2, 2] = 0.0, torch.nan
    maps.requires_grad_()
    values = function(maps, lengths=[5, 4, 1, 5])
    has_value = values.isfinite()
    assert has_value[0]
    assert not has_value[3]
    torch.where(has_value, values, 0.0).sum().backward()
    assert maps.grad.isfinite().all()
    assert maps.grad[0].any()
    assert not maps.grad[~has_value].any()
