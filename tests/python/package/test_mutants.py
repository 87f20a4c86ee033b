# SPDX-License-Identifier: MIT
"""The scripts that break the code: their patterns make wrong lines, and what they name exists."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

MUTANTS = Path(__file__).resolve().parents[2] / "mutants"


@pytest.fixture(scope="module")
def scripts():
    """The modules of the folder, which are no package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(MUTANTS)
        import metrics

        import kernels

        yield SimpleNamespace(kernels=kernels, metrics=metrics)
    for name in ("kernels", "metrics"):
        del sys.modules[name]


def test_every_module_has_one_source_and_its_tests(scripts):
    modules = scripts.metrics.MODULES
    assert [stem for stem in modules if len(scripts.metrics.sources(stem)) != 1] == []
    tests = {path.name for path in (scripts.metrics.ROOT / "tests/python").rglob("test_*.py")}
    assert {name for names in modules.values() for name in names if f"test_{name}.py" not in tests} == set()


def test_every_pattern_makes_a_wrong_line_of_the_core(scripts):
    sources = [path for path in scripts.kernels.SOURCES.rglob("*") if path.suffix in (".cpp", ".h")]
    mutants = [mutant for path in sources for mutant in scripts.kernels.mutants_of(path.read_text())]
    assert len(mutants) > 1000
    assert all(mutant.old.partition("//")[0] != mutant.new for mutant in mutants)
    for pattern, _ in scripts.kernels.PATTERNS:
        single_map = [path for path in sources if scripts.kernels.re.search(pattern, path.read_text())]
        assert single_map, pattern


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("  if (a < b) return true;", ["  if (a <= b) return true;", "  if (a < b) return false;"]),
        ("  // a < b", []),
        ("#include <vector>", []),
        ("  n = std::min(k + 1, n);  // a < b", ["  n = std::min(k, n);  ", "  n = std::max(k + 1, n);  "]),
    ],
)
def test_a_line_becomes_these(scripts, line, wrong):
    assert [mutant.new for mutant in scripts.kernels.mutants_of(line)] == wrong
