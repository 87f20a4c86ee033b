# SPDX-License-Identifier: MIT
"""Shards and their gathering that are killed at any moment, interrupted, and started by a Slurm script."""

import json
import os
import random
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest
from foreign import settings

from folders import Launcher, table_bytes, until

pytestmark = pytest.mark.slow

STUDY = "token_likelihood"
#: Kills that the longest test survives at least.
KILLS = int(os.environ.get("ATTNSCOPE_KILLS", "20"))

# Runs every task of an array at once, as a cluster with enough nodes would, and prints a job's number.
SBATCH = """#!/bin/bash
array=$(sed -n 's/^#SBATCH --array=//p' "${@: -1}")
for word in "$@"; do case "$word" in --array=*) array=${word#--array=};; esac; done
echo "$*" >> "$SBATCH_LOG"
for task in $(seq "${array%-*}" "${array#*-}"); do
    SLURM_ARRAY_TASK_ID=$task SLURM_CPUS_PER_TASK=1 bash "${@: -1}" >> "$SBATCH_LOG.out" 2>&1 &
done
wait
echo 17
"""


@pytest.fixture
def file(inputs, installed, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(installed))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = tmp_path / "study.yaml"
    path.write_text(settings(STUDY, inputs, tmp_path / "runs").to_yaml(), "utf-8")
    return path


def killed(launcher, draw, seconds, kills, *arguments):
    """Start a command again until it ends by itself; return the process and its number of kills."""
    survived = 0
    while True:
        process = launcher.start(*arguments)
        end = time.monotonic() + draw.uniform(0.05, seconds)
        while survived < kills and process.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
        if survived < kills:
            process.send(signal.SIGKILL)
        if process.wait() != -signal.SIGKILL:
            return process, survived
        survived += 1


def test_shards_and_the_gathering_killed_at_any_moment(file, uninterrupted, tmp_path):
    draw, folder = random.Random(5), tmp_path / "runs" / "a"
    with Launcher(tmp_path) as launcher:
        for number in (1, 2):
            process, _ = killed(launcher, draw, 3.0, 3, "run", file, "--no-draw", "--shard", f"{number}/2")
            assert process.code == 0, process.output
        process, _ = killed(launcher, draw, 1.0, 4, "gather", folder, "--no-draw")
        assert process.code == 0, process.output
    assert table_bytes(folder) == table_bytes(uninterrupted(STUDY))
    assert not list(folder.rglob("*.tmp"))


def test_the_gathering_killed_at_many_moments(file, uninterrupted, tmp_path):
    print(seed := random.randrange(10**9))
    draw, folder = random.Random(seed), tmp_path / "runs" / "a"
    kills, runs = 0, 0
    with Launcher(tmp_path) as launcher:
        for number in (1, 2):
            process = launcher.run("run", file, "--no-draw", "--shard", f"{number}/2")
            assert process.code == 0, process.output
        shutil.copytree(folder, tmp_path / "shards")
        began = time.monotonic()
        assert launcher.run("gather", folder, "--no-draw").code == 0
        seconds = 0.9 * (time.monotonic() - began)
        while kills < KILLS:
            shutil.rmtree(folder)
            shutil.copytree(tmp_path / "shards", folder)
            began = time.monotonic()
            process, survived = killed(launcher, draw, seconds, 4, "gather", folder, "--no-draw")
            if not survived:
                seconds = min(seconds, 0.9 * (time.monotonic() - began))
            assert process.code == 0, process.output
            assert table_bytes(folder) == table_bytes(uninterrupted(STUDY))
            assert not list(folder.rglob("*.tmp"))
            kills, runs = kills + survived, runs + 1
            assert runs <= 20 + 2 * KILLS, f"{kills} kills in {runs} runs: they end before they are killed"
    print(f"{kills} kills in {runs} runs")


def test_an_interrupted_shard_keeps_its_units(file, uninterrupted, tmp_path):
    folder = tmp_path / "runs" / "a"
    part = folder / "parts" / "1-of-1"
    with Launcher(tmp_path) as launcher:
        process = launcher.start("run", file, "--shard", "1/1")
        until(lambda: any((part / "units").glob("0*")))
        process.send(signal.SIGINT)
        assert process.wait() == 130, process.output
        before = len(list((part / "units").glob("0*")))
        again = launcher.run("run", file, "--shard", "1/1", "--json")
        assert again.code == 0, again.output
        answer = json.loads(again.output.splitlines()[-1])
        assert answer["left"] == 0
        assert answer["stored"] > before > 0
        facts = json.loads((part / "provenance.json").read_text("utf-8"))
        assert facts["units"]["done_by_this_process"] == answer["stored"] - before
        assert launcher.run("gather", folder, "--no-draw").code == 0
    assert table_bytes(folder) == table_bytes(uninterrupted(STUDY))


def test_two_shards_of_one_number_and_a_gathering_at_the_wrong_time(file, tmp_path):
    folder = tmp_path / "runs" / "a"
    with Launcher(tmp_path) as launcher:
        first = launcher.start("run", file, "--shard", "1/2")
        until(lambda: (folder / "parts" / "1-of-2" / ".owner").is_file())
        second = launcher.run("run", file, "--shard", "1/2")
        assert second.code == 1
        assert f"is in use by process {first.pid} on " in second.output
        assert first.wait() == 0, first.output
        assert launcher.run("run", file, "--shard", "2/2", "--ray", "auto").code == 2
        assert launcher.run("run", file, "--shard", "3/2").code == 2
        early = launcher.run("gather", folder)
        assert early.code == 1
        assert "units are in no shard" in early.output


def test_the_slurm_script_runs_shards_in_rounds_and_gathers(file, uninterrupted, tmp_path, monkeypatch):
    tools = tmp_path / "tools"
    tools.mkdir()
    sbatch = tools / "sbatch"
    sbatch.write_text(SBATCH, "utf-8")
    sbatch.chmod(sbatch.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tools}:{Path(os.sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SBATCH_LOG", str(tmp_path / "sbatch"))
    with Launcher(tmp_path) as launcher:
        script = launcher.run("slurm", file, "--array", 2)
    assert script.code == 0, script.output
    path = tmp_path / "sweep.sh"
    path.write_text(script.output, "utf-8")
    done = subprocess.run(["bash", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "sbatch").read_text("utf-8").splitlines()
    assert [call.split()[:-1] for call in calls] == [
        ["--parsable"],
        ["--array=0", "--dependency=afterany:17"],
    ]
    output = (tmp_path / "sbatch.out").read_text("utf-8")
    assert table_bytes(tmp_path / "runs" / "a") == table_bytes(uninterrupted(STUDY)), output
