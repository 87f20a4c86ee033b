# SPDX-License-Identifier: MIT
"""Every metric from many threads and processes and any number of workers: the same bits, no deadlock.

Linear algebra of NumPy and SciPy runs on one thread, and on as many as before afterwards.
"""

import os
import re
import signal
import sys
import sysconfig
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import scipy.linalg  # noqa: F401 - so that its library is counted
import torch
from threadpoolctl import ThreadpoolController, threadpool_limits
from torch.utils.data import DataLoader, Dataset

import attnscope as asc
from attnscope import _blas
from attnscope.protocols import ruscio2025
from attnscope.study_api.stage_run import StageRun
from every_call import OF_RESULTS, answer, every_call
from folders import model_folder, sentences
from strategies import attention_batch

CALLS = {
    "attention_entropy": asc.attention_entropy,
    "betti_numbers": lambda maps: asc.betti_numbers(maps, [0.05, 0.2]),
    "effective_rank": asc.effective_rank,
    "fiedler_value": asc.fiedler_value,
    "fiedler_vector": asc.fiedler_vector,
    "geometric_semantic_alignment": lambda maps: asc.geometric_semantic_alignment(maps, maps[..., :5]),
    "graph_statistics": lambda maps: torch.stack(asc.graph_statistics(maps, [0.05, 0.2])[:2]),
    "head_divergence": asc.head_divergence,
    "incoming_attention": asc.incoming_attention,
    "laplacian_eigenvalues": asc.laplacian_eigenvalues,
    "local_global_ratio": lambda maps: asc.local_global_ratio(maps, window=3),
    "marchenko_pastur": lambda maps: torch.stack(asc.marchenko_pastur(maps, null="permutation", draws=3)[:2]),
    "morlet_scalogram": lambda maps: asc.morlet_scalogram(maps, [1.5, 4.0], min_keys=6),
    "participation_ratio": asc.participation_ratio,
    "persistence": lambda maps: torch.stack([asc.persistence(maps).birth, asc.persistence(maps).death]),
    "power_spectrum": lambda maps: torch.cat(
        [x.reshape(20, -1) for x in asc.power_spectrum(maps, min_keys=6)], 1
    ),
    "reference_influence": lambda maps: torch.stack(
        asc.reference_influence(maps, maps[..., :5], torch.arange(maps.shape[-1]) < 3)
    ),
    "singular_values": asc.singular_values,
    "sink_removal": lambda maps: asc.sink_removal(maps, [0]).kl_reduction,
    "sink_tokens": asc.sink_tokens,
    "spectral_uncertainty": lambda maps: torch.stack(asc.spectral_uncertainty(maps, min_keys=6)),
    "top_mass": asc.top_mass,
    "wavelet_transform": lambda maps: torch.cat(
        [x.reshape(20, -1) for x in asc.wavelet_transform(maps, min_keys=12, resample=5)], 1
    ),
}
MAPS = attention_batch((5, 4), 18, seed=3)
OF_MANY = (
    "effective_rank",
    "fiedler_value",
    "graph_statistics",
    "head_divergence",
    "persistence",
    "top_mass",
)


def answers():
    return {name: call(MAPS) for name, call in CALLS.items()}


def different(result, expected):
    """Names whose results are not the same bits (NaN equals NaN)."""
    return [
        name
        for name in expected
        if not torch.equal(result[name].nan_to_num(-7.0), expected[name].nan_to_num(-7.0))
    ]


@pytest.fixture(scope="module")
def expected():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield answers()
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [2, 7])
def test_the_number_of_threads_changes_no_bit(threads, expected):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert different(answers(), expected) == []
    finally:
        torch.set_num_threads(before)


def test_eight_python_threads_at_once_get_the_same_bits(expected):
    wrong = []
    start = threading.Barrier(8)

    def work():
        start.wait(30)
        for _ in range(3):
            wrong.extend(different(answers(), expected))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    assert wrong == []


def test_the_core_keeps_the_gil_and_the_pages_say_so():
    """No free-threaded interpreter has run these tests, so nothing is promised to one."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        assert sys._is_gil_enabled()
    root = Path(__file__).parents[3]
    module = (root / "cpp" / "bindings" / "module.cpp").read_text("utf-8")
    assert re.search(r"^PYBIND11_MODULE\(\w+, \w+\) \{$", module, re.MULTILINE), "no py::mod_gil_not_used()"
    assert "does not declare itself free of the GIL" in (root / "CONTRIBUTING.md").read_text("utf-8")


class Answers(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        result = answers()
        return [result[name] for name in CALLS]


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_data_loader_workers_get_the_same_bits(start, expected):
    torch.set_num_threads(2)
    answers()  # the parent's OpenMP threads are there when the workers are made
    loader = DataLoader(Answers(), batch_size=None, num_workers=2, multiprocessing_context=start, timeout=120)
    for item in loader:
        assert different(dict(zip(CALLS, item, strict=True)), expected) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_of_a_busy_parent_does_not_hang(expected):
    torch.set_num_threads(2)
    answers()
    child = os.fork()
    if child == 0:
        # A child that hangs is ended by the alarm, and its exit status says so.
        signal.alarm(60)
        status = 1
        try:
            status = 0 if different(answers(), expected) == [] else 2
        finally:
            os._exit(status)
    deadline = time.monotonic() + 90
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert os.WIFEXITED(ended[1]), f"the child was ended by signal {os.WTERMSIG(ended[1])}"
    assert os.WEXITSTATUS(ended[1]) == 0
    assert different(answers(), expected) == [], "the parent's own threads do not work any more"


def answers_in_a_child(calls):
    """Return the call that a forked child did not answer; each is named before it begins."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(240)
        try:
            for name, function, arguments in calls:
                os.write(write, f"{name}\n".encode())
                answer(function, arguments)
            os.write(write, b"end\n")
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as lines:
        started = lines.read().split()
    os.waitpid(child, 0)
    return [] if started[-1:] == ["end"] else started[-1:]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_no_function_waits_for_threads_that_a_forked_child_lost():
    """Of many maps too, whose numbers are more than torch computes in one piece."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.randn(400_000).exp().sum()
        torch.repeat_interleave(torch.arange(1000), torch.ones(1000, dtype=torch.int64))
        torch.randn(300, 300) @ torch.randn(300, 300)
        many_maps = MAPS.expand(30, *MAPS.shape).contiguous()
        calls = [
            *every_call(),
            *((name, function, {}) for name, function in OF_RESULTS.items()),
            *(
                (f"{name} of many", partial(call, many_maps), {})
                for name, call in CALLS.items()
                if name in OF_MANY
            ),
            ("sink_test of many", asc.sink_test, {"attention": many_maps}),
            ("bar_count of many", lambda: asc.bar_count(asc.persistence(many_maps)), {}),
        ]
        for _, function, arguments in calls[:3]:
            answer(function, arguments)
        assert answers_in_a_child(calls) == []
    finally:
        torch.set_num_threads(before)


def blas_threads() -> set[int]:
    return {
        lib_controller.num_threads
        for lib_controller in ThreadpoolController().select(user_api="blas").lib_controllers
    }


@pytest.fixture
def two_threads():
    libraries = ThreadpoolController().select(user_api="blas")
    if not libraries.lib_controllers:
        pytest.skip("NumPy and SciPy have no library here whose threads can be set")
    before = {
        lib_controller.filepath: lib_controller.num_threads for lib_controller in libraries.lib_controllers
    }
    for lib_controller in libraries.lib_controllers:
        lib_controller.set_num_threads(2)
    yield
    for lib_controller in libraries.lib_controllers:
        lib_controller.set_num_threads(before[lib_controller.filepath])


@pytest.mark.usefixtures("two_threads")
def test_blocks_nest_and_the_outermost_restores():
    with _blas.one_thread():
        with _blas.one_thread():
            assert blas_threads() == {1}
        assert blas_threads() == {1}
    assert blas_threads() == {2}


@pytest.mark.usefixtures("two_threads")
def test_an_error_restores():
    with pytest.raises(ZeroDivisionError), _blas.one_thread():
        raise ZeroDivisionError
    assert blas_threads() == {2}


@pytest.mark.usefixtures("two_threads")
def test_blocks_of_two_threads_that_overlap_restore():
    inside, leave = threading.Event(), threading.Event()

    def stay():
        with _blas.one_thread():
            inside.set()
            leave.wait(60)

    other = threading.Thread(target=stay)
    other.start()
    assert inside.wait(60)
    with _blas.one_thread():
        leave.set()
        other.join()
    assert blas_threads() == {2}


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("n", [64, 128])
def test_the_published_eigenvalues_and_components_have_the_same_bits_on_any_number_of_threads(n):
    maps = torch.rand(2, n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    maps /= maps.sum(-1, keepdim=True)

    def answers():
        return [ruscio2025.spectral_ratio(maps), *ruscio2025.pca_correlation(maps, maps @ maps)]

    first_answers = answers()
    with threadpool_limits(1, "blas"):
        assert all(torch.equal(first, other) for first, other in zip(first_answers, answers(), strict=True))


@pytest.mark.usefixtures("two_threads")
def test_a_run_works_on_one_thread_and_restores(tmp_path, monkeypatch):
    seen = []
    write = StageRun.write

    def noting(self, *args, **options):
        seen.append(blas_threads())
        return write(self, *args, **options)

    monkeypatch.setattr(StageRun, "write", noting)
    models = [{"path": str(model_folder(tmp_path / "model")), "label": "model"}]
    study = asc.Study(
        study="wavelet_heads",
        models=models,
        texts=str(sentences(tmp_path / "texts.txt", 2)),
        output=str(tmp_path),
    )
    asc.run(study, progress=False)
    assert seen
    assert set().union(*seen) == {1}
    assert blas_threads() == {2}
