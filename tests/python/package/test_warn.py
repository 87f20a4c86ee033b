# SPDX-License-Identifier: MIT
"""A warning names the line of whoever called, whichever function was called."""

import inspect
import warnings

import pytest
import torch

import attnscope as asc
import models

NOT_FINITE = torch.full((2, 4, 4), float("nan"))


def captured():
    model = models.tiny("llama")
    for name, weights in model.named_parameters():
        if "layers.1.self_attn.q_proj" in name:
            weights.data.fill_(float("nan"))
    return asc.analyze(model, torch.arange(6)[None], ["fiedler_value"])


@pytest.mark.parametrize(
    "call",
    [
        lambda: asc.fiedler_value(NOT_FINITE),
        lambda: asc.stable_rank(NOT_FINITE),
        lambda: asc.measure(NOT_FINITE, "stable_rank"),
        lambda: asc.measure(NOT_FINITE, ["betti_numbers"], thresholds=[0.1]),
        lambda: asc.marchenko_pastur_deviation(torch.full((4, 4), 0.25)),
        lambda: asc.protocols.ruscio2025.marchenko_pastur_deviation(NOT_FINITE),
        lambda: asc.transformation_magnitude(torch.tensor([[float("nan")]]), torch.zeros(1, 1)),
        captured,
    ],
)
def test_the_callers_line_is_named(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    lines, first = inspect.getsourcelines(call)
    assert caught
    for warning in caught:
        assert warning.filename == __file__, f"{warning.filename}:{warning.lineno}"
        assert first <= warning.lineno < first + len(lines)
