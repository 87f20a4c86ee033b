# SPDX-License-Identifier: MIT
"""Checks of every metric's arguments: errors with the value in them, raised before any work starts.

A tensor that the core takes has its dtype, shape and device right, because what is wrong was refused here
under the name that the caller knows: `fiedler_value: attention must be square in its last two dimensions, got
shape (2, 4, 7, 8)`. Nothing is copied on the way.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from attnscope import _core
from attnscope._blas import settle_forked_child
from attnscope._evaluation import plain_defaults
from attnscope._memory import (
    SMALLEST_BATCH,
    SMALLEST_COUNT,
    SMALLEST_MAP,
    is_out_of_memory,
    warn_if_too_large,
)
from attnscope._precision import PRECISIONS as PRECISIONS
from attnscope._precision import Precision as Precision
from attnscope.arguments import scalars
from attnscope.arguments.host_copies import host_copy
from attnscope.arguments.maps import DEFAULT_PLACES as DEFAULT_PLACES
from attnscope.arguments.maps import Attention as Attention
from attnscope.arguments.maps import Places as Places
from attnscope.arguments.maps import Queries, place_queries
from attnscope.arguments.row_sums import TOLERANCE, check_row_sums
from attnscope.arguments.transforms import is_forward_mode, is_transformed, refuse_tangent, without_transforms
from attnscope.arguments.unmaterialized import Unmaterialized
from attnscope.devices import placement
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
    validate = scalars.flag(function, "validate", validate)
    tensor = map_tensor(function, name, attention, square=places is None)
    checked_lengths = None
    if lengths is not None:
        checked_lengths = lengths_argument(function, lengths, tuple(tensor.shape[:-2]), tensor.shape[-1])
        if checked_lengths is not None and isinstance(tensor, Unmaterialized):
            # its padding stays padding, whatever a call says
            checked_lengths = torch.minimum(checked_lengths, tensor.visibility.lengths)
    checked = Attention(tensor, checked_lengths)
    if places is not None and not (places.is_default and tensor.shape[-1] == tensor.shape[-2]):
        if not isinstance(tensor, Unmaterialized):
            checked = checked._replace(queries=_queries_argument(function, places, checked))
        elif not places.is_default:
            raise ValueError(f"{function}: {tensor} says itself where its queries stand, got {places}")
    if isinstance(tensor, Unmaterialized):
        if validate:
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
    if lengths is not None or validate is not False or torch.compiler.is_compiling() or is_forward_mode():
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
    return place_queries(function, positions, lengths, places.cross, attention)


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


def places_argument(function: str, positions: Any, lengths: Any, cross: Any) -> Places:
    """Return where the caller says that queries stand, with `cross` checked, on which the rest depends."""
    return Places(positions, lengths, cross is not False and scalars.flag(function, "cross", cross))


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
        if isinstance(value, Unmaterialized) or (not is_forward_mode() and _core.is_plain_batch(value)):
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


def require_map(function: str, checked: Attention) -> None:
    """Raise TypeError where the map is not in memory."""
    if isinstance(checked.tensor, Unmaterialized):
        raise TypeError(
            f"{function} needs the map, and {checked.tensor} has none; LazyAttention.dense() makes one"
        )


def entries_argument(function: str, checked: Attention, *, detach: bool = True) -> torch.Tensor:
    """Return the entries of checked maps on the CPU; TypeError where the map is not in memory."""
    require_map(function, checked)
    tensor = checked.tensor.detach() if detach else checked.tensor
    return to_host(tensor).as_subclass(torch.Tensor)


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
    if isinstance(value, np.ndarray):
        return value
    if not hasattr(value, "__dlpack__"):
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
        ValueError: an array with hidden entries, or what is no dense tensor.
        NotImplementedError: a tensor that carries its derivative forwards.
        TypeError: a value that holds no numbers, or a tensor that holds no memory: of the meta device, a fake
        or
            functional one, one without storage.
    """
    device = value.device if isinstance(value, torch.Tensor) else "cpu"
    if torch.compiler.is_compiling():
        return torch.as_tensor(value, dtype=dtype, device=device)
    settle_forked_child()
    if is_forward_mode() and isinstance(value, torch.Tensor):
        refuse_tangent(function, name, value)
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        hidden = int(np.count_nonzero(np.ma.getmaskarray(value)))
        raise ValueError(
            f"{function}: {name} is a masked array with {hidden} hidden entries, which a tensor cannot hide; "
            "fill it, or say by lengths or support what is no attention"
        )
    _refuse_conversion(function, name, value, dtype)
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
        if is_out_of_memory(error):
            raise MemoryError(f"{function}: {error}") from None
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
    _refuse_without_memory(function, name, tensor, value)
    return tensor


def _refuse_conversion(function: str, name: str, value: Any, dtype: torch.dtype | None) -> None:
    """Raise TypeError for what has another meaning, or none, once it is read into another type.

    Truth values would count as 1 and 0, the imaginary part of complex numbers would be lost, and a tensor
    without memory has no entries to read.
    """
    if dtype is None:
        return
    if dtype.is_floating_point and not _is_real(value):
        kind = getattr(value, "dtype", None) or repr(value)
        raise TypeError(f"{function}: {name} must hold real numbers, got {kind}")
    if isinstance(value, torch.Tensor) and not is_transformed(value):
        _refuse_without_memory(function, name, value, value)


def _is_real(value: Any) -> bool:
    """Return False for truth values and complex numbers."""
    dtype = getattr(value, "dtype", None)
    if isinstance(dtype, torch.dtype):
        return dtype != torch.bool and not dtype.is_complex
    return not isinstance(value, (bool, complex)) and getattr(dtype, "kind", "") not in ("b", "c")


def _refuse_without_memory(function: str, name: str, tensor: torch.Tensor, value: Any) -> None:
    """Raise TypeError for a tensor that has a shape and no entries: reading one of them ends the process."""
    if tensor.device.type == "meta" or not _core.holds_memory(
        tensor.detach() if tensor.requires_grad else tensor
    ):
        kind = "a tensor" if type(value) is torch.Tensor else f"a {type(value).__name__}"
        raise TypeError(
            f"{function}: {name} holds no memory, got {kind} of shape {tuple(tensor.shape)} on "
            f"{tensor.device}"
        )


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
    n: Any = attention.n if attention.sizes is None else attention.sizes.reshape(-1, 1)
    values_over_n = torch.where(torch.tensor(over_n, device="cpu"), values / n, values)
    # Infinity, because an entry of exactly 1 reaches a threshold of 1, and the graph is to be empty.
    return values_over_n.masked_fill(values_over_n >= 1.0, math.inf)


def precision_argument(function: str, precision: Any, attention: Any = None) -> Any:
    """Return `precision`; ValueError where it is none, or asks of lazy attention what it does not compute.

    "exact" is what functions take by default, so lazy attention keeps its way under it.
    """
    checked = scalars.choice_argument(function, "precision", precision, PRECISIONS)
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
        support = scalars.choice_argument(function, "support", support, ("auto", "causal", "full"))
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
    if not tensor.ndim:  # which would broadcast to any shape
        raise ValueError(f"{function}: {name} must be a boolean tensor with an axis, got {bool(tensor)}")
    expanded(f"{function}: {name}", tensor, shape, words)
    return to_host(tensor)


def _threshold(function: str, entry: Any) -> float:
    if not isinstance(entry, str):
        return scalars.fraction_argument(function, "thresholds", entry)
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
    smallest, largest = (end.item() for end in values.aminmax()) if values.numel() else (n, n)
    if smallest < least or largest > n:
        outside = values[(values < least) | (values > n)]
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
