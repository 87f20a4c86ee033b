# SPDX-License-Identifier: MIT
"""What is done to the model and to its text: the arms of the study, each a pass over the same windows.

Example:
    >>> Arm("zero", kind="replacement").label
    'zero'
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnscope.capture.edits import HideKeys, LimitWindow, SetEmbedding, SetRotary, SubtractRead
from attnscope.studies.absolute_position.options import CONTROLS, READS

if TYPE_CHECKING:
    from attnscope.engine.forward import Batch
    from attnscope.engine.stage_run import StageRun


@dataclass(frozen=True)
class Arm:
    """One pass over the texts of a unit.

    Attributes:
        name: as tables call it; the base arm reads as the tokenizer has it.
        draw: of several vectors or sets of heads.
        kind: replacement, control, text or read.
        input: windows, shuffled, repeated, or rotated: its end before its beginning.
        front: what stands before the window: what the tokenizer sets there ("own"), nothing ("none"), or a
            BOS or EOS token that it does not set ("added").
        edits: of the model.
        position: whose embedding is replaced, -1 for none; a control's key and query are left out of both
            conditions.
    """

    name: str
    draw: int = 0
    kind: str = "base"
    input: str = "windows"
    front: str = "own"
    edits: tuple[Any, ...] = field(default=(), compare=False)
    position: int = -1

    @property
    def label(self) -> str:
        """For messages."""
        return self.name if self.input == "windows" else f"{self.name} on {self.input}"


def imposed(options: Any) -> tuple[Any, ...]:
    """The encoding that every pass runs under in place of the model's own."""
    edits: tuple[Any, ...] = () if options.rope is None else (SetRotary(options.rope),)
    return edits if options.window is None else (*edits, LimitWindow(options.window))


def token_ids(run: StageRun, batch: Batch, arm: Arm) -> Tensor:
    """The tokens of an arm, [B, n]: all arms of a text read the same window.

    Args:
        batch: windows, each behind what the tokenizer sets before it.
    """
    rows = []
    own = {one.sentence.sample: one for one in run.unit.inputs}
    for sample, ids in zip(batch.samples, batch.token_ids, strict=True):
        window = own[sample].sentence.token_ids or tuple(ids)
        front = {"own": ids[: int(tuple(ids) != window)], "none": [], "added": [added(run)]}[arm.front]
        text = list(window[: len(ids) - len(front)])
        if arm.input == "shuffled":
            text = run.rng("shuffled", sample).permutation(text).tolist()
        elif arm.input == "rotated":
            k = int(run.rng("rotated", sample).integers(1, len(text)))
            text = [*text[k:], *text[:k]]
        elif arm.input == "repeated":
            text = [text[int(run.rng("repeated", sample).integers(len(text)))]] * len(text)
        rows.append([*front, *text])
    return torch.tensor(rows, dtype=torch.long, device=run.model().device)


def added(run: StageRun) -> int | None:
    """The BOS token, or else EOS, that a tokenizer knows; None where it knows neither."""
    tokenizer = run.encoder.tokenizer
    ids = (getattr(tokenizer, "bos_token_id", None), getattr(tokenizer, "eos_token_id", None))
    return next((one for one in ids if one is not None), None)


def sets_first(run: StageRun) -> bool:
    """Whether the tokenizer sets a token before the text."""
    one = run.unit.inputs[0]
    read = one.encoded.ids.tolist()
    return bool(read != list(one.sentence.token_ids or read))


def first_arms(run: StageRun, options: Any, m: int) -> Iterator[Arm]:
    """The base arm on all inputs, then everything that needs no other arm's numbers."""
    yield from (Arm("base", input=one) for one in options.inputs)
    if "no_bos" in options.arms:
        if sets_first(run):
            texts = [one for one in options.inputs if one != "shuffled"]
            yield from (Arm("no_bos", kind="text", front="none", input=one) for one in texts)
        elif added(run) is not None:
            yield Arm("bos_added", kind="text", front="added")
            run.note("absolute_position: the tokenizer sets no BOS token, so base reads none; see bos_added")
        else:
            run.note("absolute_position: the tokenizer knows no BOS or EOS token; the arm no_bos is left out")
    if options.leakage:
        yield from (Arm("leakage", kind="leakage", front="none", input=one) for one in ("windows", "rotated"))
    vectors = replacements(run, options)
    if "special" in options.arms and not vectors["special"]:
        run.note("absolute_position: the tokenizer has no second special token; the arm special is left out")
    for name, drawn in vectors.items():
        if name in options.arms:
            for draw, vector in enumerate(drawn):
                yield Arm(name, draw, "replacement", edits=(SetEmbedding(0, vector),), position=0)
    for name, position in zip(CONTROLS, (1, m // 2), strict=True):
        if name in options.arms:
            for draw, vector in enumerate((vectors["mean"][0], vectors["gaussian"][0])):
                edits = (SetEmbedding(position, vector),)
                yield Arm(name, draw, "control", edits=edits, position=position)


def replacements(run: StageRun, options: Any) -> dict[str, list[Tensor]]:
    """The vectors that stand in for the first embedding, by arm; those of a token come from the module."""
    model, encoder = run.model().model, run.encoder
    module = model.get_input_embeddings()
    special = _special(encoder)
    base = int(run.unit.inputs[0].encoded.ids[0])
    rng = run.rng("replacements")
    ordinary = [one for one in range(module.weight.shape[0]) if one not in special]
    tokens = rng.choice(ordinary, min(options.vectors, len(ordinary)), replace=False)
    length = float(_embedded(module, [base], run).norm())
    drawn = torch.from_numpy(rng.standard_normal((options.vectors, module.weight.shape[1])))
    drawn = drawn / drawn.norm(dim=-1, keepdim=True) * length
    others = sorted(special - {base})
    every = range(module.weight.shape[0])
    whole = torch.stack(
        [
            _embedded(module, list(every[start : start + 4096]), run).double().sum(0)
            for start in range(0, len(every), 4096)
        ]
    ).sum(0) / len(every)
    return {
        "zero": [torch.zeros(module.weight.shape[1])],
        "mean": [whole.float()],
        "token": [*_embedded(module, tokens.tolist(), run)],
        "gaussian": [*drawn.float()],
        "special": [*_embedded(module, others[:1], run)] if others else [],
    }


def _special(encoder: Any) -> set[int]:
    """Ids of the tokenizer's special tokens; none without a tokenizer."""
    return set(encoder.tokenizer.all_special_ids) if encoder.tokenizer is not None else set()


def _embedded(module: Any, ids: Sequence[int], run: StageRun) -> Tensor:
    """What the embedding module gives for tokens, [k, D]; one at a time, as position 0 of a text."""
    with torch.no_grad():
        found = module(torch.tensor(list(ids), device=run.model().device)[:, None])[:, 0]
    return found.float() if found.dtype != torch.float64 else found


def reading_arms(
    readers: Sequence[tuple[int, int]], shape: tuple[int, int], run: StageRun, options: Any
) -> Iterator[Arm]:
    """Reads of position 0 taken away: of its readers, of as many other heads, of all heads.

    The last layer's reads act on no score and are left out. Draw 0 are the readers, draw -1 all heads, the
    others are drawn.
    """
    layers, heads = shape
    chosen = [one for one in readers if one[0] < layers - 1]
    every = [(layer, head) for layer in range(layers - 1) for head in range(heads)]
    sets: list[tuple[int, list[tuple[int, int]]]] = [(-1, every)] if every else []
    if chosen:
        sets.append((0, chosen))
        for draw in range(1, options.matched + 1):
            rng, found = run.rng("matched", draw), []
            for layer in sorted({layer for layer, _ in chosen}):
                reading = {head for place, head in chosen if place == layer}
                free = [head for head in range(heads) if head not in reading]
                take = rng.permutation(free)[: len(reading)].tolist()
                found += [(layer, int(head)) for head in take]
            if len(found) == len(chosen):
                sets.append((draw, found))
    for name, edit in zip(READS, (SubtractRead, HideKeys), strict=True):
        if name in options.arms:
            for draw, own in sets:
                yield Arm(name, draw, "read", edits=(edit([0], heads=own, skip_queries=[0]),))
