# SPDX-License-Identifier: MIT
"""What every metric is, in its own docstring's words; `attnscope metrics` prints it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from attnscope._nearest import nearest
from attnscope.engine.schema import MissingError


def first_lines() -> dict[str, str]:
    """Every public metric with the sentence that defines it."""
    return {name: (inspect.getdoc(metric) or "").partition("\n")[0] for name, metric in _public().items()}


def describe(name: str) -> str:
    """The whole definition of a metric: call, formula, arguments, range, closed-form example, references."""
    public = _public()
    if name not in public:
        raise MissingError(f"there is no metric {name!r}{nearest(name, public)}")
    metric = public[name]
    parameters = []
    for parameter in inspect.signature(metric).parameters.values():
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        parameters.append(parameter.name + default)
    return f"attnscope.{name}({', '.join(parameters)})\n\n{inspect.getdoc(metric) or ''}"


def _public() -> dict[str, Callable[..., Any]]:
    import attnscope
    from attnscope.metrics.discovery import found

    names = [name for name in found().names() if not name.startswith("_") and hasattr(attnscope, name)]
    return {name: getattr(attnscope, name) for name in names}
