# SPDX-License-Identifier: MIT
"""The part of the engine that a stage can see, as a protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from attnscope.config.run_config import RunConfig
from attnscope.models import Checkpoint, Encoder, LoadedModel
from attnscope.study_api.tables import Table
from attnscope.study_api.tally import Tally
from attnscope.study_api.units import Unit


class RunContext(Protocol):
    """The context that one run gives to its stages.

    Attributes:
        settings: of the run, with absolute paths.
        study_name: name of the study, for the metadata of its tables.
        tally: counts and times, to which stages add.
        notes: sentences for the user, to which stages add.
        layer_budget: bytes that the attention of one layer may take; None for the default.
        skipped: title and reason of each checkpoint that cannot be used.
        checkpoints: every checkpoint of the run, in the order of the plan.
    """

    settings: RunConfig
    tally: Tally
    notes: list[str]
    layer_budget: int | None

    @property
    def study_name(self) -> str: ...

    @property
    def skipped(self) -> list[tuple[str, str]]: ...

    @property
    def checkpoints(self) -> list[Checkpoint]: ...

    def table(self, name: str) -> Table:
        """Return a table that the study declares; ValueError where it declares none of this name."""

    def encoder(self, unit: Unit) -> Encoder:
        """Return the encoder of the unit's model."""

    def heads(self, unit: Unit) -> int:
        """Return the number of attention heads per layer of the unit's model whose maps are held."""

    def samples(self, unit: Unit) -> int:
        """Return the number of texts that the unit's model reads in the whole run."""

    def files(self, unit: Unit, table: str) -> list[Path]:
        """Return the files of a table that the unit may read, in the order of the plan."""

    def loaded(self, checkpoint: Checkpoint, unit: Unit, *, control: bool) -> LoadedModel:
        """Return a checkpoint in memory, or with `control` the unit's control of it."""

    def weights_folder(self, checkpoint: Checkpoint) -> Path:
        """Return the folder of a checkpoint's files; nothing is loaded."""

    def bar(self, total: int, label: str, initial: int = 0, *, inner: bool = False) -> Any:
        """Return a progress bar, as a context."""
