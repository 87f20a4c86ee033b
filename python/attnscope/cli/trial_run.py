# SPDX-License-Identifier: MIT
"""A run of a few texts, by which a dry run knows what memory and drawing really take."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from attnscope._system import resident_bytes
from attnscope.cli.drawing import draw_run
from attnscope.config.run_config import RunConfig
from attnscope.engine.engine import Engine
from attnscope.engine.prepared_run import prepare
from attnscope.errors import DiskFull, Interrupted, LoadError, UnitsFailed
from attnscope.models import Checkpoint
from attnscope.study_api.plan import Plan
from attnscope.study_api.units import Unit

#: A model's position in the settings, a stage and a variant: units of one kind take like times.
Kind = tuple[int, str, str]
UnitsByKind = Mapping[Kind, Sequence[Unit]]
#: Checkpoints of every model that a trial reads: two, so that there are pairs.
_CHECKPOINTS = 2
#: Units of every kind whose texts a trial reads, where that takes less than so many seconds.
_UNITS, _SECONDS = 2, 60.0
#: Texts of every kind of unit that it reads elsewhere: as many as the groups that a study asks for at least.
_FEW = 8
#: Bytes that drawing takes for every byte of a run's tables: as Arrow, as pandas, and what figures select.
_COPIES = 2.5


@dataclass(frozen=True)
class Trial:
    """The time and the memory of a run of a few texts.

    Attributes:
        drawing: seconds of figures, page of heads and report.
        table_bytes: of those of its tables that have rows for each text, in memory.
        share: its texts, of those of the whole run, a checkpoint's text counting once a checkpoint.
        resident: bytes of the process when its tables were written and nothing was drawn.
        failed: why there is no such run; "" where there is.
    """

    drawing: float = 0.0
    table_bytes: int = 0
    share: float = 1.0
    resident: int = 0
    failed: str = ""

    @property
    def later_bytes(self) -> int:
        """Bytes that drawing the whole run takes beyond what drawing the trial took."""
        return int(_COPIES * self.table_bytes * (1 / self.share - 1)) if self.drawing else 0


def trial_samples(plan: Plan, kinds: UnitsByKind, seconds: Mapping[Kind, float]) -> frozenset[int]:
    """Return the numbers of the texts that a trial reads.

    Whole units where they are short, because a unit's texts go through the model together; else the longest
    text of every kind of unit and a few over the whole length of its sources, which studies divide in groups.

    Args:
        plan: of the whole run.
        kinds: its units that read texts, by model, stage and variant.
        seconds: that all units of a kind take.
    """
    blocks: set[int] = set()
    few: set[int] = set()
    for units in kinds.values():
        blocks |= {text.sentence.sample for unit in units[:_UNITS] for text in unit.inputs}
        inputs = [text for unit in units for text in unit.inputs]
        few.add(max(inputs, key=lambda text: text.n_tokens).sentence.sample)
        samples = sorted({text.sentence.sample for text in inputs})
        few |= set(samples[:: -(-len(samples) // _FEW)])
    first = _first_checkpoints(plan)
    expected = 0.0
    for kind, units in kinds.items():
        inputs = [text for unit in units if unit.checkpoint in first for text in unit.inputs]
        read = sum(text.sentence.sample in blocks for text in inputs)
        expected += seconds.get(kind, 0.0) * read / _texts(units)
    return frozenset(blocks if expected < _SECONDS else few)


def try_out(study: RunConfig, samples: frozenset[int], draw: bool) -> Trial:
    """Run a study over a few texts, to its report where it is drawn, in a folder that is removed.

    The memory of this process then shows all that a run takes besides measuring: stages that read earlier
    tables, writing, figures that are alive together, and the libraries of all of it.
    """
    with tempfile.TemporaryDirectory(prefix="attnscope-") as folder:
        # weights that a run removes when it has measured them are still to be measured
        models = [source.model_copy(update={"free_disk": False}) for source in study.models]
        settings = study.model_copy(update={"output": folder, "models": models})
        try:
            prepared = prepare(settings)
            share = _restrict(prepared.plan, samples)
            results = Engine(prepared, progress=False, say=_ignore).run()
            resident = resident_bytes()
        except Interrupted:
            # its message names a folder to go on with, and this one is removed
            raise KeyboardInterrupt from None
        except (ValueError, LookupError, LoadError, DiskFull, UnitsFailed) as error:
            # too few texts for a stage, or what ends the run as well: a plan is worth printing nevertheless
            return Trial(failed=f"{type(error).__name__}: {error}")
        tables = [results.arrow(name) for name in results.tables()]
        table_bytes = sum(table.nbytes for table in tables if "sample" in table.column_names)
        began = time.perf_counter()
        if draw:
            draw_run(results, [], _ignore, quiet=True)
        return Trial(time.perf_counter() - began if draw else 0.0, table_bytes, share, resident)


def _restrict(plan: Plan, samples: Collection[int]) -> float:
    """Keep a trial's texts and checkpoints in a plan, and return the share of its texts that are left."""
    count = _texts(plan.units)
    plan.restrict(samples, _first_checkpoints(plan))
    return _texts(plan.units) / count if count else 1.0


def _first_checkpoints(plan: Plan) -> list[Checkpoint]:
    """Return the checkpoints that a trial reads."""
    return [checkpoint for series in plan.series.values() for checkpoint in series[:_CHECKPOINTS]]


def _texts(units: Sequence[Unit]) -> int:
    """Return how many texts units read."""
    return sum(len(unit.inputs) for unit in units)


def _ignore(text: str) -> None:
    """Take no notice of a line."""
