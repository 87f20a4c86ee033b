# SPDX-License-Identifier: MIT
"""The first page is executed: every snippet, and every path it names."""

import doctest
import importlib.util
import json
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
PAGES = ["README.md", "CONTRIBUTING.md"]


def test_readme_snippets_print_what_they_show(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    torch.manual_seed(0)
    failed, attempted = doctest.testfile(
        str(ROOT / "README.md"),
        module_relative=False,
        optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE,
    )
    assert failed == 0
    assert attempted >= 6


@pytest.mark.parametrize("page", PAGES)
def test_links_and_make_targets_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / target).exists(), f"{page} links to {target}"
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in re.findall(r"`make ([a-z-]+)", text):
        assert re.search(rf"^{name}:", makefile, re.MULTILINE), f"{page} names make {name}"


def test_the_table_of_benchmarks_is_that_of_the_stored_measurements():
    folder = ROOT / "benchmarks"
    spec = importlib.util.spec_from_file_location("benchmark_tables", folder / "tables.py")
    tables = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tables)
    page = (folder / "README.md").read_text("utf-8")
    made = tables.table(json.loads((folder / "measured.json").read_text("utf-8")))
    assert tables.written(page, made) == page
    assert made.count("\n| ") > 20
    assert tables.written(page, "other\n") != page
