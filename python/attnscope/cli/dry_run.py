# SPDX-License-Identifier: MIT
"""The cost of a run before it starts: units, tokens, memory and time from a short calibration.

The shortest, the median and the longest text of every model are really run, and the time of the others is
interpolated in their length, so that whoever starts a run of a day knows it before the first hour.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attnscope._memory import free_bytes, peak_bytes
from attnscope._progress import duration
from attnscope._system import peak_resident_bytes, resident_bytes
from attnscope.cli.trial_run import Kind, UnitsByKind, trial_samples, try_out
from attnscope.config.run_config import RunConfig
from attnscope.engine.engine import Engine
from attnscope.engine.prepared_run import prepare, with_absolute_paths
from attnscope.errors import LoadError, MissingError
from attnscope.study_api.batches import batches
from attnscope.study_api.plan import Plan, megabytes
from attnscope.study_api.units import Unit


@dataclass(frozen=True)
class Estimate:
    """The plan of a run in numbers."""

    folder: str
    units: int
    checkpoints: int
    sentences: int  # per checkpoint
    tokens: int  # of all units
    longest: int  # tokens of the longest text
    seconds: float  # expected on this machine, start and loading included, drawing not
    drawing: float  # expected seconds of figures, report and page of heads
    layer_bytes: int  # attention of one layer in the largest batch
    peak_bytes: int  # expected of the process
    free_bytes: int  # on the machine now
    notes: list[str]
    skipped: list[tuple[str, str]]  # checkpoints that cannot be used, with reasons

    def __str__(self) -> str:
        checkpoints = "checkpoint" if self.checkpoints == 1 else "checkpoints"
        texts = "text" if self.sentences == 1 else "texts"
        lines = [
            f"folder        {self.folder}",
            f"units         {self.units:,} ({self.checkpoints:,} {checkpoints} x {self.sentences:,} {texts})",
            f"tokens        {self.tokens:,}, longest text {self.longest:,}",
            f"memory        about {megabytes(self.peak_bytes)} at the peak "
            f"({megabytes(self.layer_bytes)} are one layer's attention), {megabytes(self.free_bytes)} free",
            f"time          about {duration(self.seconds + self.drawing)} on this machine",
        ]
        if self.drawing:
            parts = f"{duration(self.seconds)} to measure, {duration(self.drawing)} to draw"
            lines[-1] += f": {parts} (--no-draw leaves that out)"
        lines += [f"note          {note}" for note in self.notes]
        lines += [f"skipped       {title}: {reason}" for title, reason in self.skipped]
        return "\n".join(lines)


def dry_run(
    study: RunConfig,
    say: Callable[[str], object] = lambda text: None,
    *,
    draw: bool = False,
    started: float = 0.0,
) -> Estimate:
    """Plan a study and measure a few texts of every model, without writing anything.

    The shortest, the median and the longest text are run through the first checkpoint of each model; the
    time of the others is interpolated in their length. If all texts have one length, a whole unit is run. A
    stage that cannot do without what earlier ones store is named and not measured. Then a few texts are run
    to the end, in a folder that is removed: its memory and the time of its drawing are those of a run.

    Args:
        say: gets the notes of the plan and of the study, before any weight is read.
        draw: whether the run will draw: then the few texts' figures and report are drawn here.
        started: seconds until here that a run needs as well, such as those of imports.
    """
    began = time.perf_counter()
    study = with_absolute_paths(study)
    prepared = prepare(study)
    engine, plan = Engine(prepared, progress=False, say=lambda text: None), prepared.plan
    notes = [*plan.notes, *engine.study.describe_plan(plan)]
    for line in notes:
        say(line)
    seconds, peak = started + time.perf_counter() - began, resident_bytes()
    kinds = _units_by_kind(plan)
    calibration = _calibrate_all(engine, kinds)
    later = calibration.later
    seconds += sum(calibration.seconds.values())
    peak = max(peak, calibration.alive)
    plan.units = [unit for unit in plan.units if unit.source not in calibration.refused]
    reading = [unit for unit in plan.units if unit.inputs]
    if later:
        peak = max(peak, resident_bytes() + engine.study.kept_bytes(plan))
    engine.release()
    trial = try_out(study, trial_samples(plan, kinds, calibration.seconds), draw)
    # the libraries that write tables are there while all units but the first are measured
    peak = max(peak, trial.resident + calibration.measuring)
    peak = max(peak, peak_resident_bytes()) + trial.later_bytes
    if trial.failed:
        notes.append(f"what later stages and drawing take is not known: {trial.failed}")
    if later:
        notes.append(f"the time of what reads earlier tables is not known: {', '.join(later)}")
    return Estimate(
        folder=str(engine.folder),
        units=sum(unit.checkpoint is not None for unit in plan.units),
        checkpoints=len(plan.checkpoints),
        sentences=len({text.sentence.sample for unit in reading for text in unit.inputs}),
        tokens=sum(unit.tokens for unit in plan.units),
        longest=max((text.n_tokens for unit in reading for text in unit.inputs), default=0),
        seconds=seconds,
        drawing=trial.drawing,
        layer_bytes=max((_layer_bytes(engine, unit) for unit in reading), default=0),
        peak_bytes=peak,
        free_bytes=free_bytes(),
        notes=notes,
        skipped=plan.skipped,
    )


def _units_by_kind(plan: Plan) -> dict[Kind, list[Unit]]:
    """Return the units that read texts, by model, stage and variant."""
    kinds: dict[Kind, list[Unit]] = {}
    for unit in plan.units:
        if unit.inputs:
            kinds.setdefault((unit.source, unit.stage, unit.variant), []).append(unit)
    return kinds


@dataclass
class _Calibration:
    """The seconds of every kind of unit, and the most bytes alive.

    Attributes:
        measuring: bytes that measuring adds to a loaded model at the most.
        later: stages that read what earlier ones store, and were not measured.
        refused: positions of models that cannot be loaded.
    """

    seconds: dict[Kind, float] = field(default_factory=dict)
    alive: int = 0
    measuring: int = 0
    later: list[str] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)


def _calibrate_all(engine: Engine, kinds: UnitsByKind) -> _Calibration:
    """Measure a few texts of every kind of unit; LoadError if no model can be loaded."""
    plan, result = engine.plan, _Calibration()
    for kind, units in kinds.items():
        source, stage, _ = kind
        if source in result.refused:
            continue
        try:
            result.seconds[kind], measuring = _calibrate(engine, units)
            result.measuring = max(result.measuring, measuring)
            result.alive = max(result.alive, resident_bytes() + measuring)
        except LoadError as error:
            result.refused.add(source)
            plan.leave_out(dict.fromkeys(unit.checkpoint for unit in units if unit.checkpoint), error)
            if result.refused == {source for source, _, _ in kinds}:
                raise LoadError(plan.reasons) from None
        except MissingError:
            if not plan.stages[stage].reads:
                raise
            if stage not in result.later:
                result.later.append(stage)
    return result


def _calibrate(engine: Engine, units: Sequence[Unit]) -> tuple[float, int]:
    """Return the seconds for all units of one kind, and the bytes that measuring them adds at the peak."""
    checkpoint = units[0].checkpoint
    assert checkpoint is not None
    began = time.perf_counter()
    engine.loaded(checkpoint, units[0], control=False)
    loading = time.perf_counter() - began
    inputs = sorted((text for unit in units for text in unit.inputs), key=lambda text: text.n_tokens)
    lengths = [text.n_tokens for text in inputs]

    def timed(unit: Unit) -> float:
        began = time.perf_counter()
        engine.work(unit)
        return max(time.perf_counter() - began, 1e-6)

    # the first forward pass of a process pays for caches and code that the others find ready
    engine.work(replace(units[0], inputs=(inputs[0],)))
    if lengths[0] == lengths[-1]:
        # texts of one length go through the model together, in far less time than one by one
        reading_all = timed(units[0]) * len(inputs) / len(units[0].inputs)
    else:
        picked = [0, len(inputs) // 2, -1]
        times = [timed(replace(units[0], inputs=(inputs[at],))) for at in picked]
        logs = np.interp(np.log(lengths), np.log([lengths[at] for at in picked]), np.log(times))
        reading_all = float(np.exp(logs).sum())
    widest = max(_layer_bytes(engine, unit) for unit in units)
    checkpoints = len({unit.checkpoint for unit in units})
    measuring = peak_bytes(widest, engine.plan.heads[units[0].source], inputs[-1].n_tokens)
    return reading_all + loading * checkpoints, measuring


def _layer_bytes(engine: Engine, unit: Unit) -> int:
    """Return the bytes of a layer's attention in the widest batch of a unit."""
    heads = engine.plan.heads[unit.source]
    return max(_squares(group) * heads * 4 for group in batches(unit, heads, engine.layer_budget))


def _squares(group: Sequence[Any]) -> int:
    """Return the entries of a head's padded maps of a batch of texts."""
    return len(group) * max(text.n_tokens for text in group) ** 2
