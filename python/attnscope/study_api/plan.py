# SPDX-License-Identifier: MIT
"""The plan of a run: the units of work of every stage, in their order, with stable names.

A unit is named by a hash of all that decides its numbers: version, settings, weights, texts, token ids, and
the units that it reads. A stored unit of the same name is therefore the same result, which makes a run
resumable and invalidates all that follows from a unit that was computed anew. `attnscope.engine.planning`
makes a plan from settings.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from attnscope.config.run_config import RunConfig
from attnscope.models import Checkpoint, Encoder
from attnscope.study_api.stages import Stage
from attnscope.study_api.units import Unit
from attnscope.texts.sentence import Sentence

CheckpointsByModel = dict[int, list[tuple[Checkpoint, str]]]


@dataclass
class Plan:
    """The units of a run; models go by their position in the settings, stages by their name.

    Attributes:
        units: in the order in which they are done and stored.
        heads: attention heads per layer of each model that reads texts.
        layers: how many of its layers are studied.
        widths: numbers of a hidden state of it, and inside its feed-forward part.
        skipped: title and reason of checkpoints that cannot be used.
        notes: what a person should know before trusting the numbers.
        counts: sentences cut, of one token, empty, without BOS; per model label.
        phases: number of barriers before each stage.
        found: checkpoints of each model with the fingerprints of their weights.
    """

    settings: RunConfig
    stages: dict[str, Stage] = field(default_factory=dict)
    units: list[Unit] = field(default_factory=list)
    encoders: dict[int, Encoder] = field(default_factory=dict)
    heads: dict[int, int] = field(default_factory=dict)
    layers: dict[int, int] = field(default_factory=dict)
    widths: dict[int, tuple[int, int]] = field(default_factory=dict)
    skipped: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    sentences: list[Sentence] = field(default_factory=list)
    phases: dict[str, int] = field(default_factory=dict)
    checkpoints_by_model: CheckpointsByModel = field(default_factory=dict)
    _read: dict[tuple[Any, ...], tuple[list[Unit], bytes]] = field(default_factory=dict)
    _of: dict[tuple[str, Checkpoint | None], list[Unit]] = field(default_factory=lambda: defaultdict(list))

    @cached_property
    def series(self) -> dict[int, list[Checkpoint]]:
        """The checkpoints of each model."""
        return {
            position: [checkpoint for checkpoint, _ in pairs]
            for position, pairs in self.checkpoints_by_model.items()
        }

    @cached_property
    def weights(self) -> dict[Checkpoint | None, str]:
        """The fingerprint of the weights of every checkpoint, "" of none."""
        return {None: "", **dict(pair for pairs in self.checkpoints_by_model.values() for pair in pairs)}

    @cached_property
    def decisive(self) -> dict[str, Any]:
        """The settings that change a number."""
        without = {"name", "models", "texts", "output", "block", "max_tokens", "max_disk", "workers"}
        if self.settings.precision == "exact":  # runs from before there was another go on
            without.add("precision")
        return self.settings.model_dump(exclude=without)

    def leave_out(self, checkpoints: Iterable[Checkpoint], error: object) -> None:
        """Skip checkpoints for a reason, which may begin with a title."""
        titles = [checkpoint.title for checkpoint in checkpoints]
        self.skipped += [(title, str(error).removeprefix(f"{title}: ")) for title in titles]

    @property
    def reasons(self) -> str:
        """Reasons why checkpoints are skipped, each once."""
        return "; ".join(dict.fromkeys(f"{title}: {reason}" for title, reason in self.skipped))

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """Every checkpoint once, in order."""
        return list(dict.fromkeys(unit.checkpoint for unit in self.units if unit.checkpoint))

    @property
    def digest(self) -> str:
        """Hash of everything that affects the stored numbers."""
        return self.digest_of(self.units).hex()[:16]

    @staticmethod
    def digest_of(units: Sequence[Unit]) -> bytes:
        """Return a hash of the units."""
        return hashlib.sha256("".join(unit.id for unit in units).encode()).digest()

    def samples(self, unit: Unit) -> int:
        """Return the number of texts that the unit's model reads in the whole run."""
        counts = self.counts.get(unit.checkpoint.model if unit.checkpoint else "", {})
        return counts.get("sentences", 0) - counts.get("empty", 0)

    def groups(self, unit: Unit, count: int) -> int:
        """Return how many of `count` groups, cut from all texts in their order, the unit's texts are of."""
        total = max(1, self.samples(unit))
        return len({text.sentence.sample * count // total for text in unit.inputs})

    def reads(self, unit: Unit) -> list[Unit]:
        """Return the units whose tables a unit may read, in the order of the plan."""
        return self.reading(unit)[0]

    def reading(self, unit: Unit) -> tuple[list[Unit], bytes]:
        """Return the units that a unit reads and their digest, made once for all that read the same ones."""
        stage = self.stages[unit.stage]
        of_run = stage.within == "run" or unit.checkpoint is None
        key = (unit.stage, *(() if of_run else (unit.checkpoint, unit.variant, unit.seed)))
        if key not in self._read:
            writers = [
                name for name, earlier in self.stages.items() if set(earlier.writes) & set(stage.reads)
            ]
            checkpoint = None if of_run else unit.checkpoint
            read = [writer for name in writers for writer in self._of[name, checkpoint]]
            if not of_run:
                control = (unit.variant, unit.seed)
                of_control = [writer for writer in read if (writer.variant, writer.seed) == control]
                read = of_control or [writer for writer in read if not writer.variant]
            self._read[key] = read, self.digest_of(read)
        return self._read[key]

    def units_of(self, stage: str, checkpoint: Checkpoint | None) -> Sequence[Unit]:
        """Return the units of a stage, in the order of the plan; None is every checkpoint's."""
        return self._of[stage, checkpoint]

    def restrict(self, samples: Collection[int], checkpoints: Collection[Checkpoint]) -> None:
        """Keep the units of some checkpoints, reading some texts alone; names of units stay as they were.

        Args:
            samples: numbers of the texts to keep.
            checkpoints: those to keep; a pair is kept where both of it are.
        """
        units, self.units = self.units, []
        self._of.clear()
        self._read.clear()
        for unit in units:
            inputs = tuple(text for text in unit.inputs if text.sentence.sample in samples)
            if unit.inputs and not inputs:
                continue
            if {unit.checkpoint, unit.other} <= {None, *checkpoints}:
                self._register(replace(unit, inputs=inputs))

    def add(self, stage: Stage, **fields: Any) -> None:
        """Append a unit of a stage, named after everything that affects its numbers."""
        unit = Unit("", "", stage.name, **fields)
        digest = _hash(self, unit)
        unit = replace(unit, id=digest, folder=f"{len(self.units):06d}-{digest[:12]}")
        self._register(unit)

    def _register(self, unit: Unit) -> None:
        """Append a unit, to be found by its stage and checkpoint."""
        self.units.append(unit)
        for checkpoint in {None, unit.checkpoint}:
            self._of[unit.stage, checkpoint].append(unit)


def _hash(plan: Plan, unit: Unit) -> str:
    """Return a hash of everything that affects the numbers of a unit."""
    from attnscope import __version__

    settings = plan.settings
    head: list[Any] = [__version__, plan.decisive]
    weights = "" if unit.variant else plan.weights[unit.checkpoint]
    head += [unit.stage, unit.variant, unit.seed, weights, plan.weights[unit.other]]
    for checkpoint in (unit.checkpoint, unit.other):
        head += [None] if checkpoint is None else [checkpoint.model, checkpoint.revision, checkpoint.step]
    if unit.checkpoint is not None:
        head += [settings.models[unit.source].dtype, settings.models[unit.source].device]
    if plan.stages[unit.stage].units.longest:
        head.append(plan.encoders[unit.source].longest)
    digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for text in unit.inputs:
        sentence = text.sentence
        facts = [sentence.sample, sentence.group, sentence.text]
        facts += [sentence.source, sentence.source_row, sentence.extra]
        facts += [list(sentence.token_ids)] if sentence.token_ids is not None else []
        digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
        digest.update(text.encoded.ids.tobytes())
        if text.is_repeated:
            digest.update(f"repeats {text.first_equal}".encode())
    if plan.stages[unit.stage].reads:
        digest.update(plan.reading(unit)[1])
    return digest.hexdigest()


def megabytes(count: int) -> str:
    """Return a number of bytes in words.

    >>> megabytes(3 * 1024**3), megabytes(40 * 1024**2), megabytes(1500), megabytes(5)
    ('3.0 GB', '40 MB', '1.5 kB', '5 bytes')
    """
    for size, unit, places in ((1024**3, "GB", 1), (1024**2, "MB", 0), (1024, "kB", 1)):
        if count >= size:
            return f"{count / size:.{places}f} {unit}"
    return f"{count} bytes"
