# SPDX-License-Identifier: MIT
"""Capture and measure in one call, in memory: a model and some inputs in, results out."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from attnscope._warn import warn, warned_once
from attnscope.capture.anatomy import choose, text_argument
from attnscope.capture.sites import SITES
from attnscope.commands.analyze_tables import Column, Tables, place, table_of
from attnscope.engine.forward import Batch, batch_of, depth, head_mean, padded, self_attention
from attnscope.engine.results import Results
from attnscope.engine.texts.encoding import batches, samples_table
from attnscope.engine.texts.sources import Sentence
from attnscope.engine.units import Input, Unit
from attnscope.metrics.discovery import columns_of, found, metric_of
from attnscope.metrics.measure import measure_quantities, metric_names, requests_of
from attnscope.metrics.plan import MAPS, THRESHOLDS
from attnscope.metrics.quantity import Quantity, Shared, Site
from attnscope.models import Checkpoint, Encoded, Encoder, find_checkpoints, load_model, load_tokenizer
from attnscope.models.loading import context_length

if TYPE_CHECKING:
    from attnscope.capture import Layer

Metrics = str | Iterable[str] | Mapping[str, Mapping[str, Any]]


def analyze(
    model: Any,
    inputs: Any,
    metrics: Metrics | None = None,
    *,
    tokenizer: Any = None,
    layers: Sequence[int] | None = None,
    name: str = "",
    **options: Any,
) -> Results:
    """Measures the attention of a model on some inputs, one layer at a time, without writing anything.

    Every layer is measured while it is alive; no more than two layers' maps are in memory.

    Args:
        model: a transformers model in evaluation mode, or a folder or hub id.
        inputs: a sentence, sentences, a tensor of token ids [batch, n], or the mapping that a tokenizer
            returns (`input_ids`, `attention_mask`).
        metrics: names of metrics or of columns, or a mapping from names of columns to options, as `measure`
            takes them; None takes every quantity with a number per map, or per map and threshold, that the
            model can give.
        tokenizer: of the model, for sentences and for readable tokens; a folder or hub id brings its own.
        layers: only these layers.
        name: of the model in the tables; empty takes its own.
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
        `head_mean_bars`. Sample, layer and head count from 0; what has no value is null.

    Raises:
        ValueError: inputs of the wrong kind, an unknown metric, a layer that is not there.
        LoadError: the model cannot be loaded or captured.

    Example:
        >>> import torch, attnscope as asc
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
        ...                      num_attention_heads=4, num_key_value_heads=2)
        >>> results = asc.analyze(LlamaForCausalLM(config).eval(), torch.arange(6)[None], ["fiedler_value"])
        >>> dict(results.to_xarray().sizes)
        {'model': 1, 'revision': 1, 'sample': 1, 'layer': 2, 'head': 4}
    """
    recipe = _everything(options) if metrics is None else _chosen(metrics, options)
    loaded, tokenizer, label = _model_of(model, tokenizer)
    text = loaded.config.get_text_config() if hasattr(loaded.config, "get_text_config") else loaded.config
    choose(layers, depth(loaded), f"layers of {type(loaded).__name__}")
    encoder = Encoder(
        tokenizer, context_length(loaded.config, tokenizer), "keep", getattr(text, "vocab_size", None)
    )
    texts = _inputs_of(inputs, encoder)
    if cut := sum(one.encoded.truncated for one in texts):
        warn(f"analyze: {cut} of {len(texts)} texts were longer than {encoder.limit} tokens and are cut")
    heads = int(getattr(text, "num_attention_heads", None) or 1)
    rows = Tables({"model": name or label, "revision": "", "step": -1})
    states = recipe.states()
    # of everything, what the model gives
    needed, wished = ((), states) if metrics is None else (states, ())
    unit = Unit("", "", "analyze", Checkpoint(name or label, "", -1, "", False), inputs=tuple(texts))
    with warned_once("maps"):
        for group in batches(unit, heads):
            batch = batch_of(group, encoder)
            tensors = padded(batch, encoder.pad_id, loaded.device)
            for number, layer in self_attention(
                loaded, tensors, layers=layers, sites=("attention", *needed), extra=wished
            ):
                recipe.measure(layer, number, batch, rows)
    tables = {"samples": samples_table(unit, encoder, {}, {}, "analyze"), **rows.finish()}
    results = Results(tables, provenance={"model": name or label, "architecture": type(loaded).__name__})
    results.model = weakref.ref(loaded)
    return results


def spaces() -> dict[str, list[str]]:
    """The metrics that compare attention with states, and the sites of states that their quantities read."""
    found_spaces: dict[str, list[str]] = {}
    for one in found().quantities:
        site = one.options.get("states")
        if one.protocol == "exact" and isinstance(site, Site):
            own = found_spaces.setdefault(metric_of(one), [])
            own += [] if site.name in own else [site.name]
    return found_spaces


class _Recipe(NamedTuple):
    """What is measured of each layer: columns, each put where its axes belong, and bars."""

    columns: list[Column]
    bars: bool

    def states(self) -> tuple[str, ...]:
        """The sites beside maps that the columns read."""
        sites = (site for column in self.columns for site in column.quantity.needs)
        return tuple(dict.fromkeys(site for site in sites if site not in MAPS))

    def measure(self, layer: Layer, number: int, batch: Batch, rows: Tables) -> None:
        """Puts the numbers of a layer's heads and of their mean into tables."""
        heads, mean = layer.matrices(), head_mean(layer.matrices())
        needed = self.states()
        states = {site: layer.states(site).cpu() for site in layer.tensors if site in needed}
        if "value" in states:
            states["value"] = layer.states("value", per_head=True).cpu()
        shared = {site: values for site, values in states.items() if site != "value"}
        for sites, names in (
            ({"attention": mean, **shared}, None),
            ({"attention": heads, "head_mean": mean, **states}, list(layer.heads)),
        ):
            wanted = [one for one in self.columns if names is not None or one.quantity.scope == "map"]
            measured = measure_quantities(
                sites,
                [column.quantity for column in wanted],
                lengths=layer.lengths,
                heads=names,
                whole=("persistence",) if self.bars else (),
            )
            place(wanted, measured, batch, number, names, rows)


def _chosen(metrics: Metrics, options: Mapping[str, Any]) -> _Recipe:
    """The quantities of some metrics."""
    common = dict(options)
    metrics = [metrics] if isinstance(metrics, str) else metrics
    asked = metrics if isinstance(metrics, Mapping) else {name: {} for name in metrics}
    columns = _columns()
    alone = {key: columns[name] for key, own in asked.items() if (name := own.get("metric", key)) in columns}
    asked = {
        key: {**own, "metric": metric_of(alone[key])} if key in alone else own for key, own in asked.items()
    }
    space = common.pop("space", None)
    chosen = {key: own.get("space", space) for key, own in asked.items()}
    takers = spaces()
    known = list(dict.fromkeys(site for own in takers.values() for site in own))
    of_states = [key for key, own in asked.items() if own.get("metric", key) in takers]
    if space is not None and not of_states:
        raise ValueError(f"analyze: 'space' is an option of {' and '.join(takers)}")
    for key in of_states:
        if unknown := sorted(set(asked[key]) - {"metric", "space"}):
            raise ValueError(f"analyze: {key} takes the option space, not {unknown[0]!r}")
        if chosen[key] not in (None, *known):
            raise ValueError(f"analyze: space must be one of {', '.join(known)}, got {chosen[key]!r}")
    inner = [key for key in alone if asked[key]["metric"] not in metric_names()]
    if given := [(key, option) for key in inner for option in set(asked[key]) - {"metric"}]:
        raise ValueError(f"analyze: the column {given[0][0]} takes no option, got {given[0][1]!r}")
    plain = {key: own for key, own in asked.items() if key not in (*of_states, *inner)}
    settings = {request.key: request.options for request in requests_of(plain, common, partial=True)}
    bars = any(own.get("metric", key) == "persistence" for key, own in asked.items())
    found_columns: list[Column] = []
    for key, own in asked.items():
        metric, options = own.get("metric", key), settings.get(key, {})
        found_columns += _asked_columns(key, metric, options, chosen[key], alone.get(key))
    return _Recipe(found_columns, bars)


def _everything(options: Mapping[str, Any]) -> _Recipe:
    """Every quantity with a number per map, or per map and threshold, whose sites a model can give."""
    if unknown := sorted(set(options) - {"thresholds", "bars"}):
        raise ValueError(f"analyze: {unknown[0]!r} is an option of single metrics; name the metrics")
    thresholds = options.get("thresholds", THRESHOLDS)
    columns = []
    for one in found().quantities:
        given = one.with_options(thresholds=thresholds) if "threshold" in one.axes else one
        mean = given.mean_over("query")
        possible = one.protocol == "exact" and set(one.needs) <= {*MAPS, *SITES}
        if possible and table_of(mean) in ("heads", "graphs", "layers"):
            columns.append(Column(one.name, mean))
    return _Recipe(columns, bool(options.get("bars", False)))


def _asked_columns(
    key: str, metric: str, options: Mapping[str, Any], space: str | None, alone: Quantity | None
) -> list[Column]:
    """The quantities of a metric under some options, or the one `alone`, with the names of their columns.

    A quantity that fixes an option otherwise than asked is left out, unless all do. Under a key of its own a
    metric's quantities are called by the key in the place of what their names have in common.
    """
    declared = [one for one in columns_of(metric) if not alone or one.name == alone.name]
    agreeing = [one for one in declared if _agrees(one, options)] or declared
    if key != metric and not alone:  # a column of one's own is of the metric's plain form
        fewest = min((len(_settings(one)) for one in agreeing), default=0)
        agreeing = [one for one in agreeing if len(_settings(one)) == fewest]
    if space is not None:
        agreeing = [one for one in agreeing if space in one.needs] or [_moved(one, space) for one in agreeing]
    bound = [one.with_options(**options) if options else one for one in agreeing]
    placed = [one for one in bound if table_of(one)]
    if not placed and metric != "persistence":
        raise ValueError(f"analyze: {key} has no place in a table; use measure")
    names = [key if alone else one.name for one in placed]
    if key != metric and not alone:
        names = _named_after(key, names)
    columns = [Column(name, one) for name, one in zip(names, placed, strict=True)]
    means = [Column(name, one.mean_over("query")) for name, one in columns if one.axes == ("query",)]
    return columns + means


def _columns() -> dict[str, Quantity]:
    """The columns that are called otherwise than any metric that reads maps."""
    names = set(metric_names())
    return {one.name: one for one in found().quantities if one.protocol == "exact" and one.name not in names}


def _settings(one: Quantity) -> dict[str, Any]:
    return {name: value for name, value in one.options.items() if not isinstance(value, (Site, Shared))}


def _agrees(one: Quantity, options: Mapping[str, Any]) -> bool:
    return all(options.get(name, value) == value for name, value in _settings(one).items())


def _moved(one: Quantity, space: str) -> Quantity:
    """A quantity of states with those of another site."""
    own = one.options["states"].name
    needs = tuple(space if site == own else site for site in one.needs)
    return replace(one, needs=needs).with_options(states=Site(space))


def _named_after(key: str, names: Sequence[str]) -> list[str]:
    """What the quantities of a metric are called under a key of one's own.

    >>> _named_after("low", ["betti_0", "betti_1"]), _named_after("plain", ["fiedler_value"])
    (['low_0', 'low_1'], ['plain'])
    """
    if len(set(names)) == 1:
        return [key for _ in names]
    words = [name.split("_") for name in names]
    same = 0
    while len({tuple(word[: same + 1]) for word in words}) == 1:
        same += 1
    return ["_".join([key, *word[same:]]) for word in words]


def _model_of(model: Any, tokenizer: Any) -> tuple[Any, Any, str]:
    if isinstance(model, torch.nn.Module):
        config = getattr(model, "config", None)
        if config is None:
            raise ValueError(f"analyze: {type(model).__name__} has no config; a transformers model is needed")
        return model, tokenizer, str(getattr(config, "_name_or_path", "") or type(model).__name__)
    checkpoint = find_checkpoints(str(model))[-1]
    loaded = load_model(checkpoint)
    return loaded.model, tokenizer or load_tokenizer(checkpoint), checkpoint.model


def _rows_of(encoded: Mapping[str, Any]) -> list[list[int]]:
    """The token ids of what a tokenizer gives, padding left out."""
    ids = torch.as_tensor(encoded["input_ids"])
    ids = ids if ids.ndim > 1 else ids[None]
    keep = torch.as_tensor(encoded["attention_mask"]).bool() if "attention_mask" in encoded else ids >= 0
    return [row[own].tolist() for row, own in zip(ids, keep.expand_as(ids), strict=True)]


def _inputs_of(inputs: Any, encoder: Encoder) -> list[Input]:
    if isinstance(inputs, str):
        inputs = [inputs]
    if isinstance(inputs, Mapping):
        lines: Iterable[Any] = _rows_of(inputs)
    elif isinstance(inputs, Tensor):
        lines = (inputs if inputs.ndim > 1 else inputs[None]).tolist()
    elif isinstance(inputs, Iterable):
        lines = [row for one in inputs for row in (_rows_of(one) if isinstance(one, Mapping) else [one])]
        for sample, line in enumerate(lines):
            if not isinstance(line, (str, Iterable)):
                raise ValueError(
                    f"analyze: input {sample} must be a sentence or a list of token ids, got {line!r}; "
                    "the ids of one text are [[1, 2, 3]]"
                )
    else:
        raise ValueError(
            "analyze: inputs must be sentences, token ids or what a tokenizer gives, "
            f"not {type(inputs).__name__}"
        )
    found = []
    for sample, line in enumerate(lines):
        text = text_argument("analyze", f"input {sample}", line) if isinstance(line, str) else None
        if text is not None and encoder.tokenizer is None:
            raise ValueError(
                "analyze: a text needs a tokenizer: analyze(model, inputs, metrics, tokenizer=...)"
            )
        token_ids = None if text is not None else tuple(line)
        encoded: Encoded = encoder.encode(text, token_ids, sample)
        if not len(encoded.ids):
            raise ValueError(f"analyze: input {sample} has no token")
        found.append(Input(Sentence(sample, "text", text, token_ids, "", sample), encoded))
    if not found:
        raise ValueError("analyze: there are no inputs")
    return found
