# SPDX-License-Identifier: MIT
"""Is the sink tied to the first position or to the token that stands there, and what does its removal do?

The beginning token stands at position 0, in the middle of the text, at both places, or nowhere; all other
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
from attnscope.inference.groups import jackknife
from attnscope.studies.absolute_position.arms import imposed, ordinary_tokens

if TYPE_CHECKING:
    import pandas as pd

    from attnscope.study_api.forward import Batch
    from attnscope.study_api.stage_run import StageRun

#: Placements, in the order of tables: as the model reads, the beginning token in the middle, at both places,
#: an ordinary token at the front, an ordinary token in the middle.
PLACEMENTS = ("as_read", "moved", "twice", "ordinary_front", "ordinary_middle")


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


def measure(run: StageRun, batch: Batch, readers: Sequence[tuple[int, int]], options: Any) -> None:
    """Write the rows of `placements` of a batch: reads of both places, loss behind the middle, norms.

    Args:
        readers: the heads whose reads are averaged, by layer and number.
    """
    windows = {text.sentence.sample: text.sentence.token_ids for text in run.unit.inputs}
    tokens = ordinary_tokens(run, options)
    if not tokens:
        return
    by_layer: dict[int, list[int]] = {}
    for layer_index, head in readers:
        by_layer.setdefault(layer_index, []).append(head)
    has_head = run.model().model.get_output_embeddings() is not None
    sites = ["attention", "block_output", *(["logits"] if has_head else [])]
    for name in PLACEMENTS:
        texts = [
            placed(name, ids[0], list(windows[sample] or ids[1:])[: len(ids) - 1], tokens[0])
            for sample, ids in zip(batch.samples, batch.token_ids, strict=True)
        ]
        ids = torch.tensor([text.ids for text in texts], device=run.model().device)
        middle, n = texts[0].middle, ids.shape[1]
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        what = Forward(
            tuple(sites),
            edits=imposed(options),
            rows=torch.arange(middle + 1, n - 1, device="cpu") if "logits" in sites else None,
        )
        reads: list[Tensor] = []
        norms = torch.full((2, len(ids)), torch.nan, dtype=torch.float64, device="cpu")
        with forward(run.model().model, inputs, what) as layers:
            for layer in layers:
                if layer.index in by_layer:
                    maps = layer.matrices()[:, by_layer[layer.index], middle + 1 :].double().cpu()
                    reads.append(torch.stack([maps[..., 0].mean(-1), maps[..., middle].mean(-1)]))
                if "block_output" in layer.tensors:
                    sizes = layer.block_output.double().norm(dim=-1).cpu()
                    norms = torch.stack([sizes[:, 0], sizes[:, 1:].median(-1).values])
            for _ in layers:
                pass
            logits = layers.outputs.logits if "logits" in sites else None
        loss = torch.full((len(ids),), torch.nan, dtype=torch.float64, device="cpu")
        if logits is not None:
            targets = ids[:, middle + 2 :].cpu()
            terms = torch.log_softmax(logits.double().cpu(), -1).gather(-1, targets[..., None])[..., 0]
            loss = -terms.mean(-1)
        first, second = torch.cat(reads, -1).mean(-1) if reads else torch.full_like(norms, torch.nan)
        run.write(
            "placements",
            placement=name,
            sample=list(batch.samples),
            first=first,
            middle=second,
            loss=loss,
            norm_first=norms[0],
            norm_others=norms[1],
        )


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
        known = values.to_numpy(dtype=float)
        if len(known) < 2 or not np.isfinite(known).all():
            continue
        found = jackknife(known, np.mean)
        run.write(
            "overall", statistic=name, estimate=found.estimate, low=found.low, high=found.high, n=found.n
        )
