# SPDX-License-Identifier: MIT
"""Run folders that somebody else has made, damaged or races for: nothing outside them is touched."""

import json
import os
import resource
import shutil
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import attnscope as asc
from attnscope._system import machine_free_bytes
from attnscope.config.run_config import RunConfig
from attnscope.engine import prepared_run
from attnscope.engine.executors.shards import gather, run_shard
from attnscope.engine.run_study import resume, run
from attnscope.errors import ConfigError, DiskFull, FolderLocked, LinkRefused, ResultsError
from attnscope.models import LoadError
from attnscope.results import store
from attnscope.results.folder_lock import FolderLock
from attnscope.results.results import Results
from attnscope.results.store import footer_of
from attnscope.untrusted.limits import MAX_PARQUET_COLUMNS
from folders import sentences, study, table_bytes


@pytest.fixture(scope="module")
def finished(llama, tmp_path_factory):
    """A finished run and its settings."""
    home = tmp_path_factory.mktemp("finished")
    settings = study(
        home, str(llama), str(sentences(home / "texts.txt", 4)), metrics=["fiedler_value"], block=2
    )
    run(settings, progress=False)
    return home / "runs" / "a", settings


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the finished run."""
    return shutil.copytree(finished[0], tmp_path / "runs" / "a")


def tree(folder):
    """Every file below a folder with its bytes."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- two processes that want one folder


def planned_meanwhile(monkeypatch, during):
    """Do something while a run is between its plan and the lock of its folder."""
    make_plan = prepared_run.make_plan

    def planned(*arguments):
        plan = make_plan(*arguments)
        monkeypatch.setattr(prepared_run, "make_plan", make_plan)
        during()
        return plan

    monkeypatch.setattr(prepared_run, "make_plan", planned)


def test_a_run_that_loads_no_model_leaves_the_folder_of_another_run(
    tmp_path, llama, texts, finished, monkeypatch
):
    bad = tmp_path / "bad"
    shutil.copytree(llama, bad)
    (bad / "model.safetensors").write_bytes(b"\x10")
    target = tmp_path / "runs" / "a"

    def other_run():
        shutil.copytree(finished[0], target)

    planned_meanwhile(monkeypatch, other_run)
    with pytest.raises(FileExistsError, match="holds another study"):
        run(study(tmp_path, str(bad), str(texts), metrics=["fiedler_value"]), progress=False)
    assert tree(target) == tree(finished[0])


def test_a_run_that_finds_no_weights_removes_only_a_folder_that_it_made(tmp_path, llama, texts):
    bad = tmp_path / "bad"
    shutil.copytree(llama, bad)
    (bad / "model.safetensors").write_bytes(b"\x10")
    target = tmp_path / "runs" / "a"
    target.mkdir(parents=True)
    with pytest.raises(LoadError):
        run(study(tmp_path, str(bad), str(texts)), progress=False)
    assert target.is_dir()
    shutil.rmtree(target)
    with pytest.raises(LoadError):
        run(study(tmp_path, str(bad), str(texts)), progress=False)
    assert not target.exists()


@pytest.mark.parametrize("other", ["same", "another"])
def test_a_folder_that_another_study_finished_meanwhile_is_refused(
    tmp_path, llama, texts, finished, monkeypatch, other
):
    target = tmp_path / "runs" / "a"

    def other_run():
        shutil.copytree(finished[0], target)
        if other == "same":
            shutil.copy(finished[0].parents[1] / "texts.txt", texts)
            (target / "study.yaml").write_text(settings.to_yaml(), "utf-8")

    settings = study(
        tmp_path, str(llama), str(texts), metrics=["fiedler_value"], block=2 if other == "same" else 3
    )
    planned_meanwhile(monkeypatch, other_run)
    with pytest.raises(FileExistsError, match="this very study" if other == "same" else "another study"):
        run(settings, progress=False)
    assert table_bytes(target) == table_bytes(finished[0])
    assert not (target / "units" / "set-aside").exists()


def test_many_starts_of_one_name_end_with_one_run_and_refusals(tmp_path, llama, texts, monkeypatch):
    """Threads stand for processes: the file lock keeps two holders of one process apart as well."""
    settings = study(tmp_path, str(llama), str(texts), metrics=["fiedler_value"])
    barrier, ended = threading.Barrier(3), []
    make_plan = prepared_run.make_plan

    def planned(*arguments):
        plan = make_plan(*arguments)
        barrier.wait(60)
        return plan

    monkeypatch.setattr(prepared_run, "make_plan", planned)

    def start():
        try:
            run(settings, progress=False)
            ended.append("done")
        except (FileExistsError, FolderLocked) as error:
            ended.append(type(error).__name__)

    threads = [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ended.count("done") == 1, ended
    assert set(ended) <= {"done", "FileExistsError", "FolderLocked"}
    assert asc.load(tmp_path / "runs" / "a").provenance["state"] == "finished"


# --- links


@pytest.mark.parametrize(
    "name",
    [".owner", ".lock", ".looks", "units", "tables", "study.yaml", "provenance.json", "parts", "figures"],
)
def test_a_link_under_a_name_that_a_run_writes_is_refused(copied, tmp_path, name):
    outside = tmp_path / "outside"
    path = copied / name
    if path.is_file():
        shutil.move(path, outside)
    elif path.is_dir() or "." not in name:
        shutil.move(path, outside) if path.is_dir() else outside.mkdir()
        (outside / "thesis.tex").write_text("mine", "utf-8")
    else:
        outside.write_text("mine", "utf-8")
    path.symlink_to(outside)
    before = tree(outside) if outside.is_dir() else outside.read_bytes()
    with pytest.raises(LinkRefused, match=f"is a link to {outside}"):
        resume(copied, progress=False)
    assert (tree(outside) if outside.is_dir() else outside.read_bytes()) == before


def test_links_deeper_down_lead_nowhere(copied, tmp_path, finished):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "thesis.tex").write_text("mine", "utf-8")
    (copied / "units" / "set-aside").symlink_to(outside)
    with pytest.raises(LinkRefused, match="set-aside"):
        resume(copied, progress=False)
    (copied / "units" / "set-aside").unlink()
    unit = sorted((copied / "units").iterdir())[0]
    shutil.move(unit, outside / "unit")
    unit.symlink_to(outside / "unit")
    table = copied / "tables" / "heads.parquet"
    table.unlink()
    table.symlink_to(outside / "thesis.tex")
    (copied / f".study.yaml.{os.getpid()}.tmp").symlink_to(outside / "thesis.tex")
    (copied / ".left.tmp").symlink_to(outside)
    results = resume(copied, progress=False)
    assert results.provenance["units"]["done_by_this_process"] == 1
    assert table_bytes(copied) == table_bytes(finished[0])
    assert (outside / "thesis.tex").read_text("utf-8") == "mine"
    assert sorted(path.name for path in outside.iterdir()) == ["thesis.tex", "unit"]
    assert not table.is_symlink()


def test_figures_are_not_drawn_through_a_link(copied, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    shutil.rmtree(copied / "figures", ignore_errors=True)
    (copied / "figures").symlink_to(outside)
    with pytest.raises(LinkRefused, match="figures"):
        asc.load(copied).figures(names=["depth"])
    assert list(outside.iterdir()) == []


# --- gathering into a folder


def test_gather_into_a_folder_of_something_else_is_refused(tmp_path, llama, finished):
    settings = RunConfig(**{**finished[1].to_dict(), "output": str(tmp_path / "runs")})
    run_shard(settings, "1/1", progress=False)
    poems = tmp_path / "mine"
    (poems / "units" / "poem").mkdir(parents=True)
    (poems / "tables").mkdir()
    (poems / "tables" / "heads.parquet").write_bytes(b"mine")
    before = tree(poems)
    with pytest.raises(FileExistsError, match="is no run folder; choose another folder"):
        gather([tmp_path / "runs" / "a"], into=poems, progress=False)
    assert tree(poems) == before
    assert sorted(path.name for path in poems.iterdir()) == ["tables", "units"]
    other = study(tmp_path, str(llama), finished[1].texts[0].path, metrics=["attention_entropy"])
    run(other, name="b", progress=False)
    with pytest.raises(FileExistsError, match="holds another study"):
        gather([tmp_path / "runs" / "a"], into=tmp_path / "runs" / "b", progress=False)
    results = gather([tmp_path / "runs" / "a"], into=tmp_path / "new", progress=False)
    assert table_bytes(results.path) == table_bytes(finished[0])


# --- damaged files


DAMAGED_JSON = {
    "no JSON": b"{",
    "no UTF-8": b'{"a": "\xff"}',
    "no object": b"[1]",
    "an empty list": b"[]",
    "null": b"null",
    "zero": b"0",
    "machines": b'{"machines": 5}',
    "a machine": b'{"machines": {"host": 5}}',
    "models": b'{"models": []}',
    "skipped": b'{"skipped": [1]}',
    "tables": b'{"tables": {"heads": 1}}',
    "shard": b'{"shard": 1}',
    "left out": b'{"left_out": 3}',
    "deep": b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "digits": b'{"a": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("damage", DAMAGED_JSON)
def test_a_damaged_provenance_is_a_line_from_every_command(copied, call, damage):
    (copied / "provenance.json").write_bytes(DAMAGED_JSON[damage])
    for command in ("resume", "tables", "check", "gather"):
        code, out, err = call(command, copied, *(["--no-draw"] if command in ("resume", "gather") else []))
        assert code == 1, command
        assert "Traceback" not in err, command
        assert "provenance.json" in (out if command == "check" else err)
        assert "attnscope resume" not in out, "it refuses the folder"
        assert len(err.splitlines()) <= 2


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b'{"unit": 5, "files": {}}',
        b'{"unit": "u"}',
        b'{"unit": "u", "files": []}',
        b'{"unit": "u", "files": {"heads": {"sha256": "x"}}}',
        b'{"unit": "u", "files": {"../heads": {"sha256": "x", "rows": 1}}}',
        b"[" * 200_000,
    ],
)
def test_a_damaged_manifest_costs_its_unit_alone(copied, finished, content):
    unit = sorted((copied / "units").iterdir())[1]
    (unit / "unit.json").write_bytes(content)
    results = resume(copied, progress=False, say=lambda text: None)
    assert results.provenance["units"]["done_by_this_process"] == 1
    assert table_bytes(copied) == table_bytes(finished[0])


def bomb(levels=9):
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 10)}]" for at in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bomb(), "more than 200,000 nodes once aliases are expanded"),
        ("a: " + "[" * 3000 + "]" * 3000, "nested more than 50 deep"),
        ("a: &a [*a]", "an alias of YAML contains itself"),
        ("models: &m {<<: *m}", "an alias of YAML contains itself"),
        ("seed: " + "9" * 5000, "not valid YAML"),
        ("models: 'a\\0b'\nseed: 2020-99-99", "not valid YAML"),
        ("# " + "x" * 1024**2, "1,048,578 bytes, at most 1,048,576 are read"),
    ],
)
def test_a_damaged_study_is_a_line(copied, call, content, message):
    (copied / "study.yaml").write_text(content, "utf-8")
    code, _, err = call("resume", copied)
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1
    code, _, err = call("tables", copied)
    assert code == 1
    assert message in err
    code, out, _ = call("check", copied)
    assert code == 1
    assert message in out


def forgotten(folder, name, table, **options):
    """Put a table into a run folder that says nothing of its hash; returns the file."""
    file = folder / "tables" / f"{name}.parquet"
    pq.write_table(table, file, compression="zstd", **options)
    facts = json.loads((folder / "provenance.json").read_text("utf-8"))
    facts["tables"].pop(name, None)
    (folder / "provenance.json").write_text(json.dumps(facts), "utf-8")
    return file


def test_rows_that_take_more_memory_than_there_is_are_refused_before_one_is_read(copied):
    count = 2**22
    zeros = {"layer": np.zeros(count, np.int64), "entropy": np.zeros(count), "is_flat": np.zeros(count, bool)}
    file = forgotten(copied, "heads", pa.table(zeros))
    assert file.stat().st_size < 2**17
    # as many small files as take twice the memory of this machine
    copies = 2 * machine_free_bytes() // (count * 16)
    results = Results(files={"heads": [file] * copies})
    with pytest.raises(ResultsError, match=r"rows take at least [\d.]+ GB of memory, and [\d.]+ GB are free"):
        results.table("heads")
    assert results.column_names("heads") == list(zeros)
    assert Results(files={"heads": [file]}).table("heads", ["is_flat"]).shape == (count, 1)


@pytest.mark.parametrize("nested", [False, True])
def test_long_texts_that_a_dictionary_repeats_are_refused_before_they_take_memory(copied, call, nested):
    """A file of a kilobyte took as many times its longest text as it has rows."""
    length = 2**24
    rows = 2 * machine_free_bytes() // length
    text = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array(["x" * length]))
    places = pa.array(np.arange(rows + 1, dtype=np.int32))
    column = pa.ListArray.from_arrays(places, text) if nested else text
    table = pa.table({"model": column, "layer": np.zeros(rows, np.int64), "entropy": np.zeros(rows)})
    file = forgotten(copied, "heads", table, dictionary_pagesize_limit=2**30)
    assert file.stat().st_size < 2**17
    with pytest.raises(ResultsError, match=r"rows take at least [\d.]+ GB of memory, and [\d.]+ GB are free"):
        asc.load(copied).table("heads")
    assert len(asc.load(copied).table("heads", ["layer"])) == rows
    # what only could be such a table is read
    distinct = pa.table({"model": [f"{at}{'x' * 2**14}" for at in range(2**13)]})
    forgotten(copied, "heads", distinct)
    assert asc.load(copied).table("heads")["model"].str.len().sum() > 2**27


def test_the_end_of_a_file_is_read_once(copied, monkeypatch):
    opened = []
    monkeypatch.setattr(store, "footer_of", lambda file: opened.append(file) or footer_of(file))
    asc.load(copied).table("heads")
    assert opened == [copied / "tables" / "heads.parquet"]


def test_a_table_of_too_many_columns_is_a_line(copied, call):
    names = [f"c{at}" for at in range(MAX_PARQUET_COLUMNS + 1)]
    forgotten(copied, "heads", pa.table({name: [0.0] for name in names}), use_dictionary=False)
    code, _, err = call("tables", copied)
    assert code == 1
    assert "heads.parquet is not a readable Parquet file" in err
    assert len(err.splitlines()) == 1


def test_pipes_do_not_block(copied, call, llama, texts, tmp_path):
    for name in ("units", "tables"):
        folder = sorted((copied / "units").iterdir())[0] if name == "units" else copied / "tables"
        file = sorted(folder.glob("*.parquet"))[0]
        file.unlink()
        os.mkfifo(file)
    os.mkfifo(copied / "tables" / "more.parquet")
    code, out, _ = call("check", copied)
    assert code == 1
    assert "is no regular file" in out
    assert "more" in out
    assert call("tables", copied)[0] in (0, 1)
    resume(copied, progress=False, say=lambda text: None)
    model = tmp_path / "model"
    shutil.copytree(llama, model)
    os.mkfifo(model / "more.safetensors")
    with pytest.raises(ConfigError, match=r"more\.safetensors is no regular file"):
        run(study(tmp_path, str(model), str(texts)), name="b", progress=False)
    os.mkfifo(tmp_path / "study.yaml")
    code, _, err = call("run", tmp_path / "study.yaml")
    assert code == 2
    assert "there is no file" in err


@pytest.mark.parametrize("name", ["tokenizer.json", "vocab.txt", "additional_chat_templates/a.jinja"])
def test_a_pipe_in_a_tokenizer_folder_does_not_block(tmp_path, call, llama, texts, name):
    folder = tmp_path / "tokenizer"
    shutil.copytree(llama, folder)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    settings = study(tmp_path, [{"path": str(llama), "tokenizer": str(folder)}], str(texts))
    with pytest.raises(LoadError, match=rf"{name} is no regular file; a tokenizer is a folder of files"):
        run(settings, progress=False)
    assert not (tmp_path / "runs" / "a" / "units").exists()
    (tmp_path / "b.yaml").write_text(yaml.safe_dump({**settings.to_dict(), "name": "b"}), "utf-8")
    code, _, err = call("run", tmp_path / "b.yaml", "--no-draw")
    assert (code, "Traceback" in err) == (1, False)
    assert "is no regular file" in err.splitlines()[-1]


# --- a flipped bit


def test_no_flipped_bit_of_a_stored_table_gives_other_numbers(copied, finished):
    """Of 100 places none gives numbers: the hash is compared before a row is read."""
    file = copied / "tables" / "heads.parquet"
    data = file.read_bytes()
    for place in range(0, 8 * len(data), max(1, 8 * len(data) // 100)):
        flipped = bytearray(data)
        flipped[place // 8] ^= 1 << place % 8
        file.write_bytes(flipped)
        with pytest.raises(ResultsError, match=r"heads\.parquet is not as it was written .*attnscope resume"):
            asc.load(copied).table("heads")
    assert resume(copied, progress=False).provenance["units"]["done_by_this_process"] == 0
    assert table_bytes(copied) == table_bytes(finished[0])
    asc.load(copied).table("heads")


def test_pages_of_tables_without_a_stored_hash_have_checksums(copied):
    """Bits of the data pages: the rest of the file, its schema and places, has no checksum of its own."""
    import pyarrow.parquet as pq

    facts = json.loads((copied / "provenance.json").read_text("utf-8"))
    del facts["tables"]
    (copied / "provenance.json").write_text(json.dumps(facts), "utf-8")
    file = copied / "tables" / "heads.parquet"
    data, heads = file.read_bytes(), asc.load(copied).table("heads")
    column = pq.read_metadata(file).row_group(0).column(heads.columns.get_loc("fiedler_value"))
    end = column.data_page_offset + column.total_compressed_size
    for place in range(end - 40, end):
        flipped = bytearray(data)
        flipped[place] ^= 4
        file.write_bytes(flipped)
        with pytest.raises(ResultsError, match="is not a readable Parquet file"):
            asc.load(copied).table("heads")


STANDARD = ["model", "revision", "step", "sample", "layer", "head", "protocol"]


@pytest.mark.parametrize(
    ("metadata", "rows", "message"),
    [
        ({"attnscope_table": "{"}, 2, "the keys in a table's metadata cannot be read: b'{'"),
        ({"attnscope_table": '{"keys": 5}'}, 2, "cannot be read"),
        ({"attnscope_table": '{"keys": [5, {}]}'}, 2, "cannot be read"),
        ({"attnscope_table": '{"keys": "layer"}'}, 2, "cannot be read"),
        ({"attnscope_table": "[]"}, 2, "cannot be read"),
        ({"attnscope_table": '{"keys": ["list"]}'}, 2, "say by which keys of table 'heads' to group"),
        (
            {"attnscope_table": '{"keys": ["fiedler_value", "none"]}'},
            2,
            "say by which keys of table 'heads' to group",
        ),
        ({"attnscope_table": json.dumps({"keys": STANDARD})}, 0, "table 'heads' has no rows"),
    ],
)
def test_a_table_that_is_empty_or_lies_about_itself_is_a_line(tmp_path, call, metadata, rows, message):
    import pyarrow as pa
    import pyarrow.parquet as pq

    heads = pa.table(
        {
            "model": ["m"] * 2,
            "revision": [""] * 2,
            "step": [-1] * 2,
            "sample": [0] * 2,
            "layer": [0] * 2,
            "head": [0, 1],
            "protocol": ["exact"] * 2,
            "fiedler_value": [0.1, 0.2],
            "list": [[1], [2]],
        }
    )
    table = heads.slice(0, rows).replace_schema_metadata(metadata)
    (tmp_path / "tables").mkdir()
    pq.write_table(table, tmp_path / "tables" / "heads.parquet")
    code, _, err = call("tables", tmp_path)
    assert (code, len(err.splitlines())) == (1, 1)
    assert message in err
    code, _, err = call("compare", tmp_path, tmp_path)
    assert "Traceback" not in err
    assert code in (0, 1)


def test_keys_that_do_not_tell_rows_apart_are_refused_by_compare(tmp_path):
    import pandas as pd

    frame = pd.DataFrame({"model": ["m", "m"], "layer": [0, 0], "entropy": [1.0, 2.0]})
    with pytest.raises(ResultsError, match="model, layer do not tell the rows of table 'heads' apart"):
        asc.Results({"heads": frame}).compare(asc.Results({"heads": frame}))
    with pytest.raises(ResultsError, match="has no key columns"):
        asc.Results({"heads": frame[["entropy"]]}).compare(asc.Results({"heads": frame[["entropy"]]}))


@pytest.mark.parametrize(
    "name", ["../../x", "a/b", "", ".hidden", "a\\b", "a\0b", "a\nb", "x" * 300, "\u202eabc"]
)
def test_the_name_of_a_table_is_that_of_a_file_in_the_folder(tmp_path, name):
    import pandas as pd

    with pytest.raises(ValueError, match="Results: the name of a table "):
        asc.Results({name: pd.DataFrame({"head": [0]})})


# --- exports on a full disk


EXPORTS = {
    "csv": lambda results, folder: results.to_csv(folder),
    "parquet": lambda results, folder: results.to_parquet(folder),
    "save": lambda results, folder: results.save(folder / "saved"),
    "figures": lambda results, folder: results.figures(folder, ["metric_maps"], formats=["png"]),
}


@pytest.mark.usefixtures("unarranged", "unpictured")
@pytest.mark.parametrize("name", EXPORTS)
def test_what_is_exported_is_whole_or_not_there_and_the_message_names_the_file(finished, tmp_path, name):
    results, folder = asc.load(finished[0]), tmp_path / "out"
    folder.mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, hard))
    try:
        with pytest.raises(DiskFull, match=r"no room for [\w.]+ \(File too large\)") as caught:
            EXPORTS[name](results, folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(folder) in str(caught.value)
    assert not list(folder.rglob("*.tmp"))
    assert all(path.stat().st_size < 700 for path in folder.rglob("*") if path.is_file())
    written = next(part for part in str(caught.value).split() if "." in part)
    assert not list(folder.rglob(written))


# --- attnscope check


def test_check_says_what_is_damaged_and_what_is_missing(copied, call):
    code, out, _ = call("check", copied)
    assert code == 0
    assert "complete, and as it was written" in out
    before = tree(copied)
    units = sorted((copied / "units").iterdir())
    table = copied / "tables" / "heads.parquet"
    shutil.rmtree(units[0])
    code, out, _ = call("check", copied, "--json")
    answer = json.loads(out)
    assert code == 3
    assert (answer["stored"], answer["planned"], answer["missing"]) == (len(units) - 1, len(units), 1)
    assert (answer["whole"], answer["complete"], answer["damaged"]) == (True, False, [])
    code, out, _ = call("check", copied, "--plan")
    assert code == 3
    assert f"would run: {units[0].name} " in out
    data = bytearray(table.read_bytes())
    data[len(data) // 2] ^= 1
    table.write_bytes(data)
    (units[1] / "more.txt").write_text("", "utf-8")
    code, out, _ = call("check", copied)
    assert code == 1
    assert "tables/heads.parquet: not as it was written" in out
    assert f"units/{units[1].name}: more.txt is not listed" in out
    assert f"attnscope resume {copied}" in out
    assert call("check", copied / "tables")[0] == 1
    assert {name for name in tree(copied) if name in before} == {
        name for name in before if name.parts[:2] != ("units", units[0].name)
    }, "nothing is changed"


def test_check_of_saved_results_misses_no_units(copied, call, tmp_path):
    asc.load(copied).save(tmp_path / "saved")
    asc.Results({"heads": asc.load(copied)["heads"]}).save(tmp_path / "of_a_table")
    for name in ("saved", "of_a_table"):
        code, out, _ = call("check", tmp_path / name)
        assert code == 0, out
        assert "complete, and as it was written" in out
        assert "missing" not in out.replace("study.yaml is missing", "")
    table = tmp_path / "saved/tables/heads.parquet"
    table.write_bytes(table.read_bytes()[:-1] + b"x")
    code, out, _ = call("check", tmp_path / "saved")
    assert code == 1
    assert "resume" not in out
    with pytest.raises(ResultsError, match=r"not as it was written \(its SHA-256 differs\)$"):
        asc.load(tmp_path / "saved").table("heads")
    facts = json.loads((copied / "provenance.json").read_text("utf-8"))
    (copied / "provenance.json").write_text(json.dumps({**facts, "state": "interrupted"}), "utf-8")
    asc.load(copied).save(tmp_path / "of_a_part")
    assert call("check", tmp_path / "of_a_part")[0] == 3


def test_check_names_code_that_a_study_wants_run_and_does_not_run_it(copied, call, tmp_path):
    text = yaml.safe_load((copied / "study.yaml").read_text("utf-8"))
    text["models"][0]["trust_remote_code"] = True
    (copied / "study.yaml").write_text(yaml.safe_dump(text), "utf-8")
    code, out, _ = call("check", copied)
    assert code == 0
    assert "study.yaml wants code to be run that comes with a model" in out


# --- messages that nobody reads


def test_a_message_that_cannot_be_written_does_not_stop_a_run(tmp_path, llama, texts, monkeypatch):
    class Full:
        encoding = "utf-8"

        def write(self, text):
            raise OSError(28, "No space left on device")

        def flush(self):
            raise OSError(28, "No space left on device")

        def isatty(self):
            return False

    monkeypatch.setattr("sys.stderr", Full())
    lines = [*texts.read_text("utf-8").splitlines(), "the"]
    texts.write_text("\n".join(lines) + "\n", "utf-8")
    results = run(study(tmp_path, str(llama), {"path": str(texts), "samples": 99}, metrics=["fiedler_value"]))
    assert results.provenance["notes"]
    with FolderLock(tmp_path / "runs" / "a"):
        pass


@pytest.mark.parametrize("command", ["report", "figures", "tables", "resume", "compare"])
def test_a_run_of_a_later_version_is_refused_by_its_name(copied, call, command):
    """It was read as one of this version, in which its columns may mean other things."""
    facts = json.loads((copied / "provenance.json").read_text("utf-8"))
    (copied / "provenance.json").write_text(json.dumps({**facts, "attnscope": "1000.2.0"}), "utf-8")
    before = tree(copied)
    code, out, err = call(command, copied, *[copied] * (command == "compare"))
    assert (code in (1, 2), out, "1000.2.0" in err) == (True, "", True)
    assert tree(copied) == before
    assert "written by attnscope 1000.2.0" in call("check", copied)[1]
    (copied / "provenance.json").write_text(json.dumps({**facts, "attnscope": "0.0.9"}), "utf-8")
    assert call("tables", copied)[0] == 0


@pytest.mark.parametrize("command", ["report", "figures", "compare"])
def test_a_table_of_a_later_version_than_its_study_is_refused(copied, call, command):
    stored = pq.read_table(copied / "tables" / "heads.parquet")
    facts = json.loads(stored.schema.metadata[b"attnscope_table"])
    metadata = {**stored.schema.metadata, b"attnscope_table": json.dumps({**facts, "version": 99})}
    pq.write_table(stored.replace_schema_metadata(metadata), copied / "tables" / "heads.parquet")
    provenance = json.loads((copied / "provenance.json").read_text("utf-8"))
    del provenance["tables"]
    (copied / "provenance.json").write_text(json.dumps(provenance), "utf-8")
    published = ("--published", "ruscio2025") if command == "compare" else ()
    code, _, err = call(command, copied, *published)
    assert (code, "table 'heads' is of version 99, and the study" in err) == (1, True)
