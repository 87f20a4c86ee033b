# SPDX-License-Identifier: MIT
"""Every metric and quantity there is: what the modules of the packages declare, and those of others.

A module that gives quantities declares `QUANTITIES`. One whose functions are made from the result of another
declares `DERIVED`, metric -> (that metric, function of its result and the metric's own options); one whose
result is only read by others, `SOURCES`. A protocol that takes whole maps in double precision says so by
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

import torch

from attnscope.metrics.quantity import Known, Quantity

PACKAGES = ("attnscope.metrics", "attnscope.protocols")
#: Entry point group of packages whose modules declare quantities too.
GROUP = "attnscope.metrics"

# A metric's source, and what is made of that source's result.
Derivation = tuple[str, Callable[..., Any]]


@dataclass(frozen=True)
class Found:
    """What is declared, in the order of the modules; `forms` are those in which protocols take maps."""

    quantities: tuple[Quantity, ...]
    functions: dict[tuple[str, str], Callable[..., Any]]  # by protocol and metric
    derived: dict[tuple[str, str], Derivation]  # likewise
    forms: dict[str, str]

    def names(self) -> list[str]:
        """Public metrics of the exact protocol, in alphabetical order."""
        exact = (name for whose, name in {*self.functions, *self.derived} if whose == "exact")
        return sorted(name for name in exact if not name.startswith("_"))

    def source(self, protocol: str, metric: str) -> str:
        """The metric whose function is called: itself, or the one that it is derived from."""
        derived = self.derived.get((protocol, metric))
        return derived[0] if derived else metric

    def function(self, protocol: str, metric: str) -> Callable[..., Any]:
        """The function that is called for a metric."""
        return self.functions[protocol, self.source(protocol, metric)]


@functools.cache
def found() -> Found:
    """Everything that is declared in the packages and in installed packages of others."""
    roots = [*PACKAGES, *(point.value for point in metadata.entry_points(group=GROUP))]
    return declared_in([module for root in dict.fromkeys(roots) for module in modules_of(root)])


def metric_of(one: Quantity) -> str:
    """The public metric that gives a quantity; of one that no public metric gives, an inner name (`_...`)."""
    return found().source(one.protocol, one.metric) if one.metric.startswith("_") else one.metric


def columns_of(metric: str) -> list[Quantity]:
    """The columns that a public metric gives in tables; one of maps and of layers stands there for each."""
    exact = (one for one in found().quantities if one.protocol == "exact")
    return [one for one in exact if metric in (metric_of(one), *one.also)]


def modules_of(root: str) -> Iterator[ModuleType]:
    """A module, and those of its folders where it is a package."""
    module = importlib.import_module(root)
    yield module
    for entry in sorted(pkgutil.iter_modules(getattr(module, "__path__", ())), key=lambda one: one.name):
        yield from modules_of(f"{root}.{entry.name}")


def declared_in(modules: list[ModuleType]) -> Found:
    """What modules declare; ValueError where two quantities have one identity."""
    quantities: dict[tuple[str, str, str], Quantity] = {}
    functions: dict[tuple[str, str], Callable[..., Any]] = {}
    derived: dict[tuple[str, str], Derivation] = {}
    forms: dict[str, str] = {}
    for module in modules:
        protocol = _protocol_of(module)
        if hasattr(module, "INPUT_FORM"):
            forms[protocol] = module.INPUT_FORM
        for one in getattr(module, "QUANTITIES", ()):
            if one.identity in quantities:
                raise ValueError(f"two quantities are called {' '.join(one.identity)}: {module.__name__}")
            quantities[one.identity] = one
            if hasattr(module, one.metric):
                functions[one.protocol, one.metric] = getattr(module, one.metric)
        functions |= {(protocol, one.__name__): one for one in getattr(module, "SOURCES", ())}
        derived |= {(protocol, name): made for name, made in getattr(module, "DERIVED", {}).items()}
    return Found(tuple(quantities.values()), functions, derived, forms)


def _protocol_of(module: ModuleType) -> str:
    """That of its quantities; a folder of `attnscope.protocols` is a protocol by itself."""
    _, inside, rest = module.__name__.partition("attnscope.protocols.")
    declared = [one.protocol for one in getattr(module, "QUANTITIES", ())]
    return rest.partition(".")[0] if inside else next(iter(declared), "exact")


def quantity(name: str, protocol: str = "exact", scope: str = "map") -> Quantity:
    """Return the quantity declared for a column; an undeclared column gets one with only a name.

    Another scope's is better than none, and so is another protocol's.
    """
    if declared := [one for one in found().quantities if one.name == name]:
        return min(declared, key=lambda one: (one.protocol != protocol, one.scope != scope))
    # a number that tables hold and no metric gives
    nothing = Known(torch.nan, torch.full((1, 1), torch.nan, device="cpu"))
    return Quantity(name, "", name.replace("_", " "), "", nothing)
