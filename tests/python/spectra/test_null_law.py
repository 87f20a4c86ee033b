# SPDX-License-Identifier: MIT
"""Null laws as curves and spectra beside them, against NumPy and known moments."""

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.metrics.spectra.null_law import null_law, null_spectrum, undefined_because


def moments(x, cdf, powers):
    return [np.sum((x[1:] ** k + x[:-1] ** k) / 2 * np.diff(cdf)) for k in powers]


def test_the_triangular_law_has_its_moments():
    x, cdf = null_law(np.e, None, 200_001)
    assert np.all(np.diff(x) > 0)
    assert np.all(np.diff(cdf) >= 0)
    assert cdf[0] < 0.02
    assert cdf[-1] == 1
    # k^k / (k + 1)!
    assert moments(x, cdf, (1, 2, 3)) == pytest.approx([1 / 2, 4 / 6, 27 / 24], rel=1e-6)


@pytest.mark.parametrize("aspect", [0.1, 0.25, 0.9, 0.999, 1.0])
def test_the_marchenko_pastur_law_has_its_moments(aspect):
    x, cdf = null_law((1 + aspect**0.5) ** 2, aspect, 100_001)
    assert np.all(np.diff(cdf) > -1e-15)
    assert cdf[[0, -1]] == pytest.approx([0, 1], abs=1e-12)
    assert moments(x, cdf, (1, 2, 3)) == pytest.approx([1, 1 + aspect, 1 + 3 * aspect + aspect**2], rel=1e-6)


@pytest.mark.parametrize("causal", [True, False])
def test_eigenvalues_are_numpys(causal):
    matrix = np.random.default_rng(2).random((24, 24))
    matrix = np.tril(matrix) if causal else matrix
    matrix[5, : 6 if causal else 24] = 0.125
    rows = []
    for query, row in enumerate(matrix):
        seen = row[: query + 1] if causal else row
        if np.ptp(seen) > 0:
            rows.append(np.pad((seen - seen.mean()) / seen.std(), (0, 24 - len(seen))))
    expected = np.linalg.svd(np.array(rows), compute_uv=False) ** 2 / 24
    result = null_spectrum(torch.from_numpy(matrix))
    np.testing.assert_allclose(result.values, expected[::-1], rtol=0, atol=1e-12)
    assert len(result.values) == (22 if causal else 23)


@pytest.mark.parametrize("causal", [True, False])
def test_random_entries_follow_their_law_and_the_distance_is_where_it_is_said_to_be(causal):
    for power, most in ((1, 0.1), (4, 0.5)):
        matrix = np.random.default_rng(3).random((96, 96)) ** power
        matrix = torch.from_numpy(np.tril(matrix) if causal else matrix)
        result = null_spectrum(matrix)
        assert result.ks == float(asc.marchenko_pastur_deviation(matrix)) < most
        below, above = sorted(result.between)
        assert above - below == pytest.approx(result.ks, abs=1e-12)
        assert np.interp(result.at, result.law_x, result.law_cdf) == pytest.approx(
            result.between[0], abs=1e-5
        )


@pytest.mark.parametrize(
    ("matrix", "reason"),
    [
        (torch.eye(3), "fewer than eight tokens"),
        (torch.full((9, 9), torch.nan), "not finite"),
        (torch.ones(9, 9).tril() / torch.arange(1, 10)[:, None], "every row is uniform"),
    ],
)
def test_maps_without_a_spectrum_say_why(matrix, reason):
    assert reason in undefined_because(matrix)
    with pytest.raises(ValueError, match=f"null_spectrum: .*{reason}"):
        null_spectrum(matrix)


def test_what_is_no_map_is_refused():
    with pytest.raises(ValueError, match=r"must be \[n, n\], got shape \(3, 4\)"):
        null_spectrum(torch.zeros(3, 4))
