# SPDX-License-Identifier: MIT
"""The registry of metrics and quantities that the package and its plug-ins declare.

A module that gives quantities declares `QUANTITIES`. One whose functions are made from the result of another
declares `DERIVED`, metric -> (that metric, function of its result and the metric's own options); one whose
result is only read by others, `SOURCES`; one that answers several words of an option in one call, along a
last axis, `JOINT`, metric -> that option. A protocol that takes whole maps in double precision says so by
`INPUT_FORM = "whole"`.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType
from typing import Any

import numpy as np
import torch

from attnscope.metrics.quantity import ClosedForm, Quantity

PACKAGES = ("attnscope.metrics", "attnscope.protocols")
#: Entry point group of packages whose modules declare quantities too.
GROUP = "attnscope.metrics"

# A metric's source, and the function that derives the metric from that source's result.
Derivation = tuple[str, Callable[..., Any]]


@dataclass(frozen=True)
class Registry:
    """Everything that modules declare, in the order of the modules; `protocol_inputs` says in which form a
    protocol takes maps.
    """

    quantities: tuple[Quantity, ...]
    functions: dict[tuple[str, str], Callable[..., Any]]  # by protocol and metric
    derived: dict[tuple[str, str], Derivation]  # likewise
    protocol_inputs: dict[str, str]
    joint: dict[tuple[str, str], str]  # by protocol and metric

    def names(self) -> list[str]:
        """Return the public metrics of the exact protocol, in alphabetical order."""
        exact = (metric for protocol, metric in {*self.functions, *self.derived} if protocol == "exact")
        return sorted(name for name in exact if not name.startswith("_"))

    def source(self, protocol: str, metric: str) -> str:
        """Return the metric whose function is called: itself, or the one that it is derived from."""
        derived = self.derived.get((protocol, metric))
        return derived[0] if derived else metric

    def function(self, protocol: str, metric: str) -> Callable[..., Any]:
        """Return the function that is called for a metric."""
        return self.functions[protocol, self.source(protocol, metric)]


@functools.cache
def registry() -> Registry:
    """Collect the declarations of this package's modules and of installed plug-ins."""
    roots = [*PACKAGES, *(point.value for point in metadata.entry_points(group=GROUP))]
    return declared_in([module for root in dict.fromkeys(roots) for module in modules_of(root)])


def metric_of(quantity: Quantity) -> str:
    """Return the public metric that gives a quantity; an inner name (`_...`) if no public metric gives it."""
    return (
        registry().source(quantity.protocol, quantity.metric)
        if quantity.metric.startswith("_")
        else quantity.metric
    )


def columns_of(metric: str) -> list[Quantity]:
    """Return the columns that a public metric gives in tables, those of maps and of layers alike."""
    exact = (quantity for quantity in registry().quantities if quantity.protocol == "exact")
    return [quantity for quantity in exact if metric in (metric_of(quantity), *quantity.also)]


def modules_of(root: str) -> Iterator[ModuleType]:
    """Yield a module, and the modules of its folders if it is a package."""
    module = importlib.import_module(root)
    yield module
    for entry in sorted(pkgutil.iter_modules(getattr(module, "__path__", ())), key=lambda entry: entry.name):
        yield from modules_of(f"{root}.{entry.name}")


def declared_in(modules: list[ModuleType]) -> Registry:
    """Collect the declarations of modules; ValueError if two quantities have one identity."""
    quantities: dict[tuple[str, str, str], Quantity] = {}
    functions: dict[tuple[str, str], Callable[..., Any]] = {}
    derived: dict[tuple[str, str], Derivation] = {}
    protocol_inputs: dict[str, str] = {}
    joint: dict[tuple[str, str], str] = {}
    for module in modules:
        protocol = _protocol_of(module)
        if hasattr(module, "INPUT_FORM"):
            protocol_inputs[protocol] = module.INPUT_FORM
        for quantity in getattr(module, "QUANTITIES", ()):
            if quantity.identity in quantities:
                raise ValueError(
                    f"two quantities are called {' '.join(quantity.identity)}: {module.__name__}"
                )
            quantities[quantity.identity] = quantity
            if hasattr(module, quantity.metric):
                functions[quantity.protocol, quantity.metric] = getattr(module, quantity.metric)
        functions |= {(protocol, function.__name__): function for function in getattr(module, "SOURCES", ())}
        joint |= {(protocol, metric): option for metric, option in getattr(module, "JOINT", {}).items()}
        derived |= {
            (protocol, metric): derivation for metric, derivation in getattr(module, "DERIVED", {}).items()
        }
    return Registry(tuple(quantities.values()), functions, derived, protocol_inputs, joint)


def _protocol_of(module: ModuleType) -> str:
    """Return the protocol of a module's quantities; a folder of `attnscope.protocols` is a protocol."""
    _, inside, rest = module.__name__.partition("attnscope.protocols.")
    declared = [quantity.protocol for quantity in getattr(module, "QUANTITIES", ())]
    return rest.partition(".")[0] if inside else next(iter(declared), "exact")


def interval_of_mean(name: str, values: Any, low: Any, high: Any) -> tuple[Any, Any]:
    """Return the ends of an interval of a mean of a column, cut where the values of its quantity end.

    A part beyond them covers nothing. Numbers of another protocol may lie beyond the bounds of the exact
    ones, and then the ends stay as they are.

    Args:
        name: of the column.
        values: whose mean it is.
        low: ends of the interval, a number or many.
        high: likewise.

    >>> low, high = interval_of_mean("sink_share", [0.0, 0.1], -0.02, 0.12)
    >>> float(low), float(high)
    (0.0, 0.12)
    """
    declared, numbers = quantity(name), np.asarray(values, dtype=float)
    # a missing number is beyond no bound
    if isinstance(declared.low, (int, float)) and not (numbers < declared.low).any():
        low = np.maximum(low, declared.low)
    if isinstance(declared.high, (int, float)) and not (numbers > declared.high).any():
        high = np.minimum(high, declared.high)
    return low, high


def quantity(name: str, protocol: str = "exact", scope: str = "map") -> Quantity:
    """Return the quantity declared for a column; an undeclared column gets one with only a name.

    A quantity of another scope, or of another protocol, is preferred to none.
    """
    if declared := [candidate for candidate in registry().quantities if candidate.name == name]:
        return min(declared, key=lambda candidate: (candidate.protocol != protocol, candidate.scope != scope))
    # a number that tables hold and no metric gives
    undefined = ClosedForm(torch.nan, torch.full((1, 1), torch.nan, device="cpu"))
    return Quantity(name, "", name.replace("_", " "), "", undefined)
