# SPDX-License-Identifier: MIT
"""The commands that run a study: run, resume, gather, slurm, demo."""

from __future__ import annotations

import json
import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from attnscope.cli.drawing import draw_run, missing_libraries
from attnscope.cli.errors import SKIPPED, Draw, Folder, Json, Quiet, Trust, a_folder, say, show, silent

if TYPE_CHECKING:
    from attnscope.config.run_config import RunConfig
    from attnscope.engine.executors.executor import Executor
    from attnscope.plots import LeftOut
    from attnscope.results.results import Results

Ray = Annotated[
    str, Option(metavar="ADDRESS", help="Do the units on a Ray cluster: auto, local, ray://HOST:PORT.")
]
Assignments = Annotated[
    list[str] | None, Option("--set", metavar="KEY=VALUE", help="Any key of the study; may be repeated.")
]


#: What is done with the beginning-of-sequence token.
Bos = Annotated[
    Literal["keep", "drop", "replace"] | None,
    Option(help="Keep, drop or replace the beginning-of-sequence token."),
]

#: How the exact protocol computes.
PrecisionOption = Annotated[
    Literal["exact", "fast"] | None, Option(help="Of the exact protocol; fast holds about five digits.")
]


def run(
    config: Annotated[
        str, Argument(metavar="CONFIG", help="YAML file or packaged study [default: the study of sinks].")
    ] = "",
    model: Annotated[
        list[str] | None,
        Option("--model", "-m", help="Folder, pattern of checkpoint folders, or hub id; may be repeated."),
    ] = None,
    revision: Annotated[
        list[str] | None, Option("--revision", "-r", help="Revision such as step512; may be repeated.")
    ] = None,
    texts: Annotated[
        list[str] | None,
        Option(
            "--texts",
            "-t",
            help=".txt (a sentence a line), .csv, .jsonl, .parquet, a data set's folder or name, or sample: "
            "sentences that come with the package.",
        ),
    ] = None,
    column: Annotated[str, Option(help="Column of the texts.")] = "",
    samples: Annotated[int | None, Option(min=1, help="How many texts of each source.")] = None,
    sampling: Annotated[
        str, Option(help="By which rule they are chosen: first, random, or one of the study.")
    ] = "",
    block: Annotated[int | None, Option(min=1, help="Texts per unit of work.")] = None,
    name: Annotated[str, Option(help="Name of the run folder.")] = "",
    output: Annotated[str, Option(help="Folder that holds the run folders.")] = "",
    protocol: Annotated[str, Option(help="exact, a protocol of the study, or both for all.")] = "",
    precision: PrecisionOption = None,
    bos: Bos = None,
    seed: Annotated[int | None, Option(min=0)] = None,
    max_memory: Annotated[str, Option(help="Bound for the attention alive at a time, e.g. 4GB.")] = "",
    assignments: Assignments = None,
    plan_only: Annotated[bool, Option("--dry-run", help="Print the plan and what it will take.")] = False,
    shard: Annotated[
        str, Option(metavar="I/N", help="Do share I of N of the units; `attnscope gather` joins them.")
    ] = "",
    ray: Ray = "",
    draw: Draw = True,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run a study: tables, figures and report.html in runs/NAME.

    Example: attnscope run --model gpt2 --texts sentences.csv --column text --samples 100
    """
    from attnscope.config.run_config import RunConfig
    from attnscope.config.study_folders import default_study
    from attnscope.engine.run_study import run as run_study

    if shard and ray:
        raise typer.BadParameter("give --shard or --ray, not both")
    of_texts = {"column": column, "samples": samples, "sampling": sampling}
    of_run = dict(block=block, name=name, output=output, protocols=protocol, bos=bos, seed=seed)
    of_run |= {"max_memory": max_memory, "precision": precision}
    values, sets = _settings(model, revision, texts, of_texts, of_run)
    study = RunConfig.from_yaml(config or default_study(), overrides=[*sets, *(assignments or [])], **values)
    if plan_only:
        _plan(study, as_json, draw)
    elif shard:
        _shard(study, shard, as_json, quiet)
    else:
        report_outcome(run_study(study, **_notifier(quiet), executor=_cluster(ray)), quiet, as_json, draw)


def _settings(
    models: list[str] | None,
    revisions: list[str] | None,
    texts: list[str] | None,
    of_texts: dict[str, Any],
    of_run: dict[str, Any],
) -> tuple[dict[str, Any], list[str]]:
    """Return the settings that options of `run` name, and what is assigned to entries of the file's lists."""
    values = {key: value for key, value in of_run.items() if value not in (None, "")}
    if models:
        values["models"] = [{"path": path, "revisions": revisions or []} for path in models]
    if texts:
        values["texts"] = [{"path": path, "column": of_texts["column"]} for path in texts]
    of_entries = {
        "models.revisions": None if models else revisions,
        "texts.column": "" if texts else of_texts["column"],
        "texts.samples": of_texts["samples"],
        "texts.sampling": of_texts["sampling"],
    }
    sets = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in of_entries.items() if value]
    return values, sets


def resume(
    folder: Folder,
    ray: Ray = "",
    trust_remote_code: Trust = False,
    draw: Draw = True,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Resume a run that was stopped or killed, from its first missing unit.

    Example: attnscope resume runs/gpt2
    """
    from attnscope.engine.run_study import resume as resume_study

    results = resume_study(
        folder, **_notifier(quiet), executor=_cluster(ray), trust_remote_code=trust_remote_code
    )
    report_outcome(results, quiet, as_json, draw)


def gather(
    folders: Annotated[list[Path], Argument(metavar="DIR...", help="A run folder, or its shards.")],
    into: Annotated[
        Path | None, Option(help="The run folder; the one of the shards.", callback=a_folder)
    ] = None,
    trust_remote_code: Trust = False,
    draw: Draw = True,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Make one run of its shards: tables, figures and report.html.

    Example: attnscope gather runs/gpt2
    """
    from attnscope.engine.executors.shards import gather as gather_shards

    results = gather_shards(folders, into=into, **_notifier(quiet), trust_remote_code=trust_remote_code)
    report_outcome(results, quiet, as_json, draw)


def slurm(
    config: Annotated[str, Argument(metavar="STUDY", help="A YAML file or a packaged study.")],
    array: Annotated[int, Option(min=1, help="How many shards.")],
    time: Annotated[str, Option(help="Limit of each shard.")] = "24:00:00",
    assignments: Assignments = None,
) -> None:
    """Print a Slurm script that does a study in an array of shards.

    Example: attnscope slurm study.yaml --array 8 > sweep.sh && bash sweep.sh
    """
    from attnscope.engine.executors.slurm import slurm_script

    typer.echo(slurm_script(config, array, overrides=assignments or [], time=time), nl=False)


def _notifier(quiet: bool) -> dict[str, Any]:
    """Return the options of a run that report its progress."""
    return {"progress": not quiet, "say": silent if quiet else None}


def _cluster(address: str) -> Executor | None:
    """Return the executor of a Ray cluster, None where no address is given."""
    if not address:
        return None
    from attnscope.engine.executors.cluster import Cluster

    return Cluster(address)


def _shard(study: RunConfig, shard: str, as_json: bool, quiet: bool) -> None:
    from attnscope.engine.executors.shards import run_shard
    from attnscope.errors import command

    done = run_shard(study, shard, **_notifier(quiet))
    if as_json:
        show(json.dumps(vars(done), ensure_ascii=False, default=str))
    elif not quiet:
        say(f"shard {shard}: {done.stored} units stored in {done.folder}")
        if done.left:
            say(f"{done.left} units wait for other shards: when all are done, start every shard once more")
        say(f"when all shards are done: {command('gather', done.run)}")
    if done.skipped:
        raise typer.Exit(SKIPPED)


def demo(
    folder: Annotated[Path, Argument(metavar="DIR", help="The run folder.")] = Path("runs/demo"),
    samples: Annotated[int, Option(min=1, help="Sequences of each kind of input.")] = 12,
    steps_before: Annotated[int, Option(min=0, hidden=True)] = 0,
    quiet: Quiet = False,
) -> None:
    """Train a small model, run the sink study over its checkpoints, draw, report. No download.

    Example: attnscope demo runs/demo
    """
    from attnscope.demo import run_demo

    say = silent if quiet else show
    run_demo(folder, samples=samples, progress=not quiet, say=say, steps_before=steps_before)


def _plan(study: RunConfig, as_json: bool, draw: bool) -> None:
    from attnscope.cli.dry_run import dry_run

    say = silent if as_json else show
    estimate = dry_run(study, say, draw=draw and not missing_libraries(), started=time.process_time())
    show(json.dumps(vars(estimate), ensure_ascii=False) if as_json else str(estimate))
    if estimate.skipped:
        raise typer.Exit(SKIPPED)


def _drawn(results: Results, quiet: bool, left_out: list[LeftOut]) -> Path | None:
    """Return the report of a finished run; None where what draws it is not installed, or its folder is on a
    disk that cannot be written.
    """
    if results.path is not None and not os.access(results.path, os.W_OK):
        from attnscope.errors import command

        beside = command("report", results.path)
        say(f"no figures and no report in {results.path}, which cannot be written: {beside} --output FILE")
        return None
    if missing := missing_libraries():
        if not quiet:
            say(f"no figures and no report without {', '.join(missing)}: pip install 'attnscope[studies]'")
        return None
    return draw_run(results, left_out, say, quiet=quiet)


def report_outcome(results: Results, quiet: bool, as_json: bool, draw: bool) -> None:
    """Draw the results of a run, print where it is and how to go on, and exit with its exit code."""
    skipped = results.provenance.get("skipped", [])
    left_out: list[LeftOut] = []
    report = _drawn(results, quiet or as_json, left_out) if draw else None
    if as_json:
        answer = {
            "folder": str(results.path),
            "tables": {name: len(results.arrow(name, [])) for name in results.tables()},
            "skipped": skipped,
            "report": None if report is None else str(report),
            "figures_left_out": {omission.name: omission.reason for omission in left_out},
        }
        show(json.dumps(answer, ensure_ascii=False))
    elif not quiet:
        tables = Path(str(results.path)) / "tables"
        show(f"tables: {tables}" if report is None else f"report: {report}")
        folder = shlex.quote(str(results.path))
        for command, words in (
            (f"attnscope view {folder}", "every head as a picture"),
            (f"attnscope tables {folder}", "the numbers"),
            (f"attnscope figures {folder} --width single --format pdf", "for a paper"),
        ):
            show(f"  {command:<60} {words}")
    if skipped:
        names = ", ".join(entry["checkpoint"] for entry in skipped)
        say(f"finished, {len(skipped)} checkpoint{'s' if len(skipped) > 1 else ''} skipped: {names}")
    if skipped or any(omission.failed for omission in left_out):
        raise typer.Exit(SKIPPED)
