# SPDX-License-Identifier: MIT
"""Models, texts and the studies of another package, for tests of executors."""

import pytest
from foreign import settings, site

from attnscope.config import study_folders as discovery
from attnscope.engine.run_study import run
from folders import sentences, series


@pytest.fixture(scope="session")
def installed(tmp_path_factory):
    return site(tmp_path_factory.mktemp("site"), "deadly_units")


@pytest.fixture(autouse=True)
def foreign_studies(installed, monkeypatch):
    for path in installed:
        monkeypatch.syspath_prepend(path)
    discovery.studies.cache_clear()
    yield
    discovery.studies.cache_clear()


@pytest.fixture(scope="session")
def inputs(tmp_path_factory):
    home = tmp_path_factory.mktemp("inputs")
    return series(home / "growing", steps=(0, 2, 10)), sentences(home / "texts.txt", 5, shortest=5)


@pytest.fixture(scope="session")
def uninterrupted(inputs, tmp_path_factory):
    """Runs of one process, one of each study, when asked for."""
    results_by_name = {}

    def of(name):
        if name not in results_by_name:
            results_by_name[name] = run(settings(name, inputs, tmp_path_factory.mktemp(name)), progress=False)
        return results_by_name[name].path

    return of


@pytest.fixture
def messages():
    return []
