# SPDX-License-Identifier: MIT
"""The functions of the core that have a derivative, and the dispatch of calls that must keep the gradient.

A tensor that requires a gradient is handed to an operator of `attnscope.gradients`, which calls the same
function of the core and knows its derivative. The same operators stand for the core inside `torch.compile`,
which cannot look into compiled code. A call that needs neither does not import them.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from attnscope.arguments.transforms import is_forward_mode, is_transformed, refuse_tangent
from attnscope.arguments.unmaterialized import Unmaterialized

#: Public functions whose results carry the gradient of their tensors, and the function of the core of each.
KERNELS = {
    "attention_entropy": "attention_entropy",
    "causal_spectrum": "sink_statistics",
    "effective_rank": "singular_values",
    "fiedler_value": "fiedler_value",
    "geometric_semantic_alignment": "geometric_semantic_alignment",
    "head_divergence": "head_divergence",
    "incoming_attention": "sink_statistics",
    "laplacian_eigenvalues": "laplacian_eigenvalues",
    "laplacian_gap": "laplacian_eigenvalues",
    "laplacian_shape": "laplacian_eigenvalues",
    "lookback": "lookback",
    "marchenko_pastur": "marchenko_pastur",
    "participation_ratio": "participation_ratio",
    "pattern_share": "pattern_share",
    "persistence": "persistence",
    "prompt_divergence": "prompt_divergence",
    "reference_influence": "reference_influence",
    "singular_values": "singular_values",
    "sink_share": "sink_statistics",
    "spectral_gap": "singular_values",
    "spectral_ratio": "singular_values",
    "stable_rank": "singular_values",
    "top_mass": "sink_statistics",
}

#: Public functions in torch operations, whose results carry the gradient without an operator of their own.
IN_TORCH = frozenset(
    {
        "attention_rollout",
        "cka",
        "graph_signal",
        "log_volume",
        "matrix_entropy",
        "recurrent_uncertainty",
        "value_norms",
        "weighted_attention",
    }
)

#: Functions of KERNELS that `torch.vmap` and `torch.func` are refused by: they look at values, or their
#: results differ in size or have a gradient only in part.
NOT_TRANSFORMED = frozenset(
    {
        "causal_spectrum",
        "geometric_semantic_alignment",
        "lookback",
        "marchenko_pastur",
        "persistence",
        "reference_influence",
    }
)

P = ParamSpec("P")
R = TypeVar("R")


def keeps_gradient(function: str, tensor: Tensor) -> bool:
    """Return True if a public function hands the gradient of this tensor on to its result."""
    differentiable = function in KERNELS or function in IN_TORCH
    is_followed = tensor.requires_grad or is_transformed(tensor)
    return is_followed and differentiable and torch.is_grad_enabled()


def takes_transforms(function: str, argument: str) -> bool:
    """Return True if an argument of a public function may be a tensor of `torch.vmap` or `torch.func`."""
    return argument in ("attention", "heads") and function in KERNELS and function not in NOT_TRANSFORMED


def count_of_maps(maps: Tensor) -> int:
    """Return how many matrices [..., q, k] there are, with those of the whole batch inside `torch.vmap`."""
    batch = maps
    while is_transformed(batch):
        batch = torch._C._functorch.get_unwrapped(batch)
    return batch.numel() // (maps.shape[-2] * maps.shape[-1])


#: Types whose values are no tensors.
_NO_TENSORS = frozenset({str, bool, int, float, tuple, type(None)})


def hold_no_tensor(arguments: tuple[Any, ...]) -> bool:
    """Return True if arguments are surely none of them tensors."""
    return _NO_TENSORS.issuperset(map(type, arguments))


def needs_operator(maps: Any, *arguments: Any) -> bool:
    """Return True if a call must be an operator: for a gradient, a compiler or a transform of torch."""
    if torch.compiler.is_compiling():
        return True
    if torch._C._are_functorch_transforms_active() and any(map(is_transformed, (maps, *arguments))):
        return True
    # a loop: a generator takes twice as long, on every call
    for value in (maps, *arguments):
        # the class of tensors takes its time to say that a number is none
        if type(value) not in _NO_TENSORS and isinstance(value, Tensor) and value.requires_grad:
            return True
    return False


def operator_of(function: str) -> Callable[..., Any]:
    """Return the operator that stands for the core in a public function.

    It takes the arguments of the core's function, sizes and places as `sizes_of` returns them, and returns
    its results.

    Raises:
        NotImplementedError: the function has no derivative.
    """
    # an import statement, because torch.compile cannot follow importlib
    from attnscope.gradients.catalogue import OPERATORS

    if function not in KERNELS:
        raise NotImplementedError(f"{function} has no derivative and cannot be compiled; detach its tensor")
    return OPERATORS[KERNELS[function]]


def sizes_of(extent: Any, maps: Tensor) -> Tensor | None:
    """Return the lengths of maps, and the places of the queries of rectangles, as operators take them."""
    from attnscope.gradients.operators import sizes_argument

    return sizes_argument(extent, maps)


def sum_over_bars(function: str) -> Callable[..., Any]:
    """Return a public function of barcodes in torch operations."""
    from attnscope.gradients.catalogue import OF_BARS

    return OF_BARS[function]


def followed_tensor(argument: Any) -> Tensor | None:
    """Return the tensor that requires a gradient in an argument, None where there is none.

    The argument is the tensor itself, lazy attention of one, or a result that holds one: a named tuple, a
    list, barcodes.
    """
    if isinstance(argument, Tensor):
        return argument if argument.requires_grad else None
    if isinstance(argument, Unmaterialized):
        return argument.followed
    parts: Iterable[Any] = ()
    if isinstance(argument, (tuple, list)):
        parts = argument
    elif dataclasses.is_dataclass(argument):
        parts = (getattr(argument, field.name) for field in dataclasses.fields(argument))
    return next((part for part in parts if isinstance(part, Tensor) and part.requires_grad), None)


def _refuse_tangents(name: str, bound: inspect.BoundArguments) -> None:
    """Raise for an argument of a function that carries its derivative forwards."""
    for label, value in bound.arguments.items():
        if isinstance(value, Tensor):
            refuse_tangent(name, label, value)


def without_derivative(reason: str, name: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function of attention that has no derivative, with the reason as the end of a sentence.

    Its numbers are those of detached tensors. Where an argument, by position or by name, is or holds a tensor
    that requires a gradient, going backwards through floating-point results raises NotImplementedError with
    the function's name, or with the one that is given; counts and flags never require one. An argument that
    carries its derivative forwards is refused before anything is computed: inside `torch.func.jvp` whatever
    is computed of the other arguments is hidden too.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> R:
            if is_forward_mode():
                bound = inspect.signature(function).bind(*arguments, **options)
                _refuse_tangents(name or function.__name__, bound)
            if not torch.is_grad_enabled():
                return function(*arguments, **options)
            for argument in (*arguments, *options.values()):
                if type(argument) in _NO_TENSORS or (source := followed_tensor(argument)) is None:
                    continue
                # what the function calls would refuse under names that the caller does not know
                with torch.no_grad():
                    result = function(*arguments, **options)
                from attnscope.gradients.refusal import refuse_backward

                sentence = f"{name or function.__name__} has no derivative: {reason}"
                refused: R = refuse_backward(result, source, sentence)
                return refused
            return function(*arguments, **options)

        return call

    return decorate
