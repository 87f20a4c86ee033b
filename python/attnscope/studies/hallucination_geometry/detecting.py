# SPDX-License-Identifier: MIT
"""Detection of a prompt's bucket from states on held-out templates, compared with words and lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

import attnscope as asc
from attnscope.statistics import benjamini_hochberg, jackknife, max_t
from attnscope.statistics.detection import areas, auc, direction_scores, in_units, narrowed, probe_scores
from attnscope.studies.hallucination_geometry.clouds import Space, compare, describe, template_jackknife
from attnscope.studies.hallucination_geometry.contrasts import Contrast, contrasts
from attnscope.studies.hallucination_geometry.evidence import null_ends
from attnscope.studies.hallucination_geometry.questions import bag_of_words
from attnscope.studies.hallucination_geometry.states import Stored

if TYPE_CHECKING:
    from attnscope.studies.hallucination_geometry.options import HallucinationOptions
    from attnscope.study_api.stage_run import StageRun

Array = np.ndarray[Any, Any]
BASELINES = ("auc_length", "auc_words", "auc_surprisal", "auc_embedding")
SPLITS = 20


def measure(run: StageRun, table: pd.DataFrame, options: HallucinationOptions) -> None:
    """Write clouds, contrasts, detection and boundaries of every layer."""
    stored = Stored(run)
    all_contrasts = contrasts(table, options, run.rng("contrasts"))
    of_prompts = {contrast.name: _baselines(run, contrast) for contrast in all_contrasts}
    tests: dict[tuple[str, str, int], dict[int, Any]] = {}
    before: dict[str, tuple[Array, Array, Array]] = {}
    for layer in stored.layers():
        states = stored.layer(layer, table["sample"])
        if not bool(states.isfinite().all()):
            bad = int((~states.isfinite()).any(1).sum())
            run.note(
                f"hallucination_geometry: layer {layer}: {bad} states are not finite; the layer is left out"
            )
            continue
        describe(run, table, layer, states, options)
        for contrast in all_contrasts:
            rows = table.index.get_indexer(table.index[table["sample"].isin(contrast.table["sample"])])
            states_of_contrast = states[rows]
            before[contrast.name] = _boundary(
                run, layer, contrast, states_of_contrast, before.get(contrast.name)
            )
            _detected(run, layer, contrast, states_of_contrast, of_prompts[contrast.name])
            if run.unit.variant:
                _values(run, layer, contrast, states_of_contrast, options)
                continue
            for key, test in _tested(run, contrast, states_of_contrast, options, layer).items():
                tests.setdefault((contrast.name, *key), {})[layer] = test
    _write(run, tests, {contrast.name: contrast for contrast in all_contrasts}, options)


def _baselines(run: StageRun, contrast: Contrast) -> dict[str, Array]:
    """Return held-out scores of what is not a state, by name."""
    table = contrast.table
    features = {
        "auc_length": table["tokens"].to_numpy(dtype=float)[:, None],
        "auc_words": bag_of_words(table["question"].tolist()),
    }
    if table["surprisal"].notna().all():
        features["auc_surprisal"] = table["surprisal"].to_numpy()[:, None]
    embedding = run.model().model.get_input_embeddings()
    ids = {text.sentence.sample: text.encoded.ids for text in run.unit.inputs}
    with torch.no_grad():
        means = [
            embedding(torch.as_tensor(np.asarray(ids[sample]), dtype=torch.long, device=run.model().device))
            .double()
            .mean(0)
            .cpu()
            .numpy()
            for sample in table["sample"]
        ]
    features["auc_embedding"] = np.stack(means)
    return {name: _scores(data, contrast) for name, data in features.items()}


def _scores(data: Array, contrast: Contrast) -> Array:
    return probe_scores(narrowed(data), contrast.labels, contrast.folds)


def _detected(
    run: StageRun, layer: int, contrast: Contrast, states: torch.Tensor, baselines: dict[str, Array]
) -> None:
    data = states.numpy()
    scores = {
        "auc": _scores(data, contrast),
        "auc_direction": direction_scores(data, contrast.labels, contrast.folds),
        **baselines,
    }
    rows = areas(
        scores, contrast.labels, contrast.templates, best_of=tuple(baselines), seed=run.settings.seed
    )
    run.write(
        "detection",
        layer=layer,
        contrast=contrast.name,
        score=rows["score"].tolist(),
        auc=rows["auc"],
        low=rows["low"],
        high=rows["high"],
        n=rows["n"],
    )


def directions_auc(data: Array, drawn: Array, folds: Array) -> Array:
    """Return areas of the projection on the training folds' difference, of each labelling [m, n] -> [m]."""
    data, scores = in_units(data), np.empty(drawn.shape)
    for fold in np.unique(folds):
        test = folds == fold
        weights_of_ones = drawn[:, ~test].astype(float)
        weights_of_zeros = 1 - weights_of_ones
        with np.errstate(divide="ignore", invalid="ignore"):
            high = weights_of_ones / weights_of_ones.sum(1, keepdims=True) @ data[~test]
            low = weights_of_zeros / weights_of_zeros.sum(1, keepdims=True) @ data[~test]
        along = high - low
        length = np.linalg.norm(along, axis=1, keepdims=True)
        along = np.divide(along, length, out=np.zeros_like(along), where=length > 0)
        centre = ((high + low) / 2 * along).sum(1, keepdims=True)
        scores[:, test] = np.round(along @ data[test].T - centre, 9)
    return np.asarray(auc(scores, drawn))


def _tested(
    run: StageRun, contrast: Contrast, states: torch.Tensor, options: HallucinationOptions, layer: int
) -> dict[tuple[str, int], Any]:
    """Return the exchange tests of a layer: dimensions, fragmentation, detection along the difference.

    The ratio of effective ranks has an interval over templates and no test; its row is written here.
    """
    space = Space(states, options)
    seed = run.settings.seed
    tests = compare(space, contrast, seed)
    data = (states - states.mean(0)).numpy()
    areas_drawn: list[Array] = []

    def statistic(drawn: Array) -> Array:
        areas_drawn.append(directions_auc(data, drawn, contrast.folds))
        return np.abs(areas_drawn[-1] - 0.5)

    if len(np.unique(contrast.folds)) > 1:
        test = contrast.exchange(statistic, options.permutations, seed)
        tests["auc_direction", 0] = (
            areas_drawn[-1][0],
            areas_drawn[-1][1:],
            test.observed,
            test.drawn,
            test.p_value,
            test.permutations,
        )
    ends = template_jackknife(
        contrast, lambda chosen: _numbers(space, contrast, chosen), len(options.dimension_k) + 3
    )
    names = _names(options)
    run.write(
        "contrasts",
        layer=layer,
        contrast=contrast.name,
        quantity="log_rank_ratio",
        k=0,
        protocol="exact",
        value=_numbers(space, contrast, np.ones(len(states), dtype=bool))[-1],
        low=ends[0, -1],
        high=ends[1, -1],
        n_pairs=contrast.n,
        correction="",
    )
    return {
        key: (*value, *(ends[:, names.index(key)] if key in names else (np.nan, np.nan)))
        for key, value in tests.items()
    }


def _numbers(space: Space, contrast: Contrast, chosen: Array) -> Array:
    """Return differences of the two buckets among some prompts."""
    other, reference = (contrast.labels == 1) & chosen, (contrast.labels == 0) & chosen
    values = space.dimensions(np.stack([other, reference]))
    pieces = space.fragmentation(np.stack([other, reference]))
    with np.errstate(divide="ignore", invalid="ignore"):
        ranks = [asc.cloud_spectrum(space.states[part]).effective_rank for part in (other, reference)]
        return np.concatenate(
            [
                np.log(values[0]) - np.log(values[1]),
                [pieces[0] - pieces[1], np.log(float(ranks[0])) - np.log(float(ranks[1]))],
            ]
        )


def _names(options: HallucinationOptions) -> list[tuple[str, int]]:
    """Return quantity and k of the numbers of `_numbers`, in its order."""
    ratios = [("log_dimension_ratio", k) for k in options.dimension_k]
    return [*ratios, ("log_two_nn_ratio", 0), ("fragmentation_gap", 0), ("log_rank_ratio", 0)]


def _values(
    run: StageRun, layer: int, contrast: Contrast, states: torch.Tensor, options: HallucinationOptions
) -> None:
    """Write the same differences of a control, without tests."""
    values = _numbers(Space(states, options), contrast, np.ones(len(states), dtype=bool))
    for (name, k), value in zip(_names(options), values, strict=True):
        run.write(
            "contrasts",
            layer=layer,
            contrast=contrast.name,
            quantity=name,
            k=k,
            protocol="exact",
            value=value,
            n_pairs=contrast.n,
            correction="",
        )


def _write(
    run: StageRun,
    tests: dict[tuple[str, str, int], dict[int, Any]],
    contrasts_by_name: dict[str, Contrast],
    options: HallucinationOptions,
) -> None:
    """Write the rows of `contrasts`: those of claims adjusted over layers, all others together."""
    rows: list[dict[str, Any]] = []
    for (contrast, quantity, k), layers in tests.items():
        numbers = sorted(layers)
        family = max_t(
            [layers[layer][2] for layer in numbers], np.stack([layers[layer][3] for layer in numbers], 1)
        )
        for at, layer in enumerate(numbers):
            value, drawn, _, _, p_value, ways, low, high = layers[layer]
            bounds = null_ends(drawn)
            rows.append(
                {
                    "layer": layer,
                    "contrast": contrast,
                    "quantity": quantity,
                    "k": k,
                    "value": value,
                    "low": low,
                    "high": high,
                    "null_mean": _mean(drawn),
                    "null_low": bounds[0],
                    "null_high": bounds[1],
                    "p_value": p_value,
                    "n_pairs": contrasts_by_name[contrast].n,
                    "p_adjusted": family.p_adjusted[at] if np.isfinite(p_value) else np.nan,
                    "correction": "max-T over layers" if np.isfinite(p_value) else "",
                    "labellings": min(ways, 1e300),
                }
            )
    others = [
        row for row in rows if row["quantity"] == "log_two_nn_ratio" or row["k"] not in (0, options.primary_k)
    ]
    for row, p in zip(others, benjamini_hochberg([float(row["p_value"]) for row in others]), strict=True):
        row |= {"p_adjusted": p, "correction": "" if np.isnan(p) else "benjamini_hochberg"}
    for row in rows:
        run.write("contrasts", protocol="exact", **row)


def _boundary(
    run: StageRun, layer: int, contrast: Contrast, states: torch.Tensor, before: Any
) -> tuple[Array, Array, Array]:
    """Write a row of `boundaries`.

    Returns:
        The direction, those of exchanged labels, and those without each template.
    """
    labels = contrast.labels == 1
    boundary = asc.boundary(states[~labels], states[labels])
    direction = boundary.direction.numpy()
    data = (states - states.mean(0)).numpy()
    # labels exchanged alike in every layer
    drawn = contrast.exchange(lambda labellings: labellings[:, 0] * 0.0, SPLITS, run.settings.seed).labels
    nulls = np.stack([_difference(data, labelling) for labelling in drawn])
    halves = _halves(contrast, run)
    reliability = _mean([_between(data, labels, half) for half in halves])
    null = _mean([_between(data, labelling, half) for labelling, half in zip(drawn, halves, strict=False)])
    names = np.unique(contrast.templates)
    without = np.stack(
        [_difference(data[contrast.templates != name], labels[contrast.templates != name]) for name in names]
    )
    stability = low = high = stability_null = largest_null = np.nan
    if before is not None and len(before[0]) == len(direction):
        stability = float(direction @ before[0])
        exchanged = (nulls * before[1]).sum(1)
        stability_null = _mean(exchanged)
        largest_null = float(np.nanmax(exchanged)) if np.isfinite(exchanged).any() else np.nan
        if len(names) >= 5:
            low, high = _left_out_interval(stability, (without * before[2]).sum(1))
    run.write(
        "boundaries",
        layer=layer,
        contrast=contrast.name,
        norm=float(boundary.norm),
        relative_norm=float(boundary.relative_norm),
        distance2=float(boundary.distance2),
        stability=stability,
        stability_low=low,
        stability_high=high,
        stability_null=stability_null,
        stability_null_high=largest_null,
        reliability=reliability,
        reliability_null=null,
    )
    return direction, nulls, without


def _left_out_interval(value: float, without: Array) -> tuple[float, float]:
    """Return the delete-a-group interval of a number, from its values without each group."""
    if not np.isfinite(without).all():
        return np.nan, np.nan
    position = {index: at for at, index in enumerate(range(len(without)))}

    def number(groups: Array) -> float:
        missing = set(position) - {int(group) for group in np.asarray(groups)}
        return float(without[missing.pop()]) if missing else value

    interval = jackknife(np.arange(len(without)), number)
    return interval.low, interval.high


def _mean(values: Any) -> float:
    """Return the mean of the finite values; NaN if there are none."""
    numbers = np.asarray(values, dtype=float)
    return float(np.nanmean(numbers)) if np.isfinite(numbers).any() else np.nan


def _difference(data: Array, labels: Array) -> Array:
    along = data[labels].mean(0) - data[~labels].mean(0)
    length = np.linalg.norm(along)
    return along / length if length > 0 else np.full_like(along, np.nan)


def _between(data: Array, labels: Array, half: Array) -> float:
    """Return the cosine of the differences of two halves of the templates."""
    for part in (half, ~half):
        if not labels[part].any() or labels[part].all():
            return np.nan
    return float(_difference(data[half], labels[half]) @ _difference(data[~half], labels[~half]))


def _halves(contrast: Contrast, run: StageRun) -> list[Array]:
    names = np.unique(contrast.templates)
    if len(names) < 2:
        return []
    rng = run.rng("halves", contrast.name)
    return [np.isin(contrast.templates, rng.permutation(names)[: len(names) // 2]) for _ in range(SPLITS)]
