# SPDX-License-Identifier: MIT
"""A tensor that has a shape and no entries in memory is refused in words, in the place of every tensor of
every
function: reading an entry of it would end the process."""

import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import attnscope as asc
from every_call import answer, every_call

CALLS = {name: (function, arguments) for name, function, arguments in every_call()}


def without_storage(tensor):
    empty = tensor.clone()
    empty.untyped_storage().resize_(0)
    return empty


KINDS = {
    "meta": lambda tensor: tensor.to("meta"),
    "fake": lambda tensor: FakeTensorMode().from_tensor(tensor),
    "zero": lambda tensor: torch._efficientzerotensor(tensor.shape, dtype=tensor.dtype),
    "without storage": without_storage,
}


def tensors_of(arguments):
    return [key for key, value in arguments.items() if isinstance(value, torch.Tensor) and value.numel()]


def refuse(function, arguments, key, value):
    with pytest.raises(TypeError, match=r"^[\w.]+: \w+ holds no memory, got an? \w+ of shape "):
        answer(function, {**arguments, key: value})


def test_there_are_calls_of_seventy_functions():
    assert len(CALLS) >= 70
    assert sum(bool(tensors_of(arguments)) for _, arguments in CALLS.values()) >= 68


@pytest.mark.parametrize("name", CALLS)
def test_tensors_without_memory_are_refused(name):
    function, arguments = CALLS[name]
    for key in tensors_of(arguments):
        for make in KINDS.values():
            refuse(function, arguments, key, make(arguments[key]))


@pytest.mark.parametrize("name", CALLS)
def test_functional_tensors_are_refused(name):
    function, arguments = CALLS[name]
    for key in tensors_of(arguments):

        def call(tensor, key=key):
            refuse(function, arguments, key, tensor)
            return tensor

        torch.func.functionalize(call)(arguments[key])


@pytest.mark.parametrize("name", ["fiedler_vector", "cloud_distances", "delta_statistics", "two_nn"])
def test_batches_of_vmap_are_refused(name):
    function, arguments = CALLS[name]
    key = tensors_of(arguments)[0]

    def call(tensor):
        return function(**{**arguments, key: tensor})

    with pytest.raises((TypeError, ValueError), match=rf"^{name}: "):
        torch.func.vmap(call)(torch.stack([arguments[key]] * 2))


def test_the_next_call_is_right_and_an_empty_tensor_needs_no_memory():
    maps = CALLS["fiedler_value"][1]["attention"]
    expected = asc.fiedler_value(maps)
    with pytest.raises(TypeError, match=re.escape("fiedler_value: attention holds no memory")):
        asc.fiedler_value(without_storage(maps))
    assert torch.equal(asc.fiedler_value(maps), expected)
    assert asc.fiedler_value(torch.zeros(0, 4, 4)).shape == (0,)
