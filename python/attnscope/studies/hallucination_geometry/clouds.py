# SPDX-License-Identifier: MIT
"""The states of a bucket as a cloud of points: its dimension, spectrum and pieces, with null clouds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import attnscope as asc
from attnscope.statistics import jackknife
from attnscope.studies.hallucination_geometry.contrasts import Contrast, balanced, buckets
from attnscope.studies.hallucination_geometry.evidence import null_ends

if TYPE_CHECKING:
    from attnscope.studies.hallucination_geometry.options import HallucinationOptions
    from attnscope.study_api.stage_run import StageRun

Array = np.ndarray[Any, Any]
SCALES, CHUNK = 64, 200


class Space:
    """Distances between the states of some prompts, made once for all questions about them."""

    def __init__(self, states: Tensor, options: HallucinationOptions) -> None:
        self.states = states
        self.options = options
        self.euclidean = asc.cloud_distances(states)
        self.topological = asc.cloud_distances(states, metric=options.metric)

    def dimensions(self, subsets: Array) -> Array:
        """Return the local dimension at each k, then two-nearest-neighbours dimension: [m, K + 1]."""
        dimensions = []
        for chunk in np.array_split(subsets, max(1, len(subsets) // CHUNK)):
            chosen = torch.from_numpy(np.ascontiguousarray(chunk))
            local = asc.local_dimension(
                None, k=self.options.dimension_k, distances=self.euclidean, subsets=chosen
            ).value
            pair = asc.two_nn(None, distances=self.euclidean, subsets=chosen)
            dimensions.append(torch.cat([local, pair[:, None]], 1).numpy())
        return np.concatenate(dimensions)

    def fragmentation(self, subsets: Array) -> Array:
        """Return φ of subsets [m]."""
        chosen = torch.from_numpy(np.ascontiguousarray(subsets))
        return asc.fragmentation(self.topological, metric="precomputed", subsets=chosen).numpy()


def compare(space: Space, contrast: Contrast, seed: int) -> dict[tuple[str, int], Any]:
    """Return exchange tests of the buckets' dimensions and fragmentation, by quantity and k.

    Statistics are absolute; `signed` below keeps the sign of what is observed.
    """
    ks = space.options.dimension_k

    def statistic(drawn: Array) -> Array:
        of_bucket, of_reference = space.dimensions(drawn), space.dimensions(~drawn)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.log(of_bucket) - np.log(of_reference)
        pieces = space.fragmentation(drawn) - space.fragmentation(~drawn)
        return np.column_stack([ratios, pieces])

    statistics: list[Array] = []

    def sized(drawn: Array) -> Array:
        statistics.append(statistic(drawn))
        return np.abs(statistics[-1])

    test = contrast.exchange(sized, space.options.permutations, seed)
    names = [*(("log_dimension_ratio", k) for k in ks), ("log_two_nn_ratio", 0), ("fragmentation_gap", 0)]
    values = statistics[-1]
    return {
        name: (
            values[0, at],
            values[1:, at],
            test.observed[at],
            test.drawn[:, at],
            test.p_value[at],
            test.permutations,
        )
        for at, name in enumerate(names)
    }


def template_jackknife(contrast: Contrast, value: Callable[[Array], Array], width: int) -> Array:
    """Return ends [2, width] of delete-a-template intervals of numbers of a boolean choice of prompts."""
    names = np.unique(contrast.templates)
    ends = np.full((2, width), np.nan)
    if len(names) < 5:
        return ends
    complete = value(np.ones(len(contrast.labels), dtype=bool))
    without = {name: value(contrast.templates != name) for name in names}
    for at in range(width):

        def of(groups: Array, at: int = at) -> float:
            missing = set(names) - set(np.asarray(groups).tolist())
            return float(complete[at] if not missing else without[missing.pop()][at])

        interval = jackknife(names, of)
        ends[:, at] = interval.low, interval.high
    return ends


def describe(
    run: StageRun, table: pd.DataFrame, layer: int, states: Tensor, options: HallucinationOptions
) -> None:
    """Write the rows of `clouds` and `betti` of one layer.

    Args:
        states: [prompts, D] in the table's order.
    """
    prompts = balanced(table, options, run.rng("balanced"))
    rows = table.index.get_indexer(prompts.index)
    reference, others = buckets(options)
    parts = {}
    for bucket in (reference, *others):
        chosen = (prompts["bucket"] == bucket).to_numpy()
        parts[bucket] = (states[rows[chosen]], pd.factorize(prompts["template"][chosen], sort=True)[0])
    sizes = {bucket: len(points) for bucket, (points, _) in parts.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(
            f"hallucination_geometry: effective rank grows with n; buckets must have one n, got {sizes}"
        )
    for bucket, (points, templates) in parts.items():
        _cloud(run, layer, bucket, points, templates, options)
        if run.unit.variant:
            continue
        # the reference is relabelled with the first of the others
        pooled_with = parts[others[0] if bucket == reference else reference][0]
        for kind in (name for name in options.nulls if name != "random_weights"):
            _null(run, layer, bucket, kind, points, templates, pooled_with, options)
        if "ruscio2026" in run.settings.protocols:
            _published(run, layer, bucket, points)
    clouds = {bucket: points for bucket, (points, _) in parts.items()}
    groups = {bucket: templates for bucket, (_, templates) in parts.items()}
    if options.band is not None:
        others_of = {reference: others[0], **{bucket: bucket for bucket in others}}
        clouds = {
            bucket: near(points, clouds[reference], clouds[others_of[bucket]], options.band)
            for bucket, points in clouds.items()
        }
        groups = {}
    _curves(run, layer, clouds, groups, options)


def curve_scales(distances: list[Tensor]) -> Tensor:
    """Return the ascending scales of Betti curves: half of them where pieces merge, half of all distances.

    Pieces merge at the deaths of H0, below nearly all distances between points. The first half are quantiles
    of the pooled deaths, the second quantiles of the pooled distances.
    """
    deaths = []
    for matrix in distances:
        bars = asc.cloud_persistence(matrix, metric="precomputed", max_dimension=0)
        deaths.append(bars.death[(bars.dimension == 0) & bars.death.isfinite()])
    pairs = [
        matrix[tuple(torch.triu_indices(len(matrix), len(matrix), 1, device="cpu"))] for matrix in distances
    ]
    half = torch.linspace(0, 1, SCALES // 2, dtype=torch.float64, device="cpu")
    merging, apart = torch.cat(deaths).double(), torch.cat(pairs).double()
    if not len(merging):
        merging = apart
    return torch.cat([torch.quantile(merging, half), torch.quantile(apart[: 2**24], half)]).sort().values


def near(points: Tensor, reference: Tensor, other: Tensor, share: float) -> Tensor:
    """Return the share of points nearest to their mean along a boundary; all where there is no boundary."""
    along = points.double() @ asc.boundary(reference, other).direction
    apart = (along - along.mean()).abs()
    if not bool(apart.isfinite().all()):
        return points
    return points[apart <= torch.quantile(apart, share)]


def null_draws(
    points: Tensor, kind: str, templates: Array, pooled_with: Tensor, draws: int, seed: int
) -> Iterator[Tensor]:
    """Yield null clouds [n, d] of a kind, one after the other; "labels" draws from two buckets together."""
    if kind == "labels":
        pooled = torch.cat([points, pooled_with])
        for draw in range(draws):
            order = np.random.default_rng([seed, draw]).permutation(len(pooled))[: len(points)]
            yield pooled[torch.from_numpy(np.sort(order))]
        return
    groups = {"groups": torch.from_numpy(templates)} if kind == "template" else {}
    kind_of_null: Any = kind
    yield from asc.null_clouds(points, kind_of_null, draws=draws, seed=seed, **groups)


def _null(
    run: StageRun,
    layer: int,
    bucket: str,
    kind: str,
    points: Tensor,
    templates: Array,
    pooled_with: Tensor,
    options: HallucinationOptions,
) -> None:
    """Write the rows of `clouds` of one kind of null clouds."""
    all_points = np.ones((1, len(points)), dtype=bool)
    drawn = []
    for cloud in null_draws(points, kind, templates, pooled_with, options.null_draws, run.settings.seed):
        space = Space(cloud, options)
        drawn.append(np.append(space.dimensions(all_points)[0], space.fragmentation(all_points)[0]))
    named = [*(("local_dimension", k) for k in options.dimension_k), ("two_nn", 0), ("fragmentation", 0)]
    low, high = null_ends(drawn)
    run.write(
        "clouds",
        layer=layer,
        bucket=bucket,
        null=kind,
        quantity=[name for name, _ in named],
        k=[k for _, k in named],
        protocol="exact",
        value=np.mean(drawn, axis=0),
        low=low,
        high=high,
        n=len(points),
        duplicates=None,
        tied=None,
    )


def _cloud(
    run: StageRun, layer: int, bucket: str, points: Tensor, templates: Array, options: HallucinationOptions
) -> None:
    space = Space(points, options)
    ks = options.dimension_k
    names = np.unique(templates)

    def numbers(chosen: Array) -> Array:
        return np.append(space.dimensions(chosen[None])[0], space.fragmentation(chosen[None])[0])

    complete = numbers(np.ones(len(points), dtype=bool))
    ends = np.full((2, len(complete)), np.nan)
    if len(names) >= 5:
        without = {int(name): numbers(templates != name) for name in names}
        for at in range(len(complete)):

            def of(groups: Array, at: int = at) -> float:
                missing = set(names.tolist()) - set(np.asarray(groups).tolist())
                return float(complete[at] if not missing else without[missing.pop()][at])

            interval = jackknife(names, of)
            ends[:, at] = interval.low, interval.high
    local = asc.local_dimension(None, k=ks, distances=space.euclidean)
    named = [*(("local_dimension", k) for k in ks), ("two_nn", 0), ("fragmentation", 0)]
    for at, (name, k) in enumerate(named):
        run.write(
            "clouds",
            layer=layer,
            bucket=bucket,
            null="",
            quantity=name,
            k=k,
            protocol="exact",
            value=complete[at],
            low=ends[0, at],
            high=ends[1, at],
            n=len(points),
            duplicates=int(local.duplicates[at]) if at < len(ks) else None,
            tied=int(local.tied[at]) if at < len(ks) else None,
        )
    spectrum = asc.cloud_spectrum(points)
    for name in ("effective_rank", "participation_ratio", "isotropy", "pca_dimension"):
        run.write(
            "clouds",
            layer=layer,
            bucket=bucket,
            null="",
            quantity=name,
            k=0,
            protocol="exact",
            value=float(getattr(spectrum, name)),
            n=len(points),
            duplicates=None,
            tied=None,
        )


def _published(run: StageRun, layer: int, bucket: str, points: Tensor) -> None:
    import importlib

    ruscio2026 = importlib.import_module("attnscope.protocols.ruscio2026")

    numbers = {
        "local_dimension": (30, float(ruscio2026.lid(points))),
        "isotropy": (0, float(ruscio2026.isotropy(points))),
        "effective_rank": (0, float(ruscio2026.entropy(points))),
    }
    for name, (k, value) in numbers.items():
        run.write(
            "clouds",
            layer=layer,
            bucket=bucket,
            null="",
            quantity=name,
            k=k,
            protocol="ruscio2026",
            value=value,
            n=len(points),
            duplicates=None,
            tied=None,
        )


def _curves(
    run: StageRun,
    layer: int,
    parts: dict[str, Tensor],
    templates: dict[str, Array],
    options: HallucinationOptions,
) -> None:
    """Write Betti curves and pieces of the buckets, and of null clouds of each kind, on shared scales."""
    most = options.cloud_points
    points_of_bucket: dict[str, Tensor] = {}
    groups: dict[str, Array] = {}
    for bucket, points in parts.items():
        chosen = np.sort(run.rng("topology", bucket).permutation(len(points))[:most])
        points_of_bucket[bucket] = points[chosen]
        if bucket in templates:
            groups[bucket] = templates[bucket][chosen]
    distances = {
        bucket: asc.cloud_distances(points, metric=options.metric)
        for bucket, points in points_of_bucket.items()
    }
    if not all(bool(matrix.isfinite().all()) for matrix in distances.values()):
        return
    scales = curve_scales([*distances.values()])
    for bucket, matrix in distances.items():
        columns = _curve_columns(matrix, scales, options.min_size)
        run.write("betti", layer=layer, bucket=bucket, null="", draw=-1, **columns)
    for kind in (name for name in options.nulls if name != "random_weights" and not run.unit.variant):
        for bucket, points in points_of_bucket.items():
            if kind == "template" and bucket not in groups:
                continue
            pooled_with = next(points for name, points in points_of_bucket.items() if name != bucket)
            drawn = null_draws(
                points,
                kind,
                groups.get(bucket, np.zeros(0)),
                pooled_with,
                options.null_draws,
                run.settings.seed,
            )
            for draw, cloud in enumerate(drawn):
                if bool(cloud.isfinite().all()):
                    matrix = asc.cloud_distances(cloud, metric=options.metric)
                    columns = _curve_columns(matrix, scales, options.min_size)
                    run.write("betti", layer=layer, bucket=bucket, null=kind, draw=draw, **columns)


def _curve_columns(distances: Tensor, scales: Tensor, min_size: int) -> dict[str, Any]:
    """Return the columns of `betti` for one cloud, an entry for each scale."""
    bars = asc.cloud_persistence(distances, metric="precomputed")
    curve = asc.betti_curve(bars, scales)
    pieces = asc.cloud_components(distances, scales, metric="precomputed", min_size=min_size)
    return {
        "scale_number": np.arange(SCALES),
        "scale": scales,
        "beta0": curve[:, 0],
        "beta1": curve[:, 1],
        "clusters": pieces.clusters,
        "singletons": pieces.singletons,
        "largest": pieces.largest,
        "n": len(distances),
    }
