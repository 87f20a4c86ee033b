# SPDX-License-Identifier: MIT
"""Numbers multiplied by a power of two change every result by the stated factor alone.

Multiplying by a power of two rounds nothing, so a result of degree p in its argument is multiplied by 2^(kp),
and one that is a ratio stays what it is, for k from -1000 to 1000. What has no such law is not here:
entropies and divergences of rows that do not sum to 1, similarities of 1 − w, tests against uniform
attention, thresholds.
"""

import warnings

import numpy as np
import pytest
import torch

import attnscope as asc

POWERS = (-1000, -701, -520, -402, -201, -64, 64, 201, 402, 520, 701, 1000)
I24 = torch.eye(24, dtype=torch.float64)


def few_bits(*shape, seed=0):
    """Multiples of 1/64 in (0, 1]: their products with powers of two down to 2^-1000 are normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(0, 64, shape, generator=generator).double() + 1) / 64


def ring(n):
    at = torch.arange(n)
    matrix = torch.zeros(n, n, dtype=torch.float64)
    matrix[at, (at + 1) % n] = matrix[(at + 1) % n, at] = 1.0
    return matrix


FULL, CAUSAL = few_bits(24, 24), few_bits(24, 24, seed=1).tril()
LONG, LONG_CAUSAL = few_bits(64, 64, seed=2), few_bits(64, 64, seed=3).tril()
POINTS = few_bits(40, 6, seed=4) - 0.5
STATES = few_bits(24, 6, seed=5) - 0.5
ATTENTION = torch.softmax(few_bits(24, 24, seed=6), -1)
GROUPS = [0] * 20 + [1] * 20
FIRST = torch.arange(24) < 2
MOMENT = torch.diag(torch.arange(1.0, 25.0, dtype=torch.float64))
LAWS = {}


def law(name, matrices, degree, **options):
    """States a law: the degree of a function's result, or of each of its fields, in each of some matrices."""
    function = getattr(asc, name)
    option_text = " ".join(f"{key}={value}" for key, value in options.items())
    for kind, matrix in matrices.items():
        LAWS[" ".join(filter(None, (name, option_text, kind)))] = (
            lambda x: function(x, **options),
            matrix,
            degree,
        )


MATRICES = {
    **{"full": FULL, "causal": CAUSAL, "ring": ring(24), "ring of 5": ring(5), "ring of 97": ring(97)},
    "full of 130": few_bits(130, 130, seed=7),
}
# Of rings λ2 is degenerate, and any vector of its eigenspace is right.
SIMPLE = {kind: matrix for kind, matrix in MATRICES.items() if "ring" not in kind}
for symmetrize in ("mean", "max"):
    law("fiedler_value", MATRICES, 1, symmetrize=symmetrize)
law("fiedler_value", MATRICES, 1, precision="fast")
law("fiedler_value", MATRICES, 0, normalized=True)
for normalized in (False, True):
    law("fiedler_vector", SIMPLE, 0, normalized=normalized)
    law("laplacian_eigenvalues", MATRICES, 0 if normalized else 1, normalized=normalized)
for name, degree in (("singular_values", 1), ("spectral_gap", 1), ("stable_rank", 0), ("effective_rank", 0)):
    law(name, MATRICES, degree)
for spectrum in ("singular", "eigen", "laplacian"):
    law("participation_ratio", MATRICES, 0, spectrum=spectrum)
MAPS = {"full": LONG, "causal": LONG_CAUSAL}
law("spectral_ratio", MAPS, 0)
law("marchenko_pastur", MAPS, 0)
law("incoming_attention", MAPS, 1)
law("top_mass", MAPS, 0, k=3)
law("sink_position", MAPS, 0)
law("sink_tokens", MAPS, 0)
law("local_global_ratio", MAPS, 0, window=3)
law("spectral_uncertainty", MAPS, 0)
law("power_spectrum", MAPS, {"power": 2})
law("wavelet_transform", MAPS, 0)
law("morlet_scalogram", MAPS, 2, scales=[1.5, 4.0])
law("offset_variance", MAPS, {"mean": 1, "variance": 2})
law("offset_fit", MAPS, 0)
law("geometric_semantic_alignment", {"attention": FULL}, 0, states=STATES)
law("reference_influence", {"attention": FULL}, 0, states=STATES, reference=FIRST)
for metric in ("euclidean", "cosine"):
    law("cloud_distances", {"points": POINTS}, int(metric == "euclidean"), metric=metric)
    law("cloud_persistence", {"points": POINTS}, int(metric == "euclidean"), metric=metric)
    law("fragmentation", {"points": POINTS}, 0, metric=metric)
law("cloud_persistence", {"distances": asc.cloud_distances(POINTS)}, 1, metric="precomputed")
law("local_dimension", {"points": POINTS}, 0, k=[2, 5])
law("two_nn", {"points": POINTS}, 0)
law("cloud_spectrum", {"points": POINTS}, {"singular_values": 1})
law("null_clouds", {"points": POINTS}, 1, kind="gaussian", draws=2)
law("null_clouds", {"points": POINTS}, 1, kind="covariance", draws=2)
law("null_clouds", {"points": POINTS}, 1, kind="template", groups=GROUPS, draws=2)
for kind in ("isotropic", "covariance", "labels"):
    law("null_directions", {"states": POINTS}, 0, kind=kind, labels=GROUPS, draws=2)
law("position_share", {"states": POINTS.reshape(5, 8, 6)}, 0)
for side in ("in", "out"):
    law("subspace_fraction", {"matrix": FULL}, 0, basis=I24[:, :7], side=side, k=[1, 5])
    law("concentration", {"matrix": FULL}, 0, basis=I24, side=side)
    law("alignment_gain", {"matrix": FULL}, 0, moment=MOMENT, side=side)
law("relative_subspace_fraction", {"matrix": FULL}, 0, left=I24[:, :3], right=I24[:, :2])
LAWS["reference_influence states"] = (lambda x: asc.reference_influence(ATTENTION, x, FIRST), STATES, 0)
LAWS["geometric_semantic_alignment states"] = (
    lambda x: asc.geometric_semantic_alignment(ATTENTION, x),
    STATES,
    0,
)
LAWS["transformation_magnitude"] = (lambda x: asc.transformation_magnitude(x, 3 * x), STATES, 1)
LAWS["boundary"] = (
    lambda x: asc.boundary(x, 1.5 * x.roll(3, 0)),
    POINTS,
    {"norm": 1, "center": 1, "distance2": 2},
)
LAWS["graph_signal"] = (lambda x: asc.graph_signal(ATTENTION, x, center=True), STATES, {"energy": 2})
LAWS["graph_signal combinatorial"] = (
    lambda x: asc.graph_signal(ATTENTION, x, normalized=False),
    STATES,
    {"energy": 2},
)
law("matrix_entropy", {"points": POINTS}, 0, unit=True, center=True)
LAWS["cka"] = (lambda x: asc.cka(x, STATES), POINTS[:24], 0)
LAWS["delta_statistics"] = (
    lambda x: asc.delta_statistics(x, 1.5 * x),
    FULL,
    {"energy": 2, "before_energy": 2, "largest": 1},
)
LAWS["alignment_gain moment"] = (lambda x: asc.alignment_gain(FULL, x, side="in"), MOMENT, 0)
LAWS["subspace_fraction low rank"] = (
    lambda x: asc.subspace_fraction(asc.LowRank(x[:, :3], x[:3]), I24[:, :4]),
    FULL,
    0,
)


def fields_of(result):
    if isinstance(result, torch.Tensor):
        return {"value": result}
    if isinstance(result, asc.Barcodes):
        return {"birth": result.birth, "death": result.death, "death_edge": result.death_edge}
    fields = result._asdict() if hasattr(result, "_asdict") else vars(result)
    return {name: field for name, field in fields.items() if isinstance(field, torch.Tensor)}


@pytest.mark.parametrize("name", LAWS)
def test_a_power_of_two_changes_results_by_its_factor_alone(name):
    function, matrix, degrees = LAWS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("ignore")
        expected = fields_of(function(matrix))
        assert expected
        for power in POWERS:
            result = fields_of(function(torch.ldexp(matrix, torch.tensor(power))))
            for field, value in expected.items():
                degree = degrees if isinstance(degrees, int) else degrees.get(field, 0)
                if not value.is_floating_point():
                    assert torch.equal(result[field], value), (power, field)
                    continue
                scaled_value = np.ldexp(value.numpy(), degree * power)
                scale = np.abs(scaled_value[np.isfinite(scaled_value)]).max(initial=0.0)
                # Squares below 2^-1022 have few digits.
                np.testing.assert_allclose(
                    result[field].numpy(),
                    scaled_value,
                    rtol=1e-11,
                    atol=1e-12 * scale + 1e-308,
                    err_msg=f"2^{power} {field}",
                )
