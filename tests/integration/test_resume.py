# SPDX-License-Identifier: MIT
"""Runs that are killed, interrupted, starved of disk or damaged end like one that nothing interrupted."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import time

import pytest

from folders import sentences, series, until

CHECKPOINTS, BLOCKS = 2, 3
#: And two units over the whole run: uniform attention, and summaries.
UNITS = CHECKPOINTS * BLOCKS + 2
#: Kills that the longest test survives at least.
KILLS = int(os.environ.get("ATTNSCOPE_KILLS", "20"))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    return series(folder / "growing", steps=(0, 10)), sentences(folder / "texts.txt", 4 * BLOCKS)


def command(inputs, output, name="a"):
    model, texts = inputs
    return (
        "run",
        "attention_sinks",
        "--no-draw",
        "--model",
        model,
        "--texts",
        texts,
        "--block",
        4,
        "--output",
        output,
        "--name",
        name,
        "--set",
        "metrics=[fiedler_value, graph_statistics]",
    )


def content(folder, part="tables"):
    place = folder / part
    return {path.relative_to(place): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def stored(folder):
    """What the units hold, without those that were set aside."""
    return {name: data for name, data in content(folder, "units").items() if name.parts[0] != "set-aside"}


def units(folder):
    """Folders of the stored units, in the order of the plan, not of those still written (`.NAME.tmp`)."""
    return sorted(path for path in (folder / "units").glob("[!.]*-*") if (path / "unit.json").is_file())


def size(unit):
    return max(path.stat().st_size for path in unit.iterdir())


@pytest.fixture(scope="module")
def uninterrupted(launcher, inputs, tmp_path_factory):
    """An uninterrupted run: its tables and the seconds it took."""
    output = tmp_path_factory.mktemp("uninterrupted")
    began = time.monotonic()
    process = launcher.run(*command(inputs, output))
    assert process.code == 0, process.output
    folder = output / "a"
    assert len(units(folder)) == UNITS
    assert sorted(map(str, content(folder))) == [
        "baselines.parquet",
        "graphs.parquet",
        "head_mean_graphs.parquet",
        "head_means.parquet",
        "heads.parquet",
        "samples.parquet",
    ]
    return folder, time.monotonic() - began


def finished_like(uninterrupted, folder):
    assert content(folder) == content(uninterrupted[0])
    assert json.loads((folder / "provenance.json").read_text("utf-8"))["state"] == "finished"
    assert not list(folder.rglob("*.tmp"))
    assert not (folder / ".owner").exists()
    # what the metrics are made of is the same too, not only their sum
    assert stored(folder) == stored(uninterrupted[0])


def until_units(process, folder, count):
    until(lambda: len(units(folder)) >= count or process.poll() is not None)
    assert process.poll() is None, process.output


def resumed(launcher, folder):
    """Goes on and says how many units were still missing."""
    process = launcher.run("resume", "--no-draw", folder)
    assert process.code == 0, process.output
    return json.loads((folder / "provenance.json").read_text("utf-8"))["units"]["done_by_this_process"]


def killed_at_random(launcher, inputs, seconds, output, draw):
    """Kill a run again and again at random moments until it gets through; return the number of kills.

    A run that got through from its beginning says how long one takes now, as `seconds`, a list of one number.
    Kills before anything of the run is on disk do not count.
    """
    folder, kills = output / "a", 0
    arguments = command(inputs, output)
    while True:
        began = time.monotonic()
        process = launcher.start(*arguments)
        end = began + draw.uniform(0.02, 0.9 * seconds[0])
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.003)
        before = len(units(folder)) if folder.is_dir() else 0
        process.send(signal.SIGKILL)
        if process.wait() == 0:
            if arguments[0] == "run":
                seconds[0] = min(seconds[0], time.monotonic() - began)
            return kills
        assert process.code == -signal.SIGKILL, process.output
        assert len(units(folder)) >= before
        if (folder / "study.yaml").exists():
            kills += 1
            arguments = ("resume", "--no-draw", folder)
        if kills >= 4:
            # what bears its name is whole: nothing of it is done again
            stored_units = len(units(folder))
            assert resumed(launcher, folder) == UNITS - stored_units
            return kills


@pytest.mark.slow
def test_killed_at_random_moments(launcher, inputs, uninterrupted, tmp_path):
    draw = random.Random(20251)
    kills, seconds = 0, [uninterrupted[1]]
    for trial in range(3):
        kills += killed_at_random(launcher, inputs, seconds, tmp_path / str(trial), draw)
        finished_like(uninterrupted, tmp_path / str(trial) / "a")
    assert kills > 0


@pytest.mark.slow
def test_killed_at_random_moments_over_many_runs(launcher, inputs, uninterrupted, tmp_path):
    draw = random.Random()
    print(seed := random.randrange(10**9))
    draw.seed(seed)
    kills, runs, seconds = 0, 0, [uninterrupted[1]]
    while kills < KILLS:
        kills += killed_at_random(launcher, inputs, seconds, tmp_path / str(runs), draw)
        finished_like(uninterrupted, tmp_path / str(runs) / "a")
        shutil.rmtree(tmp_path / str(runs))
        runs += 1
        assert runs <= 20 + 2 * KILLS, f"{kills} kills in {runs} runs: they end before they are killed"
    print(f"{kills} kills in {runs} runs")


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_signal_stores_the_unit_at_work_and_exits_with_its_number(
    launcher, inputs, uninterrupted, tmp_path, number
):
    folder = tmp_path / "a"
    process = launcher.start(*command(inputs, tmp_path))
    until_units(process, folder, 2)
    process.send(number)
    assert process.wait() == 128 + number, process.output
    assert "stopping when the unit at work is stored" in process.output
    assert f"attnscope resume {folder}" in process.output
    count = len(units(folder))
    assert 2 <= count < UNITS
    assert not (folder / "tables").exists()
    assert json.loads((folder / "provenance.json").read_text("utf-8"))["state"] == "interrupted"
    assert resumed(launcher, folder) == UNITS - count
    finished_like(uninterrupted, folder)


def test_two_signals_stop_at_once(launcher, inputs, uninterrupted, tmp_path):
    folder = tmp_path / "a"
    process = launcher.start(*command(inputs, tmp_path))
    until_units(process, folder, 1)
    process.send(signal.SIGINT)
    until(lambda: "stopping when" in process.output or process.poll() is not None)
    process.send(signal.SIGINT)
    assert process.wait() == 130, process.output
    resumed(launcher, folder)
    finished_like(uninterrupted, folder)


def test_signals_without_end_change_no_exit_code(launcher, inputs, tmp_path):
    """Ctrl-C held down: signals come while the command says what it stored and while Python ends."""

    def interrupted(name):
        process = launcher.start(*command(inputs, tmp_path, name))
        until(lambda: units(tmp_path / name) or process.poll() is not None)
        while process.poll() is None:
            process.send(signal.SIGINT)
        return process

    # on a busy machine a run may be over before the first signal
    runs = map(interrupted, "abcdefghij")
    process = next(run for run in runs if "stopping when the unit at work is stored" in run.output)
    assert process.wait() == 130, process.output
    assert "Traceback" not in process.output


def test_two_processes_on_one_folder_do_not_mix(launcher, inputs, uninterrupted, tmp_path):
    folder = tmp_path / "a"
    first = launcher.start(*command(inputs, tmp_path))
    until_units(first, folder, 1)
    first.send(signal.SIGSTOP)  # it is not done before the others have asked
    second = launcher.run("resume", "--no-draw", folder)
    assert second.code == 1
    assert f"{folder} is in use by process {first.pid} on " in second.output
    third = launcher.run(*command(inputs, tmp_path))
    assert third.code == 1
    assert "holds this very study: attnscope resume" in third.output
    first.send(signal.SIGCONT)
    assert first.wait() == 0, first.output
    finished_like(uninterrupted, folder)


@pytest.mark.slow
def test_many_processes_race_for_one_folder(launcher, inputs, uninterrupted, tmp_path):
    folder = tmp_path / "a"
    process = launcher.start(*command(inputs, tmp_path))
    until_units(process, folder, 1)
    process.send(signal.SIGKILL)
    process.wait()
    racers = [launcher.start("resume", "--no-draw", folder) for _ in range(4)]
    codes = [racer.wait() for racer in racers]
    assert set(codes) <= {0, 1}
    assert 0 in codes
    assert all("in use by" in racer.output for racer in racers if racer.code == 1)
    finished_like(uninterrupted, folder)


def test_no_room_for_a_unit_stops_with_everything_before_intact(launcher, inputs, uninterrupted, tmp_path):
    folder = tmp_path / "a"
    sizes = [size(unit) for unit in units(uninterrupted[0])]
    # the name of step 10 is longer, so the units of step 0 fit under the limit and a later one does not
    limit = sorted(sizes)[len(sizes) // 2]
    process = launcher.run(*command(inputs, tmp_path), file_size=limit)
    assert process.code == 1, process.output
    assert "no room for" in process.output
    assert f"what is done is intact: attnscope resume {folder}" in process.output
    stored_units = units(folder)
    assert 0 < len(stored_units) < UNITS
    assert stored(folder).items() <= stored(uninterrupted[0]).items()
    assert not list(folder.rglob("*.tmp"))
    assert resumed(launcher, folder) == UNITS - len(stored_units)
    finished_like(uninterrupted, folder)


@pytest.mark.slow
def test_a_full_file_system(launcher, inputs, uninterrupted, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        process = launcher.run(*command(inputs, small))
        assert process.code == 1, process.output
        assert "no room for" in process.output
        stored_units = units(small / "a")
        assert 0 < len(stored_units) < UNITS
        subprocess.run(["mount", "-o", "remount,size=64m", str(small)], check=True)
        assert resumed(launcher, small / "a") == UNITS - len(stored_units)
        finished_like(uninterrupted, small / "a")
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.parametrize(
    "damage",
    [
        *(pytest.param(damage, marks=pytest.mark.slow) for damage in ("truncated", "one bit", "foreign")),
        "unlisted",
        "all at once",
    ],
)
def test_damaged_units_are_set_aside_and_computed_again(launcher, inputs, uninterrupted, tmp_path, damage):
    folder = tmp_path / "a"
    shutil.copytree(uninterrupted[0], folder)
    stored_units = units(folder)
    files = [unit / "heads.parquet" for unit in stored_units]
    # the summaries are the same, and so are the ids of the units that they are made of
    expected = 1
    if damage in ("truncated", "all at once"):
        files[1].write_bytes(files[1].read_bytes()[:-100])
    if damage in ("one bit", "all at once"):
        data = bytearray(files[2].read_bytes())
        data[len(data) // 2] ^= 4
        files[2].write_bytes(data)
    if damage in ("foreign", "all at once"):
        shutil.rmtree(stored_units[4])
        shutil.copytree(stored_units[5], stored_units[4])
    if damage == "unlisted":
        (stored_units[2] / "unit.json").unlink()
    if damage == "all at once":
        expected = 3
    shutil.rmtree(folder / "tables")
    assert resumed(launcher, folder) == expected
    assert len(list((folder / "units" / "set-aside").iterdir())) == expected
    finished_like(uninterrupted, folder)


def test_tables_that_were_lost_are_written_again(launcher, uninterrupted, tmp_path):
    folder = tmp_path / "a"
    shutil.copytree(uninterrupted[0], folder)
    (folder / "tables" / "heads.parquet").write_bytes(b"PAR1")
    assert resumed(launcher, folder) == 0
    finished_like(uninterrupted, folder)


def test_a_moved_run_can_be_resumed(launcher, inputs, uninterrupted, tmp_path):
    process = launcher.start(*command(inputs, tmp_path / "before"))
    until_units(process, tmp_path / "before" / "a", 1)
    process.send(signal.SIGKILL)
    process.wait()
    moved = tmp_path / "after" / "other name"
    moved.parent.mkdir()
    os.rename(tmp_path / "before" / "a", moved)
    with contextlib.suppress(FileNotFoundError):
        (moved / ".lock").unlink()
    assert resumed(launcher, moved) > 0
    finished_like(uninterrupted, moved)


def test_what_a_killed_writer_left_behind_is_cleared_away(launcher, uninterrupted, tmp_path):
    folder = tmp_path / "a"
    shutil.copytree(uninterrupted[0], folder)
    before = content(folder)
    for name in ("tables/.heads.parquet.1.tmp", ".study.yaml.1.tmp", "units/.x.tmp/heads.parquet"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"half a file")
    resumed(launcher, folder)
    assert not list(folder.rglob("*.tmp"))
    assert content(folder) == before
