# SPDX-License-Identifier: MIT
"""The same values give the same bits, however they lie in memory: in every function of tensors.

The one exception is `local_global_ratio` of eight heads or more that lie side by side, entry by entry: a lane
holds a head there, and its rows are added up in their order. It is right to rounding.
"""

import pytest
import torch

import attnscope as asc
from every_call import answer, equal_results, every_call

CALLS = {name: (function, arguments) for name, function, arguments in every_call()}


def transposed(tensor):
    return tensor.mT.contiguous().mT


def reversed_axes(tensor):
    order = tuple(reversed(range(tensor.ndim)))
    return tensor.permute(order).contiguous().permute(order)


def first_axis_fastest(tensor):
    return tensor.movedim(0, -1).contiguous().movedim(-1, 0)


def every_second_column(tensor):
    return torch.stack([tensor, torch.zeros_like(tensor)], -1).flatten(-2)[..., ::2]


def inside_wider_rows(tensor):
    return torch.nn.functional.pad(tensor, (1, 2), value=7.0)[..., 1:-2]


def at_an_odd_address(tensor):
    flat = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:]
    return flat.copy_(tensor.flatten()).view(tensor.shape)


LAYOUTS = (
    *(transposed, reversed_axes, first_axis_fastest),
    *(every_second_column, inside_wider_rows, at_an_odd_address),
)


def moved(value, layout):
    """Return a tensor, or a list of tensors, in another layout; None where there is no such thing."""
    tensors = value if isinstance(value, list) else [value]
    if not tensors or not all(
        isinstance(tensor, torch.Tensor) and tensor.ndim > 1 and tensor.is_floating_point()
        for tensor in tensors
    ):
        return None
    laid_out = [layout(tensor) for tensor in tensors]
    assert all(map(torch.equal, tensors, laid_out))
    return laid_out if isinstance(value, list) else laid_out[0]


def in_type(value, dtype):
    is_tensor = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if is_tensor and value.ndim > 1 else value


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_results_do_not_depend_on_the_layout_of_their_tensors(name, dtype):
    function, arguments = CALLS[name]
    plain = {key: in_type(value, dtype) for key, value in arguments.items()}
    expected = answer(function, plain)
    for key, value in plain.items():
        for layout in LAYOUTS:
            if (other := moved(value, layout)) is not None:
                result = answer(function, {**plain, key: other})
                assert equal_results(result, expected), f"{key} {layout.__name__}"


@pytest.mark.parametrize(("precision", "bound"), [("exact", 1e-14), ("fast", 1e-6)])
def test_localities_of_heads_side_by_side_are_those_of_rows_side_by_side(precision, bound):
    maps = torch.rand(16, 40, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(5)).tril()
    maps /= maps.sum(-1, keepdim=True)
    by_rows = asc.local_global_ratio(maps, precision=precision)
    by_heads = asc.local_global_ratio(first_axis_fastest(maps), precision=precision)
    torch.testing.assert_close(by_heads, by_rows, rtol=bound, atol=0)
