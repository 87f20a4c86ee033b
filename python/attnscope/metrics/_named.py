# SPDX-License-Identifier: MIT
"""Printing of named results: a single number as it is, of several their dtype and shape."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

Named = TypeVar("Named", bound=tuple[Any, ...])


def shown_by_shape(result: type[Named]) -> type[Named]:
    """Class decorator for a NamedTuple of tensors: its repr names every field's dtype and shape.

    As `Pair(value=float32[2, 3], count=int64[2])`, or of single numbers `Pair(value=0.3333, count=2)`.
    """

    def shapes(self: Named) -> str:
        fields = zip(self._fields, self, strict=True)  # type: ignore[attr-defined]
        return f"{type(self).__name__}({', '.join(f'{name}={_shape(value)}' for name, value in fields)})"

    result.__repr__ = shapes  # type: ignore[assignment,method-assign]
    return result


def _shape(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    if not value.ndim and value.device.type != "meta":
        return f"{value.item():.4g}" if value.is_floating_point() else str(value.item())
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
