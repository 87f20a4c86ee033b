# SPDX-License-Identifier: MIT
"""Features of texts for classifiers, stored block by block.

Stages of a checkpoint: `measure` writes the tables of `analyze` for a block of texts, `pivot` turns them into
the table `features`, with a row for each text. A run resumes where it stopped, and its blocks can be measured
on many machines.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from attnscope.analysis.answer_regions import Region
from attnscope.analysis.recipe import TABLE_KEYS, LeftOut, Recipe, complete_recipe, named_recipe
from attnscope.analysis.text_sites import TextSites
from attnscope.errors import ConfigError
from attnscope.models.inputs.answer_spans import NO_ANSWER, answer_spans
from attnscope.results.features import describe_column, features_of
from attnscope.results.results import Results
from attnscope.results.schema import CHECKPOINT_KEYS
from attnscope.study_api.stages import Stages
from attnscope.study_api.study import Names, Options, Study
from attnscope.study_api.tables import Table
from attnscope.study_api.units import Unit
from attnscope.texts.sentence import Sentence
from attnscope.untrusted.safe_text import list_names

if TYPE_CHECKING:
    from attnscope.study_api.stage_run import StageRun

#: Tables of numbers of single heads, and the same of each layer's mean over its heads.
_HEADS = {name: Table(name, TABLE_KEYS[name], None) for name in ("heads", "graphs", "vectors")}
_MEANS = {name: table.head_means() for name, table in _HEADS.items()}
_LAYERS = Table("layers", TABLE_KEYS["layers"], None)
_TEXTS = Table("texts", (*CHECKPOINT_KEYS, "sample"), None)
_MEASURED = (*_HEADS.values(), *_MEANS.values(), _LAYERS)


class FeatureOptions(Options):
    """The metrics, and the columns of the texts' file with answers, labels and groups.

    Args:
        metrics: names of metrics or columns; none takes everything that the model gives.
        answer: column of answers, [start, stop] or "start:stop"; "" measures whole texts.
        answer_unit: "tokens" or "characters".
        answer_only: measure the block of the answer's queries and keys alone.
        label: column of labels.
        group: column of groups, texts that share words or a question.
    """

    metrics: Names = Field(default=[])
    answer: str = ""
    answer_unit: Literal["tokens", "characters"] = "tokens"
    answer_only: bool = False
    label: str = ""
    group: str = ""


STAGES = Stages()


@STAGES.stage(
    lambda units, study: units.texts(),
    writes=[table.name for table in (*_MEASURED, _TEXTS)],
)
def measure(study: FeatureStudy, unit: Unit, run: StageRun) -> None:
    """Write the numbers of a block of texts, and what the file says of each text."""
    options: FeatureOptions = study.options
    recipe = study.recipe()._replace(precision=study.settings.precision)
    spans = _spans(study, unit, run)
    region: Region = "text"
    if options.answer:
        region = "answer" if options.answer_only else "prefix"
    text_sites = TextSites(run.model().model, spans or None, 0, region)
    left_out, states = LeftOut(recipe.columns), recipe.states()
    needed, optional = (states, ()) if options.metrics else ((), states)
    for batch in run.batches():
        for number, layer in run.layers(batch, ("attention", *needed), extra=optional):
            for table, columns in recipe.measure(layer, number, batch, left_out, text_sites):
                is_mean = table in _MEANS and "head" not in columns
                run.write(_MEANS[table].name if is_mean else table, **columns)
    texts = [text.sentence for text in unit.inputs]
    ends = [spans.get(text.sample, NO_ANSWER) for text in texts]
    run.write(
        "texts",
        sample=[text.sample for text in texts],
        start=[start for start, _ in ends],
        stop=[stop for _, stop in ends],
        n_tokens=[text.n_tokens for text in unit.inputs],
        label=_column(unit, options.label),
        group=_column(unit, options.group),
    )


@STAGES.stage(
    lambda units, study: units.checkpoints(),
    reads=[table.name for table in (*_MEASURED, _TEXTS)],
    writes=("features",),
    within="checkpoint",
)
def pivot(study: FeatureStudy, unit: Unit, run: StageRun) -> None:
    """Store a row of features for each text of the checkpoint."""
    import pyarrow as pa

    stored = run.stored
    texts = run.read("texts").sort_values("sample").reset_index(drop=True)
    tables = {name: stored.arrow(name) for name in stored.tables() if name != "texts"}
    assert unit.checkpoint is not None
    facts: dict[str, Any] = {
        "columns": {column.name: describe_column(column) for column in study.recipe().columns},
        "model": unit.checkpoint.model,
        "answers": bool(study.options.answer),
    }
    results = Results({"samples": texts, **tables}, provenance=facts)
    features = features_of(results, also=[*study.options.metrics])
    rows = features.arrow()
    for place, (key, value) in enumerate(run.constants(CHECKPOINT_KEYS).items()):
        rows = rows.add_column(place, key, pa.repeat(value, len(rows)))
    run.store("features", rows)


def _spans(study: FeatureStudy, unit: Unit, run: StageRun) -> dict[int, tuple[int, int]]:
    """Return the answer of each text as a span of tokens, by the text's number; none without answers."""
    options: FeatureOptions = study.options
    if not options.answer:
        return {}
    spans = answer_spans(
        "features",
        [_read_span(text.sentence, options.answer) for text in unit.inputs],
        [text.encoded.ids.tolist() for text in unit.inputs],
        texts=[text.sentence.text for text in unit.inputs],
        tokenizer=run.encoder.tokenizer,
        unit=options.answer_unit,
    )
    if NO_ANSWER in spans:
        row = unit.inputs[spans.index(NO_ANSWER)].sentence.source_row
        raise ConfigError(f"options.answer: row {row} has no answer in its column {options.answer!r}")
    return {text.sentence.sample: span for text, span in zip(unit.inputs, spans, strict=True)}


class FeatureStudy(Study):
    """The study; its stages are the functions above."""

    name = "features"
    Options = FeatureOptions
    tables = (*_MEASURED, _TEXTS, Table("features", (*CHECKPOINT_KEYS, "sample"), None))
    declared_stages = STAGES

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        if self.options.answer_only and not self.options.answer:
            raise ConfigError("options.answer_only needs options.answer, the column of answers")
        self.recipe()

    def recipe(self) -> Recipe:
        """Return what is measured; ConfigError where a name is unknown."""
        options: FeatureOptions = self.options
        with_answers = bool(options.answer)
        try:
            if options.metrics:
                return named_recipe(options.metrics, {}, with_answers=with_answers)
            return complete_recipe({}, with_answers=with_answers)
        except ValueError as error:
            raise ConfigError(f"options.metrics: {error}") from None


def _read_span(sentence: Sentence, name: str) -> Any:
    """Return the start and stop that a row of the file says, None where it says none."""
    columns, row = sentence.extra, sentence.source_row
    if name not in columns:
        raise ConfigError(f"options.answer: row {row} has no column {name!r}, got {list_names(columns)}")
    cell = columns[name]
    if isinstance(cell, str):
        try:
            return [int(end) for end in cell.split(":")] if ":" in cell else json.loads(cell)
        except ValueError:
            raise ConfigError(f"options.answer: row {row} must hold start:stop, got {cell!r}") from None
    return cell


def _column(unit: Unit, name: str) -> Any:
    """Return a column of the texts' file, None of each text without a name."""
    if not name:
        return np.full(len(unit.inputs), None, dtype=object)
    cells = []
    for text in unit.inputs:
        if name not in text.sentence.extra:
            raise ConfigError(
                f"options: row {text.sentence.source_row} has no column {name!r}, got "
                f"{', '.join(text.sentence.extra)}"
            )
        cells.append(text.sentence.extra[name])
    return np.array(cells, dtype=object)


STUDY = FeatureStudy
