# SPDX-License-Identifier: MIT
"""The report's numbers, and in LaTeX: in both protocols, whole, escaped, and compiled where LaTeX is."""

import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import study_tables as made
from attnscope import inference
from attnscope.commands.cli import app
from attnscope.plots import NotDrawable
from attnscope.plots.selection import measured_heads
from attnscope.report import latex_tables
from attnscope.report.numbers import number_rows
from attnscope.report.page import latex
from attnscope.report.section import Table
from attnscope.results.results import Results

DOCUMENT = r"""\documentclass{article}
%s
\begin{document}
%s
\end{document}
"""
#: What booktabs defines, for machines that have LaTeX without it.
RULES = r"\newcommand{\toprule}{\hline}\newcommand{\midrule}{\hline}\newcommand{\bottomrule}{\hline}"


@pytest.fixture(scope="module")
def source() -> str:
    return latex_tables(made.make_study(("50%_a&b", "c$x^2{")))


def tables_of(source: str) -> dict[str, list[list[str]]]:
    """Cells by label, the heading first."""
    result = {}
    for part in source.split(r"\begin{table}")[1:]:
        label = part.split(r"\label{")[1].split("}")[0]
        rows = [line.removesuffix(r"\\") for line in part.splitlines() if line.endswith(r"\\")]
        result[label] = [[cell.strip() for cell in row.split(" & ")] for row in rows]
    return result


def test_every_row_has_a_cell_per_column(source: str) -> None:
    for part in source.split(r"\begin{tabular}{")[1:]:
        columns = len(part.split("}")[0])
        rows = [line for line in part.splitlines() if line.endswith(r"\\")]
        assert len(rows) > 1
        assert {len(row.split(" & ")) for row in rows} == {columns}
    assert source.count(r"\toprule") == source.count(r"\bottomrule") == source.count(r"\begin{table}")


def test_numbers_and_intervals_are_those_of_the_report() -> None:
    results = made.make_study()
    result = tables_of(latex_tables(results))
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
    assert [row[1] for row in sinks[1:3]] == [r"50\%\_a\&b", r"c\$x\textasciicircum 2\{"]
    assert sinks[2][0] == ""


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("a_b", r"a\_b"), ("\\x{}", r"\textbackslash x\{\}"), ("−1", "$-$1"), ("é", "é"),
        ("β₁", r"$\beta$$_1$"), ("漢", r"\texttt{U+6F22}"), ("<s>", r"$<$s$>$"), ("a\nb", "a·b"),
        ("[x]", "{}[x]"),
    ],
)  # fmt: skip
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


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
@pytest.mark.slow
def test_pdflatex_compiles_them(source: str, tmp_path) -> None:
    expected_parts = (
        shutil.which("kpsewhich")
        and subprocess.run(
            ["kpsewhich", "booktabs.sty"], capture_output=True, text=True, check=False
        ).stdout.strip()
    )
    rules = r"\usepackage{booktabs}" if expected_parts else RULES
    (tmp_path / "d.tex").write_text(DOCUMENT % (rules, source), "utf-8")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "d.tex"],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize(("texts", "beside"), [(4, False), (5, True), (12, True), (30, False)])
def test_the_median_stands_beside_the_mean_of_few_texts(texts, beside):
    values = np.random.default_rng(texts).normal(size=texts)
    keys = {"model": "m", "revision": "", "step": -1, "layer": 0, "head": 0, "series": "a", "n_tokens": 16}
    heads = pd.DataFrame([{**keys, "sample": text, "entropy": value} for text, value in enumerate(values)])
    (row,) = number_rows(heads, None, ["entropy"])
    assert (row["interval"] == "") == (texts < 5)
    assert bool(row["median"]) == beside
    if beside:
        result = inference.median_interval(values)
        assert row["coverage"] == f"{100 * result.coverage:.1f} %"
        assert f"[{result.low:.2f}"[:4] in row["median"].replace("−", "-")
