# SPDX-License-Identifier: MIT
"""Capture and measure in one call, in memory: a model and some inputs in, results out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnscope.engine.config import Study
from attnscope.engine.forward import Batch, batch_of, padded, self_attention
from attnscope.engine.recipe import Recipe, UnitRows, bar_columns, head_mean
from attnscope.engine.results import Results
from attnscope.engine.texts.encoding import batches
from attnscope.engine.texts.samples import samples_table
from attnscope.engine.texts.sources import Sentence
from attnscope.engine.units import Input, Unit
from attnscope.metrics.measure import THRESHOLDS, measure, requests_of
from attnscope.metrics.states.alignment import geometric_semantic_alignment
from attnscope.metrics.states.reference_influence import ReferenceInfluence, reference_influence
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
        metrics: names, or a mapping from names of columns to options, as `measure` takes them; None takes
            everything of the sink study.
        tokenizer: of the model, for sentences and for readable tokens; a folder or hub id brings its own.
        layers: only these layers.
        name: of the model in the tables; empty takes its own.
        options: given to every metric that takes an option of that name. Metrics that compare attention with
            states (`geometric_semantic_alignment`, `reference_influence`) take `space`: "value", the head's
            own value vectors (the head mean has none: NaN), or "hidden", the residual stream entering the
            layer; the reference is the head's own `sink_tokens`.

    Returns:
        Results with `samples`, and as the metrics need them: `heads` (a number per map), `graphs` (per map
        and threshold), `vectors` (per map and token or rank), `bars` (persistence). Sample, layer and head
        count from 0; head −1 is the head mean.

    Raises:
        ValueError: inputs of the wrong kind, an unknown metric.
        LoadError: the model cannot be loaded or captured.

    Example:
        >>> import torch, attnscope as asc
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
        ...                      num_attention_heads=4, num_key_value_heads=2)
        >>> results = asc.analyze(LlamaForCausalLM(config).eval(), torch.arange(6)[None], ["fiedler_value"])
        >>> dict(results.to_xarray().sizes)
        {'model': 1, 'revision': 1, 'sample': 1, 'layer': 2, 'head': 5}
    """
    recipe = _everything(options) if metrics is None else _Chosen(metrics, options)
    loaded, tokenizer, label = _model_of(model, tokenizer)
    text = loaded.config.get_text_config() if hasattr(loaded.config, "get_text_config") else loaded.config
    if tokenizer is None and _has_text(inputs):
        raise ValueError("analyze: a text needs a tokenizer: analyze(model, inputs, metrics, tokenizer=...)")
    encoder = Encoder(
        tokenizer, context_length(loaded.config, tokenizer), "keep", getattr(text, "vocab_size", None)
    )
    found = _inputs_of(inputs, encoder)
    heads = int(getattr(text, "num_attention_heads", None) or 1)
    rows = UnitRows(constants={"model": name or label, "revision": "", "step": -1})
    unit = Unit("", "", "analyze", Checkpoint(name or label, "", -1, "", False), inputs=tuple(found))
    for group in batches(unit, heads):
        batch = batch_of(group, encoder)
        tensors = padded(batch, encoder.pad_id, loaded.device)
        for number, layer in self_attention(
            loaded, tensors, layers=layers, sites=recipe.sites(), extra=recipe.extra_sites()
        ):
            recipe.measure(layer, number, batch, rows)
    tables = {"samples": samples_table(unit, encoder, {}, {}, "analyze"), **rows.finish()}
    return Results(tables, provenance={"model": name or label, "architecture": type(loaded).__name__})


#: Metrics with a value per threshold, and metrics whose last axis is the dimension of homology.
OF_THRESHOLDS = ("graph_statistics", "betti_numbers")
BY_DIMENSION = ("betti_numbers", "bar_count", "total_persistence", "max_persistence", "persistent_entropy")

#: Metrics that need states beside attention.
OF_STATES = ("geometric_semantic_alignment", "reference_influence")
SPACES = ("value", "hidden")


class _Chosen(Recipe):
    """Whatever metrics were asked for, each put where its shape belongs."""

    name = "analyze"

    def __init__(self, metrics: Metrics, options: Mapping[str, Any]) -> None:
        metrics = [metrics] if isinstance(metrics, str) else metrics
        asked = metrics if isinstance(metrics, Mapping) else {name: {} for name in metrics}
        self.options = dict(options)
        space = self.options.pop("space", "value")
        self.asked = {key: own for key, own in asked.items() if own.get("metric", key) not in OF_STATES}
        self.states = {key: {"space": space, **own} for key, own in asked.items() if key not in self.asked}
        for key, own in self.states.items():
            unknown = sorted(set(own) - {"metric", "space"})
            if unknown:
                raise ValueError(f"analyze: {key} takes the option space, not {unknown[0]!r}")
            if own["space"] not in SPACES:
                raise ValueError(f"analyze: space must be one of {', '.join(SPACES)}, got {own['space']!r}")
        if "space" in options and not self.states:
            raise ValueError(f"analyze: 'space' is an option of {' and '.join(OF_STATES)}")
        requests_of(self.asked, self.options)
        common = self.options.get("thresholds", THRESHOLDS)
        self.placed = {
            key: _Place(own.get("metric", key), _listed(own.get("thresholds", common)))
            for key, own in asked.items()
        }

    @classmethod
    def metrics(cls) -> list[str]:
        from attnscope.metrics.measure import metric_names

        return metric_names()

    def sites(self) -> tuple[str, ...]:
        return ("attention", *dict.fromkeys(own["space"] for own in self.states.values()))

    def measure(self, layer: Layer, number: int, batch: Batch, rows: UnitRows) -> None:
        heads = layer.matrices()
        lengths = layer.lengths[:, None]
        mean = head_mean(heads)
        for maps, names in ((mean, [-1]), (heads, list(layer.heads))):
            found = measure(maps, self.asked, lengths=lengths, **self.options) if self.asked else {}
            for key, own in self.states.items():
                found[key] = self._against_states(
                    own.get("metric", key), own["space"], layer, maps, lengths, mean=names == [-1]
                )
            place(found, self.placed, batch, number, names, maps.shape[-1], rows)

    def _against_states(
        self, metric: str, space: str, layer: Layer, maps: Tensor, lengths: Tensor, *, mean: bool
    ) -> Any:
        """Attention against the head's value vectors, or against the states of the whole layer."""
        if mean and space == "value":
            if metric == "geometric_semantic_alignment":
                return torch.full(maps.shape[:2], torch.nan, dtype=torch.float64)
            return ReferenceInfluence(*[torch.full(maps.shape[:3], torch.nan, dtype=torch.float64)] * 3)
        states = layer.states(space, per_head=True).cpu()
        states = states if space == "value" else states.unsqueeze(1).expand(*maps.shape[:2], -1, -1)
        if metric == "geometric_semantic_alignment":
            return geometric_semantic_alignment(maps, states, lengths=lengths)
        return reference_influence(maps, states, sink_tokens(maps, lengths=lengths), lengths=lengths)


class _Place(NamedTuple):
    """What a key of the result stands for, and the thresholds of a metric that has them."""

    metric: str
    thresholds: list[float | str]


def _listed(thresholds: Any) -> list[float | str]:
    if isinstance(thresholds, str):
        return [thresholds]
    if isinstance(thresholds, Tensor):
        return list(thresholds.flatten().tolist())
    return list(np.asarray(thresholds, dtype=object).ravel().tolist())


def place(
    found: Mapping[str, Any],
    placed: Mapping[str, _Place],
    batch: Batch,
    number: int,
    names: Sequence[int],
    n: int,
    rows: UnitRows,
) -> None:
    """Puts what `measure` returned for [batch, heads, n, n] into tables.

    Args:
        found: results by key.
        placed: what each key stands for.
        batch: the sentences.
        number: of the layer.
        names: of the heads.
        n: size of the padded maps.
        rows: takes the rows.

    Raises:
        ValueError: a result that has no place in a table.
    """
    count, heads = len(batch.samples), len(names)
    lengths = np.repeat(batch.lengths, heads)
    keys = {
        "sample": np.repeat(batch.samples, heads),
        "layer": np.full(count * heads, number),
        "head": np.tile(names, count),
        "protocol": np.full(count * heads, "exact", dtype=object),
    }
    columns: dict[str, Any] = {}
    graphs: _Parts = {}
    vectors: _Parts = {}
    for key, result in found.items():
        metric, thresholds = placed[key]
        if metric == "persistence":
            rows.add("bars", bar_columns(result, keys))
            continue
        for column, values in _columns_of(key, metric, result):
            if values.shape[:2] != (count, heads) or values.ndim > 3:
                raise ValueError(
                    f"analyze: {key} of shape {tuple(values.shape)} has no place in a table; use measure"
                )
            flat = values.flatten(0, 1).numpy()
            if values.ndim == 2:
                columns[column] = flat
            elif metric in OF_THRESHOLDS:
                graphs[column] = (thresholds, flat)
            else:
                vectors[column] = (list(range(flat.shape[1])), flat)
    if columns:
        rows.add("heads", {**keys, "n_tokens": lengths, **columns})
    if graphs:
        levels, whole = _side_by_side(graphs)
        each = [
            [float(one.partition("/")[0]) / length if isinstance(one, str) else float(one) for one in levels]
            for length in lengths
        ]
        spread = {key: np.repeat(own, len(levels)) for key, own in keys.items()}
        rows.add("graphs", {**spread, "threshold": np.concatenate(each), **whole})
    if vectors:
        places, whole = _side_by_side(vectors)
        spread = {key: np.repeat(own, len(places)) for key, own in keys.items()}
        # entries behind a short sentence's end belong to nothing; other axes are as long as they are
        sizes = {flat.shape[1] for _, flat in vectors.values()}
        ends = np.maximum(lengths if n in sizes else 0, max(sizes - {n}, default=0))
        inside = (np.arange(len(places)) < np.broadcast_to(ends, lengths.shape)[:, None]).ravel()
        whole = {**spread, "index": np.tile(places, count * heads), **whole}
        rows.add("vectors", {key: own[inside] for key, own in whole.items()})


# By column: what stands along the last axis, and the values [maps, that many].
_Parts = dict[str, tuple[Sequence[Any], np.ndarray[Any, Any]]]


def _side_by_side(parts: _Parts) -> tuple[list[Any], dict[str, np.ndarray[Any, Any]]]:
    """All that stands along the last axes, and the columns over it, flat; what a column lacks is absent."""
    places = list(dict.fromkeys(at for own, _ in parts.values() for at in own))
    columns = {}
    for column, (own, values) in parts.items():
        whole = absent(values, len(values) * len(places)).reshape(len(values), len(places))
        whole[:, [places.index(at) for at in own]] = values
        columns[column] = whole.ravel()
    return places, columns


def absent(like: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """What stands where a column has no value: NaN, −1 or False by its kind."""
    nothing: Any = {"f": np.nan, "i": -1, "b": False}[like.dtype.kind]
    return np.full(count, nothing, dtype=like.dtype)


def _columns_of(key: str, metric: str, result: Any) -> Iterator[tuple[str, Tensor]]:
    """Columns with their values [batch, heads] or [batch, heads, ...]."""
    if isinstance(result, Tensor):
        if metric not in BY_DIMENSION:
            yield key, result
            return
        prefix = "betti" if key == "betti_numbers" else key
        for dimension, values in enumerate(result.unbind(-1)):
            yield f"{prefix}_{dimension}", values
    elif hasattr(result, "_asdict"):
        for field, values in result._asdict().items():
            yield _column(key, field), values
    else:
        raise ValueError(
            f"analyze: {key} returns {type(result).__name__}, which has no place in a table; use measure"
        )


def _column(name: str, field: str) -> str:
    """The column of a result's field; a field that repeats the metric's last word adds nothing to its name.

    >>> _column("sink_share", "share"), _column("sink_share", "uniform"), _column("graph_statistics", "gini")
    ('sink_share', 'sink_share_uniform', 'gini')
    """
    if name == "graph_statistics":
        return field
    return name if name.endswith(f"_{field}") else f"{name}_{field}"


def _everything(options: Mapping[str, Any]) -> Recipe:
    from attnscope.studies.attention_sinks.study import SinkStudy

    unknown = set(options) - {"thresholds", "bars"}
    if unknown:
        raise ValueError(f"analyze: {sorted(unknown)[0]!r} is an option of single metrics; name the metrics")
    return SinkStudy(Study(models="-", texts="-", **options))


def _model_of(model: Any, tokenizer: Any) -> tuple[Any, Any, str]:
    if isinstance(model, torch.nn.Module):
        config = getattr(model, "config", None)
        if config is None:
            raise ValueError(f"analyze: {type(model).__name__} has no config; a transformers model is needed")
        return model, tokenizer, str(getattr(config, "_name_or_path", "") or type(model).__name__)
    checkpoint = find_checkpoints(str(model))[-1]
    loaded = load_model(checkpoint)
    return loaded.model, tokenizer or load_tokenizer(checkpoint), checkpoint.model


def _has_text(inputs: Any) -> bool:
    return isinstance(inputs, str) or (
        isinstance(inputs, (list, tuple)) and any(isinstance(line, str) for line in inputs)
    )


def _inputs_of(inputs: Any, encoder: Encoder) -> list[Input]:
    if isinstance(inputs, str):
        inputs = [inputs]
    if isinstance(inputs, Mapping):
        ids = torch.as_tensor(inputs["input_ids"])
        mask = torch.as_tensor(inputs["attention_mask"]).bool() if "attention_mask" in inputs else ids >= 0
        lines: Iterable[Any] = [row[keep].tolist() for row, keep in zip(ids, mask, strict=True)]
    elif isinstance(inputs, Tensor):
        lines = (inputs if inputs.ndim > 1 else inputs[None]).tolist()
    elif isinstance(inputs, Iterable):
        lines = list(inputs)
    else:
        raise ValueError(
            "analyze: inputs must be sentences, token ids or what a tokenizer gives, "
            f"not {type(inputs).__name__}"
        )
    found = []
    for sample, line in enumerate(lines):
        text = line if isinstance(line, str) else None
        token_ids = None if text is not None else tuple(line)
        encoded: Encoded = encoder.encode(text, token_ids, sample)
        if not len(encoded.ids):
            raise ValueError(f"analyze: input {sample} has no token")
        found.append(Input(Sentence(sample, "text", text, token_ids, "", sample), encoded))
    if not found:
        raise ValueError("analyze: there are no inputs")
    return found
