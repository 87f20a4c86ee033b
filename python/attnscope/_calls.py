# SPDX-License-Identifier: MIT
"""Calls of the core's functions on checked maps, and the warnings that belong to their results.

Public functions call the core here once their arguments are checked. Here it is decided whether an operator
with a derivative, the device that holds the maps, the fast way or the core itself computes the results.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from attnscope import _core
from attnscope._blas import settle_forked_child
from attnscope._memory import SMALLEST_COUNT, SMALLEST_MAP, named_memory_error
from attnscope._precision import Precision, fast_kernel, note_fallbacks
from attnscope._warn import collect_warnings, warn
from attnscope.arguments.maps import Attention
from attnscope.arguments.row_sums import TOLERANCE
from attnscope.arguments.transforms import is_forward_mode, is_transformed
from attnscope.devices import placement
from attnscope.errors import NonFiniteWarning
from attnscope.gradients import dispatch


def called_at_once(
    kernel: Callable[..., Any], function: str, attention: Any, *arguments: Any, precision: Precision = "exact"
) -> Any:
    """Return what a function of the core gives for maps as most calls hand them over, None for all others.

    For calls without an option that needs a check. The core looks at the maps itself: between a check and a
    measurement Python takes longer than the core does on maps of few tokens. Fallbacks of the fast way are
    noted for `function`.
    """
    if torch.compiler.is_compiling() or placement.takes_torch_on_cpu() or is_forward_mode():
        return None
    settle_forked_child()
    if precision == "fast":
        arguments = (*arguments, "fast")
    limits = (SMALLEST_MAP, SMALLEST_COUNT, TOLERANCE)
    try:
        results = _core.called_if_usual(kernel, attention, *limits, arguments)
    except MemoryError as error:
        raise named_memory_error(function, error, attention.shape) from None
    fallbacks = 0
    if precision == "fast" and results is not None:
        *results, fallbacks = results
    # maps that are not finite are measured once more, with a warning
    if results is None or results[-1] != 0:
        return None
    if fallbacks:
        note_fallbacks(function, fallbacks)
    return results


def call_kernel(
    kernel: Callable[..., Any],
    checked: Attention,
    *arguments: Any,
    function: str | None = None,
    precision: str = "exact",
) -> Any:
    """Return the results of a function of the core, computed where the maps are; they are on the CPU.

    `function` is the public one that calls, where it has another name. Only the core has a fast way:
    gradients, `torch.compile`, `torch.vmap` and accelerators take the exact one, and lazy attention its own.
    """
    needs_none = checked.is_plain and dispatch.hold_no_tensor(arguments)
    if not needs_none and dispatch.needs_operator(checked.tensor, *arguments):
        operator = dispatch.operator_of(function or kernel.__name__)
        return operator(checked.tensor, dispatch.sizes_of(checked.extent, checked.tensor), *arguments)
    if precision == "fast":
        kernel = fast_kernel(kernel, function or kernel.__name__)
    run = placement.computed_on(kernel, checked.tensor, function)
    try:
        return run(checked.tensor, checked.extent, *arguments)
    except MemoryError as error:
        name = function or kernel.__name__
        raise named_memory_error(name, error, checked.tensor.shape) from None


def call_and_warn(
    kernel: Callable[..., Any],
    function: str,
    checked: Attention,
    *arguments: Any,
    unit: str = "matrices",
    precision: str = "exact",
) -> Any:
    """Call a function of the core on a checked argument and warn about inputs that are not finite."""
    *results, non_finite = call_kernel(kernel, checked, *arguments, function=function, precision=precision)
    return warn_non_finite(function, checked, results[0] if len(results) == 1 else results, non_finite, unit)


def warn_non_finite(
    function: str, attention: Attention, result: Any, non_finite: int, unit: str = "matrices"
) -> Any:
    """Return `result`, after one warning when some inputs were not finite."""
    # of a value that torch.compile only imagines, which is no int, nothing can be asked
    if type(non_finite) is int and non_finite == 0:
        return result
    if not torch.compiler.is_compiling() and non_finite:
        total = math.prod(attention.leading)
        if is_transformed(attention.tensor):
            total, non_finite = dispatch.count_of_maps(attention.tensor), int(non_finite)
        message = (
            f"{function}: {non_finite} of {total} {unit} hold NaN or infinite entries; their results are NaN "
            "(counts -1, flags False)"
        )
        warn(NonFiniteWarning(message, function, non_finite))
    return result


def warn_non_finite_parts(function: str, is_non_finite: torch.Tensor, unit: str) -> None:
    """Warn of the parts of an input that are not finite; a transform of torch hides which those are."""
    if torch.compiler.is_compiling() or is_transformed(is_non_finite):
        return
    if bad := int(is_non_finite.sum()):
        parts = f"{bad} of {is_non_finite.numel()} {unit}"
        message = f"{function}: {parts} hold NaN or infinite entries; their results are NaN"
        warn(NonFiniteWarning(message, function, bad))


@contextlib.contextmanager
def named_as(source: str, metric: str) -> Iterator[None]:
    """Let errors and counted warnings that begin with the name of a function begin with that of a metric."""
    if source == metric:
        yield
        return
    beginning = f"{source}: "
    try:
        with collect_warnings() as collected:
            yield
    except (TypeError, ValueError) as error:
        if type(error) not in (TypeError, ValueError) or not str(error).startswith(beginning):
            raise
        raise type(error)(f"{metric}: {str(error).removeprefix(beginning)}") from None
    for warning in collected:
        if warning.function == source:
            message = f"{metric}: {str(warning).removeprefix(beginning)}"
            warning = type(warning)(message, metric, warning.count)
        warn(warning)


def undefined_results(function: str, shape: Sequence[int]) -> torch.Tensor:
    """Return a float64 tensor of NaN; MemoryError where memory does not hold it."""
    try:
        return torch.full(tuple(shape), math.nan, dtype=torch.float64, device="cpu")
    except RuntimeError:
        raise MemoryError(f"{function}: results of shape {tuple(shape)} do not fit in memory") from None
