# SPDX-License-Identifier: MIT
"""The report's first table, and tables that a reader takes along."""

import base64
import re

import numpy as np
import pytest

import figure_tables as made
from attnscope.report import report
from attnscope.report.any_run import strongest_heads
from attnscope.report.numbers import number
from attnscope.report.section import Page


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    file = report(made.make_results(), tmp_path_factory.mktemp("report") / "report.html", drawn={})
    return file.read_text(encoding="utf-8")


def test_the_first_page_ranks_heads_by_the_studys_quantity():
    found = strongest_heads(Page(made.make_results(group="text"), {}), "sink_share")
    assert found.frame["head"].tolist() == ["L1H1", "L0H1", "L1H0", "L0H0"]
    means = [np.mean([made.value(64, sample, *place) for sample in range(made.SAMPLES)])
             for place in ((1, 1), (0, 1), (1, 0), (0, 0))]  # fmt: skip
    assert found.frame["attention to first key"].tolist() == [number(mean) for mean in means]
    assert set(found.frame["n"]) == {"12"}
    assert "Intervals hold for all heads at once" in found.caption
    few = strongest_heads(Page(made.make_results(), {}), "sink_share")
    assert "95 % interval" not in few.frame
    assert "Fewer than 10 texts" in few.caption


def test_a_table_has_its_caption_and_can_be_taken_along(html):
    page = html.partition('<table id="T_strongest"')[2]
    assert page.partition("<caption>")[2].startswith("The heads with the highest attention to first key")
    link = re.search(r'download="strongest.csv" href="data:text/plain;base64,([^"]+)"', html)[1]
    lines = base64.b64decode(link).decode().splitlines()
    assert lines[0].startswith("input,head,attention to first key")
    assert len(lines) == 9
    assert (
        r"\toprule" in base64.b64decode(re.search(r'strongest.tex" href="[^,]+,([^"]+)"', html)[1]).decode()
    )
