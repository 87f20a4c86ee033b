# SPDX-License-Identifier: MIT
"""One model that reads letters and one file of questions, shared by the study's tests."""

import pytest
import torch

from knowing_study import model_folder, questions


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("m") / "m")


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    return questions(tmp_path_factory.mktemp("t") / "q.csv")
