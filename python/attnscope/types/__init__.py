# SPDX-License-Identifier: MIT
"""Classes of what functions return, for annotations: `attnscope.types.SinkShare`.

Example:
    >>> import attnscope.types
    >>> attnscope.types.SinkShare.__name__, "SinkShare" in dir(attnscope.types)
    ('SinkShare', True)
"""

from __future__ import annotations

from typing import Any

import attnscope

__all__ = sorted(attnscope._RESULT_CLASSES)


def __getattr__(name: str) -> Any:
    if name not in attnscope._RESULT_CLASSES:
        raise AttributeError(f"module 'attnscope.types' has no attribute {name!r}")
    return getattr(attnscope, name)


def __dir__() -> list[str]:
    return [*__all__]
