# SPDX-License-Identifier: MIT
"""Position 0: its path through the layers, who reads it, what they pass on, and how states tell positions.

The state of position 0 is a function of the first token alone, so what a head writes of it is one vector for
all texts behind BOS; all it can tell of a query's position is how much of it the query receives: the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from attnscope.capture import edit
from attnscope.capture.positions import fingerprint, output_projection, trajectory_and_states
from attnscope.errors import WeightMapError
from attnscope.metrics.positions.position_share import PositionMoments, position_share
from attnscope.statistics.groups import jackknife
from attnscope.statistics.intervals import Interval
from attnscope.studies.absolute_position.arms import Arm, imposed, token_ids
from attnscope.studies.absolute_position.mlp_shares import packed, projected
from attnscope.studies.absolute_position.sums import first_key, softmax_of, tokens_of

if TYPE_CHECKING:
    from attnscope.capture import Layer
    from attnscope.study_api.forward import Batch
    from attnscope.study_api.stage_run import StageRun

#: States whose share of position is measured.
STATES = ("hidden", "attention_input", "mlp_input", "mlp_output")
READS = ("attention", "value", "head_output")
SITES = (*READS, *STATES)
#: Largest gap between position 0 of a text and the first token alone, by the weights' precision.
TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-2}


def add(run: StageRun, batch: Batch, arm: Arm, layer: Layer, groups: Sequence[int], options: Any) -> None:
    """Add a layer's part to the sums over states, and store what each head reads of position 0.

    Args:
        groups: of the batch's texts.
    """
    keys = {"arm": arm.name, "layer": layer.index}
    for site in STATES:
        if site in layer.tensors:
            moments = PositionMoments()
            moments.add(layer.states(site))
            run.reduce("states", packed(moments), **keys, site=site)
    seen = first_key(layer)
    early = seen[:, :, 0, slice(*_early(options, seen.shape[-1]))]
    centre = early.isfinite().sum(-1) * early.nanmean(-1).square()
    for text, centre_of_text in zip(seen, centre, strict=True):
        run.reduce("first_key", text, **keys)
        run.reduce("first_key_centre", centre_of_text, **keys)
    if not set(READS) <= set(layer.tensors):
        return
    try:
        prints = fingerprint(layer, output_projection(run.model().model, layer.index))
    except (WeightMapError, KeyError) as error:
        run.note(f"absolute_position: no fingerprints: {error}")
        return
    unit = prints.write / prints.write.norm(dim=-1, keepdim=True)
    for text in unit:
        run.reduce("directions", text, **keys)
    if arm.kind == "text":
        for text, group in zip(project_directions(unit, run), groups, strict=True):
            run.reduce("direction_groups", text, **keys, group=group)
    scores = softmax_of(layer)[0][..., 1:, :] > -torch.inf
    sees_first, visible = scores[..., 0], scores.double().sum(-1)
    # means over the queries behind the first that see key 0
    reads, uniform = (
        torch.where(sees_first, values.double(), torch.nan).nanmean(-1).cpu()
        for values in (layer.matrices()[..., 1:, 0], 1 / visible)
    )
    heads = list(layer.heads)
    gaps = _same_token_gaps(prints.write, token_ids(run, batch, arm)[:, 0].tolist())
    for at, sample in enumerate(batch.samples):
        run.write(
            "reads",
            arm=arm.name,
            sample=sample,
            layer=layer.index,
            head=heads,
            a0=reads[at],
            uniform=uniform[at],
            fingerprint_share=prints.share[at],
            fingerprint_projection=prints.projection[at],
            value_ratio=prints.value_ratio[at],
            same_token_gap=gaps[at],
        )


def project_directions(directions: torch.Tensor, run: StageRun) -> torch.Tensor:
    """Return directions [..., D] on fewer dimensions, of length 1 there too.

    A projection keeps lengths on average alone, and one direction in every text has a cosine of exactly 1.
    """
    return torch.nn.functional.normalize(projected(directions, run), dim=-1)


def _same_token_gaps(write: torch.Tensor, tokens: list[int]) -> torch.Tensor:
    """Return the distance of fingerprints [B, h, D] to that of the first text of the batch with the same
    first token.

    As a share of its norm, [B, h]; NaN for that text itself.
    """
    gaps = torch.full(write.shape[:2], torch.nan, dtype=write.dtype, device="cpu")
    for at, token in enumerate(tokens):
        first = tokens.index(token)
        if first < at:
            gaps[at] = (write[at] - write[first]).norm(dim=-1) / write[first].norm(dim=-1)
    return gaps


def trajectories(run: StageRun, batch: Batch, arm: Arm, options: Any) -> None:
    """Write position 0 of one batch of texts through the layers, with the other positions."""
    model = run.model().model
    inputs = run.inputs(batch)
    inputs["input_ids"] = token_ids(run, batch, arm)
    edits = imposed(options)
    with edit(model, *edits) if edits else nullcontext():
        path, states = trajectory_and_states(model, inputs)
    norms = [state.double().norm(dim=-1).cpu() for state in states]
    # of each text by itself: quantiles of a batch would depend on which texts are read together
    others = np.array(
        [
            np.quantile(norms_of_layer[:, 1:].numpy(), (0.05, 0.5, 0.95), axis=1).mean(1)
            for norms_of_layer in norms
        ]
    )
    first = [state[:, 0].double().cpu() for state in states]
    largest = [float((state.abs().amax(-1) / state.norm(dim=-1)).mean()) for state in first]
    run.write(
        "trajectories",
        arm=arm.name,
        sample=batch.samples[0],
        layer=np.arange(len(states)) - 1,
        texts=len(batch.samples),
        norm=path.norm,
        cosine=path.cosine,
        gap=path.gap,
        across=path.across,
        largest=np.array(largest),
        other_05=others[:, 0],
        other_50=others[:, 1],
        other_95=others[:, 2],
    )


def trajectory(run: StageRun) -> None:
    """Write the means of position 0 over all texts, and the largest gap."""
    paths = run.read("trajectories")
    tolerance = TOLERANCES.get(str(run.model().dtype).removeprefix("torch."), 1e-5)
    worst = paths.groupby(["arm", "layer"])[["gap", "across"]].max()
    averaged = ["norm", "other_05", "other_50", "other_95", "cosine", "largest"]
    # a row is of a batch, and the last batch of a block may hold fewer texts
    weighted = paths[averaged].mul(paths["texts"], axis=0).assign(arm=paths["arm"], layer=paths["layer"])
    present = paths[averaged].notna().mul(paths["texts"], axis=0).groupby([paths["arm"], paths["layer"]])
    means = weighted.groupby(["arm", "layer"])[averaged].sum() / present.sum().replace(0, np.nan)
    means[["gap", "across"]] = worst
    columns = (*averaged, "gap", "across")
    for row in means.reset_index().to_dict("records"):
        run.write(
            "trajectory",
            arm=row["arm"],
            layer=row["layer"],
            tolerance=tolerance,
            **{name: row[name] for name in columns},
        )


def fingerprints(run: StageRun, options: Any) -> None:
    """Write each head's fingerprint over texts, its reading of position 0, and its clock."""
    directions = run.reduced("directions", ("arm", "layer"))
    if not directions:
        return
    from scipy import stats

    keys, centres = (run.reduced(name, ("arm", "layer")) for name in ("first_key", "first_key_centre"))
    by_head = run.read("reads").groupby(["arm", "layer", "head"])
    reads = by_head.mean(numeric_only=True)
    spread = by_head["a0"].std() / np.sqrt(by_head["a0"].count())
    for name, sign in (("a0_low", -1.0), ("a0_high", 1.0)):
        reads[name] = reads["a0"] + sign * spread * stats.t.ppf(0.975, by_head["a0"].count() - 1)
    reads["same_token_gap"] = by_head["same_token_gap"].max()
    for (arm, layer), sums in directions.items():
        attention, count = keys[arm, layer].mean, sums.count
        m, texts = attention.shape[-1], keys[arm, layer].count
        early = attention[:, :, slice(*_early(options, m))]
        early = early[..., np.isfinite(early).any((0, 1))]  # the queries that see key 0
        a0, squared, cut = early.swapaxes(0, 1)
        if early.shape[-1] < 2:  # one position, or none, has no variance
            a0, squared, cut = (np.full((len(attention), 2), np.nan) for _ in range(3))
        varied, noise = cut.var(-1, ddof=1), (squared - a0**2).mean(-1)
        clock = [
            float(position_share(_moments(texts, values[:, None] * texts, squares.sum() * texts, centre)))
            for values, squares, centre in zip(a0, squared, centres[arm, layer].sum, strict=True)
        ]
        heads = np.arange(len(attention))
        mean = reads.loc[(arm, layer)].reindex(heads)
        with np.errstate(invalid="ignore"):
            clock_mask = varied / (varied + noise)
        run.write(
            "fingerprints",
            arm=arm,
            layer=layer,
            head=heads,
            fingerprint_cosine=(count * np.square(sums.mean).sum(-1) - 1) / (count - 1),
            clock=np.array(clock),
            clock_mask=clock_mask,
            readers=[
                [tau for tau in options.sinks if mean_read > tau and low > uniform]
                for mean_read, low, uniform in zip(mean["a0"], mean["a0_low"], mean["uniform"], strict=True)
            ],
            **{name: mean[name].to_numpy() for name in mean.columns if name != "sample"},
        )
        for head, values in enumerate(attention):
            query = np.arange(m)
            run.write("clocks", arm=arm, layer=layer, head=head, query=query, a0=values[0], a0_mask=values[2])


def fingerprints_without_bos(run: StageRun) -> None:
    """Write the statistic `fingerprint_without_bos` to `overall`: mean cosine over layers and heads.

    Unbiased over texts; its interval leaves one group of texts out at a time.
    """
    sums = run.reduced("direction_groups", ("layer", "group"), arm="no_bos")
    if not sums:
        return
    layers, groups = (sorted({key[at] for key in sums}) for at in range(2))
    total = np.stack([np.concatenate([sums[layer, group].sum for layer in layers]) for group in groups])
    counts = np.array([sums[layers[0], group].count for group in groups], dtype=float)
    cosine = mean_cosine(total, counts)
    run.write(
        "overall",
        statistic="fingerprint_without_bos",
        estimate=cosine.estimate,
        low=cosine.low,
        high=cosine.high,
        n=len(groups),
    )


def mean_cosine(sums: np.ndarray[Any, Any], counts: np.ndarray[Any, Any]) -> Interval:
    """Return the mean cosine of different texts, over layers and heads, with its jackknife interval.

    Args:
        sums: of directions of length 1 over the texts of each group, [groups, ..., D].
        counts: texts of each group.
    """

    def cosine(chosen: np.ndarray[Any, Any]) -> float:
        count = counts[chosen].sum()
        pairs = np.square(sums[chosen].sum(0)).sum(-1) - count
        return float(np.nanmean(pairs / (count * (count - 1))))

    return jackknife(np.arange(len(counts)), cosine)


def shares(run: StageRun) -> None:
    """Write the share of the variance of states between positions."""
    positions = tokens_of(run) // 2 - 1
    for (arm, layer, site), sums in run.reduced("states", ("arm", "layer", "site")).items():
        count, squares, centre = sums.sum[-3:]
        moments = _moments(int(count), sums.sum[:-3].reshape(positions, -1), squares, centre)
        share = float(position_share(moments))
        run.write("position_shares", arm=arm, layer=layer, site=site, position_share=share, texts=int(count))


def _moments(count: int, total: Any, squares: Any, centre: Any) -> PositionMoments:
    """Return moments of all texts from their sums."""
    numbers = {"count": count, "left_out": 0, "sum": total, "squares": squares, "centre": centre}
    return PositionMoments.from_state(numbers)


def _early(options: Any, m: int) -> tuple[int, int]:
    """Return the early queries, first and behind the last."""
    return options.queries[0], min(options.queries[1], m - 1) + 1
