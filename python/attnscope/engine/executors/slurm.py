# SPDX-License-Identifier: MIT
"""A Slurm script that does a study in shards and gathers them.

Example:
    >>> from attnscope.engine.executors.slurm import TEMPLATE
    >>> TEMPLATE.splitlines()[0]
    '#!/bin/bash'
"""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from attnscope.config.run_config import RunConfig
from attnscope.engine.executors.shards import MOST_SHARDS, refuse_free_disk, rounds
from attnscope.engine.model_cache import needed_bytes
from attnscope.engine.prepared_run import prepare, with_absolute_paths
from attnscope.errors import ConfigError, command

TEMPLATE = """#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --array=1-{shards}
#SBATCH --cpus-per-task={cpus}
#SBATCH --mem={memory}M{gpus}
#SBATCH --time={time}
#SBATCH --requeue
#SBATCH --signal=B:TERM@120
#SBATCH --output={name}-%A_%a.log
# bash THIS on a login node submits everything: {rounds} of {shards} shards, then the gathering.
# sbatch THIS submits one round alone. Either may be repeated: what is stored is not done again.
set -euo pipefail
if [ -z "${{SLURM_ARRAY_TASK_ID:-}}" ]; then
    job=$(sbatch --parsable "$0")
    for _ in $(seq 2 {count}); do
        job=$(sbatch --parsable --dependency=afterany:"${{job%%;*}}" "$0")
    done
    sbatch --array=0 --dependency=afterany:"${{job%%;*}}" "$0"
    exit
fi
cd {place}
export OMP_NUM_THREADS="${{SLURM_CPUS_PER_TASK:-{cpus}}}"
if [ "$SLURM_ARRAY_TASK_ID" = 0 ]; then
    exec {gather}
fi
exec {run} --shard "$SLURM_ARRAY_TASK_ID/{shards}"
"""


#: As Slurm reads a time: minutes, hours:minutes:seconds, days-hours:minutes:seconds, and what lacks the end.
_TIME = re.compile(r"\d+(-\d+)?(:\d+){0,2}", re.ASCII)


def job_name(run: str) -> str:
    """Return the name of a run's jobs: letters, digits, dots, dashes and underscores.

    Slurm has its own rules for quotes in `#SBATCH` lines and reads `%` in the names of logs.

    >>> job_name("my run: 50 %")
    'attnscope-my-run-50'
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", run).strip("-")
    return shlex.quote(f"attnscope-{plain}".rstrip("-"))


def slurm_script(config: str, shards: int, *, overrides: Sequence[str] = (), time: str = "24:00:00") -> str:
    """Return a script for `bash` that submits itself with `sbatch`.

    A shard that reaches its time limit or is preempted stores its unit and is done again from there.

    Args:
        config: a YAML file or the name of a packaged study.
        shards: processes of the array.
        overrides: `key=value` texts, as `attnscope run --set` takes them.
        time: limit of each shard.

    Returns:
        the script; memory is what the largest checkpoint and the longest text need, processors and GPUs are
        those of `workers` in the settings.

    Raises:
        ConfigError: the study cannot be understood or done in shards, or the time is no time.
    """
    if shards < 1:
        raise ConfigError(f"--array: at least one shard is needed, got {shards}")
    if shards > MOST_SHARDS:
        raise ConfigError(f"--array: expected at most {MOST_SHARDS:,} shards, got {shards}")
    if not _TIME.fullmatch(time):
        raise ConfigError(f"--time: expected a limit such as 24:00:00 or 2-12:00:00, got {time!r:.80}")
    settings = with_absolute_paths(RunConfig.from_yaml(config, overrides=overrides))
    refuse_free_disk(settings)
    prepared = prepare(settings)
    plan, folder = prepared.plan, prepared.folder.resolve()
    command_line = Path(sys.executable).with_name("attnscope")
    program = shlex.quote(str(command_line)) if command_line.is_file() else "attnscope"
    study = str(Path(config).resolve()) if Path(config).is_file() else config
    where = [f"output={folder.parent}", f"name={folder.name}"]
    sets = "".join(f" --set {shlex.quote(override)}" for override in [*overrides, *where])
    count = rounds(plan)
    return TEMPLATE.format(
        name=job_name(folder.name),
        shards=shards,
        cpus=settings.workers.cpus or torch.get_num_threads(),
        memory=-(-needed_bytes(plan) // 1024**2),
        # a share of a GPU is for workers of a cluster; Slurm counts whole ones
        gpus=f"\n#SBATCH --gpus-per-task={math.ceil(settings.workers.gpus)}" if settings.workers.gpus else "",
        time=time,
        place=shlex.quote(str(Path.cwd())),
        rounds="1 round" if count == 1 else f"{count} rounds",
        count=count,
        gather=command("gather", folder).replace("attnscope", program, 1),
        run=f"{program} run {shlex.quote(study)}{sets} --no-draw",
    )
