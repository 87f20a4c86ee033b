# SPDX-License-Identifier: MIT
"""Text of unknown origin on terminals, in CSV and in git repositories: it is shown, and nothing obeys it."""

import csv
import json
import os
import re
import subprocess
import unicodedata

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attnscope as asc
from attnscope.engine.git_state import ask_git, git_state
from attnscope.errors import ResultsError
from attnscope.results.results import Results
from attnscope.untrusted.safe_text import escape_controls, mark_controls, quote_formula, quote_formulas

ESCAPE = "\x1b[31mred\x9b0m\u202ereversed"
#: Of Unicode's own properties: controls of the text direction, and what no line of a terminal may hold.
DIRECTIONS = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def obeyed(text):
    """The letters of a text that a terminal or a page would obey, by Unicode's own tables."""
    return [
        letter
        for letter in text
        if (unicodedata.category(letter) in ("Cc", "Zl", "Zp", "Cs") and letter not in "\n\t")
        or unicodedata.bidirectional(letter) in DIRECTIONS
    ]


@given(st.text(st.characters(codec=None)))
def test_nothing_that_a_terminal_obeys_is_left(text):
    assert not obeyed(escape_controls(text))
    assert not obeyed(mark_controls(text))
    assert len(mark_controls(text)) == len(text)


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8"))))
def test_escaped_json_stands_for_the_same_data(data):
    assert json.loads(escape_controls(json.dumps(data, ensure_ascii=False))) == data


# --- spreadsheets


@given(st.text(alphabet="'=+-@1.e% a\t\r", max_size=6))
def test_no_cell_begins_like_a_formula_and_the_text_can_be_had_back(cell):
    quoted = quote_formula(cell)
    if quoted[:1] in ("=", "@", "\t", "\r", "+", "-"):
        assert quoted == cell
        assert re.fullmatch(r"[+-]?[\d,_ ]*\.?\d+(e[+-]?\d+)?( ?%)?", cell, re.IGNORECASE), cell
    assert (quoted[1:] if re.match(r"'+[=+\-@\t\r]", quoted) else quoted) == cell


@pytest.mark.parametrize("number", [-0.5, 1e-300, -1e300, np.float32(-0.1), -7, np.nan, -np.inf])
def test_numbers_stay_numbers(number):
    assert quote_formula(str(number)) == str(number) or str(number) == "-inf"
    frame = pd.DataFrame({"a": [number]})
    assert quote_formulas(frame).to_csv() == frame.to_csv()


@pytest.mark.parametrize("text", ["a\rb", "a\r\nb", "a\nb", "=a\r=b", "\r", "a,b\r"])
@pytest.mark.parametrize("place", ["cell", "name"])
def test_a_carriage_return_tears_no_row_of_a_csv(tmp_path, text, place):
    """A row of a text with one was two rows, of which the second could begin with a formula."""
    rows = pd.DataFrame({"sample": [0, 1], text if place == "name" else "text": [text, "z"], "v": [1, 2]})
    file = Results({"samples": rows}).to_csv(tmp_path / "csv")[0]
    with file.open(newline="", encoding="utf-8") as stream:
        header, *cells = csv.reader(stream)
    assert header == ["sample", quote_formula(text) if place == "name" else "text", "v"]
    assert cells == [["0", quote_formula(text), "1"], ["1", "z", "2"]]
    assert len(pd.read_csv(file)) == 2


def test_a_text_that_no_file_holds_is_named(tmp_path):
    rows = pd.DataFrame({"text": pd.Series(["\ud800"], dtype=object)})
    with pytest.raises(ResultsError, match=r"table 'samples' cannot be written as CSV: .*surrogates not"):
        Results({"samples": rows}).to_csv(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_every_csv_of_a_run_is_quoted(tmp_path, call):
    heads = pd.DataFrame(
        {
            "model": "=cmd|' /C calc'!A0",
            "revision": "",
            "step": -1,
            "sample": 0,
            "layer": [0, 1],
            "head": 0,
            "protocol": "exact",
            "entropy": [-1.5, 0.5],
            "@SUM(1)": ["+1+1", "-2"],
        }
    )
    results = Results({"heads": heads})
    run = results.save(tmp_path / "run").path
    files = results.to_csv(tmp_path / "a")
    status, *_ = call("tables", run, "--csv", tmp_path / "b")
    assert status == 0
    call("compare", run, run, "--csv", tmp_path / "c.csv")
    for file in (*files, tmp_path / "b" / "heads.csv", tmp_path / "c.csv"):
        rows = list(csv.reader(file.open(encoding="utf-8")))
        for cell in (cell for row in rows for cell in row):
            assert not re.match(r"[=@]|[+-](?!\d+(\.\d+)?$)", cell), (file, cell)
    first = next(csv.DictReader(files[0].open(encoding="utf-8")))
    assert first["entropy"] == "-1.5"
    assert first["'@SUM(1)"] == "'+1+1"
    assert results.table("heads")["@SUM(1)"].tolist() == ["+1+1", "-2"]


# --- terminals


def test_names_send_no_escape_sequence_to_the_terminal(tmp_path, call):
    heads = pd.DataFrame(
        {
            "model": ESCAPE,
            "revision": "",
            "step": -1,
            "sample": 0,
            "layer": [0, 1],
            "head": 0,
            "protocol": "exact",
            "entropy": [1.5, 0.5],
        }
    )
    folder = tmp_path / f"run {ESCAPE}"
    Results({"heads": heads}, provenance={"instructions": ESCAPE}).save(folder)
    for arguments in (
        ("tables", folder),
        ("tables", folder, "--json"),
        ("tables", folder, "--latex", "--table", "heads"),
        ("tables", folder, "--by", ESCAPE),
        ("view", folder),
        ("compare", folder, folder),
        ("resume", tmp_path / ESCAPE),
    ):
        _, out, err = call(*arguments)
        assert not obeyed(out + err), arguments
        assert out + err
        if "--json" in arguments:
            assert json.loads(out)[0]["model"] == ESCAPE
    with pytest.warns(RuntimeWarning) as caught:
        asc._warn.warn(f"a layer of {ESCAPE}")
    assert not obeyed(str(caught[0].message))


def test_messages_of_a_run_are_escaped(capfd):
    from attnscope._progress import Lines
    from attnscope.engine.engine import _print_line

    _print_line(f"skipped {ESCAPE}")
    lines = Lines(2, ESCAPE)
    lines._last = -1e9
    lines.update()
    out, err = capfd.readouterr()
    assert "skipped" in err
    assert not obeyed(out + err)


# --- git


@pytest.fixture
def repository(tmp_path):
    """A repository whose configuration names programs; each leaves a file when it runs."""

    def git(*arguments):
        words = ["git", "-c", "user.email=a@b.c", "-c", "user.name=a", *arguments]
        subprocess.run(words, cwd=tmp_path / "work", check=True, capture_output=True)

    work, marks = tmp_path / "work", tmp_path / "marks"
    work.mkdir()
    marks.mkdir()
    git("init")
    (work / "a.txt").write_text("text\n")
    (work / ".gitattributes").write_text("*.txt filter=in.side=x\n")
    git("add", ".")
    git("commit", "-m", "first")
    script = tmp_path / "program"
    script.write_text(f"#!/bin/sh\ntouch {marks}/$1\ncat\n")
    script.chmod(0o755)
    with open(work / ".git" / "config", "a") as file:
        file.write(f'[core]\n\tfsmonitor = "{script} fsmonitor"\n[filter "in.side=x"]\n')
        file.write(f'\tclean = "{script} clean"\n\tprocess = "{script} process"\n\trequired = true\n')
    hook = work / ".git" / "hooks" / "post-index-change"
    hook.write_text(f"#!/bin/sh\ntouch {marks}/hook\n")
    hook.chmod(0o755)
    os.utime(work / "a.txt", (1, 1))  # git has to read its contents
    return work, marks


def test_the_state_of_a_repository_is_read_without_its_programs(repository):
    work, marks = repository
    result = git_state(work)
    assert re.fullmatch("[0-9a-f]{40}", result["commit"])
    assert result["changed"] is False
    assert not list(marks.iterdir())
    (work / "a.txt").write_text("another\n")
    assert git_state(work)["changed"] is True
    assert ask_git(work, "ls-files", "--error-unmatch", "a.txt") == "a.txt"
    assert not list(marks.iterdir())
    # git itself runs them: the test would see it
    subprocess.run(["git", "status"], cwd=work, capture_output=True)
    assert list(marks.iterdir())


def test_a_folder_outside_of_a_repository_has_no_state(tmp_path):
    assert git_state(tmp_path) is None
    assert git_state(tmp_path / "none") is None
