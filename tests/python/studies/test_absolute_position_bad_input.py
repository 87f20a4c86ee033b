# SPDX-License-Identifier: MIT
"""What the study of absolute position refuses, and what it says."""

import pytest
import torch

import attnscope as asc
from attnscope.engine.config import ConfigError
from attnscope.engine.run import run
from attnscope.models import LoadError
from folders import model_folder, sentences
from position_study import settings


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return sentences(tmp_path_factory.mktemp("t") / "texts.txt", 40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return model_folder(tmp_path_factory.mktemp("m") / "m", num_hidden_layers=3)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"arms": ["zeros"]}, ConfigError, r"options.arms: there is no 'zeros'; did you mean 'zero'"),
        ({"inputs": ["shuffled"]}, ConfigError, "expected windows among the inputs"),
        ({"queries": [1, 8]}, ConfigError, r"expected 2 <= first <= last, got \[1, 8\]"),
        ({"groups": 3}, ConfigError, "greater than or equal to 4, got 3"),
        ({"groups": 16}, ConfigError, r"16 groups need 64 windows, the texts give 16"),
        ({"sinks": [1.5]}, ConfigError, r"options.sinks\[0\]"),
    ],
)
def test_bad_options(folder, texts, tmp_path, changes, error, message):
    with pytest.raises(error, match=message):
        run(settings(folder, texts, tmp_path, **changes), progress=False)


def test_sentences_are_refused(folder, texts, tmp_path):
    with pytest.raises(ConfigError, match="absolute_position reads windows"):
        run(asc.Study(study="absolute_position", models=str(folder), texts=str(texts), output=str(tmp_path)))


def test_encoders_are_refused_by_name(texts, tmp_path):
    path = model_folder(tmp_path / "bert", "bert")
    with pytest.raises(LoadError, match=r"BertM\w+ attends to later tokens; a causal map is needed"):
        run(settings(path, texts, tmp_path), progress=False)


def test_a_check_that_fails_ends_the_checkpoint_by_name(folder, texts, tmp_path, monkeypatch):
    from attnscope.studies.absolute_position import checks

    monkeypatch.setattr(checks, "_written", lambda model, ids: checks.Check("head_writes", 0.5, 1e-5))
    with pytest.raises(LoadError, match=r"the check head_writes does not hold: 0\.5, where at most 1e-05"):
        run(settings(folder, texts, tmp_path), progress=False)
