# SPDX-License-Identifier: MIT
"""A run that is prepared: what is decided about it before its first unit, decided once.

`run`, `resume`, a dry run, shards, `gather`, the script for Slurm and the workers of a cluster all begin with
`prepare`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnscope._memory import give_back_large_blocks
from attnscope.config.run_config import RunConfig
from attnscope.engine.planning import make_plan
from attnscope.engine.run_folder import run_folder
from attnscope.errors import ConfigError
from attnscope.study_api.plan import CheckpointsByModel, Plan
from attnscope.study_api.study import Study, study_class
from attnscope.untrusted.names import path_fault


@dataclass(frozen=True)
class PreparedRun:
    """A run before its first unit.

    Attributes:
        settings: with absolute paths.
        study: that they name, with its options.
        folder: where its units and tables are stored; nothing is there yet, or a run to go on with.
        plan: its units, the texts that were read for them, and what was left out.
    """

    settings: RunConfig
    study: Study
    folder: Path
    plan: Plan


def prepare(
    settings: RunConfig, *, folder: Path | None = None, checkpoints: CheckpointsByModel | None = None
) -> PreparedRun:
    """Read the texts and list the checkpoints of a run, and cut it into units; nothing is written.

    Args:
        settings: with absolute paths.
        folder: where units are stored; None is the run folder that the settings name.
        checkpoints: of models whose checkpoints another process has listed, which are not listed again.

    Raises:
        ConfigError: the study cannot be understood or done.
        LoadError: no model could be read.
    """
    give_back_large_blocks()
    study = study_class(settings.study)(settings)
    plan = make_plan(settings, study, checkpoints)
    folder = folder or run_folder(settings)
    if fault := path_fault(str(folder.resolve()), "strict"):
        raise ConfigError(f"the path of the run folder {fault}; Arrow writes tables where names are UTF-8")
    return PreparedRun(settings, study, folder, plan)


def settings_of(config: str | Path | RunConfig, **overrides: Any) -> RunConfig:
    """Return the settings that `run` takes, with absolute paths."""
    if isinstance(config, RunConfig):
        return with_absolute_paths(RunConfig(**{**config.to_dict(), **overrides}) if overrides else config)
    return with_absolute_paths(RunConfig.from_yaml(config, **overrides))


def with_absolute_paths(settings: RunConfig) -> RunConfig:
    """Return the settings with absolute paths, so that a run can be resumed from any folder.

    Settings were checked when they were made, and a path is as good when it is absolute.
    """
    models = [
        source.model_copy(update={"path": _absolute(source.path), "tokenizer": _absolute(source.tokenizer)})
        for source in settings.models
    ]
    texts = [source.model_copy(update={"path": _absolute(source.path)}) for source in settings.texts]
    return settings.model_copy(update={"models": models, "texts": texts})


def _absolute(path: str) -> str:
    """Return the absolute path of what exists and of a pattern; another text, such as a hub id, as it is."""
    place = Path(path).expanduser()
    if path and place.exists():
        return str(place.resolve())
    if any(mark in path for mark in "*?[") and not place.is_absolute():
        return str(Path.cwd() / place)
    return path
