# SPDX-License-Identifier: MIT
"""Shards: process i of n does its share of the units in a folder of its own, and one process gathers them.

A share is a stretch of the plan, so that a model is loaded once, and about as many tokens as any other; long
checkpoints are divided. Shards do not wait for each other: a unit that reads what another shard has not yet
stored is left for the next round, in which every shard is started again.

Example:
    >>> from attnscope.engine.executors.shards import Shard
    >>> Shard.parse("2/8"), Shard.parse("2/8").folder
    (Shard(number=2, of=8), '2-of-8')
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from attnscope.arguments.scalars import flag
from attnscope.config.run_config import RunConfig, refuse_stored_trust
from attnscope.engine.engine import Engine, Notify, write_provenance
from attnscope.engine.executors.executor import LocalExecutor
from attnscope.engine.prepared_run import prepare, settings_of
from attnscope.engine.provenance import incompatibility, read_provenance
from attnscope.engine.run_folder import (
    SHARDS,
    changes,
    has_content,
    read_settings,
    refuse_another,
    refuse_existing,
    refuse_other_study,
    run_folder,
)
from attnscope.errors import ConfigError, LoadError, OtherModel, ResultsError, command
from attnscope.results.files import refuse_links
from attnscope.results.folder_lock import FolderLock
from attnscope.results.results import Results, load
from attnscope.study_api.plan import Plan
from attnscope.study_api.units import Unit

#: Processes of a plan at most, each with a list of its units; arrays of Slurm are shorter.
MOST_SHARDS = 1_000_000
#: How far the end of a share moves to the end of a checkpoint, as a part of a share.
_SLACK = 0.1
# Of the folder of a shard.
_NAME = re.compile(r"\d+-of-\d+")


@dataclass(frozen=True)
class Shard:
    """One of the processes that share a plan.

    Attributes:
        number: from 1.
        of: how many there are.
    """

    number: int
    of: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Return the shard that `i/n` names.

        Raises:
            ConfigError: not two numbers with 1 <= i <= n.
        """
        numbers = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip())
        shard = cls(int(numbers[1]), int(numbers[2])) if numbers else cls(0, 0)
        if not 1 <= shard.number <= shard.of <= MOST_SHARDS:
            at_most = f" and n at most {MOST_SHARDS:,}" if shard.of > MOST_SHARDS else ""
            raise ConfigError(
                f"--shard: expected i/n with i from 1 to n, such as 2/8{at_most}, got {text!r:.80}"
            )
        return shard

    @property
    def folder(self) -> str:
        """Name of its folder."""
        return f"{self.number}-of-{self.of}"


@dataclass(frozen=True)
class ShardDone:
    """The state of a shard after it ran.

    Attributes:
        folder: where its units lie.
        run: the run folder that they are gathered into.
        stored: units of its share that are there.
        left: units of its share, but for those over the whole run, whose reads other shards have not stored.
        skipped: title and reason of checkpoints that it could not use.
    """

    folder: Path
    run: Path
    stored: int
    left: int
    skipped: list[tuple[str, str]]


def assign_units(plan: Plan, of: int) -> list[set[str]]:
    """Return the ids of the units of each shard: stretches of every phase, of about as many tokens each."""
    assigned: list[set[str]] = [set() for _ in range(of)]
    for phase in sorted(set(plan.phases.values())):
        pieces = _pieces(plan, [unit for unit in plan.units if plan.phases[unit.stage] == phase])
        costs = [sum(unit.tokens or 1 for unit in piece) for piece in pieces]
        ends = list(accumulate(costs))
        models = [*(piece[-1].model for piece in pieces), None]
        closed = [end for end, (model, after) in zip(ends, pairwise(models), strict=True) if model != after]
        total = sum(costs)
        borders = [_border(closed, total * number / of, _SLACK * total / of) for number in range(1, of)]
        for piece, cost, end in zip(pieces, costs, ends, strict=True):
            number = sum(end - cost / 2 > border for border in borders)
            assigned[number].update(unit.id for unit in piece)
    return assigned


def rounds(plan: Plan) -> int:
    """Return how often an array of shards is started; `gather` does the last stages over the whole run."""
    return 1 + max(plan.phases[unit.stage] for unit in plan.units if unit.checkpoint is not None)


def _pieces(plan: Plan, units: Iterable[Unit]) -> list[list[Unit]]:
    """Return units that one process has to do together: those of a checkpoint that read each other."""
    groups: dict[Any, list[Unit]] = defaultdict(list)
    for unit in units:
        groups[unit.model].append(unit)
    pieces = []
    for group in groups.values():
        stages = [plan.stages[name] for name in dict.fromkeys(unit.stage for unit in group)]
        written = {table for stage in stages for table in stage.writes}
        chained = any(written & set(stage.reads) for stage in stages)
        pieces += [group] if chained else [[unit] for unit in group]
    return pieces


def _border(closed: Sequence[float], ideal: float, slack: float) -> float:
    """Return the end of a checkpoint nearest to an ideal border, or the border itself if none is near."""
    nearest = min(closed, key=lambda end: abs(end - ideal))
    return nearest if abs(nearest - ideal) <= slack else ideal


def run_shard(
    config: str | Path | RunConfig,
    shard: str | Shard,
    *,
    progress: bool = True,
    say: Notify | None = None,
    **overrides: Any,
) -> ShardDone:
    """Run one shard of a study, or continue it; `gather` makes tables of all of them.

    Units go to `OUTPUT/NAME/parts/i-of-n`, which no other process writes into; what lies beside it there
    counts as stored.

    Args:
        config: as `run` takes it.
        shard: `i/n`.
        progress: bars on a terminal.
        say: called with what a person should know.
        overrides: keys that replace those of the config.

    Raises:
        ConfigError: the study cannot be understood or done in shards.
        FileExistsError: the run folder holds another study.
        FolderLocked: another process does this shard.
        Interrupted: after Ctrl-C or SIGTERM, when the unit at work was stored.

    Returns:
        where its units are, and how many of its share wait for other shards.

    Example:
        >>> from attnscope.engine.executors.shards import run_shard
        >>> run_shard("study.yaml", "9/8")
        Traceback (most recent call last):
        attnscope.errors.ConfigError: --shard: expected i/n with i from 1 to n, such as 2/8, got '9/8'
    """
    shard = shard if isinstance(shard, Shard) else Shard.parse(shard)
    settings = settings_of(config, **overrides)
    refuse_free_disk(settings)
    target = run_folder(settings)
    settings = settings.model_copy(update={"output": str(target.parent), "name": target.name})
    if (target / "study.yaml").is_file() or (has_content(target) and not (target / SHARDS).is_dir()):
        refuse_another(target, settings)
    folder = target / SHARDS / shard.folder
    again = (folder / "study.yaml").is_file()
    if again:
        refuse_another(folder, settings)
    refuse = partial(refuse_another if again else refuse_existing, folder, settings)
    if not again:
        refuse()
    shards = shard_folders([target], with_study=False)
    beside = [target, *(path for path in shards if path != folder)]
    assigned: set[str] = set()
    engine = Engine(prepare(settings, folder=folder), progress=progress, say=say, beside=beside)
    engine.executor = LocalExecutor(lambda unit: unit.id in assigned and engine.is_ready(unit))
    with engine.open_run(again, refuse) as (facts, lock):
        assigned |= assign_units(engine.plan, shard.of)[shard.number - 1]
        facts["shard"] = f"{shard.number}/{shard.of}"
        engine.execute_units(facts, lock)
        write_provenance(engine, facts, "shard finished")
        units = [unit for unit in engine.plan.units if unit.id in assigned]
        done = sum(unit.id in engine.store for unit in units)
        left = sum(
            unit.checkpoint is not None and unit.id not in engine.store and not engine.is_skipped(unit)
            for unit in units
        )
    return ShardDone(folder, target, done, left, engine.plan.skipped)


def refuse_free_disk(settings: RunConfig) -> None:
    """Raise ConfigError if a checkpoint would be removed from a disk that others read too."""
    for position, source in enumerate(settings.models):
        if source.free_disk:
            raise ConfigError(
                f"models[{position}].free_disk: other workers may still read what one of them removes; "
                "leave it off in shards and on a cluster"
            )


def shard_folders(folders: Iterable[str | Path], *, with_study: bool = True) -> list[Path]:
    """Return shards among folders and in `parts/` of run folders; `with_study`: only those with a study."""
    shards = []
    for folder in map(Path, folders):
        # a copy beside a shard, such as 1-of-2-old, is none
        parts = [part for part in (folder / SHARDS).glob("*-of-*") if _NAME.fullmatch(part.name)]
        shards += sorted(parts, key=lambda part: [*map(int, part.name.split("-of-"))]) or [folder]
    return [part for part in dict.fromkeys(shards) if not with_study or read_provenance(part).get("shard")]


def gather(
    folders: Sequence[str | Path],
    *,
    into: str | Path | None = None,
    progress: bool = True,
    say: Notify | None = None,
    trust_remote_code: bool = False,
) -> Results:
    """Make one run of its shards: merge their units, run the stages over the whole run, write the tables.

    A checkpoint that a shard could not load is tried once more, here, and then skipped with the reason.

    Args:
        folders: of shards, or run folders with shards in `parts/`.
        into: the run folder; None is the one that the shards were started for.
        progress: bars on a terminal.
        say: called with what a person should know.
        trust_remote_code: consent to run the Python code of models for which the stored study asks it.

    Raises:
        FileNotFoundError: no shard lies there.
        ConfigError: shards of different plans, versions or instruction sets, a unit in two of them, or the
            stored study runs code of a model without `trust_remote_code`.
        ResultsError: units are missing; those that are there were taken in.
        FolderLocked: another process writes into the run folder or into a shard.

    Returns:
        the stored results of the whole run.

    Example:
        >>> from attnscope.engine.executors.shards import gather
        >>> gather(["no/such/folder"])
        Traceback (most recent call last):
        FileNotFoundError: gather: there is no shard in no/such/folder
    """
    progress = flag("gather", "progress", progress)
    trust_remote_code = flag("gather", "trust_remote_code", trust_remote_code)
    parts = shard_folders(folders)
    if not parts:
        raise FileNotFoundError(f"gather: there is no shard in {', '.join(map(str, folders))}")
    settings = read_settings(parts[0])
    for part in parts[1:]:
        if changed := changes(read_settings(part), settings):
            raise ConfigError(f"gather: {part} is of another study than {parts[0]}: {changed}")
    target = Path(into) if into else Path(settings.output) / settings.name
    if len(folders) == 1 and not into and parts[0].parent == Path(folders[0]) / SHARDS:
        target = Path(folders[0])
    target = target.resolve()
    settings = settings.model_copy(update={"output": str(target.parent), "name": target.name})
    if not trust_remote_code:
        refuse_stored_trust(settings, "gather")
    refuse = partial(refuse_other_study, target, settings)
    refuse()
    engine = Engine(prepare(settings, folder=target), progress=progress, say=say)
    with engine.open_run(resume=True, refuse=refuse) as (facts, lock):
        skipped = merge_shards(engine, parts, facts)
        # what no shard could load is no reason to measure on another device than theirs; a stored unit is
        # only done again where it has read less than there is now
        engine.executor = LocalExecutor(
            lambda unit: (
                unit.checkpoint is None or unit.checkpoint.title in skipped or unit.id in engine.store
            ),
            (LoadError, OtherModel),
        )
        missing = [
            unit
            for unit in engine.plan.units
            if unit.checkpoint is not None
            and unit.id not in engine.store
            and not engine.is_skipped(unit)
            and unit.checkpoint.title not in skipped
        ]
        if missing:
            write_provenance(engine, facts, "units missing")
            names = "; ".join(f"{unit.folder} ({unit.title})" for unit in missing[:5])
            raise ResultsError(
                f"gather: {len(missing)} of {len(engine.plan.units)} units are in no shard: {names}"
                f"{'; ...' if len(missing) > 5 else ''}. Start the shards again, or do the rest here: "
                f"{command('resume', target)}"
            )
        engine.finish(facts, lock)
    return load(target)


def merge_shards(engine: Engine, parts: Sequence[Path], facts: dict[str, Any]) -> set[str]:
    """Link the units of shards into the run folder that an engine holds.

    Returns:
        titles of the checkpoints that a shard could not use.

    Raises:
        ConfigError: another plan, version or instruction set, or a unit in two shards.
        FolderLocked: a shard is at work.
    """
    skipped: set[str] = set()
    with ExitStack() as locks:
        for part in parts:
            refuse_links(part)
            locks.enter_context(FolderLock(part))
            provenance = read_provenance(part)
            if other := incompatibility(provenance, facts):
                raise ConfigError(f"{part}: {other}; one table would hold numbers of both")
            if provenance.get("plan") != facts["plan"]:
                raise ConfigError(
                    f"{part} is of another plan: the texts or the weights that it read are not those of here"
                )
            engine.refuse_other_models(provenance.get("models", {}))
            skipped |= {entry["checkpoint"] for entry in provenance.get("skipped", ())}
            engine.machines = {**provenance.get("machines", {}), **engine.machines}
            engine.total.add({"models": provenance.get("models", {})})
        folders_by_part = {part: set(os.listdir(part / "units")) for part in parts}
        for unit in engine.plan.units:
            where = [part for part, names in folders_by_part.items() if unit.folder in names]
            if len(where) > 1:
                raise ConfigError(
                    f"unit {unit.folder} ({unit.title}) is in two shards, {where[0]} and {where[1]}: "
                    "gather one of them"
                )
            elif where and unit.id not in engine.store:
                source = where[0] / "units" / unit.folder
                if not engine.store.adopt(unit.id, source):
                    engine.say(f"{source} is damaged: its unit counts as missing")
    return skipped
