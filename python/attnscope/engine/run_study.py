# SPDX-License-Identifier: MIT
"""Run a study, or go on with one: the two ways in from Python."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from attnscope.config.run_config import Settings, refuse_stored_trust
from attnscope.engine.engine import Engine, Say
from attnscope.engine.executors.executor import Executor
from attnscope.engine.executors.shards import parts_of, take_in
from attnscope.engine.provenance import refuse_other_study, settings_of, stored
from attnscope.errors import ConfigError
from attnscope.results.results import Results, load


def run(
    config: str | Path | Settings,
    *,
    progress: bool = True,
    say: Say | None = None,
    executor: Executor | None = None,
    **overrides: Any,
) -> Results:
    """Does a study and stores its results in `OUTPUT/NAME`.

    Args:
        config: a YAML file, the name of a packaged study, or a `Study`.
        progress: a bar on a terminal or in a notebook, a line every ten seconds elsewhere.
        say: called with what a person should know; None prints to standard error.
        executor: who does the units; None is this process, `Cluster("auto")` the workers of a Ray cluster.
        overrides: keys that replace those of the config.

    Returns:
        the stored results; `provenance["skipped"]` names checkpoints that could not be used.

    Raises:
        ConfigError: the study cannot be understood or done.
        LoadError: no model could be loaded.
        FileExistsError: the run folder exists; the message says whether and how to resume.
        Interrupted: after Ctrl-C or SIGTERM, when the unit at work was stored.
        DiskFull: no room; everything done before is intact.
        UnitsFailed: units were given up after three attempts; everything else is stored.

    Example:
        >>> import attnscope as asc
        >>> asc.run(asc.Study(models="./no/such/folder", texts="texts.txt"))
        Traceback (most recent call last):
        attnscope.errors.ConfigError: models[0]: there is no model folder ./no/such/folder
    """
    return Engine(settings_of(config, **overrides), progress=progress, say=say, executor=executor).run()


def resume(
    folder: str | Path,
    *,
    progress: bool = True,
    say: Say | None = None,
    executor: Executor | None = None,
    trust_remote_code: bool = False,
) -> Results:
    """Goes on with a run that was stopped, killed or cut off, from its first missing unit.

    Whatever executor it was begun under, and any other may go on: of a folder of shards, those that are done
    are taken in first.

    Args:
        folder: the run folder.
        progress, say, executor: as `run` takes them.
        trust_remote_code: consent to run the Python code of models for which the stored study asks it.

    Returns:
        the stored results.

    Raises:
        FileNotFoundError: the folder holds no run.
        ConfigError: the texts, the weights or attnscope itself changed since the run began, or the stored
            study runs code of a model without `trust_remote_code`.

    Example:
        >>> import attnscope as asc
        >>> asc.resume("no/such/folder")
        Traceback (most recent call last):
        FileNotFoundError: resume: no/such/folder holds no study.yaml; a run folder is needed
    """
    path = Path(folder)
    parts = parts_of([path])
    if path in parts:
        raise ConfigError(
            f"resume: {path} is shard {stored(path)['shard']} of {path.parents[1]}; start that shard again"
        )
    file = (parts[0] if parts and not (path / "study.yaml").is_file() else path) / "study.yaml"
    if not file.is_file():
        raise FileNotFoundError(f"resume: {path} holds no study.yaml; a run folder is needed")
    study = Settings.from_yaml(file, output=str(path.resolve().parent), name=path.resolve().name)
    if not trust_remote_code:
        refuse_stored_trust(study, "resume")
    engine = Engine(study, progress=progress, say=say, executor=executor)
    refuse = partial(refuse_other_study, engine.folder, engine.settings)
    with engine.begun(resume=True, refuse=refuse) as (facts, lock):
        take_in(engine, parts, facts)
        engine.finish(facts, lock)
    return load(engine.folder)
