# SPDX-License-Identifier: MIT
"""Numbers, flags and words among a function's arguments, checked under the names that its caller knows."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any


def real(function: str, name: str, value: Any) -> float:
    """Return `value` as a float. A truth value is no number."""
    if not isinstance(value, (str, bytes)) and not is_truth_value(value):
        try:
            # a parameter is a number like any other; torch warns of one that requires a gradient
            return float(value.detach() if getattr(value, "requires_grad", False) else value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            pass
    raise TypeError(f"{function}: {name} must be a number, got {value!r}")


def finite(function: str, name: str, value: Any) -> float:
    """Return `value` as a float that is neither infinite nor NaN."""
    number = real(function, name, value)
    if not math.isfinite(number):
        raise ValueError(f"{function}: {name} must be finite, got {value!r}")
    return number


def positive(function: str, name: str, value: Any) -> float:
    """Return `value` as a finite float above 0."""
    number = finite(function, name, value)
    if number <= 0:
        raise ValueError(f"{function}: {name} must be above 0, got {value!r}")
    return number


def whole_number(function: str, name: str, value: Any) -> int:
    """Return `value` as an int. 2.0 is a whole number; 2.5, True and numbers beyond 64 bits are refused."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        if is_truth_value(value):
            raise TypeError
        number = operator.index(value)
    except (TypeError, RuntimeError):
        raise TypeError(f"{function}: {name} must be a whole number, got {value!r}") from None
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{function}: {name} must fit in 64 bits, got {number}")
    return number


def at_least(function: str, name: str, value: Any, least: int, words: str = "at least") -> int:
    """Return `value` as an int that is not below another."""
    number = whole_number(function, name, value)
    if number < least:
        raise ValueError(f"{function}: {name} must be {words} {least}, got {value!r}")
    return number


def between(function: str, name: str, value: Any, low: float, high: float) -> float:
    """Return `value` as a number from `low` to `high`, both included."""
    number = real(function, name, value)
    if not low <= number <= high:
        raise ValueError(f"{function}: {name} must lie between {low} and {high}, got {value!r}")
    return number


def whole_steps(function: str, steps: Iterable[Any]) -> list[int]:
    """Return training steps as integers, from numbers or from their digits."""
    integers = []
    for step in steps:
        try:
            number = int(step)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{function}: steps must be whole numbers: {error}") from None
        if not isinstance(step, str) and number != step:
            raise ValueError(f"{function}: steps must be whole numbers, got {step!r}")
        integers.append(number)
    return integers


def is_truth_value(value: Any) -> bool:
    """Return True for True and False, and for the same of NumPy or a tensor, as `mask.all()` gives them."""
    if isinstance(value, bool):
        return True
    # asked by name, because runs are read without torch
    return str(getattr(value, "dtype", "")) in ("bool", "torch.bool") and getattr(value, "ndim", None) == 0


def flag(function: str, name: str, value: Any) -> bool:
    """Return `value` as a bool. Words, numbers and None are refused: "false" and 2 would count as true."""
    try:
        if is_truth_value(value):
            return bool(value)
    except RuntimeError:  # a tensor without memory
        pass
    raise TypeError(f"{function}: {name} must be True or False, got {value!r}")


def fraction_argument(function: str, name: str, value: Any) -> float:
    """Return `value` as a number in (0, 1)."""
    number = real(function, name, value)
    if not 0.0 < number < 1.0:
        raise ValueError(f"{function}: {name} must lie strictly between 0 and 1, got {value!r}")
    return number


def choice_argument(function: str, name: str, value: Any, choices: Sequence[str]) -> str:
    """Return `value` where it is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{function}: {name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return str(value)
