# SPDX-License-Identifier: MIT
"""One model, texts and run of the study of absolute position, shared by its tests."""

import pytest

from attnscope.engine.run_study import run
from folders import model_folder, sentences
from position_study import FULL_OPTIONS, settings


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    return sentences(tmp_path_factory.mktemp("t") / "texts.txt", 40)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("m") / "m", num_hidden_layers=3)


@pytest.fixture(scope="session")
def results(folder, texts, tmp_path_factory):
    return run(settings(folder, texts, tmp_path_factory.mktemp("whole"), **FULL_OPTIONS), progress=False)
