# SPDX-License-Identifier: MIT
"""Bars of persistent homology for a whole batch of heads, and what is computed from them.

The number of bars differs by map, so they are stored one after the other, with an offset for each map, as
ragged arrays are. The core reads Betti curves, total persistence and entropy off them.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from attnscope import _checks, _core
from attnscope.gradients import dispatch

DIMENSIONS = 2

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False, repr=False)
class Barcodes:
    """Bars of every map of a batch, in flat tensors: map k holds bars offsets[k] to offsets[k + 1].

    Bars are sorted by dimension, birth, death and birth edge. A map with NaN or infinite entries holds no
    bar; every other one has one infinite H0 bar, and more only where distances are infinite.

    Attributes:
        birth: [m] float64.
        death: [m] float64, infinite for the last component, and for bars that only infinite distances end.
        dimension: [m] int8, 0 or 1.
        birth_edge: [m, 2] int32 (row, column), row > column; −1 for H0, whose vertices exist from 0 on.
        death_edge: [m, 2] int32; −1 for infinite bars.
        offsets: [count + 1] int64.
        shape: the leading axes of the attention that was given.
    """

    birth: torch.Tensor
    death: torch.Tensor
    dimension: torch.Tensor
    birth_edge: torch.Tensor
    death_edge: torch.Tensor
    offsets: torch.Tensor
    shape: tuple[int, ...]

    def __len__(self) -> int:
        """Length of the first leading axis."""
        if not self.shape:
            raise TypeError("len() of the barcodes of a single map; barcodes[()] gives its bars")
        return self.shape[0]

    def __iter__(self) -> Iterator[list[np.ndarray[Any, np.dtype[np.float64]]]]:
        """Yield the bars of every map of a batch with one leading axis, as ``barcodes[index]`` gives them."""
        if len(self.shape) != 1:
            raise TypeError(
                f"barcodes of shape {self.shape} are not iterated over: barcodes[index] needs "
                f"{len(self.shape)} integers, barcodes.padded(dimension) holds the bars of all maps"
            )
        return (self[index] for index in range(self.shape[0]))

    def __getitem__(self, index: int | tuple[int, ...]) -> list[np.ndarray[Any, np.dtype[np.float64]]]:
        """Bars of one map as a list of [k, 2] arrays by dimension, the layout of ripser's ``dgms``.

        Args:
            index: one integer per leading axis, negative ones from the end; ``()`` for a single map. Others
                are an IndexError.
        """
        return self._by_dimension(index, self.birth, self.death)

    def edges(self, index: int | tuple[int, ...]) -> list[np.ndarray[Any, np.dtype[np.int32]]]:
        """Edges of one map's bars by dimension, [k, 2, 2]: birth edge and death edge of each bar.

        Args:
            index: as in ``barcodes[index]``, whose rows these follow.
        """
        return self._by_dimension(index, self.birth_edge, self.death_edge)

    def padded(self, dimension: int, fill: float = math.nan) -> torch.Tensor:
        """Bars of one dimension as one tensor, filled up behind each map's last bar.

        Args:
            dimension: 0 or 1.
            fill: the value of rows without a bar.

        Returns:
            [..., K, 2] float64, K the largest number of such bars in a map.

        Raises:
            ValueError: a dimension other than 0 and 1.
        """
        if dimension not in range(DIMENSIONS):
            raise ValueError(f"Barcodes.padded: dimension must be 0 or 1, got {dimension!r}")
        chosen = self.dimension.numpy() == dimension
        counts = np.bincount(self._owner()[chosen], minlength=self._count())
        largest = int(counts.max()) if counts.size else 0
        result = np.full((self._count(), largest, 2), fill)
        bars = np.stack([self.birth.detach().numpy()[chosen], self.death.detach().numpy()[chosen]], -1)
        result[np.arange(largest) < counts[:, None]] = bars
        return torch.from_numpy(result).reshape(*self.shape, largest, 2)

    def __repr__(self) -> str:
        """Shapes and how many bars there are of each dimension."""
        counts = [int((self.dimension.numpy() == k).sum()) for k in range(DIMENSIONS)]
        bars = ", ".join(f"{count} H{k}" for k, count in enumerate(counts))
        return f"Barcodes(shape={self.shape}, bars={self.birth.numel()}: {bars})"

    def _count(self) -> int:
        return int(self.offsets.numel()) - 1

    def _owner(self) -> Array:
        """Return the map that each bar belongs to, [m]."""
        return np.repeat(np.arange(self._count()), np.diff(self.offsets.numpy()))

    def _by_dimension(self, index: int | tuple[int, ...], *pair: torch.Tensor) -> list[np.ndarray[Any, Any]]:
        entries = index if isinstance(index, tuple) else (index,)
        if len(entries) != len(self.shape):
            raise IndexError(f"barcodes of shape {self.shape} need {len(self.shape)} integers, got {index!r}")
        flat = 0
        for entry, size in zip(entries, self.shape, strict=True):
            place = operator.index(entry)
            if not -size <= place < size:
                raise IndexError(f"index {index!r} is out of range for barcodes of shape {self.shape}")
            flat = flat * size + place % size
        bars_of_map = slice(int(self.offsets[flat]), int(self.offsets[flat + 1]))
        pairs = np.stack([values.detach().numpy()[bars_of_map] for values in pair], axis=1)
        dimension = self.dimension[bars_of_map].numpy()
        return [pairs[dimension == k] for k in range(DIMENSIONS)]


def betti_curve(barcodes: Barcodes, scales: torch.Tensor | Sequence[float] | float) -> torch.Tensor:
    """Count the bars alive at each scale: β(s) = #{bars: birth <= s < death}.

    Args:
        barcodes: the result of `persistence`; anything else is a TypeError.
        scales: distances, in any order; the scale of an attention threshold t is 1 − t.

    Returns:
        [..., S, 2] int64, β0 and β1; −1 for maps that are not finite.

    Raises:
        ValueError: no scale, or one that is NaN.
        TypeError: scales that are no numbers.

    Example:
        A ring of four tokens: a loop from 0.25 on, filled at 1.

        >>> import torch, attnscope as asc
        >>> ring = torch.zeros(4, 4); ring[range(4), [1, 2, 3, 0]] = 0.75
        >>> asc.betti_curve(asc.persistence(ring), [0.0, 0.25, 1.0]).tolist()
        [[4, 0], [1, 1], [1, 0]]

    References:
        Edelsbrunner, Harer, Computational Topology, 2010, chapter VII.
    """
    _check("betti_curve", barcodes)
    scale_values = _checks.as_tensor("betti_curve", "scales", scales, torch.float64).detach().cpu()
    values = np.atleast_1d(scale_values.numpy())
    if values.ndim != 1 or values.size == 0 or np.isnan(values).any():
        raise ValueError(f"betti_curve: scales must be one or more numbers, got {scales!r}")
    with _naming("betti_curve"):
        return count_alive(barcodes, *_ends(barcodes), values)


def count_alive(barcodes: Barcodes, birth: Any, death: Any, scales: Array) -> torch.Tensor:
    """Count the bars of each dimension with birth <= s < death at each scale, [..., S, 2].

    Maps that are not finite hold no bars and get −1.
    """
    levels = torch.from_numpy(np.ascontiguousarray(scales))
    count = levels.numel()
    counts = _core.count_alive(birth, death, barcodes.dimension, barcodes.offsets, levels, count)
    return counts.reshape(*barcodes.shape, count, DIMENSIONS)


def bar_columns(barcodes: Barcodes, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row per bar of several maps, under key columns with an entry per map; single values stay."""
    bars_per_map = np.diff(barcodes.offsets.numpy())
    return {
        **{
            key: np.repeat(values, bars_per_map) if np.ndim(values) else values
            for key, values in keys.items()
        },
        "dimension": barcodes.dimension.numpy().astype(np.int64),
        "birth": barcodes.birth.detach().numpy(),
        "death": barcodes.death.detach().numpy(),
    }


def bar_count(barcodes: Barcodes) -> torch.Tensor:
    """Count the bars of each dimension, the infinite one included.

    Args:
        barcodes: the result of `persistence`; anything else is a TypeError.

    Returns:
        [..., 2] int64; −1 for maps that are not finite.

    Example:
        Tokens at pairwise distance 1/2: one bar per token, no loop.

        >>> import torch, attnscope as asc
        >>> asc.bar_count(asc.persistence(torch.full((5, 5), 0.5))).tolist()
        [5, 0]

    References:
        Ruscio et al., What are you sinking?, 2025, who call the count of bars "Betti number".
    """
    _check("bar_count", barcodes)
    return _sums("bar_count", barcodes).bars


def total_persistence(barcodes: Barcodes) -> torch.Tensor:
    """Σ (death − birth) over the finite bars of each dimension.

    Args:
        barcodes: the result of `persistence`; anything else is a TypeError.

    Returns:
        [..., 2] float64, 0 without a finite bar, NaN for maps that are not finite.

    Example:
        Five tokens at pairwise distance 1/2 merge four times.

        >>> import torch, attnscope as asc
        >>> asc.total_persistence(asc.persistence(torch.full((5, 5), 0.5))).tolist()
        [2.0, 0.0]

    References:
        Cohen-Steiner et al., Lipschitz functions have Lp-stable persistence, 2010.
    """
    _check("total_persistence", barcodes)
    if barcodes.death.requires_grad:
        return _differentiable("total_persistence", barcodes)
    return _sums("total_persistence", barcodes).total


def max_persistence(barcodes: Barcodes) -> torch.Tensor:
    """Length of the longest finite bar of each dimension.

    Args:
        barcodes: the result of `persistence`; anything else is a TypeError.

    Returns:
        [..., 2] float64, 0 without a finite bar, NaN for maps that are not finite.

    Example:
        >>> import torch, attnscope as asc
        >>> ring = torch.zeros(4, 4); ring[range(4), [1, 2, 3, 0]] = 0.75
        >>> asc.max_persistence(asc.persistence(ring)).tolist()
        [0.25, 0.75]

    References:
        Edelsbrunner, Harer, Computational Topology, 2010, chapter VII.
    """
    _check("max_persistence", barcodes)
    if barcodes.death.requires_grad:
        return _differentiable("max_persistence", barcodes)
    return _sums("max_persistence", barcodes).longest


def mean_persistence(barcodes: Barcodes) -> torch.Tensor:
    """Mean length of the finite bars of each dimension [..., 2], NaN without one."""
    sums = _sums("mean_persistence", barcodes)
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.asarray(sums.total.numpy() / sums.finite.numpy()))


def persistent_entropy(barcodes: Barcodes) -> torch.Tensor:
    """−Σ p log p over the finite bars of each dimension, p = length/Σ length, in nats.

    Args:
        barcodes: the result of `persistence`; anything else is a TypeError.

    Returns:
        [..., 2] float64, between 0 and log of the number of finite bars; 0 without one, NaN for maps
        that are not finite.

    Example:
        Four equal bars: log 4.

        >>> import torch, attnscope as asc
        >>> round(asc.persistent_entropy(asc.persistence(torch.full((5, 5), 0.5)))[0].item(), 6)
        1.386294

    References:
        Chintakunta et al., An entropy-based persistence barcode, 2015.
    """
    _check("persistent_entropy", barcodes)
    if barcodes.death.requires_grad:
        return _differentiable("persistent_entropy", barcodes)
    with _naming("persistent_entropy"):
        entropies = _core.bar_entropies(*_ends(barcodes), barcodes.dimension, barcodes.offsets)
    return entropies.reshape(*barcodes.shape, DIMENSIONS)


def _differentiable(function: str, barcodes: Barcodes) -> torch.Tensor:
    """Return a sum over bars in torch operations, with the gradient of births and deaths."""
    result: torch.Tensor = dispatch.sum_over_bars(function)(barcodes, DIMENSIONS)
    return result


def _check(function: str, barcodes: Any) -> None:
    if not isinstance(barcodes, Barcodes):
        raise TypeError(
            f"{function}: barcodes must be what persistence returns, got {type(barcodes).__name__}; "
            f"of attention: {function}(persistence(attention))"
        )
    if math.prod(barcodes.shape) != barcodes.offsets.numel() - 1:
        raise ValueError(
            f"{function}: barcodes of shape {tuple(barcodes.shape)} need {math.prod(barcodes.shape) + 1} "
            f"offsets, got {barcodes.offsets.numel()}"
        )


@contextmanager
def _naming(function: str) -> Iterator[None]:
    """Make the errors of the core about fields that somebody has put together name the function."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{function}: {error}") from None


def _ends(barcodes: Barcodes) -> tuple[torch.Tensor, torch.Tensor]:
    """Births and deaths as the core takes them."""
    return barcodes.birth.detach().contiguous(), barcodes.death.detach().contiguous()


class _BarSums(NamedTuple):
    """Sums over the bars of each dimension [..., 2]; −1 and NaN for maps that are not finite."""

    bars: torch.Tensor
    finite: torch.Tensor
    total: torch.Tensor
    longest: torch.Tensor


def _sums(function: str, barcodes: Barcodes) -> _BarSums:
    with _naming(function):
        sums = _core.bar_sums(*_ends(barcodes), barcodes.dimension, barcodes.offsets)
    return _BarSums(*(values.reshape(*barcodes.shape, DIMENSIONS) for values in sums))
