# SPDX-License-Identifier: MIT
"""The smallest edit against the constrained least squares that it solves, and bad input."""

import numpy as np
import pytest
import torch

from attnscope.metrics.weights.minimal_edit import minimal_edit


def drawn(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_maps_the_input_and_disturbs_others_least():
    x = drawn(200, 6, seed=0) * torch.linspace(3, 0.2, 6).double()
    moment, a, shift = x.mT @ x / len(x), drawn(6, seed=1), drawn(4, seed=2)
    found = minimal_edit(shift, a, moment, ridge=0).dense().numpy()
    np.testing.assert_allclose(found @ a.numpy(), shift, rtol=1e-10)
    # the stationary point of tr(ΔW S ΔWᵀ) under ΔW a = D, row by row: [S a; aᵀ 0] [w; λ] = [0; D_i]
    system = np.block([[moment.numpy(), a.numpy()[:, None]], [a.numpy()[None], np.zeros((1, 1))]])
    for row, wanted in zip(found, shift.tolist(), strict=True):
        np.testing.assert_allclose(row, np.linalg.solve(system, [*[0.0] * 6, wanted])[:6], rtol=1e-9)


def test_the_ridge_is_relative_to_the_mean_eigenvalue():
    moment = torch.diag(torch.tensor([4.0, 2.0]))
    found = minimal_edit(torch.ones(1), torch.ones(2), moment, ridge=1.0).dense()
    expected = torch.tensor([[1 / 7, 1 / 5]]).double()
    torch.testing.assert_close(found, expected / expected.sum())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: minimal_edit(torch.ones(2), torch.zeros(3), torch.eye(3)), "a must not be 0"),
        (lambda: minimal_edit(torch.ones(2), torch.ones(3), torch.eye(2)), r"\(2,\), \(3,\) and \(2, 2\)"),
        (lambda: minimal_edit(torch.ones(2), torch.ones(3), torch.eye(3), ridge=-1), "got -1"),
        (lambda: minimal_edit(torch.ones(2), torch.ones(2), torch.zeros(2, 2), ridge=0), "no inverse"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
