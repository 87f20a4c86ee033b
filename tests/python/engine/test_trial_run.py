# SPDX-License-Identifier: MIT
"""The few texts that a dry run reads: stopped, or on a full disk, they name no folder that is gone."""

import errno
import os
import signal

import pytest

import attnscope as asc
from attnscope.cli import trial_run
from attnscope.engine.prepared_run import settings_of
from folders import model_folder, sentences

TEXTS = frozenset(range(3))


@pytest.fixture
def settings(tmp_path):
    model, texts = model_folder(tmp_path / "tiny"), sentences(tmp_path / "texts.txt", 3)
    return settings_of(asc.Study(models=str(model), texts=str(texts), options={"metrics": ["sink_share"]}))


def test_ctrl_c_names_no_folder_to_go_on_with(settings, monkeypatch):
    work = trial_run.Engine.work

    def interrupted(engine, unit):
        os.kill(os.getpid(), signal.SIGINT)
        return work(engine, unit)

    monkeypatch.setattr(trial_run.Engine, "work", interrupted)
    with pytest.raises(KeyboardInterrupt) as stopped:
        trial_run.try_out(settings, TEXTS, draw=False)
    assert type(stopped.value) is KeyboardInterrupt


def test_a_full_disk_is_why_there_is_no_trial(settings, monkeypatch):
    def full(engine, outcome):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(trial_run.Engine, "_store_outcome", full)
    assert trial_run.try_out(settings, TEXTS, draw=False).failed.startswith("DiskFull: ")
