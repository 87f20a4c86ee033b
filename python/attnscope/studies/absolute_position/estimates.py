# SPDX-License-Identifier: MIT
"""Estimates from the sums over texts: sizes with intervals and tests, by layer, head and set of queries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.inference.groups import jackknife_bounds, mean_product
from attnscope.inference.leakage import leakage_share, overall_share
from attnscope.inference.residuals import moved_distance, residual_size
from attnscope.metrics.positions.position_profile import PositionProfile, Weights
from attnscope.studies.absolute_position import anchors, mlp_shares
from attnscope.studies.absolute_position.checks import check_shuffled
from attnscope.studies.absolute_position.options import query_sets
from attnscope.studies.absolute_position.removals import control_removals
from attnscope.studies.absolute_position.sums import keep, profile_of, tokens_of

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


def arms_of(run: StageRun, name: str = "rows") -> list[tuple[str, str]]:
    """The arms on each input that keep all sums."""
    return [(arm, kind) for arm, kind in run.reduced(name, ("arm", "input"), variant="")]


def maps_alone(run: StageRun) -> set[str]:
    """The models of which log A stands for scores, whose log-sums are not known."""
    checks = run.read("checks")
    return set(checks[(checks["check"] == "scores") & checks["value"].isna()]["model"])


def known(columns: dict[str, Any], scores: bool) -> dict[str, Any]:
    """The columns, without values that need log-sums where log A stands for scores."""
    return (
        columns
        if scores
        else columns
        | {name: np.full(np.shape(columns[name]), np.nan) for name in LOG_SUMS if name in columns}
    )


def position(run: StageRun, options: Any) -> None:
    """The tables of every arm that keeps all sums, on every input."""
    n, scores = tokens_of(run), not maps_alone(run)
    for arm, kind in arms_of(run):
        profile = profile_of(run, n, options.groups, variant="", arm=arm, draw=0, input=kind)
        for name, chosen in query_sets(options, profile.m).items():
            found = known(estimated(profile, chosen, options, run), scores)
            keys = {"arm": arm, "input": kind, "queries": name}
            means = over_heads(profile, chosen, found)
            if name == "early" and arm == "base" and kind != "repeated":
                whole = overall_share(
                    profile, queries=chosen, draws=options.permutations, seed=run.settings.seed
                )
                statistic = f"leakage_share {kind}"
                run.write("overall", statistic=statistic, n=len(profile.present), **whole._asdict())
            if name == "early" and (arm, kind) == ("base", "shuffled") and 0 in profile.layers:
                check_shuffled(run, found["p_value"][profile.layers.index(0)])
            found["correction"] = np.full(found["residual"].shape, "Benjamini–Hochberg", dtype=object)
            for at, layer in enumerate(profile.layers):
                own = {column: values[at] for column, values in found.items()}
                heads = np.arange(len(own["residual"]))
                run.write("position", layer=layer, head=heads, protocol="exact", **keys, **own)
                run.write("layer_means", layer=layer, **keys, **{one: means[one][at] for one in means})
        _offsets(run, profile, arm, kind, scores)
        if options.keep_sums:
            keep(run, profile, arm, kind)
        if (arm, kind) == ("base", "windows"):
            _strongest(run, profile, query_sets(options, profile.m)["early"], options)


def estimated(
    profile: PositionProfile, chosen: tuple[int, int], options: Any, run: StageRun
) -> dict[str, Array]:
    """Columns of `position` for one set of queries, [L, h] each."""
    found: dict[str, Array] = {}
    seed = run.settings.seed
    for column, weights in SIZES.items():
        if weights != "uniform" and not any(chosen[0] <= i <= chosen[1] for i in profile.queries):
            continue  # of long texts, the attention of some queries is not kept
        size = residual_size(profile, queries=chosen, weights=weights, draws=options.permutations, seed=seed)
        found |= {column: size.estimate, f"{column}_low": size.low, f"{column}_high": size.high}
        if column == "residual":
            found |= {"p_value": size.p_value, "p_adjusted": size.p_adjusted, "plain": size.plain}
            found["reliability"] = size.reliability
        elif column == "moved_l2":
            found |= {"moved_p_value": size.p_value, "moved_p_adjusted": size.p_adjusted}
            distance = moved_distance(profile, queries=chosen, draws=options.null_draws, seed=seed)
            found |= {"moved_tv": distance.value, "moved_floor": distance.floor}
    share = leakage_share(profile, queries=chosen)
    found |= {f"leakage_share{end}": getattr(share, name) for end, name in _ENDS.items()}
    early = slice(chosen[0], chosen[1] + 1)
    means = {name: profile.mean(name).numpy()[..., early] for name in ("mask_cut", "mask_share", "first")}
    found |= {"mask_cut": means["mask_cut"].mean(-1), "mask_share": means["mask_share"].mean(-1)}
    found["sink_advantage"] = _mean(means["first"])  # over the queries that see key 0
    found["lse_gap"] = (profile.mean("lse") - profile.mean("mask_lse")).numpy()[..., early].mean(-1)
    return found | {name: values[..., early].mean(-1) for name, values in simple(profile).items()}


def simple(profile: PositionProfile) -> dict[str, Array]:
    """The literal reading of the abstract, by query [L, h, m]: profile over all queries, key 0 in it.

    residual_simple is the root mean square of mean scores less that profile over all keys; mask_simple is
    log Z of the profile's softmax less its mean over queries.
    """
    m = profile.m
    queries, keys = np.arange(m)[:, None], np.arange(m)
    away = np.clip(queries - keys, 0, None)
    scores = profile.mean("residual").numpy() + profile.mean("profile").numpy()[..., away]
    whole = profile.mean("offsets").numpy()
    rest = np.where((keys >= 1) & (keys <= queries), scores - whole[..., away], np.nan)
    # the pair with key 0 is not stored, but how much it is preferred to the body's mean is
    first = profile.mean("first").numpy() + profile.mean("row").numpy() + profile.mean("profile").numpy()
    rest[..., 0] = first - whole[..., :m]
    sizes = np.sqrt(_mean(np.square(rest[..., 1:, :])))  # query 0 has no key but itself
    normalizer = np.logaddexp.accumulate(np.nan_to_num(whole[..., :m], nan=-np.inf), axis=-1)
    return {
        "residual_simple": np.concatenate([np.zeros((*sizes.shape[:-1], 1)), sizes], axis=-1),
        "mask_simple": normalizer - normalizer.mean(-1, keepdims=True),
    }


def over_heads(
    profile: PositionProfile, chosen: tuple[int, int], found: dict[str, Array]
) -> dict[str, Array]:
    """Means over the heads of each layer, [L], the sizes with intervals of their own."""
    apart = ("p_value", "p_adjusted", "reliability")
    means = {one: _mean(values) for one, values in found.items() if not one.endswith(apart)}
    for column, weights in SIZES.items():
        if column in found:
            value, low, high = _interval(profile.gram(chosen, weights=weights).mean(1).numpy())
            means |= {column: value, f"{column}_low": low, f"{column}_high": high}
    return means


def _offsets(run: StageRun, profile: PositionProfile, arm: str, kind: str, scores: bool) -> None:
    """The variance of log attention along the text at a fixed offset, in both forms."""
    for offset in OFFSETS:
        queries = np.arange(max(offset + 1, 2), profile.m)
        if len(queries) < 3:
            continue
        found, products, ends = _at_offset(profile, queries, offset)
        found = known(found, scores)
        means: dict[str, Any] = {name: _mean(values) for name, values in found.items()}
        means |= zip(("residual", "residual_low", "residual_high"), _interval(products.mean(1)), strict=True)
        means |= ends
        keys: dict[str, Any] = {"arm": arm, "input": kind, "offset": offset}
        for at, layer in enumerate(profile.layers):
            own = {name: values[at] for name, values in found.items()}
            for name in ends:
                own[name] = np.full(len(own["profile"]), np.nan)  # of means over heads alone
            run.write("offsets", layer=layer, head=np.arange(len(own["profile"])), **keys, **own)
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
    score, whole_z, whole_mask, whole = (
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
        "cross": -2 * _covariance(whole_mask, whole),
    }

    def parts(kept: Array) -> Array:
        mask_kept, bracket_kept = mask[kept].mean(0), bracket[kept].mean(0)
        both = np.stack([mask_kept.var(-1), -2 * _covariance(mask_kept, bracket_kept)])
        return np.stack([_mean(part) for part in both])

    _, lows, highs, _ = jackknife_bounds(np.arange(len(mask)), parts)
    ends = {
        f"{name}_{end}": values[at]
        for at, name in enumerate(("mask", "cross"))
        for end, values in (("low", lows), ("high", highs))
    }
    return columns, products, ends


def _interval(products: Array) -> tuple[Array, Array, Array]:
    """Mean product of different groups [..., G, G] -> [...], with its ends."""
    value, low, high, _ = jackknife_bounds(
        np.arange(products.shape[-1]), lambda kept: mean_product(products[..., kept, :][..., kept])
    )
    return value, low, high


def _mean(values: Array) -> Array:
    """Over what is known along the last axis; NaN where nothing is."""
    known = np.isfinite(values)
    count = known.sum(-1)
    return np.where(count > 0, np.where(known, values, 0.0).sum(-1) / np.maximum(count, 1), np.nan)


def _covariance(one: Array, other: Array) -> Array:
    one, other = (values - values.mean(-1, keepdims=True) for values in (one, other))
    return np.asarray((one * other).mean(-1))


def _strongest(run: StageRun, profile: PositionProfile, chosen: tuple[int, int], options: Any) -> None:
    """Profile and mean residual of the head with the largest residual above its noise, rows centred."""
    low = residual_size(profile, queries=chosen, draws=1, seed=0).low
    if not np.isfinite(low).any():
        return
    at, head = np.unravel_index(np.nanargmax(low), low.shape)
    rest = profile.mean("residual")[at, head].numpy()
    queries, keys = np.tril_indices(profile.m)
    kept = (queries >= chosen[0]) & (queries <= chosen[1]) & (keys >= 1)
    body = np.where(np.tri(profile.m, dtype=bool) & (np.arange(profile.m) >= 1), rest, np.nan)
    seen = np.isfinite(body)
    rest = rest - np.where(seen, body, 0.0).sum(-1, keepdims=True) / np.maximum(
        seen.sum(-1, keepdims=True), 1
    )
    run.write(
        "residual_maps", layer=profile.layers[at], head=int(head), query=queries[kept], key=keys[kept],
        mean=rest[queries[kept], keys[kept]],
        profile=profile.mean("profile")[at, head].numpy()[(queries - keys)[kept]],
    )  # fmt: skip


def mlp_ratio(run: StageRun) -> None:
    """Write the statistic `mlp_ratio` of a checkpoint to `overall`."""
    found = mlp_shares.ratio(run, tokens_of(run) // 2 - 1, variant="")
    if found is not None:
        run.write(
            "overall", statistic="mlp_ratio", estimate=found.estimate, low=found.low, high=found.high,
            least=found.least, most=found.most, n=found.layers,
        )  # fmt: skip


def controls(run: StageRun, options: Any) -> None:
    """Write `controls`, `control_residuals` and `control_overall`: models with random weights."""
    drawn = sorted(run.reduced("counts", ("model", "seed", "tokens"), variant="random_weights"))
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
        own = profile.vectors(sets["early"], "uniform", (), profile).mean(0).numpy()
        drawings.setdefault(model, []).append(own)
        layers[model] = np.array(profile.layers)
        for name, chosen in sets.items():
            found = known(estimated(profile, chosen, options, run), model not in maps)
            means = over_heads(profile, chosen, found)
            for at, layer in enumerate(profile.layers):
                run.write(
                    "controls", model=model, control="random_weights", draw=seed, layer=layer, queries=name,
                    uniform_cut=float(cut[layer,].mean[chosen[0] : chosen[1] + 1].mean()),
                    **{column: values[at] for column, values in means.items()},
                )  # fmt: skip
    for model, each in drawings.items():
        if len(each) > 2:  # the interval leaves one out, and products take two
            value, low, high = shared_residual(np.stack(each))
            run.write(
                "control_residuals", model=model, control="random_weights", layer=layers[model],
                drawings=len(each), residual_shared=value, residual_shared_low=low,
                residual_shared_high=high,
            )  # fmt: skip


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
            "control_overall", model=only["model"], control="random_weights", draw=only["seed"],
            statistic=statistic, estimate=float(value),
        )  # fmt: skip


def shared_residual(drawings: Array) -> tuple[Array, Array, Array]:
    """What several drawings of weights have in common, [L], with the ends of its interval over drawings.

    Each drawing has a residual of its own from layer 1 on, because the mask writes positions into the
    states. But weights are drawn around 0: turning the sign of a query matrix turns that of every score
    and leaves the drawing as likely as before, so that products of different drawings have mean 0.

    Args:
        drawings: residuals of each, centred and weighted as `PositionProfile.vectors` gives them, means over
            texts [drawings, L, h, X].
    """
    return _interval(np.einsum("glhx,flhx->lgf", drawings, drawings) / drawings.shape[2])
