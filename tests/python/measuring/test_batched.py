# SPDX-License-Identifier: MIT
"""The one loop over a batch: nothing copied, nothing written, threads that help, Ctrl-C that answers."""

import inspect
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
import torch

import attnscope as asc
from every_call import answer, equal_results, every_call


def softmax_maps(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(torch.randn(*shape, generator=generator, dtype=torch.float64), -1).to(dtype)


def views_of(maps):
    """The same matrices through every kind of stride a caller has."""
    count, n, _ = maps.shape
    padded = torch.full((count, n + 3, n + 2), torch.nan, dtype=maps.dtype)
    padded[:, 2 : n + 2, 1 : n + 1] = maps
    interleaved = torch.full((n, count, 2 * n), torch.nan, dtype=maps.dtype)
    interleaved[:, :, ::2] = maps.permute(1, 0, 2)
    return {
        "contiguous": maps,
        "slice": padded[:, 2 : n + 2, 1 : n + 1],
        "transpose": maps.mT.contiguous().mT,
        "permuted": interleaved[:, :, ::2].permute(1, 0, 2),
        "reversed batch": maps.flip(0)[torch.arange(count - 1, -1, -1)],
    }


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["contiguous", "slice", "transpose", "permuted", "reversed batch"])
def test_every_dtype_and_stride_is_read_exactly(dtype, kind):
    maps = softmax_maps(5, 9, 9, dtype=dtype)
    # Half types convert exactly to float64, so the answers are equal bit for bit.
    assert torch.equal(asc.fiedler_value(views_of(maps)[kind]), asc.fiedler_value(maps.double()))


def test_expanded_batches_share_one_matrix():
    matrix = softmax_maps(7, 7)
    result = asc.fiedler_value(matrix.expand(3, 2, 7, 7))
    assert torch.equal(result, asc.fiedler_value(matrix).expand(3, 2))
    row = torch.full((1, 6), 1 / 6, dtype=torch.float64).expand(6, 6)
    assert asc.fiedler_value(row).item() == pytest.approx(1.0, abs=1e-12)


def test_lengths_cut_each_matrix_to_its_leading_block():
    maps = softmax_maps(4, 3, 8, 8)
    lengths = torch.tensor([[8], [1], [5], [2]])
    maps[1, :, 1:, :] = torch.nan
    result = asc.fiedler_value(maps, lengths=lengths)
    for sample, length in enumerate(lengths.flatten().tolist()):
        assert torch.equal(result[sample], asc.fiedler_value(maps[sample, :, :length, :length]))


def test_the_input_is_untouched_and_unmoved():
    maps = softmax_maps(4, 16, 16, dtype=torch.float32).mT
    copy, address, version = maps.clone(), maps.data_ptr(), maps._version
    asc.fiedler_value(maps)
    asc.laplacian_eigenvalues(maps)
    assert maps.data_ptr() == address
    assert maps._version == version
    assert torch.equal(maps, copy)


@pytest.mark.slow
def test_a_gigabyte_is_read_in_place():
    """Peak memory and torch's allocator see no copy of a 1 GiB tensor, strided and in half precision too."""
    script = textwrap.dedent(
        """
        import resource, torch, attnscope as asc
        from torch.utils._python_dispatch import TorchDispatchMode

        class Watch(TorchDispatchMode):
            largest = 0
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                out = func(*args, **(kwargs or {}))
                for tensor in out if isinstance(out, (tuple, list)) else (out,):
                    if isinstance(tensor, torch.Tensor) and not func.is_view:
                        self.largest = max(self.largest, tensor.numel() * tensor.element_size())
                return out

        maps = torch.full((4, 1024, 256, 256), 1 / 256, dtype=torch.float32)   # 1 GiB
        half = maps.view(torch.bfloat16)[..., ::2]
        half.fill_(1 / 256)
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with Watch():
            asc.fiedler_value(maps[:1, :2], validate=True)   # imports and workspaces come once
        before = peak()
        with Watch() as watch:
            for view in (maps.mT[:, :8], half[:, :8]):
                asc.fiedler_value(view, validate=True)
        print(peak() - before, watch.largest)
        """
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    grown_kib, largest = map(int, answer.stdout.split())
    assert grown_kib < 32 * 1024, f"peak memory grew by {grown_kib} KiB"
    assert largest < 1 << 20, f"torch allocated {largest} bytes"


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_results_do_not_depend_on_the_number_of_threads(threads):
    maps, lengths = softmax_maps(200, 12, 12), torch.arange(200) % 12 + 1
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = asc.fiedler_value(maps, lengths=lengths)
        torch.set_num_threads(threads)
        assert torch.equal(asc.fiedler_value(maps, lengths=lengths), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(
    not os.path.exists("/proc/self/task"), reason="reads processor time per thread from /proc"
)
def test_two_threads_share_the_work():
    """Both workers use the processor, whatever else the machine does: a loop that runs serially uses one."""
    maps = softmax_maps(2000, 48, 48)
    before = torch.get_num_threads()

    def used():
        times = {}
        for task in os.listdir("/proc/self/task"):
            fields = Path(f"/proc/self/task/{task}/stat").read_text().rsplit(")", 1)[1].split()
            times[task] = int(fields[11]) + int(fields[12])
        return times

    try:
        torch.set_num_threads(2)
        asc.laplacian_eigenvalues(maps[:8])
        start = used()
        asc.laplacian_eigenvalues(maps)
        spent = sorted(now - start.get(task, 0) for task, now in used().items())[::-1]
        assert spent[1] > 0.2 * spent[0], f"clock ticks per thread: {spent}"
    finally:
        torch.set_num_threads(before)


def test_other_python_threads_run_meanwhile():
    maps, ticks, done = softmax_maps(3000, 48, 48), [], threading.Event()

    def tick():
        while not done.wait(0.001):
            ticks.append(time.perf_counter())

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    asc.laplacian_eigenvalues(maps)
    end = time.perf_counter()
    done.set()
    thread.join()
    assert len([t for t in ticks if start < t < end]) > 5, "the GIL was held"


def test_ctrl_c_answers_within_a_second_and_leaves_the_process_usable():
    maps = softmax_maps(64, 64).expand(400_000, 64, 64)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    start = time.perf_counter()
    with pytest.raises(KeyboardInterrupt):
        asc.laplacian_eigenvalues(maps)
    assert time.perf_counter() - start < 1.3
    assert asc.fiedler_value(maps[:2]).isfinite().all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_tensors_are_taken_and_results_come_back_on_the_cpu():
    maps = softmax_maps(4, 9, 9, dtype=torch.float32)
    result = asc.fiedler_value(maps.cuda())
    assert result.device.type == "cpu"
    assert torch.equal(result, asc.fiedler_value(maps))


# a published protocol sums by torch, whose order depends on strides, and compares sums that are tied here
CALLS_OF_MAPS = {
    name: (function, arguments)
    for name, function, arguments in every_call()
    if next(iter(arguments)) in ("attention", "heads") and not name.startswith("ruscio")
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", CALLS_OF_MAPS)
def test_rows_and_columns_that_share_memory_are_read_as_copies_of_them_are(name, dtype):
    function, arguments = CALLS_OF_MAPS[name]
    argument = next(iter(arguments))
    maps = arguments[argument].to(dtype)
    size = maps.shape[-1]
    supports = [{}]
    if "support" in inspect.signature(function).parameters:
        seen = torch.rand(size, size, generator=torch.Generator().manual_seed(1)) < 0.7
        supports += [{"support": seen | torch.eye(size, dtype=torch.bool)}, {"support": "causal"}]
    equal_rows, even_rows = maps[..., :1, :].expand_as(maps), maps[..., :1].expand_as(maps)
    assert (equal_rows.stride(-2), even_rows.stride(-1)) == (0, 0)
    for view, support in itertools.product((equal_rows, even_rows), supports):
        results = [
            answer(function, {**arguments, argument: layout, **support})
            for layout in (view, view.contiguous())
        ]
        assert equal_results(*results), (view.stride(), support)
