# SPDX-License-Identifier: MIT
"""Placements of the beginning token: the sink follows the position or the token, and its removal costs loss.

The beginning token is at position 0, in the middle of the text, at both places, or nowhere; all other
tokens of the later half keep their positions, so that attention and loss are of the same queries and tokens.
An ordinary token in the middle is the control: any exchanged token costs some likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnscope.capture import Forward, forward
from attnscope.capture.sites import INTERFACE
from attnscope.statistics.groups import jackknife
from attnscope.studies.absolute_position.arms import imposed, ordinary_tokens

if TYPE_CHECKING:
    import pandas as pd

    from attnscope.study_api.forward import Batch
    from attnscope.study_api.stage_run import StageRun

#: Placements, in the order of tables: as the model reads, the beginning token in the middle, at both places,
#: an ordinary token at the front, an ordinary token in the middle.
PLACEMENTS = ("as_read", "moved", "twice", "ordinary_front", "ordinary_middle")

#: Those that models with random weights are read under.
CONTROL_PLACEMENTS = ("as_read", "moved", "ordinary_front", "ordinary_middle")


class Placed(NamedTuple):
    """The tokens of a text under one placement.

    Attributes:
        ids: of the tokens.
        middle: position in the middle that the placements change.
    """

    ids: list[int]
    middle: int


def placed(name: str, front: int, window: Sequence[int], ordinary: int) -> Placed:
    """Return the tokens of a text under a placement; those behind the middle are the same in all.

    Args:
        name: one of `PLACEMENTS`.
        front: the beginning token.
        window: tokens of the text behind it.
        ordinary: the token that takes its place.

    >>> [placed(name, 0, [1, 2, 3, 4, 5], 9).ids for name in PLACEMENTS]
    [[0, 1, 2, 3, 4, 5], [1, 2, 3, 0, 4, 5], [0, 1, 2, 0, 4, 5], [9, 1, 2, 3, 4, 5], [0, 1, 2, 9, 4, 5]]
    """
    ids = [front, *window]
    middle = len(ids) // 2
    if name == "moved":
        ids = [*window[:middle], front, *window[middle:]]
    elif name == "twice":
        ids[middle] = front
    elif name == "ordinary_front":
        ids[0] = ordinary
    elif name == "ordinary_middle":
        ids[middle] = ordinary
    elif name != "as_read":
        raise ValueError(f"placed: name must be one of {', '.join(PLACEMENTS)}, got {name!r}")
    return Placed(ids, middle)


class Reading(NamedTuple):
    """A pass over texts under one placement, of the queries behind the middle.

    Attributes:
        heads: layer -> attention of each head to position 0 and to the middle, [B, h, 2].
        loss: of the tokens behind the middle, nats, [B]; NaN without a vocabulary head.
        norms: of the last states at position 0, and their median over the others, [2, B].
    """

    heads: dict[int, Tensor]
    loss: Tensor
    norms: Tensor


def texts_under(name: str, run: StageRun, batch: Batch, ordinary: int) -> list[Placed]:
    """Return the texts of a batch under a placement."""
    windows = {text.sentence.sample: text.sentence.token_ids for text in run.unit.inputs}
    return [
        placed(name, ids[0], list(windows[sample] or ids[1:])[: len(ids) - 1], ordinary)
        for sample, ids in zip(batch.samples, batch.token_ids, strict=True)
    ]


def read_placement(run: StageRun, texts: Sequence[Placed], options: Any) -> Reading:
    """Run the model over the texts of a batch and return what it reads and loses behind the middle."""
    model = run.model().model
    ids = torch.tensor([text.ids for text in texts], device=run.model().device)
    middle, n = texts[0].middle, ids.shape[1]
    has_head = model.get_output_embeddings() is not None
    spec = Forward(
        ("attention", "block_output", *(["logits"] if has_head else [])),
        edits=imposed(options),
        rows=torch.arange(middle + 1, n - 1, device="cpu") if has_head else None,
    )
    heads: dict[int, Tensor] = {}
    norms = torch.full((2, len(ids)), torch.nan, dtype=torch.float64, device="cpu")
    with forward(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, spec) as layers:
        for layer in layers:
            maps = layer.matrices()[:, :, middle + 1 :].double().cpu()
            heads[layer.index] = torch.stack([maps[..., 0].mean(-1), maps[..., middle].mean(-1)], -1)
            if "block_output" in layer.tensors:
                sizes = layer.block_output.double().norm(dim=-1).cpu()
                norms = torch.stack([sizes[:, 0], sizes[:, 1:].median(-1).values])
        logits = layers.outputs.logits if has_head else None
    loss = torch.full((len(ids),), torch.nan, dtype=torch.float64, device="cpu")
    if logits is not None:
        targets = ids[:, middle + 2 :].cpu()
        terms = torch.log_softmax(logits.double().cpu(), -1).gather(-1, targets[..., None])[..., 0]
        loss = -terms.mean(-1)
    return Reading(heads, loss, norms)


def measure(run: StageRun, batch: Batch, readers: Sequence[tuple[int, int]], options: Any) -> None:
    """Write the rows of `placements` of a batch: reads of both places, loss behind the middle, norms.

    Args:
        readers: the heads whose reads are averaged, by layer and number.
    """
    tokens = ordinary_tokens(run, options)
    if not tokens:
        return
    for name in PLACEMENTS:
        reading = read_placement(run, texts_under(name, run, batch, tokens[0]), options)
        chosen = [reading.heads[layer][:, head] for layer, head in sorted(readers) if layer in reading.heads]
        reads = torch.stack(chosen).mean(0).T if chosen else torch.full_like(reading.norms, torch.nan)
        run.write(
            "placements",
            placement=name,
            sample=list(batch.samples),
            first=reads[0],
            middle=reads[1],
            loss=reading.loss,
            norm_first=reading.norms[0],
            norm_others=reading.norms[1],
        )


def control(run: StageRun, batch: Batch, options: Any) -> None:
    """Add the reads of all heads of a model with random weights, and its loss, to the sums `anchor_reads`."""
    tokens = ordinary_tokens(run, options)
    if not tokens:
        return
    assert run.unit.checkpoint is not None
    for name in CONTROL_PLACEMENTS:
        reading = read_placement(run, texts_under(name, run, batch, tokens[0]), options)
        reads = torch.cat([reading.heads[layer] for layer in sorted(reading.heads)], 1).flatten(1)
        keys = {"model": run.unit.checkpoint.model, "seed": run.unit.seed, "placement": name}
        for text in torch.cat([reads, reading.loss[:, None]], 1):
            run.reduce("anchor_reads", text.numpy(), **keys)


def control_statistics(run: StageRun, model: str, seed: int, options: Any) -> dict[str, float]:
    """Return the statistics of C9 and C10 of a model with random weights; none where nothing was placed.

    The heads are chosen as in the trained model, by how much they read position 0; where no head reads it so
    much, the one that reads it most.
    """
    sums = run.reduced("anchor_reads", ("placement",), model=model, seed=seed)
    if not sums:
        return {}
    means = {name: np.asarray(value.mean) for (name,), value in sums.items()}
    reads = {name: mean[:-1].reshape(-1, 2) for name, mean in means.items()}
    first = reads["as_read"][:, 0]
    if not np.isfinite(first).any():
        return {}
    readers = first > options.reader
    readers[np.nanargmax(first)] = True
    moved, as_read = (reads[name][readers].mean(0) for name in ("moved", "as_read"))
    statistics = {"follows_token": float(min(moved[1] - moved[0], moved[1] - as_read[1]))}
    loss = float(means["ordinary_front"][-1] - means["ordinary_middle"][-1])
    return statistics | ({"loss_beyond": loss} if np.isfinite(loss) else {})


def reachable(tier: int) -> bool:
    """Return True if a model's attention and logits can be captured as the placements need them."""
    return tier == INTERFACE


def overall(run: StageRun, table: pd.DataFrame, options: Any) -> None:
    """Write the statistics of the placements to `overall`, with groups of texts as the unit."""
    groups = table["sample"] * options.groups // run.samples
    wide = {
        column: table.assign(group=groups).pivot_table(
            index="group", columns="placement", values=column, aggfunc="mean", dropna=False
        )
        for column in ("first", "middle", "loss", "norm_others")
    }
    first, middle, loss, norm = wide.values()
    statistics = {
        # attention that a token keeps at either place, whatever the place adds
        "follows_token": middle["moved"] - first["moved"],
        "token_in_the_middle": middle["moved"] - middle["as_read"],
        "first_as_read": first["as_read"],
        "second_of_two": middle["twice"] - first["twice"],
        "loss_without": loss["ordinary_front"] - loss["as_read"],
        "loss_of_another": loss["ordinary_middle"] - loss["as_read"],
        "loss_beyond": loss["ordinary_front"] - loss["ordinary_middle"],
        "norm_without": np.log(norm["ordinary_front"] / norm["as_read"]),
    }
    for name, values in statistics.items():
        numbers = values.to_numpy(dtype=float)
        if len(numbers) < 2 or not np.isfinite(numbers).all():
            continue
        mean = jackknife(numbers, np.mean)
        run.write("overall", statistic=name, estimate=mean.estimate, low=mean.low, high=mean.high, n=mean.n)
