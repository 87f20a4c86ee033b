# SPDX-License-Identifier: MIT
"""Estimates from the sums over texts: sizes with intervals and tests, by layer, head and set of queries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.metrics.positions.position_profile import PositionProfile, Weights
from attnscope.statistics.groups import jackknife_bounds, mean_product
from attnscope.statistics.leakage import layer_share, leakage_share, overall_share
from attnscope.statistics.residuals import moved_distance, residual_size
from attnscope.studies.absolute_position import anchors, mlp_shares
from attnscope.studies.absolute_position.checks import check_shuffled
from attnscope.studies.absolute_position.options import query_sets
from attnscope.studies.absolute_position.removals import control_removals
from attnscope.studies.absolute_position.sums import passes_of, profile_of, tokens_of, write_profile
from attnscope.study_api.selection import where

if TYPE_CHECKING:
    from attnscope.study_api.stage_run import StageRun

Array = np.ndarray[Any, Any]
#: What log-sums of scores are needed for: null of a model that hands out its maps alone.
LOG_SUMS = ("lse_gap", "score", "log_z", "covariance")
#: Offsets at which the variance of log attention is split.
OFFSETS = (1, 2, 4, 8, 16, 32, 64)
#: Column of each size by the weights of `residual_size`.
SIZES: dict[str, Weights] = {"residual": "uniform", "felt": "felt", "moved_l2": "moved"}
_ENDS = {"": "estimate", "_low": "low", "_high": "high"}


def arms_of(run: StageRun) -> list[tuple[str, str]]:
    """Return the arms on each input that keep all sums."""
    passes = passes_of(run, ("arm", "input", "kind"), variant="")
    return [(arm, name) for arm, name, kind in passes if kind in ("base", "text")]


def maps_alone(run: StageRun) -> set[str]:
    """Return the models whose scores are replaced by log A, and whose log-sums are not known."""
    checks = run.read("checks")
    return set(where(checks[checks["value"].isna()], check="scores")["model"])


def without_log_sums(columns: dict[str, Any], scores: bool) -> dict[str, Any]:
    """Return the columns, without values that need log-sums where log A replaces scores."""
    return (
        columns
        if scores
        else columns
        | {name: np.full(np.shape(columns[name]), np.nan) for name in LOG_SUMS if name in columns}
    )


def position(run: StageRun, options: Any) -> None:
    """Write the tables of every arm that keeps all sums, on every input."""
    n, scores = tokens_of(run), not maps_alone(run)
    for arm, kind in arms_of(run):
        profile = profile_of(run, n, options.groups, variant="", arm=arm, draw=0, input=kind)
        for name, chosen in query_sets(options, profile.m).items():
            columns = without_log_sums(estimated(profile, chosen, options, run), scores)
            keys = {"arm": arm, "input": kind, "queries": name}
            means = over_heads(profile, chosen, columns)
            if name == "early" and arm == "base" and kind != "repeated":
                of_all_layers = overall_share(
                    profile, queries=chosen, draws=options.permutations, seed=run.settings.seed
                )
                statistic = f"leakage_share {kind}"
                run.write("overall", statistic=statistic, n=len(profile.present), **of_all_layers._asdict())
            if name == "early" and (arm, kind) == ("base", "shuffled") and 0 in profile.layers:
                check_shuffled(run, columns["p_value"][profile.layers.index(0)])
            columns["correction"] = np.full(columns["residual"].shape, "Benjamini–Hochberg", dtype=object)
            for at, (layer, heads) in enumerate(zip(profile.layers, profile.heads, strict=True)):
                columns_of_layer = {column: values[at, :heads] for column, values in columns.items()}
                places = {"layer": layer, "head": np.arange(heads), "protocol": "exact"}
                run.write("position", **places, **keys, **columns_of_layer)
                run.write("layer_means", layer=layer, **keys, **{name: means[name][at] for name in means})
        _offsets(run, profile, arm, kind, scores)
        if options.keep_sums:
            write_profile(run, profile, arm, kind)
        if (arm, kind) == ("base", "windows"):
            _strongest(run, profile, query_sets(options, profile.m)["early"], options)


def estimated(
    profile: PositionProfile, chosen: tuple[int, int], options: Any, run: StageRun
) -> dict[str, Array]:
    """Return columns of `position` for one set of queries, [L, h] each."""
    columns: dict[str, Array] = {}
    seed = run.settings.seed
    for column, weights in SIZES.items():
        if weights != "uniform" and not any(chosen[0] <= i <= chosen[1] for i in profile.queries):
            continue  # of long texts, the attention of some queries is not kept
        size = residual_size(profile, queries=chosen, weights=weights, draws=options.permutations, seed=seed)
        columns |= {column: size.estimate, f"{column}_low": size.low, f"{column}_high": size.high}
        if column == "residual":
            columns |= {"p_value": size.p_value, "p_adjusted": size.p_adjusted, "plain": size.plain}
            columns["reliability"] = size.reliability
        elif column == "moved_l2":
            columns |= {"moved_p_value": size.p_value, "moved_p_adjusted": size.p_adjusted}
            distance = moved_distance(profile, queries=chosen, draws=options.null_draws, seed=seed)
            columns |= {"moved_tv": distance.value, "moved_floor": distance.floor}
    share = leakage_share(profile, queries=chosen)
    columns |= {f"leakage_share{end}": getattr(share, name) for end, name in _ENDS.items()}
    early = slice(chosen[0], chosen[1] + 1)
    means = {name: profile.mean(name).numpy()[..., early] for name in ("mask_cut", "mask_share", "first")}
    columns |= {"mask_cut": means["mask_cut"].mean(-1), "mask_share": means["mask_share"].mean(-1)}
    columns["sink_advantage"] = _mean(means["first"])  # over the queries that see key 0
    columns["lse_gap"] = (profile.mean("lse") - profile.mean("mask_lse")).numpy()[..., early].mean(-1)
    return columns | {name: values[..., early].mean(-1) for name, values in simple(profile).items()}


def simple(profile: PositionProfile) -> dict[str, Array]:
    """Return the literal reading of the abstract, by query [L, h, m]: profile over all queries, key 0 in it.

    residual_simple is the root mean square of mean scores less that profile over all keys; mask_simple is
    log Z of the profile's softmax less its mean over queries.
    """
    m = profile.m
    queries, keys = np.arange(m)[:, None], np.arange(m)
    away = np.clip(queries - keys, 0, None)
    scores = profile.mean("residual").numpy() + profile.mean("profile").numpy()[..., away]
    complete = profile.mean("offsets").numpy()
    rest = np.where((keys >= 1) & (keys <= queries), scores - complete[..., away], np.nan)
    # the pair with key 0 is not stored, but how much it is preferred to the body's mean is
    first = profile.mean("first").numpy() + profile.mean("row").numpy() + profile.mean("profile").numpy()
    rest[..., 0] = first - complete[..., :m]
    sizes = np.sqrt(_mean(np.square(rest[..., 1:, :])))  # query 0 has no key but itself
    normalizer = np.logaddexp.accumulate(np.nan_to_num(complete[..., :m], nan=-np.inf), axis=-1)
    with np.errstate(invalid="ignore"):  # of a head without a text nothing is known
        mask_simple = normalizer - normalizer.mean(-1, keepdims=True)
    return {
        "residual_simple": np.concatenate([np.zeros((*sizes.shape[:-1], 1)), sizes], axis=-1),
        "mask_simple": mask_simple,
    }


def over_heads(
    profile: PositionProfile, chosen: tuple[int, int], columns: dict[str, Array]
) -> dict[str, Array]:
    """Return means over the heads of each layer, [L], the sizes with intervals of their own."""
    apart = ("p_value", "p_adjusted", "reliability")
    means = {name: _mean(values) for name, values in columns.items() if not name.endswith(apart)}
    for column, weights in SIZES.items():
        if column in columns:
            value, low, high = _interval(_mean_products(profile.gram(chosen, weights=weights).numpy()))
            means |= {column: value, f"{column}_low": low, f"{column}_high": high}
    share = layer_share(profile, queries=chosen)
    return means | {f"leakage_share{end}": getattr(share, name) for end, name in _ENDS.items()}


def _offsets(run: StageRun, profile: PositionProfile, arm: str, kind: str, scores: bool) -> None:
    """Write the variance of log attention along the text at a fixed offset, in both forms."""
    for offset in OFFSETS:
        queries = np.arange(max(offset + 1, 2), profile.m)
        if len(queries) < 3:
            continue
        columns, products, ends = _at_offset(profile, queries, offset)
        columns = without_log_sums(columns, scores)
        means: dict[str, Any] = {name: _mean(values) for name, values in columns.items()}
        means |= zip(
            ("residual", "residual_low", "residual_high"), _interval(_mean_products(products)), strict=True
        )
        means |= ends
        keys: dict[str, Any] = {"arm": arm, "input": kind, "offset": offset}
        for at, (layer, heads) in enumerate(zip(profile.layers, profile.heads, strict=True)):
            columns_of_layer = {name: values[at, :heads] for name, values in columns.items()}
            for name in ends:
                # single heads have no such interval
                columns_of_layer[name] = np.full(heads, np.nan)
            run.write(
                "offsets",
                layer=layer,
                head=np.arange(heads),
                **keys,
                **columns_of_layer,
            )
            run.write("offset_means", layer=layer, **keys, **{name: means[name][at] for name in means})


def _at_offset(
    profile: PositionProfile, queries: Array, offset: int
) -> tuple[dict[str, Array], Array, dict[str, Array]]:
    """Return both forms over queries at one offset, key 0 left out.

    Returns:
        The columns [L, h], the products of groups [L, h, G, G], and ends of intervals of the means over
        heads of the mask's variance and of the covariance, [L].
    """
    means = {name: profile.group_means(name).numpy() for name in ("residual", "lse", "mask_lse")}
    rest = means["residual"][..., queries, queries - offset]
    log_z, mask = means["lse"][..., queries], means["mask_lse"][..., queries]
    bracket = rest - (log_z - mask)
    at = profile.mean("profile").numpy()[..., offset]
    score, whole_z, whole_mask, bracket_mean = (
        values.mean(0) for values in (rest + at[..., None], log_z, mask, bracket)
    )
    centred = bracket - bracket.mean(-1, keepdims=True)
    products = np.einsum("glhi,flhi->lhgf", centred, centred) / len(queries)
    value, low, high = _interval(products)
    columns = {
        "profile": at,
        "log_attention": (score - whole_z).var(-1),
        "score": score.var(-1),
        "log_z": whole_z.var(-1),
        "covariance": -2 * _covariance(score, whole_z),
        "mask": whole_mask.var(-1),
        "residual": value,
        "residual_low": low,
        "residual_high": high,
        "cross": -2 * _covariance(whole_mask, bracket_mean),
    }

    # a head that lacks a group is left out where that group is, too: means are over one set of heads
    has_value = np.isfinite([columns["mask"], columns["cross"]])

    def parts(groups: Array) -> Array:
        mask_kept, bracket_kept = mask[groups].mean(0), bracket[groups].mean(0)
        variances = np.stack([mask_kept.var(-1), -2 * _covariance(mask_kept, bracket_kept)])
        return np.stack([_mean(part) for part in np.where(has_value, variances, np.nan)])

    _, lows, highs, _ = jackknife_bounds(np.arange(len(mask)), parts)
    ends = {
        f"{name}_{end}": values[at]
        for at, name in enumerate(("mask", "cross"))
        for end, values in (("low", lows), ("high", highs))
    }
    return columns, products, ends


def _interval(products: Array) -> tuple[Array, Array, Array]:
    """Return the mean product of different groups [..., G, G] -> [...], with its ends."""
    value, low, high, _ = jackknife_bounds(
        np.arange(products.shape[-1]), lambda groups: mean_product(products[..., groups, :][..., groups])
    )
    return value, low, high


def _mean_products(products: Array) -> Array:
    """Return the mean over heads of products of groups [L, h, G, G], without heads that lack one."""
    has_all = np.isfinite(products).all((-2, -1), keepdims=True)
    count = has_all.sum(1)
    total = np.where(has_all, products, 0.0).sum(1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _mean(values: Array) -> Array:
    """Return the mean of finite values along the last axis; NaN where there are none."""
    is_finite = np.isfinite(values)
    count = is_finite.sum(-1)
    return np.where(count > 0, np.where(is_finite, values, 0.0).sum(-1) / np.maximum(count, 1), np.nan)


def _covariance(first: Array, second: Array) -> Array:
    first, second = (values - values.mean(-1, keepdims=True) for values in (first, second))
    return np.asarray((first * second).mean(-1))


def _strongest(run: StageRun, profile: PositionProfile, chosen: tuple[int, int], options: Any) -> None:
    """Write the profile and mean residual of the head with the largest residual above its noise, rows
    centred.
    """
    low = residual_size(profile, queries=chosen, draws=1, seed=0).low
    if not np.isfinite(low).any():
        return
    at, head = np.unravel_index(np.nanargmax(low), low.shape)
    rest = profile.mean("residual")[at, head].numpy()
    queries, keys = np.tril_indices(profile.m)
    shown = (queries >= chosen[0]) & (queries <= chosen[1]) & (keys >= 1)
    body = np.where(np.tri(profile.m, dtype=bool) & (np.arange(profile.m) >= 1), rest, np.nan)
    seen = np.isfinite(body)
    rest = rest - np.where(seen, body, 0.0).sum(-1, keepdims=True) / np.maximum(
        seen.sum(-1, keepdims=True), 1
    )
    run.write(
        "residual_maps",
        layer=profile.layers[at],
        head=int(head),
        query=queries[shown],
        key=keys[shown],
        mean=rest[queries[shown], keys[shown]],
        profile=profile.mean("profile")[at, head].numpy()[(queries - keys)[shown]],
    )


def mlp_ratio(run: StageRun) -> None:
    """Write the statistic `mlp_ratio` of a checkpoint to `overall`."""
    ratio = mlp_shares.ratio(run, tokens_of(run) // 2 - 1, variant="")
    if ratio is not None:
        run.write(
            "overall",
            statistic="mlp_ratio",
            estimate=ratio.estimate,
            low=ratio.low,
            high=ratio.high,
            least=ratio.least,
            most=ratio.most,
            n=ratio.layers,
        )


def controls(run: StageRun, options: Any) -> None:
    """Write `controls`, `control_residuals` and `control_overall`: models with random weights."""
    drawn = sorted(passes_of(run, ("model", "seed", "tokens"), variant="random_weights"))
    maps = maps_alone(run)
    contractions = run.reduced("contractions", ("model", "seed"))
    drawings: dict[str, list[Array]] = {}
    layers: dict[str, Array] = {}
    for model, seed, n in drawn:
        only = {"variant": "random_weights", "model": model, "seed": seed}
        profile = profile_of(run, n, options.groups, arm="base", **only)
        cut = run.reduced("uniform_cut", ("layer",), model=model, seed=seed)
        sets = query_sets(options, profile.m)
        _control_overall(run, profile, sets["early"], contractions.get((model, seed)), options, only)
        vectors = profile.vectors(sets["early"], "uniform", (), profile).mean(0).numpy()
        drawings.setdefault(model, []).append(vectors)
        layers[model] = np.array(profile.layers)
        for name, chosen in sets.items():
            columns = without_log_sums(estimated(profile, chosen, options, run), model not in maps)
            means = over_heads(profile, chosen, columns)
            for at, layer in enumerate(profile.layers):
                run.write(
                    "controls",
                    model=model,
                    control="random_weights",
                    draw=seed,
                    layer=layer,
                    queries=name,
                    uniform_cut=float(cut[layer,].mean[chosen[0] : chosen[1] + 1].mean()),
                    **{column: values[at] for column, values in means.items()},
                )
    for model, drawings_of_model in drawings.items():
        if len(drawings_of_model) > 2:  # the interval leaves one out, and products take two
            value, low, high = shared_residual(np.stack(drawings_of_model))
            run.write(
                "control_residuals",
                model=model,
                control="random_weights",
                layer=layers[model],
                drawings=len(drawings_of_model),
                residual_shared=value,
                residual_shared_low=low,
                residual_shared_high=high,
            )


def _control_overall(
    run: StageRun,
    profile: PositionProfile,
    queries: tuple[int, int],
    contraction: Any,
    options: Any,
    only: dict[str, Any],
) -> None:
    """Write the statistics that claims ask of one model with random weights."""
    values = {"leakage_share windows": overall_share(profile, queries=queries, draws=1).estimate}
    if (ratio := mlp_shares.ratio(run, profile.m - 1, **only)) is not None:
        values["mlp_ratio"] = ratio.estimate
    removed = control_removals(run, profile, options, **only)
    if removed:
        values["energy_removed"], _, values["pattern_removed"] = np.mean([*removed.values()], axis=0)
    values |= anchors.control_statistics(run, only["model"], only["seed"], options)
    if contraction is not None:
        values["contraction"] = float(contraction.mean[0])
    for statistic, value in values.items():
        run.write(
            "control_overall",
            model=only["model"],
            control="random_weights",
            draw=only["seed"],
            statistic=statistic,
            estimate=float(value),
        )


def shared_residual(drawings: Array) -> tuple[Array, Array, Array]:
    """Return the part of the residual that several drawings of weights share, [L], with its interval's ends.

    Each drawing has a residual of its own from layer 1 on, because the mask writes positions into the
    states. But weights are drawn around 0: turning the sign of a query matrix turns that of every score
    and leaves the drawing as likely as before, so that products of different drawings have mean 0.

    Args:
        drawings: residuals of each, centred and weighted as `PositionProfile.vectors` gives them, means over
            texts [drawings, L, h, X].
    """
    has_all = np.asarray(np.isfinite(drawings).all((0, -1)))
    residuals = np.where(has_all[..., None], drawings, 0.0)
    with np.errstate(invalid="ignore"):
        heads = has_all.sum(-1, dtype=float)[:, None, None]
        return _interval(np.einsum("glhx,flhx->lgf", residuals, residuals) / heads)
