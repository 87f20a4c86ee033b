# SPDX-License-Identifier: MIT
"""Tables made from the stored ones: uniform attention, phases of training, published values."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.engine.schema import CHECKPOINT_KEYS
from attnscope.inference import bootstrap

if TYPE_CHECKING:
    import pandas as pd

    from attnscope.engine.results import Results
    from attnscope.engine.stage_run import StageRun

#: Columns of `uncertainty` and the pair of columns of `heads` that they correlate across a sentence's heads.
CORRELATIONS = {
    "rho": ("position_entropy", "spectral_entropy"),
    "rho_fourier": ("position_entropy", "fourier_entropy"),
}
ENTROPIES = tuple(dict.fromkeys(name for pair in CORRELATIONS.values() for name in pair))


def correlated(heads: Mapping[str, Any]) -> dict[str, float]:
    """ρ of one sentence's heads; NaN for fewer than three heads or where one side does not vary."""
    found = {}
    for name, (one, other) in CORRELATIONS.items():
        found[name] = math.nan
        if one in heads and other in heads:
            x, y = (np.asarray(heads[column], dtype=float) for column in (one, other))
            good = np.isfinite(x) & np.isfinite(y)
            if good.sum() >= 3 and np.ptp(x[good]) > 1e-12 and np.ptp(y[good]) > 1e-12:
                found[name] = float(np.corrcoef(x[good], y[good])[0, 1])
    return found


def write_phases(run: StageRun) -> None:
    """Writes `phases`: every number of every checkpoint; and `published`, the paper's beside them."""
    table = phases(run.stored)
    for name, rows in (("phases", table), ("published", published(table))):
        if len(rows):
            run.write(name, **{str(column): rows[column] for column in rows})


def phases(results: Results) -> pd.DataFrame:
    """Every number of every checkpoint: mean over heads, then over sentences, with its interval."""
    import pandas as pd

    rows: list[tuple[Any, ...]] = []
    there = [name for name in results.tables() if name in ("heads", "uncertainty", "scale_sensitivity")]
    tables = {name: results.table(name) for name in there}
    known = {*results.keys("heads"), "n_tokens", "support"} if "heads" in tables else set()
    checkpoints = [table[list(CHECKPOINT_KEYS)] for table in tables.values()]
    seen = pd.concat(checkpoints).drop_duplicates() if checkpoints else pd.DataFrame()
    for key in seen.itertuples(index=False):
        own = {
            name: table[(table[list(CHECKPOINT_KEYS)] == list(key)).all(axis=1)]
            for name, table in tables.items()
        }
        for metric, values in _by_sentence(own, known):
            good = values[np.isfinite(values)]
            if len(good):
                rows.append((*key, metric, *bootstrap(good)))
    return pd.DataFrame(rows, columns=[*CHECKPOINT_KEYS, "metric", "mean", "low", "high", "samples"])


def _by_sentence(own: Mapping[str, pd.DataFrame], known: Container[str]) -> Iterator[tuple[str, Any]]:
    """Metric and one value per sentence, of one checkpoint; `known` are columns of `heads` that are none."""
    if "heads" in own:
        heads = own["heads"]
        numbers = [name for name in heads.columns if name not in known]
        means = heads.groupby("sample")[numbers].mean()
        for name in numbers:
            yield name, means[name].to_numpy(dtype=float)
    if "uncertainty" in own:
        for name in CORRELATIONS:
            yield name, own["uncertainty"][name].to_numpy(dtype=float)
    if "scale_sensitivity" in own:
        for fraction, part in own["scale_sensitivity"].groupby("fraction"):
            for column in ("energy", "coefficients"):
                values = part.groupby("sample")[column].mean().to_numpy(dtype=float)
                yield f"scale_sensitivity_{column}_{fraction:g}", values


def published(table: pd.DataFrame) -> pd.DataFrame:
    """The table `published`: the paper's values for models of this run, beside the run's own."""
    from attnscope.published import published_numbers, same_model
    from attnscope.studies.wavelet_heads.published import step_belongs

    printed = published_numbers("ruscio2024")
    rows = printed.merge(table, left_on="quantity", right_on="metric", suffixes=("_printed", ""))
    there = [
        same_model(row.model, row.model_printed) and step_belongs(row.table, row.step)
        for row in rows.itertuples()
    ]
    columns = {
        **{name: name for name in ("model", "step", "metric")},
        **{"value": "published", "low_printed": "published_low", "high_printed": "published_high"},
        **{"mean": "here", "low": "low", "high": "high", "samples": "samples"},
    }
    return rows.loc[there, list(columns)].rename(columns=columns)
