# SPDX-License-Identifier: MIT
"""The folder of a run: who may write into it, what it says of itself, what blocks it and what does not."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoTokenizer

import attnscope as asc
from attnscope.engine.engine import Engine
from attnscope.engine.executors.shards import gather, run_shard
from attnscope.engine.provenance import _own_git_state
from attnscope.engine.run_study import resume, run
from attnscope.errors import ConfigError, FolderLocked, ResultsError
from attnscope.results.folder_lock import FolderLock
from attnscope.results.results import load
from attnscope.results.store import Store
from attnscope.study_api.unfinished import unfinished
from folders import sentences, study


def test_an_existing_folder_is_refused_with_the_way_on(tmp_path, llama, texts):
    settings = study(tmp_path, str(llama), str(texts))
    run(settings)
    with pytest.raises(FileExistsError, match=r"holds this very study: attnscope resume .*runs/a"):
        run(settings)
    with pytest.raises(FileExistsError, match=r"another study \(block: 3 there, 2 here\)"):
        run(settings, block=2)
    other = tmp_path / "runs" / "b"
    other.mkdir()
    (other / "thesis.tex").write_text("mine", "utf-8")
    with pytest.raises(FileExistsError, match="is no run folder"):
        run(settings, name="b")
    assert [path.name for path in other.iterdir()] == ["thesis.tex"]
    again = resume(tmp_path / "runs" / "a")
    assert again.provenance["units"]["done_by_this_process"] == 0


def test_a_study_that_may_exist_is_given_gone_on_with_or_refused(tmp_path, llama, texts, monkeypatch):
    settings = study(tmp_path, str(llama), str(texts))
    first = run(settings, exist_ok=True)
    units = sorted(first.path.glob("units/*/unit.json"))
    times = [unit.stat().st_mtime_ns for unit in units]
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "work", lambda *_: pytest.fail("a finished study is computed again"))
        again = run(settings, exist_ok=True)
    assert again["heads"].equals(first["heads"])
    with pytest.raises(FileExistsError, match=r"another study \(block: 3 there, 2 here\)"):
        run(settings, block=2, exist_ok=True)
    shutil.rmtree(units[0].parent)
    facts = json.loads((first.path / "provenance.json").read_text("utf-8"))
    (first.path / "provenance.json").write_text(json.dumps({**facts, "state": "interrupted"}), "utf-8")
    resumed = run(settings, exist_ok=True)
    assert resumed.provenance["units"]["done_by_this_process"] == 1
    assert resumed["heads"].equals(first["heads"])
    assert [unit.stat().st_mtime_ns for unit in units[1:]] == times[1:]


def test_the_home_folder_in_a_study_is_that_of_the_user(tmp_path, llama, texts, monkeypatch):
    """`output: ~/runs` made a folder called "~" where the process was."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    settings = study(tmp_path, llama, texts).model_copy(update={"output": "~/runs"})
    assert run(settings).path == tmp_path / "home" / "runs" / "a"
    assert run_shard(settings.model_copy(update={"name": "b"}), "1/1").run == tmp_path / "home/runs/b"
    assert gather([tmp_path / "home/runs/b/parts/1-of-1"]).path == tmp_path / "home/runs/b"
    assert not (tmp_path / "~").exists()


def test_one_folder_one_writer(tmp_path, llama, texts):
    results = run(study(tmp_path, str(llama), str(texts)))
    with FolderLock(results.path), pytest.raises(FolderLocked, match="in use by process"):
        resume(results.path)


def test_changed_texts_are_not_mixed_with_the_old(tmp_path, llama, texts):
    results = run(study(tmp_path, str(llama), str(texts)))
    sentences(texts, 8)
    with pytest.raises(ConfigError, match="the texts or the weights have changed"):
        resume(results.path)


@pytest.mark.parametrize("key", ["attnscope", "torch", "transformers"])
def test_numbers_of_two_versions_are_not_mixed(tmp_path, llama, texts, key):
    folder = run(study(tmp_path, llama, texts)).path
    file = folder / "provenance.json"
    facts = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps({**facts, key: "0.0.1"}), "utf-8")
    assert isinstance(facts[key], str)
    with pytest.raises(
        ConfigError, match=rf"was begun elsewhere: {key} is 0\.0\.1 there, {re.escape(facts[key])} here"
    ):
        resume(folder)


def test_a_finished_study_is_not_given_for_other_texts(tmp_path, llama, texts):
    settings = study(tmp_path, str(llama), str(texts))
    first = run(settings, exist_ok=True)
    content = texts.read_bytes()
    texts.write_bytes(b"a cat sat again\n" + content)
    with pytest.raises(ConfigError, match="the texts or the weights have changed since the run began"):
        run(settings, exist_ok=True)
    texts.write_bytes(content)
    assert run(settings, exist_ok=True)["heads"].equals(first["heads"])
    file = first.path / "provenance.json"
    facts = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps({**facts, "attnscope": "0.0.1", "torch": "0.0.1", "plan": "of it"}), "utf-8")
    assert run(settings, exist_ok=True)["heads"].equals(first["heads"]), "results of an older version stand"
    file.write_text(json.dumps(facts), "utf-8")
    texts.unlink()
    assert run(settings, exist_ok=True)["heads"].equals(first["heads"])


def test_a_run_that_ends_among_its_tables_is_read_from_its_units(tmp_path, llama, texts, monkeypatch):
    """The tables that were written passed for all of it: a report had the first three of ten."""
    finished = run(study(tmp_path, llama, texts))
    settings = study(tmp_path, llama, texts).model_copy(update={"name": "b"})
    written = []

    def gather(store, units, table, path):
        if len(written) == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        written.append(table)
        gather_table(store, units, table, path)

    gather_table = Store.gather
    monkeypatch.setattr(Store, "gather", gather)
    with pytest.raises(OSError, match="Input/output error"):
        run(settings)
    monkeypatch.undo()
    stopped = load(tmp_path / "runs" / "b")
    assert [file.stem for file in sorted(stopped.path.glob("tables/*"))] == written
    assert stopped.provenance["state"] == "interrupted"
    assert stopped.tables() == finished.tables()
    assert stopped["heads"].equals(finished["heads"])
    assert "this run is not finished" in unfinished(stopped)
    for table in stopped.path.glob("tables/*"):
        table.write_bytes((finished.path / "tables" / "heads.parquet").read_bytes())  # of before
    assert load(stopped.path)[written[0]].equals(finished[written[0]])
    resume(stopped.path)
    assert unfinished(load(stopped.path)) == ""
    assert load(stopped.path)["heads"].equals(finished["heads"])


def test_provenance_says_what_made_the_numbers(tmp_path, llama, texts):
    facts = run(study(tmp_path, str(llama), str(texts), seed=3)).provenance
    assert facts["state"] == "finished"
    assert facts["seed"] == 3
    assert facts["models"]["tiny"]["architecture"] == "LlamaForCausalLM"
    assert facts["models"]["tiny"]["dtype"] == "float32"
    assert facts["models"]["tiny"]["revision"] == ""
    kind, _, size = facts["models"]["tiny"]["tokenizer"].partition(", ")
    assert kind == type(AutoTokenizer.from_pretrained(llama)).__name__
    assert size == f"{len(AutoTokenizer.from_pretrained(llama))} tokens"
    assert facts["packages"]["torch"] == torch.__version__
    assert set(facts) >= {"attnscope", "config_hash", "cpu", "threads", "blas", "git", "python", "plan"}
    assert facts["git_attnscope"] == _own_git_state(Path(asc.__file__))
    stored = pq.read_schema(tmp_path / "runs" / "a" / "tables" / "heads.parquet")
    assert json.loads(stored.metadata[b"attnscope_table"])["keys"][:3] == ["model", "revision", "step"]
    assert not list((tmp_path / "runs" / "a").rglob("*.tmp"))
    assert not (tmp_path / "runs" / "a" / ".owner").exists()


def test_a_process_killed_before_its_first_file_blocks_nothing(tmp_path, llama, texts):
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    (folder / ".lock").write_text("")
    (folder / ".study.yaml.17.tmp").write_text("models:")
    results = run(study(tmp_path, str(llama), str(texts), metrics=["fiedler_value"]))
    assert len(results.table("heads")) == 7 * 2 * 4
    assert [path.name for path in folder.glob(".*")] == [".lock"]
    other = tmp_path / "runs" / "b"
    other.mkdir()
    (other / "thesis.tex").write_text("")
    with pytest.raises(FileExistsError, match="is no run folder"):
        run(study(tmp_path, str(llama), str(texts)), name="b")


@pytest.mark.parametrize(
    "error",
    [
        *(MemoryError("fiedler_value: 5 GB"), torch.OutOfMemoryError("CUDA out of memory")),
        *(
            ZeroDivisionError(),
            KeyboardInterrupt(),
            OSError(errno.ENOSPC, "No space left on device", "heads"),
        ),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_run_that_an_error_ends_is_not_called_running(tmp_path, call, llama, texts, monkeypatch, error):
    def work(engine, unit, compute=Engine.work):
        if unit is engine.plan.units[1]:
            raise error
        return compute(engine, unit)

    settings = study(tmp_path, llama, texts)
    (tmp_path / "study.yaml").write_text(settings.to_yaml(), "utf-8")
    with monkeypatch.context() as patch:
        patch.setattr(Engine, "work", work)
        if not isinstance(error, (MemoryError, torch.OutOfMemoryError)):
            with pytest.raises(type(error)):
                run(settings)
        else:
            code, _, err = call("run", tmp_path / "study.yaml", "--no-draw", "-q")
            assert (code, f"attnscope: error: memory ran out: {error};" in err) == (1, True)
    folder = tmp_path / "runs" / "a"
    facts = json.loads((folder / "provenance.json").read_text("utf-8"))
    assert (facts["state"], facts["units"]["stored"]) == ("interrupted", 1)
    assert resume(folder).provenance["units"]["stored"] == facts["units"]["planned"]


@pytest.mark.slow
def test_a_finished_run_on_a_disk_that_is_read_only_is_read(tmp_path, llama, texts):
    settings = study(tmp_path, llama, texts, metrics=["fiedler_value"])
    folder = run(settings).path
    read_only = f"mount --bind {folder} {folder} && mount -o remount,bind,ro {folder} && "
    in_namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*in_namespace, f"{read_only} true"], check=False, capture_output=True).returncode:
        pytest.skip("a folder cannot be mounted read-only here")
    # drawing ended in an error of the disk after all figures were drawn
    for arguments in ("resume {} --no-draw -q", "resume {} -q", "report {} -o {}.html"):
        words = arguments.replace("{}", str(folder))
        command = f"{read_only} {sys.executable} -m attnscope {words}"
        done = subprocess.run([*in_namespace, command], check=False, capture_output=True, text=True)
        assert (done.returncode, "Read-only" in done.stderr) == (0, False), (words, done.stderr)
        assert ("no figures and no report in" in done.stderr) == (arguments == "resume {} -q")
    facts = json.loads((folder / "provenance.json").read_text("utf-8"))
    (folder / "provenance.json").write_text(json.dumps({**facts, "state": "interrupted"}), "utf-8")
    command = f"{read_only} {sys.executable} -m attnscope resume {folder} -q"
    done = subprocess.run([*in_namespace, command], check=False, capture_output=True, text=True)
    assert (done.returncode, "Read-only file system" in done.stderr) == (1, True)


def test_a_folder_that_arrow_cannot_name_is_refused_before_anything_is_measured(
    tmp_path, llama, texts, monkeypatch
):
    """Units were measured, and what gathers them ended in Python's own error."""
    home = tmp_path / os.fsdecode(b"\xff")
    home.mkdir()
    monkeypatch.chdir(home)
    with pytest.raises(ConfigError, match=r"path of the run folder holds half of a surr"):
        run(study(tmp_path, llama, texts), output="runs")
    assert not list(home.iterdir())
    with pytest.raises(ResultsError, match=r"load: the path holds half of a surrogate pair, got .*\\udcff"):
        asc.load(home)


def test_another_study_in_the_folder_is_refused_key_by_key(tmp_path, llama, texts):
    source = {"path": str(texts), "samples": 2}
    run(study(tmp_path, str(llama), source))
    words = r"\(texts\[0\]\.samples: 2 there, 3 here; seed: 0 there, 8 here\)"
    with pytest.raises(FileExistsError, match=words):
        run(study(tmp_path, str(llama), {**source, "samples": 3}, seed=8))


def test_the_state_of_the_package_is_that_of_the_repository_that_tracks_it(tmp_path):
    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    package, installed = tmp_path / "package.py", tmp_path / "venv" / "package.py"
    installed.parent.mkdir()
    for file in (package, installed):
        file.write_text("", "utf-8")
    assert _own_git_state(package) is None
    git("init")
    git("add", "package.py")
    git("commit", "-m", "first")
    state = _own_git_state(package)
    assert (len(state["commit"]), state["changed"]) == (40, True)
    assert _own_git_state(installed) is None
