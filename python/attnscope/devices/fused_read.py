# SPDX-License-Identifier: MIT
"""One read of a batch of maps that answers all row and column sums, as a Triton kernel.

Eager operations on an accelerator write a float64 copy of the maps for every step, so that an entropy moves
ten times the bytes of its maps. This kernel reads every entry once and keeps float64 sums in registers: for
each row the entropy, for each key the mass that it receives, for each map whether it is finite and whether
anything lies above its diagonal. Programs share out blocks of rows and columns; their partial sums are
added in a fixed order, without atomics, so equal inputs give equal bits.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from attnscope.devices.slab import Slab

#: Programs that keep every processor of a large device busy.
ENOUGH_PROGRAMS = 2048
#: Entries of a tile and the warps that share it; measured by `benchmarks/devices.py`.
ROWS, COLUMNS, WARPS = 8, 512, 4


@triton.jit
def _log_of_float32(x):
    """Return log x in float64 of positive normal numbers of float32, to a few units in the last place.

    x = m·2^k with m in [√½, √2), and log m = 2·artanh((m − 1)/(m + 1)) by its series. The device's own
    logarithm takes four times as long; smaller numbers than float32's normal ones have a product x·log x
    below 1e-35.
    """
    bits = x.to(tl.float32).to(tl.int32, bitcast=True)
    k = (bits - 0x3F3504F3) >> 23
    m32 = (bits - (k << 23)).to(tl.float32, bitcast=True)
    m = m32.to(tl.float64)
    r = (1.0 / (m32 + 1.0)).to(tl.float64)
    r = r * (2.0 - (m + 1.0) * r)
    r = r * (2.0 - (m + 1.0) * r)
    s = (m - 1.0) * r
    z = s * s
    series = 1.0 / 19.0
    series = series * z + 1.0 / 17.0
    series = series * z + 1.0 / 15.0
    series = series * z + 1.0 / 13.0
    series = series * z + 1.0 / 11.0
    series = series * z + 1.0 / 9.0
    series = series * z + 1.0 / 7.0
    series = series * z + 1.0 / 5.0
    series = series * z + 1.0 / 3.0
    return k.to(tl.float64) * 0.6931471805599453 + 2.0 * s * (1.0 + z * series)


@triton.jit
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
    ENTROPY: tl.constexpr,
    CAUSAL: tl.constexpr,
    NARROW: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
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
            entropy = tl.zeros([ROWS], tl.float64)
            largest = tl.full([], 1.0, tl.float64)
            if column_block * COLUMNS > first_row + start + ROWS - 1:
                # a tile of zeros above the diagonal needs no logarithm
                largest = tl.max(tl.max(tl.abs(x), 1), 0)
            if largest > 0.0:
                if NARROW:
                    logarithm = _log_of_float32(x)
                else:
                    logarithm = tl.log(tl.where(x == 0.0, 1.0, x))
                terms = tl.where(x == 0.0, 0.0, x * logarithm)
                terms = tl.where(x < 0.0, float("nan"), terms)
                entropy = -tl.sum(terms, 1)
            at = entropy_parts + (index * tl.num_programs(0) + column_block) * n + i
            tl.store(at, entropy, mask=(i < n) & (i < first_row + rows_per_program))
    part = index * tl.num_programs(1) + row_block
    tl.store(mass_parts + part * n + j, mass, mask=j < n)
    flag = tl.max(not_finite, 0) + 2 * tl.max(above, 0)
    tl.store(flags + part * tl.num_programs(0) + column_block, flag)


@triton.jit
def _add_parts(
    entropy_parts,
    mass_parts,
    flags,
    lengths,
    entropy,
    mass,
    status,
    n,
    row_blocks,
    column_blocks,
    ENTROPY: tl.constexpr,
    FLAGS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add the partial sums of one block of tokens of a map; a map that is not finite gets zeros."""
    index = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.arange(0, FLAGS)
    parts = row_blocks * column_blocks
    flag = tl.load(flags + index * parts + place, mask=place < parts, other=0)
    not_finite = tl.max(flag % 2, 0)
    above = tl.max(flag // 2, 0)
    total = tl.zeros([BLOCK], tl.float64)
    for part in range(row_blocks):
        total += tl.load(mass_parts + (index * row_blocks + part) * n + token, mask=token < n, other=0.0)
    tl.store(mass + index * n + token, tl.where(not_finite == 0, total, 0.0), mask=token < n)
    if ENTROPY:
        total = tl.zeros([BLOCK], tl.float64)
        for part in range(column_blocks):
            total += tl.load(
                entropy_parts + (index * column_blocks + part) * n + token, mask=token < n, other=0.0
            )
        tl.store(entropy + index * n + token, tl.where(not_finite == 0, total, 0.0), mask=token < n)
    if tl.program_id(0) == 0:
        length = tl.load(lengths + index)
        causal = (above == 0) & (not_finite == 0) & (length >= 2)
        tl.store(status + 2 * index, not_finite == 0)
        tl.store(status + 2 * index + 1, causal)


class FusedSlab(Slab):
    """A slab whose sums come from one read of the maps."""

    @functools.cached_property
    def _sums(self) -> tuple[Tensor, Tensor, Tensor]:
        """Key masses [m, n], whether maps are finite and causal [m, 2], entropies [m, n] where asked for."""
        count, n, device = self.maps.shape[0], self.n, self.maps.device
        column_blocks = triton.cdiv(n, COLUMNS)
        enough_row_blocks = triton.cdiv(ENOUGH_PROGRAMS, max(1, column_blocks * count))
        rows_per_program = triton.cdiv(triton.cdiv(n, max(1, enough_row_blocks)), ROWS) * ROWS
        row_blocks = triton.cdiv(n, rows_per_program)
        size = count * n
        entropies = size * (column_blocks + 1) if self.needs_entropy else 0
        numbers = torch.empty(size * (row_blocks + 1) + entropies, dtype=torch.float64, device=device)
        mass_parts, mass, entropy_parts, entropy = torch.split(
            numbers,
            [size * row_blocks, size, *([size * column_blocks, size] if self.needs_entropy else [0, 0])],
        )
        flags = torch.empty(count * row_blocks * column_blocks, dtype=torch.int32, device=device)
        status = torch.empty((count, 2), dtype=torch.bool, device=device)
        if count:
            _read[(column_blocks, row_blocks, count)](
                self.maps,
                self.lengths,
                entropy_parts,
                mass_parts,
                flags,
                *self.maps.stride(),
                n,
                rows_per_program,
                ENTROPY=self.needs_entropy,
                CAUSAL=self.support == "causal",
                NARROW=self.maps.dtype != torch.float64,
                ROWS=ROWS,
                COLUMNS=COLUMNS,
                num_warps=WARPS,
            )
            _add_parts[(triton.cdiv(n, COLUMNS), count)](
                entropy_parts,
                mass_parts,
                flags,
                self.lengths,
                entropy,
                mass,
                status,
                n,
                row_blocks,
                column_blocks,
                ENTROPY=self.needs_entropy,
                FLAGS=triton.next_power_of_2(row_blocks * column_blocks),
                BLOCK=COLUMNS,
            )
        return mass.reshape(count, n), status, entropy.reshape(-1, n)

    @functools.cached_property
    def finite(self) -> Tensor:
        return self._sums[1][:, 0]

    @functools.cached_property
    def causal(self) -> Tensor:
        return self._sums[1][:, 1]

    @functools.cached_property
    def key_mass(self) -> Tensor:
        return self._sums[0]

    @functools.cached_property
    def row_entropy(self) -> Tensor:
        return self._sums[2]
