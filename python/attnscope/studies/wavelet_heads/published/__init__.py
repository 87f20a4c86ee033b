# SPDX-License-Identifier: MIT
"""The run's numbers next to those that arXiv 2410.18067 prints of models.

They are the correlation of both entropies, scale sensitivity, the low band's share, and selectivity in two
phases of training. The paper's table of position encodings, its spectral entropies and its shares of the
middle and high bands are not among them.
"""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from attnscope.errors import MissingError
from attnscope.published import Compared, another_model, comparison_row, same_model
from attnscope.results.results import Results
from attnscope.study_api.selection import where

#: Pythia's last step; statements on the trained model are about it.
_TRAINED = 143_000
_NOTES = {
    "rho": "Pearson correlation of position and spectral entropy over a sentence's heads",
    "low_band": "share of power below a quarter of the Nyquist frequency",
    "spectral_selectivity": "share of the strongest bin",
}


def step_belongs(place: str, step: int) -> bool:
    """Return True if a number of "steps 512 to 1000", or else of the trained model, belongs to a checkpoint.

    >>> step_belongs("steps 512 to 1000", 512), step_belongs("trained model", 512)
    (True, False)
    """
    words = [int(word) for word in place.split() if word.isdigit()]
    return words[0] <= step <= words[-1] if words else step < 0 or step >= _TRAINED


def compare(
    results: Results, numbers: pd.DataFrame, chosen: str | None, *, draws: int, seed: int
) -> Compared:
    """Return the numbers of a run next to the published ones.

    A number of a training phase is held against the last checkpoint in it; a number of a trained model
    against the run's last one. The study has one protocol: `measured` is its number, and `step` that of the
    checkpoint. Its intervals are those of the stored table, so nothing is drawn. Without a `chosen` published
    model it is compared with its published self, or with all.
    """
    if "phases" not in results.tables():
        raise MissingError("compare: the run has no table 'phases'")
    phases, published_models = results.table("phases"), list(dict.fromkeys(numbers["model"]))
    rows: list[dict[str, Any]] = []
    statements: list[str] = []
    for model, phases_of_model in phases.groupby("model", sort=False):
        name = next(
            (
                published_model
                for published_model in published_models
                if same_model(published_model, str(model))
            ),
            None,
        )
        against = [chosen] if chosen else [name] if name else published_models
        itself = f"{model} is the published {name} by name."
        statements.append(itself if name in against else another_model(str(model), against))
        theirs = where(numbers, model=against)
        rows += [_row(str(model), phases_of_model, number) for number in theirs.to_dict("records")]
    statements += [
        "The study has one protocol, so nothing stands under exact.",
        "Not compared: the paper's table of position encodings, its spectral entropies, its shares of the "
        "middle and high bands.",
    ]
    return Compared(pd.DataFrame(rows), statements)


def _row(model: str, phases: pd.DataFrame, number: dict[Any, Any]) -> dict[str, Any]:
    """Return the row of one published number, with the run's number."""
    place, metric = str(number["table"]), str(number["quantity"])
    phases_of_metric = where(phases, metric=metric)
    training = place.startswith("steps")
    if training or same_model(str(number["model"]), model):
        phases_of_metric = phases_of_metric[
            [step_belongs(place, int(step)) for step in phases_of_metric["step"]]
        ]
    order = [key for key in ("step", "revision") if key in phases_of_metric]
    last = phases_of_metric.sort_values(order).iloc[-1].to_dict() if len(phases_of_metric) else {}
    note = _NOTES.get(metric, "1 − cosine of the energies of the common scales")
    step = int(last.get("step", -1))
    return comparison_row(
        model,
        number,
        measured=[float(last.get(name, math.nan)) for name in ("mean", "low", "high")],
        sentences=int(last.get("samples", 0)),
        note=note + (f"; here at step {step}" if step >= 0 else ""),
        layer=-1,
        published_layer=-1,
        token=place if training else "",
        step=step,
    )
