# SPDX-License-Identifier: MIT
"""The report's numbers, and in LaTeX: in both protocols, whole, escaped, and compiled where LaTeX is."""

import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import study_tables as made
from attnscope import statistics
from attnscope.cli.application import app
from attnscope.plots import NotDrawable
from attnscope.plots.selection import measured_heads
from attnscope.report import latex_tables
from attnscope.report.numbers import number_rows
from attnscope.report.page import latex
from attnscope.report.section import Table
from attnscope.results.results import Results

DOCUMENT = r"""\documentclass[%s]{article}
\usepackage{array,booktabs}
\begin{document}
%s
\end{document}
"""


@pytest.fixture(scope="module")
def source() -> str:
    return latex_tables(made.make_study(("50%_a&b", "c$x^2{")))


def tables_of(source: str) -> dict[str, list[list[str]]]:
    """Cells by label, the heading first."""
    result = {}
    for part in re.split(r"\\begin\{table\*?\}", source)[1:]:
        label = part.split(r"\label{")[1].split("}")[0]
        rows = [line.removesuffix(r"\\") for line in part.splitlines() if line.endswith(r"\\")]
        result[label] = [[cell.strip() for cell in row.split(" & ")] for row in rows]
    return result


def test_every_row_has_a_cell_per_column(source: str) -> None:
    for part in source.split(r"\begin{tabular}{")[1:]:
        columns = part.split(r"\toprule")[0].count(r"\arraybackslash")
        rows = [line for line in part.splitlines() if line.endswith(r"\\")]
        assert len(rows) > 1
        assert {len(row.split(" & ")) for row in rows} == {columns}
    assert source.count(r"\toprule") == source.count(r"\bottomrule") == source.count(r"\begin{table")


def test_numbers_and_intervals_are_those_of_the_report() -> None:
    results = made.make_study()
    result = tables_of(latex_tables(results, width="double"))
    topology = result["tab:topology-protocols"]
    heading = [
        "head mean",
        "exact",
        r"95 \% interval",
        "as published",
        r"95 \% interval, published",
    ]
    assert topology[0] == heading
    assert topology[1][1:] == ["40.0", "[40.0, 40.0]", "30.0", "[30.0, 30.0]"]
    row = number_rows(measured_heads(results), results.table("baselines"), ["fiedler_value"])[0]
    cells = next(cells for cells in result["tab:graph"] if cells[0] == "Fiedler value")
    median = row["median"].replace("%", r"\%")
    assert cells[1:7] == [row["mean"], row["interval"], median, "0.500", "0.550", "0.600"]


def test_names_are_escaped_and_repeated_ones_left_out(source: str) -> None:
    sinks = tables_of(source)["tab:sinks"]
    assert [row[1] for row in sinks[1:3]] == [r"50\%\_a\&b", r"c\$x\textasciicircum{}2\{"]
    assert sinks[2][0] == ""


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("a_b", r"a\_b"),
        ("\\x{}", r"\textbackslash{}x\{\}"),
        ("−1", "$-$1"),
        ("é", "é"),
        ("β₁", r"$\beta$$_1$"),
        ("漢", r"\texttt{U+6F22}"),
        ("<s>", r"$<$s$>$"),
        ("a\nb", "a·b"),
        ("[x]", "{}[x]"),
    ],
)
def test_text_is_never_a_command(text: str, source: str) -> None:
    written = latex(Table("a", "A caption", pd.DataFrame({"token": ["x", text], "n": ["1", "2"]})))
    assert written.splitlines()[-4] == rf"{source} & 2 \\"


@pytest.mark.slow
def test_the_command_prints_them_and_says_when_there_are_none(tmp_path) -> None:
    made.make_study().save(tmp_path / "run")
    printed = CliRunner().invoke(app, ["tables", str(tmp_path / "run"), "--latex"])
    assert printed.exit_code == 0
    assert printed.stdout == latex_tables(made.make_study())
    with pytest.raises(NotDrawable, match="no table 'heads'"):
        latex_tables(Results({"samples": pd.DataFrame({"model": ["m"]})}))


def has_latex() -> bool:
    """True where pdflatex and the two packages of the tables are installed."""
    if shutil.which("pdflatex") is None or shutil.which("kpsewhich") is None:
        return False
    where = subprocess.run(
        ["kpsewhich", "booktabs.sty", "array.sty"], capture_output=True, text=True, check=False
    )
    return len(where.stdout.split()) == 2


def log_of(source: str, options: str, folder) -> str:
    """Return the log of pdflatex for a document of tables, each on a page of its own."""
    pages = re.sub(r"(\\end\{table\*?\})", r"\1\\clearpage ", source)
    (folder / "d.tex").write_text(DOCUMENT % (options, pages), "utf-8")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "d.tex"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        errors="replace",
    )
    assert done.returncode == 0, done.stdout[-2000:]
    return (folder / "d.log").read_text("utf-8", "replace")


@pytest.mark.skipif(not has_latex(), reason="pdflatex, booktabs or array is not installed")
@pytest.mark.parametrize("options", ["", "twocolumn"])
@pytest.mark.parametrize("width", ["single", "double"])
def test_no_table_is_wider_than_its_place(width: str, options: str, tmp_path) -> None:
    names = ("meta-llama/Llama-3.2-1B-Instruct", "50%_a&b")
    source = latex_tables(made.make_study(names), width=width)
    log = log_of(source, options, tmp_path)
    assert "Overfull" not in log
    wider = re.sub(r"\\dimexpr0\.", r"\\dimexpr9.", source, count=1)
    assert "Overfull" in log_of(wider, options, tmp_path)  # the log does tell


def test_columns_are_chosen_and_what_has_no_room_is_named() -> None:
    results = made.make_study()
    narrow = tables_of(latex_tables(results))
    assert [len(narrow[name][0]) for name in ("tab:sinks", "tab:topology")] == [4, 4]
    assert narrow["tab:sinks"][0] == ["mean over heads", "exact", r"95 \% interval", "uniform"]
    chosen = tables_of(latex_tables(results, columns=["uniform", "exact"]))
    assert chosen["tab:sinks"][0] == ["mean over heads", "uniform", "exact"]
    assert "% no room for: median, 96.9 % interval, " in latex_tables(results)
    with pytest.raises(ValueError, match="latex: no table has a column 'uniforn'; did you mean 'uniform'"):
        latex_tables(results, columns=["uniforn"])
    with pytest.raises(ValueError, match="latex: width must be single or double, got 'triple'"):
        latex_tables(results, width="triple")
    wide = Table(
        "a", "A caption", pd.DataFrame({"x": ["y"], **{f"number {at}": ["1.234"] for at in range(40)}})
    )
    with pytest.raises(ValueError, match="latex: the columns of table a do not fit a page, got number 0, "):
        latex(wide, columns=list(wide.frame.columns[1:]))


def test_long_names_and_numbers_are_set_in_smaller_letters_and_keep_a_column() -> None:
    """Claims of several contrasts have three columns of words, and an interval of powers of ten."""
    names = {"claim": ["C1 states tell"], "verdict": ["not testable here"], "why": ["states → λ‖ΔW‖"]}
    value = {"value [95 %]": ["−2.3e−4 [−2.6e−4, −1.7e−4]"]}
    source = latex(Table("a", "A caption", pd.DataFrame(names | value), 3))
    assert r"\scriptsize" in source
    assert "2.3e" in source
    narrow = latex(Table("a", "A caption", pd.DataFrame(names | {"n": ["12"]}), 3))
    assert r"\scriptsize" not in narrow


@pytest.mark.parametrize(("texts", "beside"), [(4, False), (5, True), (12, True), (30, False)])
def test_the_median_stands_beside_the_mean_of_few_texts(texts, beside):
    values = np.random.default_rng(texts).normal(size=texts)
    keys = {"model": "m", "revision": "", "step": -1, "layer": 0, "head": 0, "series": "a", "n_tokens": 16}
    heads = pd.DataFrame([{**keys, "sample": text, "entropy": value} for text, value in enumerate(values)])
    (row,) = number_rows(heads, None, ["entropy"])
    assert (row["interval"] == "") == (texts < 5)
    assert bool(row["median"]) == beside
    if beside:
        result = statistics.median_interval(values)
        assert row["coverage"] == f"{100 * result.coverage:.1f} %"
        assert f"[{result.low:.2f}"[:4] in row["median"].replace("−", "-")
