# SPDX-License-Identifier: MIT
"""Capture and measure in one call, in memory: a model and some inputs in, results out.

No study, no files: every quantity whose sites can be captured is measured, under its name in stored tables.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnscope._warn import collect_warnings, summarize, warn
from attnscope.capture.module_tracing import model_hint, resolve_indices
from attnscope.capture.sites import SITES
from attnscope.engine.prepared import PreparedTexts, prepare_texts
from attnscope.errors import CountedWarning
from attnscope.metrics.discovery import columns_of, metric_of, registry
from attnscope.metrics.homology.barcodes import bar_columns
from attnscope.metrics.measure import Measured, Metrics, metric_names, named_metric, requests_of
from attnscope.metrics.plan import MAPS, THRESHOLDS, options_of, resolve_thresholds
from attnscope.metrics.quantity import Quantity, Shared, Site
from attnscope.metrics.support import LayerSupport, measure_layer
from attnscope.models import Checkpoint, Encoder, find_checkpoints, load_model, load_tokenizer
from attnscope.models.architecture import depth, largest_setting, text_config
from attnscope.models.inputs.context_length import context_length
from attnscope.models.inputs.media_inputs import read_media, tokenizer_in
from attnscope.models.inputs.text_inputs import Entry, read_inputs
from attnscope.results.results import Results
from attnscope.results.schema import HEAD_KEYS
from attnscope.study_api.forward import Batch, head_mean, self_attention
from attnscope.study_api.tables import Rows, Table

if TYPE_CHECKING:
    from attnscope.capture import Layer


_KEYS = {
    "heads": HEAD_KEYS,
    "graphs": (*HEAD_KEYS, "threshold"),
    "vectors": (*HEAD_KEYS, "index"),
    "bars": (*HEAD_KEYS, "dimension", "birth", "death"),
    "layers": tuple(key for key in HEAD_KEYS if key != "head"),
}


def analyze(
    model: Any,
    inputs: Any,
    metrics: Metrics | None = None,
    *,
    tokenizer: Any = None,
    processor: Any = None,
    layers: Sequence[int] | int | None = None,
    stack: str = "",
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
        decoder too, whose layers count on behind the encoder's; the key `attention` says which is which.

    Raises:
        ValueError: inputs of the wrong kind, an input that the model does not take, an unknown metric, a
            layer that is not there.
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
    """
    _check_first_arguments(model, metrics)
    recipe = _all_quantities(options) if metrics is None else _chosen(metrics, options)
    inputs, tokenizer = _read_processor(inputs, tokenizer, processor)
    loaded, tokenizer, own_name = _model_of(model, tokenizer)
    label = name or own_name
    layers = [layers] if isinstance(layers, int) else layers
    resolve_indices(layers, depth(loaded), f"layers of {type(loaded).__name__}")
    texts = _prepared(loaded, read_inputs("analyze", inputs, column), tokenizer, processor)
    tables_of_rows = _TablesOfRows({"model": label, "revision": "", "step": -1})
    # without named metrics: all sites that the model gives
    needed, optional_sites = ((), recipe.states()) if metrics is None else (recipe.states(), ())
    left_out = LeftOut(recipe.columns)
    others = OtherMaps(type(loaded).__name__)
    with collect_warnings() as undefined:
        for forward_pass in texts.passes(label, loaded):
            for number, layer in self_attention(
                loaded,
                forward_pass.arguments,
                layers=layers,
                sites=("attention", *needed),
                extra=optional_sites,
                reasons=left_out.sites,
                stack=stack,
            ):
                if not forward_pass.is_of(layer):
                    others.add(layer, len(forward_pass.batch.samples))
                    continue
                batch = forward_pass.batch_of(layer)
                kind = _kind_of(layer) if forward_pass.has_decoder else ""
                for table, columns in recipe.measure(layer, number, batch, left_out):
                    tables_of_rows.add(table, columns, kind)
    summarize(undefined)
    others.report(is_all=not tables_of_rows.rows)
    reasons = left_out.reasons(undefined)
    tables = tables_of_rows.arrow(reasons if metrics is None else ())
    if reasons:
        count = f"{len(reasons)} of {len(recipe.columns)}"
        warn(f"analyze: {count} columns have no value; results.left_out has the reasons")
    tables = {"samples": texts.samples_table(label), **tables}
    facts = {"model": label, "architecture": type(loaded).__name__, "left_out": reasons}
    results = Results(tables, provenance={**facts, "inputs": texts.names})
    results.model, results.inputs = weakref.ref(loaded), texts.arguments
    return results


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


class LeftOut:
    """The columns that got no value, each with the reason.

    Attributes:
        sites: of the sites that the model does not let be captured, the reason.
    """

    def __init__(self, columns: Sequence[Quantity]) -> None:
        self._columns = {column.name: column for column in columns}
        self._measured: set[str] = set()
        self._maps, self._lengths, self._supports = 0, set[int](), set[str]()
        self.sites: dict[str, str] = {}

    def add(self, measured: Measured, lengths: Sequence[int], support: str) -> None:
        """Note which columns have a value in some measured maps of texts of these lengths."""
        self._maps += measured.finite.numel()
        self._lengths |= set(lengths)
        self._supports.add(support)
        self._measured |= {column.name for column, defined in measured.defined.items() if bool(defined.any())}

    def reasons(self, undefined: Sequence[CountedWarning]) -> dict[str, str]:
        """Return the reason of every column without a value.

        Args:
            undefined: the warnings of all calls.
        """
        words: dict[str, str] = {}
        for warning in undefined:
            words.setdefault(warning.function, str(warning).partition(": ")[2])
        reasons = {}
        for name, column in self._columns.items():
            if name in self._measured:
                continue
            site = next((site for site in column.needs if site in self.sites), "")
            reason = f"{site} are not captured: {self.sites[site]}" if site else words.get(column.metric, "")
            reasons[name] = reason or (
                f"undefined for all {self._maps} maps of {_span(self._lengths)} tokens, visibility "
                f"{' and '.join(sorted(self._supports))}: {column.metric.lstrip('_')} needs more "
                "tokens, more visible keys, sinks or more variation"
            )
        return reasons


def _prepared(model: Any, entries: Sequence[Entry], tokenizer: Any, processor: Any) -> PreparedTexts:
    """Return the entries of inputs as a model reads them; warn of those that are cut."""
    limit = context_length(model.config, tokenizer, model)
    encoder = Encoder(tokenizer, limit, "keep", largest_setting(text_config(model.config), "vocab_size"))
    texts = prepare_texts("analyze", model, entries, encoder, processor)
    if cut := sum(text.encoded.truncated for text in texts.inputs):
        warn(f"analyze: {cut} of {len(texts.inputs)} texts were longer than {limit} tokens and are cut")
    return texts


def _read_processor(inputs: Any, tokenizer: Any, processor: Any) -> tuple[Any, Any]:
    """Return the inputs as a processor reads them, and its tokenizer where no other is named."""
    if processor is None:
        return inputs, tokenizer
    tokenizer = tokenizer_in(processor) if tokenizer is None else tokenizer
    return read_media("analyze", inputs, processor), tokenizer


class _TablesOfRows:
    """The rows of every table, as they come.

    Attributes:
        rows: by name of the table.
    """

    def __init__(self, checkpoint: Mapping[str, Any]) -> None:
        self._checkpoint = dict(checkpoint)
        self.rows: dict[str, Rows] = {}

    def add(self, table: str, columns: Mapping[str, Any], kind: str) -> None:
        """Add rows of single heads, or of their mean where the columns name no head.

        Args:
            table: name of the table of single heads.
            columns: keys and values.
            kind: of the layer's attention in an encoder-decoder, which then is a key; else empty.
        """
        keys = _KEYS[table]
        if kind:
            place = keys.index("layer")
            keys, columns = (*keys[:place], "attention", *keys[place:]), {**columns, "attention": kind}
        declared = Table(table, keys, None)
        if table != "layers" and "head" not in columns:
            declared = declared.head_means()
        self.rows.setdefault(declared.name, Rows(declared, "analyze", self._checkpoint)).add(**columns)

    def arrow(self, left_out: Collection[str]) -> dict[str, Any]:
        """Return the tables by name, without the columns of these names that hold no value."""
        return {table: _without(rows.arrow(), left_out) for table, rows in self.rows.items()}


def _kind_of(layer: Layer) -> str:
    """Return which attention of an encoder-decoder a layer has."""
    return "cross" if layer.cross else "decoder" if "decoder" in layer.stack else "encoder"


class OtherMaps:
    """The layers whose maps are not of the inputs as wholes: of windows, or of each of several pictures."""

    def __init__(self, model: str) -> None:
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
            f"analyze: {self._model}: maps of windows or of single pictures, not one for each input: "
            f"{words}; capture(model) gives them"
        )
        if is_all:
            raise ValueError(message)
        warn(f"{message}; these layers are left out")


def _span(numbers: Collection[int]) -> str:
    """Return the smallest and the largest of some numbers in words.

    >>> _span({7, 9, 8}), _span({7})
    ('7 to 9', '7')
    """
    low, high = min(numbers, default=0), max(numbers, default=0)
    return str(low) if low == high else f"{low} to {high}"


class _Recipe(NamedTuple):
    """The measurements of each layer: columns under their requested names, and bars."""

    columns: list[Quantity]
    bars: bool

    def states(self) -> tuple[str, ...]:
        """Return the captured sites beside attention that the columns read."""
        sites = (site for column in self.columns for site in column.needs)
        return tuple(dict.fromkeys(site for site in sites if site in SITES and site != "attention"))

    def measure(
        self, layer: Layer, number: int, batch: Batch, left_out: LeftOut
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the numbers of a layer's heads and of their mean: rows of tables as `place` gives them."""
        heads, mean, seen = layer.matrices(), head_mean(layer.matrices()), LayerSupport.of(layer)
        captured = [site for site in layer.tensors if site in self.states()]
        states = {site: layer.states(site).cpu() for site in captured if site != "scores"}
        shared = {site: tensor for site, tensor in states.items() if site != "value"}
        if "value" in states:
            states["value"] = layer.states("value", per_head=True).cpu()
        if "scores" in captured:
            states["scores"] = layer.matrices("scores").cpu()
        for sites, names in (
            ({"attention": mean, **shared}, None),
            ({"attention": heads, "head_mean": mean, **states}, list(layer.heads)),
        ):
            columns = [
                column
                for column in self.columns
                # scores are heads' own: their mean is no argument of a softmax
                if names is not None or (column.scope == "map" and "scores" not in column.needs)
            ]
            measured = measure_layer(
                sites,
                columns,
                seen,
                lengths=layer.lengths,
                heads=names,
                mean=names is None,
                full_results=("persistence",) if self.bars else (),
            )
            left_out.add(measured, batch.lengths, layer.visibility.name)
            yield from place(columns, measured, batch, number, names)


def table_of(quantity: Quantity) -> str:
    """Return the table with a row for every number of a quantity, "" without one."""
    if quantity.scope == "layer":
        return "" if quantity.axes else "layers"
    if quantity.scope != "map" or len(quantity.axes) > 1:
        return ""
    return {(): "heads", ("threshold",): "graphs"}.get(quantity.axes, "vectors")


def place(
    columns: Sequence[Quantity],
    measured: Measured,
    batch: Batch,
    number: int,
    names: Sequence[int] | None,
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the measured numbers of a layer's maps as rows of tables; those of its head mean have no
    names.
    """
    count, heads = len(batch.samples), 1 if names is None else len(names)
    lengths = np.repeat(batch.lengths, heads)
    keys = {"layer": number, "protocol": "exact"}
    of_maps = {"sample": np.repeat(batch.samples, heads)}
    if names is not None:
        of_maps["head"] = np.tile(names, count)
    if "persistence" in measured.results:
        yield "bars", bar_columns(measured.results["persistence"], {**keys, **of_maps})
    values_by_table: dict[str, dict[str, Any]] = {"heads": {}, "layers": {}, "graphs": {}, "vectors": {}}
    for quantity in columns:
        if quantity not in measured.values:
            continue
        name, table = quantity.name, table_of(quantity)
        values = np.ma.MaskedArray(measured.values[quantity].numpy(), ~measured.defined[quantity].numpy())
        if quantity.kind == "position" and name.endswith("_position") and not quantity.axes:
            texts = np.array(batch.tokens_at(values), dtype=object)
            values_by_table["heads"][name.removesuffix("position") + "token"] = texts
        at: Any = range(values.shape[-1])
        if table == "graphs":
            at = quantity.options.get("thresholds", THRESHOLDS)
            at = [at] if isinstance(at, str) else np.asarray(at, dtype=object).ravel().tolist()
        values_by_table[table][name] = (
            (at, values.reshape(len(lengths), -1)) if quantity.axes else values.ravel()
        )
    if values_by_table["heads"]:
        yield "heads", {**keys, **of_maps, "n_tokens": lengths, **values_by_table["heads"]}
    if values_by_table["layers"]:
        yield (
            "layers",
            {**keys, "sample": batch.samples, "n_tokens": batch.lengths, **values_by_table["layers"]},
        )
    if graphs := values_by_table["graphs"]:
        thresholds, graph_columns = _align_entries(graphs)
        spread = {key: np.repeat(values, len(thresholds)) for key, values in of_maps.items()}
        levels = np.concatenate([resolve_thresholds(thresholds, n) for n in lengths])
        yield "graphs", {**keys, **spread, "threshold": levels, **graph_columns}
    if vectors := values_by_table["vectors"]:
        places, vector_columns = _align_entries(vectors)
        spread = {key: np.repeat(values, len(places)) for key, values in of_maps.items()}
        n = measured.size
        # entries behind a short sentence's end belong to nothing; other axes are as long as they are
        sizes = {len(at) for at, _ in vectors.values()}
        ends = np.maximum(lengths if n in sizes else 0, max(sizes - {n}, default=0))
        inside = (np.arange(len(places)) < np.broadcast_to(ends, lengths.shape)[:, None]).ravel()
        vector_columns = {**spread, "index": np.tile(places, len(lengths)), **vector_columns}
        yield "vectors", {**keys, **{key: values[inside] for key, values in vector_columns.items()}}


def _align_entries(parts: Mapping[str, tuple[Sequence[Any], Any]]) -> tuple[list[Any], dict[str, Any]]:
    """Return all entries along the last axes, and the columns over them, flat; entries that a column lacks
    are absent.
    """
    places = list(dict.fromkeys(at for entries, _ in parts.values() for at in entries))
    columns = {}
    for column, (entries, values) in parts.items():
        aligned = np.ma.MaskedArray(np.zeros((len(values), len(places)), values.dtype), mask=True)
        aligned[:, [places.index(entry) for entry in entries]] = values
        columns[column] = aligned.ravel()
    return places, columns


def _chosen(metrics: Metrics, options: Mapping[str, Any]) -> _Recipe:
    """Return the quantities of some metrics."""
    common = dict(options)
    space = common.pop("space", None)
    metrics = [metrics] if isinstance(metrics, str) else metrics
    options_by_key = metrics if isinstance(metrics, Mapping) else {name: {} for name in metrics}
    split = {key: named_metric(key, key_options) for key, key_options in options_by_key.items()}
    options_of_metric = {key: key_options for key, (_, key_options) in split.items()}
    exact, public = (
        [quantity for quantity in registry().quantities if quantity.protocol == "exact"],
        set(metric_names()),
    )
    # columns whose name is no metric that reads maps
    columns = {quantity.name: quantity for quantity in exact if quantity.name not in public}
    named = {key: name for key, (name, _) in split.items()}
    single_columns = {key: columns[name] for key, name in named.items() if name in columns}
    named |= {key: metric_of(column) for key, column in single_columns.items()}

    # the metrics that compare attention with states, and the sites that those can be of
    of_site = [
        (metric_of(quantity), quantity.options["states"].name)
        for quantity in exact
        if "states" in quantity.options
    ]
    takers, spaces_of_states = (list(dict.fromkeys(values)) for values in zip(*of_site, strict=True))
    spaces = {
        key: options_of_metric[key].pop("space", space) for key, name in named.items() if name in takers
    }
    if space is not None and not spaces:
        raise ValueError(f"analyze: 'space' is an option of {' and '.join(takers)}")
    for key, requested in spaces.items():
        if options_of_metric[key]:
            raise ValueError(f"analyze: {key} takes the option space, not {min(options_of_metric[key])!r}")
        if requested not in (None, *spaces_of_states):
            raise ValueError(
                f"analyze: space must be one of {', '.join(spaces_of_states)}, got {requested!r}"
            )
    inner = [key for key in single_columns if named[key] not in public]
    if of_inner := [(key, option) for key in inner for option in options_of_metric[key]]:
        raise ValueError("analyze: the column {} takes no option, got {!r}".format(*of_inner[0]))
    plain = {
        key: {**options_of_metric[key], "function": named[key]}
        for key in options_of_metric
        if key not in (*spaces, *inner)
    }
    settings = {request.key: request.options for request in requests_of(plain, common, partial=True)}
    chosen = [
        column
        for key, name in named.items()
        for column in _asked_columns(
            key, name, settings.get(key, {}), spaces.get(key), single_columns.get(key)
        )
    ]
    return _Recipe(chosen, "persistence" in named.values())


def _all_quantities(options: Mapping[str, Any]) -> _Recipe:
    """Return a recipe of every quantity with a number per map, or per map and threshold, whose sites a
    model can give.
    """
    if unknown := sorted(set(options) - {"thresholds", "bars"}):
        raise ValueError(f"analyze: {unknown[0]!r} is an option of single metrics; name the metrics")
    bound = {"thresholds": options.get("thresholds", THRESHOLDS)}
    columns = [
        (quantity.with_options(**bound) if "threshold" in quantity.axes else quantity).mean_over("query")
        for quantity in registry().quantities
        if quantity.protocol == "exact" and set(quantity.needs) <= {*MAPS, *SITES}
    ]
    placed = [column for column in columns if table_of(column) in ("heads", "graphs", "layers")]
    return _Recipe(placed, bool(options.get("bars", False)))


def _asked_columns(
    key: str, metric: str, options: Mapping[str, Any], space: str | None, single: Quantity | None
) -> list[Quantity]:
    """Return the quantities of a metric under some options, or the column `single`, named as their columns.

    A quantity that fixes an option otherwise than asked is left out, unless all do. Under a key of its own a
    metric's quantities are called by the key in the place of what their names have in common.
    """
    declared = [quantity for quantity in columns_of(metric) if not single or quantity.name == single.name]
    agreeing = [quantity for quantity in declared if _agrees(quantity, options)] or declared
    if key != metric and not single:  # a renamed column is of the metric's plain form
        fewest = min((len(_settings(quantity)) for quantity in agreeing), default=0)
        agreeing = [quantity for quantity in agreeing if len(_settings(quantity)) == fewest]
    if space is not None:
        agreeing = [quantity for quantity in agreeing if space in quantity.needs] or [
            _moved(quantity, space) for quantity in agreeing
        ]
    sites = {site for quantity in agreeing for site in quantity.needs} - {*MAPS, *SITES}
    if sites:
        raise ValueError(
            f"analyze: {key} reads {' and '.join(sorted(sites))}, which no model gives; use measure"
        )
    bound = [quantity.with_options(**options) if options else quantity for quantity in agreeing]
    placed = [quantity for quantity in bound if table_of(quantity)]
    if not placed and metric != "persistence":
        raise ValueError(f"analyze: {key} has no place in a table; use measure")
    if key != metric or single:
        names = [key for _ in placed] if single else _named_after(key, [quantity.name for quantity in placed])
        placed = [replace(quantity, name=name) for name, quantity in zip(names, placed, strict=True)]
    return placed + [quantity.mean_over("query") for quantity in placed if quantity.axes == ("query",)]


def _settings(quantity: Quantity) -> dict[str, Any]:
    return {name: value for name, value in quantity.options.items() if not isinstance(value, (Site, Shared))}


def _agrees(quantity: Quantity, options: Mapping[str, Any]) -> bool:
    """Return True if a quantity takes all of the options and fixes none of them otherwise."""
    function_options = options_of(registry().function(quantity.protocol, quantity.metric))
    fixed = all(options.get(name, value) == value for name, value in _settings(quantity).items())
    return fixed and set(options) <= {*function_options, *quantity.options}


def _moved(quantity: Quantity, space: str) -> Quantity:
    """Return a quantity of states with those of another site."""
    site_of_states = quantity.options["states"].name
    needs = tuple(space if site == site_of_states else site for site in quantity.needs)
    return replace(quantity, needs=needs).with_options(states=Site(space))


def _named_after(key: str, names: Sequence[str]) -> list[str]:
    """Return names for the quantities of a metric under a key that the caller chose.

    >>> _named_after("low", ["betti_0", "betti_1"]), _named_after("plain", ["fiedler_value"])
    (['low_0', 'low_1'], ['plain'])
    """
    words = [name.split("_") for name in names]
    shared_words = len(list(takewhile(lambda words_at: len(set(words_at)) == 1, zip(*words, strict=False))))
    return ["_".join([key, *word[shared_words:]]) for word in words]


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
