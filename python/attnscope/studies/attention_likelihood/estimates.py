# SPDX-License-Identifier: MIT
"""Tables of estimates from the stored attention of words, of a checkpoint and of its controls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from attnscope.statistics import bootstrap
from attnscope.statistics.groups import mean_product
from attnscope.studies.attention_likelihood import as_published, associations, shifts
from attnscope.studies.attention_likelihood.associations import Row
from attnscope.studies.attention_likelihood.options import REAL, SWAP
from attnscope.studies.attention_likelihood.panel import Panel, by_unit, correlations, panel_of, slope
from attnscope.study_api.selection import where

if TYPE_CHECKING:
    from attnscope.studies.attention_likelihood.options import LikelihoodOptions
    from attnscope.study_api.stage_run import StageRun

EXACT = "exact"


def estimate(run: StageRun, options: LikelihoodOptions) -> None:
    """Write the tables of associations, shifts and best layers of one checkpoint."""
    words, means = with_units(run), run.read("head_mean_spans")
    published = as_published.PROTOCOL
    rows, best = as_published.estimate(of_protocol(words, published), of_protocol(means, published))
    write_rows(run, "head_mean_associations", rows, protocol=published)
    write_rows(run, "best_layers", [best] if best else [], protocol=published)
    panel = panel_of(of_protocol(words, EXACT), of_protocol(means, EXACT))
    if panel is None:
        return
    seed = run.settings.seed
    rows = [
        *associations.within(panel, options, seed),
        *associations.conditional_correlations(panel, options, seed),
    ]
    rows += associations.between(panel, options, seed)
    rows += associations.swap_effects(panel, options, seed)
    rows += _surveys(run, options, seed)
    write_rows(run, "head_mean_associations", rows)
    overall = [{"statistic": "depth", **associations.depth(panel, options, seed)}]
    within = associations.mean_with_sign_test(associations.within_overall(panel), options, seed)
    overall.append({"statistic": "within", **within})
    if (nats := associations.swap_cost(panel, options, seed)) is not None:
        overall.append({"statistic": "swap_nats", **nats})
        overall.append({"statistic": "swap", **associations.exchanged_overall(panel, options, seed)})
    overall += shifts.overall(panel, options, seed)
    write_rows(run, "overall", overall)
    write_rows(run, "shifts", shifts.shifts(panel, options))
    write_rows(run, "best_layers", [shifts.best_layer(panel)])
    _heads(run, panel)


def of_protocol(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the rows of one protocol."""
    return where(table, protocol=name)


def with_units(run: StageRun) -> pd.DataFrame:
    """Return the table `words` with the first text of equal ones."""
    targets = run.read("targets", ["sample", "text_unit", "model", "revision", "step"])
    keys = ["model", "revision", "step", "sample"]
    return run.read("words").merge(targets, on=keys, how="left", validate="many_to_one")


def write_rows(run: StageRun, table: str, rows: Iterable[Row], **keys: Any) -> None:
    """Write rows that may have different columns."""
    for row in rows:
        run.write(table, **{"protocol": EXACT, **keys, **row})


def _heads(run: StageRun, panel: Panel) -> None:
    """Write the correlations of single heads."""
    table = run.read("spans", ["sample", "mode", "layer", "head", "protocol", "span_share"])
    table = of_protocol(table, EXACT)
    shares_of_heads = table.pivot_table(
        index=["layer", "head"], columns=["sample", "mode"], values="span_share"
    )
    columns = pd.MultiIndex.from_product([panel.samples, panel.modes])
    shares = (
        shares_of_heads.reindex(columns=columns)
        .to_numpy()
        .reshape(len(shares_of_heads), len(panel.samples), -1)
    )
    layers, heads = (
        [int(number) for number in shares_of_heads.index.get_level_values(name)] for name in ("layer", "head")
    )
    write_rows(run, "associations", associations.of_heads(panel, shares, layers, heads))


def _surveys(run: StageRun, options: LikelihoodOptions, seed: int) -> list[Row]:
    """Return means over texts of the association over every token of a text."""
    if "surveys" not in run.stored.tables():
        return []
    rows = []
    surveys = run.read("surveys").merge(run.read("targets", ["sample", "text_unit"]), on="sample", how="left")
    for layer in sorted(set(surveys["layer"])):
        survey = where(surveys, layer=layer)
        for design, column in (("survey", "correlation"), ("survey_partial", "partial")):
            of_texts = by_unit(survey[column].to_numpy(), survey["text_unit"].to_numpy())
            mean = bootstrap(of_texts, draws=options.bootstrap, seed=seed)
            row = associations.association_row(int(layer), design, REAL, "log_likelihood", "token_boost")
            rows.append({**row, **associations.interval(mean)})
    return rows


def controls(run: StageRun, options: LikelihoodOptions) -> None:
    """Write `controls` and `control_overall`: each initialisation on the trained model's versions.

    In a series the trained model is the last checkpoint, on whose versions the controls were measured.
    """
    if "head_mean_spans_variants" not in run.stored.tables():
        return
    words = with_units(run)
    table = run.stored.table("head_mean_spans_variants")
    keys = ["model", "variant", "seed"]
    for model, variant, draw in table[keys].drop_duplicates().to_numpy().tolist():
        rows = where(table, model=model, variant=variant, seed=draw)
        words_of_model = where(words, model=model)
        trained = words_of_model[["revision", "step"]].iloc[-1]
        panel = panel_of(of_protocol(where(words_of_model, **trained), EXACT), rows)
        if panel is not None:
            keys_of_draw = {"model": model, "control": variant, "draw": int(draw)}
            write_rows(run, "controls", points(panel), **keys_of_draw)
            for statistic, value in overall_points(panel).items():
                run.write(
                    "control_overall", protocol=EXACT, statistic=statistic, estimate=value, **keys_of_draw
                )


def overall_points(panel: Panel) -> dict[str, float]:
    """Return the numbers over all layers that claims ask for, of one model, without intervals."""
    values = {"within": associations.within_overall(panel), "depth": associations.depth_of_texts(panel)}
    if SWAP in panel.modes and len(panel.pairs()):
        values["swap"] = associations.gain_overall(panel)
    if shifts.less_likely(panel):
        values["shift_of_share"] = shifts.shift_of_share(panel)
    means = {name: float(np.nanmean(draws)) for name, draws in values.items() if np.isfinite(draws).any()}
    if shifts.less_likely(panel) and len(changes := shifts.changes_of_rest(panel)) >= 3:
        products = changes @ changes.T / changes.shape[1]
        means["shift_of_rest"] = shifts.signed_root(mean_product(products))
    return means


def points(panel: Panel) -> list[Row]:
    """Return the estimates alone: within texts, between texts, and the gain of words at home."""
    distinct, share = panel.distinct, panel.measures["share"]
    r, slopes = correlations(panel.x, share, distinct), slope(panel.x, share, distinct)
    rows: list[Row] = []
    pairs = panel.pairs()
    real = panel.at(REAL)
    for at, layer in enumerate(panel.layers):
        means = by_unit(r[at], panel.units)
        finite = means[np.isfinite(means)]
        row = {"layer": layer, "mode": "", "predictor": "log_likelihood", "measure": "share"}
        mean = finite.mean() if len(finite) else np.nan
        rows.append({**row, "design": "within", "estimate": mean, "slope": slopes[at], "n": len(finite)})
        for mode in panel.modes[1:]:
            moved = by_unit(share[at][:, panel.at(mode)] - share[at][:, real], panel.units)
            moved = moved[np.isfinite(moved)]
            if mode != SWAP and len(moved):
                shift = row | {"mode": mode, "design": "shift"}
                rows.append({**shift, "estimate": moved.mean(), "n": len(moved)})
        if SWAP in panel.modes and len(pairs):
            gain = associations.unit_gain(panel, share[at], pairs)
            gain = gain[np.isfinite(gain)]
            row |= {"mode": SWAP, "predictor": "at home"}
            mean = gain.mean() if len(gain) else np.nan
            rows.append({**row, "design": "swap", "estimate": mean, "n": len(gain)})
        for predictor, measure in associations.BETWEEN:
            x, y = panel.words[predictor][:, real], panel.measures[measure][at][:, real]
            for design, covariates in associations.designs(panel):
                correlation = associations.over_texts(x, y, covariates, panel.units)
                row = associations.association_row(layer, design, REAL, predictor, measure)
                straight = associations.partial_slope(x, y, covariates)
                rows.append({**row, "estimate": correlation.r, "slope": straight, "n": correlation.n})
    return rows
