# SPDX-License-Identifier: MIT
"""Ray clusters of two nodes on this machine: the same tables, and what may happen to a worker or a driver."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from foreign import NAMES, settings

from attnscope import _isa
from attnscope.engine.executors.cluster import Cluster
from attnscope.engine.executors.shards import gather, run_shard
from attnscope.engine.run_study import resume, run
from attnscope.errors import ConfigError, FolderLocked, UnitsFailed
from folders import table_bytes

psutil = pytest.importorskip("psutil")
ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'attnscope[ray]'")

STUDY = "token_likelihood"


def test_an_address_where_nothing_listens_is_said_at_once(inputs, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.monotonic()
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}"):
        with pytest.raises(ConfigError, match=rf"--ray {address}: no cluster answers there"):
            run(settings(STUDY, inputs, tmp_path), progress=False, executor=Cluster(address))
    assert time.monotonic() - began < 10
    assert not (tmp_path / "a").exists()


def test_an_address_where_something_else_listens(inputs, tmp_path):
    def answer(server):
        with contextlib.suppress(OSError):
            connection, _ = server.accept()
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ConfigError, match="what answers there is no Ray cluster"):
            run(settings(STUDY, inputs, tmp_path), progress=False, executor=Cluster(address))


@pytest.mark.parametrize("address", ["somewhere", "ray://somewhere", "host:port", ""])
def test_what_is_no_address(inputs, tmp_path, address):
    with pytest.raises(ConfigError, match=r"expected auto, local, HOST:PORT or ray://HOST:PORT"):
        Cluster(address).connect()


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'attnscope\[ray\]'"):
        Cluster("local").connect()


@pytest.fixture(scope="module")
def nodes(installed):
    """A cluster of two nodes with one processor each."""
    from ray.cluster_utils import Cluster as Nodes

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(installed))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        cluster = Nodes()
        cluster.add_node(num_cpus=1, include_dashboard=False)
        cluster.add_node(num_cpus=1)
        yield cluster
        cluster.shutdown()


def on(nodes):
    return Cluster(nodes.address)


def at_work():
    """Processes of workers that have a unit at hand."""
    busy = []
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            if process.info["cmdline"] and process.info["cmdline"][0] == "ray::RemoteWorker.do":
                busy.append(process)
    return busy


def units(folder):
    return [path for path in (folder / "units").glob("[!.]*-*") if (path / "unit.json").is_file()]


def until(condition, seconds=240.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_cluster_makes_the_tables_of_one_process(nodes, inputs, uninterrupted, tmp_path, name):
    results = run(settings(name, inputs, tmp_path), progress=False, executor=on(nodes))
    assert table_bytes(results.path) == table_bytes(uninterrupted(name))
    facts = results.provenance
    assert facts["state"] == "finished"
    assert facts["machines"][socket.gethostname()]["units"] == facts["units"]["planned"]
    assert not ray.is_initialized()


@pytest.mark.slow
def test_a_driver_outside_of_the_cluster(nodes, inputs, uninterrupted, tmp_path):
    pytest.importorskip("grpc", reason="ray:// needs the client of Ray: pip install 'attnscope[ray]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(
        [sys.executable, "-m", "ray.util.client.server", "--address", nodes.address, "--port", str(port)]
    )
    try:
        until(lambda: not socket.socket().connect_ex(("127.0.0.1", port)))
        settings_of_run = settings("moved_positions", inputs, tmp_path)
        results = run(settings_of_run, progress=False, executor=Cluster(f"ray://127.0.0.1:{port}"))
        assert table_bytes(results.path) == table_bytes(uninterrupted("moved_positions"))
    finally:
        server.kill()
        server.wait()


@pytest.mark.slow
def test_no_class_and_no_function_is_given_to_the_cluster(nodes, inputs, tmp_path, monkeypatch):
    from ray.experimental import internal_kv

    seen = []
    shutdown = ray.shutdown

    def look():
        for kind in (b"ActorClass", b"RemoteFunction"):
            seen.extend(internal_kv._internal_kv_list(kind, namespace=b"fun"))
        shutdown()

    monkeypatch.setattr(ray, "shutdown", look)
    run(settings("weight_changes", inputs, tmp_path), progress=False, executor=on(nodes))
    assert [key for key in seen if b"ActorClass" in key or b"RemoteFunction" in key] == []


@pytest.mark.slow
def test_a_killed_worker_costs_one_unit_each_time(nodes, inputs, tmp_path, messages):
    """Two workers are killed while they are at work, at different moments."""
    killed = []

    def kill():
        for stored in (1, 5):
            until(lambda stored=stored: len(units(tmp_path / "a")) >= stored)
            until(at_work)
            killed.append(at_work()[0].pid)
            os.kill(killed[-1], signal.SIGKILL)

    settings_of_run = settings("deadly_units", inputs, tmp_path, seconds=1.0)
    killer = threading.Thread(target=kill)
    killer.start()
    results = run(settings_of_run, progress=False, executor=on(nodes), say=messages.append)
    killer.join()
    local = run(settings("deadly_units", inputs, tmp_path, run="b"), progress=False)
    assert table_bytes(results.path) == table_bytes(local.path)
    assert results.provenance["units"]["done_by_this_process"] == 3 * 5 + 1
    lost = [line for line in messages if "died; it is done again elsewhere" in line]
    words = r"unit \d{6}-\w{12} \(growing step\d+\): the worker on \S+ \(process (\d+)\) died"
    assert [int(re.search(words, line)[1]) for line in lost] == killed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "reason"),
    [("kill", r"the worker on \S+ \(process \d+\) died"), ("raise", "RuntimeError: there is no third text")],
)
def test_a_unit_that_never_ends_well_is_reported_by_name(nodes, inputs, tmp_path, messages, order, reason):
    file = tmp_path / "order"
    file.write_text(order, "utf-8")
    settings_of_run = settings("deadly_units", (inputs[0] / "step2", inputs[1]), tmp_path, file=str(file))
    words = rf"1 of 6 units were given up.*unit 000002-.*{reason}.* at attempt 3 of 3; attnscope resume"
    with pytest.raises(UnitsFailed, match=words):
        run(settings_of_run, progress=False, executor=on(nodes), say=messages.append)
    assert sum("done again elsewhere" in line for line in messages) == 2
    facts = json.loads((tmp_path / "a" / "provenance.json").read_text("utf-8"))
    assert (facts["state"], len(facts["failed"])) == ("failed", 1)
    assert sorted(path.name[:6] for path in units(tmp_path / "a")) == ["000000", "000001", "000003", "000004"]
    file.write_text("", "utf-8")
    again = resume(tmp_path / "a", progress=False, executor=on(nodes))
    assert again.provenance["units"]["done_by_this_process"] == 2
    assert len(again.table("lengths")) == 5


def driver(folder, *arguments):
    """The command line in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "attnscope.cli.application", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
    )


@pytest.mark.slow
def test_a_killed_driver_an_interrupted_one_and_a_second_one(nodes, inputs, installed, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(installed))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    file, folder = tmp_path / "study.yaml", tmp_path / "a"
    file.write_text(settings("deadly_units", inputs, tmp_path, seconds=0.5).to_yaml(), "utf-8")
    first = driver(tmp_path, "run", file, "--no-draw", "--ray", nodes.address)
    until(lambda: len(units(folder)) >= 2)
    with pytest.raises(FolderLocked, match=f"in use by process {first.pid} on {socket.gethostname()}"):
        resume(folder, progress=False)
    first.kill()
    first.wait()
    before = len(units(folder))
    second = driver(tmp_path, "resume", folder, "--no-draw", "--ray", nodes.address)
    until(lambda: len(units(folder)) > before)
    second.send_signal(signal.SIGINT)
    output, _ = second.communicate(timeout=240)
    assert second.returncode == 130, output
    assert "everything done so far is stored: attnscope resume" in output
    assert not list(folder.rglob("*.tmp"))
    assert json.loads((folder / "provenance.json").read_text("utf-8"))["state"] == "interrupted"
    results = resume(folder, progress=False)
    local = run(settings("deadly_units", inputs, tmp_path, run="b", seconds=0.5), progress=False)
    assert table_bytes(results.path) == table_bytes(local.path)


@pytest.mark.slow
@pytest.mark.skipif(len(_isa.runnable()) < 2, reason="one build of the core is installed, another is needed")
def test_a_node_of_another_instruction_set_is_refused_and_the_others_go_on(
    nodes, inputs, uninterrupted, tmp_path, messages
):
    node = nodes.add_node(num_cpus=1, env_vars={"ATEN_CPU_CAPABILITY": "default"})
    try:
        settings_of_run = settings("moved_positions", inputs, tmp_path)
        results = run(settings_of_run, progress=False, executor=on(nodes), say=messages.append)
    finally:
        nodes.remove_node(node)
    assert table_bytes(results.path) == table_bytes(uninterrupted("moved_positions"))
    words = (
        rf"the worker on {socket.gethostname()} \(process \d+\) is refused: the instruction set is .* there"
    )
    assert any(re.search(words, line) for line in messages)


@pytest.mark.slow
def test_workers_of_another_version_and_instruction_set_are_refused_by_name(
    nodes, inputs, tmp_path, messages, monkeypatch
):
    """To a driver of another version every worker is another's."""
    driver_facts = {"attnscope": "9.9", "instructions": {"core": "x86_64_v9", "torch": "AVX9"}}
    monkeypatch.setattr("attnscope.engine.executors.cluster.machine", lambda: driver_facts)
    words = (
        rf"no worker is left: the worker on {socket.gethostname()} \(process \d+\) is refused: attnscope is "
        r"\S+ there, 9\.9 here; the instruction set is core \S+ with torch \S+ there, core x86_64_v9 with"
    )
    with pytest.raises(UnitsFailed, match=words):
        run(
            settings("moved_positions", inputs, tmp_path),
            progress=False,
            executor=on(nodes),
            say=messages.append,
        )
    assert sum("is refused" in line for line in messages) == 2


@pytest.mark.slow
def test_a_checkpoint_on_one_node_alone_is_done_there(nodes, inputs, tmp_path, monkeypatch, messages):
    """The hub's cache of one node lacks a revision: as on machines that do not share a disk."""
    full, poor = (hub(tmp_path / name, inputs[0], lacks) for name, lacks in (("full", ""), ("poor", "step2")))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code = (
        "import sys, asyncio, attnscope as asc\n"
        "from attnscope.engine.run_study import run\n"
        "from attnscope.engine.executors.cluster import Cluster\n"
        f"made = asc.Study(study='moved_positions', texts={str(inputs[1])!r}, block=2,\n"
        f"    output={str(tmp_path)!r},\n"
        "    models={'path': 'someone/growing', 'revisions': ['step0', 'step2', 'step10']})\n"
        "executor = Cluster(sys.argv[1]) if sys.argv[1] else None\n"
        "print(run(made, name=sys.argv[2], progress=False, executor=executor).provenance['skipped'])\n"
    )

    def ran(address, name, home):
        done = subprocess.run(
            [sys.executable, "-c", code, address, name],
            env={**os.environ, "HF_HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    from ray.cluster_utils import Cluster as Nodes

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    cluster = Nodes()
    try:
        cluster.add_node(num_cpus=1, include_dashboard=False, env_vars={"HF_HOME": str(full)})
        cluster.add_node(num_cpus=1, env_vars={"HF_HOME": str(poor)})
        assert ran("", "one", full) == "[]"
        assert ran(cluster.address, "two", full) == "[]"
    finally:
        cluster.shutdown()
    assert table_bytes(tmp_path / "two") == table_bytes(tmp_path / "one")


def hub(home, models, lacks):
    """A cache of the hub with a revision for every folder of a series, but for one."""
    place = home / "hub" / "models--someone--growing"
    (place / "refs").mkdir(parents=True)
    for at, folder in enumerate(sorted(models.iterdir())):
        commit = f"{at + 1:040x}"
        if folder.name != lacks:
            (place / "refs" / folder.name).write_text(commit, "utf-8")
            (place / "snapshots").mkdir(exist_ok=True)
            (place / "snapshots" / commit).symlink_to(folder)
    return home


@pytest.mark.slow
def test_a_node_without_the_memory_of_one_worker(nodes, inputs, tmp_path):
    fields = settings(STUDY, inputs, tmp_path).to_dict() | {"max_memory": "4000GB"}
    with pytest.raises(
        ConfigError, match=r"needs 1 CPU, 4000\.5 GB of memory, and no node of the cluster has"
    ):
        run(type(settings(STUDY, inputs, tmp_path))(**fields), progress=False, executor=on(nodes))
    fields = settings(STUDY, inputs, tmp_path).to_dict() | {"workers": {"cpus": 64}}
    with pytest.raises(ConfigError, match="needs 64 CPU"):
        run(type(settings(STUDY, inputs, tmp_path))(**fields), progress=False, executor=on(nodes))
    assert not (tmp_path / "a").exists()


@pytest.mark.slow
def test_the_series_of_the_demo_has_equal_tables_under_all_three_executors(nodes, tmp_path):
    from attnscope import Study
    from attnscope.demo.run import _write_inputs
    from attnscope.demo.training import Recipe, train

    recipe = Recipe(steps=6, layers=1, heads=2, width=16, inner_width=24, batch=4, seed=3)
    checkpoints = train(tmp_path / "trained", recipe, progress=False)
    settings_of_run = Study(
        study="attention_sinks",
        models={"path": str(checkpoints / "step*"), "label": "demo"},
        texts=_write_inputs(tmp_path / "trained", 3),
        block=2,
        output=str(tmp_path),
        name="local",
    )
    local = run(settings_of_run, progress=False)
    for number in (2, 1):
        last = run_shard(settings_of_run, f"{number}/2", progress=False, name="shards")
    shards = gather([last.run], progress=False)
    cluster = run(settings_of_run, name="cluster", progress=False, executor=on(nodes))
    assert {"heads", "samples", "baselines"} <= set(local.tables())
    assert table_bytes(shards.path) == table_bytes(local.path)
    assert table_bytes(cluster.path) == table_bytes(local.path)
