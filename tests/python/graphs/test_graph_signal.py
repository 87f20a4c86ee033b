# SPDX-License-Identifier: MIT
"""States on graphs: closed forms, eigenvectors in NumPy, bases of equal eigenvalues, bad input."""

import math

import numpy as np
import pytest
import torch

import attnscope as asc


def maps(*shape, causal=True, seed=0, dtype=torch.float64):
    logits = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    if causal:
        logits = logits.masked_fill(~torch.ones(shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return logits.softmax(-1).to(dtype)


def drawn(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def laplacian(a, normalized):
    w = (a + a.T) / 2
    np.fill_diagonal(w, 0)
    d = w.sum(1)
    if not normalized:
        return np.diag(d) - w
    roots = np.where(d > 0, 1 / np.sqrt(np.where(d > 0, d, 1)), 0)
    return np.diag((d > 0).astype(float)) - roots[:, None] * w * roots


def by_eigenvectors(a, x, normalized, cut, center=False):
    """The definition, one eigenvalue and one dimension after another; random maps have distinct ones."""
    x = x - x.mean(0) if center else x
    matrix = laplacian(a.copy(), normalized)
    vectors = np.linalg.eigh(matrix)[1]
    p = np.array([sum((vectors[:, k] @ x[:, d]) ** 2 for d in range(x.shape[1])) for k in range(len(a))])
    energy = sum(x[:, d] @ matrix @ x[:, d] for d in range(x.shape[1]))
    p = p / (x**2).sum()
    high = math.ceil(cut * len(a))
    return energy, energy / (x**2).sum(), -(p * np.log(p)).sum(), p[len(a) - high :].sum()


def test_uniform_attention_and_one_state_by_hand():
    state = torch.eye(4, 1, dtype=torch.float64)
    result = asc.graph_signal(torch.full((4, 4), 0.25), state, normalized=False, cut=0.25)
    for value, expected in zip(result, (0.75, 0.75, math.log(4), 0.25), strict=True):
        assert value.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_every_field_is_that_of_numpy(normalized, center, causal):
    attention, states = maps(2, 3, 11, 11, causal=causal), drawn(2, 1, 11, 4)
    result = asc.graph_signal(attention, states, normalized=normalized, center=center, cut=0.3)
    for b, h in np.ndindex(2, 3):
        expected = by_eigenvectors(
            attention[b, h].numpy(), states[b, 0].numpy(), normalized, 0.3, center=center
        )
        for field, value in zip(result, expected, strict=True):
            assert field[b, h].item() == pytest.approx(value, rel=1e-9, abs=1e-10)


def test_equal_eigenvalues_share_evenly_whatever_the_basis():
    """Every frequency of a ring but two is double; a turn of the tokens changes the solver's basis."""
    ring = torch.eye(12, dtype=torch.float64).roll(1, 0)
    states = drawn(12, 3)
    first = asc.graph_signal(ring, states)
    for seed in range(5):
        order = torch.randperm(12, generator=torch.Generator().manual_seed(seed))
        other = asc.graph_signal(ring[order][:, order], states[order])
        for field, expected in zip(other, first, strict=True):
            assert field.item() == pytest.approx(expected.item(), abs=1e-10)


def test_constant_states_are_smooth_and_states_at_zero_have_no_spectrum():
    attention = maps(9, 9)
    constant = asc.graph_signal(attention, torch.ones(9, 2), normalized=False)
    assert constant.energy.item() == pytest.approx(0, abs=1e-12)
    for states in (torch.zeros(9, 2), torch.ones(9, 2)):
        result = asc.graph_signal(attention, states, center=True)
        assert result.smoothness.isnan()
        assert result.entropy.isnan()


def test_without_a_spectrum_the_energies_are_the_same():
    attention, states = maps(2, 9, 9), drawn(2, 9, 4)
    full, quick = (asc.graph_signal(attention, states, spectrum=flag) for flag in (True, False))
    assert torch.equal(full.energy, quick.energy)
    assert torch.equal(full.smoothness, quick.smoothness)
    assert quick.entropy.isnan().all()


def test_lengths_masks_and_isolated_tokens():
    attention, states = maps(2, 12, 12), drawn(2, 12, 4)
    result = asc.graph_signal(attention, states, lengths=[12, 7])
    single = asc.graph_signal(attention[1, :7, :7], states[1, :7])
    for field, expected in zip(result, single, strict=True):
        assert torch.equal(field[1], expected)
    visible = torch.ones(12, 12, dtype=torch.bool)
    visible[5] = visible[:, 5] = False
    isolated = asc.graph_signal(attention[0], states[0], support=visible)
    masked = asc.graph_signal(attention[0] * visible, states[0])
    for field, expected in zip(isolated, masked, strict=True):
        assert torch.equal(field, expected)
    assert not isolated.smoothness.isnan()


@pytest.mark.parametrize("where", ["map", "states"])
def test_what_is_not_finite_is_nan_with_one_warning(where):
    attention, states = maps(2, 8, 8), drawn(2, 8, 3)
    (attention if where == "map" else states)[0, 7, 0] = torch.nan
    with pytest.warns(RuntimeWarning, match="graph_signal: 1 of 2 matrices or their states hold NaN"):
        result = asc.graph_signal(attention, states)
    assert all(field.isnan().tolist() == [True, False] for field in result)


@pytest.mark.parametrize(
    ("states", "options", "words"),
    [
        (torch.ones(7, 2), {}, r"states must be \[..., 8, d\], one row for each token, got shape \(7, 2\)"),
        (torch.ones(3, 8, 2), {}, r"states of shape \(3, 8, 2\) does not broadcast to \(2, 8, 2\)"),
        (torch.ones(8, 2), {"cut": 0}, r"cut must lie in \(0, 1\], got 0"),
        (torch.ones(8, 2), {"cut": 1.5}, r"cut must lie in \(0, 1\], got 1.5"),
    ],
)
def test_bad_input_is_named(states, options, words):
    with pytest.raises(ValueError, match=f"graph_signal: {words}"):
        asc.graph_signal(maps(2, 8, 8), states, **options)


def test_a_cut_whose_product_with_the_tokens_is_rounded_up_takes_no_eigenvalue_more():
    n = 25  # 0.28 * 25 is 7.000000000000001 in float64
    rng = np.random.default_rng(4)
    a, x = rng.random((n, n)), rng.standard_normal((n, 4))
    w = (a + a.T) / 2
    np.fill_diagonal(w, 0)
    vectors = np.linalg.eigh(np.diag(w.sum(0)) - w)[1]
    shares = ((vectors.T @ x) ** 2).sum(1) / (x**2).sum()
    result = asc.graph_signal(torch.tensor(a), torch.tensor(x), normalized=False, cut=0.28)
    assert result.high_share.item() == pytest.approx(shares[-7:].sum(), abs=1e-9)
