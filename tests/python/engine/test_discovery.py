# SPDX-License-Identifier: MIT
"""A study is a folder: one of another package is found, drawn, reported and compared with no list edited."""

import sys
from importlib.metadata import EntryPoint

import pandas as pd
import pytest

from attnscope.config import study_folders as discovery
from attnscope.config.config_files import read_config
from attnscope.config.run_config import RunConfig
from attnscope.errors import ResultsError
from attnscope.plots import draw_all, figures_of
from attnscope.published import compare_published, papers
from attnscope.report import latex_tables, report
from attnscope.results.results import Results

FILES = {
    "__init__.py": "",
    "figures.py": """
from attnscope.plots import standard
from attnscope.plots.figure import captioned, declared_in
from attnscope.errors import NotDrawable
from attnscope.plots.style import panels

FIGURES = {"depth": standard.depth((("toy_number", None),))}
figure = declared_in(FIGURES)


@figure("heads")
def dots(results, options):
    made, axes = panels(1, 1, height=2, width=options.width)
    axes[0][0].plot(results.table("heads")["toy_number"], "o")
    return captioned(made, "Every <number>.", left_out=["nothing"])


@figure("absent")
def never(results, options):
    raise AssertionError


@figure("heads")
def broken(results, options):
    raise ZeroDivisionError("a fault of the study")
""",
    "sections.py": """
from attnscope.report.section import analysis

SECTIONS = (
    analysis(
        "toy", "Toy", words="A toy.", definition="<i>x</i>", figures=("dots",), metrics=("toy_number",)
    ),
)


def findings(results):
    return ["The toy has 4 rows."]
""",
    "published/toy2026.csv": "model,table,quantity,layer,token,statistic,value,low,high,samples,printed,"
    "origin\ntoy,1,toy_number,,,mean,0.5,,,,0.5,a toy\n",
    "configs/toy_config.yaml": "# A toy: for tests.\nstudy: toys\n",
}
HEADS = pd.DataFrame(
    {"model": "m", "revision": "", "step": -1, "sample": [0, 1, 0, 1], "layer": [0, 0, 1, 1], "head": 0}
    | {"protocol": "exact", "toy_number": [1.0, 2.0, 3.0, 4.0]}
)


@pytest.fixture
def toy(tmp_path, monkeypatch):
    for name, text in FILES.items():
        file = tmp_path / "toypackage" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    entry = EntryPoint("toys", "toypackage", "attnscope.studies")
    monkeypatch.setattr(discovery, "entry_points", lambda group: [entry])
    discovery.studies.cache_clear()
    yield Results({"heads": HEADS}, study={"study": "toys"})
    discovery.studies.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "toypackage"]:
        del sys.modules[name]


def test_its_figures_are_drawn_and_a_fault_of_one_costs_no_other(toy):
    assert list(figures_of(toy)) == ["depth", "dots", "never", "broken"]
    left_out = []
    drawn = draw_all(toy, left_out=left_out)
    assert list(drawn) == ["depth", "dots"]
    assert [(omission.name, omission.failed) for omission in left_out] == [("never", False), ("broken", True)]
    assert drawn["dots"].left_out == ("nothing",)
    lines = drawn["depth"].figure.axes[0].get_lines()
    assert list(lines[0].get_ydata()) == [1.5, 3.5]


def test_its_sections_are_its_report_and_its_tables(toy, tmp_path):
    page = report(toy, tmp_path / "toy.html").read_text("utf-8")
    assert "The toy has 4 rows." in page
    assert "Every &lt;number&gt;. Not drawn: nothing." in page
    assert 'id="toy"' in page
    assert "Attention sinks" not in page
    assert "toy number & 2.50" in latex_tables(toy)


def test_its_config_names_and_numbers_are_known(toy):
    assert RunConfig(study="toys", models="a", texts="b").study == "toys"
    assert read_config("toy_config") == {"study": "toys"}
    assert papers()["toy2026"].name == "toys"
    with pytest.raises(ResultsError, match="toys stores numbers of toy2026 and no way to compare them"):
        compare_published(toy)
    (discovery.studies()["toys"].path / "published" / "toy2026.csv").unlink()
    with pytest.raises(ResultsError, match="the study toys has no published numbers"):
        compare_published(toy)


def test_results_of_no_study_have_what_any_run_has(tmp_path):
    results = Results({"heads": HEADS})
    assert set(draw_all(results)) == {"metric_maps", "depth"}
    page = report(results, tmp_path / "any.html").read_text("utf-8")
    assert "Over depth" in page
    assert "toy number" in page
