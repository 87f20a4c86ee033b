# SPDX-License-Identifier: MIT
"""The states of a bucket as a cloud of points: its dimension, spectrum and pieces, beside null clouds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

import attnscope as asc
from attnscope.inference import jackknife
from attnscope.studies.hallucination_geometry.contrasts import Contrast, balanced, buckets

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
        """Local dimension at each k, then two-nearest-neighbours dimension: [m, K + 1]."""
        found = []
        for some in np.array_split(subsets, max(1, len(subsets) // CHUNK)):
            chosen = torch.from_numpy(np.ascontiguousarray(some))
            local = asc.local_dimension(
                None, k=self.options.dimension_k, distances=self.euclidean, subsets=chosen
            ).value
            pair = asc.two_nn(None, distances=self.euclidean, subsets=chosen)
            found.append(torch.cat([local, pair[:, None]], 1).numpy())
        return np.concatenate(found)

    def fragmentation(self, subsets: Array) -> Array:
        """φ of subsets [m]."""
        chosen = torch.from_numpy(np.ascontiguousarray(subsets))
        return asc.fragmentation(self.topological, metric="precomputed", subsets=chosen).numpy()


def compare(space: Space, contrast: Contrast, seed: int) -> dict[tuple[str, int], Any]:
    """Exchange tests of the buckets' dimensions and fragmentation, by quantity and k.

    Statistics are absolute; `signed` below keeps the sign of what is observed.
    """
    ks = space.options.dimension_k

    def statistic(drawn: Array) -> Array:
        one, other = space.dimensions(drawn), space.dimensions(~drawn)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios = np.log(one) - np.log(other)
        pieces = space.fragmentation(drawn) - space.fragmentation(~drawn)
        return np.column_stack([ratios, pieces])

    kept: list[Array] = []

    def sized(drawn: Array) -> Array:
        kept.append(statistic(drawn))
        return np.abs(kept[-1])

    found = contrast.exchange(sized, space.options.permutations, seed)
    names = [*(("log_dimension_ratio", k) for k in ks), ("log_two_nn_ratio", 0), ("fragmentation_gap", 0)]
    values = kept[-1]
    return {
        name: (values[0, at], values[1:, at], found.observed[at], found.drawn[:, at], found.p_value[at],
               found.permutations)
        for at, name in enumerate(names)
    }  # fmt: skip


def template_jackknife(contrast: Contrast, value: Callable[[Array], Array], width: int) -> Array:
    """Ends [2, width] of delete-a-template intervals of numbers of a boolean choice of prompts."""
    names = np.unique(contrast.templates)
    ends = np.full((2, width), np.nan)
    if len(names) < 5:
        return ends
    whole = value(np.ones(len(contrast.labels), dtype=bool))
    without = {name: value(contrast.templates != name) for name in names}
    for at in range(width):

        def of(groups: Array, at: int = at) -> float:
            missing = set(names) - set(np.asarray(groups).tolist())
            return float(whole[at] if not missing else without[missing.pop()][at])

        found = jackknife(names, of)
        ends[:, at] = found.low, found.high
    return ends


def describe(
    run: StageRun, table: pd.DataFrame, layer: int, states: Tensor, options: HallucinationOptions
) -> None:
    """Rows of `clouds` and `betti` of one layer.

    Args:
        states: [prompts, D] in the table's order.
    """
    own = balanced(table, options, run.rng("balanced"))
    rows = table.index.get_indexer(own.index)
    reference, others = buckets(options)
    parts = {}
    for bucket in (reference, *others):
        chosen = (own["bucket"] == bucket).to_numpy()
        parts[bucket] = (states[rows[chosen]], pd.factorize(own["template"][chosen], sort=True)[0])
    sizes = {bucket: len(points) for bucket, (points, _) in parts.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(
            "hallucination_geometry: effective rank and its like grow with n; buckets must have one n, got "
            f"{sizes}"
        )
    for bucket, (points, templates) in parts.items():
        _cloud(run, layer, bucket, points, templates, options)
        if run.unit.variant:
            continue
        # the reference is relabelled with the first of the others
        beside = parts[others[0] if bucket == reference else reference][0]
        for kind in (one for one in options.nulls if one != "random_weights"):
            _null(run, layer, bucket, kind, points, templates, beside, options)
        if "ruscio2026" in run.settings.protocols:
            _published(run, layer, bucket, points)
    clouds = {bucket: one for bucket, (one, _) in parts.items()}
    groups = {bucket: one for bucket, (_, one) in parts.items()}
    if options.band is not None:
        others_of = {reference: others[0], **{one: one for one in others}}
        clouds = {
            bucket: near(one, clouds[reference], clouds[others_of[bucket]], options.band)
            for bucket, one in clouds.items()
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
    """The share of points whose place along a boundary is nearest to their mean; all where it is none."""
    along = points.double() @ asc.boundary(reference, other).direction
    apart = (along - along.mean()).abs()
    if not bool(apart.isfinite().all()):
        return points
    return points[apart <= torch.quantile(apart, share)]


def null_draws(
    points: Tensor, kind: str, templates: Array, beside: Tensor, draws: int, seed: int
) -> Iterator[Tensor]:
    """Null clouds [n, d] of a kind, one after the other; "labels" draws from two buckets together."""
    if kind == "labels":
        pooled = torch.cat([points, beside])
        for draw in range(draws):
            order = np.random.default_rng([seed, draw]).permutation(len(pooled))[: len(points)]
            yield pooled[torch.from_numpy(np.sort(order))]
        return
    groups = {"groups": torch.from_numpy(templates)} if kind == "template" else {}
    known: Any = kind
    yield from asc.null_clouds(points, known, draws=draws, seed=seed, **groups)


def _null(
    run: StageRun,
    layer: int,
    bucket: str,
    kind: str,
    points: Tensor,
    templates: Array,
    beside: Tensor,
    options: HallucinationOptions,
) -> None:
    """Rows of `clouds` of one kind of null clouds."""
    every = np.ones((1, len(points)), dtype=bool)
    drawn = []
    for one in null_draws(points, kind, templates, beside, options.null_draws, run.settings.seed):
        space = Space(one, options)
        drawn.append(np.append(space.dimensions(every)[0], space.fragmentation(every)[0]))
    named = [*(("local_dimension", k) for k in options.dimension_k), ("two_nn", 0), ("fragmentation", 0)]
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    run.write(
        "clouds", layer=layer, bucket=bucket, null=kind, quantity=[name for name, _ in named],
        k=[k for _, k in named], protocol="exact", value=np.mean(drawn, axis=0), low=low, high=high,
        n=len(points), duplicates=0, tied=0,
    )  # fmt: skip


def _cloud(
    run: StageRun, layer: int, bucket: str, points: Tensor, templates: Array, options: HallucinationOptions
) -> None:
    space = Space(points, options)
    ks = options.dimension_k
    names = np.unique(templates)

    def numbers(chosen: Array) -> Array:
        return np.append(space.dimensions(chosen[None])[0], space.fragmentation(chosen[None])[0])

    whole = numbers(np.ones(len(points), dtype=bool))
    ends = np.full((2, len(whole)), np.nan)
    if len(names) >= 5:
        without = {int(name): numbers(templates != name) for name in names}
        for at in range(len(whole)):

            def of(groups: Array, at: int = at) -> float:
                missing = set(names.tolist()) - set(np.asarray(groups).tolist())
                return float(whole[at] if not missing else without[missing.pop()][at])

            found = jackknife(names, of)
            ends[:, at] = found.low, found.high
    local = asc.local_dimension(None, k=ks, distances=space.euclidean)
    named = [*(("local_dimension", k) for k in ks), ("two_nn", 0), ("fragmentation", 0)]
    for at, (name, k) in enumerate(named):
        run.write(
            "clouds", layer=layer, bucket=bucket, null="", quantity=name, k=k, protocol="exact",
            value=whole[at], low=ends[0, at], high=ends[1, at], n=len(points),
            duplicates=int(local.duplicates[at]) if at < len(ks) else 0,
            tied=int(local.tied[at]) if at < len(ks) else 0,
        )  # fmt: skip
    spectrum = asc.cloud_spectrum(points)
    for name in ("effective_rank", "participation_ratio", "isotropy", "pca_dimension"):
        run.write(
            "clouds", layer=layer, bucket=bucket, null="", quantity=name, k=0, protocol="exact",
            value=float(getattr(spectrum, name)), n=len(points), duplicates=0, tied=0,
        )  # fmt: skip


def _published(run: StageRun, layer: int, bucket: str, points: Tensor) -> None:
    import importlib

    ruscio2026 = importlib.import_module("attnscope.protocols.ruscio2026")

    found = {
        "local_dimension": (30, float(ruscio2026.lid(points))),
        "isotropy": (0, float(ruscio2026.isotropy(points))),
        "effective_rank": (0, float(ruscio2026.entropy(points))),
    }
    for name, (k, value) in found.items():
        run.write(
            "clouds", layer=layer, bucket=bucket, null="", quantity=name, k=k, protocol="ruscio2026",
            value=value, n=len(points), duplicates=0, tied=0,
        )  # fmt: skip


def _curves(
    run: StageRun,
    layer: int,
    parts: dict[str, Tensor],
    templates: dict[str, Array],
    options: HallucinationOptions,
) -> None:
    """Write Betti curves and pieces of the buckets, and of null clouds of each kind, on shared scales."""
    most = options.cloud_points
    some: dict[str, Tensor] = {}
    groups: dict[str, Array] = {}
    for bucket, points in parts.items():
        chosen = np.sort(run.rng("topology", bucket).permutation(len(points))[:most])
        some[bucket] = points[chosen]
        if bucket in templates:
            groups[bucket] = templates[bucket][chosen]
    distances = {
        bucket: asc.cloud_distances(points, metric=options.metric) for bucket, points in some.items()
    }
    if not all(bool(matrix.isfinite().all()) for matrix in distances.values()):
        return
    scales = curve_scales([*distances.values()])

    def write(bucket: str, null: str, draw: int, matrix: Tensor) -> None:
        bars = asc.cloud_persistence(matrix, metric="precomputed")
        curve = asc.betti_curve(bars, scales)
        pieces = asc.cloud_components(matrix, scales, metric="precomputed", min_size=options.min_size)
        run.write(
            "betti", layer=layer, bucket=bucket, null=null, draw=draw, scale_number=np.arange(SCALES),
            scale=scales, beta0=curve[:, 0], beta1=curve[:, 1], clusters=pieces.clusters,
            singletons=pieces.singletons, largest=pieces.largest, n=len(matrix),
        )  # fmt: skip

    for bucket, matrix in distances.items():
        write(bucket, "", -1, matrix)
    for kind in (one for one in options.nulls if one != "random_weights" and not run.unit.variant):
        for bucket, points in some.items():
            if kind == "template" and bucket not in groups:
                continue
            beside = next(one for name, one in some.items() if name != bucket)
            drawn = null_draws(
                points, kind, groups.get(bucket, np.zeros(0)), beside, options.null_draws, run.settings.seed
            )
            for draw, one in enumerate(drawn):
                if bool(one.isfinite().all()):
                    write(bucket, kind, draw, asc.cloud_distances(one, metric=options.metric))
