# SPDX-License-Identifier: MIT
"""Tensors in and out of the core, and its threads: one build for every torch, no copy, torch's own pool."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import attnscope as asc
from attnscope import _checks, _core, _isa

pytestmark = pytest.mark.filterwarnings("ignore::attnscope.errors.NotAttentionWarning")
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# A copy of it is 4 TB in float32, and its first entry is the one that is asked for.
HUGE = 2**20


class Foreign:
    """An array of a library that speaks DLPack and nothing else."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class Older(Foreign):
    """The same with a library that knows no versions of DLPack."""

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()


@pytest.mark.parametrize("isa", _isa.available())
def test_the_core_needs_no_cpp_symbol_of_torch(isa):
    core = next(Path(_core.__file__).parent.glob(f"_core_{isa}.*"))
    names = core.read_bytes()  # of what a library takes from others, every name stands in it
    assert not re.findall(rb"_Z\w{0,4}(?:2at|3c10|5torch|8autograd)\d\w*", names)
    assert b"libtorch_cpu.so" in names
    assert not re.findall(rb"libtorch_python\.so|libc10\.so|libgomp\.so|THPVariable\w*", names)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_is_read_where_it_lies(dtype):
    huge = torch.full((1, 1), -1.0, dtype=dtype).expand(HUGE, HUGE)
    assert _core.first_invalid(huge, None, 1.0) == (0, 0, 0, -1.0)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_an_array_of_numpy_is_read_where_it_lies(dtype):
    single_map = np.full((1, 1), -1.0, dtype)
    huge = np.lib.stride_tricks.as_strided(single_map, (HUGE, HUGE), (0, 0))
    assert _core.first_invalid(huge, None, 1.0) == (0, 0, 0, -1.0)
    read_only = np.lib.stride_tricks.as_strided(single_map, (HUGE, HUGE), (0, 0), writeable=False)
    assert _checks.square_tensor("f", "attention", read_only).data_ptr() == single_map.ctypes.data
    with pytest.raises(ValueError, match=r"got -1.0 at index \(0, 0\)"):
        asc.attention_entropy(read_only, validate=True)


@pytest.mark.parametrize("kind", [Foreign, Older])
def test_an_array_that_speaks_dlpack_is_read_where_it_lies(kind):
    maps = np.random.default_rng(0).random((2, 5, 5))
    array = kind(maps[:, ::-1, ::-1][:, ::-1, ::-1])
    assert _checks.square_tensor("f", "attention", array).data_ptr() == maps.ctypes.data
    expected = [asc.participation_ratio(torch.tensor(attention_map)).item() for attention_map in maps]
    assert asc.participation_ratio(array).tolist() == expected
    assert _core.participation_ratio(array, None, "singular")[0].tolist() == expected


@pytest.mark.parametrize("library", ["jax", "cupy"])
def test_arrays_of_other_libraries(library):
    numpy_like = pytest.importorskip(f"{library}.numpy" if library == "jax" else library)
    maps = np.random.default_rng(1).random((3, 6, 6)).astype(np.float32)
    array = numpy_like.asarray(maps)
    assert torch.equal(asc.participation_ratio(array), asc.participation_ratio(torch.from_numpy(maps)))
    if library == "jax":
        tensor = _checks.square_tensor("f", "attention", array)
        assert tensor.data_ptr() == array.unsafe_buffer_pointer()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["transposed", "every second", "one row for all", "leading axes swapped"])
def test_strides(dtype, form):
    maps = torch.rand(3, 2, 8, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    view = {
        "transposed": maps.mT,
        "every second": maps[..., ::2, 1::2],
        "one row for all": maps[..., :1, :].expand_as(maps),
        "leading axes swapped": maps.transpose(0, 1),
    }[form]
    assert _core.is_plain_batch(view)
    for function in (asc.participation_ratio, asc.fiedler_value):
        assert torch.equal(function(view), function(view.contiguous()))


def test_a_mask_broadcasts_as_torch_does():
    maps = torch.rand(3, 2, 8, 8, generator=torch.Generator().manual_seed(0)).tril()
    lower = torch.ones(8, 8, dtype=torch.bool).tril()
    for mask in (lower, lower[None], lower.expand(2, 8, 8), lower.expand(3, 1, 8, 8)):
        result = asc.marchenko_pastur(maps, support=mask).ks
        assert torch.equal(result, asc.marchenko_pastur(maps, support=mask.expand(3, 2, 8, 8).clone()).ks)
    batch = (maps, None, "singular")
    assert _core.participation_ratio(*batch)[0].shape == (3, 2)
    for shape in ((2, 8), (4, 2, 8, 8), (1, 1, 3, 2, 8, 8)):
        with pytest.raises(ValueError, match="support does not broadcast"):
            _core.marchenko_pastur(maps, None, torch.ones(shape).bool(), "auto", 0, 0, False)


def test_results_are_tensors_of_their_own():
    maps = torch.rand(4, 6, 6)
    first, second = (_core.singular_values(maps, None)[0] for _ in range(2))
    assert type(first) is torch.Tensor
    assert (first.dtype, first.shape, first.device.type) == (torch.float64, (4, 6), "cpu")
    assert first.is_contiguous()
    assert not first.requires_grad
    first += 1
    assert torch.equal(first, second + 1)
    counted = asc.betti_numbers(maps[:0], [0.1])
    assert counted.shape == (0, 1, 2)
    assert counted.dtype == torch.int64


def test_results_give_their_memory_back(fresh):
    script = """
import resource, torch
from attnscope import _core
maps = torch.zeros(1, 1, 1).expand(2**17, 1, 1)  # a result of 1 MB
for turn in range(400):
    _core.singular_values(maps, None)
    if turn == 100:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    assert int(fresh(script).stdout) < 100 * 1024  # of the 300 MB that the last 300 results took


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="this torch has capsules alone"
)
def test_without_the_c_interface_capsules_carry_the_same(fresh):
    script = """
import torch
WITHOUT
import attnscope as asc
from attnscope import _core
maps = torch.rand(3, 2, 8, 8, generator=torch.Generator().manual_seed(0))
numbers = []
for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
    view = maps.to(dtype).mT
    numbers += asc.participation_ratio(view, lengths=[5, 8]).flatten().tolist()
    numbers += asc.marchenko_pastur(view, support=torch.ones(8, 8, dtype=torch.bool)).ks.flatten().tolist()
    numbers += asc.fiedler_value(view.clone().requires_grad_()).flatten().tolist()
    numbers += asc.betti_numbers(view, [0.1]).flatten().tolist()
    numbers += asc.sink_tokens(view).flatten().tolist()
for wrong in (maps.long(), maps.to_sparse(), maps.to("meta"), torch._neg_view(maps), None):
    numbers.append(_core.is_plain_batch(wrong))
try:
    asc.fiedler_value(maps[..., :3])
except ValueError as error:
    numbers.append(str(error))
print(_core.interfaces()[0], numbers, sep="|")
"""
    output, numbers = fresh(script.replace("WITHOUT", "")).stdout.split("|")
    without = fresh(script.replace("WITHOUT", "del torch.Tensor.__dlpack_c_exchange_api__"))
    capsules, unchanged = without.stdout.split("|")
    assert (output, capsules) == (_core.interfaces()[0], "DLPack capsules")
    assert numbers == unchanged


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_threads_are_those_of_torch_and_as_many_as_it_says():
    script = """
import os, torch
import attnscope as asc
maps = torch.rand(256, 32, 32)
threads = lambda: len(os.listdir("/proc/self/task"))
torch.set_num_threads(1)
counts = [threads()]
for number in (1, 3):
    torch.set_num_threads(number)
    for work in (lambda: asc.participation_ratio(maps), lambda: torch.rand(10**6).exp()):
        work()
        counts.append(threads() - counts[0])
print(counts[1:])
"""
    # four blocks of 64k entries, fewer would wake fewer threads; a pool of three is the calling thread and
    # two more, and torch's own work finds them there
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "8"},
    )
    assert done.stdout == "[0, 0, 2, 2]\n", done.stderr
