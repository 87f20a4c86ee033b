# SPDX-License-Identifier: MIT
"""Models, texts and what was said, for tests of the engine."""

import pytest

from folders import model_folder, sentences, series


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("models") / "tiny" / "hf")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    return series(tmp_path_factory.mktemp("models") / "growing")


@pytest.fixture
def texts(tmp_path):
    return sentences(tmp_path / "texts.txt", 7)


@pytest.fixture
def messages():
    return []
