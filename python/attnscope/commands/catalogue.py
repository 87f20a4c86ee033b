# SPDX-License-Identifier: MIT
"""What every metric is, in its own docstring's words; `attnscope metrics` prints it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from attnscope._nearest import nearest
from attnscope.engine.schema import MissingError

if TYPE_CHECKING:
    from attnscope.metrics.quantity import Quantity


def first_lines() -> dict[str, str]:
    """Every public metric with the sentence that defines it."""
    return {name: (inspect.getdoc(metric) or "").partition("\n")[0] for name, metric in _public().items()}


def describe(name: str) -> str:
    """The whole definition of a metric: call, formula, arguments, range, closed-form example, columns.

    Args:
        name: of the metric, or of a column; of one that no metric gives alone, its sentence.
    """
    from attnscope.metrics.discovery import columns_of, found, metric_of

    public = _public()
    columns = {one.name: one for one in found().quantities if one.protocol == "exact"}
    if name not in public and name not in columns:
        raise MissingError(f"there is no metric or column {name!r}{nearest(name, (*public, *columns))}")
    called = name if name in public else metric_of(columns[name])
    if called not in public:
        own = [one for one in found().quantities if (one.protocol, one.name) == ("exact", name)]
        return "\n".join(["Column:", *map(_line, own)])
    metric = public[called]
    signature = inspect.signature(metric)
    bare = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
    call = signature.replace(parameters=bare, return_annotation=signature.empty)
    about = f"attnscope.{called}{call}\n\n{inspect.getdoc(metric) or ''}"
    lines = [_line(one) for one in columns_of(called)]
    return "\n".join([about, "", "Columns:", *lines] if lines else [about])


def _line(one: Quantity) -> str:
    return f"    {one.name}: {one.label}. {one.meaning}"


def _public() -> dict[str, Callable[..., Any]]:
    import attnscope
    from attnscope.metrics.discovery import found

    names = [name for name in found().names() if not name.startswith("_") and hasattr(attnscope, name)]
    return {name: getattr(attnscope, name) for name in names}
