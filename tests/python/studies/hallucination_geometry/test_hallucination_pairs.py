# SPDX-License-Identifier: MIT
"""Values of the column `pair`: what a file may say, and what is left of its pairs when rows are left out."""

import csv

import pytest

from attnscope.engine.planning import make_plan
from attnscope.errors import ConfigError
from knowing_study import planned, questions, settings, written


def test_an_unpaired_value_is_refused_with_its_row(folder, tmp_path):
    """A slip of the pen in one row: the value, the row, the bucket and the question are named."""

    def change(row):
        slip = row["bucket"] == "unknown" and row["pair"] == "capital-03"
        return {**row, "pair": "capitol-03"} if slip else row

    path = questions(tmp_path / "q.csv", change=change)
    message = (
        r"1 of 41 values are in one row each, first 'capitol-03' in row \d+ \(unknown: '.*\?'\); a pair is"
    )
    with pytest.raises(ConfigError, match=message):
        planned(folder, path, tmp_path)
    with path.open(encoding="utf-8", newline="") as file:
        rows = [{**row, "pair": row["pair"].replace("capitol-03", "")} for row in csv.DictReader(file)]
    assert planned(folder, written(path, rows), tmp_path).units  # of 'factual' and 'impossible'


def test_a_draw_of_a_files_rows_may_part_pairs(folder, texts, tmp_path):
    """Whole in the file, 4 of 40 pairs are drawn with one question: they are counted, not refused."""
    with texts.open(encoding="utf-8", newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: row["bucket"] == "unknown")
    path = written(tmp_path / "q.csv", [row for row in rows if row["bucket"] != "impossible"])
    study = settings(folder, path, tmp_path, others=["unknown"])
    source = study.texts[0].model_copy(update={"samples": 76})
    plan = make_plan(study.model_copy(update={"texts": [source]}))
    message = "options.pair: 4 of 40 values, '"
    assert any(message in note for note in plan.notes)


def test_neighbours_are_counted_among_whole_pairs(folder, tmp_path):
    """Forty prompts a bucket, but eight of them paired in all three."""

    def change(row):
        half = row["bucket"] == "unknown" and int(row["pair"][-2:]) > 0
        return {**row, "pair": ""} if half else row

    path = questions(tmp_path / "q.csv", change=change)
    with pytest.raises(ConfigError, match=r"each bucket that are compared, 8, got \[5, 10\]"):
        planned(folder, path, tmp_path)
    assert planned(folder, path, tmp_path, dimension_k=[5], primary_k=5).units


def test_values_whose_partner_is_left_out_are_counted(folder, tmp_path):
    """One question of two stands there twice: its second row goes, and the pair of that row with it."""
    with questions(tmp_path / "a.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    factual = next(row for row in rows if row["bucket"] == "factual")
    other = {**factual, "question": "Why " + factual["question"], "bucket": "unknown", "pair": "again"}
    path = written(tmp_path / "q.csv", [*rows, {**factual, "pair": "again"}, other])
    plan = planned(folder, path, tmp_path)
    message = "options.pair: 1 of 41 values, 'again' first, are not of 'factual' and another bucket"
    assert any(message in note for note in plan.notes)
