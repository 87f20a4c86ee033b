# SPDX-License-Identifier: MIT
"""Massive activations: closed forms, medians in NumPy, lengths, and what is refused."""

import numpy as np
import pytest
import torch

import attnscope as asc


def test_ones_and_one_large_entry():
    states = torch.ones(5, 4)
    states[2, 1] = -2000
    result = asc.massive_activations(states)
    assert [field.item() for field in result[:5]] == [1, 2000, 2000, 2, 1]
    assert result.norms[0] == 1


def test_every_field_is_that_of_numpy():
    states = torch.randn(3, 6, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    states[1, 3, 5] *= 5000
    states[2, 0, 0] *= 300
    lengths = [6, 5, 4]
    result = asc.massive_activations(states, absolute=10, relative=50, lengths=lengths)
    for row, m in enumerate(lengths):
        x = np.abs(states[row, :m].numpy())
        median = np.median(x)
        assert result.count[row] == ((x > 10) & (x >= 50 * median)).sum()
        assert result.largest[row].item() == x.max()
        assert result.ratio[row].item() == x.max() / median
        assert (result.token[row], result.dimension[row]) == np.unravel_index(x.argmax(), x.shape)
        norms = np.linalg.norm(x, axis=-1)
        np.testing.assert_allclose(result.norms[row, :m], norms / np.median(norms), rtol=1e-15)
        assert result.norms[row, m:].isnan().all()


def test_the_median_of_an_even_number_is_between_its_two_middle_entries():
    result = asc.massive_activations(torch.tensor([[1.0, 3.0]]))
    assert result.ratio == 3 / 2  # torch's median is 1


def test_states_without_size_and_states_that_are_not_finite():
    zero = asc.massive_activations(torch.zeros(3, 2))
    assert (zero.count.item(), zero.largest.item(), zero.token.item()) == (0, 0, 0)
    assert zero.ratio.isnan()
    states = torch.ones(2, 3, 2)
    states[0, 1, 1] = torch.nan
    with pytest.warns(RuntimeWarning, match="massive_activations: 1 of 2 states hold NaN"):
        result = asc.massive_activations(states)
    assert result.count.tolist() == [-1, 0]
    assert result.largest.isnan().tolist() == [True, False]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"absolute": -1}, "absolute must be at least 0, got -1"),
        ({"relative": float("nan")}, "relative must be at least 0, got nan"),
        ({"lengths": [4]}, "lengths must lie between 1 and n = 3, got 4"),
    ],
)
def test_bad_input_is_named(options, words):
    with pytest.raises(ValueError, match=f"massive_activations: {words}"):
        asc.massive_activations(torch.ones(1, 3, 2), **options)


def test_a_massive_entry_exceeds_one_limit_and_reaches_the_other():
    states = torch.ones(5, 9)
    states[1, 2] = 100
    assert asc.massive_activations(states, absolute=100, relative=2).count.item() == 0
    assert asc.massive_activations(states, absolute=99, relative=100).count.item() == 1
