# SPDX-License-Identifier: MIT
"""One read of a batch of maps that answers all row and column sums, as a Triton kernel.

Eager operations on an accelerator write a float64 copy of the maps for every step, so that an entropy moves ten times
the bytes of its maps. This kernel reads every entry once and keeps float64 sums in registers: for each row the entropy,
for each key the mass that it receives, for each map whether it is finite and whether anything lies above its diagonal.
Programs share out blocks of rows and columns; their partial sums are added in a fixed order, without atomics, so equal
inputs give equal bits.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from attnscope.devices.slabs import Slab

#: Programs that keep every processor of a large device busy.
ENOUGH_PROGRAMS = 2048
ROWS, COLUMNS = 16, 128
NOT_FINITE, ABOVE_DIAGONAL = 1, 2


@triton.jit  # type: ignore[untyped-decorator]
def _read(
    maps,
    lengths,
    entropy_parts,
    mass_parts,
    flags,
    stride_map,
    stride_row,
    stride_column,
    n,
    rows_per_program,
    ENTROPY: tl.constexpr,  # noqa: N803  compile-time parameters are in capitals in Triton
    CAUSAL: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
):
    """Read a block of rows and columns of one map: partial entropies, partial masses and flags."""
    column_block, row_block = tl.program_id(0), tl.program_id(1)
    index = tl.program_id(2).to(tl.int64)
    length = tl.load(lengths + index)
    j = column_block * COLUMNS + tl.arange(0, COLUMNS)
    first_row = row_block * rows_per_program
    mass = tl.zeros([COLUMNS], tl.float64)
    not_finite = tl.zeros([COLUMNS], tl.int32)
    above = tl.zeros([COLUMNS], tl.int32)
    base = maps + index * stride_map + j[None, :] * stride_column
    for start in range(0, rows_per_program, ROWS):
        i = first_row + start + tl.arange(0, ROWS)
        inside = (i[:, None] < length) & (j[None, :] < length)
        x = tl.load(base + i[:, None].to(tl.int64) * stride_row, mask=inside, other=0.0).to(tl.float64)
        later = j[None, :] > i[:, None]
        not_finite = tl.maximum(not_finite, tl.max(((x - x) != 0.0).to(tl.int32), 0))
        above = tl.maximum(above, tl.max((later & (x != 0.0)).to(tl.int32), 0))
        if CAUSAL:
            x = tl.where(later, 0.0, x)
        mass += tl.sum(x, 0)
        if ENTROPY:
            # a tile of zeros, half of those of a causal map, needs no logarithm
            entropy = tl.zeros([ROWS], tl.float64)
            if tl.max(tl.max(tl.abs(x), 1), 0) > 0.0:
                terms = tl.where(x == 0.0, 0.0, x * tl.log(tl.where(x == 0.0, 1.0, x)))
                entropy = -tl.sum(terms, 1)
            at = entropy_parts + (index * tl.num_programs(0) + column_block) * n + i
            tl.store(at, entropy, mask=(i < n) & (i < first_row + rows_per_program))
    part = index * tl.num_programs(1) + row_block
    tl.store(mass_parts + part * n + j, mass, mask=j < n)
    flag = tl.max(not_finite, 0) + 2 * tl.max(above, 0)
    tl.store(flags + part * tl.num_programs(0) + column_block, flag)


class FusedSlab(Slab):
    """A slab whose sums come from one read of the maps."""

    @functools.cached_property
    def _sums(self) -> tuple[Tensor, Tensor, Tensor]:
        """Key masses [m, n], flags [m], and entropies [m, n] (empty where nobody asks for them)."""
        count, n = self.maps.shape[0], self.n
        device = self.maps.device
        column_blocks = triton.cdiv(n, COLUMNS)
        row_blocks = max(
            1, min(triton.cdiv(n, ROWS), triton.cdiv(ENOUGH_PROGRAMS, max(1, column_blocks * count)))
        )
        rows_per_program = triton.cdiv(triton.cdiv(n, row_blocks), ROWS) * ROWS
        row_blocks = triton.cdiv(n, rows_per_program)
        entropy = torch.empty((count, column_blocks, n), dtype=torch.float64, device=device)
        mass = torch.empty((count, row_blocks, n), dtype=torch.float64, device=device)
        flags = torch.empty((count, row_blocks * column_blocks), dtype=torch.int32, device=device)
        if count:
            _read[(column_blocks, row_blocks, count)](
                self.maps,
                self.lengths,
                entropy,
                mass,
                flags,
                *self.maps.stride(),
                n,
                rows_per_program,
                ENTROPY=True,
                CAUSAL=self.support == "causal",
                ROWS=ROWS,
                COLUMNS=COLUMNS,
            )
        not_finite = (flags & NOT_FINITE).amax(1) > 0
        above = (flags & ABOVE_DIAGONAL).amax(1) > 0
        keep = ~not_finite[:, None]
        return (
            torch.where(keep, mass.sum(1), 0.0),
            torch.stack([~not_finite, ~above & ~not_finite & (self.lengths >= 2)]),
            torch.where(keep, entropy.sum(1), 0.0),
        )

    @functools.cached_property
    def finite(self) -> Tensor:
        return self._sums[1][0]

    @functools.cached_property
    def causal(self) -> Tensor:
        return self._sums[1][1]

    @functools.cached_property
    def key_mass(self) -> Tensor:
        return self._sums[0]

    @functools.cached_property
    def row_entropy(self) -> Tensor:
        return self._sums[2]
