# SPDX-License-Identifier: MIT
"""No public function detaches in silence: its results keep the gradient of a tensor, or refuse by name."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from every_call import answer, every_call

#: Fields that do not depend on the entries of a map: what uniform attention would have.
CONSTANT = {"pattern_share": {"uniform"}}
#: Statistics of weights, which are parameters and always require a gradient: detached, as the page says.
OF_WEIGHTS = {"alignment_gain", "concentration", "delta_statistics", "subspace_fraction"}
CASES = [
    pytest.param(name, function, arguments, key, id=f"{name}-{key}")
    for name, function, arguments in every_call()
    for key, value in arguments.items()
    if name not in OF_WEIGHTS and isinstance(value, Tensor) and value.is_floating_point()
]


def numbers(result: Any, field: str = "") -> list[tuple[str, Tensor]]:
    """Return the floating-point tensors of a result, each with the name of its field."""
    if isinstance(result, Tensor):
        return [(field, result)] if result.is_floating_point() else []
    if isinstance(result, dict):
        return [pair for name, value in result.items() for pair in numbers(value, name)]
    if hasattr(result, "_fields"):
        return [pair for name in result._fields for pair in numbers(getattr(result, name), name)]
    if isinstance(result, (tuple, list)):
        return [pair for value in result for pair in numbers(value, field)]
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        names = [entry.name for entry in dataclasses.fields(result)]
        return [pair for name in names for pair in numbers(getattr(result, name), name)]
    return []


@pytest.mark.parametrize(("name", "function", "arguments", "key"), CASES)
def test_a_gradient_is_kept_or_refused(
    name: str, function: Callable[..., Any], arguments: dict[str, Any], key: str
) -> None:
    leaf = arguments[key].clone().requires_grad_()
    results = numbers(answer(function, {**arguments, key: leaf}))
    silent = {field for field, tensor in results if not tensor.requires_grad}
    assert silent <= CONSTANT.get(name, set())
