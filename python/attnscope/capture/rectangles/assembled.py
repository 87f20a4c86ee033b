# SPDX-License-Identifier: MIT
"""The rows of attention of all steps of a generation, put together to one map per layer.

Step 0 gives the rows of the prompt, and every later step the row of one new token, over the keys that its
cache still holds. Put below each other they are what one forward pass over all tokens gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from attnscope._memory import free_bytes
from attnscope._warn import warn
from attnscope.capture.layer import Layer
from attnscope.capture.rectangles.generation_settings import GenerationSettings
from attnscope.capture.visibility import visible_entries

#: The rows of a generation may take this part of the memory that is free when it begins.
SHARE_OF_MEMORY = 0.25


@dataclass(frozen=True, eq=False)
class StepRows:
    """The attention of a layer in one step, and what belongs to it.

    Attributes:
        real_queries: queries that are no padding, bool [B, q].
    """

    layer: Layer
    attention: Tensor
    valid: Tensor
    mask: Tensor | None
    real_queries: Tensor


class GeneratedRows:
    """The rows of attention of one generation, by layer.

    Args:
        settings: of the generation.

    Attributes:
        beams: for each returned sequence the row of the batch in each step, int64 [sequences, steps], −1
            behind its end; None where rows stay in their place.
    """

    def __init__(self, settings: GenerationSettings) -> None:
        self.beams: Tensor | None = None
        self._settings = settings
        self._detour = settings.detour
        # Whether it was said that virtual tokens are left out, or read again.
        self._has_warned = False
        self._rows: dict[tuple[str, int, int], list[StepRows]] = {}
        self._room = SHARE_OF_MEMORY * free_bytes()
        self._dropped = 0.0
        # Of the layer that ran last, which is one that writes.
        self._sequences = 0

    def add(self, layer: Layer) -> None:
        """Keep the rows of a layer, as long as there is room for all of them."""
        attention = layer.tensors.get("attention")
        if attention is None:
            return
        self._check_virtual_tokens(layer, attention.shape[-2])
        if self._detour:
            return
        size = attention.numel() * attention.element_size()
        if self._dropped or size > self._room:
            self._dropped += size
            self._rows.clear()
            return
        self._room -= size
        self._sequences = len(attention)
        # the layer without its tensors: only what it says of itself
        bare = Layer(
            layer.index,
            layer.stack,
            layer.call,
            step=layer.step,
            cross=layer.cross,
            heads=layer.heads,
            kv_heads=layer.kv_heads,
            valid=layer.valid,
            key_offset=layer.key_offset,
            tensors={},
            sink_logits=layer.sink_logits,
            has_sink=layer.has_sink,
            partial_sums=layer.partial_sums,
            exact_mask=layer.exact_mask,
        )
        real_queries = layer.query_valid
        if real_queries is None:
            shape = (attention.shape[0], attention.shape[-2])
            real_queries = torch.ones(shape, dtype=torch.bool, device=layer.valid.device)
        rows = StepRows(bare, attention, layer.valid, layer.mask, real_queries)
        self._rows.setdefault((layer.stack, layer.index, layer.call), []).append(rows)

    def _check_virtual_tokens(self, layer: Layer, queries: int) -> None:
        """Warn where `generate` leaves the model's virtual tokens out, or reads them again in each step.

        Adapters put them before a prompt by what they know of transformers' caches, which changes.
        """
        number, are_queries = self._settings.virtual
        if not number or self._has_warned or layer.cross or not self._settings.writes(layer.stack):
            return
        place = f"step {layer.step} of {layer.stack}, layer {layer.index}"
        before = _keys_before(layer, layer.valid, queries)
        if not are_queries and layer.step == 0 and before < number:
            words = (
                f"the {number} virtual tokens of its prefix are no part of this generation ({place}: "
                f"queries {queries}, keys before them {before}): `generate` of the adapter leaves them out, "
                "and the text is that of the model without them; run() reads them"
            )
        elif are_queries and layer.step > 0 and 1 < queries <= number + 1:
            self._detour = f"with its cache the model reads {number} virtual tokens again in each step"
            words = f"{self._detour} ({place} has {queries} queries); with use_cache=False it does not"
        else:
            return
        self._has_warned = True
        warn(f"generate: {words}", UserWarning)

    def layers(self) -> Iterator[Layer]:
        """Yield the assembled layers, in the order in which they ran first.

        Raises:
            RuntimeError: nothing was kept, or the steps do not follow each other.
        """
        if self._detour:
            raise RuntimeError(
                f"assembled: {self._detour}, whose rows are no part of the text; generate without "
                "it, or run the tokens in one forward pass"
            )
        if self._dropped:
            raise RuntimeError(
                f"assembled: the rows of all steps are more than {SHARE_OF_MEMORY:.0%} of the free memory, "
                "so they were not kept; capture fewer layers or heads, or generate less"
            )
        if not self._rows:
            raise RuntimeError(
                "assembled: no step was kept; loop over recording.generate(...) first, with 'attention' "
                "among the captured sites"
            )
        if self._reads_prompt_twice():
            self._rows = {
                place: rows[1:] if self._settings.writes(place[0]) else rows
                for place, rows in self._rows.items()
            }
        steps_of_prompt = self._steps_of_prompt()
        for rows in self._rows.values():
            count = len(rows[0].attention)
            if count == self._sequences:
                writes = self._settings.writes(rows[0].layer.stack)
                yield assemble(rows, self.beams, steps_of_prompt, writes=writes)
            elif self._settings.has_encoder and count < self._sequences:
                # an encoder reads each text once, whatever its answers
                sequences = self._sequences if self.beams is None else len(self.beams)
                yield assemble([_repeated(step, sequences) for step in rows])
            else:  # pictures, of which a text may have several
                yield assemble(rows)

    def _reads_prompt_twice(self) -> bool:
        """Return True where the second step reads the prompt again, without a cache (MusicGen)."""
        writing = [
            [(step.layer.key_offset, *step.attention.shape[-2:]) for step in rows[:2]]
            for rows in self._rows.values()
            if self._settings.writes(rows[0].layer.stack) and not rows[0].layer.cross
        ]
        return bool(writing) and all(
            len(steps) == 2 and steps[0] == steps[1] == (0, steps[0][1], steps[0][1]) for steps in writing
        )

    def _steps_of_prompt(self) -> int:
        """Return how many steps read the prompt: more than one where it is read in pieces.

        Layers that read the last query of each piece alone do not say it.
        """
        steps = []
        for rows in self._rows.values():
            sizes = accumulate(step.attention.shape[-2] for step in rows)
            ends = (at for at, size in enumerate(sizes, 1) if size >= self._settings.prompt_tokens)
            if self._settings.writes(rows[0].layer.stack):
                steps.append(next(ends, len(rows)))
        return min(steps, default=1)


def assemble(
    rows: Sequence[StepRows], beams: Tensor | None = None, steps_of_prompt: int = 1, *, writes: bool = False
) -> Layer:
    """Return one layer with the rows of all steps of a layer.

    Args:
        rows: of the steps, in order.
        beams: as `GeneratedRows.beams`.
        steps_of_prompt: that read the prompt.
        writes: the layer reads the prompt of what is written, also where no step follows it.

    Raises:
        RuntimeError: a step that goes back, or whose keys are not those of the steps before it.
    """
    first = rows[0].layer
    if len(rows) > 1 and rows[-1].attention.shape[-2] == rows[-2].attention.shape[-2] + 1:
        # without a cache every step computes all rows again
        rows = [rows[0], *map(_last_query, rows[1:])]
    if beams is not None:
        # all steps that read the prompt lead to the first token
        turns = [max(0, at + 1 - steps_of_prompt) for at in range(len(rows))]
        rows = [
            _follow(step, turn, beams)
            for step, turn in zip(rows, turns, strict=True)
            if turn < beams.shape[1]
        ]
    prompt = None
    if writes or steps_of_prompt < len(rows):
        prompt = sum(step.attention.shape[-2] for step in rows[:steps_of_prompt])
    if first.cross:
        return _stack_rows(rows, prompt)
    before = _keys_before(first, rows[0].valid, rows[0].attention.shape[-2])
    queries = sum(step.attention.shape[-2] for step in rows)
    batch, heads = rows[0].attention.shape[:2]
    mask_heads = max(1 if step.mask is None else step.mask.shape[1] for step in rows)
    maps = rows[0].attention.new_zeros(batch, heads, queries, before + queries)
    shape = (batch, mask_heads, *maps.shape[-2:])
    visible = torch.zeros(shape, dtype=torch.bool, device=maps.device)
    valid = torch.zeros(batch, before + queries, dtype=torch.bool, device=maps.device)
    start = before
    for at, step in enumerate(rows):
        count, keys = step.attention.shape[-2:]
        offset = step.layer.key_offset
        # a static cache of a window's size does not say which keys it dropped: the first ones
        if count == 1 and all(later.attention.shape[-1] == keys for later in rows[at:]):
            offset = max(offset, start + 1 - keys)
        _place(step, start, offset, before, maps, visible, valid)
        start += count
    of_prompt = None if prompt is None else valid[:, before : before + prompt].sum(-1).cpu()
    # what a single step without a mask sees is not known; where others follow it, it is causal
    is_known = len(rows) > 1 or rows[0].mask is not None
    layer = _layer_of(first, maps, valid, visible if is_known else None, of_prompt)
    layer.exact_mask = all(step.layer.exact_mask for step in rows)
    return layer


def _keys_before(layer: Layer, valid: Tensor, queries: int) -> int:
    """Return how many keys the first query finds: of a cache that was filled before, or a learned prefix."""
    used = valid.any(0).nonzero()
    keys = int(used.max()) + 1 if len(used) else valid.shape[-1]
    return max(0, layer.key_offset + keys - queries)


def _place(
    step: StepRows, start: int, offset: int, before: int, maps: Tensor, visible: Tensor, valid: Tensor
) -> None:
    """Write the rows of a step, whose first query is the key `start`, over the keys from `offset` on.

    Row 0 of the maps is that of the key `before`.
    """
    queries, keys = step.attention.shape[-2:]
    end = start + queries
    # a static cache has places for tokens to come
    used = min(keys, end - offset)
    follows = used >= 1 and offset + keys >= end and not bool(step.valid[:, used:].any())
    if len(step.attention) != len(maps) or not follows:
        raise RuntimeError(
            f"assembled: step {step.layer.step} of {step.layer.stack} has {queries} queries over the keys "
            f"{offset} to {offset + keys - 1} after {start} tokens: its steps do not follow each other; run "
            "the tokens in one forward pass"
        )
    rows, columns = slice(start - before, end - before), slice(offset, offset + used)
    maps[:, :, rows, columns] = step.attention[..., :used]
    real = step.valid[:, :used].to(valid.device)
    valid[:, columns] |= real
    seen = real[:, None, None]
    if step.mask is not None and step.mask.ndim == 4:
        seen = seen & visible_entries(step.mask[..., :used]).to(maps.device)
    else:
        place = torch.arange(end, device=maps.device)
        seen = seen & (place[columns] <= place[start:end, None])
    visible[:, :, rows, columns] = seen


def _stack_rows(rows: Sequence[StepRows], prompt: int | None) -> Layer:
    """Return cross attention with the queries of all steps."""
    sizes = {step.attention.shape[-1] for step in rows}
    if len(sizes) > 1:
        raise RuntimeError(
            f"assembled: the cross attention of {rows[0].layer.stack} has {sorted(sizes)} keys in its steps"
        )
    maps = torch.cat([step.attention for step in rows], -2)
    real_queries = torch.cat([step.real_queries for step in rows], -1)
    starts = None if prompt is None else real_queries[:, :prompt].sum(-1).cpu()
    layer = _layer_of(rows[0].layer, maps, rows[0].valid, None, starts)
    layer.query_valid = None if bool(real_queries.all()) else real_queries
    return layer


def _last_query(step: StepRows) -> StepRows:
    """Return the row of a step's last query."""
    mask = step.mask
    if mask is not None and mask.ndim == 4 and mask.shape[2] > 1:
        mask = mask[:, :, -1:]
    return StepRows(step.layer, step.attention[:, :, -1:], step.valid, mask, step.real_queries[:, -1:])


def _repeated(step: StepRows, sequences: int) -> StepRows:
    """Return the rows of the texts for each of their sequences, which lie next to each other."""
    times = sequences // len(step.attention)
    mask = step.mask
    if mask is not None and len(mask) > 1:
        mask = mask.repeat_interleave(times, 0)
    attention, valid, real_queries = (
        part.repeat_interleave(times, 0) for part in (step.attention, step.valid, step.real_queries)
    )
    return StepRows(step.layer, attention, valid, mask, real_queries)


def _follow(step: StepRows, at: int, beams: Tensor) -> StepRows:
    """Return the rows of a step in the order of the returned sequences, nothing for those that ended."""
    at_rows = beams[:, at].to(step.attention.device)
    runs = at_rows >= 0
    chosen = at_rows.clamp(min=0)
    attention = step.attention[chosen] * runs[:, None, None, None]
    valid, real_queries = (
        part[chosen.to(part.device)] & runs.to(part.device)[:, None]
        for part in (step.valid, step.real_queries)
    )
    mask = step.mask
    if mask is not None and len(mask) > 1:
        mask = mask[chosen.to(mask.device)]
    return StepRows(step.layer, attention, valid, mask, real_queries)


def _layer_of(
    bare: Layer, maps: Tensor, valid: Tensor, mask: Tensor | None, answer_start: Tensor | None
) -> Layer:
    return Layer(
        bare.index,
        bare.stack,
        bare.call,
        step=0,
        cross=bare.cross,
        heads=bare.heads,
        kv_heads=bare.kv_heads,
        valid=valid,
        key_offset=0,
        tensors={"attention": maps},
        sink_logits=bare.sink_logits,
        has_sink=bare.has_sink,
        partial_sums=bare.partial_sums,
        mask=mask,
        answer_start=answer_start,
    )
