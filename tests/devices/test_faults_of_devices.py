# SPDX-License-Identifier: MIT
"""Tensors that are no maps, and devices that fail or run out of memory, as torch operations meet them."""

import re
import sys
import types

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope.devices import placement, slabs
from every_call import answer, arrays_of, every_call

#: Calls of all public functions of attention maps, by name.
CALLS = {
    name: (function, arguments)
    for name, function, arguments in every_call()
    if next(iter(arguments)) in ("attention", "heads") and name != "measure"
}
#: Those whose maps are measured by torch operations, in functions of `attnscope.devices`.
IN_TORCH = sorted(name for name in CALLS if name in placement.STAYS_ON_DEVICE)
pytestmark = pytest.mark.filterwarnings(
    "ignore::attnscope.errors.NonFiniteWarning",
    "ignore::attnscope.errors.NotAttentionWarning",
    "ignore::UserWarning:torch",
)


def shard(maps):
    """Return the maps as a tensor that is sharded over one process."""
    distributed = pytest.importorskip("torch.distributed.tensor", reason="this torch shards no tensors")
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
        )
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    return distributed.distribute_tensor(maps, mesh, [distributed.Shard(0)])


#: Tensors that are refused, how they are made, and what the message says of them.
REFUSED = {
    "sparse": (lambda maps: maps.to_sparse(), "must be a dense tensor, got layout torch.sparse_coo"),
    "compressed rows": (lambda maps: maps[0].to_sparse_csr(), "got layout torch.sparse_csr"),
    "quantised": (
        lambda maps: torch.quantize_per_tensor(maps.float(), 0.1, 0, torch.quint8),
        "must be float16, bfloat16, float32 or float64, got torch.quint8",
    ),
    "nested": (
        lambda maps: torch.nested.nested_tensor([maps[0], maps[1, :4, :4]]),
        "must be one dense tensor, got a nested tensor; pad it",
    ),
    "meta": (lambda maps: maps.to("meta"), "holds no memory, got a tensor of shape (3, 40, 40) on meta"),
    "sharded": (shard, "holds no memory, got a DTensor of shape (3, 40, 40) on cpu"),
    "complex": (
        lambda maps: torch.complex(maps, maps),
        "must be float16, bfloat16, float32 or float64, got torch.complex128",
    ),
}


@pytest.fixture(autouse=True)
def leave_no_process_group():
    yield
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_dense_tensor_is_refused_in_words(name, kind):
    function, arguments = CALLS[name]
    make, words = REFUSED[kind]
    first = next(iter(arguments))
    if name.startswith("ruscio2025.") and kind in ("meta", "sharded"):
        words = words.partition(" of shape")[0]
    if arguments[first].ndim == 2 and kind in ("nested", "compressed rows"):
        return  # it has no maps to choose from
    bad = {**arguments, first: make(arguments[first])}
    for implementation in ("core", "torch"):
        with asc.devices.use(implementation), pytest.raises((TypeError, ValueError), match=re.escape(words)):
            answer(function, bad)


@pytest.mark.parametrize("name", IN_TORCH)
def test_a_lost_device_is_named(name, monkeypatch):
    failure = getattr(torch, "AcceleratorError", None)
    if failure is None:
        pytest.skip("this torch has no error of its own for devices that fail")

    def fail(*arguments, **options):
        raise failure("CUDA error: unspecified launch failure")

    monkeypatch.setattr(placement.importlib, "import_module", fail)
    monkeypatch.setattr(placement.slabs, "per_cloud", fail)
    function, arguments = CALLS[name]
    words = r"^\w+: cpu failed, and tensors on it may be lost: CUDA error: unspecified launch failure"
    with asc.devices.use("torch"), pytest.raises(RuntimeError, match=words) as caught:
        answer(function, arguments)
    assert isinstance(caught.value.__cause__, failure)


def test_a_device_that_is_lost_while_a_map_is_copied_is_named(monkeypatch):
    failure = getattr(torch, "AcceleratorError", None)
    if failure is None:
        pytest.skip("this torch has no error of its own for devices that fail")

    def fail(value):
        raise failure("CUDA error: unspecified launch failure")

    monkeypatch.setattr(placement, "host_copy", fail)
    with asc.devices.use("torch"), pytest.raises(RuntimeError, match=r"^betti_numbers: cpu failed"):
        asc.betti_numbers(torch.eye(3), [0.5])


@pytest.mark.parametrize("name", [name for name in IN_TORCH if name != "persistence"])
def test_a_device_without_memory_ends_with_the_number_of_maps(name, monkeypatch):
    def scarce(*arguments, **options):
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(slabs, "_slab_type", lambda device, masks: scarce)
    function, arguments = CALLS[name]
    words = r"^\w+: cpu has no memory for \d map\(s\) of 40 tokens next to what it holds: no memory left"
    with asc.devices.use("torch"), pytest.raises(MemoryError, match=words):
        answer(function, arguments)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("name", IN_TORCH)
def test_what_lies_beside_the_maps_may_lie_on_another_device(name, monkeypatch):
    monkeypatch.setattr(placement, "FEWEST_BYTES", 0)
    function, arguments = CALLS[name]
    first = next(iter(arguments))
    lengths = torch.tensor([40, 40, 40])
    options = {"lengths": lengths} if first == "attention" and name != "scale_sensitivity" else {}
    computed = answer(function, {**arguments, first: arguments[first].cuda(), **options})
    expected = answer(function, {**arguments, **options})
    for have, want in zip(arrays_of(computed), arrays_of(expected), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-9, atol=1e-9)


def test_triton_is_not_asked_for_a_device_that_it_does_not_know(monkeypatch):
    """It may be installed where there is neither a device nor its interpreter."""
    trees = types.ModuleType("attnscope.devices.homology.spanning_tree")
    monkeypatch.setitem(sys.modules, trees.__name__, trees)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    maps = CALLS["persistence"][1]["attention"]

    def grow(*arguments):
        raise RuntimeError("0 active drivers")

    trees.grow = grow
    expected = asc.persistence(maps, max_dimension=0)
    with asc.devices.use("torch"):
        computed = asc.persistence(maps, max_dimension=0)
    for have, want in zip(arrays_of(computed), arrays_of(expected), strict=True):
        np.testing.assert_array_equal(have, want)
