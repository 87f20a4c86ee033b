# SPDX-License-Identifier: MIT
"""A run from the command line checks its settings once and makes one plan."""

import pytest

from attnscope.cli import application
from attnscope.config.run_config import RunConfig
from attnscope.engine import prepared_run
from folders import model_folder, sentences


@pytest.fixture
def inputs(tmp_path):
    return model_folder(tmp_path / "tiny"), sentences(tmp_path / "texts.txt", 3)


@pytest.fixture
def calls(monkeypatch):
    """Count how often settings are checked and plans are made."""
    counts = {"settings": 0, "plan": 0}
    check_settings, plan = RunConfig.__init__, prepared_run.make_plan

    def counted(name, function):
        def call(*arguments, **values):
            counts[name] += 1
            return function(*arguments, **values)

        return call

    monkeypatch.setattr(RunConfig, "__init__", counted("settings", check_settings))
    monkeypatch.setattr(prepared_run, "make_plan", counted("plan", plan))
    return counts


def command(*arguments):
    with pytest.raises(SystemExit) as end:
        application.main([*map(str, arguments), "--quiet"])
    assert not end.value.code


def test_run_and_shard_prepare_once(inputs, tmp_path, calls):
    model, texts = inputs
    output = tmp_path / "runs"
    arguments = ["--model", model, "--texts", texts, "--output", output, "--set", "metrics=[sink_share]"]
    command("run", *arguments, "--name", "whole", "--no-draw")
    assert calls == {"settings": 1, "plan": 1}
    command("run", *arguments, "--name", "parts", "--shard", "1/1")
    assert calls == {"settings": 2, "plan": 2}


def test_resume_reads_the_stored_study_again_under_the_lock_only(inputs, tmp_path, calls):
    model, texts = inputs
    arguments = ["--model", model, "--texts", texts, "--output", tmp_path, "--set", "metrics=[sink_share]"]
    command("run", *arguments, "--name", "whole", "--no-draw")
    calls.update(settings=0, plan=0)
    command("resume", tmp_path / "whole", "--no-draw")
    assert calls == {"settings": 2, "plan": 1}
