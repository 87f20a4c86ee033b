# SPDX-License-Identifier: MIT
"""The numbers that are measured of each layer, and the rows of tables that they become.

A recipe is made of metrics that somebody names, or of every quantity whose sites a model gives. It measures
one layer after another, of single heads and of their mean, and says which columns got no value and why.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnscope._precision import Precision
from attnscope.analysis.text_sites import TEXT_SITES, TextSites
from attnscope.arguments.maps import Places
from attnscope.capture.rectangles.layer_maps import Rectangles, rectangles_of
from attnscope.capture.sites import SITES
from attnscope.errors import CountedWarning
from attnscope.metrics.discovery import columns_of, metric_of, registry
from attnscope.metrics.homology.barcodes import bar_columns
from attnscope.metrics.lazy.head_mean import HeadMeanAttention
from attnscope.metrics.lazy.map_free import needs_no_map
from attnscope.metrics.lazy.passes import shared_pass
from attnscope.metrics.lazy.visibility import visible_keys
from attnscope.metrics.measured import Measured
from attnscope.metrics.quantity import MAPS, Quantity, Shared, Site
from attnscope.metrics.request import Metrics, keyed_options, metric_names, named_metric, requests_of
from attnscope.metrics.selected_queries import is_mean_of_rows, rows_of
from attnscope.metrics.signatures import options_of
from attnscope.metrics.support import LayerSupport, measure_layer
from attnscope.metrics.thresholds import THRESHOLDS, first_equal_of_maps, levels_of_maps
from attnscope.results.schema import HEAD_KEYS
from attnscope.study_api.forward import Batch, head_mean

if TYPE_CHECKING:
    from attnscope.capture import Layer
    from attnscope.capture.lazy.lazy_layer import LazyLayer

#: Sites that attention is compared with, where a metric lets the caller choose.
SPACES = ("value", "hidden")
#: Keys of each table of numbers of single heads or layers.
TABLE_KEYS = {
    "heads": HEAD_KEYS,
    "graphs": (*HEAD_KEYS, "threshold"),
    "vectors": (*HEAD_KEYS, "index"),
    "bars": (*HEAD_KEYS, "dimension", "birth", "death"),
    "layers": tuple(key for key in HEAD_KEYS if key != "head"),
}


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


def _span(numbers: Collection[int]) -> str:
    """Return the smallest and the largest of some numbers in words.

    >>> _span({7, 9, 8}), _span({7})
    ('7 to 9', '7')
    """
    low, high = min(numbers, default=0), max(numbers, default=0)
    return str(low) if low == high else f"{low} to {high}"


class Recipe(NamedTuple):
    """The measurements of each layer: columns under their requested names, and bars."""

    columns: list[Quantity]
    bars: bool
    precision: Precision = "exact"

    def states(self) -> tuple[str, ...]:
        """Return the captured sites beside attention that the columns read."""
        sites = (TEXT_SITES.get(site) or site for column in self.columns for site in column.needs)
        return tuple(dict.fromkeys(site for site in sites if site in SITES and site != "attention"))

    def metrics_of_states(self) -> list[str]:
        """Return the metrics that read captured sites beside attention."""
        return list(
            dict.fromkeys(
                column.metric.lstrip("_")
                for column in self.columns
                if {TEXT_SITES.get(site) or site for site in column.needs} & {*SITES} - {"attention"}
            )
        )

    @property
    def needs_no_map(self) -> bool:
        """True if queries and keys of a layer give all columns."""
        return bool(self.columns) and not self.bars and all(map(needs_no_map, self.columns))

    def measure_lazily(
        self, layer: LazyLayer, number: int, batch: Batch, left_out: LeftOut
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the same rows as `measure`, from queries and keys of a layer."""
        attention = layer.attention
        learned = None if layer.sink_logits is None else layer.sink_mass.cpu()
        seen = LayerSupport("auto", learned)
        mean = HeadMeanAttention(attention)
        of_mean = [column for column in self.columns if column.scope == "map"]
        sites: dict[str, Any] = {"attention": attention, "head_mean": mean}
        of_layer: dict[str, Any] = {"attention": mean}

        def measure_mean() -> Measured:
            return measure_layer(of_layer, of_mean, seen, mean=True)

        with shared_pass() as note:
            note(measure_mean)  # so that the first pass over the mean measures all of it
            measured = measure_layer(sites, self.columns, seen, heads=list(layer.heads))
            measured_mean = measure_mean()
        name = visible_keys(attention.visibility, max(batch.lengths))
        parts = ((of_mean, measured_mean, None), (self.columns, measured, list(layer.heads)))
        for columns, of_maps, names in parts:
            left_out.add(of_maps, batch.lengths, name)
            yield from place(columns, of_maps, batch, number, names)

    def measure(
        self,
        layer: Layer,
        number: int,
        batch: Batch,
        left_out: LeftOut,
        text_sites: TextSites,
        chosen: Tensor | None = None,
    ) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the numbers of a layer's heads and of their mean: rows of tables as `place` gives them.

        `chosen` holds the queries that means over rows are restricted to, as `chosen_queries` gives them.
        """
        if layer.cross:
            of_layer = self._sites_of_cross(rectangles_of(layer, batch.query_mask))
        else:
            of_layer = self._sites_of_self(layer, batch, left_out, text_sites)
        for sites, names in ((of_layer.mean, None), (of_layer.heads, list(layer.heads))):
            columns = [
                column
                for column in self.columns
                # scores are heads' own: their mean is no argument of a softmax
                if names is not None or (column.scope == "map" and "scores" not in column.needs)
            ]
            region, seen = batch, of_layer.seen
            if not layer.cross:
                region, seen, sites = text_sites.restrict(batch, seen, sites)
            of_maps: dict[str, Any] = {
                "lengths": torch.as_tensor(region.lengths, device="cpu"),
                "heads": names,
                "mean": names is None,
                "precision": self.precision,
            }
            bars = ("persistence",) if self.bars and not layer.cross else ()
            rest = [column for column in columns if chosen is None or not is_mean_of_rows(column)]
            measured = measure_layer(sites, rest, seen, full_results=bars, places=of_layer.places, **of_maps)
            if chosen is not None:
                means = [column for column in columns if is_mean_of_rows(column)]
                rows, seen_by_rows, places = rows_of(sites, seen, chosen, cross=layer.cross)
                of_rows = measure_layer(rows, means, seen_by_rows, places=places, **of_maps)
                measured = measured.joined(of_rows, columns)
            left_out.add(measured, region.lengths, "cross" if layer.cross else layer.visibility.name)
            yield from place(columns, measured, region, number, names)

    def _sites_of_self(
        self, layer: Layer, batch: Batch, left_out: LeftOut, text_sites: TextSites
    ) -> _LayerSites:
        """Return the sites of a layer of self-attention, and why some are missing to `left_out`."""
        heads = layer.matrices()
        mean = head_mean(heads)
        captured = [site for site in layer.tensors if site in self.states()]
        states = {site: layer.states(site).cpu() for site in captured if site != "scores"}
        shared = {site: tensor for site, tensor in states.items() if site != "value"}
        if "value" in states:
            states["value"] = layer.states("value", per_head=True).cpu()
        if "scores" in captured:
            states["scores"] = layer.matrices("scores").cpu()
        needed = [name for name in TEXT_SITES if any(name in column.needs for column in self.columns)]
        of_texts = text_sites.of(needed, layer, batch, left_out.sites)
        shared |= {name: tensor for name, tensor in of_texts.items() if name != "value_norms"}
        return _LayerSites(
            {"attention": heads, "head_mean": mean, **states, **of_texts},
            {"attention": mean, **shared},
            LayerSupport.of(layer),
        )

    @staticmethod
    def _sites_of_cross(part: Rectangles) -> _LayerSites:
        """Return the sites of a layer of cross attention, whose queries stand at no key."""
        mean = head_mean(part.maps)
        seen = replace(part.seen, support="full") if part.seen.support == "causal" else part.seen
        return _LayerSites(
            {"attention": part.maps, "head_mean": mean},
            {"attention": mean},
            seen,
            Places(None, part.query_lengths[:, None], True),
        )


class _LayerSites(NamedTuple):
    """The sites of a layer, by head and of the mean over heads, what queries see and where they stand."""

    heads: dict[str, Tensor]
    mean: dict[str, Tensor]
    seen: LayerSupport
    places: Places | None = None


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
        values = _numbers_of(measured, quantity)
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
        sizes_of_maps = {"n_tokens": lengths}
        if batch.query_mask is not None:
            sizes_of_maps["n_queries"] = np.repeat(batch.query_lengths, heads)
        yield "heads", {**keys, **of_maps, **sizes_of_maps, **values_by_table["heads"]}
    if values_by_table["layers"]:
        yield (
            "layers",
            {**keys, "sample": batch.samples, "n_tokens": batch.lengths, **values_by_table["layers"]},
        )
    if graphs := values_by_table["graphs"]:
        thresholds, graph_columns = _align_entries(graphs)
        spread = {key: np.repeat(values, len(thresholds)) for key, values in of_maps.items()}
        levels = levels_of_maps(thresholds, lengths.tolist()).ravel()
        rows = _once_each(thresholds, lengths, {**spread, "threshold": levels}, graph_columns)
        yield "graphs", {**keys, **rows}
    if vectors := values_by_table["vectors"]:
        yield "vectors", {**keys, **_entries_of_maps(vectors, of_maps, measured.size, batch)}


def _numbers_of(measured: Measured, quantity: Quantity) -> Any:
    """Return the numbers of a quantity as an array: without a value floats are NaN, all others hidden."""
    values = measured.values[quantity].numpy()
    if values.dtype.kind == "f":
        return values
    hidden = ~measured.defined[quantity].numpy()
    return np.ma.MaskedArray(values, hidden) if hidden.any() else values


def _absent(count: int, entries: int, dtype: Any) -> Any:
    """Return an array [count, entries] without a value: NaN for floats, hidden entries for all others."""
    if dtype.kind == "f":
        return np.full((count, entries), np.nan, dtype)
    return np.ma.MaskedArray(np.zeros((count, entries), dtype), mask=True)


def _is_absent(values: Any) -> Any:
    return np.isnan(values) if values.dtype.kind == "f" else np.ma.getmaskarray(values)


def _once_each(
    thresholds: Sequence[float | str], lengths: Any, keys: Mapping[str, Any], columns: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the rows of maps by thresholds, one of thresholds that are the same number for a map's length.

    Metrics may have other thresholds, so that one of the rows holds what another lacks.
    """
    first = first_equal_of_maps(thresholds, lengths.tolist())
    once = first == np.arange(len(thresholds))
    if once.all():
        return {**keys, **columns}
    for at, place in np.argwhere(~once):
        row, first_row = at * len(thresholds) + place, at * len(thresholds) + first[at, place]
        for values in columns.values():
            if _is_absent(values[first_row : first_row + 1])[0]:
                values[first_row] = values[row]
    return {name: values[once.ravel()] for name, values in {**keys, **columns}.items()}


def _entries_of_maps(
    vectors: Mapping[str, tuple[Sequence[Any], Any]], of_maps: Mapping[str, Any], keys: int, batch: Batch
) -> dict[str, Any]:
    """Return columns with a row for every entry of a map's vectors: of its queries, keys or ranks.

    Entries behind a short sentence's end belong to nothing; other axes are as long as they are.

    Args:
        vectors: by column the names of the entries and the values [maps, entries].
        of_maps: sample and head of each map.
        keys: of the padded maps.
        batch: the sentences.
    """
    places, columns = _align_entries(vectors)
    maps = len(of_maps["sample"])
    heads = maps // len(batch.samples)
    lengths = np.repeat(batch.lengths, heads)
    real = {keys: lengths}
    if batch.query_mask is not None:
        longest, of_queries = max(batch.query_lengths), np.repeat(batch.query_lengths, heads)
        real[longest] = np.maximum(of_queries, lengths) if longest == keys else of_queries
    sizes = {len(at) for at, _ in vectors.values()}
    ends = np.max([real.get(size, np.full(maps, size)) for size in sizes], 0)
    inside = (np.arange(len(places)) < ends[:, None]).ravel()
    spread = {key: np.repeat(values, len(places)) for key, values in of_maps.items()}
    rows = {**spread, "index": np.tile(places, maps), **columns}
    return {name: values[inside] for name, values in rows.items()}


def _align_entries(parts: Mapping[str, tuple[Sequence[Any], Any]]) -> tuple[list[Any], dict[str, Any]]:
    """Return all entries along the last axes, and the columns over them, flat; entries that a column lacks
    are absent.
    """
    places = list(dict.fromkeys(at for entries, _ in parts.values() for at in entries))
    place_of = {at: place for place, at in enumerate(places)}
    columns = {}
    for column, (entries, values) in parts.items():
        aligned = values.copy()
        if list(entries) != places:
            aligned = _absent(len(values), len(places), values.dtype)
            aligned[:, [place_of[entry] for entry in entries]] = values
        columns[column] = aligned.ravel()
    return places, columns


def named_recipe(
    metrics: Metrics, options: Mapping[str, Any], *, with_answers: bool = True, with_vectors: bool = True
) -> Recipe:
    """Return the quantities of some metrics.

    Args:
        metrics: as `measure` takes them.
        options: of all metrics that take them.
        with_answers: texts have answers.
        with_vectors: also numbers per query, key or rank; without it only those of metrics with no others,
            and of columns that are named themselves.
    """
    common = dict(options)
    space = common.pop("space", None)
    options_by_key = keyed_options(metrics)
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
        if getattr(quantity.options.get("states"), "name", "") in SPACES
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
    if not with_vectors:
        chosen = _without_vectors(chosen, single_columns)
    if not with_answers and any("answer" in column.needs for column in chosen):
        key = next(key for key, name in named.items() if _reads_answers(name))
        raise ValueError(f"analyze: {key} reads answers; answer=[(start, stop), ...] has one for each text")
    return Recipe(chosen, "persistence" in named.values())


def _without_vectors(chosen: Sequence[Quantity], single_columns: Mapping[str, Quantity]) -> list[Quantity]:
    """Return the quantities with a number per map, and the vectors of metrics that have no such number."""
    with_numbers = {quantity.metric for quantity in chosen if table_of(quantity) != "vectors"}
    named = {column.name for column in single_columns.values()} | set(single_columns)
    return [
        quantity
        for quantity in chosen
        if table_of(quantity) != "vectors" or quantity.metric not in with_numbers or quantity.name in named
    ]


def _reads_answers(metric: str) -> bool:
    return any("answer" in column.needs for column in columns_of(metric))


def complete_recipe(options: Mapping[str, Any], *, with_answers: bool = False) -> Recipe:
    """Return a recipe of every quantity with a number per map, or per map and threshold, whose sites a
    model can give.
    """
    if unknown := sorted(set(options) - {"thresholds", "bars"}):
        raise ValueError(f"analyze: {unknown[0]!r} is an option of single metrics; name the metrics")
    available = {*MAPS, *SITES, *TEXT_SITES} - (set() if with_answers else {"answer"})
    bound = {"thresholds": options.get("thresholds", THRESHOLDS)}
    columns = [
        (quantity.with_options(**bound) if "threshold" in quantity.axes else quantity).mean_over("query")
        for quantity in registry().quantities
        if quantity.protocol == "exact" and set(quantity.needs) <= available
    ]
    placed = [column for column in columns if table_of(column) in ("heads", "graphs", "layers")]
    return Recipe(placed, bool(options.get("bars", False)))


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
    sites = {site for quantity in agreeing for site in quantity.needs} - {*MAPS, *SITES, *TEXT_SITES}
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
