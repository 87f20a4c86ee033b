# SPDX-License-Identifier: MIT
"""What is argued of mutants that no test can see is argued of mutants that there are."""

import re
import sys
from itertools import pairwise, takewhile
from pathlib import Path
from types import SimpleNamespace

import pytest

MUTANTS = Path(__file__).resolve().parents[2] / "mutants"


@pytest.fixture(scope="module")
def scripts():
    """The modules of the folder, which are no package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(MUTANTS)
        import argued
        import metrics

        import kernels

        yield SimpleNamespace(argued=argued, kernels=kernels, metrics=metrics)
    for name in ("argued", "kernels", "metrics"):
        del sys.modules[name]


def test_every_argument_about_the_core_is_of_a_line_that_a_pattern_makes(scripts):
    for name, arguments in scripts.argued.ARGUED_KERNELS.items():
        made = [one.new for one in scripts.kernels.mutants_of((scripts.kernels.SOURCES / name).read_text())]
        assert [part for part in arguments if not any(part in line for line in made)] == [], name


def test_every_module_has_a_source_and_every_argument_a_module(scripts):
    modules = scripts.metrics.MODULES
    assert [stem for stem in modules if len(scripts.metrics.sources(stem)) != 1] == []
    assert set(scripts.argued.ARGUED) <= set(modules)


def test_every_argument_about_a_metric_is_of_a_line_that_stands_but_for_one_expression(scripts):
    """As mutmut makes them: one or two lines of the source, with one word in an expression's place."""
    for stem, arguments in scripts.argued.ARGUED.items():
        lines = [line.strip() for line in scripts.metrics.sources(stem)[0].read_text().splitlines()]
        lines += [" ".join(two) for two in pairwise(lines)]
        assert [line for line in arguments if not any(one_changed(own, line) for own in lines)] == [], stem


def one_changed(line, mutant):
    """Whether a line becomes another when one expression in it becomes one word, or goes."""
    before, after = (re.findall(r'"[^"]*"|\w+|[^\w\s]', one) for one in (line, mutant))
    start = alike(before, after)
    end = min(alike(before[::-1], after[::-1]), len(before) - start, len(after) - start)
    gone, put = before[start : len(before) - end], after[start : len(after) - end]
    whole = all(gone.count(left) == gone.count(right) for left, right in ("()", "[]", "{}"))
    return bool(gone or put) and len(put) <= 1 and whole


def alike(one, other):
    return len(list(takewhile(lambda two: two[0] == two[1], zip(one, other, strict=False))))


def test_a_line_that_is_not_there_is_noticed():
    assert one_changed("count = min(checked.n, 3)", "count = min(checked.n, 4)")
    assert one_changed('name = "a b"', "name = None")
    assert one_changed("return zip(a, b, strict=True)", "return zip(a, b, )")
    assert not one_changed("return zip(a, b, strict=True)", "return zip(a, b, strict=True)")
    assert not one_changed("for name, gradient in zip(placed, gradients):", "for name in zip(placed, None):")
