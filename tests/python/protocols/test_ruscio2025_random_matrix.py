# SPDX-License-Identifier: MIT
"""The random-matrix notebook's numbers against its closed forms and a NumPy transcription."""

import math

import numpy as np
import pytest
import torch

from attnscope.protocols import ruscio2025

FUNCTIONS = (
    "spectral_ratio",
    "participation_ratio",
    "stable_rank",
    "spectral_norm",
    "sink_concentration",
    "marchenko_pastur_deviation",
)


def uniform(n):
    return torch.ones(n, n, dtype=torch.float64).tril() / torch.arange(1, n + 1)[:, None]


def attention(n, count=4, causal=True):
    logits = 2 * torch.randn(count, n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    if causal:
        logits = logits + torch.full((n, n), -math.inf, dtype=torch.float64).triu(1)
    return logits.softmax(-1)


@pytest.mark.parametrize(("n", "ratio"), [(10, 5.536), (20, 8.109), (30, 9.900), (40, 11.298), (50, 12.456)])
def test_uniform_causal_closed_forms(n, ratio):
    assert abs(ruscio2025.spectral_ratio(uniform(n)).item() - 2) < 1e-14
    assert round(ruscio2025.participation_ratio(uniform(n)).item(), 3) == ratio
    result = ruscio2025.bulk(uniform(n))
    rest = np.array([1 / k for k in range(2, n + 1)])
    assert abs(result.edge.item() - 0.75) < 1e-14
    assert abs(result.mean.item() - rest.mean()) < 1e-14
    assert abs(result.std.item() - rest.std()) < 1e-14


@pytest.mark.parametrize(("n", "share"), [(20, 0.310), (30, 0.316), (40, 0.320)])
def test_uniform_concentration(n, share):
    assert round(ruscio2025.sink_concentration(uniform(n)).item(), 3) == share


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n", [3, 9, 25, 40])
def test_equals_numpy(n, causal):
    maps = attention(n, causal=causal)
    results = {name: getattr(ruscio2025, name)(maps) for name in FUNCTIONS}
    bulk = ruscio2025.bulk(maps)
    for index, a in enumerate(maps.numpy()):
        sizes = np.sort(np.abs(np.linalg.eigvals(a)))[::-1]
        sigma = np.linalg.svd(a, compute_uv=False)
        columns = a.sum(0)
        top = columns[columns >= np.percentile(columns, 90)].sum() / columns.sum()
        expected = {
            "spectral_ratio": sizes[0] / sizes[1],
            "participation_ratio": sizes.sum() ** 2 / (sizes**2).sum(),
            "stable_rank": (a**2).sum() / sigma[0] ** 2,
            "spectral_norm": sigma[0],
            "sink_concentration": top,
        }
        for name, value in expected.items():
            assert abs(results[name][index].item() / value - 1) < 1e-9, name
        gap = np.argmax(sizes[:-1] - sizes[1:])
        edge = (sizes[gap] + sizes[gap + 1]) / 2
        below = sizes[sizes < edge] if (sizes < edge).sum() >= 2 else sizes
        np.testing.assert_allclose(
            [bulk.edge[index], bulk.mean[index], bulk.std[index]],
            [edge, below.mean(), below.std()],
            rtol=1e-8,
        )


def test_deviation_of_ten_even_magnitudes():
    # |λ| = 1 … 10 on the diagonal: each falls into its own bin; the rest of the divergence is the density's.
    sizes = np.arange(10, 0, -1.0)
    result = ruscio2025.marchenko_pastur_deviation(torch.from_numpy(np.diag(sizes))).item()
    x = sizes / sizes.mean()
    counts, edges = np.histogram(x, 20)
    centres = (edges[1:] + edges[:-1]) / 2
    a, b = (1 - math.sqrt(0.99)) ** 2, (1 + math.sqrt(0.99)) ** 2
    q = np.sqrt((b - centres) * (centres - a)) / (2 * math.pi * 0.99 * centres)
    q /= q.sum()
    expected = sum(0.1 * math.log(0.1 / weight) for weight, count in zip(q, counts, strict=True) if count)
    assert counts.max() == 1
    assert abs(result - expected) < 1e-12


@pytest.mark.parametrize("n", [3, 5, 12, 30])
def test_deviation_of_equal_magnitudes_that_the_solver_rounds(n):
    """Next-token attention of a ring is a permutation: every |λ| is 1, and all are in the bin around 1."""
    of_identity = ruscio2025.marchenko_pastur_deviation(torch.eye(n, dtype=torch.float64)).item()
    ring = torch.eye(n, dtype=torch.float64).roll(1, 0)
    a, b = (1 - math.sqrt(0.99)) ** 2, (1 + math.sqrt(0.99)) ** 2
    centres = np.linspace(0.525, 1.475, 20)
    density = np.sqrt((b - centres) * (centres - a)) / centres
    for maps in (ring, torch.eye(n)[torch.randperm(n, generator=torch.Generator().manual_seed(0))]):
        assert ruscio2025.marchenko_pastur_deviation(maps).item() == of_identity
    assert abs(of_identity + math.log(density[10] / density.sum())) < 1e-12


def test_deviation_outside_the_law_is_infinite():
    # one magnitude of ten times the mean lies beyond the law's edge of 3.98
    assert (
        ruscio2025.marchenko_pastur_deviation(torch.diag(torch.tensor([1.0] + [0.0] * 9))).item() == math.inf
    )


def test_degenerate_maps():
    single_token = torch.ones(1, 1)
    assert ruscio2025.spectral_ratio(single_token).item() == math.inf
    assert ruscio2025.bulk(single_token).edge.item() == 1
    zeros = torch.zeros(5, 5)
    for name in ("participation_ratio", "stable_rank", "sink_concentration", "marchenko_pastur_deviation"):
        assert getattr(ruscio2025, name)(zeros).isnan(), name


def test_a_non_finite_map_leaves_its_neighbours_alone():
    maps = attention(12)
    clean = {name: getattr(ruscio2025, name)(maps) for name in FUNCTIONS}
    maps[2, 3, 1] = math.nan
    for name in FUNCTIONS:
        with pytest.warns(RuntimeWarning, match=f"ruscio2025.{name}: 1 of 4 matrices"):
            result = getattr(ruscio2025, name)(maps)
        assert result.isnan().tolist() == [False, False, True, False]
        assert torch.equal(result[[0, 1, 3]], clean[name][[0, 1, 3]])
    with pytest.warns(RuntimeWarning, match=r"ruscio2025\.bulk"):
        assert ruscio2025.bulk(maps).edge.isnan().tolist() == [False, False, True, False]


def test_bad_arguments():
    for name in (*FUNCTIONS, "bulk"):
        with pytest.raises(ValueError, match=rf"ruscio2025\.{name}: attention must be square .*\(3, 4\)"):
            getattr(ruscio2025, name)(torch.rand(3, 4))


@pytest.mark.parametrize("n", [48, 64, 128])
def test_uniform_full_attention_has_one_eigenvalue(n):
    uniform = torch.full((n, n), 1 / n, dtype=torch.float64)
    assert ruscio2025.participation_ratio(uniform).item() == pytest.approx(1, abs=1e-6)
    assert ruscio2025.spectral_ratio(uniform).item() > 1e10
    assert ruscio2025.bulk(uniform).edge.item() == pytest.approx(0.5, abs=1e-9)
