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

from attnscope.engine.config import ConfigError
from attnscope.engine.disk.lock import FolderLocked
from attnscope.engine.executors.cluster import Cluster
from attnscope.engine.executors.executor import UnitsFailed
from attnscope.engine.run import resume, run
from foreign import NAMES, content, settings

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
            there, _ = server.accept()
            there.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            there.close()

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
        made = Nodes()
        made.add_node(num_cpus=1, include_dashboard=False)
        made.add_node(num_cpus=1)
        yield made
        made.shutdown()


def on(nodes):
    return Cluster(nodes.address)


def workers():
    """Processes of workers that hold a model or could."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error):
            if process.info["cmdline"] and "ray::RemoteWorker" in process.info["cmdline"][0]:
                found.append(process)
    return found


def units(folder):
    return [path for path in (folder / "units").glob("[!.]*-*") if (path / "unit.json").is_file()]


def until(condition, seconds=240.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_cluster_makes_the_tables_of_one_process(nodes, inputs, whole, tmp_path, name):
    results = run(settings(name, inputs, tmp_path), progress=False, executor=on(nodes))
    assert content(results.path) == content(whole(name))
    facts = results.provenance
    assert facts["state"] == "finished"
    assert facts["machines"][socket.gethostname()]["units"] == facts["units"]["planned"]
    assert not ray.is_initialized()


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
def test_a_killed_worker_costs_one_unit_each_time(nodes, inputs, whole, tmp_path, said):
    killed = []

    def kill():
        folder = tmp_path / "a"
        for stored in (1, 6):
            until(lambda stored=stored: len(units(folder)) >= stored and workers())
            for process in workers()[:1]:
                killed.append(process.pid)
                process.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    results = run(settings(STUDY, inputs, tmp_path), progress=False, executor=on(nodes), say=said.append)
    killer.join()
    assert len(killed) == 2
    assert content(results.path) == content(whole(STUDY))
    assert results.provenance["units"]["done_by_this_process"] == results.provenance["units"]["planned"]
    lost = [line for line in said if "died; it is done again elsewhere" in line]
    assert all(re.search(r"unit \d{6}-\w{12} \(growing.*\): the worker on", line) for line in lost)


@pytest.mark.slow
def test_a_unit_that_kills_its_workers_is_reported_by_name(nodes, inputs, whole, tmp_path, said):
    made = settings(STUDY, inputs, tmp_path)
    done = threading.Event()

    def kill():
        while not done.is_set():
            for process in workers():
                with contextlib.suppress(psutil.Error):
                    if process.cmdline()[0] == "ray::RemoteWorker.do":
                        process.kill()
            time.sleep(0.001)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(
            UnitsFailed, match=r"units were given up.*unit 0000.*died, at attempt 3 of 3.*resume"
        ):
            run(made, progress=False, executor=on(nodes), say=said.append)
    finally:
        done.set()
        killer.join()
    facts = json.loads((tmp_path / "a" / "provenance.json").read_text("utf-8"))
    assert facts["state"] == "failed"
    assert facts["failed"]
    again = resume(tmp_path / "a", progress=False, executor=on(nodes))
    assert content(again.path) == content(whole(STUDY))


def driver(folder, *more):
    """The command line in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "attnscope.commands.cli", *map(str, more)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
    )


@pytest.mark.slow
def test_a_killed_driver_an_interrupted_one_and_a_second_one(
    nodes, inputs, whole, installed, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(installed))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    file, folder = tmp_path / "study.yaml", tmp_path / "a"
    file.write_text(settings(STUDY, inputs, tmp_path).to_yaml(), "utf-8")
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
    assert content(results.path) == content(whole(STUDY))


@pytest.mark.slow
def test_workers_of_another_instruction_set_are_refused_by_name(nodes, inputs, whole, tmp_path, said):
    node = nodes.add_node(num_cpus=1, env_vars={"ATEN_CPU_CAPABILITY": "default"})
    try:
        made = settings("moved_positions", inputs, tmp_path)
        results = run(made, progress=False, executor=on(nodes), say=said.append)
    finally:
        nodes.remove_node(node)
    assert content(results.path) == content(whole("moved_positions"))
    refused = [line for line in said if "is refused" in line]
    words = (
        rf"the worker on {socket.gethostname()} \(process \d+\) is refused: the instruction set is .* there"
    )
    assert re.search(words, refused[0])


@pytest.mark.slow
def test_a_checkpoint_on_one_node_alone_is_done_there(nodes, inputs, tmp_path, monkeypatch, said):
    """The hub's cache of one node lacks a revision: as on machines that do not share a disk."""
    full, poor = (hub(tmp_path / name, inputs[0], lacks) for name, lacks in (("full", ""), ("poor", "step2")))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code = (
        "import sys, asyncio, attnscope as asc\n"
        "from attnscope.engine.run import run\n"
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
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    from ray.cluster_utils import Cluster as Nodes

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    own = Nodes()
    try:
        own.add_node(num_cpus=1, include_dashboard=False, env_vars={"HF_HOME": str(full)})
        own.add_node(num_cpus=1, env_vars={"HF_HOME": str(poor)})
        assert ran("", "one", full) == "[]"
        assert ran(own.address, "two", full) == "[]"
    finally:
        own.shutdown()
    assert content(tmp_path / "two") == content(tmp_path / "one")


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
    made = settings(STUDY, inputs, tmp_path).to_dict() | {"max_memory": "4000GB"}
    with pytest.raises(
        ConfigError, match=r"needs 1 CPU, 4000\.5 GB of memory, and no node of the cluster has"
    ):
        run(type(settings(STUDY, inputs, tmp_path))(**made), progress=False, executor=on(nodes))
    made = settings(STUDY, inputs, tmp_path).to_dict() | {"workers": {"cpus": 64}}
    with pytest.raises(ConfigError, match="needs 64 CPU"):
        run(type(settings(STUDY, inputs, tmp_path))(**made), progress=False, executor=on(nodes))
    assert not (tmp_path / "a").exists()
