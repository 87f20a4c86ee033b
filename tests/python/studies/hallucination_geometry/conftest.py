# SPDX-License-Identifier: MIT
"""One model that reads letters and one file of questions, shared by the study's tests."""

import pytest

from knowing_study import model_folder, questions


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("m") / "m")


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    return questions(tmp_path_factory.mktemp("t") / "q.csv")
