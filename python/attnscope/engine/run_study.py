# SPDX-License-Identifier: MIT
"""Run a study, or go on with one: the two ways in from Python."""

from __future__ import annotations

import errno
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from attnscope.arguments.scalars import flag
from attnscope.config.run_config import RunConfig, refuse_stored_trust
from attnscope.engine.engine import Engine, Notify
from attnscope.engine.executors.executor import Executor, LocalExecutor
from attnscope.engine.executors.shards import merge_shards, shard_folders
from attnscope.engine.prepared_run import prepare, settings_of
from attnscope.engine.provenance import machine, read_provenance
from attnscope.engine.run_folder import (
    read_settings,
    refuse_another,
    refuse_changed,
    refuse_existing,
    refuse_other_models,
    refuse_other_study,
    run_folder,
)
from attnscope.errors import ConfigError
from attnscope.models import LoadError
from attnscope.models.loading import hub_commit
from attnscope.results.results import Results, load
from attnscope.results.schema import FINISHED


def run(
    config: str | Path | RunConfig,
    *,
    progress: bool = True,
    say: Notify | None = None,
    executor: Executor | None = None,
    exist_ok: bool = False,
    **overrides: Any,
) -> Results:
    """Run a study and store its results in `OUTPUT/NAME`.

    Args:
        config: a YAML file, the name of a packaged study, or a `Study`.
        progress: a bar on a terminal or in a notebook, a line every ten seconds elsewhere.
        say: called with what a person should know; None prints to standard error.
        executor: who does the units; None is this process, `Cluster("auto")` the workers of a Ray cluster.
        exist_ok: where the run folder holds this very study, give its results if it is finished, else go on
            with it, so that a cell of a notebook can be run again.
        overrides: keys that replace those of the config.

    Returns:
        the stored results; `provenance["skipped"]` names checkpoints that could not be used.

    Raises:
        ConfigError: the study cannot be understood or done; with `exist_ok` also where its texts or weights
            are others than the run in the folder has read.
        LoadError: no model could be loaded.
        FileExistsError: the run folder exists, or with `exist_ok` holds another study; the message says
            whether and how to resume.
        Interrupted: after Ctrl-C or SIGTERM, when the unit at work was stored.
        DiskFull: no room; everything done before is intact.
        UnitsFailed: units were given up after three attempts; everything else is stored.

    Example:
        >>> import attnscope as asc
        >>> asc.run(asc.Study(models="./no/such/folder", texts="texts.txt"))
        Traceback (most recent call last):
        attnscope.errors.ConfigError: models[0]: there is no model folder ./no/such/folder
    """
    progress, exist_ok = flag("run", "progress", progress), flag("run", "exist_ok", exist_ok)
    settings = settings_of(config, **overrides)
    folder = run_folder(settings)
    goes_on = exist_ok and (folder / "study.yaml").is_file()
    refuse = partial(refuse_another if goes_on else refuse_existing, folder, settings)
    refuse()
    if goes_on and read_provenance(folder).get("state") == FINISHED:
        _refuse_other_inputs(folder, settings)
        return load(folder)
    with executor or LocalExecutor() as workers:
        engine = Engine(prepare(settings, folder=folder), progress=progress, say=say, executor=workers)
        return engine.run(goes_on, refuse)


def _refuse_other_inputs(folder: Path, settings: RunConfig) -> None:
    """Raise ConfigError where a finished run has read other texts or weights than lie there, or on the hub,
    now.

    Where they can no longer be read its results stand, and so do those of another version, whose units have
    other names.
    """
    stored = read_provenance(folder)
    if stored.get("attnscope") != machine()["attnscope"]:
        return
    try:
        plan = prepare(settings, folder=folder).plan
    except (ConfigError, LoadError, OSError):
        return
    refuse_changed(folder, {"plan": plan.digest})
    now = {}
    for position, series in plan.series.items():
        trust = settings.models[position].trust_remote_code
        for checkpoint in series:
            with suppress(LoadError, OSError):
                now[checkpoint.title] = {"commit": hub_commit(checkpoint, trust_remote_code=trust)}
    refuse_other_models(stored.get("models", {}), now, plan)


def resume(
    folder: str | Path,
    *,
    progress: bool = True,
    say: Notify | None = None,
    executor: Executor | None = None,
    trust_remote_code: bool = False,
) -> Results:
    """Continue a run that was stopped or killed, from its first missing unit.

    Any executor may continue the run. Finished shards are merged first. A finished run on a disk that cannot
    be written is given as it is.

    Args:
        folder: the run folder.
        progress: as in `run`.
        say: as in `run`.
        executor: as in `run`.
        trust_remote_code: consent to run the Python code of models for which the stored study asks it.

    Returns:
        the stored results.

    Raises:
        FileNotFoundError: the folder holds no run.
        ConfigError: the texts, the weights or attnscope itself changed since the run began, the device is of
            another kind, or the stored study runs code of a model without `trust_remote_code`.

    Example:
        >>> import attnscope as asc
        >>> asc.resume("no/such/folder")
        Traceback (most recent call last):
        FileNotFoundError: resume: no/such/folder holds no study.yaml; a run folder is needed
    """
    progress = flag("resume", "progress", progress)
    trust_remote_code = flag("resume", "trust_remote_code", trust_remote_code)
    path = Path(folder)
    parts = shard_folders([path])
    if path in parts:
        shard = read_provenance(path)["shard"]
        raise ConfigError(f"resume: {path} is shard {shard} of {path.parents[1]}; start that shard again")
    file = (parts[0] if parts and not (path / "study.yaml").is_file() else path) / "study.yaml"
    if not file.is_file():
        raise FileNotFoundError(f"resume: {path} holds no study.yaml; a run folder is needed")
    study = read_settings(file.parent, output=str(path.resolve().parent), name=path.resolve().name)
    if not trust_remote_code:
        refuse_stored_trust(study, "resume")
    with executor or LocalExecutor() as workers:
        engine = Engine(prepare(study), progress=progress, say=say, executor=workers)
        refuse = partial(refuse_other_study, engine.folder, study)
        try:
            with engine.open_run(resume=True, refuse=refuse) as (facts, lock):
                merge_shards(engine, parts, facts)
                engine.finish(facts, lock)
        except OSError as error:
            # an archive that cannot be written: nothing is to be done where its run is finished
            if error.errno != errno.EROFS or read_provenance(engine.folder).get("state") != FINISHED:
                raise
            refuse_changed(engine.folder, {"plan": engine.plan.digest})
    return load(engine.folder)
