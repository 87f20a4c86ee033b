# SPDX-License-Identifier: MIT
"""Which build of the core is loaded, and what is said when none can be."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import isa_answers
import numpy as np
import pytest
import torch

from attnscope import _build, _isa
from attnscope.metrics.requests import metric_names


def test_the_best_build_that_runs_is_live():
    assert (
        _isa.live() == os.environ.get("ATTNSCOPE_ISA", "").replace("-", "_")
        or _isa.live() == _isa.runnable()[0]
    )
    assert set(_isa.runnable()) <= set(_isa.available())


@pytest.mark.parametrize("isa", _isa.runnable())
def test_every_build_that_runs_here_gives_the_same_answers(fresh, isa):
    script = (
        "import torch, attnscope as asc; from attnscope import _isa;"
        "a = torch.softmax(torch.randn(4, 40, 40, generator=torch.Generator().manual_seed(0)), -1);"
        "print(_isa.live(), *asc.fiedler_value(a).tolist(), *asc.participation_ratio(a).tolist())"
    )
    answer = fresh(script, ATTNSCOPE_ISA=isa)
    assert answer.returncode == 0, answer.stderr
    live, *numbers = answer.stdout.split()
    assert live == isa
    here = fresh(script).stdout.split()[1:]
    assert [float(x) for x in numbers] == pytest.approx([float(x) for x in here], rel=1e-9)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_metric_is_asked_for():
    found = {name.partition(".")[0] for name in isa_answers.answers(5, True, torch.float64)}
    assert found == set(metric_names())


def answers(isa, folder):
    path = folder / f"{isa}.npz"
    script = Path(__file__).with_name("isa_answers.py")
    done = subprocess.run(
        [sys.executable, script, path],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "ATTNSCOPE_ISA": isa},
    )
    assert done.returncode == 0, done.stderr
    return np.load(path)


@pytest.mark.slow
@pytest.mark.skipif(len(_isa.runnable()) < 2, reason="one build runs here, and has nothing to differ from")
def test_every_metric_agrees_on_every_build_that_runs_here(tmp_path):
    best, *others = _isa.runnable()
    expected = answers(best, tmp_path)
    assert len(expected.files) > 10_000
    for isa in others:
        found = answers(isa, tmp_path)
        assert found.files == expected.files
        apart = [name for name in expected.files if not agree(name, found[name], expected[name])]
        assert not apart, f"{isa} is not {best} in {len(apart)} of {len(found.files)}, e.g. {apart[:20]}"


def agree(name, a, b):
    """The same whole numbers; the same float64 numbers to what rounding in another order leaves."""
    if a.shape != b.shape:
        return False
    if not np.issubdtype(a.dtype, np.floating):
        return np.array_equal(a, b)
    if name.startswith("fiedler_vector"):  # of either sign
        return all(
            np.allclose(x, y, rtol=0, atol=1e-7, equal_nan=True) or np.allclose(x, -y, rtol=0, atol=1e-7)
            for x, y in zip(a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1]), strict=True)
        )
    return np.allclose(a, b, rtol=1e-9, atol=1e-11, equal_nan=True)


def test_a_build_that_is_not_there_is_named(fresh):
    answer = fresh("from attnscope import fiedler_value", ATTNSCOPE_ISA="x86-64-v9")
    assert "ATTNSCOPE_ISA=x86_64_v9 is not one of the builds that run here" in answer.stderr


def test_a_core_of_other_sources_is_refused_in_words(fresh):
    facts = {name: value for name, value in vars(_build).items() if name.isupper()}
    # attnscope._build comes from a finder of its own, as if the core had been built from another stub
    script = (
        "import sys, types\n"
        f"made = types.ModuleType('attnscope._build'); vars(made).update({facts!r})\n"
        "made.STUB = '0' * 64; made.__spec__ = types.SimpleNamespace()\n"
        "sys.modules['attnscope._build'] = made\n"
        "from attnscope import fiedler_value"
    )
    answer = fresh(script)
    assert answer.returncode != 0
    assert "the compiled core is of another state of the sources" in answer.stderr
    assert "Build it again: pip install -e ." in answer.stderr


def test_the_core_here_was_built_from_this_stub():
    stub = Path(_isa.__file__).with_name("_core.pyi")
    assert hashlib.sha256(stub.read_bytes()).hexdigest() == _build.STUB
