# SPDX-License-Identifier: MIT
"""Decrease of the variance between positions from inputs to outputs of the feed-forward layers.

Sums over states are kept apart by group of texts, so that the ratio has a jackknife interval. Wide states are
projected onto seeded random directions first, which keeps squared distances on average and the sums small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnscope.metrics.positions.position_share import PositionMoments, position_share
from attnscope.statistics.groups import jackknife_interval

if TYPE_CHECKING:
    from attnscope.capture import Layer
    from attnscope.study_api.stage_run import StageRun

Array = np.ndarray[Any, Any]
SITES = ("mlp_input", "mlp_output")
#: Dimensions of the states that are kept.
WIDTH = 256


class Ratio(NamedTuple):
    """The ratio of the mean shares behind and before the feed-forward layers, of layers from 1 on.

    Attributes:
        estimate: mean share of the outputs over that of the inputs; below 1 where position is filtered out.
        low: of the jackknife interval over groups of texts.
        high: likewise.
        least: smallest ratio of a layer.
        most: largest.
        layers: number of layers.
    """

    estimate: float
    low: float
    high: float
    least: float
    most: float
    layers: int


def projected(states: Tensor, run: StageRun) -> Tensor:
    """Return states [..., D] on at most `WIDTH` random directions, the same in every unit of a run."""
    width = states.shape[-1]
    if width <= WIDTH:
        return states
    drawn = run.rng("projection").standard_normal((width, WIDTH)) / WIDTH**0.5
    return states.double() @ torch.from_numpy(drawn).to(states.device)


def add(run: StageRun, layer: Layer, groups: Sequence[int]) -> None:
    """Add a layer's states to the sums `mlp_states`.

    Args:
        groups: of the batch's texts.
    """
    unit = run.unit
    assert unit.checkpoint is not None
    for site in SITES:
        if site not in layer.tensors:
            continue
        states = projected(layer.states(site), run)
        for group in sorted(set(groups)):
            moments = PositionMoments()
            moments.add(states[[at for at, number in enumerate(groups) if number == group]])
            run.reduce(
                "mlp_states",
                packed(moments),
                model=unit.checkpoint.model,
                variant=unit.variant,
                seed=unit.seed,
                layer=layer.index,
                site=site,
                group=group,
            )


def packed(moments: PositionMoments) -> Array:
    """Return the moments of a batch as one array, their three numbers last."""
    state = moments.state()
    numbers = [float(state[name]) for name in ("count", "squares", "centre")]
    return np.concatenate([state["sum"].numpy().ravel(), numbers])


def ratio(run: StageRun, positions: int, **only: Any) -> Ratio | None:
    """Return the ratio of a model's feed-forward layers; None without their states.

    Args:
        positions: number of positions that the sums hold.
        only: keys of the model, variant and draw.
    """
    sums = run.reduced("mlp_states", ("site", "layer", "group"), **only)
    groups = sorted({group for _, _, group in sums})
    of_layers: dict[int, set[str]] = {}
    for site, layer, _ in sums:
        of_layers.setdefault(layer, set()).add(site)
    # blocks of other kinds may have no feed-forward layer
    layers = sorted(layer for layer, sites in of_layers.items() if layer >= 1 and set(SITES) <= sites)
    if not layers or len(groups) < 2:
        return None
    terms = np.stack(
        [
            np.stack([np.stack([sums[site, layer, group].sum for group in groups]) for layer in layers])
            for site in SITES
        ]
    )
    return of_sums(terms, positions)


def of_sums(terms: Array, positions: int) -> Ratio:
    """Return the ratio from packed sums [site, layer, group, ...]."""
    groups = terms.shape[2]
    all_groups = np.arange(groups)
    shares = np.stack(
        [
            _shares(terms[:, :, chosen].sum(2), positions)
            for chosen in (all_groups, *map(lambda g: np.delete(all_groups, g), all_groups))
        ]
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        means = shares.mean(-1)
        ratios = np.where((means > 0).all(1), means[:, 1] / means[:, 0], np.nan)
        of_layers = shares[0, 1] / np.where(shares[0, 0] > 0, shares[0, 0], np.nan)
    estimate, low, high = jackknife_interval(ratios[0], ratios[1:])
    finite = of_layers[np.isfinite(of_layers)]
    least, most = (float(finite.min()), float(finite.max())) if len(finite) else (np.nan, np.nan)
    return Ratio(float(estimate), float(low), float(high), least, most, terms.shape[1])


def _shares(sums: Array, positions: int) -> Array:
    """Return the share between positions of every site and layer, from packed sums [site, layer, ...]."""
    shares = np.empty(sums.shape[:2])
    for place in np.ndindex(*shares.shape):
        count, squares, centre = sums[place][-3:]
        state = {
            "count": int(count),
            "left_out": 0,
            "sum": sums[place][:-3].reshape(positions, -1),
            "squares": squares,
            "centre": centre,
        }
        shares[place] = float(position_share(PositionMoments.from_state(state)))
    return shares
