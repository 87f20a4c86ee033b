# SPDX-License-Identifier: MIT
"""Shards do every unit once, in any order, and gather into the tables of one process."""

import errno
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest
import yaml
from foreign import NAMES, settings

from attnscope.config.run_config import RunConfig
from attnscope.engine import model_cache as held
from attnscope.engine.engine import Engine
from attnscope.engine.executors.shards import Shard, assign_units, gather, rounds, run_shard, shard_folders
from attnscope.engine.executors.slurm import slurm_script
from attnscope.engine.planning import make_plan
from attnscope.engine.run_study import resume, run
from attnscope.errors import ConfigError, FolderLocked, ResultsError
from attnscope.models import LoadError
from attnscope.results.folder_lock import FolderLock
from attnscope.study_api.study import study_class
from folders import sentences, table_bytes

STUDY = "token_likelihood"


def done(settings_of_run, of, numbers=None, **options):
    """Shards of a study, the last first, as often as its stages need."""
    plan = make_plan(settings_of_run)
    for _ in range(rounds(plan)):
        for number in numbers or range(of, 0, -1):
            last = run_shard(
                settings_of_run, Shard(number, of), progress=False, say=lambda text: None, **options
            )
    assert numbers is not None or last.left == 0
    return last


@pytest.fixture(scope="module")
def finished(inputs, tmp_path_factory):
    """Finished shards of the study, done once for each number of them."""
    folders = {}

    def of(number):
        if number not in folders:
            folders[number] = done(settings(STUDY, inputs, tmp_path_factory.mktemp("runs")), number).run
        return folders[number]

    return of


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of finished shards, in the folder `runs/a`."""
    return lambda number: shutil.copytree(finished(number), tmp_path / "runs/a")


@pytest.mark.parametrize("name", NAMES)
def test_every_unit_is_in_one_share(inputs, tmp_path, name):
    plan = make_plan(settings(name, inputs, tmp_path))
    for of in (1, 2, 3, 5, 40):
        shares = assign_units(plan, of)
        assert len(shares) == of
        assert sorted(unit for share in shares for unit in share) == sorted(unit.id for unit in plan.units), (
            of
        )


def test_a_share_holds_whole_checkpoints_where_it_can_and_divides_long_ones(inputs, tmp_path):
    settings_of_run = settings("moved_positions", inputs, tmp_path)
    plan = make_plan(settings_of_run)

    def loads(of):
        place = {unit.id: unit.checkpoint for unit in plan.units}
        return [len({place[unit] for unit in share}) for share in assign_units(plan, of)]

    assert loads(3) == [1, 1, 1]
    assert sum(loads(6)) == 6
    plan_of_step = make_plan(settings("moved_positions", (inputs[0] / "step2", inputs[1]), tmp_path))
    texts = [
        sum(unit.tokens for unit in plan_of_step.units if unit.id in share)
        for share in assign_units(plan_of_step, 3)
    ]
    assert all(texts), "blocks of one checkpoint go to all shards"
    assert max(texts) < 2 * min(texts)


def test_units_that_read_each_other_stay_together(inputs, tmp_path):
    plan = make_plan(settings("state_clouds", inputs, tmp_path))
    for share in assign_units(plan, 5):
        units_of_share = [unit for unit in plan.units if unit.id in share]
        for unit in units_of_share:
            assert {source.id for source in plan.reads(unit)} <= share


def test_shards_gather_into_the_tables_of_one_process(copied, uninterrupted):
    run_folder = copied(3)
    assert [part.name for part in shard_folders([run_folder])] == ["1-of-3", "2-of-3", "3-of-3"]
    results = gather([run_folder], progress=False)
    assert table_bytes(results.path) == table_bytes(uninterrupted(STUDY))
    facts = results.provenance
    assert facts["state"] == "finished"
    assert facts["machines"][socket.gethostname()]["units"] == facts["units"]["planned"]
    for unit in (results.path / "units").glob("0*"):
        assert json.loads((unit / "unit.json").read_text("utf-8"))["machine"] == socket.gethostname()
    again = gather([run_folder], progress=False)
    assert again.provenance["units"]["done_by_this_process"] == 0


@pytest.mark.slow
def test_other_folders_beside_shards_are_none(tmp_path):
    for name in ("10-of-12", "2-of-12", "2-of-12-old", "notes-of-june"):
        (tmp_path / "parts" / name).mkdir(parents=True)
    shards = shard_folders([tmp_path], with_study=False)
    assert [part.name for part in shards] == ["2-of-12", "10-of-12"]


@pytest.mark.parametrize("of", [2, 4])
@pytest.mark.parametrize("name", ["moved_positions", "state_clouds", "weight_changes"])
def test_every_kind_of_stage_goes_into_shards(inputs, uninterrupted, tmp_path, name, of):
    last = done(settings(name, inputs, tmp_path / "runs"), of)
    assert table_bytes(gather([last.run], progress=False).path) == table_bytes(uninterrupted(name))


@pytest.mark.slow
def test_shards_of_folders_elsewhere_are_gathered_into_a_new_one(inputs, uninterrupted, tmp_path):
    last = done(settings(STUDY, inputs, tmp_path / "runs"), 2)
    places = []
    for part in shard_folders([last.run]):
        places.append(tmp_path / "elsewhere" / part.name)
        shutil.copytree(part, places[-1])
    shutil.rmtree(last.run)
    results = gather(places, into=tmp_path / "whole", progress=False)
    assert results.path == tmp_path / "whole"
    assert table_bytes(results.path) == table_bytes(uninterrupted(STUDY))


@pytest.mark.slow
def test_what_one_process_began_shards_go_on_with_and_the_other_way_round(
    inputs, uninterrupted, tmp_path, messages
):
    settings_of_run = settings(STUDY, inputs, tmp_path / "runs")
    local = run(settings_of_run, progress=False)
    lost = sorted((local.path / "units").iterdir())[2:6]
    for unit in lost:
        shutil.rmtree(unit)
    shutil.rmtree(local.path / "tables")
    parts = done(settings_of_run, 2)
    units_of_shards = [unit for part in shard_folders([parts.run]) for unit in (part / "units").iterdir()]
    assert {unit.name for unit in units_of_shards} == {unit.name for unit in lost}
    again = resume(local.path, progress=False, say=messages.append)
    assert again.provenance["units"]["done_by_this_process"] == 0
    assert table_bytes(local.path) == table_bytes(uninterrupted(STUDY))
    started = settings(STUDY, inputs, tmp_path / "other")
    done(started, 2, numbers=[2])
    assert table_bytes(resume(tmp_path / "other" / "a", progress=False).path) == table_bytes(
        uninterrupted(STUDY)
    )


@pytest.mark.parametrize("text", ["0/4", "5/4", "1", "a/b", "1/0", "-1/4", ""])
def test_a_shard_that_is_none(text):
    with pytest.raises(ConfigError, match=f"expected i/n with i from 1 to n, such as 2/8, got '{text}'"):
        Shard.parse(text)


def test_missing_units_are_named_and_those_there_are_kept(inputs, copied, uninterrupted, tmp_path):
    settings_of_run = settings(STUDY, inputs, tmp_path / "runs")
    copied(3)
    shutil.rmtree(tmp_path / "runs/a/parts/2-of-3")
    with pytest.raises(
        ResultsError, match=r"5 of 19 units are in no shard: 000008-.* \(growing step10\);.*attnscope resume "
    ):
        gather([tmp_path / "runs/a"], progress=False)
    assert any((tmp_path / "runs/a/units").iterdir())
    done(settings_of_run, 3, numbers=[2])
    assert table_bytes(gather([tmp_path / "runs/a"], progress=False).path) == table_bytes(
        uninterrupted(STUDY)
    )


@pytest.mark.slow
def test_a_damaged_unit_of_a_shard_counts_as_missing(inputs, tmp_path, messages):
    last = done(settings(STUDY, inputs, tmp_path / "runs"), 1)
    unit = sorted((last.folder / "units").iterdir())[1]
    (unit / "tokens.parquet").write_bytes(b"nothing")
    with pytest.raises(ResultsError, match=rf"1 of \d+ units are in no shard: {unit.name}"):
        gather([last.run], progress=False, say=messages.append)
    assert any("is damaged: its unit counts as missing" in line for line in messages)


def test_a_unit_in_two_shards_is_refused(copied):
    run_folder = copied(2)
    first, second = shard_folders([run_folder])
    unit = sorted((first / "units").iterdir())[0]
    shutil.copytree(unit, second / "units" / unit.name)
    with pytest.raises(ConfigError, match=rf"unit {unit.name} \(growing step0\) is in two shards"):
        gather([run_folder], progress=False)


@pytest.mark.slow
def test_shards_of_different_studies_and_plans_are_refused(inputs, tmp_path):
    texts = sentences(tmp_path / "texts.txt", 5, shortest=5)
    settings_of_run = settings(STUDY, (inputs[0], texts), tmp_path / "runs")
    done(settings_of_run, 2, numbers=[1])
    done(settings(STUDY, (inputs[0], texts), tmp_path / "other", draws=7), 2, numbers=[2])
    places = [tmp_path / "runs/a/parts/1-of-2", tmp_path / "other/a/parts/2-of-2"]
    with pytest.raises(ConfigError, match=r"another study than .*1-of-2: options\.draws: 7 there, 50 here"):
        gather(places, progress=False)
    sentences(texts, 6, shortest=5)
    with pytest.raises(ConfigError, match="1-of-2 is of another plan"):
        gather([tmp_path / "runs/a"], progress=False)
    with pytest.raises(ConfigError, match="the texts or the weights have changed"):
        done(settings_of_run, 2, numbers=[1])


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("attnscope", "0.0.1", "attnscope is 0.0.1 there"),
        (
            "instructions",
            {"core": "old", "torch": "AVX"},
            "the instruction set is core old with torch AVX there",
        ),
    ],
)
def test_a_shard_of_another_version_or_instruction_set_is_refused_by_name(
    inputs, copied, tmp_path, key, value, words
):
    run_folder = copied(1)
    file = run_folder / "parts/1-of-1/provenance.json"
    facts = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps({**facts, key: value}), "utf-8")
    with pytest.raises(ConfigError, match=rf"1-of-1: {words}.*numbers of both"):
        gather([run_folder], progress=False)
    with pytest.raises(ConfigError, match=words):
        run_shard(settings(STUDY, inputs, tmp_path / "runs"), "1/1", progress=False)


def on_a_gpu(*shards):
    """Write into the provenance of shards that their models were on a GPU."""
    for shard in shards:
        file = shard / "provenance.json"
        facts = json.loads(file.read_text("utf-8"))
        models = {title: {**model, "device": "cuda:0"} for title, model in facts["models"].items()}
        file.write_text(json.dumps({**facts, "models": models}), "utf-8")


def test_shards_of_two_kinds_of_device_are_refused(copied):
    run_folder = copied(2)
    on_a_gpu(run_folder / "parts/2-of-2")
    with pytest.raises(ConfigError, match=r"this run has measured growing step\d+ on cpu, .*numbers of both"):
        gather([run_folder], progress=False)


def test_the_bar_of_a_shard_counts_what_all_have_stored(inputs, tmp_path):
    settings_of_run = settings("moved_positions", inputs, tmp_path / "runs")
    done(settings_of_run, 3, numbers=[2])
    seen = []

    class Bar:
        n = 0

        def __init__(self, total, label, initial=0, **options):
            self.n, self.total = initial, total

        def update(self, count):
            self.n += count
            seen.append((self.n, self.total))

        def set_postfix_str(self, text):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Engine, "bar", lambda self, *args, **options: Bar(*args, **options))
        done(settings_of_run, 3, numbers=[1])
    assert [pair for pair in seen if pair[1] == 9] == [(4, 9), (5, 9), (6, 9)]


def test_one_writer_for_a_shard_and_none_while_it_is_gathered(inputs, copied, tmp_path):
    settings_of_run = settings(STUDY, inputs, tmp_path / "runs")
    run_folder = copied(1)
    part = run_folder / "parts/1-of-1"
    by = f"in use by process {os.getpid()} on {socket.gethostname()}"
    with FolderLock(part):
        with pytest.raises(FolderLocked, match=by):
            run_shard(settings_of_run, "1/1", progress=False)
        with pytest.raises(FolderLocked, match=by):
            gather([run_folder], progress=False)
    with FolderLock(run_folder), pytest.raises(FolderLocked, match=by):
        gather([run_folder], progress=False)


def test_a_disk_without_locks_is_refused(tmp_path, monkeypatch):
    import fcntl

    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(FolderLocked, match=r"lies on a disk without file locks .*choose another --output"):
        FolderLock(tmp_path).__enter__()


@contextmanager
def without_memory_for_step_2(monkeypatch):
    """Let the checkpoint of step 2 fail to load inside the block."""
    load = held.load_model

    def load_with_little_memory(checkpoint, **options):
        if checkpoint.step == 2:
            raise LoadError(f"{checkpoint.title}: not enough memory")
        return load(checkpoint, **options)

    with monkeypatch.context() as patched:
        patched.setattr(held, "load_model", load_with_little_memory)
        yield


def test_a_checkpoint_that_a_shard_cannot_load_is_tried_by_the_gathering(
    inputs, uninterrupted, tmp_path, monkeypatch
):
    settings_of_run = settings(STUDY, inputs, tmp_path / "runs")
    with without_memory_for_step_2(monkeypatch):
        last = done(settings_of_run, 2)
        assert ("growing step2", "not enough memory") in last.skipped
    shutil.copytree(last.run, tmp_path / "copy")
    on_a_gpu(*(tmp_path / "copy" / "parts").iterdir())
    elsewhere = gather([tmp_path / "copy"], progress=False)
    assert [entry["checkpoint"] for entry in elsewhere.provenance["skipped"]] == ["growing step2"]
    assert re.search(r"on cuda, and the device here is cpu", elsewhere.provenance["skipped"][0]["reason"])
    assert table_bytes(gather([last.run], progress=False).path) == table_bytes(uninterrupted(STUDY))


def test_what_a_shard_made_without_a_checkpoint_is_made_again_where_the_gathering_loads_it(
    inputs, tmp_path, monkeypatch
):
    """Units of other checkpoints that read the run kept their numbers of before, without a word."""
    study = study_class(STUDY)
    stages = study.stages

    def over_the_run(self, units):
        return [
            replace(stage, within="run") if stage.name == "ranks" else stage for stage in stages(self, units)
        ]

    monkeypatch.setattr(study, "stages", over_the_run)
    with without_memory_for_step_2(monkeypatch):
        last = done(settings(STUDY, inputs, tmp_path / "runs"), 1)
        assert len(list(last.run.glob("parts/*/units/*-*/ranks.parquet"))) == 2
    of_one_process = run(settings(STUDY, inputs, tmp_path / "one"), progress=False)
    assert table_bytes(gather([last.run], progress=False).path) == table_bytes(of_one_process.path)


@pytest.mark.slow
def test_a_checkpoint_that_nobody_can_load_is_skipped_as_in_one_process(inputs, tmp_path):
    home = tmp_path / "growing"
    shutil.copytree(inputs[0], home)
    file = home / "step2" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    local = run(settings(STUDY, (home, inputs[1]), tmp_path / "one"), progress=False)
    last = done(settings(STUDY, (home, inputs[1]), tmp_path / "runs"), 2)
    results = gather([last.run], progress=False)
    assert table_bytes(results.path) == table_bytes(local.path)
    assert results.provenance["skipped"] == local.provenance["skipped"]
    assert [entry["checkpoint"] for entry in local.provenance["skipped"]] == ["growing step2"]


def test_folders_that_are_no_shards(inputs, tmp_path):
    with pytest.raises(FileNotFoundError, match="gather: there is no shard in"):
        gather([tmp_path])
    last = done(settings(STUDY, inputs, tmp_path / "runs"), 2, numbers=[1])
    with pytest.raises(FileExistsError, match="holds shards of a run: attnscope gather"):
        run(settings(STUDY, inputs, tmp_path / "runs"), progress=False)
    with pytest.raises(ConfigError, match=r"is shard 1/2 of .*start that shard again"):
        resume(last.folder)
    with pytest.raises(FileExistsError, match="another study"):
        run_shard(settings(STUDY, inputs, tmp_path / "runs", draws=9), "1/2", progress=False)


def test_files_are_removed_for_nobody_else(inputs, tmp_path):
    fields = settings(STUDY, inputs, tmp_path).to_dict()
    fields["models"][0]["free_disk"] = True
    with pytest.raises(ConfigError, match=r"models\[0\]\.free_disk: other workers may still read"):
        run_shard(type(settings(STUDY, inputs, tmp_path))(**fields), "1/2")


@pytest.mark.slow
def test_a_hundred_thousand_units_are_planned_in_ten_seconds_and_500_megabytes(inputs, tmp_path):
    """Processor time, which other people's load does not count into."""
    home = tmp_path / "many"
    home.mkdir()
    for step in range(100):
        (home / f"step{step}").symlink_to(inputs[0] / "step2")
    (tmp_path / "texts.txt").write_text("".join(f"the cat sat {number}\n" for number in range(1000)), "utf-8")
    fields = settings("moved_positions", (home, tmp_path / "texts.txt"), tmp_path).to_dict() | {"block": 1}
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    plan = make_plan(type(settings(STUDY, inputs, tmp_path))(**fields))
    assert time.process_time() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500 * 1024
    assert len(plan.units) == 100_000
    began = time.process_time()
    shares = assign_units(plan, 100)
    assert {len(share) for share in shares} == {1000}
    assert time.process_time() - began < 10


def test_the_slurm_script_names_study_shards_and_memory(inputs, tmp_path):
    file = tmp_path / "study of mine.yaml"
    file.write_text(settings(STUDY, inputs, tmp_path / "runs").to_yaml(), "utf-8")
    text = slurm_script(str(file), 8, overrides=["workers.cpus=3", "workers.gpus=1"], time="01:00:00")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    for line in ("--array=1-8", "--cpus-per-task=3", "--gpus-per-task=1", "--time=01:00:00"):
        assert f"#SBATCH {line}\n" in text
    assert f"'{file}'" in text
    assert f"gather {tmp_path / 'runs/a'}" in text
    with pytest.raises(ConfigError, match="at least one shard"):
        slurm_script(str(file), 0)
    with pytest.raises(ConfigError, match="--array: expected at most 1,000,000 shards, got 1000001"):
        slurm_script(str(file), 1_000_001)
    with pytest.raises(ConfigError, match="neither a file nor a study"):
        slurm_script("nope", 2)


HOSTILE = [
    "a b",
    "a;touch PWNED",
    "$(touch PWNED)",
    "`touch PWNED`",
    "a'b\"c",
    "% %A {x} {0}",
    "#SBATCH --mem=1",
    "-x",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_becomes_a_line_of_the_slurm_script(inputs, tmp_path, name):
    """The script runs with a `sbatch` that does nothing; what it would submit has the same options."""
    fields = settings(STUDY, inputs, tmp_path / f"runs {name}").to_dict()
    settings_of_run = RunConfig(**{**fields, "name": ""})
    settings_of_run = settings_of_run.model_copy(
        update={"models": [settings_of_run.models[0].model_copy(update={"label": name})]}
    )
    file = tmp_path / f"{name}.yaml"
    file.write_text(settings_of_run.to_yaml(), "utf-8")
    text = slurm_script(str(file), 2, time="2-12:30:00")
    options = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert len(options) == 8
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=[A-Za-z0-9._:@%-]+)?", line) for line in options), options
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 1\n", "utf-8")
    (tmp_path / "sbatch").chmod(0o755)
    script = tmp_path / "sweep.sh"
    script.write_text(text, "utf-8")
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run(["bash", str(script)], cwd=tmp_path, env={"PATH": path}, check=True)
    assert not list(tmp_path.rglob("PWNED*"))


@pytest.mark.parametrize(
    "name", ["m\ntouch PWNED", "m\ttouch PWNED\n#", "m\rtouch PWNED", "m\u2028x", "m\0x"]
)
def test_names_with_line_breaks_never_come_to_a_slurm_script(inputs, tmp_path, name):
    values = settings(STUDY, inputs, tmp_path / "runs").to_dict()
    for changes in ({"name": name}, {"models": [{**values["models"][0], "label": name}]}):
        file = tmp_path / "study.yaml"
        file.write_text(yaml.safe_dump({**values, **changes}, allow_unicode=True), "utf-8")
        with pytest.raises(ConfigError, match=r"holds the character U\+"):
            slurm_script(str(file), 2)


@pytest.mark.parametrize(
    "time", ["1\n#SBATCH --mem=1", "24:00:00\n", "", "1 day", "1;ls", "1:2:3:4", "٣", "1-"]
)
def test_a_time_that_is_none_is_refused(inputs, tmp_path, time):
    file = tmp_path / "study.yaml"
    file.write_text(settings(STUDY, inputs, tmp_path / "runs").to_yaml(), "utf-8")
    with pytest.raises(ConfigError, match="--time: expected a limit such as 24:00:00"):
        slurm_script(str(file), 2, time=time)


def test_the_slurm_script_works_in_its_own_folder_and_asks_for_whole_gpus(inputs, tmp_path, monkeypatch):
    """Paths of a study are relative to where the script was written; half a GPU is no number for Slurm."""
    file = tmp_path / "study.yaml"
    file.write_text(settings(STUDY, inputs, tmp_path / "runs").to_yaml(), "utf-8")
    place = tmp_path / "place of work"
    place.mkdir()
    monkeypatch.chdir(place)
    text = slurm_script(str(file), 2, overrides=["workers.gpus=0.5"])
    assert "#SBATCH --gpus-per-task=1\n" in text
    before, after = text.split(f"\ncd '{place}'\n")
    assert "sbatch --parsable" in before
    assert "exec" in after


@pytest.mark.parametrize("text", ["1/1000001", "999999999/999999999", f"1/{'9' * 5000}", "1/1000000000000"])
def test_more_shards_than_any_plan_has_are_refused(text):
    """A list for each of them took all memory, and Python reads no number of 5000 digits."""
    with pytest.raises(ConfigError, match=r"--shard: expected i/n with i from 1 to n.*, got '"):
        Shard.parse(text)
