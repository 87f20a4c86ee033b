# SPDX-License-Identifier: MIT
"""Shards, the manifest and the folder lock: whole or not at all, checked before they are trusted."""

import errno
import json
import os
import resource
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attnscope.engine import lock as lock_module
from attnscope.engine.lock import FolderLock, FolderLocked
from attnscope.engine.store import DiskFull, Shards, atomic_file, write_bytes

NAMES = {f"u{i}": f"{i:05d}-u{i}.parquet" for i in range(4)}


def tables(seed, rows=5):
    draw = np.random.default_rng(seed)
    return {
        "heads": pa.table({"head": np.arange(rows), "value": draw.random(rows)}),
        "samples": pa.table({"tokens": pa.array([["<s>", "ä"], []], pa.list_(pa.string())), "n": [2, 0]}),
        "bars": pa.table({"birth": pa.array([], pa.float64())}),
    }


@pytest.fixture
def shards(tmp_path):
    made = Shards(tmp_path)
    assert made.open(NAMES) == []
    for seed, (unit, name) in enumerate(NAMES.items()):
        made.write(unit, name, tables(seed))
    return made


def reopened(shards, units=NAMES):
    said = []
    again = Shards(shards.folder.parent)
    return again, again.open(units, said.append), said


def test_a_shard_gives_its_tables_back(shards):
    for name, table in tables(2).items():
        assert shards.read("u2", name).equals(table)
    assert shards.rows("u2") == {"heads": 5, "samples": 2, "bars": 0}


def test_reopening_trusts_what_is_whole(shards):
    again, done, said = reopened(shards)
    assert done == list(NAMES)
    assert said == []
    assert again.read("u3", "heads").equals(tables(3)["heads"])


@pytest.mark.parametrize("damage", ["truncated", "one bit", "empty", "foreign", "missing"])
def test_a_damaged_shard_is_set_aside(shards, damage):
    path = shards.folder / NAMES["u1"]
    data = path.read_bytes()
    middle = len(data) // 2
    if damage == "truncated":
        path.write_bytes(data[:middle])
    elif damage == "one bit":
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "foreign":
        path.write_bytes((shards.folder / NAMES["u2"]).read_bytes())
    else:
        path.unlink()
    again, done, said = reopened(shards)
    assert done == ["u0", "u2", "u3"]
    if damage != "missing":
        assert len(said) == 1
        assert "set aside" in said[0]
        assert (shards.folder / "set-aside" / path.name).is_file()
    assert not path.exists()
    again.write("u1", NAMES["u1"], tables(1))
    assert path.read_bytes() == data
    assert reopened(shards)[1] == list(NAMES)


def test_a_shard_of_another_plan_is_set_aside_and_two_of_one_name_are_kept_apart(shards):
    (shards.folder / "set-aside").mkdir()
    (shards.folder / "set-aside" / NAMES["u0"]).write_bytes(b"older")
    _, done, said = reopened(shards, {unit: name for unit, name in NAMES.items() if unit != "u0"})
    assert done == ["u1", "u2", "u3"]
    assert len(said) == 1
    assert sorted(path.name for path in (shards.folder / "set-aside").iterdir()) == [
        "00000-u0.1.parquet",
        "00000-u0.parquet",
    ]


def test_a_torn_last_line_of_the_manifest_costs_nothing_but_a_word(shards):
    data = shards.manifest.read_bytes()
    shards.manifest.write_bytes(data[:-20])
    _, done, said = reopened(shards)
    assert done == list(NAMES)
    assert "line 4 cannot be read" in said[0]
    assert shards.manifest.read_bytes() == data


def test_a_shard_renamed_but_not_yet_listed_is_kept(shards):
    data = shards.manifest.read_bytes()
    shards.manifest.write_bytes(b"".join(data.splitlines(keepends=True)[:-1]))
    again, done, said = reopened(shards)
    assert done == list(NAMES)
    assert said == [f"{NAMES['u3']} is whole and of this study, though the manifest does not list it: kept"]
    assert shards.manifest.read_bytes() == data
    assert again.rows("u3") == {"heads": 5, "samples": 2, "bars": 0}
    assert again.read("u3", "heads").equals(tables(3)["heads"])
    assert reopened(shards)[1:] == (list(NAMES), [])


def test_a_writer_killed_before_its_line_has_done_its_unit(tmp_path):
    code = (
        "import os; from pathlib import Path; import pyarrow as pa; from attnscope.studies import shards\n"
        f"made = shards.Shards(Path({str(tmp_path)!r})); made.open({{'u': 'u.parquet'}})\n"
        "shards._line = lambda entry: os._exit(9)\n"
        "made.write('u', 'u.parquet', {'heads': pa.table({'head': [1, 2, 3]})})"
    )
    killed = subprocess.run([sys.executable, "-c", code], check=False)
    assert killed.returncode == 9
    resumed, said = Shards(tmp_path), []
    assert resumed.open({"u": "u.parquet"}, said.append) == ["u"]
    assert resumed.read("u", "heads").column("head").to_pylist() == [1, 2, 3]
    assert not (resumed.folder / "set-aside").exists()


@pytest.mark.parametrize("place", range(0, 1000, 37))
def test_an_unlisted_shard_with_one_wrong_bit_is_set_aside(shards, place):
    path = shards.folder / NAMES["u3"]
    data = path.read_bytes()
    place = len(data) * place // 1000
    lines = shards.manifest.read_bytes().splitlines(keepends=True)
    shards.manifest.write_bytes(b"".join(lines[:-1]))
    path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
    _, done, said = reopened(shards)
    assert done == ["u0", "u1", "u2"]
    assert "damaged or not of this study" in said[0]


@pytest.mark.parametrize("content", ["u2", "cut", "empty", "plain parquet"])
def test_an_unlisted_file_that_is_not_the_units_own_is_set_aside(shards, content):
    path = shards.folder / NAMES["u3"]
    if content == "u2":
        path.write_bytes((shards.folder / NAMES["u2"]).read_bytes())
    elif content == "plain parquet":
        pq.write_table(tables(3)["heads"], path)
    else:
        path.write_bytes(path.read_bytes()[: -50 if content == "cut" else 0])
    lines = shards.manifest.read_bytes().splitlines(keepends=True)
    shards.manifest.write_bytes(b"".join(lines[:-1]))
    _, done, said = reopened(shards)
    assert done == ["u0", "u1", "u2"]
    assert "damaged or not of this study" in said[0]
    assert (shards.folder / "set-aside" / NAMES["u3"]).is_file()


def test_temporary_files_of_a_killed_run_are_removed(shards):
    leftover = shards.folder / ".00009-u9.parquet.123.tmp"
    leftover.write_bytes(b"half")
    reopened(shards)
    assert not leftover.exists()


def test_gather_keeps_the_order_and_its_bytes_do_not_depend_on_history(shards, tmp_path):
    shards.gather(list(NAMES), "heads", tmp_path / "a.parquet")
    other = Shards(tmp_path / "other")
    (tmp_path / "other").mkdir()
    other.open(NAMES)
    for seed in (3, 1, 0, 2):
        other.write(f"u{seed}", NAMES[f"u{seed}"], tables(seed))
    other.gather(list(NAMES), "heads", tmp_path / "b.parquet")
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    expected = pa.concat_tables([tables(seed)["heads"] for seed in range(4)])
    assert pq.read_table(tmp_path / "a.parquet").replace_schema_metadata().equals(expected)


def test_gather_writes_bounded_row_groups(shards, tmp_path, monkeypatch):
    monkeypatch.setattr("attnscope.engine.store.ROW_GROUP", 10)
    shards.gather(list(NAMES), "heads", tmp_path / "a.parquet")
    assert pq.read_metadata(tmp_path / "a.parquet").num_row_groups == 2
    shards.gather(list(NAMES), "bars", tmp_path / "b.parquet")
    assert pq.read_table(tmp_path / "b.parquet").column_names == ["birth"]


def test_atomic_file_leaves_the_old_content_when_writing_fails(tmp_path):
    path = tmp_path / "table.parquet"
    write_bytes(path, b"old")
    with pytest.raises(TypeError), atomic_file(path) as file:
        file.write("new, but not bytes")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.parquet"]


def test_no_room_is_an_error_in_words_and_leaves_nothing_behind(shards, tmp_path):
    before = {path.name: path.read_bytes() for path in shards.folder.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256, hard))
    try:
        with pytest.raises(DiskFull, match=r"no room for 00009-u9\.parquet") as caught:
            shards.write("u9", "00009-u9.parquet", tables(9, rows=5000))
        assert caught.value.errno == errno.EFBIG
        with pytest.raises(DiskFull, match=r"no room for a\.parquet"):
            shards.gather(list(NAMES), "heads", tmp_path / "a.parquet")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {path.name: path.read_bytes() for path in shards.folder.iterdir()} == before
    assert not (tmp_path / "a.parquet").exists()
    assert reopened(shards)[1] == list(NAMES)


def test_the_lock_names_its_owner_and_is_free_afterwards(tmp_path):
    with FolderLock(tmp_path), pytest.raises(FolderLocked, match=f"in use by process {os.getpid()} on "):
        FolderLock(tmp_path).__enter__()
    assert not (tmp_path / ".lock").exists()
    with FolderLock(tmp_path):
        pass


def test_a_killed_owner_leaves_no_lock(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from attnscope.engine.lock import FolderLock\n"
        f"FolderLock(Path({str(tmp_path)!r})).__enter__(); print('held', flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout.readline().strip() == "held"
    with pytest.raises(FolderLocked, match=f"process {owner.pid}"):
        FolderLock(tmp_path).__enter__()
    owner.kill()
    owner.wait()
    with FolderLock(tmp_path) as held:
        assert json.loads(held.path.read_text())["pid"] == os.getpid()


def test_a_lock_from_another_machine_is_respected_until_it_is_silent(tmp_path):
    path = tmp_path / ".lock"
    path.write_text(json.dumps({"pid": 1, "host": "elsewhere"}))
    with pytest.raises(FolderLocked, match="process 1 on elsewhere, last heard of"):
        FolderLock(tmp_path).__enter__()
    old = time.time() - lock_module.STALE_AFTER - 5
    os.utime(path, (old, old))
    with FolderLock(tmp_path) as held:
        assert json.loads(held.path.read_text())["pid"] == os.getpid()


def test_a_lock_file_with_nonsense_in_it_is_taken_over(tmp_path):
    (tmp_path / ".lock").write_bytes(b"\xff{not json")
    with FolderLock(tmp_path):
        pass
