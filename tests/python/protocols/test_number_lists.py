# SPDX-License-Identifier: MIT
"""Functions of plain numbers name the argument that holds none, and tensors that NumPy cannot read."""

import numpy as np
import pandas as pd
import pytest
import torch

from attnscope import statistics
from attnscope.protocols import ruscio2023, ruscio2025, ruscio2025once

CALLS = {
    "ruscio2023.correlation: x": lambda it: ruscio2023.correlation(it, [1.0, 2.0, 3.0]),
    "ruscio2023.correlation: y": lambda it: ruscio2023.correlation([1.0, 2.0, 3.0], it),
    "ruscio2023.best_layers: probabilities": lambda it: ruscio2023.best_layers([[0.1] * 3], it, 0.5, "abc"),
    "ruscio2025.depth_trend: values": ruscio2025.depth_trend,
    "ruscio2025.middle_peak: values": ruscio2025.middle_peak,
    "ruscio2025.fiedler_correlations: gini": lambda it: ruscio2025.fiedler_correlations(
        {"fiedler_value": [1.0, 2.0, 3.0], "gini": it}
    ),
    "ruscio2025.combine_p_values: p_values": ruscio2025.combine_p_values,
    "ruscio2025once.rank_adjusted: p_values": ruscio2025once.rank_adjusted,
    "mean_intervals: values": lambda it: statistics.mean_intervals(it),
}
NUMBERS = [0.25, 0.5, 0.75]


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_list_of_numbers_is_named(name):
    for values in (["0.1", "none", "0.3"], torch.tensor(NUMBERS, requires_grad=True)):
        with pytest.raises(TypeError, match=rf"^{name} must be numbers: "):
            CALLS[name](values)


@pytest.mark.parametrize("name", [name for name in CALLS if name != "mean_intervals: values"])
@pytest.mark.parametrize("container", [np.array, torch.tensor, pd.Series, tuple])
def test_containers_of_the_same_numbers_are_one(name, container):
    np.testing.assert_equal(CALLS[name](container(NUMBERS)), CALLS[name](NUMBERS))


def test_maps_with_a_gradient_are_tested_as_the_same_maps_without():
    maps = torch.softmax(torch.randn(2, 6, 6, generator=torch.Generator().manual_seed(0)), -1)
    expected = ruscio2023.mann_whitney(*maps, (1, 3))
    assert ruscio2023.mann_whitney(*maps.clone().requires_grad_(), (1, 3)) == expected
