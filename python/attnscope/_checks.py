# SPDX-License-Identifier: MIT
"""What every metric asks of its arguments: errors with the value in them, made before any work starts."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch

from attnscope import _core, _device
from attnscope._memory import SMALLEST_BATCH, announce
from attnscope._row_sums import judge_rows
from attnscope._warn import NonFiniteWarning, warn

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
# Attention in half precision can exceed 1 by rounding; a hundredth is far above that and far below a bug.
LARGEST_ENTRY = 1.0 + 1e-2

Lengths = torch.Tensor | Sequence[int] | int | None


class Attention(NamedTuple):
    """A checked argument: the tensor as the core reads it, and one length per matrix or None."""

    tensor: torch.Tensor
    lengths: torch.Tensor | None

    @property
    def n(self) -> int:
        return int(self.tensor.shape[-1])

    @property
    def leading(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape[:-2])

    def inside(self) -> torch.Tensor:
        """Which tokens lie within the lengths, bool [..., n]."""
        place = torch.arange(self.n)
        within = place >= 0 if self.lengths is None else place < self.lengths[..., None]
        return within.expand(*self.leading, self.n)


def attention_argument(
    function: str,
    attention: Any,
    lengths: Lengths = None,
    *,
    validate: bool = False,
    name: str = "attention",
    rows: bool = True,
) -> Attention:
    """Checks `attention` [..., n, n] and `lengths`, without a copy; warns where `rows` do not sum to 1."""
    tensor = square_tensor(function, name, attention)
    given = None
    if lengths is not None:
        given = lengths_argument(function, lengths, tuple(tensor.shape[:-2]), tensor.shape[-1])
    checked = Attention(tensor, given)
    if tensor.numel() >= SMALLEST_BATCH:
        longest = checked.n if given is None else int(given.max())
        announce(function, longest, math.prod(checked.leading))
    if flag(function, "validate", validate):
        _validate(function, name, checked)
    if rows and name == "attention":
        judge_rows(function, tensor, given, refuse=validate)
    return checked


def heads_argument(
    function: str, heads: Any, lengths: Lengths = None, *, validate: bool = False
) -> tuple[Attention, torch.Tensor | None]:
    """Checks `heads` [..., h, n, n]; lengths broadcast against [...], one per layer, or against [..., h].

    Returns the batch with a length per matrix, and the lengths per layer.
    """
    checked = attention_argument(function, heads, None, validate=False, name="heads")
    if checked.tensor.ndim < 3 or checked.tensor.shape[-3] == 0:
        raise ValueError(
            f"{function}: heads must have at least three dimensions [..., h, n, n] with h >= 1, "
            f"got shape {tuple(checked.tensor.shape)}"
        )
    layers = _one_per_layer(function, lengths, checked)
    each = None if layers is None else layers.unsqueeze(-1).expand(checked.leading).contiguous()
    checked = Attention(checked.tensor, each)
    if flag(function, "validate", validate):
        _validate(function, "heads", checked)
    judge_rows(function, checked.tensor, each, refuse=validate)
    return checked, layers


def _one_per_layer(function: str, lengths: Lengths, heads: Attention) -> torch.Tensor | None:
    """A length for each layer, from one per layer or from equal ones for its heads, as [B, 1] of a batch."""
    if lengths is None or as_tensor(function, "lengths", lengths).ndim < len(heads.leading):
        return lengths_argument(function, lengths, heads.leading[:-1], heads.n)
    each = lengths_argument(function, lengths, heads.leading, heads.n)
    assert each is not None
    if bool((each != each[..., :1]).any()):
        raise ValueError(f"{function}: lengths of the heads of one layer must be equal, got {each.tolist()}")
    return each[..., 0].contiguous()


def square_tensor(function: str, name: str, value: Any) -> torch.Tensor:
    """`value` as a float tensor [..., n, n] on the CPU."""
    if _core.is_plain_batch(value):
        return value
    tensor = _device.to_host(float_tensor(function, name, value))
    got = f"got shape {tuple(tensor.shape)}"
    if tensor.ndim < 2:
        raise ValueError(f"{function}: {name} must have at least two dimensions [..., n, n], {got}")
    if tensor.shape[-1] != tensor.shape[-2]:
        raise ValueError(
            f"{function}: {name} must be square in its last two dimensions, {got}"
            + ("; of cross attention (`layer.cross`) it is undefined" if tensor.ndim == 4 else "")
        )
    if tensor.shape[-1] == 0:
        raise ValueError(f"{function}: {name} must hold at least one token, {got}")
    return tensor


def float_tensor(function: str, name: str, value: Any) -> torch.Tensor:
    """`value` as a detached float tensor that shares its memory (NumPy arrays too)."""
    if not isinstance(value, torch.Tensor):
        if not hasattr(value, "__array__") and not hasattr(value, "__dlpack__"):
            got = type(value).__name__
            if isinstance(value, (tuple, list)) and len(value) and hasattr(value[0], "shape"):
                got += f"; torch.stack makes one tensor of its {len(value)}"
            raise TypeError(f"{function}: {name} must be a torch.Tensor or an array, got {got}")
        if not hasattr(value, "__dlpack__"):  # a pandas or xarray object, which torch does not know
            value = np.asarray(value)
        value = _shared(value)
        with warnings.catch_warnings():
            # The core only reads, so a read-only NumPy array is as good as any.
            warnings.filterwarnings("ignore", message=".*not writable.*", category=UserWarning)
            value = as_tensor(function, name, value)
    if value.is_nested:
        raise ValueError(f"{function}: {name} must be one dense tensor, got a nested tensor; pad it")
    if value.dtype not in FLOATS:
        raise ValueError(
            f"{function}: {name} must be float16, bfloat16, float32 or float64, got {value.dtype}"
        )
    if value.layout != torch.strided:
        raise ValueError(f"{function}: {name} must be a dense tensor, got layout {value.layout}")
    if value.device.type == "meta":
        raise ValueError(
            f"{function}: {name} must hold data, got shape {tuple(value.shape)} on the meta device"
        )
    detached: torch.Tensor = value.detach()
    # A conjugate or negative view keeps its sign beside its memory, which is what the core reads.
    return detached.resolve_neg()


def _shared(value: Any) -> Any:
    """An array of JAX, CuPy or another library as a tensor of the same memory, where it gives that away.

    NumPy's own arrays are left to torch, which reads those that must not be written too.
    """
    if isinstance(value, np.ndarray):
        return value
    try:
        return torch.utils.dlpack.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError):
        return value


def as_tensor(function: str, name: str, value: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """`value` as a tensor, sharing its memory where it can.

    With no `dtype` a list of Python numbers becomes float32.
    """
    try:
        with warnings.catch_warnings() if _is_read_only(value) else nullcontext():
            if _is_read_only(value):
                # torch warns of memory that must not be written, and nothing here writes into an argument
                warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            tensor = torch.as_tensor(value, dtype=dtype)
    except (TypeError, RuntimeError, OverflowError) as error:
        raise TypeError(f"{function}: {name} is not a tensor of numbers: {error}") from None
    except ValueError as error:
        raise ValueError(f"{function}: {name} cannot be read as a tensor: {error}") from None
    if tensor.device.type == "meta":
        raise TypeError(f"{function}: {name} must hold data, got a tensor on the meta device")
    if tensor.layout != torch.strided or tensor.is_nested:
        raise ValueError(f"{function}: {name} must be a dense tensor, got layout {tensor.layout}")
    return tensor


def _is_read_only(value: Any) -> bool:
    """Whether it is an array that must not be written, as pandas gives the columns of its tables."""
    return isinstance(value, np.ndarray) and not value.flags.writeable


def thresholds_argument(function: str, thresholds: Any, attention: Attention) -> torch.Tensor:
    """Thresholds as float64 [T], or [count, T] with a row per matrix where they differ.

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
    values: list[float] = []
    over_n: list[bool] = []
    for entry in thresholds:
        over_n.append(isinstance(entry, str))
        value = (
            _fraction_of_n(function, entry) if isinstance(entry, str) else real(function, "thresholds", entry)
        )
        if not isinstance(entry, str) and not 0.0 < value < 1.0:
            raise ValueError(f"{function}: thresholds must lie strictly between 0 and 1, got {value!r}")
        values.append(value)
    if not values:
        raise ValueError(f"{function}: thresholds must hold at least one value, got none")
    given = torch.tensor(values, dtype=torch.float64)
    if not any(over_n):
        return given
    n: Any = attention.n if attention.lengths is None else attention.lengths.reshape(-1, 1)
    values_over_n = torch.where(torch.tensor(over_n), given / n, given)
    # Infinity, because an entry of exactly 1 reaches a threshold of 1, and the graph is to be empty.
    return values_over_n.masked_fill(values_over_n >= 1.0, math.inf)


def real(function: str, name: str, value: Any) -> float:
    """`value` as a float."""
    if not isinstance(value, (str, bytes)):
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError, OverflowError):
            pass
    raise TypeError(f"{function}: {name} must be a number, got {value!r}")


def whole(function: str, name: str, value: Any) -> int:
    """`value` as an int; 2.0 is one, 2.5 is not, and neither is anything beyond 64 bits."""
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
    """`value` as an int that is not below another."""
    number = whole(function, name, value)
    if number < least:
        raise ValueError(f"{function}: {name} must be {words} {least}, got {number}")
    return number


def whole_steps(function: str, steps: Iterable[Any]) -> list[int]:
    """Training steps as integers, from numbers or from their digits."""
    found = []
    for step in steps:
        try:
            number = int(step)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"{function}: steps must be whole numbers: {error}") from None
        if not isinstance(step, str) and number != step:
            raise ValueError(f"{function}: steps must be whole numbers, got {step!r}")
        found.append(number)
    return found


def flag(function: str, name: str, value: Any) -> bool:
    """`value` as a bool."""
    try:
        return bool(value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{function}: {name} must be True or False, got {value!r}") from None


def fraction_argument(function: str, name: str, value: Any) -> float:
    """`value` as a number in (0, 1)."""
    number = real(function, name, value)
    if not 0.0 < number < 1.0:
        raise ValueError(f"{function}: {name} must lie strictly between 0 and 1, got {value!r}")
    return number


def choice_argument(function: str, name: str, value: Any, choices: Sequence[str]) -> str:
    """`value` where it is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{function}: {name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return str(value)


def support_argument(function: str, support: Any, attention: Attention) -> Any:
    """`support` as the core takes it: "auto", "causal", "full", or a boolean CPU tensor."""
    if isinstance(support, str):
        return choice_argument(function, "support", support, ("auto", "causal", "full"))
    if not isinstance(support, torch.Tensor):
        support = as_tensor(function, "support", support)
    if support.dtype != torch.bool:
        raise ValueError(f"{function}: support must be boolean, got {support.dtype}")
    expanded(
        f"{function}: support", support, attention.tensor.shape, "does not broadcast to attention of shape"
    )
    return _device.to_host(support)


def computed(
    kernel: Callable[..., Any], function: str, checked: Attention, *arguments: Any, unit: str = "matrices"
) -> Any:
    """What a function of the core gives for a checked argument, `finished`: one result or several."""
    *results, non_finite = kernel(checked.tensor, checked.lengths, *arguments)
    return finished(function, checked, results[0] if len(results) == 1 else results, non_finite, unit)


def finished(
    function: str, attention: Attention, result: Any, non_finite: int, unit: str = "matrices"
) -> Any:
    """`result`, after one warning when some inputs were not finite."""
    if non_finite:
        total = math.prod(attention.leading)
        message = (
            f"{function}: {non_finite} of {total} {unit} hold NaN or infinite entries; their results are NaN "
            "(counts -1, flags False)"
        )
        warn(NonFiniteWarning(message, function, non_finite))
    return result


def _fraction_of_n(function: str, text: str) -> float:
    numerator, slash, denominator = text.partition("/")
    try:
        value = float(numerator)
    except ValueError:
        value = math.nan
    if slash != "/" or denominator.strip() != "n" or not value > 0.0 or not math.isfinite(value):
        raise ValueError(f'{function}: a threshold in words must read "k/n" with k > 0, got {text!r}')
    return value


def lengths_argument(
    function: str, lengths: Lengths, leading: tuple[int, ...], n: int
) -> torch.Tensor | None:
    if lengths is None:
        return None
    values = as_tensor(function, "lengths", lengths)
    if values.dtype.is_floating_point or values.dtype.is_complex or values.dtype == torch.bool:
        raise ValueError(f"{function}: lengths must be integers, got {values.dtype}")
    values = values.to(device="cpu", dtype=torch.int64)
    each = expanded(f"{function}: lengths", values, leading, "do not broadcast to the leading shape")
    outside = (values < 1) | (values > n)
    if bool(outside.any()):
        first = int(values[outside].flatten()[0])
        raise ValueError(f"{function}: lengths must lie between 1 and n = {n}, got {first}")
    return each.contiguous()


def expanded(
    what: str, tensor: torch.Tensor, shape: Sequence[int], words: str = "does not broadcast to"
) -> torch.Tensor:
    """The tensor as a view of that shape; ValueError where it has none, in these words."""
    try:
        return tensor.expand(tuple(shape))
    except RuntimeError:
        raise ValueError(f"{what} of shape {tuple(tensor.shape)} {words} {tuple(shape)}") from None


def _validate(function: str, name: str, attention: Attention) -> None:
    found = _core.first_invalid(attention.tensor, attention.lengths, LARGEST_ENTRY)
    if found is None:
        return
    matrix, row, column, value = found
    index = (*map(int, np.unravel_index(matrix, attention.leading)), row, column)
    raise ValueError(
        f"{function}: {name} must hold finite entries in [0, {LARGEST_ENTRY}], got {value} at index {index}"
    )
