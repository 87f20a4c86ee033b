# SPDX-License-Identifier: MIT
"""Dependencies: floors above known holes, workflows with least rights, actions pinned to commits."""

import json
import os
import re
import shutil
import subprocess
import sys
import types
import zipfile
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from attnscope.engine.executors.cluster import Cluster

ROOT = Path(__file__).resolve().parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
#: Versions below which a hole is known, with its number.
HOLES = {
    "pyarrow": ("14.0.1", "CVE-2023-47248: a pickle runs while a schema is read"),
    "filelock": ("3.20.3", "CVE-2025-68146, CVE-2026-22701: the target of a link is truncated"),
    "torch": ("2.6", "CVE-2025-32434: a pickle runs in spite of weights_only"),
    "jinja2": ("3.1.6", "CVE-2025-27516: a template leaves its sandbox"),
    "tqdm": ("4.66.3", "CVE-2024-34062: arguments are evaluated"),
    "pydantic": ("2.4", "CVE-2024-3772: a regular expression never ends"),
    "ray": ("2.52", "CVE-2025-62593: a web page runs code; token authentication"),
}


def requirements():
    """The lower bounds of everything that a user installs, by package."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    table = text[text.index("dependencies = [") : text.index("[project.scripts]")]
    result = {}
    for line in re.findall(r'"([A-Za-z][^"]*[<>=][^"]*)"', table):
        parsed = Requirement(line)
        for bound in parsed.specifier:
            if bound.operator == ">=":
                result.setdefault(parsed.name.lower(), set()).add(Version(bound.version))
    return result


def test_floors_are_above_known_holes():
    floors = requirements()
    assert len(floors) > 25
    for package, (version, why) in HOLES.items():
        assert min(floors[package]) >= Version(version), why


def test_the_job_of_the_lowest_versions_installs_them():
    lowest = {
        parsed.name: next(iter(parsed.specifier)).version
        for parsed in map(Requirement, (ROOT / ".ci" / "floors.txt").read_text("utf-8").split())
    }
    floors = requirements()
    assert len(lowest) > 18
    for package, version in lowest.items():
        assert {Version(version)} == floors[package], package
    needed = {"torch", "numpy", "pandas", "pyarrow", "filelock", "transformers", "safetensors", "jinja2"}
    assert needed <= lowest.keys()


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflows_have_least_rights_pins_and_limits(file):
    text = file.read_text("utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert 0 < job["timeout-minutes"] <= 180, name
        written = {right for right, level in job.get("permissions", {}).items() if level != "read"}
        assert written <= {"id-token", "attestations"}, name
        for step in job["steps"]:
            # what an event carries is text of strangers, and a shell would run it
            assert not re.search(r"\$\{\{[^}]*github\.event", step.get("run", "")), name
            if "uses" not in step:
                continue
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", step["uses"]), step["uses"]
            if step["uses"].startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, name
    pinned = re.findall(r"uses: \S+@[0-9a-f]{40}(.*)", text)
    assert pinned
    assert all(re.fullmatch(r" # v\d+\.\d+\.\d+", comment) for comment in pinned)


def test_one_commit_for_each_action():
    pins = {}
    for file in WORKFLOWS:
        for action, commit in re.findall(r"uses: (\S+)@(\S+)", file.read_text("utf-8")):
            pins.setdefault(action, set()).add(commit)
    assert {action: commits for action, commits in pins.items() if len(commits) > 1} == {}


def test_dependencies_are_updated_and_audited():
    updates = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text("utf-8"))["updates"]
    assert {update["package-ecosystem"] for update in updates} == {"github-actions", "pip"}
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text("utf-8"))["jobs"]
    commands = {name: " ".join(step.get("run", "") for step in job["steps"]) for name, job in jobs.items()}
    assert ".ci/audit" in commands["audit"]
    assert ".ci/floors" in commands["floors"]
    for script in ("audit", "floors"):
        assert os.access(ROOT / ".ci" / script, os.X_OK)


def release_jobs():
    """The jobs of the workflow that builds and publishes, and the steps of each by action or command."""
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "wheels.yml").read_text("utf-8"))["jobs"]
    return jobs, {
        name: {step.get("uses", step.get("run", "")).partition("@")[0]: step for step in job["steps"]}
        for name, job in jobs.items()
    }


def test_a_job_writes_what_a_wheel_consists_of_and_another_signs_it():
    jobs, steps = release_jobs()
    names = list(steps["wheels"])
    [writes] = [name for name in names if name.startswith("python .ci/sbom wheelhouse/")]
    assert names.index("pypa/cibuildwheel") < names.index(writes) < names.index("actions/upload-artifact")
    assert "wheelhouse/*.cdx.json" in steps["wheels"]["actions/upload-artifact"]["with"]["path"]
    signed = steps["attest"]["actions/attest-sbom"]["with"]
    assert signed == {"subject-path": "wheelhouse/*.whl", "sbom-path": "wheelhouse/attnscope.cdx.json"}
    built, attested = (
        {system["system"]: system["packages"] for system in jobs[name]["strategy"]["matrix"]["include"]}
        for name in ("wheels", "attest")
    )
    assert attested == built
    assert steps["wheels"][writes]["if"] == steps["attest"]["actions/attest-sbom"]["if"] == "matrix.packages"


def test_what_builds_may_not_sign_and_what_publishes_runs_no_code_of_the_package():
    jobs, steps = release_jobs()
    rights = {name: job.get("permissions", {}) for name, job in jobs.items()}
    assert rights["wheels"] == rights["sdist"] == {}
    assert rights["publish"] == {"id-token": "write"}
    assert jobs["publish"]["environment"] == "pypi"
    assert set(jobs["publish"]["needs"]) == {"wheels", "sdist", "attest"}
    for name in ("attest", "publish"):
        assert jobs[name]["if"] == "github.event_name == 'push'"
        assert "actions/checkout" not in steps[name]
        assert "pip" not in " ".join(step.get("run", "") for step in jobs[name]["steps"])


def test_wheels_are_built_for_every_system_of_the_table():
    jobs, steps = release_jobs()
    systems = {
        system["system"]: (system["runner"], system["skip"])
        for system in jobs["wheels"]["strategy"]["matrix"]["include"]
    }
    assert systems == {
        "manylinux-x86_64": ("ubuntu-latest", "*-musllinux_*"),
        "musllinux-x86_64": ("ubuntu-latest", "*-manylinux_*"),
        "manylinux-aarch64": ("ubuntu-24.04-arm", "*-musllinux_*"),
        "musllinux-aarch64": ("ubuntu-24.04-arm", "*-manylinux_*"),
        "macos-arm64": ("macos-15", ""),
        "macos-x86_64": ("macos-15-intel", ""),
    }
    assert steps["wheels"]["pypa/cibuildwheel"]["env"] == {"CIBW_SKIP": "${{ matrix.skip }}"}
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    table = text[text.index("[tool.cibuildwheel]") : text.index("[tool.ruff]")]
    assert not re.search(r"^skip = ", table, re.M)
    for image in ("manylinux-x86_64", "manylinux-aarch64", "musllinux-x86_64", "musllinux-aarch64"):
        assert f"{image}-image" in table
    for library in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        assert f"--exclude {library}" in table


def script(name):
    """Load a script of `.ci`, which has no ending."""
    module = types.ModuleType(name)
    module.__file__ = str(ROOT / ".ci" / name)
    SourceFileLoader(name, module.__file__).exec_module(module)
    return module


@pytest.fixture(scope="module")
def sbom():
    return script("sbom")


def test_libraries_that_are_compiled_in_are_part_of_the_list(sbom):
    document = {
        "metadata": {"component": {"bom-ref": "root"}},
        "components": [{"bom-ref": "a", "name": "numpy"}],
        "dependencies": [{"ref": "a"}, {"ref": "root", "dependsOn": ["a"]}],
    }
    versions = {"eigen": "3.4.0", "pocketfft": "", "pybind11": "2.13.6"}
    completed = sbom.with_compiled_in(json.loads(json.dumps(document)), versions)
    versions_by_name = {component["name"]: component.get("version") for component in completed["components"]}
    assert versions_by_name == {"numpy": None, "eigen": "3.4.0", "pocketfft": None, "pybind11": "2.13.6"}
    assert {component["name"]: component["licenses"] for component in completed["components"][1:]}[
        "eigen"
    ] == [{"license": {"id": "MPL-2.0"}}]
    references = {component["bom-ref"] for component in completed["components"]}
    assert {entry["ref"] for entry in completed["dependencies"]} == references | {"root"}
    [root] = [entry for entry in completed["dependencies"] if entry["ref"] == "root"]
    assert set(root["dependsOn"]) == references


def test_versions_of_what_is_compiled_in_are_those_of_the_wheel(sbom, tmp_path):
    wheel = tmp_path / "attnscope-0.1.0-cp311-cp311-linux_x86_64.whl"
    text = 'VERSION = "0.1.0"\nCOMPILED_IN = {"eigen": "3.4.0", "pocketfft": "", "pybind11": "2"}\n'
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("attnscope/_build.py", text)
    assert sbom.compiled_in(wheel) == {"eigen": "3.4.0", "pocketfft": "", "pybind11": "2"}
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("attnscope/_build.py", text.replace("pocketfft", "another"))
    with pytest.raises(SystemExit, match="another"):
        sbom.compiled_in(wheel)


AUDITED = {"name": "numpy", "version": "1.24", "vulns": []}
WITH_HOLE = {"name": "jinja2", "version": "3", "vulns": [{"id": "CVE-1", "fix_versions": ["3.1.6"]}]}
SKIPPED = {
    "name": "torch",
    "skip_reason": "Dependency not found on PyPI and could not be audited: torch (2.6)",
}


@pytest.mark.parametrize(
    ("packages", "status", "words"),
    [
        ([AUDITED], 0, "1 of 1 audited, 0 known holes"),
        ([AUDITED, WITH_HOLE], 1, "jinja2 3: CVE-1, mended in 3.1.6"),
        ([SKIPPED, AUDITED], 2, "1 of 2 audited, 0 known holes"),
        ([SKIPPED, AUDITED], 2, "no list of holes for them: torch (2.6)"),
        ([SKIPPED, WITH_HOLE], 1, "torch (2.6)"),
        ([], 2, "0 of 0 audited"),
    ],
)
def test_an_audit_names_holes_and_what_it_could_not_ask(packages, status, words):
    lines, result = script("holes").summarize({"dependencies": packages}, "lowest")
    assert result == status
    assert words in "\n".join(lines)


def fake_audit(folder, document):
    """Copy the script next to programs that find `document`, or fail where it is None; its process."""
    programs = folder / "build" / "audit" / "bin"
    programs.mkdir(parents=True)
    for part in (".ci/audit", ".ci/holes", ".ci/floors.txt", ".github/dependabot.yml"):
        (folder / part).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / part, folder / part)
    (folder / "build" / "document").write_text(json.dumps(document), "utf-8")
    answer = (
        "exit 1" if document is None else 'while [ "$1" != --output ]; do shift; done; cp build/document "$2"'
    )
    python = f'[ "$1" = -m ] || exec {sys.executable} "$@"'
    for name, text in {
        "python": python,
        "pip-audit": answer,
        "zizmor": "echo looked",
        "check-jsonschema": "",
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n", "utf-8")
        (programs / name).chmod(0o755)
    return subprocess.run([folder / ".ci" / "audit"], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("packages", "status"), [([AUDITED], 0), ([AUDITED, SKIPPED], 2), ([WITH_HOLE, SKIPPED], 1), (None, 1)]
)
def test_an_audit_that_asks_nobody_fails_after_all_its_parts(tmp_path, packages, status):
    done = fake_audit(tmp_path, None if packages is None else {"dependencies": packages})
    assert done.returncode == status, done.stdout + done.stderr
    assert "looked" in done.stdout
    assert done.stdout.count("known holes") == (0 if packages is None else 2)


# --- Ray


@pytest.fixture
def ray(monkeypatch):
    """A module in the place of Ray that remembers how it was started."""
    fake_ray = types.ModuleType("ray")
    fake_ray.started = []
    fake_ray.is_initialized = lambda: False
    fake_ray.init = lambda *arguments, **options: fake_ray.started.append(os.environ.get("RAY_AUTH_MODE"))
    fake_ray.shutdown = lambda: None
    job = types.ModuleType("ray.job_config")
    job.JobConfig = dict
    monkeypatch.setitem(sys.modules, "ray", fake_ray)
    monkeypatch.setitem(sys.modules, "ray.job_config", job)
    monkeypatch.setattr("attnscope.engine.executors.cluster._knock", lambda address: None)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    return fake_ray


def test_a_cluster_that_is_started_here_asks_for_a_token(ray):
    cluster = Cluster("local")
    cluster.connect()
    assert ray.started == ["token"]
    cluster.close()
    assert "RAY_AUTH_MODE" not in os.environ


def test_a_cluster_of_somebody_else_and_a_choice_are_left_alone(ray, monkeypatch):
    cluster = Cluster("auto")
    cluster.connect()
    cluster.close()
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    local = Cluster("local")
    local.connect()
    local.close()
    assert ray.started == [None, "disabled"]
    assert os.environ["RAY_AUTH_MODE"] == "disabled"


def test_a_cluster_that_cannot_be_started_leaves_the_environment(ray):
    def fail(*arguments, **options):
        raise RuntimeError("no room")

    ray.init = fail
    with pytest.raises(ValueError, match="--ray local: no room"):
        Cluster("local").connect()
    assert "RAY_AUTH_MODE" not in os.environ
