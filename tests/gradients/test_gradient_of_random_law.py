# SPDX-License-Identifier: MIT
"""The distance of a spectrum from a random law: finite differences, closed forms, and what is refused."""

from __future__ import annotations

import itertools

import pytest
import torch
from scipy.linalg import hadamard
from torch import Tensor

import attnscope as asc

LENGTHS = torch.tensor([12, 9])


def maps_of(kind: str, n: int = 12) -> Tensor:
    """Return two maps of softmax attention [2, n, n] in float64."""
    logits = torch.randn(2, n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    if kind == "causal":
        logits = logits.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
    return logits.softmax(-1)


def distance(maps: Tensor, **options: object) -> Tensor:
    return asc.marchenko_pastur(maps, **options).wasserstein


@pytest.mark.parametrize("null", ["auto", "full", "causal"])
@pytest.mark.parametrize("is_ragged", [False, True], ids=["whole", "ragged"])
@pytest.mark.parametrize("kind", ["causal", "full"])
def test_the_slope_is_that_of_finite_differences(kind: str, is_ragged: bool, null: str) -> None:
    options = {"support": kind, "null": null, "lengths": LENGTHS if is_ragged else None}
    leaf = maps_of(kind).requires_grad_()
    value = distance(leaf, **options)
    (slope,) = torch.autograd.grad(value.sum(), leaf)
    generator = torch.Generator().manual_seed(1)
    step = 1e-5
    for _ in range(5):
        # entries that are hidden must not move
        direction = torch.randn(leaf.shape, generator=generator, dtype=torch.float64)
        direction = direction * (leaf.detach() > 0)
        ahead, behind = (distance(leaf.detach() + sign * step * direction, **options) for sign in (1, -1))
        expected = ((ahead - behind).sum() / (2 * step)).item()
        assert (slope * direction).sum().item() == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert torch.equal(value.detach(), distance(leaf.detach(), **options))


def test_a_row_s_offset_and_scale_have_no_slope() -> None:
    """Rows are standardised: a constant added to a row, or a factor, changes nothing."""
    leaf = maps_of("full").requires_grad_()
    distance(leaf, support="full").sum().backward()
    slope = leaf.grad
    assert slope.sum(-1).abs().max() < 1e-12
    assert (slope * leaf.detach()).sum(-1).abs().max() < 1e-12
    assert slope.abs().max() > 1e-3


def test_the_hadamard_map_pulls_nowhere_by_symmetry() -> None:
    """All seven eigenvalues are 1, and the sum of eigenvalues of standardised rows is fixed.

    At equal eigenvalues each pair of singular vectors is a choice, and the slopes of the seven differ; of any
    direction the sum of slopes is bounded, and the gradient is finite.
    """
    leaf = (1 + torch.from_numpy(hadamard(8)).double()).requires_grad_()
    value = distance(leaf, support="full")
    assert value.item() == pytest.approx(0.7762012825143158, abs=1e-9)
    value.backward()
    assert leaf.grad.isfinite().all()


def test_descent_brings_a_spectrum_nearer_to_the_law() -> None:
    maps = maps_of("full", 24)[0]
    maps = maps + 3 * torch.outer(torch.linspace(-1, 1, 24), torch.linspace(-1, 1, 24).square()).double() / 24
    distances = []
    for _ in range(8):
        leaf = maps.clone().requires_grad_()
        value = distance(leaf, support="full")
        distances.append(value.item())
        (slope,) = torch.autograd.grad(value, leaf)
        maps = maps - 1e-3 * slope
    assert all(later < earlier for earlier, later in itertools.pairwise(distances))


@pytest.mark.parametrize(
    "options",
    [
        {"null": "permutation"},
        {"support": torch.rand(12, 12, generator=torch.Generator().manual_seed(2)) < 0.8},
    ],
    ids=["permutation", "mask"],
)
def test_a_permutation_null_refuses_when_a_gradient_comes(options: dict[str, object]) -> None:
    leaf = maps_of("full").requires_grad_()
    result = asc.marchenko_pastur(leaf, draws=3, **options)
    assert torch.equal(
        result.wasserstein.detach(), asc.marchenko_pastur(leaf.detach(), draws=3, **options)[1]
    )
    with pytest.raises(NotImplementedError, match="marchenko_pastur has no derivative: a permutation null"):
        result.wasserstein.sum().backward()


def test_rectangles_and_the_other_fields_refuse_when_a_gradient_comes() -> None:
    leaf = maps_of("causal").requires_grad_()
    for field in ("ks", "outlier_energy", "largest", "edge"):
        with pytest.raises(
            NotImplementedError, match="marchenko_pastur has no derivative but of wasserstein"
        ):
            getattr(asc.marchenko_pastur(leaf), field).sum().backward()
    assert not asc.marchenko_pastur(leaf).outliers.requires_grad
    with pytest.raises(NotImplementedError, match="only laws of square maps"):
        asc.marchenko_pastur(leaf[:, 2:]).wasserstein.sum().backward()


@pytest.mark.filterwarnings("ignore::attnscope.errors.UndefinedWarning")
def test_maps_of_few_tokens_have_no_slope() -> None:
    leaf = maps_of("full").requires_grad_()
    value = distance(leaf, lengths=torch.tensor([12, 5]))
    assert value[1].isnan()
    value[0].backward()
    assert leaf.grad[0].any()
    assert not leaf.grad[1].any()
