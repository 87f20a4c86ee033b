# SPDX-License-Identifier: MIT
"""Capture and measure in one call, in memory: a model and some inputs in, results out.

No study, no files: every quantity whose sites can be captured is measured, under its name in stored tables.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnscope._warn import collect_warnings, summarize, warn
from attnscope.capture.module_tracing import model_hint, resolve_indices
from attnscope.engine.answer_regions import Region
from attnscope.engine.answers import append_answers
from attnscope.engine.prepared import PreparedTexts, prepare_texts
from attnscope.engine.recipe import TABLE_KEYS, LeftOut, Recipe, complete_recipe, named_recipe
from attnscope.engine.text_sites import TextSites
from attnscope.metrics.measure import Metrics
from attnscope.metrics.selected_queries import chosen_queries
from attnscope.models import Checkpoint, Encoder, find_checkpoints, load_model, load_tokenizer
from attnscope.models.architecture import depth, largest_setting, text_config
from attnscope.models.inputs.answer_spans import NO_ANSWER, answer_spans
from attnscope.models.inputs.context_length import context_length
from attnscope.models.inputs.media_inputs import read_media, tokenizer_in
from attnscope.models.inputs.prompt_learning import virtual_tokens
from attnscope.models.inputs.text_inputs import Entry, read_inputs
from attnscope.results.features import describe_column
from attnscope.results.results import Results
from attnscope.study_api.forward import Batch, self_attention
from attnscope.study_api.tables import Rows, Table

if TYPE_CHECKING:
    from attnscope.capture import Layer


def analyze(
    model: Any,
    inputs: Any,
    metrics: Metrics | None = None,
    *,
    tokenizer: Any = None,
    processor: Any = None,
    layers: Sequence[int] | int | None = None,
    stack: str = "",
    answer: Any = None,
    answer_unit: str = "tokens",
    generate: Mapping[str, Any] | None = None,
    queries: Any = None,
    name: str = "",
    column: str = "",
    **options: Any,
) -> Results:
    """Measure the attention of a model on some inputs, one layer at a time, without writing anything.

    Every layer is measured while it is alive; no more than two layers' maps are in memory.

    Args:
        model: a transformers model in evaluation mode, or a folder or hub id.
        inputs: a sentence, sentences, a tensor of token ids [batch, n], a column of pandas, a table with a
            column of texts, pairs of texts, messages of a conversation, or a mapping of what the model's
            forward pass takes, as a tokenizer or a processor returns it: all of it reaches the model.
        metrics: names of metrics or of columns, or a mapping from names of columns to options, as `measure`
            takes them; None takes every quantity with a number per map, or per map and threshold, that the
            model can give.
        tokenizer: of the model, for sentences and for readable tokens, or its folder or hub id; None: of a
            model that is a folder or hub id, its own.
        processor: of the model, for pictures, sounds, either with a text (a pair), and conversations with
            pictures as inputs; tokens are then called by their places: `CLS`, `patch (2, 3)`, `0.34 s`.
        layers: only these layers.
        stack: only layers of stacks whose name contains this, such as "vision" for the tower of pictures.
        answer: of each text the first token of its answer and one past its last, or None, for metrics of
            answers (`lookback`, `prompt_divergence`).
        answer_unit: "tokens"; or "characters", of texts under a fast tokenizer.
        generate: options of the model's `generate`, such as {"max_new_tokens": 32}: each text is a prompt,
            the model writes its answer, and both are measured in one pass. `samples` gets `answer_start`.
        queries: "answer", "prompt", a slice of each text's tokens, or booleans, one for each token (a row for
            each text, where they differ): means over rows are over these queries only. Numbers per query, of
            columns and of the map's spectrum or graph stay those of all queries.
        name: of the model in the tables; empty takes its own.
        column: of a table, the one that holds the texts; empty takes text, sentence, content, or the only
            column of texts.
        options: given to every metric that takes an option of that name. Metrics that compare attention with
            states (`geometric_semantic_alignment`, `reference_influence`) take `space`: "value", the head's
            own value vectors (the head mean has none: NaN), or "hidden", the residual stream entering the
            layer; without it alignment takes both and influence values. The reference is the head's own
            `sink_tokens`. `bars=True` adds the table of bars.

    Returns:
        Results with `samples`, and as the metrics need them: `heads` (a number per map, means over queries),
        `layers` (per layer), `graphs` (per map and threshold), `vectors` (per map and query, key or rank),
        `bars` (persistence). Columns are called as the quantities, in the stored tables of studies too.
        The same of each layer's mean over its heads: `head_means`, `head_mean_graphs`, `head_mean_vectors`,
        `head_mean_bars`. Sample, layer and head count from 0; what has no value is null. Columns that got no
        value at all are in `results.left_out`, each with the reason; with metrics=None the tables lack them.
        Of an encoder-decoder the encoder is measured; where the mapping holds `decoder_input_ids`, its
        decoder and its cross attention too, whose layers count on behind the encoder's. The key `attention`
        is then "encoder", "decoder" or "cross". A row of cross attention is of a head's map of the decoder's
        tokens (`n_queries`) by the encoder's (`n_tokens`); what needs a graph, distances between queries and
        keys, or states is null there.

    Raises:
        ValueError: inputs of the wrong kind, an input that the model does not take, an unknown metric, a
            layer that is not there, an answer that is empty or outside its text.
        TypeError: an object that is no model, no tokenizer or no names of metrics.
        LoadError: the model or the tokenizer cannot be loaded, or the model not captured.

    Example:
        >>> import torch, attnscope as asc
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
        ...                      num_attention_heads=4, num_key_value_heads=2)
        >>> results = asc.analyze(LlamaForCausalLM(config).eval(), torch.arange(6)[None], ["fiedler_value"])
        >>> dict(results.to_xarray().sizes)
        {'model': 1, 'revision': 1, 'sample': 1, 'layer': 2, 'head': 4}

        The model writes three tokens behind four, and the entropy is that of the answer's queries alone:

        >>> model, prompt = LlamaForCausalLM(config).eval(), torch.arange(3, 7)[None]
        >>> answered = asc.analyze(model, prompt, "attention_entropy", queries="answer",
        ...                        generate={"max_new_tokens": 3, "eos_token_id": None})
        >>> answered["samples"][["answer_start", "n_tokens"]].values.tolist()
        [[4, 7]]
    """
    if isinstance(queries, int):  # so many last ones, an option of `sink_share`
        options, queries = {**options, "queries": queries}, None
    request = InputRequest(
        "analyze",
        name,
        column,
        answer,
        answer_unit,
        processor=processor,
        stack=stack,
        generate=generate,
        queries=queries,
        cross=True,
    )
    return measure_inputs(request, model, inputs, metrics, tokenizer, layers, options)


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

    def chosen(self, batch: Batch, spans: Sequence[tuple[int, int]] | None) -> Tensor | None:
        """Return the queries of a batch's texts that means over rows are restricted to, None for all."""
        if self.queries is None:
            return None
        answers = [None if spans is None else spans[sample] for sample in batch.samples]
        return chosen_queries(self.function, self.queries, batch.query_lengths, answers, batch.samples)

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


def measure_inputs(
    request: InputRequest,
    model: Any,
    inputs: Any,
    metrics: Metrics | None,
    tokenizer: Any,
    layers: Sequence[int] | int | None,
    options: Mapping[str, Any],
) -> Results:
    """Measure the attention of a model on some inputs; arguments and result are those of `analyze`."""
    function = request.function
    _check_first_arguments(model, metrics)
    if metrics is None:
        recipe = complete_recipe(options, with_answers=request.has_answers)
    else:
        recipe = named_recipe(metrics, options, with_answers=request.has_answers)
    inputs, tokenizer = _read_processor(function, inputs, tokenizer, request.processor)
    loaded, tokenizer, own_name = _model_of(model, tokenizer)
    label = request.name or own_name
    layers = [layers] if isinstance(layers, int) else layers
    resolve_indices(layers, depth(loaded), f"layers of {type(loaded).__name__}")
    texts = _prepared(function, loaded, read_inputs(function, inputs, request.column), tokenizer, request)
    spans = request.spans(texts, tokenizer)
    text_sites = TextSites(loaded, spans, virtual_tokens(loaded).number, request.region)
    left_out, others = LeftOut(recipe.columns), OtherMaps(function, type(loaded).__name__)
    tables_of_rows = _TablesOfRows({"model": label, "revision": "", "step": -1})
    # without named metrics: all sites that the model gives
    needed, optional_sites = ((), recipe.states()) if metrics is None else (recipe.states(), ())
    with collect_warnings() as undefined:
        for forward_pass in texts.passes(label, loaded):
            for number, layer in self_attention(
                loaded,
                forward_pass.arguments,
                layers=layers,
                sites=("attention", *needed),
                extra=optional_sites,
                reasons=left_out.sites,
                stack=request.stack,
                cross=request.cross,
            ):
                if not forward_pass.is_of(layer):
                    others.add(layer, len(forward_pass.batch.samples))
                    continue
                batch = forward_pass.batch_of(layer)
                tables_of_rows.has_kinds |= forward_pass.has_decoder or layer.cross
                chosen = request.chosen(batch, spans)
                for table, columns in recipe.measure(layer, number, batch, left_out, text_sites, chosen):
                    tables_of_rows.add(table, columns, _kind_of(layer))
    summarize(undefined)
    others.report(is_all=not len(tables_of_rows))
    reasons = left_out.reasons(undefined)
    tables = tables_of_rows.arrow(reasons if metrics is None and not request.keep_empty else ())
    if reasons:
        count = f"{len(reasons)} of {len(recipe.columns)}"
        warn(f"{function}: {count} columns have no value; results.left_out has the reasons")
    tables = {"samples": _with_spans(texts.samples_table(label), spans), **tables}
    facts = {"model": label, "architecture": type(loaded).__name__, "left_out": reasons}
    facts |= _facts_of(loaded, recipe, request)
    results = Results(tables, provenance={**facts, "inputs": texts.names})
    results.model, results.inputs = weakref.ref(loaded), texts.arguments
    return results


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


def _prepared(
    function: str, model: Any, entries: Sequence[Entry], tokenizer: Any, request: InputRequest
) -> PreparedTexts:
    """Return the entries of inputs as a model reads them, with its answers; warn of those that are cut."""
    limit = context_length(model.config, tokenizer, model)
    encoder = Encoder(tokenizer, limit, "keep", largest_setting(text_config(model.config), "vocab_size"))
    texts = prepare_texts(function, model, entries, encoder, request.processor)
    if cut := sum(text.encoded.truncated for text in texts.inputs):
        warn(f"{function}: {cut} of {len(texts.inputs)} texts were longer than {limit} tokens and are cut")
    return texts if request.generate is None else append_answers(function, model, texts, request.generate)


def _read_processor(function: str, inputs: Any, tokenizer: Any, processor: Any) -> tuple[Any, Any]:
    """Return the inputs as a processor reads them, and its tokenizer where no other is named."""
    if processor is None:
        return inputs, tokenizer
    tokenizer = tokenizer_in(processor) if tokenizer is None else tokenizer
    return read_media(function, inputs, processor), tokenizer


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


def _kind_of(layer: Layer) -> str:
    """Return which attention of an encoder-decoder a layer has."""
    return "cross" if layer.cross else "decoder" if "decoder" in layer.stack else "encoder"


class OtherMaps:
    """The layers whose maps are not of the inputs as wholes: of windows, or of each of several pictures."""

    def __init__(self, function: str, model: str) -> None:
        self._function = function
        self._model = model
        self._counts: dict[str, tuple[int, int]] = {}

    def add(self, layer: Layer, samples: int) -> None:
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


def _check_first_arguments(model: Any, metrics: Any) -> None:
    """Raise for an argument in the place of another."""
    if isinstance(model, (Tensor, np.ndarray)):
        raise TypeError(
            "analyze: the first argument must be a model, got "
            f"{'a tensor' if isinstance(model, Tensor) else 'an array'} of shape {tuple(model.shape)}; "
            "measure(attention, metrics) takes attention"
        )
    if metrics is not None and (
        hasattr(metrics, "convert_tokens_to_ids") or not isinstance(metrics, Iterable)
    ):
        raise TypeError(
            f"analyze: metrics must be names, got a {type(metrics).__name__}; a tokenizer is given as "
            "tokenizer=..."
        )


def _without(table: Any, names: Collection[str]) -> Any:
    """Return a table without the columns of these names that hold no value."""
    empty = [name for name in names if name in table.column_names]
    return table.drop_columns([name for name in empty if table.column(name).null_count == len(table)])


def _model_of(model: Any, tokenizer: Any) -> tuple[Any, Any, str]:
    if isinstance(tokenizer, (str, Path)):
        place = os.path.expanduser(tokenizer)
        tokenizer = load_tokenizer(Checkpoint(place, "", -1, place, os.path.isdir(place)))
    elif tokenizer is not None and not callable(tokenizer):
        raise TypeError(
            f"analyze: tokenizer must be one of transformers, a folder or a hub id, got {tokenizer!r:.60}"
        )
    if isinstance(model, torch.nn.Module):
        config = getattr(model, "config", None)
        if config is None:
            raise ValueError(f"analyze: {type(model).__name__} has no config; a transformers model is needed")
        return model, tokenizer, str(getattr(config, "_name_or_path", "") or type(model).__name__)
    if not isinstance(model, (str, os.PathLike)):
        raise TypeError(
            f"analyze: model must be a transformers model, a folder or a hub id, got {type(model).__name__}"
            f"{model_hint(model)}"
        )
    checkpoint = find_checkpoints(str(model))[-1]
    loaded = load_model(checkpoint)
    return loaded.model, tokenizer or load_tokenizer(checkpoint), checkpoint.model
