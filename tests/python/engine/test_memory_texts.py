# SPDX-License-Identifier: MIT
"""Texts of a study that are in memory: every kind, what a run stores of them, and what is refused."""

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import attnscope as asc
from attnscope.config.run_config import RunConfig
from attnscope.engine.executors.shards import gather, run_shard
from attnscope.errors import ConfigError
from attnscope.texts.sources import read_sentences
from folders import tokenizer
from models import tiny

TEXTS = ["the cat sat on a mat", "rain fell over the old town", "nobody saw how it went home"]


def settings(tmp_path, model, texts, **changes):
    values = {"options": {"metrics": ["fiedler_value"]}, "name": "run", **changes}
    return RunConfig(models=str(model), texts=texts, output=str(tmp_path), **values)


def pooled(results):
    return results["heads"][["sample", "layer", "head", "fiedler_value"]]


def test_a_run_of_sentences_in_memory_is_that_of_their_file(tmp_path, llama):
    file = tmp_path / "texts.txt"
    file.write_text("".join(f"{text}\n" for text in TEXTS))
    expected = asc.run(settings(tmp_path, llama, str(file), name="file"), progress=False)
    results = asc.run(settings(tmp_path, llama, TEXTS), progress=False)
    pd.testing.assert_frame_equal(pooled(results), pooled(expected))
    stored = [*(tmp_path / "run" / "inputs").iterdir()]
    assert len(stored) == 1
    assert [json.loads(line) for line in stored[0].read_text().splitlines()] == [
        {"text": text} for text in TEXTS
    ]
    assert set(results["samples"]["source"]) == {stored[0].name}
    # the settings in the folder name that file, and hold no text
    again = RunConfig.from_yaml(tmp_path / "run" / "study.yaml")
    assert (again.texts[0].path, again.texts[0].rows) == (f"inputs/{stored[0].name}", None)
    assert TEXTS[0] not in (tmp_path / "run" / "study.yaml").read_text()


def test_the_same_texts_are_the_same_study_and_resume_from_the_folder(tmp_path, llama):
    first = asc.run(settings(tmp_path, llama, TEXTS), progress=False)
    again = asc.run(settings(tmp_path, llama, pd.Series(TEXTS)), progress=False, exist_ok=True)
    pd.testing.assert_frame_equal(pooled(first), pooled(again))
    with pytest.raises(
        FileExistsError, match=r"holds another study \(texts\[0\].path: 'inputs/texts-\w+.jsonl' there, "
    ):
        asc.run(settings(tmp_path, llama, TEXTS[:2]), progress=False, exist_ok=True)
    (tmp_path / "run" / "tables" / "heads.parquet").unlink()
    resumed = asc.resume(tmp_path / "run", progress=False)
    pd.testing.assert_frame_equal(pooled(first), pooled(resumed))


@pytest.mark.parametrize("is_older", [False, True])
def test_a_run_that_was_moved_resumes_with_its_stored_texts(tmp_path, llama, is_older):
    first = pooled(asc.run(settings(tmp_path, llama, TEXTS), progress=False))
    moved = tmp_path / "elsewhere" / "renamed"
    moved.parent.mkdir()
    if is_older:  # earlier runs named the file by the place where they began
        file = tmp_path / "run" / "study.yaml"
        file.write_text(file.read_text().replace("inputs/", f"{tmp_path}/run/inputs/"))
    (tmp_path / "run").rename(moved)
    shutil.rmtree(next((moved / "units").iterdir()))
    (moved / "tables" / "heads.parquet").unlink()
    resumed = asc.resume(moved, progress=False)
    pd.testing.assert_frame_equal(first, pooled(resumed))
    assert not (tmp_path / "run").exists()
    assert str(tmp_path / "run") not in (moved / "study.yaml").read_text()
    again = asc.run(settings(moved.parent, llama, TEXTS, name="renamed"), progress=False, exist_ok=True)
    pd.testing.assert_frame_equal(first, pooled(again))


def test_moved_shards_are_gathered_with_their_stored_texts(tmp_path, llama):
    expected = asc.run(settings(tmp_path, llama, TEXTS, name="expected"), progress=False)
    study = settings(tmp_path, llama, TEXTS)
    for number in (1, 2):
        run_shard(study, f"{number}/2", progress=False)
    (tmp_path / "run").rename(tmp_path / "moved")
    results = gather([tmp_path / "moved"], progress=False)
    pd.testing.assert_frame_equal(pooled(expected), pooled(results))
    assert "path: inputs/texts-" in (tmp_path / "moved" / "study.yaml").read_text()


def data_set():
    datasets = pytest.importorskip("datasets")
    return datasets.Dataset.from_dict({"text": TEXTS, "label": [0, 1, 0]})


KINDS = {
    "tuple": lambda: tuple(TEXTS),
    "generator": lambda: (text for text in TEXTS),
    "array": lambda: np.array(TEXTS),
    "frame": lambda: pd.DataFrame({"text": TEXTS, "label": [0, 1, 0]}),
    "the only texts": lambda: pd.DataFrame({"words": TEXTS, "label": [0, 1, 0]}),
    "data set": data_set,
    "columns": lambda: {"text": TEXTS, "label": [0, 1, 0]},
    "rows": lambda: [{"text": text, "label": label} for text, label in zip(TEXTS, [0, 1, 0], strict=True)],
    "a named column": lambda: {"rows": pd.DataFrame({"a": TEXTS, "b": TEXTS, "label": 0}), "column": "a"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_texts_of_every_kind_are_read(kind):
    study = RunConfig(models="m", texts=KINDS[kind]())
    for copy in (study, RunConfig(**study.to_dict()), pickle.loads(pickle.dumps(study))):
        rows = read_sentences(copy.texts)
        assert [row.text for row in rows] == TEXTS
        if kind not in ("tuple", "generator", "array"):
            assert rows[0].extra["label"] == 0


def test_token_ids_and_cells_of_any_kind_are_plain_data():
    table = pd.DataFrame({"token_ids": [[1, 2], [3]], "when": pd.Timestamp("2026-01-02"), "x": [0.5, np.nan]})
    study = RunConfig(models="m", texts={"rows": table, "column": "token_ids", "group": "ids"})
    rows = read_sentences(study.texts)
    assert [row.token_ids for row in rows] == [(1, 2), (3,)]
    assert rows[1].extra == {"when": "2026-01-02 00:00:00", "x": None}
    assert {row.group for row in rows} == {"ids"}
    ids = tokenizer()(TEXTS)
    assert [len(row.token_ids) for row in read_sentences(RunConfig(models="m", texts=ids).texts)] == [7, 7, 7]


def test_a_study_shows_itself_as_yaml_without_its_texts():
    words = repr(RunConfig(models="m", texts=TEXTS))
    assert words.startswith("study: attention_sinks\nname: ''\nmodels:\n- path: m\n")
    assert "rows: 3 texts in memory" in words
    assert TEXTS[0] not in words


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (
            TEXTS[0],
            r"texts: there is no such file, got 'the cat sat .*sentences are a list, texts=\[\.\.\.\]",
        ),
        (
            [TEXTS[0], "data.csv"],
            "texts: files and sentences are separate sources, got 'data.csv' and 'the cat",
        ),
        (
            [(TEXTS[0], TEXTS[1])],
            "texts: a study reads sentences or lists of token ids, got a pair of texts at 0",
        ),
        ([{"role": "user", "content": "a b"}], "got a conversation at 0"),
        (pd.DataFrame({"a": TEXTS, "b": TEXTS}), "which column of the DataFrame .*, got a DataFrame$"),
        ({"rows": pd.DataFrame({"a": TEXTS}), "column": "b"}, r"texts\[0\]: the DataFrame has no column 'b'"),
        (3, "texts must be sentences, .* got int"),
        (["data.csv", {"paht": "a.txt"}], r"unknown key 'paht' in texts\[1\]; did you mean 'path'"),
    ],
)
def test_what_is_no_text_is_refused_by_name(texts, words):
    with pytest.raises(ConfigError, match=words):
        RunConfig(models="m", texts=texts)


def test_a_sentence_is_never_asked_of_the_hub(monkeypatch):
    datasets = pytest.importorskip("datasets")

    def refuse(*args, **options):
        raise AssertionError(f"asked for {args}")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    study = RunConfig(models="m", texts={"path": TEXTS[0]})
    with pytest.raises(
        ConfigError, match=r"there is no file 'the cat .* the name of a data set holds no blank"
    ):
        read_sentences(study.texts)


def test_a_model_in_memory_is_refused_in_a_line():
    model = tiny("llama")
    with pytest.raises(ConfigError) as caught:
        RunConfig(models=model, texts=TEXTS)
    message = str(caught.value)
    assert message.startswith("models: a run loads its models itself, from folders and hub ids, got a Llama")
    assert "analyze(model, texts)" in message
    assert len(message) < 200
    assert "\n" not in message


def test_files_that_exist_are_files_whatever_their_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my texts").mkdir()
    Path("a b.txt").write_text("the cat\n")
    assert [source.path for source in RunConfig(models="m", texts=["my texts", "a b.txt"]).texts] == [
        "my texts",
        "a b.txt",
    ]
