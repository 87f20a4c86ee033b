# SPDX-License-Identifier: MIT
"""`attnscope new`: the package that it writes is found, runs and passes its own tests."""

import os
import re
import subprocess
import sys

import pytest

from attnscope.cli.new_package import write_package
from attnscope.errors import ConfigError


def installed(folder):
    """Write what an installer writes of a package's entry points, so that Python finds them on its path."""
    project = (folder / "pyproject.toml").read_text("utf-8")
    group, entry = re.search(r'entry-points\."([\w.]+)"\]\n(\w+ = "\w+")', project).groups()
    facts = folder / "written-0.1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: written\nVersion: 0.1\n")
    (facts / "entry_points.txt").write_text(f"[{group}]\n{entry.replace(chr(34), '')}\n")


def called(folder, *command):
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(("kind", "name"), [("metric", "self_attention"), ("study", "mean_entropy")])
def test_the_package_passes_its_own_tests(kind, name, tmp_path):
    files = write_package(kind, name, tmp_path / name)
    assert all(file.is_file() for file in files)
    installed(tmp_path / name)
    done = called(tmp_path / name, "pytest", "-q", "-p", "no:cacheprovider", "tests")
    assert done.returncode == 0, done.stdout + done.stderr
    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--line-length", "110", str(tmp_path / name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


def test_its_study_has_settings_and_its_metric_a_definition(tmp_path, call):
    code, out, _ = call("new", "study", "drift", "--output", tmp_path / "drift")
    assert code == 0
    assert "pip install -e" in out
    installed(tmp_path / "drift")
    written = called(tmp_path / "drift", "attnscope", "init", "drift", "-o", "drift.yaml")
    assert written.returncode == 0, written.stderr
    assert "study: drift" in (tmp_path / "drift" / "drift.yaml").read_text("utf-8")


def test_what_cannot_be_a_package_is_refused(tmp_path, call):
    for name in ("Über", "1st", "a b", "for", "", "../x", "a-b"):
        with pytest.raises(ConfigError, match="expected a name of small letters"):
            write_package("metric", name, tmp_path / "new")
    with pytest.raises(ConfigError, match="there is a metric 'fiedler_value' already"):
        write_package("metric", "fiedler_value", tmp_path / "new")
    with pytest.raises(ConfigError, match="there is a study 'attention_sinks' already"):
        write_package("study", "attention_sinks", tmp_path / "new")
    with pytest.raises(ConfigError, match="expected metric or study, got 'plot'"):
        write_package("plot", "new", tmp_path / "new")
    (tmp_path / "mine").mkdir()
    with pytest.raises(FileExistsError, match="mine exists"):
        write_package("metric", "mine", tmp_path / "mine")
    assert not list((tmp_path / "mine").iterdir())
    assert not (tmp_path / "new").exists()
    code, _, err = call("new", "metric", "fiedler_value", "--output", tmp_path / "new")
    assert code == 2
    assert "there is a metric 'fiedler_value' already" in err
