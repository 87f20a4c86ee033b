# SPDX-License-Identifier: MIT
"""Linear algebra of NumPy and SciPy on one thread, and the number of threads afterwards."""

import threading

import pytest
import scipy.linalg  # noqa: F401 - so that its library is counted
import torch
from threadpoolctl import ThreadpoolController, threadpool_limits

import attnscope as asc
from attnscope import _blas
from attnscope.engine.stage_run import StageRun
from attnscope.protocols import ruscio2025
from folders import model_folder, sentences


def threads() -> set[int]:
    return {one.num_threads for one in ThreadpoolController().select(user_api="blas").lib_controllers}


@pytest.fixture(autouse=True)
def two_threads():
    libraries = ThreadpoolController().select(user_api="blas")
    if not libraries.lib_controllers:
        pytest.skip("NumPy and SciPy have no library here whose threads can be set")
    before = {one.filepath: one.num_threads for one in libraries.lib_controllers}
    for one in libraries.lib_controllers:
        one.set_num_threads(2)
    yield
    for one in libraries.lib_controllers:
        one.set_num_threads(before[one.filepath])


def test_blocks_nest_and_the_outermost_restores():
    with _blas.one_thread():
        with _blas.one_thread():
            assert threads() == {1}
        assert threads() == {1}
    assert threads() == {2}


def test_an_error_restores():
    with pytest.raises(ZeroDivisionError), _blas.one_thread():
        raise ZeroDivisionError
    assert threads() == {2}


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
    assert threads() == {2}


@pytest.mark.parametrize("n", [64, 128])
def test_the_published_eigenvalues_and_components_have_the_same_bits_on_any_number_of_threads(n):
    maps = torch.rand(2, n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    maps /= maps.sum(-1, keepdim=True)

    def answers():
        return [
            ruscio2025.spectral_ratio(maps),
            *ruscio2025.pca_correlation(maps, maps @ maps),
        ]

    both = answers()
    with threadpool_limits(1, "blas"):
        assert all(torch.equal(one, other) for one, other in zip(both, answers(), strict=True))


def test_a_run_works_on_one_thread_and_restores(tmp_path, monkeypatch):
    seen = []
    write = StageRun.write

    def noting(self, *args, **options):
        seen.append(threads())
        return write(self, *args, **options)

    monkeypatch.setattr(StageRun, "write", noting)
    models = [{"path": str(model_folder(tmp_path / "model")), "label": "model"}]
    study = asc.Study(
        study="wavelet_heads", models=models, texts=str(sentences(tmp_path / "texts.txt", 2)),
        output=str(tmp_path),
    )  # fmt: skip
    asc.run(study, progress=False)
    assert seen
    assert set().union(*seen) == {1}
    assert threads() == {2}
