# SPDX-License-Identifier: MIT
"""RAUQ: closed forms, a loop, lengths, and what is refused."""

import math
import warnings

import mpmath
import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.errors import NonFiniteWarning


def drawn(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def loop(previous, log_p, weight):
    """The recurrence, one layer and one token after another."""
    values, heads = [], []
    for maps in previous.numpy():
        means = [row[1:].mean() if len(row) > 1 else 0.0 for row in maps]
        head = int(np.argmax(means))
        c, total = math.exp(log_p[0]), 0.0
        total = math.log(c)
        for t in range(1, len(log_p)):
            c = weight * math.exp(log_p[t]) + (1 - weight) * maps[head, t] * c
            total += math.log(c)
        values.append(-total / len(log_p))
        heads.append(head)
    return max(values), values, heads


def test_certain_tokens_and_none():
    assert asc.recurrent_uncertainty(torch.ones(2, 3, 4), torch.zeros(4)).value == 0
    half = asc.recurrent_uncertainty(torch.zeros(1, 1, 2), torch.zeros(2), weight=0.5)
    assert half.value.item() == pytest.approx(math.log(2) / 2)
    single = asc.recurrent_uncertainty(torch.zeros(1, 1, 1), torch.tensor([math.log(0.5)]).double())
    assert single.value.item() == pytest.approx(math.log(2))
    assert asc.recurrent_uncertainty(torch.zeros(1, 1, 2), torch.zeros(2), weight=0).value == math.inf


@pytest.mark.parametrize("weight", [0.0, 0.2, 1.0])
def test_it_is_the_recurrence(weight):
    previous, log_p = drawn(3, 4, 5, 7), drawn(3, 7, seed=1).log()
    result = asc.recurrent_uncertainty(previous, log_p, weight=weight)
    for b in range(3):
        value, layers, heads = loop(previous[b], log_p[b].numpy(), weight)
        assert result.value[b].item() == pytest.approx(value, rel=1e-12)
        np.testing.assert_allclose(result.layers[b], layers, rtol=1e-12)
        assert result.head[b].tolist() == heads


@pytest.mark.parametrize("weight", [0.0, 0.2, 1.0])
@pytest.mark.parametrize(("size", "lowest"), [(40, -3000.0), (3000, -1.0)])
def test_confidence_may_be_smaller_than_any_float64(weight, size, lowest):
    """The recurrence in numbers of any size; entries of no attention and sure tokens among the others."""
    previous, log_p = 0.5 * drawn(1, 1, size), lowest * drawn(size, seed=1)
    if weight:
        previous[..., ::7] = 0.0
    log_p[::5] = 0.0
    leaves = previous.clone().requires_grad_(), log_p.clone().requires_grad_()
    value = asc.recurrent_uncertainty(*leaves, weight=weight).value
    with mpmath.workdps(30):
        c = mpmath.exp(mpmath.mpf(log_p[0].item()))
        total = mpmath.log(c)
        for t in range(1, size):
            carried = (1 - mpmath.mpf(weight)) * mpmath.mpf(previous[0, 0, t].item()) * c
            c = mpmath.mpf(weight) * mpmath.exp(mpmath.mpf(log_p[t].item())) + carried
            total += mpmath.log(c)
        expected = float(-total / size)
    assert value.item() == pytest.approx(expected, rel=1e-12)
    value.backward()
    assert all(leaf.grad.isfinite().all() for leaf in leaves)


@pytest.mark.parametrize("beyond", [math.nan, math.inf])
def test_what_does_not_count_takes_no_gradient_away(beyond):
    draw = torch.Generator().manual_seed(0)
    previous = torch.rand(4, 3, 2, 6, generator=draw, dtype=torch.float64)
    log_p = -torch.rand(4, 6, generator=draw, dtype=torch.float64)
    lengths = [6, 4, 6, 0]

    def gradients(*arguments):
        leaves = [tensor.clone().requires_grad_() for tensor in arguments]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NonFiniteWarning)
            value = asc.recurrent_uncertainty(*leaves, lengths=lengths).value
        return torch.autograd.grad(value[:2].sum(), leaves)

    expected = gradients(previous, log_p)
    assert all(gradient.isfinite().all() and gradient[:2].any() for gradient in expected)
    previous[..., 0] = previous[1, ..., 4:] = log_p[1, 4:] = previous[2, 0, 0, 3] = beyond
    for gradient, clean in zip(gradients(previous, log_p), expected, strict=True):
        assert torch.equal(gradient, clean)


def test_lengths_are_the_first_tokens():
    previous, log_p = drawn(3, 2, 3, 6), drawn(3, 6, seed=1).log()
    result = asc.recurrent_uncertainty(previous, log_p, lengths=[6, 4, 0])
    single = asc.recurrent_uncertainty(previous[1, ..., :4], log_p[1, :4])
    torch.testing.assert_close(result.value[1], single.value, rtol=1e-14, atol=0)
    assert result.head[1].tolist() == single.head.tolist()
    assert result.value[2].isnan()
    assert result.head[2].tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("previous", "log_p", "options", "words"),
    [
        (torch.ones(3, 4), torch.zeros(4), {}, r"previous must be \[..., L, h, T\], got shape \(3, 4\)"),
        (torch.ones(1, 3, 4), torch.zeros(5), {}, r"log_p of shape \(5,\) does not broadcast to \(4,\)"),
        (
            torch.ones(1, 3, 4),
            torch.ones(4),
            {},
            "log_p must be logarithms of likelihoods, .* got 1.0",
        ),
        (torch.ones(1, 3, 4), torch.zeros(4), {"weight": 2}, "weight must lie between 0 and 1, got 2"),
        (
            torch.ones(2, 1, 3, 4),
            torch.zeros(4),
            {"lengths": [5, 1]},
            "lengths must lie between 0 .* got 5",
        ),
    ],
)
def test_bad_input_is_named(previous, log_p, options, words):
    with pytest.raises(ValueError, match=f"recurrent_uncertainty: {words}"):
        asc.recurrent_uncertainty(previous, log_p, **options)
