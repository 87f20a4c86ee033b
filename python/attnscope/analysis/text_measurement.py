# SPDX-License-Identifier: MIT
"""The measurement of prepared texts: pass by pass, layer by layer, into tables in memory."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnscope._precision import PRECISIONS, Precision, provenance_of
from attnscope._progress import progress_bar
from attnscope._warn import warn
from attnscope.analysis.answer_regions import Region
from attnscope.analysis.prepared_texts import ForwardPass, PreparedTexts
from attnscope.analysis.recipe import TABLE_KEYS, LeftOut, Recipe
from attnscope.analysis.text_sites import TextSites
from attnscope.capture.lazy.lazy_layer import LazyLayer
from attnscope.errors import CountedWarning
from attnscope.metrics.selected_queries import chosen_queries
from attnscope.models.architecture import text_config
from attnscope.models.inputs.answer_spans import NO_ANSWER, answer_spans
from attnscope.results.features import describe_column
from attnscope.results.results import Results
from attnscope.study_api.forward import Batch, lazy_refusal, lazy_self_attention, self_attention
from attnscope.study_api.tables import Rows, Table

if TYPE_CHECKING:
    from attnscope.capture import Layer


#: Seconds before a bar is shown.
BAR_SECONDS = 2.0


@dataclass(frozen=True)
class InputRequest:
    """The texts that a call reads, and the part of each that it measures.

    Attributes:
        function: whose name errors begin with.
        name: of the model in the tables; empty takes its own.
        column: of a table, the one that holds the texts.
        answer: of each text, None without answers.
        answer_unit: "tokens" or "characters".
        region: the part of each text that is measured.
        keep_empty: keep columns without a value, so that names do not depend on the texts.
        processor: of pictures and sounds; None without any.
        stack: part of the names of stacks whose layers are measured.
        generate: options of the model's `generate`, which then writes the answers; None: it writes none.
        queries: that means over rows are restricted to, None for all.
        cross: cross attention is measured too.
        vectors: also numbers per query, key or rank of metrics with numbers per map.
        precision: of metrics, None where the caller names none.
        progress: show a bar.
        layer_bytes: bound for the attention of a layer; None for the usual one.
        keep_partial: give what is measured when somebody stops the call.
    """

    function: str
    name: str = ""
    column: str = ""
    answer: Any = None
    answer_unit: str = "tokens"
    region: Region = "text"
    keep_empty: bool = False
    processor: Any = None
    stack: str = ""
    generate: Mapping[str, Any] | None = None
    queries: Any = None
    cross: bool = False
    vectors: bool = True
    precision: Precision | None = None
    progress: bool = True
    layer_bytes: int | None = None
    keep_partial: bool = False

    @property
    def has_answers(self) -> bool:
        """True if texts have answers, of the caller or of the model.

        Raises:
            ValueError: answers of both.
        """
        if self.answer is not None and self.generate is not None:
            raise ValueError(
                f"{self.function}: answer says where answers are, generate writes them; give one"
            )
        return self.answer is not None or self.generate is not None

    @property
    def checked_precision(self) -> Precision:
        """Precision in which maps are measured.

        Raises:
            ValueError: neither None nor one of the two.
        """
        if self.precision not in (None, *PRECISIONS):
            raise ValueError(
                f"{self.function}: precision must be None, 'exact' or 'fast', got {self.precision!r}"
            )
        return self.precision or "exact"

    def chosen(self, batch: Batch, text_sites: TextSites) -> Tensor | None:
        """Return the queries of a batch's texts that means over rows are restricted to, None for all.

        They are counted from the first token of each text. Layers that read other tokens have neither prompt
        nor answer.
        """
        if self.queries is None:
            return None
        before, spans = text_sites.before_text(batch), text_sites.answers
        sizes = [size - (before or 0) for size in batch.query_lengths]
        if before is None and isinstance(self.queries, str):
            sizes = [0] * len(sizes)
        answers = [None if spans is None else spans[sample] for sample in batch.samples]
        chosen = chosen_queries(self.function, self.queries, sizes, answers, batch.samples)
        return torch.where(chosen < 0, chosen, chosen + (before or 0))

    def measured_parts(self, texts: int, spans: Sequence[tuple[int, int]] | None) -> list[Hashable]:
        """Return what tells the measured parts of texts apart that a model reads alike: answers, and queries
        that are chosen for each text.
        """
        answers = [None] * texts if spans is None else spans
        queries = self.queries
        if (
            queries is None
            or isinstance(queries, (str, slice))
            or torch.as_tensor(queries[0], device="cpu").ndim == 0
        ):
            return [*answers]
        return [(answer, tuple(map(bool, row))) for answer, row in zip(answers, queries, strict=False)]

    def spans(self, texts: PreparedTexts, tokenizer: Any) -> list[tuple[int, int]] | None:
        """Return the answers of texts as spans of tokens; None without answers."""
        if self.generate is not None:
            ends = (texts.answer_starts[sample] for sample in range(len(texts.inputs)))
            generated = [(start, text.n_tokens) for start, text in zip(ends, texts.inputs, strict=True)]
            spans = [span if span[0] < span[1] else NO_ANSWER for span in generated]
        elif self.answer is None:
            return None
        else:
            ids = [text.encoded.ids.tolist() for text in texts.inputs]
            written = [text.sentence.text for text in texts.inputs]
            spans = answer_spans(
                self.function, self.answer, ids, texts=written, tokenizer=tokenizer, unit=self.answer_unit
            )
        if self.region != "text" and NO_ANSWER in spans:
            raise ValueError(f"{self.function}: text {spans.index(NO_ANSWER)} has no answer")
        return spans


class TextMeasurement:
    """The measurement of prepared texts, pass by pass and layer by layer.

    Args:
        request: of the caller.
        recipe: the columns.
        label: of the model.
        sites: captured beside attention: those that are needed, and those that are taken where a model
            gives them.
        layers: numbers of layers; None for all.

    Attributes:
        measured: samples whose layers are all measured.
        ways: what they were measured from: "maps", or "queries and keys".
        fallbacks: maps that "fast" measured exactly, by metric.
    """

    def __init__(
        self,
        request: InputRequest,
        recipe: Recipe,
        label: str,
        sites: tuple[Sequence[str], Sequence[str]],
        layers: Sequence[int] | None,
    ) -> None:
        self.request, self.recipe, self.label = request, recipe, label
        self._needed, self._optional = sites
        self._layers = layers
        self._rows = _TablesOfRows({"model": label, "revision": "", "step": -1})
        self._left_out = LeftOut(recipe.columns)
        self.measured: list[int] = []
        self.ways: set[str] = set()
        self.fallbacks: Counter[str] = Counter()
        self._refusal: str | None = None
        self._is_decoder = False

    def run(self, model: Any, texts: PreparedTexts, text_sites: TextSites) -> KeyboardInterrupt | None:
        """Measure all texts; return the interrupt of whoever stopped that, else None."""
        others = OtherMaps(self.request.function, type(model).__name__)
        config = text_config(model.config)
        # of a decoder alone, which reads the states of an encoder that it is given
        reads_states = bool(getattr(config, "add_cross_attention", False))
        self._is_decoder = reads_states and not getattr(model.config, "is_encoder_decoder", False)
        shown, label = self.request.progress, f"{self.request.function}: {self.label.rpartition('/')[2]}"
        with progress_bar(len(texts.inputs), label, show=shown, delay=BAR_SECONDS, unit="text") as bar:
            try:
                for forward_pass in texts.passes(self.label, model, self.request.layer_bytes):
                    for number, layer in self._layers_of(model, forward_pass):
                        bar.set_postfix_str(f"layer {number}", refresh=False)
                        if forward_pass.is_of(layer):
                            self._add(layer, number, forward_pass, text_sites)
                        else:
                            others.add(layer, len(forward_pass.batch.samples))
                    self.measured += forward_pass.batch.samples
                    bar.update(len(forward_pass.batch.samples))
            except KeyboardInterrupt as stop:
                return stop
        others.report(is_all=not len(self._rows))
        return None

    def _layers_of(
        self, model: Any, forward_pass: ForwardPass
    ) -> Iterator[tuple[int, Layer]] | Iterator[tuple[int, LazyLayer]]:
        """Return the layers of a pass: queries and keys where nothing that is measured needs a map."""
        arguments = forward_pass.arguments
        request = self.request
        has_cross = request.cross and getattr(model.config, "is_encoder_decoder", False)
        is_plain = request.region == "text" and not (has_cross or request.stack)
        if is_plain and request.queries is None and self.recipe.needs_no_map:
            refusal = self._refusal
            if refusal is None:
                refusal = self._refusal = lazy_refusal(
                    model, arguments, layers=self._layers, cross=request.cross
                )
            if not refusal and set(arguments) <= {"input_ids", "attention_mask"}:
                self.ways.add("queries and keys")
                return lazy_self_attention(model, arguments, layers=self._layers, precision=request.precision)
        self.ways.add("maps")
        return self_attention(
            model,
            arguments,
            layers=self._layers,
            sites=("attention", *self._needed),
            extra=self._optional,
            reasons=self._left_out.sites,
            stack=request.stack,
            cross=request.cross,
        )

    def _add(
        self,
        layer: Layer | LazyLayer,
        number: int,
        forward_pass: ForwardPass,
        text_sites: TextSites,
    ) -> None:
        """Measure a layer and add its rows."""
        batch = forward_pass.batch_of(layer)
        self._rows.has_kinds |= forward_pass.has_decoder or layer.cross
        if isinstance(layer, LazyLayer):
            rows = self.recipe.measure_lazily(layer, number, batch, self._left_out)
        else:
            chosen = self.request.chosen(batch, text_sites)
            self._drop_several_streams(layer)
            rows = self.recipe.measure(layer, number, batch, self._left_out, text_sites, chosen)
        for table, columns in rows:
            self._rows.add(table, columns, _kind_of(layer, is_decoder=self._is_decoder))

    def _drop_several_streams(self, layer: Layer) -> None:
        """Leave out optional sites that are not one state of each token, with the reason."""
        for site in self._optional:
            if reason := layer.reason_against_states(site):
                del layer.tensors[site]
                self._left_out.sites[site] = reason

    def results(
        self,
        model: Any,
        texts: PreparedTexts,
        spans: Sequence[tuple[int, int]] | None,
        undefined: Sequence[CountedWarning],
        *,
        is_complete: bool,
    ) -> Results:
        """Return the results of the measured texts.

        Args:
            model: that was measured.
            texts: all of them.
            spans: of their answers.
            undefined: warnings of the metrics.
            is_complete: every column is asked for, so that those without a value are dropped.
        """
        reasons = self._left_out.reasons(undefined)
        drops = is_complete and not self.request.keep_empty
        tables = self._rows.arrow(reasons if drops else ())
        if reasons:
            count = f"{len(reasons)} of {len(self.recipe.columns)}"
            warn(f"{self.request.function}: {count} columns have no value; results.left_out has the reasons")
        parts = self.request.measured_parts(len(texts.inputs), spans)
        tables = {"samples": _with_spans(texts.samples_table(self.label, parts), spans), **tables}
        facts = {"model": self.label, "architecture": type(model).__name__, "left_out": reasons}
        facts["attention"] = " or ".join(sorted(self.ways))
        facts["precision"] = provenance_of(self.recipe.precision, self.fallbacks)
        facts |= _facts_of(model, self.recipe, self.request)
        if len(self.measured) < len(texts.inputs):
            tables = {name: _of_samples(table, self.measured) for name, table in tables.items()}
            facts["stopped"] = f"{len(self.measured)} of {len(texts.inputs)} texts"
        results = Results(tables, provenance={**facts, "inputs": texts.names})
        results.model, results.inputs = weakref.ref(model), texts.arguments
        return results


def _of_samples(table: Any, samples: Sequence[int]) -> Any:
    """Return the rows of a table that are of some samples."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table["sample"]
    return table.filter(pc.is_in(column, value_set=pa.array(samples, column.type)))


def _facts_of(model: Any, recipe: Recipe, request: InputRequest) -> dict[str, Any]:
    """Return what features say of themselves: type and commit of the model, columns, the measured region."""
    return {
        "dtype": str(getattr(model, "dtype", "")).removeprefix("torch."),
        "commit": getattr(model.config, "_commit_hash", None) or "",
        "columns": {column.name: describe_column(column) for column in recipe.columns},
        "answers": request.region != "text",
    }


def _with_spans(samples: Any, spans: Sequence[tuple[int, int]] | None) -> Any:
    """Return the table of samples with the first token of each answer and one past its last."""
    if spans is None:
        return samples
    import pyarrow as pa

    place = samples["sample"].to_pylist()
    for at, name in enumerate(("start", "stop")):
        samples = samples.append_column(name, pa.array([spans[sample][at] for sample in place], pa.int64()))
    return samples


class _TablesOfRows:
    """The rows of every table, as they come.

    Attributes:
        has_kinds: the model has several kinds of attention, which then are a key of its tables.
    """

    def __init__(self, checkpoint: Mapping[str, Any]) -> None:
        self._checkpoint = dict(checkpoint)
        self._parts: dict[str, list[tuple[Mapping[str, Any], str]]] = {}
        self._declared: dict[str, Table] = {}
        self.has_kinds = False

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, table: str, columns: Mapping[str, Any], kind: str) -> None:
        """Add rows of single heads, or of their mean where the columns name no head.

        Args:
            table: name of the table of single heads.
            columns: keys and values.
            kind: of the layer's attention: encoder, decoder or cross.
        """
        declared = Table(table, TABLE_KEYS[table], None)
        if table != "layers" and "head" not in columns:
            declared = declared.head_means()
        self._parts.setdefault(declared.name, []).append((columns, kind))
        self._declared[declared.name] = declared

    def arrow(self, left_out: Collection[str]) -> dict[str, Any]:
        """Return the tables by name, without the columns of these names that hold no value."""
        return {name: _without(self._rows(name).arrow(), left_out) for name in self._parts}

    def _rows(self, name: str) -> Rows:
        """Return the rows of a table, with the kind of attention among its keys where there are several."""
        declared = self._declared[name]
        if self.has_kinds:
            place = declared.keys.index("layer")
            keys = (*declared.keys[:place], "attention", *declared.keys[place:])
            declared = replace(declared, keys=keys)
        rows = Rows(declared, "analyze", self._checkpoint)
        has_rectangles = any("n_queries" in columns for columns, _ in self._parts[name])
        for columns, kind in self._parts[name]:
            extra = {"attention": kind} if self.has_kinds else {}
            if has_rectangles and "n_queries" not in columns:
                extra["n_queries"] = columns["n_tokens"]
            rows.add(**columns, **extra)
        return rows


def _kind_of(layer: Layer | LazyLayer, *, is_decoder: bool) -> str:
    """Return which attention of an encoder-decoder a layer has, or of a decoder alone."""
    if layer.cross:
        return "cross"
    return "decoder" if is_decoder or "decoder" in layer.stack else "encoder"


class OtherMaps:
    """The layers whose maps are not of the inputs as wholes: of windows, or of each of several pictures."""

    def __init__(self, function: str, model: str) -> None:
        self._function = function
        self._model = model
        self._counts: dict[str, tuple[int, int]] = {}

    def add(self, layer: Layer | LazyLayer, samples: int) -> None:
        """Note a layer that read some samples."""
        self._counts.setdefault(layer.stack, (len(layer.valid), samples))

    def report(self, *, is_all: bool) -> None:
        """Warn of the layers that are left out.

        Raises:
            ValueError: if those are all (`is_all`).
        """
        if not self._counts:
            return
        words = ", ".join(f"{stack} ({maps} for {n})" for stack, (maps, n) in self._counts.items())
        message = (
            f"{self._function}: {self._model}: maps of windows or of single pictures, not one for each "
            f"input: {words}; capture(model) gives them"
        )
        if is_all:
            raise ValueError(message)
        warn(f"{message}; these layers are left out")


def _without(table: Any, names: Collection[str]) -> Any:
    """Return a table without the columns of these names that hold no value."""
    empty = [name for name in names if name in table.column_names]
    return table.drop_columns([name for name in empty if table.column(name).null_count == len(table)])
