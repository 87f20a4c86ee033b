# SPDX-License-Identifier: MIT
"""A run counts and notes the same of its units, whoever did them and in however many processes."""

import json
import shutil

import pytest
from test_worker import Hands

from attnscope.engine.executors.shards import gather, run_shard
from attnscope.engine.run_study import resume, run
from folders import sentences, series, study, table_bytes

#: Entries of provenance.json that say nothing of when, where and by how many processes a run was done.
COUNTED = ("models", "notes", "undefined", "non_finite", "precision", "measured_on", "sentences")


def counted(results):
    facts = json.loads((results.path / "provenance.json").read_text("utf-8"))
    return {name: facts[name] for name in COUNTED}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    home = tmp_path_factory.mktemp("inputs")
    return series(home / "growing", steps=(0, 2)), sentences(home / "texts.txt", 6, shortest=1)


@pytest.fixture(scope="module")
def settings(inputs):
    """A study with maps without a value, in fast precision, and with a note of one of its units."""

    def of(output):
        metrics = ["marchenko_pastur", "fiedler_value", "sink_share"]
        return study(output, *inputs, block=2, precision="fast", metrics=metrics)

    return of


@pytest.fixture(scope="module")
def uninterrupted(settings, tmp_path_factory):
    return run(settings(tmp_path_factory.mktemp("uninterrupted")), progress=False, say=lambda text: None)


def test_the_run_has_something_to_count(uninterrupted):
    facts = counted(uninterrupted)
    assert facts["undefined"]["marchenko_pastur"] > 0
    assert facts["models"]["growing step0"]["parameters"] > 0


def test_gathered_shards_count_what_one_process_counts(settings, uninterrupted, tmp_path):
    for number in (1, 2, 3):
        last = run_shard(settings(tmp_path), f"{number}/3", progress=False, say=lambda text: None)
    lines = []
    results = gather([last.run], progress=False, say=lines.append)
    assert table_bytes(results.path) == table_bytes(uninterrupted.path)
    assert counted(results) == counted(uninterrupted)
    assert any(line.startswith("marchenko_pastur: ") for line in lines)


def test_workers_count_what_one_process_counts(settings, uninterrupted, tmp_path):
    results = run(settings(tmp_path), progress=False, say=lambda text: None, executor=Hands(2))
    assert counted(results) == counted(uninterrupted)


def test_a_killed_run_that_is_resumed_counts_what_one_process_counts(
    settings, uninterrupted, tmp_path, monkeypatch
):
    """The process dies when one checkpoint is done: what it wrote until then is all that is left of it."""
    from attnscope.engine.engine import Engine

    class Killed(BaseException):
        pass

    work, done = Engine.work, []

    def dying(engine, unit):
        if len(done) == 3:
            raise Killed
        done.append(unit)
        return work(engine, unit)

    with monkeypatch.context() as patched:
        patched.setattr(Engine, "work", dying)
        with pytest.raises(Killed):
            run(settings(tmp_path), progress=False, say=lambda text: None)
    results = resume(tmp_path / "runs/a", progress=False, say=lambda text: None)
    assert results.provenance["units"]["done_by_this_process"] == results.provenance["units"]["planned"] - 3
    assert counted(results) == counted(uninterrupted)
    assert counted(resume(results.path, progress=False, say=lambda text: None)) == counted(uninterrupted)


@pytest.mark.parametrize(
    ("changes", "done_again"),
    [
        ({"counts": {"undefined": 3}}, 1),
        ({"counts": {"undefined": {"fiedler_value": "3"}}}, 1),
        ({"counts": [1]}, 1),
        ({"notes": [3]}, 1),
        ({"counts": {"of another version": {"fiedler_value": 3}}}, 0),
    ],
)
def test_counts_that_no_run_has_written_cost_their_unit_alone(uninterrupted, tmp_path, changes, done_again):
    copy = tmp_path / "a"
    shutil.copytree(uninterrupted.path, copy)
    file = sorted(copy.glob("units/*/unit.json"))[1]
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **changes}), "utf-8")
    results = resume(copy, progress=False, say=lambda text: None)
    assert results.provenance["units"]["done_by_this_process"] == done_again
