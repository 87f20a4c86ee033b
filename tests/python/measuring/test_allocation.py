# SPDX-License-Identifier: MIT
"""Too little memory, sizes beyond 32 bits, and a hundred thousand calls."""

import json
import os
import subprocess
import sys
import warnings

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import attnscope as asc
from attnscope import _checks, _core, _memory
from attnscope.errors import NotAttentionWarning
from attnscope.metrics.request import metric_names
from every_call import answer, every_call

#: Workspaces are reused over a batch: of the peak memory of many maps and of few.
STEADY = """
import json, resource, torch, attnscope as asc
torch.set_num_threads(2)
one = torch.softmax(torch.randn(24, 24, generator=torch.Generator().manual_seed(0)), -1).tril()
metrics = {
    "fiedler_value": asc.fiedler_value,
    "singular_values": asc.singular_values,
    "marchenko_pastur_deviation": asc.marchenko_pastur_deviation,
    "participation_ratio": asc.participation_ratio,
    "attention_entropy": asc.attention_entropy,
    # by the test, the sums that it rests on are thirteen results a key
    "sink_tokens": lambda a: asc.sink_tokens(a, rule="frequency"),
    "top_mass": asc.top_mass,
    "graph_statistics": lambda a: asc.graph_statistics(a, [0.02, 0.1]).components,
    "betti_numbers": lambda a: asc.betti_numbers(a, [0.05]),
}
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def all_of(count):
    # One map seen `count` times: the batch itself takes no memory.
    for name, metric in metrics.items():
        metric(one.expand(count, 24, 24))
all_of(500)
before = peak()
growth = {}
for name, metric in metrics.items():
    start = peak()
    result = metric(one.expand(10_000, 24, 24))
    growth[name] = peak() - start - 3 * result.numel() * result.element_size()
print(json.dumps({"total": peak() - before, "growth": growth}))
"""

#: Memory runs out under a hard limit of this process; then small calls must give right answers.
STARVED = """
import json, re, resource, sys, warnings
import torch
torch.set_num_threads(2)
import attnscope as asc
from attnscope.metrics.measure import measure
from attnscope.metrics.request import metric_names
from attnscope._memory import free_bytes
from pathlib import Path

def small():
    star = torch.zeros(6, 6); star[:, 0] = 1
    return [float(asc.fiedler_value(star)), float(asc.participation_ratio(torch.eye(4))),
            float(asc.bar_count(asc.persistence(torch.full((4, 4), .25)))[0])]

def taken():
    return int(Path("/proc/self/statm").read_text().split()[0]) * 4096

n = 1200
states = torch.rand(n, 8)
options = {
    "graph_statistics": {"thresholds": [0.01]}, "betti_numbers": {"thresholds": [0.01]}, "top_mass": {"k": 1},
    "betti_curve": {"scales": [0.5]}, "geometric_semantic_alignment": {"states": states},
    "reference_influence": {"states": states, "reference": torch.arange(n) < 1},
    "sink_removal": {"keys": [0]}, "span_attention": {"spans": torch.tensor([[0, 2], [1, 3]])},
    "entropy_magnitude_correlation": {"before": states, "after": 2 * states},
    "lookback": {"answer": (600, n)}, "prompt_divergence": {"answer": (600, n)},
    "pattern_share": {"pattern": "previous"}, "graph_signal": {"states": states, "spectrum": False},
    "weighted_attention": {"norms": torch.ones(2, n)},
}
maps = torch.rand(2, n, n)
maps /= maps.sum(-1, keepdim=True)
options["scale_sensitivity"] = {"prefix": maps}
warm = torch.rand(64, 40, 40)
asc.fiedler_value(warm), asc.singular_values(warm), asc.persistence(warm), asc.marchenko_pastur(warm)
before = small()
warnings.simplefilter("ignore")
found = {}
for name in metric_names():
    resource.setrlimit(resource.RLIMIT_AS, (taken() + 6 * 2**20, resource.RLIM_INFINITY))
    try:
        measure(maps, name, **options.get(name, {}))
        found[name] = "done"
    except MemoryError as error:
        found[name] = "MemoryError" if re.match(r"[\\w.]+: ", str(error)) else repr(error)
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert small() == before, name
print(json.dumps(found))
"""


@pytest.mark.slow
def test_memory_that_runs_out_is_a_memory_error_and_the_process_goes_on():
    # glibc gives freed pages back at once, so that what an earlier call left does not serve a later one.
    heap = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(
        [sys.executable, "-c", STARVED], capture_output=True, text=True, env={**os.environ, **heap}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.splitlines()[-1])
    print(answer)
    assert set(answer) == set(metric_names())
    assert set(answer.values()) <= {"done", "MemoryError"}, answer
    assert sum(outcome == "MemoryError" for outcome in answer.values()) > 15


def huge(n, *leading):
    """Uniform attention that takes the memory of one entry."""
    return torch.full((), 1 / n, dtype=torch.float32).expand(*leading, n, n)


@pytest.mark.slow
def test_more_entries_than_32_bits_count():
    n = 46_500  # n * n > 2**31
    attention = huge(n)
    assert asc.sink_share(attention, support="full").share.item() == pytest.approx(1 / n, rel=1e-6)
    assert asc.top_mass(attention, 1).item() == pytest.approx(1 / n, rel=1e-3)
    many_maps = huge(1500, 1000)  # batch * n * n > 2**31
    assert many_maps.numel() > 2**31
    rates = asc.sink_rate(many_maps)
    assert rates.shape == (1000,)
    assert not rates.any()


@pytest.mark.filterwarnings("ignore:.*may need about:UserWarning")
def test_persistence_refuses_what_its_indices_cannot_count():
    for n in (65_536, 100_000):
        with pytest.raises(ValueError, match=f"at most 65535 tokens, got {n}"):
            asc.persistence(huge(n))
        with pytest.raises(ValueError, match=f"at most 65535 tokens, got {n}"):
            asc.betti_numbers(huge(n), [0.1])


def test_a_call_that_exceeds_the_machine_is_announced(monkeypatch):
    monkeypatch.setattr(_memory, "free_bytes", lambda: 10**8)
    torch.set_num_threads(1)
    attention = huge(2048, 3)

    def announced(name, **options):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", NotAttentionWarning)
            _checks.attention_argument(name, attention, **options)
        return [(str(warning.message), warning.filename) for warning in caught]

    ((message, file),) = announced("fiedler_value")
    assert message == (
        "fiedler_value: 3 maps of 2048 tokens may need about 0.1 GB of memory on 1 threads, 0.1 GB are free; "
        "torch.set_num_threads(1) needs the least"
    )
    assert file == __file__
    assert announced("sink_rate") == []  # reads row by row
    assert announced("fiedler_value", lengths=[8, 2047, 3]) == []
    assert announced("fiedler_value", lengths=[8, 2048, 3]) != []
    monkeypatch.setattr(_memory, "free_bytes", lambda: 10**9)
    assert announced("fiedler_value") == []


def test_free_memory_is_within_the_limit_of_the_process(fresh):
    code = (
        "import resource; from pathlib import Path; from attnscope._memory import free_bytes\n"
        "free = free_bytes(); taken = int(Path('/proc/self/statm').read_text().split()[0]) * 4096\n"
        "resource.setrlimit(resource.RLIMIT_AS, (taken + 2**27, resource.RLIM_INFINITY))\n"
        "print(free > 2**27, 0 < free_bytes() <= 2**27)"
    )
    done = fresh(code)
    assert done.stdout.split() == ["True", "True"], done.stderr


GROWTH = """
import gc, json, warnings
from pathlib import Path
import torch
torch.set_num_threads(1)
import attnscope as asc

def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

maps = torch.rand(3, 5, 5).tril() + 1e-3
maps /= maps.sum(-1, keepdim=True)
bad = maps.clone(); bad[0, 1, 1] = float("nan")
warnings.simplefilter("ignore")
calls = [
    lambda: asc.fiedler_value(maps), lambda: asc.sink_share(maps), lambda: asc.singular_values(maps),
    lambda: asc.persistence(maps)[0], lambda: asc.betti_numbers(maps, [0.1, "2/n"]),
    lambda: asc.attention_entropy(maps.half()), lambda: asc.graph_statistics(bad, [0.1], lengths=[3, 4, 5]),
    lambda: asc.marchenko_pastur(maps), lambda: asc.head_divergence(maps), lambda: asc.top_mass(maps, 2),
    lambda: asc.power_spectrum(maps, min_keys=2), lambda: asc.spectral_uncertainty(maps, min_keys=3),
    lambda: asc.wavelet_transform(maps), lambda: asc.local_global_ratio(maps, window=1),
]
def refused():
    try:
        asc.fiedler_value(maps[0, 0])
    except ValueError:
        pass
calls.append(refused)
def go(count):
    for at in range(count):
        calls[at % len(calls)]()
go(5000)
before = resident()
go(100_000)
print(json.dumps(resident() - before))
"""


@pytest.mark.slow
def test_a_hundred_thousand_calls_keep_nothing():
    done = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    grown = json.loads(done.stdout)
    print(f"{grown} bytes in 100,000 calls")
    assert grown < 2**20


@pytest.mark.parametrize(
    ("name", "options", "entries"),
    [
        ("power_spectrum", {"min_keys": 2, "bands": 100}, 3 * 107),
        ("wavelet_transform", {"min_keys": 6, "resample": 50, "signal": "last"}, 100),
        ("morlet_scalogram", {"scales": [1.0] * 50, "min_keys": 40}, 3 * 50),
        ("spectral_uncertainty", {"min_keys": 2}, 3 * 6),
        ("singular_values", {}, 3),
        ("fiedler_vector", {}, 3),
        ("graph_statistics", {"thresholds": [0.1] * 20}, 20),
        ("betti_numbers", {"thresholds": [0.1] * 20}, 40),
        ("sink_removal", {"keys": [0], "keep_attention": True}, 9),
    ],
)
def test_results_that_exceed_the_machine_are_announced(monkeypatch, name, options, entries):
    count = -(-(2**26) // (8 * entries))
    maps = torch.full((3, 3), 1 / 3).expand(count, 3, 3)
    maps = maps.unsqueeze(1) if name == "sink_removal" else maps
    monkeypatch.setattr(_memory, "free_bytes", lambda: 2**26 - 1)
    with warnings.catch_warnings():
        # raised where it is given: nothing is computed
        warnings.simplefilter("error", UserWarning)
        with pytest.raises(UserWarning, match=f"^{name}: results of shape .* need about 0.1 GB"):
            getattr(asc, name)(maps, **options)
    if name != "power_spectrum":  # whose many results of few maps take no time
        return
    with pytest.warns(UserWarning, match="results of shape") as caught:
        getattr(asc, name)(maps, **options)
    assert caught[0].filename == __file__
    monkeypatch.setattr(_memory, "free_bytes", lambda: 2**40)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        getattr(asc, name)(maps, **options)
        # Nobody asks for less than 64 MiB.
        monkeypatch.setattr(_memory, "free_bytes", lambda: 0)
        getattr(asc, name)(maps[: count - count // 20], **options)


def test_ten_thousand_maps_need_no_more_memory_than_five_hundred(fresh):
    run = fresh(STEADY)
    assert run.returncode == 0, run.stderr
    answer = json.loads(run.stdout)
    # graph_statistics returns twelve fields of 10,000 x 2; everything else is smaller.
    assert max(answer["growth"].values()) < 6e6, answer


def test_tables_take_memory_from_the_c_library_and_their_own_allocator_comes_back():
    import pyarrow as pa

    before = pa.default_memory_pool()
    with _memory.system_arrow_pool(), _memory.system_arrow_pool():
        assert pa.default_memory_pool().backend_name == "system"
        table = pa.table({"n": list(range(1000))})
        assert table.nbytes == 8000
    assert pa.default_memory_pool().backend_name == before.backend_name
    with pytest.raises(KeyError), _memory.system_arrow_pool():
        raise KeyError
    assert pa.default_memory_pool().backend_name == before.backend_name
    assert table["n"].to_pylist()[-1] == 999


CALLS = {name: (function, arguments) for name, function, arguments in every_call()}


class NoMemory(TorchDispatchMode):
    """Let one of the operations of torch that may allocate fail, as where memory runs out; count them."""

    def __init__(self, at):
        super().__init__()
        self.at, self.count = at, 0

    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        if not operation.is_view:
            self.count += 1
            if self.count == self.at:
                raise RuntimeError(
                    "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
                )
        return operation(*arguments, **(options or {}))


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_where_the_core_has_no_memory_the_error_begins_with_the_function_and_names_the_shape(
    monkeypatch, precision
):
    def without_memory(*arguments, **options):
        raise MemoryError("std::bad_alloc")

    without_memory.__name__ = "singular_values"
    monkeypatch.setattr(_core, "singular_values", without_memory)
    with pytest.raises(MemoryError) as caught:
        asc.stable_rank(torch.rand(2, 6, 6), precision=precision)
    assert str(caught.value) == "stable_rank: memory ran out on a tensor of shape (2, 6, 6)"


@pytest.mark.parametrize("name", CALLS)
def test_where_torch_has_no_memory_every_function_raises_memory_error_with_a_name(name):
    function, arguments = CALLS[name]
    answer(function, arguments)
    with NoMemory(0) as operations:
        answer(function, arguments)
    # the first, which check arguments, and some of the rest
    for at in {*range(1, min(operations.count, 6) + 1), *range(1, operations.count + 1, 17)}:
        with NoMemory(at), pytest.raises(MemoryError, match=r"^[\w.]+: "):
            answer(function, arguments)
