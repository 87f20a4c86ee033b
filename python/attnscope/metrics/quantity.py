# SPDX-License-Identifier: MIT
"""A number per map and everything that is known of it, declared once beside the metric that gives it.

A metric returns a tensor, a named result or bars. Tables, figures and reports want columns with a name, a
label, a range and a kind. A `Quantity` is one: which public function is called with which options, what of
its result is read, and a closed form that it must reproduce. `attnscope.metrics.discovery` finds those that
modules declare.

    >>> from attnscope.metrics.discovery import quantity
    >>> quantity("sink_boost").label, quantity("bar_count_1").kind
    ('sink share / uniform', 'count')
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

Kind = Literal["value", "ratio", "count", "position", "flag", "constant"]
Scope = Literal["map", "head", "layer", "text", "cloud", "weights"]
Bound = float | Callable[[int], float] | None


@dataclass(frozen=True)
class Site:
    """An option that stands for what was captured at a site, or for zeros of that shape, its `origin`."""

    name: str
    origin: bool = False


@dataclass(frozen=True)
class Shared:
    """An option that is itself the result of a metric of the maps at a site, computed once for all."""

    metric: str
    options: tuple[tuple[str, Any], ...] = ()
    of: str = "attention"


@dataclass(frozen=True, eq=False)
class Known:
    """Maps for which a closed form says what a quantity is.

    Attributes:
        expected: the value; one per entry of an axis that `Quantity.at` takes apart.
        attention: one map [n, n], or the heads of a layer [h, n, n].
        sites: further captured tensors, for one sentence.
        entry: which map (of several heads) and which entry along the axes that are left.
        options: of the call, where the quantity has none of its own.
    """

    expected: float | Sequence[float]
    attention: Tensor
    sites: Mapping[str, Tensor] = field(default_factory=dict)
    entry: tuple[int, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Quantity:
    """One column of numbers.

    Attributes:
        name: of the column, in tables, figures, reports and pages alike.
        metric: the public function.
        label: on an axis.
        meaning: one sentence.
        known: maps on which a closed form gives the value.
        symbol: in formulas, "" without one.
        kind: value; ratio (its denominator can vanish); count and position (whole numbers, of which a mean is
            no position); flag (0 or 1); constant (of the design or the null, which no model changes).
        low: the smallest value, a number or a function of the number of tokens.
        high: the largest.
        options: of the call; `Site` and `Shared` stand for what is at hand when it is made.
        read: the metric's result -> one number per map. NaN where there is none; counts and positions say
            so by a negative number, which `measure_quantities` turns into a mask.
        scope: what there is one number of.
        needs: captured sites; the first is what the function is called with.
        protocol: whose computation it is.
        axes: names of the axes that `read` leaves behind those of the scope.
        axis_when: axis -> the option and its value under which there is that axis.
        also: public functions that give this number alone.
    """

    name: str
    metric: str
    label: str
    meaning: str
    known: Known
    symbol: str = ""
    kind: Kind = "value"
    low: Bound = None
    high: Bound = None
    options: Mapping[str, Any] = field(default_factory=dict)
    read: Callable[[Any], Tensor] = lambda result: result
    scope: Scope = "map"
    needs: tuple[str, ...] = ("attention",)
    protocol: str = "exact"
    axes: tuple[str, ...] = ()
    axis_when: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    also: tuple[str, ...] = ()

    @classmethod
    def of(cls, metric: str, *about: Any, **more: Any) -> Quantity:
        """A quantity that is called like its metric."""
        return cls(metric, metric, *about, **more)

    @property
    def identity(self) -> tuple[str, str, str]:
        """What no two quantities share: protocol, scope and name."""
        return self.protocol, self.scope, self.name

    @property
    def axis(self) -> str:
        """Label and symbol, for an axis of a figure."""
        return f"{self.label} {self.symbol}" if self.symbol else self.label

    def bounds(self, n: int) -> tuple[float | None, float | None]:
        """The smallest and the largest value for maps of n tokens, None where there is no bound."""
        low, high = (bound(n) if callable(bound) else bound for bound in (self.low, self.high))
        return low, high

    def at(self, **where: int) -> Quantity:
        """The entries at one place along one of the axes, a quantity of its own.

        `{axis}` in the label, symbol and meaning becomes the place.

        >>> from attnscope.metrics.graphs.fiedler import QUANTITIES
        >>> QUANTITIES[-1].name, QUANTITIES[-1].at(token=0).name
        ('fiedler_vector', 'fiedler_vector_0')
        """
        ((axis, place),) = where.items()
        if axis not in self.axes:
            raise ValueError(f"{self.name}: no axis {axis!r} in {', '.join(self.axes) or 'none'}")
        at, read = self.axes.index(axis) - len(self.axes), self.read
        texts = {
            name: getattr(self, name).replace(f"{{{axis}}}", str(place))
            for name in ("label", "symbol", "meaning")
        }
        known = self.known
        if isinstance(known.expected, Sequence):
            known = replace(known, expected=known.expected[place])
        return replace(
            self,
            name=f"{self.name}_{place}",
            read=lambda result: read(result).select(at, place),
            axes=tuple(other for other in self.axes if other != axis),
            known=known,
            **texts,
        )

    def mean_over(self, axis: str) -> Quantity:
        """The mean over the entries along an axis that have a value; itself where it lacks that axis."""
        if axis not in self.axes:
            return self
        place, read = self.axes.index(axis) - len(self.axes), self.read
        return self._without({axis}, read=lambda result: read(result).nanmean(place))

    def with_options(self, **run: Any) -> Quantity:
        """The same quantity under the settings of a run."""
        gone = {axis for axis, (option, value) in self.axis_when.items() if run.get(option, value) != value}
        return self._without(gone, options={**self.options, **run})

    def _without(self, gone: set[str], **changed: Any) -> Quantity:
        """Without some axes, and without their entries of the closed form."""
        places = self.known.entry
        front = len(places) - len(self.axes)  # the number of a head, where there is one
        entry = tuple(
            place for at, place in enumerate(places) if at < front or self.axes[at - front] not in gone
        )
        axes = tuple(axis for axis in self.axes if axis not in gone)
        return replace(self, axes=axes, known=replace(self.known, entry=entry), **changed)


#: Reads a field of a named result.
field_of = operator.attrgetter


def how_many(flags: Tensor) -> Tensor:
    """Number of flags along the last axis."""
    return flags.sum(-1)
