# SPDX-License-Identifier: MIT
"""A check that the maps of a metric are attention: each query's row sums to 1.

A metric of logits, of percent or of a transposed map is a number like any other, so the sum of one row of
each map is looked at, the last token's, which sees most keys. Where it is not 1, a warning names the likely
cause. The last map decides whether the others are looked at. Rows of a model with a learned sink rightly sum
to less: `sink_mass` of the layer holds the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from attnscope._warn import warn
from attnscope.errors import NotAttentionWarning

#: Of a row's sum: above what rounding to half precision leaves of it, far below what other data give.
TOLERANCE = 2e-2
#: Maps along an axis that are looked at.
_MOST = 64
_LESS = (
    "queries of padding or keys that were cut off (give lengths), or a learned sink, whose rows rightly sum "
    "to less"
)


#: Maps that were found to be attention already, inside `row_sum_cache`.
_FINE: ContextVar[list[Tensor] | None] = ContextVar("maps found to be attention", default=None)


@contextmanager
def row_sum_cache() -> Iterator[None]:
    """Check the row sums of maps once inside the block, for all metrics that are given the same unchanged
    maps.
    """
    token = _FINE.set([])
    try:
        yield
    finally:
        _FINE.reset(token)


def last_rows(maps: Tensor, lengths: Tensor | None, queries: Tensor | None = None) -> Tensor:
    """Return the row of each map's last query [..., k], zero behind its keys, and for a map without one."""
    n = maps.shape[-1]
    rows = maps[..., -1, :]
    if queries is not None:
        at = (queries - 1).clamp(min=0)[..., None, None].expand(*maps.shape[:-2], 1, n)
        rows = maps.gather(-2, at).squeeze(-2) * (queries > 0)[..., None]
    if lengths is not None:
        rows = rows * (torch.arange(n, device=maps.device) < lengths[..., None])
    return rows


def _is_off(maps: Tensor, lengths: Tensor | None, queries: Tensor | None) -> bool:
    """Return True if the last row of the last map does not sum to 1, a look that costs little."""
    last: tuple[int, ...] = (-1,) * (maps.ndim - 2)
    end = maps.shape[-1] if lengths is None else int(lengths[last])
    where = (*last, maps.shape[-2] - 1 if queries is None else int(queries[last]) - 1)
    row: Tensor = maps[where]
    total = float(row[:end].sum())
    return not abs(total - 1) <= TOLERANCE


def check_row_sums(
    function: str,
    maps: Tensor,
    lengths: Tensor | None,
    *,
    refuse: bool = False,
    queries: Tensor | None = None,
) -> str | None:
    """Return the fault of the sums of rows in words, after a warning of it; None where there is none.

    Rows of zeros (a query that sees nothing) and rows with NaN are passed over.
    """
    lengths = None if lengths is None else lengths.to(maps.device)
    queries = None if queries is None else queries.to(maps.device)
    fine = _FINE.get()
    if fine is not None and any(cached_maps is maps for cached_maps in fine):
        return None
    if not maps.numel() or not _is_off(maps, lengths, queries):
        if fine is not None:
            fine.append(maps)
        return None
    for axis in range(maps.ndim - 2):
        maps = maps.narrow(axis, 0, min(maps.shape[axis], _MOST))
        lengths = lengths if lengths is None else lengths.narrow(axis, 0, maps.shape[axis])
        queries = queries if queries is None else queries.narrow(axis, 0, maps.shape[axis])
    rows = last_rows(maps, lengths, queries)
    sums = rows.sum(-1, dtype=torch.float64)
    off = (sums - 1).abs() > TOLERANCE
    if not bool(off.any()):
        return None
    masked = (rows == -torch.inf).any(-1) & (rows < torch.inf).all(-1)
    off = (off & (sums != 0) & sums.isfinite()) | masked
    count = int(off.sum())
    if not count:
        return None
    first = float(sums[off].reshape(-1)[0])
    likely = _cause(maps, rows[off], sums[off], lengths)
    affected = f"{count} of {sums.numel()} maps"
    message = f"{function}: rows of {affected} do not sum to 1 (the first: {first:.4g}): {likely}"
    if refuse and likely != _LESS:
        raise ValueError(message)
    warn(NotAttentionWarning(message, function, count))
    return message


def _cause(maps: Tensor, rows: Tensor, sums: Tensor, lengths: Tensor | None) -> str:
    if bool((rows < 0).any()):
        return "with negative entries they look like logits, which softmax(-1) turns into attention"
    if lengths is None:
        columns = maps[(0,) * (maps.ndim - 2)].sum(-2)  # in its own type: a large map is not copied
        if bool(((columns - 1).abs() <= TOLERANCE).all()):
            return "columns do, so the maps look transposed; rows are queries, columns keys"
    if bool(((sums - 100).abs() <= 100 * TOLERANCE).all()):
        return "they look like percent, to be divided by 100"
    if bool((sums < 1).all()):
        return _LESS
    return "divide each row by its sum"
