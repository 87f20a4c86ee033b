# SPDX-License-Identifier: MIT
"""Every write, rename and sync of a run fails once, and power is lost after any of them.

Whatever happens, what bears its name is whole, the message names the file, and `resume` gives the same bytes.
"""

import errno
import json
import random
import re

import pytest
from file_faults import Operations, crash

from attnscope.engine import provenance
from attnscope.engine.engine import Engine
from attnscope.engine.run_study import resume, run
from attnscope.errors import DiskFull
from attnscope.results.check import check_folder
from attnscope.results.store import damage
from folders import sentences, study, table_bytes


@pytest.fixture(scope="module")
def computed(llama, tmp_path_factory):
    """Settings of a run, its tables, and what each of its units computes: only files are left to do."""
    home = tmp_path_factory.mktemp("computed")
    settings = study(
        home, str(llama), str(sentences(home / "texts.txt", 4)), metrics=["fiedler_value"], block=2
    )
    units, work = {}, Engine.work
    with pytest.MonkeyPatch.context() as patch:

        def remembered(self, unit):
            units[unit.id] = work(self, unit)
            return units[unit.id]

        patch.setattr(Engine, "work", remembered)
        results = run(settings, progress=False)
    return settings, table_bytes(results.path), units


@pytest.fixture
def quick(computed, monkeypatch):
    """Runs whose units are known; nothing is asked of git."""
    monkeypatch.setattr(Engine, "work", lambda self, unit: computed[2][unit.id])
    monkeypatch.setattr(provenance, "git_state", lambda folder: None)
    monkeypatch.setattr(provenance, "_own_git_state", lambda file: None)
    return computed


def quiet(text):
    return None


def started(settings, output):
    """Start or resume the run in a folder, as a user would."""
    folder = output / "a"
    if (folder / "study.yaml").is_file():
        return resume(folder, progress=False, say=quiet)
    return run(settings, output=str(output), progress=False, say=quiet)


def recorded(settings, output):
    """All operations of an undisturbed run."""
    with pytest.MonkeyPatch.context() as patch:
        operations = Operations(output, patch)
        started(settings, output)
    return operations


def failing(settings, output, number, error):
    """Let one operation of a run fail; what is left must be whole, and the message must name the file."""
    with pytest.MonkeyPatch.context() as patch:
        operations = Operations(output, patch, fail_at=number, error=error)
        with pytest.raises(OSError) as caught:
            started(settings, output)
    kind, path = operations.failed
    name = re.sub(r"(\.\d+)?\.tmp$", "", path.name)
    name = name if name.startswith(".owner") else name.removeprefix(".")
    message = f"{caught.value.filename}: {caught.value.strerror}"
    assert name in message, f"{kind} of {path}: {message}"
    assert str(output) in message
    if error == errno.ENOSPC and kind in ("write", "create", "mkdir", "fsync"):
        assert isinstance(caught.value, DiskFull)
    assert not list(output.rglob("*.tmp")), f"{kind} of {path}"
    return caught.value


def sound(output, tables):
    """What bears its name is whole: units, tables, and what is read to go on."""
    folder = output / "a"
    for unit in (folder / "units").glob("[!.]*-*"):
        assert damage(unit) == "", unit
    for table in (folder / "tables").glob("*.parquet"):
        assert table.read_bytes() == tables[table.name], table
    if (folder / "provenance.json").is_file():
        json.loads((folder / "provenance.json").read_text("utf-8"))


def every_fault(quick, tmp_path, numbers, errors):
    settings, tables, _ = quick
    for number in numbers:
        for error in errors:
            output = tmp_path / f"{number}-{error}"
            output.mkdir()
            failing(settings, output, number, error)
            sound(output, tables)
            started(settings, output)
            assert table_bytes(output / "a") == tables, f"operation {number}"
            assert check_folder(output / "a").is_complete
            assert check_folder(output / "a").is_whole


def test_an_operation_in_twelve_fails_once(quick, tmp_path):
    (tmp_path / "whole").mkdir()
    count = recorded(quick[0], tmp_path / "whole").count
    assert count > 90
    every_fault(quick, tmp_path, range(random.Random(1).randrange(1, 12), count + 1, 12), [errno.ENOSPC])


@pytest.mark.slow
def test_every_operation_fails_once_for_want_of_room_and_by_a_broken_disk(quick, tmp_path):
    (tmp_path / "whole").mkdir()
    count = recorded(quick[0], tmp_path / "whole").count
    print(f"{count} operations, each with ENOSPC and EIO")
    every_fault(quick, tmp_path, range(1, count + 1), [errno.ENOSPC, errno.EIO])


def crashed(quick, tmp_path, states):
    """Lose power after a number of operations, and go on from what may be left."""
    settings, tables, _ = quick
    root = tmp_path / "whole"
    root.mkdir()
    log = recorded(settings, root).log
    draw = random.Random(7)
    for state in range(states):
        output = tmp_path / str(state)
        output.mkdir()
        crash(log[: draw.randrange(len(log) + 1)], root, output, draw)
        sound(output, tables)
        started(settings, output)
        assert table_bytes(output / "a") == tables, f"state {state}"
        assert check_folder(output / "a").is_whole


def test_a_loss_of_power_loses_no_unit_that_was_stored(quick, tmp_path):
    crashed(quick, tmp_path, 12)


@pytest.mark.slow
def test_three_hundred_states_after_a_loss_of_power(quick, tmp_path):
    crashed(quick, tmp_path, 300)


def test_what_was_synced_is_there_after_a_crash_and_what_was_not_may_be_lost(tmp_path):
    """The simulation itself: a file that is renamed without a sync is found empty in some states."""
    root = tmp_path / "root"
    root.mkdir()
    log = [
        *(("create", root / ".x"), ("write", root / ".x", b"data")),
        *(("fsync", root / ".x"), ("replace", root / ".x", root / "x"), ("fsync", root)),
        *(("create", root / ".y"), ("write", root / ".y", b"data"), ("replace", root / ".y", root / "y")),
        ("fsync", root),
    ]
    contents = set()
    for seed in range(40):
        target = tmp_path / str(seed)
        target.mkdir()
        crash(log, root, target, random.Random(seed))
        assert (target / "x").read_bytes() == b"data"
        contents.add((target / "y").read_bytes())
    assert {b"", b"data"} < contents
