# SPDX-License-Identifier: MIT
"""One run of the whole sink study, shared by the tests of its tables."""

import pytest

from attnscope.engine.run_study import run
from folders import model_folder, sentences, sink_study


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("models") / "tiny" / "hf")


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    return sentences(tmp_path_factory.mktemp("texts") / "texts.txt", 7, shortest=6)


@pytest.fixture(scope="session")
def results(tmp_path_factory, llama, texts):
    return run(
        sink_study(tmp_path_factory.mktemp("runs"), llama, texts, options={"extra": "all"}), progress=False
    )
