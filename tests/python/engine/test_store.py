# SPDX-License-Identifier: MIT
"""Stored units and the folder lock: whole or not at all, checked before they are trusted."""

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attnscope.errors import DiskFull, FolderLocked
from attnscope.results import folder_lock
from attnscope.results.files import ABANDONED, atomic_file, atomic_folder, descriptor_of, write_bytes
from attnscope.results.folder_lock import FolderLock
from attnscope.results.store import Store, repeating
from folders import until

NAMES = {f"u{i}": f"{i:05d}-u{i}" for i in range(4)}


def tables(seed, rows=5):
    draw = np.random.default_rng(seed)
    return {
        "heads": pa.table({"head": np.arange(rows), "value": draw.random(rows)}),
        "samples": pa.table({"tokens": pa.array([["<s>", "ä"], []], pa.list_(pa.string())), "n": [2, 0]}),
        "bars": pa.table({"birth": pa.array([], pa.float64())}),
    }


@pytest.fixture
def store(tmp_path):
    created = Store(tmp_path)
    assert created.open(NAMES) == []
    for seed, unit in enumerate(NAMES):
        created.write(unit, tables(seed))
    return created


def reopened(store, units=NAMES):
    messages = []
    again = Store(store.folder.parent)
    return again, again.open(units, messages.append), messages


def test_a_unit_gives_its_tables_back(store):
    for name, table in tables(2).items():
        assert store.read("u2", name).equals(table)
    assert store.rows("u2") == {"heads": 5, "samples": 2, "bars": 0}


def test_reopening_trusts_what_is_whole(store):
    again, done, messages = reopened(store)
    assert done == list(NAMES)
    assert messages == []
    assert again.read("u3", "heads").equals(tables(3)["heads"])


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "damage", ["truncated", "one bit", "empty", "foreign", "one missing", "one more", "no list", "missing"]
)
def test_a_damaged_unit_is_set_aside(store, damage):
    folder = store.folder / NAMES["u1"]
    before, file = content(folder), folder / "heads.parquet"
    data = file.read_bytes()
    middle = len(data) // 2
    if damage == "truncated":
        file.write_bytes(data[:middle])
    elif damage == "one bit":
        file.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    elif damage == "empty":
        file.write_bytes(b"")
    elif damage == "foreign":
        shutil.rmtree(folder)
        shutil.copytree(store.folder / NAMES["u2"], folder)
    elif damage == "one missing":
        (folder / "samples.parquet").unlink()
    elif damage == "one more":
        (folder / "graphs.parquet").write_bytes(data)
    elif damage == "no list":
        (folder / "unit.json").write_text("{", "utf-8")
    else:
        shutil.rmtree(folder)
    again, done, messages = reopened(store)
    assert done == ["u0", "u2", "u3"]
    if damage != "missing":
        assert len(messages) == 1
        assert "is corrupt or belongs to another study; moved to" in messages[0]
        assert (store.folder / "set-aside" / folder.name).is_dir()
    assert not folder.exists()
    again.write("u1", tables(1))
    assert content(folder) == before
    assert reopened(store)[1] == list(NAMES)


def test_a_unit_of_another_plan_is_set_aside_and_two_of_one_name_are_kept_apart(store):
    (store.folder / "set-aside" / NAMES["u0"]).mkdir(parents=True)
    _, done, messages = reopened(store, {unit: name for unit, name in NAMES.items() if unit != "u0"})
    assert done == ["u1", "u2", "u3"]
    assert len(messages) == 1
    assert sorted(path.name for path in (store.folder / "set-aside").iterdir()) == ["00000-u0", "00000-u0.1"]


def test_an_intact_unit_is_taken_whoever_wrote_it(store):
    """A run that is killed right after the rename has nothing else to write."""
    again = Store(store.folder.parent)
    assert again.open(NAMES) == list(NAMES)
    assert again.read("u3", "heads").equals(store.read("u3", "heads"))


def test_a_writer_killed_right_after_the_rename_has_done_its_unit(tmp_path):
    code = (
        "import os; from pathlib import Path; import pyarrow as pa\n"
        "from attnscope.results import files, store\n"
        f"made = store.Store(Path({str(tmp_path)!r})); made.open({{'u': '00-u'}})\n"
        "files.sync = lambda path: os._exit(9) if path.name == 'units' else None\n"
        "made.write('u', {'heads': pa.table({'head': [1, 2, 3]})})"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    resumed, messages = Store(tmp_path), []
    assert resumed.open({"u": "00-u"}, messages.append) == ["u"]
    assert resumed.read("u", "heads").column("head").to_pylist() == [1, 2, 3]
    assert messages == []


def test_what_a_killed_run_left_half_written_is_removed(store):
    leftover = store.folder / ".00009-u9.tmp"
    leftover.mkdir()
    (leftover / "heads.parquet").write_bytes(b"half")
    reopened(store)
    assert not leftover.exists()


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    def half(folder):
        (folder / "heads.parquet").write_bytes(b"half")
        assert not (tmp_path / "unit").exists()
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), atomic_folder(tmp_path / "unit") as folder:
        half(folder)
    assert list(tmp_path.iterdir()) == []
    with atomic_folder(tmp_path / "unit") as folder:
        (folder / "heads.parquet").write_bytes(b"whole")
    assert [path.name for path in tmp_path.rglob("*")] == ["unit", "heads.parquet"]


def test_gather_keeps_the_order_and_its_bytes_do_not_depend_on_history(store, tmp_path):
    store.gather(list(NAMES), "heads", tmp_path / "a.parquet")
    other = Store(tmp_path / "other")
    (tmp_path / "other").mkdir()
    other.open(NAMES)
    for seed in (3, 1, 0, 2):
        other.write(f"u{seed}", tables(seed))
    other.gather(list(NAMES), "heads", tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    expected = pa.concat_tables([tables(seed)["heads"] for seed in range(4)])
    assert pq.read_table(tmp_path / "a.parquet").replace_schema_metadata().equals(expected)


@pytest.mark.parametrize(("widths", "kinds"), [((2, 3, 3), "fff"), ((2, 2), "fd"), ((3, 2), "df")])
def test_states_of_models_of_unlike_width_or_precision_are_gathered(tmp_path, widths, kinds):
    """Two models with states of 64 and 32 numbers ended the run in an error of Arrow, all work done."""
    store, expected = Store(tmp_path), []
    store.open(NAMES)
    for unit, width, kind in zip(NAMES, widths, kinds, strict=False):
        states = np.arange(4 * width, dtype=kind)
        column = pa.FixedSizeListArray.from_arrays(pa.array(states), width)
        store.write(unit, {"states": pa.table({"state": column})})
        expected += states.reshape(4, width).tolist()
    store.gather(list(NAMES)[: len(widths)], "states", tmp_path / "states.parquet")
    assert pq.read_table(tmp_path / "states.parquet")["state"].to_pylist() == expected


@pytest.mark.parametrize("units", [["u0"], ["u1", "u0"], ["u1", "u2"], ["u1"]])
def test_a_gathered_table_tells_pandas_of_missing_numbers_and_flags(tmp_path, units):
    """A reader that knows nothing of the package gets the types that `Results.table` gives."""
    parts = {
        "u0": pa.table(
            {"place": pa.array([3, None]), "holds": [True, None], "count": [1, 2], "share": [0.5, None]}
        ),
        "u1": pa.table(
            {"place": pa.array([4, 5]), "holds": [True, False], "count": [3, 4], "share": [0.5, 1.0]}
        ),
        "u2": pa.table({"count": [7], "share": [0.5]}),
    }
    store = Store(tmp_path)
    store.open(NAMES)
    for unit, table in parts.items():
        store.write(unit, {"places": table.replace_schema_metadata({"attnscope_table": "{}"})})
    store.gather(units, "places", tmp_path / "places.parquet")
    frame = pd.read_parquet(tmp_path / "places.parquet")
    kinds = ["int64", "bool"] if units == ["u1"] else ["Int64", "boolean"]
    assert [str(kind) for kind in frame.dtypes] == [*kinds, "int64", "float64"]
    assert pq.read_schema(tmp_path / "places.parquet").metadata[b"attnscope_table"] == b"{}"
    expected = [value for unit in units for value in parts[unit].to_pydict().get("place", [None])]
    assert [None if pd.isna(value) else value for value in frame["place"]] == expected


def test_gather_writes_bounded_row_groups(store, tmp_path, monkeypatch):
    monkeypatch.setattr("attnscope.results.store.ROW_GROUP", 10)
    store.gather(list(NAMES), "heads", tmp_path / "a.parquet")
    assert pq.read_metadata(tmp_path / "a.parquet").num_row_groups == 2
    store.gather(list(NAMES), "bars", tmp_path / "b.parquet")
    assert pq.read_table(tmp_path / "b.parquet").column_names == ["birth"]


def test_an_open_file_goes_on_where_it_is(tmp_path):
    """A name such as /dev/stdout, which a shell has led into a file, was replaced by a file of that name."""
    with open(tmp_path / "log", "wb") as log:
        log.write(b"before ")
        log.flush()
        for folder in ("/dev/fd", "/proc/self/fd", f"/proc/{os.getpid()}/fd"):
            write_bytes(Path(folder, str(log.fileno())), b"page ")
            assert os.path.islink(f"/proc/self/fd/{log.fileno()}")
        log.write(b"behind")
    assert (tmp_path / "log").read_bytes() == b"before page page page behind"
    assert [descriptor_of(Path("/dev", name)) for name in ("stdin", "stdout", "stderr")] == [0, 1, 2]
    assert descriptor_of(tmp_path / "1") is None


def test_atomic_file_leaves_the_old_content_when_writing_fails(tmp_path):
    path = tmp_path / "table.parquet"
    write_bytes(path, b"old")
    with pytest.raises(TypeError), atomic_file(path) as file:
        file.write("new, but not bytes")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.parquet"]


def test_what_a_killed_writer_left_of_a_file_goes_with_the_next_of_its_name(tmp_path):
    """A figure that was killed while it was written stayed beside the others, under a hidden name."""
    abandoned, recent, foreign = (
        tmp_path / name for name in (".depth.pdf.17.tmp", ".depth.pdf.18.tmp", ".other.pdf.17.tmp")
    )
    for leftover in (abandoned, recent, foreign):
        leftover.write_bytes(b"half")
    for leftover in (abandoned, foreign):
        os.utime(leftover, (0, os.stat(recent).st_mtime - 1.1 * ABANDONED))
    write_bytes(tmp_path / "depth.pdf", b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [recent.name, foreign.name, "depth.pdf"]


def test_no_room_is_an_error_in_words_and_leaves_nothing_behind(store, tmp_path):
    before = content(store.folder)
    store.open({**NAMES, "u9": "00009-u9"})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256, hard))
    try:
        with pytest.raises(
            DiskFull, match=r"no room for heads\.parquet \(File too large\): .*/units/00009-u9"
        ) as caught:
            store.write("u9", tables(9, rows=5000))
        assert caught.value.errno == errno.EFBIG
        with pytest.raises(DiskFull, match=r"no room for a\.parquet"):
            store.gather(list(NAMES), "heads", tmp_path / "a.parquet")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert content(store.folder) == before
    assert not (tmp_path / "a.parquet").exists()
    assert reopened(store)[1] == list(NAMES)


def test_measured_numbers_have_no_dictionary(store):
    """Whatever holds them: only what repeats has a table of its values, in a unit and in a gathered file."""
    number, integer, word = pa.float32(), pa.int16(), pa.string()
    schema = pa.schema(
        {
            "value": pa.float64(),
            "state": pa.list_(number, 8),
            "curve": pa.list_(pa.list_(number)),
            "layer": integer,
            "head": pa.dictionary(pa.int8(), word),
            "level": pa.dictionary(pa.int8(), number),
            "words": pa.list_(word),
            "kept": pa.bool_(),
        }
    )
    assert repeating(schema) == ["layer", "head", "level", "words", "kept"]
    store.gather(list(NAMES), "heads", gathered := store.folder.parent / "heads.parquet")
    for file in (gathered, *store.files(["u0"], "heads")):
        columns = pq.read_metadata(file).row_group(0)
        held = {columns.column(at).path_in_schema: columns.column(at).encodings for at in range(2)}
        assert {name: "RLE_DICTIONARY" in encodings for name, encodings in held.items()} == {
            "head": True,
            "value": False,
        }


def test_the_lock_names_its_owner_and_is_free_afterwards(tmp_path):
    with FolderLock(tmp_path), pytest.raises(FolderLocked, match=f"in use by process {os.getpid()} on "):
        FolderLock(tmp_path).__enter__()
    assert not (tmp_path / ".owner").exists()
    with FolderLock(tmp_path):
        pass


def test_a_killed_owner_leaves_no_lock(tmp_path):
    code = (
        "import sys, time; from pathlib import Path\n"
        "from attnscope.results.folder_lock import FolderLock\n"
        f"held = FolderLock(Path({str(tmp_path)!r})).__enter__(); print('held', flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout.readline().strip() == "held"
    with pytest.raises(FolderLocked, match=f"process {owner.pid}"):
        FolderLock(tmp_path).__enter__()
    owner.kill()
    owner.wait()
    with FolderLock(tmp_path) as held:
        assert json.loads(held.owner.read_text())["pid"] == os.getpid()


class Clock:
    """The monotonic clock of this machine, set by hand."""

    now = 1000.0

    def monotonic(self):
        return self.now

    def __getattr__(self, name):
        return getattr(time, name)


def refused(folder):
    with pytest.raises(FolderLocked, match="in use by process 1 on elsewhere") as caught:
        FolderLock(folder).__enter__()
    return str(caught.value)


def test_a_lock_from_another_machine_is_stale_when_two_looks_saw_the_same_beat(tmp_path, monkeypatch):
    """Clocks are not compared: the owner's files may be years old or from the future."""
    clock, path = Clock(), tmp_path / ".owner"
    monkeypatch.setattr(folder_lock, "time", clock)

    def beat(number, changed):
        path.write_text(json.dumps({"pid": 1, "host": "elsewhere", "began": 5, "beat": number}))
        os.utime(path, (changed, changed))

    beat(1, 0)
    assert "start again in 600 s" in refused(tmp_path)
    clock.now += 599
    assert "start again in 1 s" in refused(tmp_path)
    beat(2, 0)  # it lives, whatever its clock says
    clock.now += 2
    assert "start again in 600 s" in refused(tmp_path)
    beat(2, time.time() + 86400)
    clock.now += 601
    with FolderLock(tmp_path) as held:
        assert json.loads(held.owner.read_text())["pid"] == os.getpid()
    assert [file.name for file in tmp_path.iterdir()] == [".lock"]


def test_looks_before_a_restart_of_this_machine_do_not_count(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(folder_lock, "time", clock)
    (tmp_path / ".owner").write_text(json.dumps({"pid": 1, "host": "elsewhere", "beat": 1}))
    refused(tmp_path)
    monkeypatch.setattr(folder_lock, "_boot", lambda: "another boot")
    clock.now = 5000.0
    assert "start again in 600 s" in refused(tmp_path)
    (tmp_path / ".looks").write_text('{"owner": [], "at": "x"}')
    refused(tmp_path)


def test_an_owner_beats_while_a_unit_takes_long_and_sees_that_it_was_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_lock, "BEAT_EVERY", 0.01)

    def owner():
        return json.loads((tmp_path / ".owner").read_text())

    with FolderLock(tmp_path) as held:
        first = owner()
        until(lambda: owner()["beat"] > first["beat"] + 2)
        assert {**owner(), "beat": 1} == {**first, "beat": 1}
        held.check()
        folder_lock._write(tmp_path / ".owner", {"pid": 1, "host": "elsewhere", "beat": 7})
        until(lambda: held._ended.is_set())
        with pytest.raises(FolderLocked, match="was taken over by process 1 on elsewhere"):
            held.check()
    assert owner()["host"] == "elsewhere"


def test_an_owner_file_with_nonsense_in_it_is_taken_over(tmp_path):
    (tmp_path / ".owner").write_bytes(b"\xff{not json")
    with FolderLock(tmp_path):
        pass
