# SPDX-License-Identifier: MIT
"""The cost of a run before it starts: units, tokens, memory and time from a short calibration.

The shortest, the median and the longest text of every model are really run, and the time of the others is
interpolated in their length, so that whoever starts a run of a day knows it before the first hour.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attnscope._memory import free_bytes, most_resident_bytes, peak_bytes, resident_bytes
from attnscope.config.run_config import Study
from attnscope.engine.engine import Engine
from attnscope.engine.progress import duration
from attnscope.engine.provenance import resolved
from attnscope.errors import MissingError
from attnscope.models import LoadError
from attnscope.study_api.batches import batches
from attnscope.study_api.plan import Plan, megabytes
from attnscope.study_api.units import Unit

#: Writing a figure as PDF and PNG and for the report takes so many times as long as drawing it.
_WRITTEN = 2.3
#: Seconds that two units of a model may take for their memory to be measured instead of computed.
_SHORT = 20.0
#: Bytes of manifests, provenance and a run's folder, and what no two runs leave in the allocator alike: a run
#: took 3 to 8 MB more than the dry run before it in the same process.
_BOOKS = 16 * 1024**2


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
    study: Study,
    say: Callable[[str], object] = lambda text: None,
    *,
    draw: bool = False,
    started: float = 0.0,
) -> Estimate:
    """Plan a study and measure a few texts of every model, without writing anything.

    The shortest, the median and the longest text are run through the first checkpoint of each model; the
    time of the others is interpolated in their length. If all texts have one length, a whole unit is run. A
    stage that cannot do without what earlier ones store is named and not measured.

    Args:
        say: gets the notes of the plan and of the study, before any weight is read.
        draw: whether the run will draw: then the figures of what was measured are drawn here.
        started: seconds until here that a run needs as well, such as those of imports.
    """
    began = time.perf_counter()
    study = resolved(study)
    engine = Engine(study, progress=False, say=lambda text: None)
    plan = engine.prepare()
    notes = [*plan.notes, *engine.study.describe_plan(plan)]
    for line in notes:
        say(line)
    seconds, peak = started + time.perf_counter() - began, resident_bytes()
    measured: list[Mapping[str, Any]] = []
    later: dict[str, None] = {}
    refused: set[int] = set()
    kinds = _units_by_kind(plan)
    for (source, stage, _), units in kinds.items():
        if source in refused:
            continue
        try:
            spent, alive = _calibrate(engine, units, measured)
        except LoadError as error:
            refused.add(source)
            plan.leave_out(dict.fromkeys(unit.checkpoint for unit in units if unit.checkpoint), error)
            if refused == {source for source, _, _ in kinds}:
                raise LoadError(plan.reasons) from None
        except MissingError:
            if not plan.stages[stage].reads:
                raise
            later[stage] = None
        else:
            seconds, peak = seconds + spent, max(peak, alive)
    plan.units = [unit for unit in plan.units if unit.source not in refused]
    reading = [unit for unit in plan.units if unit.inputs]
    _store(measured)
    _import_late_libraries()
    if later:
        peak = max(peak, resident_bytes() + engine.study.kept_bytes(plan))
    drawing = _drawing(study, plan, measured) if draw else 0.0
    # figures and the libraries that draw them take more than measuring a small model
    peak = max(peak, most_resident_bytes()) + _BOOKS
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
        drawing=drawing,
        layer_bytes=max((_layer_bytes(engine, unit) for unit in reading), default=0),
        peak_bytes=peak,
        free_bytes=free_bytes(),
        notes=notes,
        skipped=plan.skipped,
    )


def _units_by_kind(plan: Plan) -> dict[tuple[int, str, str], list[Unit]]:
    """Return the units that read texts, by model, stage and variant: those of one kind take like times."""
    kinds: dict[tuple[int, str, str], list[Unit]] = {}
    for unit in plan.units:
        if unit.inputs:
            kinds.setdefault((unit.source, unit.stage, unit.variant), []).append(unit)
    return kinds


def _store(measured: Sequence[Mapping[str, Any]]) -> None:
    """Write what was measured, read it as gathering does and remove it, so that the memory of both counts."""
    import tempfile

    from attnscope.results.store import dataset, write_table

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        for table in (table for tables in measured for table in tables.values()):
            with path.open("wb") as file:
                write_table(table, file)
            for _ in dataset([path]).to_batches(use_threads=False):
                pass


def _import_late_libraries() -> None:
    """Import what stages that read earlier tables load, so that its memory counts."""
    import importlib

    for name in ("pandas", "scipy.stats", "scipy.optimize"):
        importlib.import_module(name)


def _drawing(study: Study, plan: Plan, measured: Sequence[Mapping[str, Any]]) -> float:
    """Seconds to draw a study: its figures are drawn from what was measured, and not written.

    Figures of tables that the study makes at its end cost as much as the others. The report's tables and the
    page of heads cost about as much as two more.
    """
    began = time.perf_counter()
    import tempfile
    import warnings

    import pyarrow as pa

    from attnscope.plots import Drawn, NotDrawable, draw_all, figures_of
    from attnscope.plots.style import freeze_layout, panels, save
    from attnscope.results.results import Results

    tables = {
        name: pa.concat_tables(
            [tables_of_unit[name] for tables_of_unit in measured if name in tables_of_unit],
            promote_options="default",
        )
        for name in {
            name for tables_of_unit in measured for name in tables_of_unit if not name.startswith("reduced-")
        }
    }
    results = Results(tables, study=study.to_dict())
    declared = figures_of(results)
    at_its_end = {table for stage in plan.stages.values() for table in stage.writes} - set(tables)
    late = 0
    ready, spent, pictures = time.perf_counter() - began, [], dict[str, Drawn]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, figure in declared.items():
            began = time.perf_counter()
            try:
                drawn = draw_all(results, [name], left_out=[])
            except NotDrawable:
                late += bool(set(figure.tables) & at_its_end)
            else:
                if drawn:
                    spent.append(time.perf_counter() - began)
                    pictures |= drawn  # a run holds all of them until its report is written
    if pictures:
        with tempfile.TemporaryDirectory() as folder:
            save(next(iter(pictures.values())).figure, f"{folder}/first", ("pdf", "png", "svg"))
    if spent:
        seconds_per_figure = (1 + _WRITTEN) * sum(spent) / len(spent)
    else:  # figures of what a study computes at its end are each like three empty panels
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            save(freeze_layout(panels(1, 3, height=2.4)[0]), f"{folder}/panels", ("pdf", "png", "svg"))
        seconds_per_figure = time.perf_counter() - began
    return ready + seconds_per_figure * (len(spent) + late + 2)


def _calibrate(engine: Engine, units: Sequence[Unit], measured: list[Mapping[str, Any]]) -> tuple[float, int]:
    """Seconds for all units of one model, and bytes at the peak; measured tables are appended to a list."""
    checkpoint = units[0].checkpoint
    assert checkpoint is not None
    began = time.perf_counter()
    engine.loaded(checkpoint, units[0], control=False)
    loading = time.perf_counter() - began
    inputs = sorted((text for unit in units for text in unit.inputs), key=lambda text: text.n_tokens)
    lengths = [text.n_tokens for text in inputs]

    def timed(unit: Unit) -> float:
        began = time.perf_counter()
        measured.append(engine.work(unit))
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
    alive = resident_bytes() + measuring
    # what a unit takes besides its layers, and what the allocator keeps of it, shows in the process itself
    if reading_all * min(2, len(units)) / len(units) < _SHORT:
        for unit in units[:2]:
            engine.work(unit)
    return reading_all + loading * checkpoints, alive


def _layer_bytes(engine: Engine, unit: Unit) -> int:
    """Return the bytes of a layer's attention in the widest batch of a unit."""
    heads = engine.plan.heads[unit.source]
    return max(_squares(group) * heads * 4 for group in batches(unit, heads, engine.layer_budget))


def _squares(group: Sequence[Any]) -> int:
    """Return the entries of a head's padded maps of a batch of texts."""
    return len(group) * max(text.n_tokens for text in group) ** 2
