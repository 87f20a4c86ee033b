# SPDX-License-Identifier: MIT
"""The support matrix that is stored: nothing in it is wrong, and what is said of it is what it says."""

import importlib.util
import json
from pathlib import Path

import pytest

from support import matrix as support_matrix

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def matrix():
    return support_matrix.read()


@pytest.fixture(scope="module")
def site():
    spec = importlib.util.spec_from_file_location("docs_made", ROOT / "python/docs/made.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_type_is_silently_different(matrix):
    wrong = {
        (kind, name): row["words"]
        for kind, rows in matrix["rows"].items()
        for name, row in rows.items()
        if row["result"] in support_matrix.WRONG
    }
    assert wrong == {}


def test_captured_types_say_how_they_were_captured_and_compared(matrix):
    for kind, rows in matrix["rows"].items():
        for name, row in rows.items():
            if row["result"] in ("equal", "incomplete"):
                assert row["tier"] in (1, 2, 3), (kind, name)
                assert "attention" in row["sites"], (kind, name)
                assert row["layers"], (kind, name)
                assert all(gap is None or gap <= 1e-4 for gap in row["difference"].values()), (kind, name)
            else:
                assert row["words"], (kind, name)


def test_the_readme_has_the_totals(matrix):
    assert support_matrix.sentence(matrix) in (ROOT / "README.md").read_text("utf-8")


def test_the_page_lists_every_type(matrix, site):
    page = site.models()
    for rows in matrix["rows"].values():
        for name in rows:
            assert f"| `{name}` |" in page
    assert "crashed" not in page


def test_a_row_takes_the_place_of_an_earlier_one(tmp_path):
    file = tmp_path / "support.json"
    row = {"result": "equal", "difference": {"none": 1.234e-7}, "words": ""}
    support_matrix.store(file, "causal", "gpt2", {**row, "result": "refused"})
    support_matrix.store(file, "masked", "bert", row)
    support_matrix.store(file, "causal", "gpt2", row)
    rows = json.loads(file.read_text())["rows"]
    assert rows["causal"]["gpt2"]["result"] == "equal"
    assert rows["causal"]["gpt2"]["difference"] == {"none": 1e-7}
    assert set(rows) == {"causal", "masked"}


def test_no_generation_and_no_picture_is_silently_different(matrix):
    wrong = {
        (kind, name, key): row[key]["words"]
        for kind, rows in matrix["rows"].items()
        for name, row in rows.items()
        for key in support_matrix.EXTRAS
        if key in row and row[key]["result"] in support_matrix.WRONG
    }
    assert wrong == {}


def test_every_decoder_was_tried_while_it_generates(matrix):
    rows = matrix["rows"]["causal"]
    assert all("generation" in row for row in rows.values())
    equal = [name for name, row in rows.items() if row["generation"]["result"] == "equal"]
    assert {"llama", "gpt2", "falcon", "jamba"} <= set(equal)
    for row in rows.values():
        generation = row["generation"]
        if generation["result"] == "equal":
            assert generation["difference"] <= 1e-3
        else:
            assert generation["words"]


def test_models_of_pictures_and_text_say_what_became_of_a_picture(matrix):
    for name, row in matrix["rows"]["image-text"].items():
        assert row["picture"].get("words") or row["picture"]["result"] == "equal", name


def test_the_page_has_a_column_for_each_further_sweep(matrix, site):
    page = site.models()
    assert "| type | outcome | while it generates | tier |" in page
    line = next(line for line in page.splitlines() if line.startswith("| `bert-generation` | equal |"))
    assert "the model's own logits differ" in line
    assert "with a picture" in page
