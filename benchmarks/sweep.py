# SPDX-License-Identifier: MIT
"""What executors spend around units of ten seconds, and what a plan of 100,000 units takes.

python benchmarks/run.py sweep [--units 16] [--seconds 10] [--workers 2] [--quick]

Units sleep, so that the number of processors does not matter. A speed-up is the time that the units sleep,
divided by the time of the run: once of the whole run, the start of its workers included, and once between its
first and its last unit. Ray's part needs the extra `ray`.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import attnscope as asc
from attnscope.demo.training import Recipe, train
from attnscope.engine.executors.shards import gather
from attnscope.engine.planning import make_plan
from harness import machine_facts

FOLDER = Path(__file__).resolve().parent
TARGET = 0.9


def installed(home: Path) -> None:
    """Makes the sleeping study known to this process and to those that it starts."""
    metadata_folder = home / "sleeping-0.1.dist-info"
    metadata_folder.mkdir()
    (metadata_folder / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: sleeping\nVersion: 0.1\n", "utf-8"
    )
    (metadata_folder / "entry_points.txt").write_text("[attnscope.studies]\nsleeping = sleeping\n", "utf-8")
    sys.path[:0] = [str(home), str(FOLDER)]
    os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:2], os.environ.get("PYTHONPATH", "")])


def one_process(study: asc.Study, workers: int, folder: Path) -> None:
    asc.run(study, progress=False)


def shards(study: asc.Study, workers: int, folder: Path) -> None:
    file = folder.parent / "study.yaml"
    file.write_text(study.to_yaml(), "utf-8")
    command = [sys.executable, "-m", "attnscope.cli.application", "run", str(file), "--quiet", "--shard"]
    started = [subprocess.Popen([*command, f"{index + 1}/{workers}"]) for index in range(workers)]
    if any(process.wait() for process in started):
        raise RuntimeError("a shard failed")
    gather([folder], progress=False)


def ray(study: asc.Study, workers: int, folder: Path, *, address: str) -> None:
    from attnscope.engine.executors.cluster import Cluster

    asc.run(study, progress=False, executor=Cluster(address))


def measured(name: str, call: Callable[..., None], study: asc.Study, workers: int) -> dict[str, Any]:
    """A row: seconds of a unit, and the speed-up of the whole run and between first and last unit."""
    folder = Path(study.output) / study.name
    began = time.time()
    call(study, workers, folder)
    seconds = time.time() - began
    ends = sorted(file.stat().st_mtime for file in (folder / "units").glob("0*/unit.json"))
    asleep = study.options["seconds"]
    steady = asleep * (len(ends) - workers) / (ends[-1] - ends[workers - 1])
    row = {
        "name": f"{name}, {len(ends)} units of {asleep:g} s",
        "best_ms": {"attnscope": 1e3 * seconds / len(ends)},
        "ratio": {"asleep": asleep * len(ends) / seconds, "asleep, without the start": steady},
        "target": TARGET * workers,
        "against": "asleep, without the start",
    }
    print(
        f"{row['name']:<34} {seconds:7.1f} s, {row['ratio']['asleep']:.3f} times as fast as one process that "
        f"sleeps, {steady:.3f} without the start; target {TARGET * workers:g}",
        flush=True,
    )
    return row


def plan_row(folder: Path, quick: bool) -> dict[str, Any]:
    """Processor time and memory of a plan of 100 checkpoints with 1000 texts each."""
    checkpoints, texts = 100, 100 if quick else 1000
    first = next(iter(sorted((folder / "checkpoints").glob("step*"))))
    for step in range(checkpoints):
        place = folder / "many" / f"step{step}"
        place.parent.mkdir(exist_ok=True)
        place.symlink_to(first)
    (folder / "many.txt").write_text("".join(f"text {index}\n" for index in range(texts)), "utf-8")
    study = asc.Study(models=str(folder / "many"), texts=str(folder / "many.txt"), block=1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.process_time()
    count = len(make_plan(study).units)
    seconds = time.process_time() - began
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(
        f"a plan of {count:,} units: {seconds:.1f} s of processor time, {growth:.0f} MB; targets 10 s, 500 MB"
    )
    return {
        "name": f"plan of {count:,} units, {growth:.0f} MB",
        "best_ms": {"attnscope": 1e3 * seconds / count},
        "ratio": {"ten seconds": 10 / seconds},
        "target": 1.0,
        "against": "ten seconds",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--units", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="8 units of a second")
    parser.add_argument("--json", type=Path, default=FOLDER / "results" / "sweep.json")
    options = parser.parse_args()
    units, seconds = (8, 1.0) if options.quick else (options.units, options.seconds)
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    print(f"Executors\n{json.dumps(machine_facts())}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        installed(home)
        recipe = Recipe(steps=1, layers=1, heads=2, width=16, inner_width=24, batch=2)
        train(home, recipe, progress=False)
        (home / "texts.txt").write_text("".join(f"text {index}\n" for index in range(units)), "utf-8")

        def study(called: str) -> asc.Study:
            return asc.Study(
                study="sleeping",
                models=str(home / "checkpoints" / "step1"),
                texts=str(home / "texts.txt"),
                block=1,
                output=str(home),
                name=called,
                options={"seconds": seconds},
            )

        rows = [plan_row(home, options.quick)]
        if options.quick:
            rows.append(measured("one process", one_process, study("one"), 1))
        rows.append(measured(f"{options.workers} shards", shards, study("shards"), options.workers))
        if importlib.util.find_spec("ray"):
            from ray.cluster_utils import Cluster as Nodes

            nodes = Nodes()
            for _ in range(options.workers):
                nodes.add_node(num_cpus=1, include_dashboard=False)
            call = functools.partial(ray, address=nodes.address)
            rows.append(measured(f"{options.workers} Ray workers", call, study("ray"), options.workers))
            nodes.shutdown()
    options.json.parent.mkdir(exist_ok=True)
    report = {"concept": "sweep", "machine": machine_facts(), "quick": options.quick, "rows": rows}
    options.json.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    for row in rows:
        if row["ratio"][row["against"]] < row["target"]:
            print(f"below target: {row['name']}")


if __name__ == "__main__":
    main()
