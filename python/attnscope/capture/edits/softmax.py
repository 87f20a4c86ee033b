# SPDX-License-Identifier: MIT
"""Edits of the softmax's argument and of what is read with its result.

They are carried out by our attention function: windows first, then all hidden keys together, so that a query
is never left without a key by two edits of which each would leave it one.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from attnscope._checks import as_tensor
from attnscope.capture.edits.edit import ACTIVE, Applied, BaseEdit
from attnscope.capture.visibility import PLACES, float_mask, visible_entries

if TYPE_CHECKING:
    from attnscope.models.architecture import Structure

Heads = Sequence[int | tuple[int, int]] | None


class Call(NamedTuple):
    """A call of an attention module: its layer, its shape, and the columns of its queries and keys.

    Attributes:
        hidden: keys that no query sees, bool [k]; among them are places of a static cache that hold no token.
    """

    layer: int
    heads: int
    queries: Tensor
    keys: Tensor
    hidden: Tensor


def _heads_argument(name: str, heads: Any) -> tuple[int | tuple[int, int], ...]:
    """Return numbers of heads and pairs (layer, head) as whole numbers.

    Raises:
        ValueError: what is neither.
    """
    try:
        return tuple(
            _whole_number(head)
            if getattr(head, "ndim", 0) == 0 and not isinstance(head, (tuple, list))
            else _pair(head)
            for head in heads
        )
    except (TypeError, ValueError):
        raise ValueError(f"{name}: heads must be numbers or pairs (layer, head), got {heads!r}") from None


def _pair(numbers: Any) -> tuple[int, int]:
    layer, head = map(_whole_number, numbers)
    return layer, head


def _whole_number(number: Any) -> int:
    if isinstance(number, (bool, np.bool_)):  # a flag is no number, though Python counts with it
        raise TypeError
    return operator.index(number)


class Attended(NamedTuple):
    """The changes of one call: the mask to add, and the entries whose values are not read."""

    mask: Tensor | None
    unread: Tensor | None


@dataclass(frozen=True, eq=False)
class _OfKeys(BaseEdit):
    keys: Sequence[int] | Tensor
    heads: Heads = None
    skip_queries: Sequence[int] = ()
    of_softmax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.heads is not None:
            object.__setattr__(self, "heads", _heads_argument(self.name, self.heads))

    def hooks(self, model: nn.Module, architecture: Structure, applied: Applied) -> list[Any]:
        """See `BaseEdit`."""
        for pair in self.heads or ():
            if isinstance(pair, tuple) and architecture.depth:
                architecture.layer(self.name, pair[0])
        return super().hooks(model, architecture, applied)

    def entries(self, call: Call, applied: Applied) -> Tensor | None:
        """Return the entries that the edit is about, bool [B, h or 1, q, k]; None where it is about none."""
        device = call.keys.device
        chosen = torch.ones(1, dtype=torch.bool, device=device)
        if self.heads is not None:
            chosen = torch.zeros(call.heads, dtype=torch.bool, device=device)
            for pair in self.heads:
                layer, head = pair if isinstance(pair, tuple) else (call.layer, pair)
                if call.layer in (layer, layer + applied.depth):
                    if not -call.heads <= head < call.heads:
                        raise ValueError(
                            f"{self.name}: head {head} of layer {call.layer}, which has {call.heads}"
                        )
                    chosen[head] = True
        self._check_keys(call, applied)
        keys = self._columns("keys", self.keys, call.keys, applied)
        queries = ~self._columns("skip_queries", self.skip_queries, call.queries, applied)
        applied.count += 1
        if not bool(chosen.any()):
            return None
        return (
            chosen[None, :, None, None]
            & queries.to(device)[:, None, :, None]
            & keys.to(device)[:, None, None, :]
        )

    def _columns(
        self, argument: str, positions: Sequence[int] | Tensor, columns: Tensor, applied: Applied
    ) -> Tensor:
        where = applied.where
        flags = as_tensor(self.name, argument, positions)
        total = where.mask.shape[1]
        if flags.dtype != torch.bool:
            flagged = where.columns(self.name, flags, cached=True)
        elif flags.ndim == 2 and flags.shape[0] == len(where.mask) and flags.shape[1] <= total:
            flagged = torch.zeros_like(where.mask)
            flagged[:, : flags.shape[1]] = flags.to(flagged.device)
            flagged &= where.mask
        else:
            raise ValueError(
                f"{self.name}: {argument} must have shape {tuple(where.mask.shape)}, got {tuple(flags.shape)}"
            )
        columns = columns.to(flagged.device)
        return flagged[:, columns.clamp(max=total - 1)] & (columns < total)

    def _check_keys(self, call: Call, applied: Applied) -> None:
        """Raise for keys that are none of the tokens and that queries see."""
        total = applied.where.mask.shape[1]
        if bool(((call.keys >= total) & ~call.hidden).any()):
            raise NotImplementedError(
                f"{self.name}: a layer attends to {len(call.keys)} keys, where the input holds {total} tokens"
            )


@dataclass(frozen=True, eq=False)
class HideKeys(_OfKeys):
    """Keys that no query may attend to: they get the mask's value before the softmax.

    A query that would see no key keeps what it sees: under a causal mask the first token still attends to
    itself. Several such edits are united.

    Attributes:
        keys: positions counted from each sample's first real token, or bool [B, n] in the input's columns.
        heads: numbers of heads, in every layer, or pairs (layer, head), also from the end; None for all.
        skip_queries: positions of queries that still see them.
    """


@dataclass(frozen=True, eq=False)
class SubtractRead(_OfKeys):
    """Keys whose A_ij v_j is subtracted from the output of each head; the probabilities stay.

    Attributes:
        keys: positions counted from each sample's first real token, or bool [B, n] in the input's columns.
        heads: numbers of heads, in every layer, or pairs (layer, head), also from the end; None for all.
        skip_queries: positions of queries that still read them.
    """


@dataclass(frozen=True)
class LimitWindow(BaseEdit):
    """Queries see the keys i − width + 1 … i alone (encoders: as many ahead), within the model's own mask.

    Attributes:
        width: of the window.
        keep_first: the first real tokens that all queries see besides.
    """

    width: int
    keep_first: int = 0
    of_softmax: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.width < 1 or self.keep_first < 0:
            raise ValueError(
                f"LimitWindow: width must be at least 1 and keep_first at least 0, got {self.width} and "
                f"{self.keep_first}"
            )

    def entries(self, call: Call, applied: Applied) -> Tensor:
        """Return the entries outside of the window, bool [B, 1, q, k]."""
        applied.count += 1
        far = (call.queries[:, None] - call.keys[None]).abs() >= self.width
        offset = call.keys[None] - applied.where.first.to(call.keys.device)[:, None]
        visible_first = (offset >= 0) & (offset < self.keep_first)
        return far[None, None] & ~visible_first[:, None, None]


def active(module: nn.Module) -> list[Applied]:
    """Return the edits of the softmax's argument that the running code is inside of and that are about this
    module.
    """
    return [
        applied
        for applied in ACTIVE.get()
        if getattr(applied.edit, "of_softmax", False) and applied.mixes_tokens(module)
    ]


def attended(
    edits: Sequence[Applied], module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None
) -> Attended:
    """Return the changes that the edits make in a call of the module."""
    hidden: Tensor | None = None
    unread: Tensor | None = None
    n, keys = query.shape[2], key.shape[2]
    places = getattr(mask, PLACES, None)
    never = torch.zeros(keys, dtype=torch.bool, device=query.device)
    if edits and mask is not None:
        never = ~visible_entries(mask[..., :keys]).flatten(0, 2).any(0)
    for applied in edits:
        where = applied.where
        begin, start = places or where.offsets.get(keys, (where.past, 0))
        call = Call(
            applied.layer(module),
            query.shape[1],
            torch.arange(begin, begin + n, device=query.device),
            torch.arange(start, start + keys, device=query.device),
            never,
        )
        if isinstance(applied.edit, LimitWindow):
            mask = _masked(mask, applied.edit.entries(call, applied), query, keys)
            continue
        entries = applied.edit.entries(call, applied)
        if entries is not None and isinstance(applied.edit, HideKeys):
            hidden = entries if hidden is None else hidden | entries
        elif entries is not None:
            unread = entries if unread is None else unread | entries
    if hidden is not None and bool(hidden.any()):
        mask = _masked(mask, hidden, query, keys)
    return Attended(mask, unread if unread is not None and bool(unread.any()) else None)


def _masked(mask: Tensor | None, hidden: Tensor, query: Tensor, keys: int) -> Tensor:
    """Return the float mask with more entries hidden, except from queries that would see nothing."""
    lowest = torch.finfo(query.dtype).min
    if mask is None:
        mask = query.new_zeros(1, 1, query.shape[-2], keys)
    elif mask.dtype == torch.bool:
        mask = float_mask(mask, query.dtype)
    mask = mask[..., :keys]
    left = ((mask > lowest / 2) & ~hidden).any(-1, keepdim=True)
    return torch.where(left & hidden, lowest, mask)
