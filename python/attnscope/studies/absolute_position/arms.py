# SPDX-License-Identifier: MIT
"""The arms of the study: changes of the model or its text, each a pass over the same windows.

Example:
    >>> Arm("zero", kind="replacement").label
    'zero'
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from attnscope.capture.edits import HideKeys, LimitWindow, SetEmbedding, SetRotary, SubtractRead
from attnscope.studies.absolute_position.options import CONTROLS, READS

if TYPE_CHECKING:
    from attnscope.study_api.forward import Batch
    from attnscope.study_api.stage_run import StageRun

#: A head by layer and number.
Head = tuple[int, int]
#: Replacements that are the same in every run; they alone are also done to models with random weights.
FIXED = ("zero", "mean")
#: Two embeddings nearer than this share of their norm are one vector: rows that training never touched.
_NEAR = 0.01


@dataclass(frozen=True)
class Arm:
    """One pass over the texts of a unit.

    Attributes:
        name: as tables call it; the base arm reads as the tokenizer has it.
        draw: of several vectors or sets of heads.
        kind: replacement, control, text or read.
        input: windows, shuffled, repeated, or rotated: its end before its beginning.
        front: tokens before the window: those that the tokenizer sets ("own"), nothing ("none"), or a
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
    """Return the encoding that every pass runs under in place of the model's."""
    edits: tuple[Any, ...] = () if options.rope is None else (SetRotary(options.rope),)
    return edits if options.window is None else (*edits, LimitWindow(options.window))


def token_ids(run: StageRun, batch: Batch, arm: Arm) -> Tensor:
    """Return the tokens of an arm, [B, n]: all arms of a text read the same window.

    Args:
        batch: windows, each behind what the tokenizer sets before it.
    """
    rows = []
    inputs_by_sample = {text.sentence.sample: text for text in run.unit.inputs}
    for sample, ids in zip(batch.samples, batch.token_ids, strict=True):
        window = inputs_by_sample[sample].sentence.token_ids or tuple(ids)
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
    """Return the BOS token, or else EOS, of a tokenizer; None where it has neither."""
    tokenizer = run.encoder.tokenizer
    ids = (getattr(tokenizer, "bos_token_id", None), getattr(tokenizer, "eos_token_id", None))
    return next((token for token in ids if token is not None), None)


def sets_first(run: StageRun) -> bool:
    """Return True if the tokenizer sets a token before the text."""
    text = run.unit.inputs[0]
    read = text.encoded.ids.tolist()
    return bool(read != list(text.sentence.token_ids or read))


def first_arms(run: StageRun, options: Any, m: int) -> Iterator[Arm]:
    """Yield the base arm on all inputs, then every arm that needs no other arm's numbers."""
    yield from (Arm("base", input=name) for name in options.inputs)
    if "no_bos" in options.arms:
        if sets_first(run):
            inputs = [name for name in options.inputs if name != "shuffled"]
            yield from (Arm("no_bos", kind="text", front="none", input=name) for name in inputs)
        elif added(run) is not None:
            yield Arm("bos_added", kind="text", front="added")
            run.note("absolute_position: the tokenizer sets no BOS token, so base reads none; see bos_added")
        else:
            run.note("absolute_position: the tokenizer knows no BOS or EOS token; the arm no_bos is left out")
    if options.leakage:
        yield from (
            Arm("leakage", kind="leakage", front="none", input=name) for name in ("windows", "rotated")
        )
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


def control_arms(run: StageRun, options: Any) -> Iterator[Arm]:
    """Yield the arms of a model with random weights: its windows, and the replacements without a draw."""
    yield Arm("base")
    names = [name for name in FIXED if name in options.arms]
    vectors = replacements(run, options) if names else {}
    for name in names:
        yield Arm(name, 0, "replacement", edits=(SetEmbedding(0, vectors[name][0]),), position=0)


def replacements(run: StageRun, options: Any) -> dict[str, list[Tensor]]:
    """Return the vectors that replace the first embedding, by arm; those of tokens come from the module.

    The mean is over the rows that the tokenizer can reach: a table may be padded with rows nobody trained.
    """
    module = run.model().model.get_input_embeddings()
    base = int(run.unit.inputs[0].encoded.ids[0])
    rng = run.rng("replacements")
    length = float(_embedded(module, [base], run).norm())
    drawn = torch.from_numpy(rng.standard_normal((options.vectors, module.weight.shape[1])))
    drawn = drawn / drawn.norm(dim=-1, keepdim=True) * length
    others = sorted(_special(run.encoder) - {base})
    tokenizer = run.encoder.tokenizer
    rows = module.weight.shape[0]
    rows = rows if tokenizer is None else min(rows, len(tokenizer))
    total = torch.stack(
        [
            _embedded(module, list(range(start, min(start + 4096, rows))), run).double().sum(0)
            for start in range(0, rows, 4096)
        ]
    ).sum(0)
    return {
        "zero": [torch.zeros(module.weight.shape[1], dtype=torch.float32, device="cpu")],
        "mean": [(total / rows).float()],
        "token": [*_embedded(module, ordinary_tokens(run, options), run)],
        "gaussian": [*drawn.float()],
        "special": [*_embedded(module, others[:1], run)] if others else [],
    }


def ordinary_tokens(run: StageRun, options: Any) -> list[int]:
    """Return the ordinary tokens that the arms use: those stored for the checkpoint, or drawn from its texts.

    A dry run tries each stage alone and has stored none.
    """
    if "ordinary_tokens" in run.stored.tables():
        return [int(token) for token in run.read("ordinary_tokens").sort_values("draw")["token"]]
    return draw_tokens(run, options)


def draw_tokens(run: StageRun, options: Any) -> list[int]:
    """Draw up to `vectors` tokens that the unit's texts hold, no special one, each with its own embedding.

    A token that no text holds may never have been trained: its embedding is next to that of every other such
    row, so that several draws would be one.
    """
    special = _special(run.encoder)
    ids = {int(token) for text in run.unit.inputs for token in text.encoded.ids.tolist()}
    candidates = run.rng("ordinary tokens").permutation(sorted(ids - special))
    module = run.model().model.get_input_embeddings()
    base = int(run.unit.inputs[0].encoded.ids[0])
    chosen: list[int] = []
    embeddings = _embedded(module, [base], run).double()
    for token in candidates.tolist():
        if len(chosen) == options.vectors:
            break
        vector = _embedded(module, [token], run).double()
        distance = (embeddings - vector).norm(dim=-1)
        if bool((distance > _NEAR * torch.maximum(embeddings.norm(dim=-1), vector.norm())).all()):
            chosen.append(int(token))
            embeddings = torch.cat([embeddings, vector])
    if len(chosen) < options.vectors:
        run.note(
            f"absolute_position: the texts hold {len(chosen)} ordinary tokens with an embedding of their "
            f"own; "
            f"{options.vectors} were asked for"
        )
    return chosen


def _special(encoder: Any) -> set[int]:
    """Return the ids of the tokenizer's special tokens; none without a tokenizer."""
    return set(encoder.tokenizer.all_special_ids) if encoder.tokenizer is not None else set()


def _embedded(module: Any, ids: Sequence[int], run: StageRun) -> Tensor:
    """Return what the embedding module gives for tokens, [k, D]; each as position 0 of a text."""
    if not len(ids):
        return torch.zeros(0, module.weight.shape[1], dtype=torch.float32, device="cpu")
    with torch.no_grad():
        vectors = module(torch.tensor(list(ids), device=run.model().device)[:, None])[:, 0]
    return vectors.float() if vectors.dtype != torch.float64 else vectors


def reading_arms(readers: Sequence[Head], heads: Sequence[int], run: StageRun, options: Any) -> Iterator[Arm]:
    """Yield the arms that take reads of position 0 away: of its readers, of as many heads, of all heads.

    The last layer's reads act on no score and are left out. Draw 0 are the readers, draw −1 all heads, the
    others are different sets of as many heads of the same layers.

    Args:
        readers: the heads that read position 0.
        heads: of every layer.
        run: of the stage.
        options: of the study.
    """
    last = len(heads) - 1
    chosen = sorted(head for head in readers if head[0] < last)
    all_heads = [(layer, head) for layer in range(last) for head in range(heads[layer])]
    sets: list[tuple[int, Sequence[Head]]] = [(-1, all_heads)] if all_heads else []
    if chosen:
        sets.append((0, chosen))
        matched = matched_sets(chosen, heads, options.matched, run.rng("matched"))
        sets += list(enumerate(matched, 1))
    for name, edit in zip(READS, (SubtractRead, HideKeys), strict=True):
        if name in options.arms:
            for draw, members in sets:
                yield Arm(name, draw, "read", edits=(edit([0], heads=list(members), skip_queries=[0]),))


def matched_sets(
    readers: Sequence[Head], heads: Sequence[int], count: int, rng: np.random.Generator
) -> list[tuple[Head, ...]]:
    """Return up to `count` different sets of as many heads of the same layers as the readers; not theirs.

    A set may share heads with the readers: only among all sets of their size is that of the readers as likely
    as any other where heads do not differ. Where there are not more than `count` sets, all are returned.

    >>> matched_sets([(0, 1)], [4], 20, np.random.default_rng(0))
    [((0, 0),), ((0, 2),), ((0, 3),)]
    """
    readers_sorted = tuple(sorted(readers))
    sizes = {
        layer: sum(place == layer for place, _ in readers_sorted)
        for layer in sorted({layer for layer, _ in readers_sorted})
    }
    total = math.prod(math.comb(heads[layer], size) for layer, size in sizes.items()) - 1
    if total <= count:
        parts = [
            [
                tuple((layer, head) for head in chosen)
                for chosen in itertools.combinations(range(heads[layer]), size)
            ]
            for layer, size in sizes.items()
        ]
        joined = (tuple(itertools.chain(*choice)) for choice in itertools.product(*parts))
        return [members for members in joined if members != readers_sorted]
    drawn_sets: dict[tuple[Head, ...], None] = {}
    while len(drawn_sets) < count:
        drawn = tuple(
            (layer, int(head))
            for layer, size in sizes.items()
            for head in sorted(rng.permutation(heads[layer])[:size].tolist())
        )
        if drawn != readers_sorted:
            drawn_sets[drawn] = None
    return list(drawn_sets)
