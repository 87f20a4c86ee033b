# SPDX-License-Identifier: MIT
"""A study that streams the self-attention of every text and measures each layer while it is alive."""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, field_validator
from torch import Tensor

from attnscope._nearest import nearest
from attnscope.engine.config import ConfigError, Settings
from attnscope.engine.forward import Batch
from attnscope.engine.results import Results
from attnscope.engine.schema import CHECKPOINT_KEYS, HEAD_KEYS
from attnscope.engine.study import Names, Study
from attnscope.engine.tables import Rows, Table, described
from attnscope.engine.units import Stage, Unit, Units

if TYPE_CHECKING:
    import pyarrow as pa

    from attnscope.capture import Layer
    from attnscope.engine.stage_run import StageRun
    from attnscope.models import Encoder, LoadedModel

_MAPS = (*CHECKPOINT_KEYS, "sample", "layer")
_KEYS = {
    **dict.fromkeys(("heads", "signals", "examples"), HEAD_KEYS),
    "graphs": (*HEAD_KEYS, "threshold"),
    "layers": (*_MAPS, "protocol"),
    "bars": (*HEAD_KEYS, "dimension", "birth", "death"),
    "frames": (*CHECKPOINT_KEYS, "group", "protocol"),
    "frame_evidence": (*CHECKPOINT_KEYS, "group", "protocol", "kind", "third"),
    "specialization": (*CHECKPOINT_KEYS, "layer", "head", "protocol"),
    "layer_tests": (*CHECKPOINT_KEYS, "metric", "layer", "other_layer", "protocol"),
    "removal_tests": (*CHECKPOINT_KEYS, "layer", "percentile", "protocol"),
    "null_tests": (*CHECKPOINT_KEYS, "kind", "metric", "scope", "protocol"),
    "graph_depth": (*CHECKPOINT_KEYS, "protocol", "threshold"),
    "fisher": (*_MAPS, "group", "protocol"),
    "ablation": (*CHECKPOINT_KEYS, "sample", "keys"),
    "emergence": ("model", "group", "layer", "head", "protocol", "metric"),
    "spectra": (*_MAPS, "protocol", "frequency"),
    "scale_sensitivity": (*HEAD_KEYS, "fraction"),
    "harmonics": (*CHECKPOINT_KEYS, "layer", "input", "pair", "protocol"),
    "uncertainty": (*CHECKPOINT_KEYS, "sample", "protocol"),
    "phases": (*CHECKPOINT_KEYS, "metric"),
    "nulls": (*CHECKPOINT_KEYS, "sample", "kind", "protocol", "scope", "metric", "threshold"),
    "baselines": ("n_tokens", "metric", "kind", "threshold"),
}

#: Rows of a map that are averaged at a time: few enough to stay in the cache.
_BAND = 128


def _keys_of(table: str) -> tuple[str, ...]:
    return _KEYS.get(table, ())


class AnyOptions(BaseModel):
    """Options that a recipe's constructor checks.

    Args:
        metrics: names of metrics; empty takes all that the recipe has.
        thresholds: of the attention graphs: numbers in (0, 1), or "k/n" for multiples of uniform attention.
        bars: store every persistence bar.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    metrics: Names = []
    thresholds: list[float | str] = [0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2]
    bars: bool = False

    @field_validator("thresholds", mode="before")
    @classmethod
    def _thresholds(cls, value: object) -> object:
        items = [value] if isinstance(value, (int, float, str)) else value
        if isinstance(items, Sequence):
            for item in items:
                if isinstance(item, str) and not re.fullmatch(r"[1-9]\d*/n", item):
                    raise ValueError(f"expected a number in (0, 1) or a text such as '2/n', got {item!r}")
                if isinstance(item, (int, float)) and not 0 < item < 1:
                    raise ValueError(f"expected thresholds inside (0, 1), got {item!r}")
        return items


class _WithOptions:
    """Settings of a run with those of the study's options that stand beside them."""

    def __init__(self, settings: Settings, options: AnyOptions) -> None:
        self._settings = settings
        self.metrics, self.thresholds, self.bars = options.metrics, options.thresholds, options.bars

    def __getattr__(self, name: str) -> Any:
        return getattr(self._settings, name)


class UnitRows:
    """Rows of the tables of one unit.

    Args:
        run: of the unit; None where nothing is stored.
        null: whether they belong to a null, of which only averages are kept.
        constants: key columns that are the same in every row, without a run.
    """

    def __init__(
        self, run: StageRun | None = None, *, null: bool = False, constants: Mapping[str, Any] | None = None
    ) -> None:
        self.run = run
        self.constants = constants
        self.null = null
        self._tables: dict[str, Rows] = {}
        self._nulls: dict[str, UnitRows] = {}

    def add(self, table: str, columns: Mapping[str, Any]) -> None:
        """Adds rows to a table; single values are repeated."""
        if self.run is not None and not self.null:
            self.run.write(table, **columns)
            return
        self._tables.setdefault(table, Rows(Table(table, _keys_of(table), None), "", self.constants)).add(
            **columns
        )

    def nulls(self, kind: str) -> UnitRows:
        """The rows of a null of the same sentences."""
        return self._nulls.setdefault(kind, UnitRows(null=True))

    def finish(self) -> dict[str, pa.Table]:
        """The tables that are not stored."""
        return {name: rows.arrow() for name, rows in self._tables.items()}

    def store(self, recipe: Recipe, variant: str) -> None:
        """Stores the averages of the nulls."""
        nulls = {variant: self} if variant else dict(sorted(self._nulls.items()))
        assert self.run is not None
        table = recipe.table("nulls")
        whole = Rows(table, recipe.name, self.run.constants(table.keys))
        for kind, rows in nulls.items():
            columns = recipe.reduced(rows.finish(), kind)
            if columns:
                whole.add(**columns)
        if len(whole):
            self.run.store("nulls", whole.arrow())


class Recipe(Study, ABC):
    """A study that measures the self-attention of every text, layer by layer.

    Args:
        study: the settings.

    Raises:
        ConfigError: an option, a metric or a protocol that it does not know.
    """

    Options = AnyOptions
    #: Tables that are filled while texts are read, and those that are made from them at the end.
    measured: ClassVar[tuple[str, ...]] = ()
    made: ClassVar[tuple[str, ...]] = ()

    def __init__(self, study: Settings) -> None:
        super().__init__(study)
        self.study: Any = _WithOptions(study, self.options)
        self.notes: list[str] = []
        known = self.metrics()
        for metric in self.options.metrics:
            if metric not in known:
                raise ConfigError(f"metrics: {study.study} has no metric {metric!r}{nearest(metric, known)}")

    @classmethod
    def table(cls, name: str) -> Table:
        """One of the study's tables; its columns are those that its metrics have."""
        return Table(name, _keys_of(name), columns=None)

    def stages(self, units: Units) -> list[Stage]:
        """Weights, texts, and what is made from both."""
        variants = ("random_weights",) if self.twins() else ()
        whole = [
            Stage(
                "texts",
                units.texts(variants=variants, seeds=1, longest=self.pads()),
                self._texts,
                writes=self.measured,
            ),
            Stage(
                "summaries",
                units.once(),
                self._summaries,
                reads=("samples", *self.measured),
                writes=("baselines", *self.made),
            ),
        ]
        if type(self).of_weights is not Recipe.of_weights:
            whole.insert(0, Stage("weights", units.checkpoints(), self._weights, writes=self.measured))
        return whole

    def _weights(self, unit: Unit, run: StageRun) -> None:
        for table, columns in self.of_weights(run.model().model).items():
            run.write(table, **columns)
        self._say(run)

    def _texts(self, unit: Unit, run: StageRun) -> None:
        rows = UnitRows(run, null=bool(unit.variant))
        loaded = run.model()
        for batch in run.batches():
            for model, part in self.passes(loaded.model, batch):
                outputs: list[Any] = []
                for number, layer in run.layers(
                    part, self.sites(), extra=self.extra_sites(), model=model, outputs=outputs
                ):
                    self.measure(layer, number, part, rows)
                last = getattr(outputs[0], "last_hidden_state", None) if outputs else None
                self.after(loaded, run.inputs(part), part, run.encoder, last, rows)
        rows.store(self, unit.variant)
        self._say(run)

    def _summaries(self, unit: Unit, run: StageRun) -> None:
        import pyarrow as pa

        stored = run.stored
        seen = {
            (n, causal)
            for n, causal in stored.table("samples", ["n_tokens", "causal"]).itertuples(index=False)
            if causal is not None
        }
        rows: list[dict[str, Any]] = []
        for n, causal in sorted(seen):
            with warnings.catch_warnings():
                # what has no value on uniform attention is null in the table, which says enough
                warnings.simplefilter("ignore", RuntimeWarning)
                rows += self.baselines(int(n), bool(causal))
        names = ["n_tokens", "metric", "kind", "threshold", "protocol"]
        rows.sort(key=lambda row: [-1.0 if row[name] != row[name] else row[name] for name in names])
        tables = {"baselines": pa.Table.from_pylist(rows)} if rows else {}
        results = Results(tables, files=stored.files)
        for name, table in {**tables, **self.finish(results)}.items():
            run.store(name, described(table.replace_schema_metadata(), self.table(name), self.name))
        self._say(run)

    def _say(self, run: StageRun) -> None:
        for note in self.notes:
            run.note(note)

    @classmethod
    @abstractmethod
    def metrics(cls) -> list[str]:
        """Names that `Study.metrics` may hold."""

    @abstractmethod
    def sites(self) -> tuple[str, ...]:
        """What `attnscope.capture` is asked for."""

    def extra_sites(self) -> tuple[str, ...]:
        """Sites that are welcome where a model lets them be captured; what needs them is NaN elsewhere."""
        return ()

    def passes(self, model: Any, batch: Batch) -> Iterator[tuple[Any, Batch]]:
        """The forward passes that a batch takes, in order; each layer of each is given to `measure`.

        A recipe that compares a sentence with its own beginning, or a model with another, yields more than
        the model on the batch.

        Args:
            model: the checkpoint.
            batch: the sentences.
        """
        yield model, batch

    def of_weights(self, model: Any) -> Mapping[str, Mapping[str, Any]]:
        """What needs no sentence, measured once per checkpoint: columns by name of the table.

        Args:
            model: the checkpoint.
        """
        return {}

    @abstractmethod
    def measure(self, layer: Layer, number: int, batch: Batch, rows: UnitRows) -> None:
        """Measures one captured layer of a batch.

        Args:
            layer: self-attention over the whole sentences, valid during this call only.
            number: of the layer, unique in the model.
            batch: the sentences.
            rows: takes the results.
        """

    def after(
        self,
        loaded: LoadedModel,
        inputs: Mapping[str, Tensor],
        batch: Batch,
        encoder: Encoder,
        last: Tensor | None,
        rows: UnitRows,
    ) -> None:
        """Called when all layers of a batch are measured, for what needs the whole or other runs.

        Args:
            loaded: the model.
            inputs: of the forward pass.
            batch: the sentences.
            encoder: of the model.
            last: the last hidden state [b, n, D], None where the model gives none.
            rows: takes the results.
        """

    def twins(self) -> bool:
        """Whether a twin of each model with random weights is wanted, as a null."""
        return False

    def pads(self) -> bool:
        """Whether a sentence's numbers depend on the length of the longest, to which it is padded."""
        return False

    def note(self, text: str) -> None:
        """Remembers what a person should know; each text is said once a run.

        Args:
            text: "" is nothing.
        """
        if text and text not in self.notes:
            self.notes.append(text)

    def reduced(self, tables: Mapping[str, pa.Table], kind: str) -> dict[str, Any]:
        """What is kept of the tables of a null: columns of the table `nulls`.

        Args:
            tables: as a unit has them.
            kind: of the null.
        """
        return {}

    def baselines(self, n_tokens: int, causal: bool) -> list[dict[str, Any]]:
        """The same metrics on uniform attention: rows of the table `baselines`.

        Args:
            n_tokens: size of the map.
            causal: whether keys after the query are hidden.
        """
        return []

    def finish(self, results: Results) -> dict[str, pa.Table]:
        """Tables that are made from the stored ones when every unit is done.

        Args:
            results: the run's tables so far.
        """
        return {}


def head_mean(heads: Tensor) -> Tensor:
    """The mean over heads of [batch, h, n, n], [batch, 1, n, n] in float64.

    By bands of rows: `torch.mean` with another dtype first copies all heads into it, which is two layers'
    worth of memory, and a sum of two dtypes copies the one of them.

    Args:
        heads: one layer's maps.
    """
    mean = torch.zeros(heads.shape[0], *heads.shape[2:], dtype=torch.float64, device=heads.device)
    for first in range(0, heads.shape[2], _BAND):
        band = mean[:, first : first + _BAND]
        for head in heads[:, :, first : first + _BAND].unbind(1):
            band += head
    return mean.div_(heads.shape[1]).unsqueeze(1)


def bar_columns(barcodes: Any, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of `bars` from the barcodes of maps in the order of the keys.

    Args:
        barcodes: what `attnscope.persistence` returns.
        keys: key columns, one entry per map or one for all.
    """
    each = np.diff(barcodes.offsets.numpy())
    return {
        **{key: np.repeat(values, each) if np.ndim(values) else values for key, values in keys.items()},
        "dimension": barcodes.dimension.numpy().astype(np.int64),
        "birth": barcodes.birth.numpy(),
        "death": barcodes.death.numpy(),
    }
