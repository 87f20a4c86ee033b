# SPDX-License-Identifier: MIT
"""What a run will take, before it starts: units, tokens, memory and time from a short calibration."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnscope._memory import free_bytes, peak_bytes, resident_bytes
from attnscope._progress import duration
from attnscope.engine.config import Study
from attnscope.engine.plan import Plan, megabytes
from attnscope.engine.run import Engine
from attnscope.engine.run_folder import resolved
from attnscope.engine.schema import MissingError
from attnscope.engine.texts.encoding import batches
from attnscope.engine.units import Unit
from attnscope.models import LoadError

#: Writing a figure as PDF and PNG and for the report takes so many times as long as drawing it.
_WRITTEN = 2.3


@dataclass(frozen=True)
class Estimate:
    """The plan of a run in numbers.

    Attributes:
        folder: where the run would go.
        units: units of work.
        checkpoints: sets of weights.
        sentences: texts per checkpoint.
        tokens: of all units.
        longest: tokens of the longest text.
        seconds: expected time on this machine, start and loading included, drawing not.
        drawing: expected seconds of figures, report and page of heads.
        layer_bytes: attention of one layer in the largest batch.
        peak_bytes: expected peak of the process.
        free_bytes: memory the machine has free now.
        notes: what a person should know before trusting the numbers.
        skipped: checkpoints that cannot be used, with reasons.
    """

    folder: str
    units: int
    checkpoints: int
    sentences: int
    tokens: int
    longest: int
    seconds: float
    drawing: float
    layer_bytes: int
    peak_bytes: int
    free_bytes: int
    notes: list[str]
    skipped: list[tuple[str, str]]

    def __str__(self) -> str:
        lines = [
            f"folder        {self.folder}",
            f"units         {self.units:,} ({_count(self.checkpoints, 'checkpoint')} x "
            f"{_count(self.sentences, 'text')})",
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
    study: Study,
    say: Callable[[str], object] = lambda text: None,
    *,
    draw: bool = False,
    started: float = 0.0,
) -> Estimate:
    """Plans a study and measures a few texts of every model, without writing anything.

    The shortest, the median and the longest text are run through the first checkpoint of each model; the
    time of the others is interpolated in their length. Of texts of one length a whole unit is run. A stage
    that cannot do without what earlier ones store is named and not measured.

    Args:
        say: gets the notes of the plan and what the study expects, before any weight is read.
        draw: whether the run will draw: then the figures of what was measured are drawn here.
        started: seconds until here that a run needs as well, such as those of imports.
    """
    began = time.perf_counter()
    study = resolved(study)
    engine = Engine(study, progress=False, say=lambda text: None)
    plan = engine.prepare()
    notes = [*plan.notes, *engine.study.expects(plan)]
    for line in notes:
        say(line)
    seconds, peak = started + time.perf_counter() - began, resident_bytes()
    measured: list[Mapping[str, Any]] = []
    later: dict[str, None] = {}
    refused: set[int] = set()
    reading = [unit for unit in plan.units if unit.inputs]
    kinds = dict.fromkeys((unit.source, unit.stage, unit.variant) for unit in reading)
    for kind in kinds:
        units = [unit for unit in reading if (unit.source, unit.stage, unit.variant) == kind]
        if units[0].source in refused:
            continue
        try:
            spent, alive = _calibrate(engine, units, measured)
        except LoadError as error:
            refused.add(units[0].source)
            plan.leave_out(dict.fromkeys(unit.checkpoint for unit in units if unit.checkpoint), error)
            if refused == {source for source, _, _ in kinds}:
                raise LoadError(plan.reasons) from None
            continue
        except MissingError:
            if not plan.stages[units[0].stage].reads:
                raise
            later[units[0].stage] = None
            continue
        seconds += spent
        peak = max(peak, alive)
    plan.units = [unit for unit in plan.units if unit.source not in refused]
    reading = [unit for unit in plan.units if unit.inputs]
    if later:
        notes.append(f"the time of what reads earlier tables is not known: {', '.join(later)}")
    return Estimate(
        folder=str(engine.folder),
        units=sum(unit.checkpoint is not None for unit in plan.units),
        checkpoints=len(plan.checkpoints),
        sentences=len({one.sentence.sample for unit in reading for one in unit.inputs}),
        tokens=plan.tokens,
        longest=max((one.n_tokens for unit in reading for one in unit.inputs), default=0),
        seconds=seconds,
        drawing=_drawing(study, plan, measured) if draw else 0.0,
        layer_bytes=max((_layer_bytes(engine, unit) for unit in reading), default=0),
        peak_bytes=peak,
        free_bytes=free_bytes(),
        notes=notes,
        skipped=plan.skipped,
    )


def _drawing(study: Study, plan: Plan, measured: Sequence[Mapping[str, Any]]) -> float:
    """Seconds to draw a study: its figures are drawn from what was measured, and not written.

    Those of tables that the study makes at its end cost as much as the others. The report's tables and the
    page of heads cost about as much as two more.
    """
    began = time.perf_counter()
    import tempfile
    import warnings

    import pyarrow as pa

    from attnscope.engine.results import Results
    from attnscope.plots import NotDrawable, draw_all, figures_of
    from attnscope.plots.style import panels, save, settled

    tables = {
        name: pa.concat_tables([one[name] for one in measured if name in one], promote_options="default")
        for name in {name for one in measured for name in one if not name.startswith("reduced-")}
    }
    results = Results(tables, study=study.to_dict())
    own = figures_of(results)
    at_its_end = {table for stage in plan.stages.values() for table in stage.writes} - set(tables)
    late = 0
    ready, spent = time.perf_counter() - began, []
    for name in own:
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                drawn = draw_all(results, [name], left_out=[])
            except NotDrawable:
                late += bool(set(own[name].tables) & at_its_end)
                continue
        if drawn:
            spent.append(time.perf_counter() - began)
    if spent:
        return ready + (1 + _WRITTEN) * sum(spent) * (1 + (late + 2) / len(spent))
    # figures of what a study computes at its end: as many as it has, each like three empty panels
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        save(settled(panels(1, 3, height=2.4)[0]), f"{folder}/panels", ("pdf", "png", "svg"))
    return ready + (time.perf_counter() - began) * (late + 2)


def _calibrate(engine: Engine, units: Sequence[Unit], measured: list[Mapping[str, Any]]) -> tuple[float, int]:
    """Seconds for all units of one model, and bytes at the peak; what was measured goes into a list."""
    checkpoint = units[0].checkpoint
    assert checkpoint is not None
    began = time.perf_counter()
    engine.loaded(checkpoint, units[0], control=False)
    loading = time.perf_counter() - began
    inputs = sorted((one for unit in units for one in unit.inputs), key=lambda one: one.n_tokens)
    picked = [inputs[0], inputs[len(inputs) // 2], inputs[-1]]
    # the first forward pass of a process pays for caches and code that the others find ready
    engine.work(replace(units[0], inputs=(picked[0],)))
    if inputs[0].n_tokens == inputs[-1].n_tokens:
        # texts of one length go through the model together, in far less time than one by one
        picked = []
        began = time.perf_counter()
        measured.append(engine.work(units[0]))
        whole = (time.perf_counter() - began) * len(inputs) / len(units[0].inputs)
    lengths, times = [], []
    for one in picked:
        began = time.perf_counter()
        measured.append(engine.work(replace(units[0], inputs=(one,))))
        lengths.append(math.log(one.n_tokens))
        times.append(math.log(max(time.perf_counter() - began, 1e-6)))
    if picked:
        order = np.argsort(lengths, kind="stable")
        logs = np.interp(
            [math.log(one.n_tokens) for one in inputs], np.asarray(lengths)[order], np.asarray(times)[order]
        )
        whole = float(np.exp(logs).sum())
    widest = max(_layer_bytes(engine, unit) for unit in units)
    checkpoints = len({unit.checkpoint for unit in units})
    measuring = peak_bytes(widest, engine.plan.heads[units[0].source], inputs[-1].n_tokens)
    return whole + loading * checkpoints, resident_bytes() + measuring


def _layer_bytes(engine: Engine, unit: Unit) -> int:
    heads = engine.plan.heads[unit.source]
    groups = batches(unit, heads, engine.layer_budget)
    return max(len(group) * heads * max(one.n_tokens for one in group) ** 2 * 4 for group in groups)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
