# SPDX-License-Identifier: MIT
"""ruscio2026 on point clouds: each difference from the exact definitions, shown."""

import math

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.protocols import ruscio2026
from topology_inputs import cloud


def test_lid_by_hand():
    points = cloud("gaussian", 60, 5)
    distances = asc.cloud_distances(points).numpy()
    values = []
    for i, row in enumerate(distances):
        r = np.sort(np.delete(row, i))[:30]
        values.append(-30 / np.log(r / r[-1] + 1e-10).sum())
    assert math.isclose(ruscio2026.lid(points).item(), np.mean(values), rel_tol=1e-12)


def test_lid_is_k_over_k_less_2_of_the_truth():
    # Arrivals of a Poisson process in five dimensions: the mean of k/S is 30/28 of it.
    rng = np.random.default_rng(0)
    arrivals = np.cumsum(rng.exponential(size=(20_000, 30)), 1) ** (1 / 5)
    sums = np.log(arrivals[:, -1:] / arrivals).sum(1)
    assert abs((30 / sums).mean() / 5 - 30 / 28) < 0.005
    # On points that are spread alike the two functions differ by about that: k/(k − 2).
    points = torch.rand(3000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ratio = ruscio2026.lid(points).item() / asc.local_dimension(points, k=30).value.item()
    assert abs(ratio - 30 / 28) < 0.02


def test_lid_gives_minus_1e10_for_equal_distances():
    simplex = torch.eye(40)
    assert math.isclose(ruscio2026.lid(simplex).item(), -1e10, rel_tol=1e-6)
    assert asc.local_dimension(simplex, k=30).value.isnan()
    # One such point among many decides the mean.
    points = torch.cat([torch.zeros(1, 60), torch.eye(60)[:35], 100 + torch.randn(964, 60)])
    assert ruscio2026.lid(points).item() < -1e5
    assert asc.local_dimension(points, k=30).value.item() > 0


def test_lid_keeps_neighbours_at_distance_0():
    points = cloud("gaussian", 80, 4)
    doubled = torch.cat([points, points])
    # log 1e-10 of the copy alone is more than all that the others add.
    assert ruscio2026.lid(doubled).item() < 0.7 * ruscio2026.lid(points).item()
    exact = asc.local_dimension(doubled, k=30)
    assert exact.duplicates.item() == 160
    assert exact.value.item() > 3
    assert ruscio2026.lid(torch.ones(50, 3)).item() == 0.0
    assert ruscio2026.lid(points[:30]).isnan()


def test_isotropy_and_entropy_beside_the_exact_spectrum():
    points = cloud("clustered", 40, 6)
    exact = asc.cloud_spectrum(points)
    assert math.isclose(ruscio2026.isotropy(points).item(), exact.isotropy.item(), rel_tol=1e-7)
    assert ruscio2026.isotropy(points).item() < exact.isotropy.item()
    assert math.isclose(ruscio2026.entropy(points).item(), exact.effective_rank.item(), rel_tol=1e-7)
    equal = torch.ones(5, 3)
    assert ruscio2026.isotropy(equal).item() == 0.0
    assert ruscio2026.entropy(equal).isnan()


def test_entropy_grows_with_the_number_of_points():
    draw = torch.Generator().manual_seed(0)
    few, entropy_of_many = (
        ruscio2026.entropy(torch.randn(n, 1500, generator=draw)).item() for n in (100, 200)
    )
    assert 1.9 < entropy_of_many / few < 2.05


def test_the_boundary_is_shorter_than_1():
    zeros, other = torch.zeros(3, 2), torch.full((3, 2), 1e-9, dtype=torch.float64)
    short = ruscio2026.boundary(zeros, other).norm().item()
    assert math.isclose(short, math.sqrt(2) / (1 + math.sqrt(2)), rel_tol=1e-6)
    assert math.isclose(asc.boundary(zeros, other).direction.norm().item(), 1.0)
    assert ruscio2026.boundary(zeros, zeros).tolist() == [0.0, 0.0]
    assert asc.boundary(zeros, zeros).direction.isnan().all()


def test_topology_by_ripser():
    ripser = pytest.importorskip("ripser").ripser
    points = cloud("clustered", 150, 5)
    direction = torch.nn.functional.normalize(torch.ones(5, dtype=torch.float64), dim=0)
    projected = points.numpy() @ direction.numpy()
    apart = np.abs(projected - projected.mean())
    near = points.numpy()[apart <= np.quantile(apart, 0.4)]
    unit = near / np.linalg.norm(near, axis=1, keepdims=True)
    distances = np.clip(1 - unit @ unit.T, 0, 2)
    np.fill_diagonal(distances, 0)
    components, loops = ripser(distances, distance_matrix=True, maxdim=1)["dgms"]
    result = ruscio2026.topology(points, direction)
    assert result.points == len(near) == 60
    assert result.beta0 == (components[:, 1] > 0.15).sum()
    assert result.beta1 == ((loops[:, 0] < 0.15) & (loops[:, 1] > 0.15)).sum()


def test_beta0_counts_the_infinite_bar_and_single_points():
    # One tight cluster is one component, by the bar that never ends.
    tight = torch.tensor([1.0, 0.0, 0.0]) + 1e-4 * cloud("gaussian", 50, 3)
    direction = torch.tensor([0.0, 1.0, 0.0])
    assert ruscio2026.topology(tight, direction).beta0 == 1
    # Points without any structure in 3,072 dimensions: all 200 of 200.
    loose = torch.randn(500, 3072, generator=torch.Generator().manual_seed(0))
    result = ruscio2026.topology(loose, loose[0], draw=np.random.RandomState(0))
    assert result == (200, 0, 200)
    sizes = asc.cloud_components(loose[:200], [0.15])
    assert (sizes.components.item(), sizes.clusters.item()) == (200, 0)


def test_what_is_drawn_depends_on_numpys_global_state():
    points = cloud("clustered", 700, 5)
    direction = torch.ones(5, dtype=torch.float64)
    state = np.random.get_state()  # noqa: NPY002
    try:
        drawn_topologies = set()
        for seed in range(4):
            np.random.seed(seed)  # noqa: NPY002
            first = ruscio2026.topology(points, direction)
            assert first == ruscio2026.topology(points, direction, draw=np.random.RandomState(seed))
            drawn_topologies.add(first)
        assert len(drawn_topologies) > 1
    finally:
        np.random.set_state(state)  # noqa: NPY002


def test_bad_input():
    with pytest.raises(ValueError, match=r"lid: points must be one cloud \[n, d\], got shape \(1, 2, 2\)"):
        ruscio2026.lid(torch.eye(2)[None])
    with pytest.raises(ValueError, match=r"entropy: points must be finite, got .* in row 1"):
        ruscio2026.entropy(torch.tensor([[1.0], [math.nan]]))
    with pytest.raises(ValueError, match=r"direction must be \[3\], got shape \(2,\)"):
        ruscio2026.topology(torch.eye(3), torch.ones(2))
    with pytest.raises(ValueError, match="k must be at least 1, got 0"):
        ruscio2026.lid(torch.eye(3), k=0)
    with pytest.raises(ValueError, match="must have one d"):
        ruscio2026.boundary(torch.eye(3), torch.eye(2))
