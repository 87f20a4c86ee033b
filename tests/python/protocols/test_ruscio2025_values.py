# SPDX-License-Identifier: MIT
"""Protocol ruscio2025, attention against states: the notebooks' steps written out in NumPy."""

import math

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.protocols import ruscio2025


def maps(*shape, causal=True, seed=0):
    logits = 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if causal:
        logits = logits.masked_fill(~torch.ones(shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return torch.softmax(logits, -1)


def normal(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def alignment_oracle(attention, hidden):
    a, s = attention.numpy(), hidden.numpy()
    norms = np.linalg.norm(s, axis=1)
    unit = np.divide(s, norms[:, None], out=np.zeros_like(s), where=norms[:, None] > 0)
    off = ~np.eye(len(a), dtype=bool)
    x, y = a[off], (unit @ unit.T)[off]
    return 0.0 if x.std() == 0 or y.std() < 1e-12 else np.corrcoef(x, y)[0, 1]


def test_alignment_keeps_the_zeros_that_a_causal_query_cannot_see():
    attention, hidden = maps(3, 15, 15), normal(3, 15, 6)
    hidden[1, 4] = 0
    result = ruscio2025.geometric_semantic_alignment(attention, hidden)
    expected = [alignment_oracle(a, s) for a, s in zip(attention, hidden, strict=True)]
    np.testing.assert_allclose(result, expected, rtol=1e-10)
    assert abs(result[0] - asc.geometric_semantic_alignment(attention[0], hidden[0])) > 1e-3
    assert ruscio2025.geometric_semantic_alignment(attention[0], torch.ones(15, 2)).item() == 0
    assert ruscio2025.geometric_semantic_alignment(attention[0], torch.zeros(15, 2)).item() == 0
    full = maps(9, 9, causal=False)
    exact = asc.geometric_semantic_alignment(full, normal(9, 3))
    assert ruscio2025.geometric_semantic_alignment(full, normal(9, 3)).item() == pytest.approx(exact.item())


def pca_oracle(rows, count):
    centred = rows - rows.mean(0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    vectors = vectors[:, np.argsort(values)[::-1][:count]]
    vectors = vectors * np.sign(vectors[np.abs(vectors).argmax(0), range(count)])
    return centred @ vectors


@pytest.mark.parametrize("n", [12, 51, 65])
def test_pca_correlation_of_a_head_on_its_diagonal_is_a_correlation(n):
    """All but one of the eigenvalues of its covariance are equal: any of their directions may be taken."""
    result = ruscio2025.pca_correlation(torch.eye(n), normal(n, 4))
    assert abs(result.signed) <= result.absolute <= 1


def test_pca_correlation_equals_eigenvectors_of_the_covariance():
    attention, hidden = maps(12, 12), normal(12, 5)
    result = ruscio2025.pca_correlation(attention, hidden)
    a, b = pca_oracle(attention.numpy(), 3), pca_oracle(hidden.numpy(), 3)
    r = [np.corrcoef(a[:, k], b[:, k])[0, 1] for k in range(3)]
    assert result.signed.item() == pytest.approx(np.mean(r), rel=1e-8)
    assert result.absolute.item() == pytest.approx(np.mean(np.abs(r)), rel=1e-8)
    # States on a line have one component; constant ones none.
    line = torch.arange(12, dtype=torch.float64).unsqueeze(-1) * torch.ones(3)
    line_result = ruscio2025.pca_correlation(attention, line)
    first = np.corrcoef(a[:, 0], np.arange(12))[0, 1]
    assert line_result.absolute.item() == pytest.approx(abs(first), rel=1e-8)
    assert ruscio2025.pca_correlation(attention, torch.ones(12, 3)).absolute.isnan()
    batch = ruscio2025.pca_correlation(maps(2, 3, 6, 6), normal(2, 1, 6, 4))
    assert batch.signed.shape == (2, 3)


def test_heads_share_the_components_of_their_states():
    attention, hidden = maps(2, 3, 9, 9), normal(2, 1, 9, 4)
    hidden[1, 0, 2, 1] = float("nan")
    attention[0, 1, 3, 3] = float("nan")
    with pytest.warns(RuntimeWarning, match="4 "):
        result = ruscio2025.pca_correlation(attention, hidden)
    assert result.signed.isnan().tolist() == [[False, True, False], [True] * 3]
    for head in (0, 2):
        head_result = ruscio2025.pca_correlation(attention[0, head], hidden[0, 0])
        assert head_result.signed.item() == pytest.approx(result.signed[0, head].item(), rel=1e-12)


def influence_oracle(attention, hidden):
    a, s = attention.numpy(), hidden.numpy()
    n = len(a)
    mean = a.mean(0)
    reference = np.flatnonzero(mean > 0.1)
    if len(reference) == 0:
        reference = np.argsort(-mean, kind="stable")[: max(1, int(0.1 * n))]
    limit = max(1, int(0.3 * n))
    if len(reference) > limit:
        reference = reference[np.argsort(-mean[reference], kind="stable")][:limit]
    if np.abs(s).max() > 1e5:
        s = s * (1e5 / np.abs(s).max())
    rows = a / a.sum(1, keepdims=True)
    matched = []
    for i in range(n):
        if i in reference:
            matched.append((0.5, 0.5, 0.0))
            continue
        c = rows[i] @ s
        c_r = rows[i, reference] @ s[reference]
        c_n = c - c_r
        size, part = np.linalg.norm(c), np.linalg.norm(c_r)
        magnitude = min(part / size, 1) if size >= 1e-10 else float(part >= 1e-10)
        direction = (c @ c_r / size / part + 1) / 2 if min(size, part) >= 1e-10 else 0.5
        matched.append((magnitude, direction, min(np.linalg.norm(c - c_n), 1e6)))
    return np.array(matched).T


@pytest.mark.parametrize("scale", [1.0, 1e7])
@pytest.mark.parametrize("causal", [True, False])
def test_reference_influence_equals_its_steps(causal, scale):
    attention, hidden = maps(3, 20, 20, causal=causal), scale * normal(3, 20, 6)
    result = ruscio2025.reference_influence(attention, hidden)
    for index in range(3):
        expected = influence_oracle(attention[index], hidden[index])
        np.testing.assert_allclose([part[index] for part in result[:3]], expected, rtol=1e-8, atol=1e-12)


def test_reference_influence_of_vanishing_outputs():
    star = torch.zeros(6, 6, dtype=torch.float64)
    star[:, 0] = 1
    result_of_zeros = ruscio2025.reference_influence(star, torch.zeros(6, 2))
    assert result_of_zeros.relative_magnitude.tolist() == [0.5, 0, 0, 0, 0, 0]
    assert result_of_zeros.directional.tolist() == [0.5] * 6
    # The reference and the rest cancel: the output vanishes, the reference does not.
    half = torch.zeros(10, 10, dtype=torch.float64)
    half[:, 0] = half[:, 1] = 0.5
    half[:, 1] = torch.linspace(0.49, 0.5, 10, dtype=torch.float64)
    states = torch.ones(10, 1, dtype=torch.float64)
    result = ruscio2025.reference_influence(half, states)
    assert result.reference.nonzero().flatten().tolist() == [0, 1]
    np.testing.assert_allclose(result.relative_magnitude[2:], 1)


def magnitude_oracle(before, after):
    """One factor for both states, differences cut at a thousand."""
    pre, post = before.numpy(), after.numpy()
    largest = max(np.abs(pre).max(), np.abs(post).max())
    if largest > 1e3:
        pre, post = pre * (1e3 / largest), post * (1e3 / largest)
    return np.sqrt((np.clip(post - pre, -1e3, 1e3) ** 2).sum(-1))


def test_magnitude_scales_both_states_down_by_one_factor():
    before, after = normal(7, 4), normal(7, 4, seed=2)
    plain = ruscio2025.transformation_magnitude(before, after)
    np.testing.assert_allclose(plain, asc.transformation_magnitude(before, after), rtol=1e-14)
    for which, place in ((before, 3), (after, 5)):
        which[place, 2] = -4000
        result = ruscio2025.transformation_magnitude(before, after)
        np.testing.assert_allclose(result, magnitude_oracle(before, after), rtol=1e-12)
    # the other tokens' differences are a quarter of what they are, and nothing else
    np.testing.assert_allclose(result[:3], plain[:3] / 4, rtol=1e-12)


def test_magnitude_where_the_largest_entry_grows_from_4_to_2500():
    # token 1 moves by 4.775; shrinking the state after alone would make 9.87 of that
    before, after = torch.zeros(2, 18, dtype=torch.float64), torch.zeros(2, 18, dtype=torch.float64)
    after[0, 0] = 2500
    before[1, :16], before[1, 16] = 4, 2.12
    after[1] = before[1]
    after[1, 17] = 4.775
    result = ruscio2025.transformation_magnitude(before, after)
    np.testing.assert_allclose(result, magnitude_oracle(before, after), rtol=1e-12)
    assert round(result[1].item(), 2) == 1.91
    assert round((0.4 * after - before)[1].norm().item(), 2) == 9.87
    assert result[0].item() == 1000


def test_differences_are_cut_and_each_pair_of_states_has_its_own_factor():
    before, after = torch.full((3, 2, 2), -3000.0), torch.full((3, 2, 2), 3000.0)
    before[0], after[2] = 1, 2
    result = ruscio2025.transformation_magnitude(before, after)
    expected = [
        magnitude_oracle(first.double(), other.double()) for first, other in zip(before, after, strict=True)
    ]
    np.testing.assert_allclose(result, expected, rtol=1e-12)
    assert result[1].tolist() == [math.sqrt(2e6)] * 2
    non_finite = after.clone()
    non_finite[1, 0, 0] = torch.inf
    with pytest.warns(RuntimeWarning, match="transformation_magnitude: 2 of 6 tokens"):
        again = ruscio2025.transformation_magnitude(before, non_finite)
    assert again[1].isnan().all()
    assert torch.equal(again[::2], result[::2])
    with pytest.raises(ValueError, match="do not broadcast"):
        ruscio2025.transformation_magnitude(before, after[:2])
    with pytest.raises(ValueError, match=r"shape \[..., n, d\]"):
        ruscio2025.transformation_magnitude(before, after[:, :1])


def test_entropy_magnitude_correlation_is_pearson_of_the_two():
    attention, before, after = maps(9, 9), normal(9, 4), normal(9, 4, seed=3)
    entropy = ruscio2025.attention_entropy(attention).numpy()
    step = ruscio2025.transformation_magnitude(before, after).numpy()
    result = ruscio2025.entropy_magnitude_correlation(attention, before, after).item()
    assert result == pytest.approx(np.corrcoef(entropy, step)[0, 1], rel=1e-12)
    before[4, 1] = 2500
    result = ruscio2025.entropy_magnitude_correlation(attention, before, after).item()
    expected = np.corrcoef(entropy, magnitude_oracle(before, after))[0, 1]
    assert result == pytest.approx(expected, rel=1e-12)
    assert ruscio2025.entropy_magnitude_correlation(attention, before, before).item() == 0


def test_non_finite_states_are_reported_and_their_neighbours_kept():
    attention, hidden = maps(2, 8, 8), normal(2, 8, 3)
    clean = ruscio2025.reference_influence(attention[1], hidden[1])
    hidden[0, 2, 1] = torch.nan
    for function in (ruscio2025.geometric_semantic_alignment, ruscio2025.pca_correlation):
        with pytest.warns(RuntimeWarning, match="1 of 2 matrices or their states"):
            result = function(attention, hidden)
        result = result if isinstance(result, torch.Tensor) else result.absolute
        assert result.isnan().tolist() == [True, False]
    with pytest.warns(RuntimeWarning, match="1 of 2 matrices or their states"):
        result = ruscio2025.reference_influence(attention, hidden)
    assert result.directional[0].isnan().all()
    np.testing.assert_allclose(result.directional[1], clean.directional, rtol=1e-12)
    assert not math.isnan(clean.information_change.sum())


def test_bad_arguments_are_named():
    shape = r"ruscio2025.pca_correlation: hidden must have shape .* got \(4, 2\)"
    with pytest.raises(ValueError, match=shape):
        ruscio2025.pca_correlation(torch.rand(3, 3), torch.rand(4, 2))
    broadcast = r"ruscio2025.reference_influence: hidden of shape \(2, 3, 2\) does not"
    with pytest.raises(ValueError, match=broadcast):
        ruscio2025.reference_influence(torch.rand(3, 3), torch.rand(2, 3, 2))
