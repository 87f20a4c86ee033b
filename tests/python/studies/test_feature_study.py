# SPDX-License-Identifier: MIT
"""The study of features: the table of one call in blocks, answers and labels of a file, resumed runs."""

import json

import numpy as np
import pytest

import attnscope as asc
from attnscope.config.run_config import RunConfig
from attnscope.engine.run_study import resume, run
from attnscope.errors import ConfigError
from folders import WORDS, model_folder

METRICS = ["lookback", "stable_rank", "laplacian_top", "sink_position"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("models") / "tiny" / "hf")


@pytest.fixture(scope="module")
def rows():
    """Texts with an answer in characters, a label and the question that they belong to."""
    texts = []
    for at in range(7):
        words = [WORDS[(at + k) % len(WORDS)] for k in range(5 + at)]
        text = " ".join(words)
        start = len(" ".join(words[:3])) + 1
        texts.append({"text": text, "span": [start, len(text)], "wrong": at % 2, "question": f"q{at // 2}"})
    return texts


def settings(home, folder, rows, **options):
    home.mkdir(exist_ok=True)
    file = home / "texts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return RunConfig(
        study="features",
        models=str(folder),
        texts=str(file),
        output=str(home / "runs"),
        name="a",
        block=3,
        options={"metrics": METRICS, **options},
    )


def test_a_run_stores_the_table_of_one_call(tmp_path, folder, rows):
    options = {"answer": "span", "answer_unit": "characters", "label": "wrong", "group": "question"}
    results = run(settings(tmp_path, folder, rows, **options), progress=False)
    texts, spans = [row["text"] for row in rows], [row["span"] for row in rows]
    expected = asc.features(folder, texts, METRICS, answers=spans, answer_unit="characters")
    stored = results.table("features")
    assert sorted(set(stored) & set(expected.X)) == sorted(expected.X)
    for name in expected.X:
        np.testing.assert_allclose(stored[name], expected.X[name], atol=1e-6, err_msg=name)
    assert stored["label"].tolist() == [row["wrong"] for row in rows]
    assert stored["group"].tolist() == [row["question"] for row in rows]
    assert stored["n_answer"].tolist() == expected.index["n_answer"].tolist()
    facts = json.loads(results.schema("features").field("lookback__l00h00__answer").metadata[b"attnscope"])
    assert (facts["metric"], facts["layer"], facts["head"]) == ("lookback", 0, 0)
    again = results.features()
    assert sorted(again.X) == sorted(set(expected.X) - {n for n in expected.X if "sink_position" in n})


def test_a_run_goes_on_where_it_stopped(tmp_path, folder, rows):
    metrics = ["stable_rank", "laplacian_top"]
    uninterrupted = run(settings(tmp_path / "one", folder, rows, metrics=metrics), progress=False)
    partly = settings(tmp_path / "two", folder, rows, metrics=metrics)
    run(partly, progress=False)
    units = sorted((tmp_path / "two" / "runs" / "a" / "units").iterdir())
    for unit in units[1:2]:
        for file in unit.iterdir():
            file.unlink()
        unit.rmdir()
    resumed = resume(tmp_path / "two" / "runs" / "a", progress=False)
    assert resumed.table("features").equals(uninterrupted.table("features"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"answer_only": True}, "options.answer_only needs options.answer"),
        ({"metrics": ["lookback"]}, "lookback reads answers"),
        ({"metrics": ["no_metric"]}, "unknown metric 'no_metric'"),
    ],
)
def test_settings_are_checked_before_anything_is_loaded(tmp_path, folder, rows, options, words):
    with pytest.raises(ConfigError, match=words):
        run(settings(tmp_path, folder, rows, **options), progress=False)
