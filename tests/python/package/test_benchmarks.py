# SPDX-License-Identifier: MIT
"""The benchmarks' runner, without running one."""

import argparse
import importlib.util
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture(scope="module")
def run():
    """The module `benchmarks/run.py`."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        specification = importlib.util.spec_from_file_location("benchmarks_run", BENCHMARKS / "run.py")
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(BENCHMARKS))


def test_a_benchmark_gets_the_options_that_it_takes(run):
    given = argparse.Namespace(
        names=["sweep"], quick=True, seconds=0.5, only="n=64", threads=None, json="x.json", busy=True
    )
    everything = ["--quick", "--seconds", "0.5", "--only", "n=64", "--json", "x.json", "--busy"]
    for name in run.names():
        script = next(BENCHMARKS.rglob(f"{name}.py")).read_text()
        options = run.options_for(name, given)
        if name in run.STUDIES:
            assert options == ["--quick", "--json", "x.json"]
            assert all(f'"{option}"' in script for option in run.OPTIONS_OF_STUDIES), name
        else:
            assert options == everything
            # the parser of all that compare with peers
            assert "Benchmark(" in script, name
