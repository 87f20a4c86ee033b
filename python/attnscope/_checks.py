# SPDX-License-Identifier: MIT
"""Checks of every metric's arguments: errors with the value in them, raised before any work starts.

A tensor that the core takes has its dtype, shape and device right, because what is wrong was refused here
under the name that the caller knows: `fiedler_value: attention must be square in its last two dimensions, got
shape (2, 4, 7, 8)`. Nothing is copied on the way.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from attnscope import _core
from attnscope._blas import settle_forked_child
from attnscope._evaluation import plain_defaults
from attnscope._memory import SMALLEST_BATCH, SMALLEST_COUNT, SMALLEST_MAP, warn_if_too_large
from attnscope._precision import PRECISIONS as PRECISIONS
from attnscope._precision import Precision as Precision
from attnscope._precision import fast_kernel, note_fallbacks
from attnscope._warn import warn
from attnscope.arguments.host_copies import host_copy
from attnscope.arguments.maps import DEFAULT_PLACES as DEFAULT_PLACES
from attnscope.arguments.maps import Attention as Attention
from attnscope.arguments.maps import Places as Places
from attnscope.arguments.maps import Queries, place_queries
from attnscope.arguments.row_sums import TOLERANCE, check_row_sums
from attnscope.arguments.transforms import is_transformed, without_transforms
from attnscope.arguments.unmaterialized import Unmaterialized
from attnscope.devices import placement
from attnscope.errors import NonFiniteWarning
from attnscope.gradients import dispatch

#: The way out where a metric of square maps gets a rectangle.
NOT_SQUARE = (
    "of decoding steps `recording.assembled()` makes one square map; of cross attention (`layer.cross`) it "
    "is undefined"
)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Attention in half precision can exceed 1 by rounding; a hundredth is far above that and far below a bug.
LARGEST_ENTRY = 1.0 + 1e-2

Lengths = torch.Tensor | Sequence[int] | int | None
#: Keys of queries: one list for all maps, or one for each.
Positions = torch.Tensor | Sequence[int] | None


def attention_argument(
    function: str,
    attention: Any,
    lengths: Lengths = None,
    *,
    validate: bool = False,
    name: str = "attention",
    rows: bool = True,
    places: Places | None = None,
) -> Attention:
    """Check `attention` [..., n, n] and `lengths`, without a copy, and warn where `rows` do not sum to 1.

    With `places`, which says where queries stand, maps may be rectangles [..., q, k]. Maps on an
    accelerator stay there if the function is measured there.
    """
    if _is_usual(attention, lengths, validate, name, rows, places):
        return Attention(attention, None, None, True)
    tensor = map_tensor(function, name, attention, square=places is None)
    checked_lengths = None
    if lengths is not None:
        checked_lengths = lengths_argument(function, lengths, tuple(tensor.shape[:-2]), tensor.shape[-1])
    checked = Attention(tensor, checked_lengths)
    if places is not None and not (places.is_default and tensor.shape[-1] == tensor.shape[-2]):
        if not isinstance(tensor, Unmaterialized):
            checked = checked._replace(queries=_queries_argument(function, places, checked))
        elif not places.is_default:
            raise ValueError(f"{function}: {tensor} says itself where its queries stand, got {places}")
    if isinstance(tensor, Unmaterialized):
        if flag(function, "validate", validate):
            raise ValueError(f"{function}: validate needs the entries of the map, got {tensor}")
        return checked
    _check_entries(function, name, checked, validate, rows=rows and name in ("attention", "heads"))
    return checked


def _check_entries(function: str, name: str, checked: Attention, validate: bool, *, rows: bool) -> None:
    """Check what takes a look at the entries of maps or depends on their number: validity and sums of rows.

    Nothing is asked while `torch.compile` looks on, nor inside the transforms of `torch.func`.
    """
    tensor, lengths = checked.tensor, checked.lengths
    if torch.compiler.is_compiling():
        return
    validate = flag(function, "validate", validate)
    if is_transformed(tensor):
        if validate:
            raise ValueError(f"{function}: validate cannot look at entries inside torch.vmap or torch.func")
        return
    if tensor.numel() >= SMALLEST_BATCH:
        longest = checked.n if lengths is None else int(lengths.max())
        warn_if_too_large(function, longest, math.prod(checked.leading))
    if validate:
        invalid = _core.first_invalid(host_copy(tensor), checked.extent, LARGEST_ENTRY)
        if invalid is not None:
            matrix, row, column, value = invalid
            index = (*map(int, np.unravel_index(matrix, checked.leading)), row, column)
            words = f"must hold finite entries in [0, {LARGEST_ENTRY}], got {value} at index {index}"
            raise ValueError(f"{function}: {name} {words}")
    if rows:
        maps = tensor.detach() if tensor.requires_grad else tensor
        check_row_sums(function, maps, lengths, refuse=validate, queries=checked.query_lengths)


def _is_usual(
    attention: Any, lengths: Lengths, validate: bool, name: str, rows: bool, places: Places | None
) -> bool:
    """Return True for what most calls give: square maps in the CPU's memory, and no option beside them.

    A call of the core answers what takes ten steps otherwise, which on maps of few tokens are most of a call.
    All else is checked step by step.
    """
    if lengths is not None or validate is not False or torch.compiler.is_compiling():
        return False
    if not rows or name not in ("attention", "heads") or not (places is None or places.is_default):
        return False
    settle_forked_child()
    return _core.is_usual_attention(attention, SMALLEST_MAP, SMALLEST_COUNT, TOLERANCE)


def is_bare(
    support: Any,
    precision: Any,
    lengths: Any,
    positions: Any,
    query_lengths: Any,
    cross: Any,
    validate: Any,
) -> bool:
    """Return True where a call gives maps alone and no option that they are to be checked with."""
    if not (lengths is positions is query_lengths is None and validate is cross is False):
        return False
    are_words = isinstance(support, str) and isinstance(precision, str)
    return are_words and support == "auto" and precision in PRECISIONS


def called_at_once(
    kernel: Callable[..., Any], function: str, attention: Any, *arguments: Any, precision: Precision = "exact"
) -> Any:
    """Return what a function of the core gives for maps as most calls hand them over, None for all others.

    For calls without an option that needs a check. The core looks at the maps itself, as in `_is_usual`:
    between a check and a measurement Python takes longer than the core does on maps of few tokens.
    Fallbacks of the fast way are noted for `function`.
    """
    if torch.compiler.is_compiling() or placement.takes_torch_on_cpu():
        return None
    settle_forked_child()
    if precision == "fast":
        arguments = (*arguments, "fast")
    results = _core.called_if_usual(kernel, attention, SMALLEST_MAP, SMALLEST_COUNT, TOLERANCE, arguments)
    fallbacks = 0
    if precision == "fast" and results is not None:
        *results, fallbacks = results
    # maps that are not finite are measured once more, with a warning
    if results is None or results[-1] != 0:
        return None
    if fallbacks:
        note_fallbacks(function, fallbacks)
    return results


def _queries_argument(function: str, places: Places, attention: Attention) -> Queries:
    """Return the checked places of the queries of maps."""
    positions = places.positions
    if positions is not None:
        positions = integers_argument(function, "query_positions", positions)
        shape = (*attention.leading, attention.query_count)
        positions = expanded(f"{function}: query_positions", positions, shape).contiguous()
    lengths = lengths_argument(
        function,
        places.lengths,
        attention.leading,
        attention.query_count,
        name="query_lengths",
        least=0,
    )
    return place_queries(function, positions, lengths, flag(function, "cross", places.cross), attention)


def heads_argument(
    function: str,
    heads: Any,
    lengths: Lengths = None,
    *,
    validate: bool = False,
    places: Places | None = None,
) -> Attention:
    """Check `heads` [..., h, n, n], or [..., h, q, k] with `places`.

    Lengths broadcast against [...], one per layer, or against [..., h].
    """
    tensor = map_tensor(function, "heads", heads, square=places is None)
    leading = tuple(tensor.shape[:-2])
    if not leading or leading[-1] == 0:
        raise ValueError(
            f"{function}: heads must have at least three dimensions [..., h, n, n] with h >= 1, "
            f"got shape {tuple(tensor.shape)}"
        )
    head_lengths = _lengths_of_heads(function, "lengths", lengths, leading, 1, tensor.shape[-1])
    if places is not None and places.lengths is not None:
        query_lengths = _lengths_of_heads(
            function, "query_lengths", places.lengths, leading, 0, tensor.shape[-2]
        )
        places = places._replace(lengths=query_lengths)
    return attention_argument(function, tensor, head_lengths, validate=validate, name="heads", places=places)


def refuse_places(function: str, places: Places) -> None:
    """Raise where the caller says where queries stand to a function of square maps."""
    if not places.is_default:
        raise ValueError(f"{function}: takes square maps of self-attention only; {NOT_SQUARE}")


def _lengths_of_heads(
    function: str, name: str, lengths: Lengths, leading: tuple[int, ...], least: int, most: int
) -> torch.Tensor | None:
    """Return lengths [..., h] from those of layers [...] or of heads, which are equal in a layer."""
    per_layer = lengths is None or as_tensor(function, name, lengths).ndim < len(leading)
    head_lengths = lengths_argument(
        function, lengths, leading[:-1] if per_layer else leading, most, name=name, least=least
    )
    if head_lengths is not None and per_layer:
        head_lengths = head_lengths.unsqueeze(-1).expand(leading)
    elif head_lengths is not None and bool((head_lengths != head_lengths[..., :1]).any()):
        raise ValueError(
            f"{function}: {name} of the heads of one layer must be equal, got {head_lengths.tolist()}"
        )
    return head_lengths


def square_tensor(function: str, name: str, value: Any) -> torch.Tensor:
    """Return `value` as a float tensor [..., n, n]; on the CPU, unless its device measures the function."""
    return map_tensor(function, name, value, square=True)


def map_tensor(function: str, name: str, value: Any, *, square: bool) -> torch.Tensor:
    """Return `value` as a float tensor [..., q, k]; on the CPU, unless its device measures the function."""
    if not torch.compiler.is_compiling():
        settle_forked_child()
        if _core.is_plain_batch(value) or isinstance(value, Unmaterialized):
            return value
    tensor = float_tensor(function, name, value)
    if not placement.stays(function, tensor) and not tensor.requires_grad:
        tensor = to_host(tensor)
    got = f"got shape {tuple(tensor.shape)}"
    if tensor.ndim < 2:
        raise ValueError(f"{function}: {name} must have at least two dimensions [..., n, n], {got}")
    if square and tensor.shape[-1] != tensor.shape[-2]:
        raise ValueError(
            f"{function}: {name} must be square in its last two dimensions, {got}, "
            f"{tensor.shape[-2]} queries x {tensor.shape[-1]} keys; {NOT_SQUARE}"
        )
    if 0 in tensor.shape[-2:]:
        raise ValueError(f"{function}: {name} must hold at least one token, {got}")
    return tensor


def float_tensor(function: str, name: str, value: Any) -> torch.Tensor:
    """Return `value` as a float tensor that shares its memory (NumPy arrays too).

    It is detached, unless the function's results carry the gradient.
    """
    if not isinstance(value, torch.Tensor):
        if not hasattr(value, "__array__") and not hasattr(value, "__dlpack__"):
            got = type(value).__name__
            if isinstance(value, (tuple, list)) and len(value) and hasattr(value[0], "shape"):
                got += f"; torch.stack makes one tensor of its {len(value)}"
            raise TypeError(f"{function}: {name} must be a torch.Tensor or an array, got {got}")
        value = _shared(value)
    tensor = as_tensor(function, name, value)
    if tensor.dtype not in FLOATS:
        raise ValueError(
            f"{function}: {name} must be float16, bfloat16, float32 or float64, got {tensor.dtype}"
        )
    # A conjugate or negative view keeps its sign beside its memory, which is what the core reads.
    if not dispatch.keeps_gradient(function, tensor) and not torch.compiler.is_compiling():
        tensor = tensor.detach()
    return tensor.resolve_neg()


def entries_argument(function: str, checked: Attention, *, detach: bool = True) -> torch.Tensor:
    """Return the entries of checked maps on the CPU; TypeError where the map is not in memory."""
    if isinstance(checked.tensor, Unmaterialized):
        raise TypeError(
            f"{function} needs the map, and {checked.tensor} has none; LazyAttention.dense() makes one"
        )
    tensor = checked.tensor.detach() if detach else checked.tensor
    return to_host(tensor).as_subclass(torch.Tensor)


def undefined_results(function: str, shape: Sequence[int]) -> torch.Tensor:
    """Return a float64 tensor of NaN; MemoryError where memory does not hold it."""
    try:
        return torch.full(tuple(shape), math.nan, dtype=torch.float64, device="cpu")
    except RuntimeError:
        raise MemoryError(f"{function}: results of shape {tuple(shape)} do not fit in memory") from None


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` itself if the CPU holds it, else a copy in pinned memory."""
    host: torch.Tensor = host_copy(tensor)
    return host


def _shared(value: Any) -> Any:
    """Return an array of JAX, CuPy or another library as a tensor of the same memory, where the library
    allows it.

    NumPy's own arrays are left to torch, which reads those that must not be written too; objects of pandas
    and xarray, which torch does not know, become such arrays.
    """
    if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
        return np.asarray(value)
    try:
        return torch.utils.dlpack.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError):
        return value


def as_tensor(function: str, name: str, value: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return `value` as a tensor, sharing its memory where it can.

    With no `dtype` a list of Python numbers becomes float32. A tensor stays on its device and anything else
    comes to the CPU, whatever torch's default device is.

    Raises:
        TypeError: a value that holds no numbers, or a tensor that holds no memory: of the meta device, a fake
        or
            functional one, one without storage.
    """
    device = value.device if isinstance(value, torch.Tensor) else "cpu"
    if torch.compiler.is_compiling():
        return torch.as_tensor(value, dtype=dtype, device=device)
    settle_forked_child()
    # such are columns of pandas's tables; torch warns of them, and nothing here writes into an argument
    read_only = isinstance(value, np.ndarray) and not value.flags.writeable
    try:
        numbers = torch.get_default_dtype() != torch.float32 and not hasattr(value, "dtype")
        with (
            warnings.catch_warnings() if read_only else nullcontext(),
            plain_defaults() if numbers else nullcontext(),
        ):
            if read_only:
                warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            tensor = torch.as_tensor(value, dtype=dtype, device=device)
    except (TypeError, RuntimeError, OverflowError) as error:
        raise TypeError(f"{function}: {name} is not a tensor of numbers: {error}") from None
    except ValueError as error:
        raise ValueError(f"{function}: {name} cannot be read as a tensor: {error}") from None
    if tensor.is_nested:
        raise ValueError(f"{function}: {name} must be one dense tensor, got a nested tensor; pad it")
    if tensor.layout != torch.strided:
        raise ValueError(f"{function}: {name} must be a dense tensor, got layout {tensor.layout}")
    if is_transformed(tensor):
        if dispatch.takes_transforms(function, name):
            return tensor
        tensor = without_transforms(tensor)
        if is_transformed(tensor):
            raise TypeError(
                f"{function}: {name} cannot be a tensor of torch.vmap or torch.func, whose entries cannot be "
                "looked at; give all of them in one call"
            )
    # Such a tensor has a shape, and reading an entry of it ends the process.
    if tensor.device.type == "meta" or not _core.holds_memory(
        tensor.detach() if tensor.requires_grad else tensor
    ):
        kind = "a tensor" if type(value) is torch.Tensor else f"a {type(value).__name__}"
        raise TypeError(
            f"{function}: {name} holds no memory, got {kind} of shape {tuple(tensor.shape)} on "
            f"{tensor.device}"
        )
    return tensor


def thresholds_argument(function: str, thresholds: Any, attention: Attention) -> torch.Tensor:
    """Return thresholds as float64 [T], or [count, T] with a row per matrix where they differ.

    Strings ``"k/n"`` stand for k divided by each map's own number of tokens; such a value of 1 or more is
    allowed and gives the empty graph.
    """
    if isinstance(thresholds, torch.Tensor):
        thresholds = as_tensor(function, "thresholds", thresholds).flatten().tolist()
    elif hasattr(thresholds, "tolist"):  # arrays, series and NumPy's numbers
        thresholds = np.asarray(thresholds).ravel().tolist()
    if isinstance(thresholds, (int, float, str)):
        thresholds = [thresholds]
    if not isinstance(thresholds, Iterable):
        raise TypeError(f'{function}: thresholds must be numbers or "k/n", got {thresholds!r}')
    entries = list(thresholds)
    if not entries:
        raise ValueError(f"{function}: thresholds must hold at least one value, got none")
    values = torch.tensor(
        [_threshold(function, entry) for entry in entries], dtype=torch.float64, device="cpu"
    )
    over_n = [isinstance(entry, str) for entry in entries]
    if not any(over_n):
        return values
    n: Any = attention.n if attention.lengths is None else attention.lengths.reshape(-1, 1)
    values_over_n = torch.where(torch.tensor(over_n, device="cpu"), values / n, values)
    # Infinity, because an entry of exactly 1 reaches a threshold of 1, and the graph is to be empty.
    return values_over_n.masked_fill(values_over_n >= 1.0, math.inf)


def real(function: str, name: str, value: Any) -> float:
    """Return `value` as a float."""
    if not isinstance(value, (str, bytes)):
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            pass
    raise TypeError(f"{function}: {name} must be a number, got {value!r}")


def whole_number(function: str, name: str, value: Any) -> int:
    """Return `value` as an int. 2.0 is a whole number; 2.5 and numbers beyond 64 bits are refused."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
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


def flag(function: str, name: str, value: Any) -> bool:
    """Return `value` as a bool."""
    try:
        return bool(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{function}: {name} must be True or False, got {value!r}") from None


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


def precision_argument(function: str, precision: Any, attention: Any = None) -> Any:
    """Return `precision`; ValueError where it is none, or asks of lazy attention what it does not compute.

    "exact" is what functions take by default, so lazy attention keeps its way under it.
    """
    checked = choice_argument(function, "precision", precision, PRECISIONS)
    if checked == "fast" and isinstance(attention, Unmaterialized):
        check_lazy_precision(function, checked, attention)
    return checked


def check_lazy_precision(function: str, precision: str, attention: Unmaterialized) -> None:
    """Raise ValueError where lazy attention computes in another precision than was asked for."""
    if attention.precision != precision:
        raise ValueError(
            f"{function}: precision={precision!r} contradicts {attention}; lazy attention computes in the "
            "precision that it was made with"
        )


def support_argument(function: str, support: Any, attention: Attention) -> Any:
    """Return `support` as the core takes it: "auto", "causal", "full", or a boolean CPU tensor."""
    if isinstance(support, str):
        support = choice_argument(function, "support", support, ("auto", "causal", "full"))
        return attention.support_in_words(function, support)
    words = "does not broadcast to attention of shape"
    return flags_argument(function, "support", support, attention.tensor.shape, words)


def flags_argument(
    function: str, name: str, flags: Any, shape: Sequence[int], words: str = "does not broadcast to"
) -> torch.Tensor:
    """Return `flags`, a boolean tensor that broadcasts to a shape, on the CPU."""
    tensor = as_tensor(function, name, flags)
    if tensor.dtype != torch.bool:
        raise ValueError(f"{function}: {name} must be boolean, got {tensor.dtype}")
    expanded(f"{function}: {name}", tensor, shape, words)
    return to_host(tensor)


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
    return run(checked.tensor, checked.extent, *arguments)


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


def _threshold(function: str, entry: Any) -> float:
    if not isinstance(entry, str):
        return fraction_argument(function, "thresholds", entry)
    numerator, _, denominator = entry.partition("/")
    try:
        value = float(numerator)
    except ValueError:
        value = math.nan
    if denominator.strip() != "n" or not 0.0 < value < math.inf:
        raise ValueError(f'{function}: a threshold in words must read "k/n" with k > 0, got {entry!r}')
    return value


def lengths_argument(
    function: str,
    lengths: Lengths,
    leading: tuple[int, ...],
    n: int,
    *,
    name: str = "lengths",
    least: int = 1,
) -> torch.Tensor | None:
    if lengths is None:
        return None
    values = integers_argument(function, name, lengths)
    broadcast = expanded(f"{function}: {name}", values, leading, "do not broadcast to the leading shape")
    if len(outside := values[(values < least) | (values > n)]):
        raise ValueError(f"{function}: {name} must lie between {least} and n = {n}, got {outside[0]}")
    return broadcast.contiguous()


def integers_argument(function: str, name: str, value: Any) -> torch.Tensor:
    """Return `value` as an int64 tensor on the CPU."""
    values = as_tensor(function, name, value)
    if values.dtype.is_floating_point or values.dtype.is_complex or values.dtype == torch.bool:
        raise ValueError(f"{function}: {name} must be integers, got {values.dtype}")
    return values.to(device="cpu", dtype=torch.int64)


def expanded(
    label: str, tensor: torch.Tensor, shape: Sequence[int], words: str = "does not broadcast to"
) -> torch.Tensor:
    """Return the tensor as a view of that shape; ValueError in these words where it has none."""
    try:
        return tensor.expand(tuple(shape))
    except RuntimeError:
        raise ValueError(f"{label} of shape {tuple(tensor.shape)} {words} {tuple(shape)}") from None
