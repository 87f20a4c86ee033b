# SPDX-License-Identifier: MIT
"""The context of a stage for one unit: model, batches, tables, random generator.

Example:
    >>> from attnscope.study_api.stage_run import generator
    >>> int(generator(0, "haar", 3).integers(100)) == int(generator(0, "haar", 3).integers(100))
    True
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from torch import Tensor

from attnscope._memory import FreePages
from attnscope.models import Checkpoint, LoadedModel
from attnscope.results.results import Results
from attnscope.study_api.batches import batches
from attnscope.study_api.context import RunContext
from attnscope.study_api.forward import Batch, batch_of, lazy_self_attention, padded, self_attention
from attnscope.study_api.reductions import Partials, Reduced, folded
from attnscope.study_api.tables import Rows, control_rows
from attnscope.study_api.units import Unit

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from attnscope.capture import Forward, Layer
    from attnscope.capture.forward import Run
    from attnscope.capture.lazy.lazy_layer import LazyLayer

_FREE_PAGES = FreePages()
#: A layer of a pass: of maps, or of queries and keys.
_L = TypeVar("_L")


class StageRun:
    """The models, batches, tables, reductions and draws of one unit.

    Args:
        context: of the run.
        unit: of one of its stages.
        reads: tables and reductions of earlier stages that the stage may read.
        writes: tables that it may write.
    """

    def __init__(self, context: RunContext, unit: Unit, reads: Sequence[str], writes: Sequence[str]) -> None:
        self._context = context
        self._reads = tuple(reads)
        self._writes = tuple(writes)
        self._rows: dict[tuple[str, str], Rows] = {}
        self._tables: dict[str, pa.Table] = {}
        self.unit = unit
        self.settings = context.settings
        self.partials = Partials()
        #: sample -> whether every map of it that was captured was causal.
        self.causal: dict[int, bool] = {}

    @property
    def skipped(self) -> list[tuple[str, str]]:
        """Title and reason of the checkpoints that could not be used."""
        return list(self._context.skipped)

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """Every checkpoint of the run, in the order of the plan."""
        return self._context.checkpoints

    def model(self, checkpoint: Checkpoint | None = None) -> LoadedModel:
        """Return a checkpoint in memory, loaded now; None is the unit's own, or its control."""
        is_of_unit = checkpoint is None or checkpoint == self.unit.checkpoint
        return self._context.loaded(self._chosen("model", checkpoint), self.unit, control=is_of_unit)

    def folder(self, checkpoint: Checkpoint | None = None) -> Path:
        """Return the folder of a checkpoint's files, None the unit's own; nothing is loaded."""
        return self._context.weights_folder(self._chosen("folder", checkpoint))

    def _chosen(self, function: str, checkpoint: Checkpoint | None) -> Checkpoint:
        checkpoint = checkpoint or self.unit.checkpoint
        if checkpoint is None:
            raise ValueError(
                f"{function}: a unit of the stage {self.unit.stage!r} has no checkpoint of its own"
            )
        return checkpoint

    @property
    def encoder(self) -> Any:
        """The encoder of the unit's texts."""
        return self._context.encoder(self.unit)

    @property
    def samples(self) -> int:
        """Number of texts that the unit's model reads in the whole run."""
        return self._context.samples(self.unit)

    def batches(self) -> Iterator[Batch]:
        """Yield the unit's texts, those of similar length together."""
        unit, context = self.unit, self._context
        with context.bar(len(unit.inputs), "sentences", inner=True) as bar:
            for group in batches(unit, context.heads(unit), context.layer_budget):
                yield batch_of(group, self.encoder)
                _FREE_PAGES.give_back()
                bar.update(len(group))

    def inputs(self, batch: Batch) -> dict[str, Tensor]:
        """Return the arguments of the model's forward pass: token ids and mask, padded on the right."""
        return padded(batch, self.encoder.pad_id, self.model().device)

    def layers(
        self,
        batch: Batch,
        sites: Sequence[str] = ("attention",),
        *,
        extra: Sequence[str] = (),
        outputs: list[Any] | None = None,
    ) -> Iterator[tuple[int, Layer]]:
        """Yield the self-attention layers of one forward pass, each with its number.

        Args:
            batch: from `batches`.
            sites: what is captured.
            extra: captured too where the model lets it.
            outputs: gets what the model returns, when the last layer is through.
        """
        yield from self._timed(
            batch,
            lambda: self_attention(
                self.model().model,
                self.inputs(batch),
                layers=self.settings.layers or None,
                sites=sites,
                extra=extra,
                outputs=outputs,
            ),
            # in a causal map the first query sees the first key alone
            lambda layer: "attention" not in sites or not bool((layer.attention[:, :, 0, 1:] != 0).any()),
        )

    def lazy_layers(self, batch: Batch) -> Iterator[tuple[int, LazyLayer]]:
        """Yield the self-attention layers of one forward pass as queries and keys; no map is computed."""
        yield from self._timed(
            batch,
            lambda: lazy_self_attention(
                self.model().model,
                self.inputs(batch),
                layers=self.settings.layers or None,
                precision="fast" if self.settings.precision == "fast" else None,
            ),
            lambda layer: layer.attention.causal,
        )

    def _timed(
        self,
        batch: Batch,
        pass_over: Callable[[], Iterator[tuple[int, _L]]],
        is_causal: Callable[[_L], bool],
    ) -> Iterator[tuple[int, _L]]:
        """Yield the layers of a pass, with its time and that of what measures them counted apart.

        A text stays causal as long as every layer is.
        """
        tally, began = self._context.tally, time.perf_counter()
        for sample in batch.samples:
            self.causal.setdefault(sample, True)
        for number, layer in pass_over():
            if not is_causal(layer):
                self.causal.update(dict.fromkeys(batch.samples, False))
            tally.forward_seconds += time.perf_counter() - began
            began = time.perf_counter()
            yield number, layer
            tally.metric_seconds += time.perf_counter() - began
            began = time.perf_counter()
        _FREE_PAGES.give_back()
        tally.forward_seconds += time.perf_counter() - began

    def forward(
        self, batch: Batch, declaration: Forward, *, model: Any = None
    ) -> AbstractContextManager[Run]:
        """Run one forward pass of a model, None the unit's own; see `attnscope.capture.forward`."""
        from attnscope.capture import forward

        return forward(self.model().model if model is None else model, self.inputs(batch), declaration)

    def write(self, table: str, *, variant: Any = "", **columns: Any) -> None:
        """Add rows to a table; the unit's model, revision and step are filled in.

        Args:
            table: one that the stage declares among its `writes`.
            variant: the control that rows are of, "" the unit's own; they go to the table `NAME_variants`.
            columns: arrays of one length, or single values that hold for all rows.

        Raises:
            ValueError: a table or a column that is not declared.
        """
        key = (table, variant or self.unit.variant)
        if key not in self._rows:
            self._check("writes", table)
            declared = self._context.table(table)
            models = [checkpoint.model for checkpoint in self.checkpoints]
            constants = self.constants(declared.keys)
            self._rows[key] = Rows(declared, self._context.study_name, constants, models)
        self._rows[key].add(**columns)

    def store(self, table: str, rows: pa.Table) -> None:
        """Store a complete table, instead of `write`."""
        self._check("writes", table)
        self._tables[table] = rows

    def read(self, table: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return a table of an earlier stage: of this checkpoint, or of the whole run, as the stage says.

        Args:
            table: one that the stage declares among its `reads`; ValueError where it does not.
            columns: only these; None reads all.
        """
        self._check("reads", table)
        return self.stored.table(table, columns)

    @property
    def stored(self) -> Results:
        """The tables of earlier stages that this one may read, from their units' files."""
        return Results(files={name: files for name in self._reads if (files := self._files(name))})

    def reduce(self, name: str, tensor: Any, **keys: Any) -> None:
        """Add a tensor, always of one shape, to a sum over units, in float64 and in the order of the calls.

        Args:
            name: one that the stage declares among its `writes`.
            keys: what is summed apart.
        """
        self._check("writes", name)
        self.partials.add(name, tensor, **keys)

    def reduced(self, name: str, by: Sequence[str] = (), **only: Any) -> dict[tuple[Any, ...], Reduced]:
        """Return sums of an earlier stage, folded in the order of the plan, one unit in memory at a time.

        Args:
            by: keys that stay apart, in the order of the result's keys.
            only: values of keys; other sums are not read.
        """
        self._check("reads", name)
        return folded(self._files(f"reduced-{name}"), by, only)

    def rng(self, *key: int | str) -> np.random.Generator:
        """Return a generator that depends on the run's seed and the key alone."""
        return generator(self.settings.seed, *key)

    def note(self, text: str) -> None:
        """Keep a sentence for the user; each is shown once a run, "" is none."""
        if text and text not in self._context.notes:
            self._context.notes.append(text)

    def finish(self) -> dict[str, pa.Table]:
        """Return every table that the unit has written."""
        tables: dict[str, pa.Table] = {}
        controls: dict[str, list[tuple[Rows, str]]] = {}
        for (table, variant), rows in self._rows.items():
            if variant:
                controls.setdefault(rows.table.controls().name, []).append((rows, variant))
            else:
                tables[table] = rows.arrow()
        seed = self.unit.seed
        of_controls = {name: control_rows(rows, seed).arrow() for name, rows in controls.items()}
        return {**tables, **of_controls, **self._tables, **self.partials.tables()}

    def constants(self, keys: Sequence[str]) -> dict[str, Any]:
        """Return the key columns that are the same in all rows of the unit."""
        unit = self.unit
        keys_of_unit: dict[str, Any] = {}
        if unit.checkpoint is not None:
            revision, step = ("", -1) if unit.variant else (unit.checkpoint.revision, unit.checkpoint.step)
            keys_of_unit = {"model": unit.checkpoint.model, "revision": revision, "step": step}
        if unit.other is not None:
            keys_of_unit |= {"base_revision": unit.other.revision, "base_step": unit.other.step}
        return {name: value for name, value in keys_of_unit.items() if name in keys}

    def _check(self, verb: Literal["reads", "writes"], table: str) -> None:
        if table not in (self._reads if verb == "reads" else self._writes):
            raise ValueError(f"the stage {self.unit.stage!r} does not declare that it {verb} {table!r}")

    def _files(self, table: str) -> list[Path]:
        """Return the files of a table that the unit may read."""
        return self._context.files(self.unit, table)


def generator(seed: int, *key: int | str) -> np.random.Generator:
    """Return a generator of a seed and a key; texts count as the first 8 bytes of their SHA-256."""
    numbers = [
        part if isinstance(part, int) else int.from_bytes(hashlib.sha256(part.encode()).digest()[:8], "big")
        for part in key
    ]
    return np.random.default_rng([seed, *numbers])
