# SPDX-License-Identifier: MIT
"""Stored sums of every pass: those of `PositionProfile` by arm, input, layer and group of texts.

Means over texts are all that the estimates need. A unit stores its part of each sum; a profile of the whole
run is put together from them. Squares and triangles are stored at the keys 1 … i of a query alone.

Example:
    >>> import numpy as np
    >>> packed(np.arange(9).reshape(3, 3)).tolist()
    [4, 7, 8]
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from attnscope.errors import NonFiniteWarning
from attnscope.metrics.positions.position_profile import PositionProfile
from attnscope.metrics.positions.toeplitz import mask_only

if TYPE_CHECKING:
    from attnscope.capture import Layer
    from attnscope.study_api.stage_run import StageRun

Array = np.ndarray[Any, Any]
#: Names of the stored sums: those of profiles, and what queries give key 0.
PROFILES = ("counts", "rows", "residual", "cut", "moved")
#: Entries of `rows` by early query, in order; `offsets` is by offset and longer, and follows them.
ROWS = tuple(name for name, axes in PositionProfile.SUMS.items() if axes == "m")


def softmax_of(layer: Layer) -> tuple[Tensor, bool]:
    """Return scores [B, h, n, n], and True if they are the softmax's own argument; otherwise log A.

    An attention of 0 on a visible key has no logarithm: it is NaN, and so is the map.
    """
    if "scores" in layer.tensors:
        return layer.matrices("scores"), True
    maps, seen = layer.matrices(), layer.visibility.support
    if not isinstance(seen, Tensor):
        seen = torch.ones(maps.shape[-2:], dtype=torch.bool, device="cpu").tril()
    return torch.where(seen.to(maps.device) & (maps == 0), torch.nan, maps.log()), False


def first_key(layer: Layer) -> Tensor:
    """Return attention of early queries to key 0, its square, and what the mask alone makes of it, [B, h,
    3, m].

    The last: what late queries that see their i + 1 nearest keys alone give the farthest of them. NaN where
    key 0 is out of sight.
    """
    scores, is_softmax = softmax_of(layer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NonFiniteWarning)  # the profile counts them
        cut = mask_only(scores, body=False, sink_logit=layer.sink_logits).attention[..., 0]
    m = cut.shape[-1]
    seen = (
        scores[..., :m, 0].double() - layer.states("lse")[..., :m].double()
        if is_softmax
        else scores[..., :m, 0]
    )
    a0 = seen.double().exp().cpu()
    stacked = torch.stack([a0, a0.square(), cut], dim=-2)
    return stacked.masked_fill((seen == -torch.inf).cpu()[..., None, :], torch.nan)


def uniform_cut(layer: Layer) -> Tensor:
    """Return the part that the mask cuts of equal scores among a layer's visible keys, by early query [m].

    A learned sink counts as one more key.
    """
    scores = softmax_of(layer)[0][:1, :1]
    equal = torch.zeros_like(scores).masked_fill(scores == -torch.inf, -torch.inf)
    return mask_only(equal, sink_logit=None if layer.sink_logits is None else 0.0).cut[0, 0]


def packed(square: Array) -> Array:
    """Return the entries [..., i, j] at 1 <= j <= i of the last two axes; fewer rows are the last of a
    square.
    """
    return square[..., _inside(square.shape[-2], square.shape[-1])]


def unpacked(flat: Array, rows: int, m: int) -> Array:
    """Return the square, or its last rows, 0 elsewhere."""
    square = np.zeros((*flat.shape[:-1], rows, m))
    square[..., _inside(rows, m)] = flat
    return square


def _inside(rows: int, m: int) -> Array:
    queries, keys = np.arange(m - rows, m)[:, None], np.arange(m)
    return (keys >= 1) & (keys <= queries)


def store_profile(
    run: StageRun, profile: PositionProfile, keys: Mapping[str, Any], *, names: tuple[str, ...]
) -> None:
    """Add the sums of a profile to those of the unit."""
    state = {name: values.numpy() for name, values in profile.state().items()}
    dense = {"cut": _square(profile, state["cut"]), "moved": _square(profile, state["moved"])}
    rows = np.stack([state[name] for name in ROWS], axis=-2)
    terms = {
        "counts": state["count"],
        "rows": np.concatenate([rows.reshape(*rows.shape[:3], -1), state["offsets"]], axis=-1),
        "residual": packed(state["residual"]),
        "cut": packed(dense["cut"]),
        "moved": packed(dense["moved"]),
    }
    for g, group in enumerate(profile.present):
        for k, (layer, heads) in enumerate(zip(profile.layers, profile.heads, strict=True)):
            for name in names:
                run.reduce(name, terms[name][g, k, :heads], **keys, layer=layer, group=group)


def _square(profile: PositionProfile, rows: Array) -> Array:
    """Return [..., Q, m] of the chosen queries as [..., m, m]."""
    square = np.zeros((*rows.shape[:-2], profile.m, profile.m))
    square[..., profile.queries, :] = rows
    return square


def passes_of(run: StageRun, by: tuple[str, ...], **only: Any) -> list[tuple[Any, ...]]:
    """Return the keys of the passes whose sums are stored, in the order in which they came.

    They come from the counts, the smallest sum, layer by layer: a layer may have fewer heads than another.
    """
    keys = run.reduced("counts", (*by, "layer"), **only)
    return list(dict.fromkeys(key[:-1] for key in keys))


def tokens_of(run: StageRun) -> int:
    """Return the number of tokens of a window."""
    ((n,),) = passes_of(run, ("tokens",), variant="")
    return int(n)


def profile_of(run: StageRun, n: int, groups: int, **only: Any) -> PositionProfile:
    """Return the profile of one arm on one input, of all texts; sums that the arm does not keep are 0."""
    parts = {name: run.reduced(name, ("layer", "group"), **only) for name in PROFILES}
    layers = sorted({layer for layer, _ in parts["counts"]})
    present = sorted({group for _, group in parts["counts"]})
    empty = PositionProfile(n, groups=groups)
    m = empty.m

    heads = [len(parts["counts"][layer, present[0]].sum) for layer in layers]

    def stacked(name: str) -> Array | None:
        if not parts[name]:
            return None
        return np.stack([of_layers([parts[name][k, g].sum for k in layers]) for g in present])

    counts, rows = stacked("counts"), stacked("rows")
    assert counts is not None
    shape = counts.shape
    state: dict[str, Any] = {
        "n": n,
        "groups": groups,
        "left_out": 0,
        "queries": empty.queries,
        "group": present,
        "layer": layers,
        "heads": heads,
        "count": counts,
        "offsets": np.zeros((*shape, n)),
    }
    state |= {name: np.zeros((*shape, m)) for name in ROWS}
    if rows is not None:
        state["offsets"] = rows[..., len(ROWS) * m :]
        state |= {name: rows[..., at * m : (at + 1) * m] for at, name in enumerate(ROWS)}
    for name in ("residual", "cut", "moved"):
        flat = stacked(name)
        square = np.zeros((*shape, m, m)) if flat is None else unpacked(flat, m, m)
        state[name] = square if name == "residual" else square[..., empty.queries, :]
    return PositionProfile.from_state(state)


def of_layers(values: Sequence[Array]) -> Array:
    """Return the values of all layers in one array [L, h, ...], 0 for heads that a layer does not have.

    >>> of_layers([np.ones((2, 1)), np.ones((1, 1))])[..., 0].tolist()
    [[1.0, 1.0], [1.0, 0.0]]
    """
    most = max(map(len, values))
    padded = np.zeros((len(values), most, *values[0].shape[1:]), dtype=values[0].dtype)
    for at, values_of_layer in enumerate(values):
        padded[at, : len(values_of_layer)] = values_of_layer
    return padded


def write_profile(run: StageRun, profile: PositionProfile, arm: str, kind: str) -> None:
    """Write everything of a profile to the table `sums`, for `profile_of_sums`."""
    state = {name: values.numpy() for name, values in profile.state().items()}
    for g, group in enumerate(profile.present):
        for k, (layer, heads) in enumerate(zip(profile.layers, profile.heads, strict=True)):
            texts = state["count"][g, k, :heads]
            rows = {
                sum_name: [values.ravel().tolist() for values in state[sum_name][g, k, :heads]]
                for sum_name in PositionProfile.SUMS
            }
            run.write(
                "sums",
                arm=arm,
                input=kind,
                group=group,
                layer=layer,
                head=np.arange(len(texts)),
                tokens=profile.n,
                groups=profile.groups,
                texts=texts,
                **rows,
            )


def profile_of_sums(table: pd.DataFrame) -> PositionProfile:
    """Return the profile of stored sums: of more texts when that of another run is merged into it."""
    several = [name for name in ("model", "revision", "step", "arm", "input") if table[name].nunique() > 1]
    if several or table.empty:
        raise ValueError(
            f"profile_of_sums: expected rows of one model, arm and input, got {len(table)} rows that differ "
            f"in {', '.join(several) or 'nothing'}"
        )
    rows = table.sort_values(["group", "layer", "head"])
    empty = PositionProfile(int(rows["tokens"].iloc[0]), groups=int(rows["groups"].iloc[0]))
    groups, layers = sorted(set(rows["group"])), sorted(set(rows["layer"]))
    trailing = {"m": (empty.m,), "n": (empty.n,), "mm": (empty.m,) * 2, "Qm": (len(empty.queries), empty.m)}
    by_place = dict(iter(rows.groupby(["group", "layer"])))

    def stacked(name: str, shape: tuple[int, ...] = ()) -> Array:
        return np.stack(
            [
                of_layers(
                    [np.stack(list(by_place[group, layer][name])).reshape(-1, *shape) for layer in layers]
                )
                for group in groups
            ]
        )

    state: dict[str, Any] = {
        "n": empty.n,
        "groups": empty.groups,
        "left_out": 0,
        "queries": empty.queries,
        "group": groups,
        "layer": layers,
        "heads": [len(by_place[groups[0], layer]) for layer in layers],
        "count": stacked("texts"),
    }
    state |= {name: stacked(name, trailing[axes]) for name, axes in PositionProfile.SUMS.items()}
    return PositionProfile.from_state(state)
