# SPDX-License-Identifier: MIT
"""A forward pass that is differentiated: backwards from a number, or along directions that edits add.

The pass does not stream. It runs in the caller's thread, keeps the sites asked for in the graph, computes
attention out of place, and its layers come when the gradients are there. Parameters are frozen unless asked
for; their flags and their ``.grad`` are afterwards as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from attnscope._memory import free_bytes
from attnscope.capture.edits.states import TANGENT
from attnscope.capture.outputs import Outputs
from attnscope.capture.sites import checked

if TYPE_CHECKING:
    from attnscope.capture.recorder import Recorder

REVERSE, FORWARD = "reverse", "forward"
# Made beside the arithmetic: nothing passes through it.
_ASIDE = frozenset({"lse"})


@dataclass(frozen=True)
class Gradient:
    """A derivative: the differentiated value, and the tensors and parameters it is taken for.

    Attributes:
        of: makes the value from the pass's `Outputs`: a number for ``reverse``, any tensor for ``forward``.
        at: sites of layers; ``layer.gradients[site]`` is the gradient of the value with respect to the site
            (``reverse``), or the derivative of the site along the directions (``forward``).
        parameters: which parameters get a gradient besides, by name; ``reverse`` only. They come in
            ``outputs.parameters``.
        mode: ``"reverse"``, or ``"forward"``: each `AddDirection` among the edits adds its value as a
            tangent, so that the states stay as they are and ``outputs.derivative`` is the derivative of the
            value along it.
    """

    of: Callable[[Outputs], Tensor]
    at: tuple[str, ...] = ()
    parameters: Callable[[str], bool] | None = None
    mode: str = REVERSE

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", checked("Gradient", self.at))
        if aside := sorted(_ASIDE & set(self.at)):
            raise ValueError(f"Gradient: nothing passes through {aside}; take the gradient at 'scores'")
        if self.mode not in (REVERSE, FORWARD):
            raise ValueError(f"Gradient: mode must be 'reverse' or 'forward', got {self.mode!r}")
        if self.mode == FORWARD and self.parameters is not None:
            raise ValueError("Gradient: mode 'forward' takes no parameters")


def check_precision(model: nn.Module) -> None:
    """Raise for a model whose gradients would under- and overflow."""
    half = {str(p.dtype) for p in model.parameters() if p.is_floating_point() and p.dtype.itemsize < 4}
    if half:
        raise ValueError(
            f"Gradient: gradients in {', '.join(sorted(half))} under- and overflow; load "
            f"{type(model).__name__} in float32"
        )


@contextmanager
def within(limit: int | None) -> Iterator[None]:
    """Stop the pass before its graph holds more memory than is allowed."""
    limit = free_bytes() if limit is None else min(limit, free_bytes())
    seen: set[int] = set()
    held = 0

    def keep(tensor: Tensor) -> Tensor:
        nonlocal held
        storage = tensor.untyped_storage()
        if not isinstance(tensor, nn.Parameter) and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            held += storage.nbytes()
            if held > limit:
                raise MemoryError(
                    f"Gradient: the graph of this pass holds {held / 2**20:.1f} MiB, where "
                    f"{limit / 2**20:.1f} may be had; take fewer or shorter texts, or later layers"
                )
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        yield


@contextmanager
def differentiating(request: Gradient, max_memory: int | None) -> Iterator[None]:
    """Set the modes of a pass with a gradient."""
    if request.mode == REVERSE:
        with torch.enable_grad(), within(max_memory):
            yield
        return
    token = TANGENT.set(True)
    try:
        with torch.no_grad(), forward_ad.dual_level():
            yield
    finally:
        TANGENT.reset(token)


def backward(
    request: Gradient, outputs: Outputs, recorder: Recorder, parameters: dict[str, nn.Parameter]
) -> None:
    """Compute the gradients and store them in the layers and the outputs."""
    value = request.of(outputs)
    if not torch.is_tensor(value) or value.numel() != 1:
        shape = tuple(value.shape) if torch.is_tensor(value) else type(value).__name__
        raise ValueError(f"Gradient: of must give one number, got {shape}")
    places = [(builder, site) for builder in recorder.builders for site in builder.roots]
    sources: list[Tensor] = [*(builder.roots[site] for builder, site in places), *parameters.values()]
    if not sources or not value.requires_grad:
        raise ValueError(f"Gradient: the value depends on none of {[*request.at, *parameters]}")
    gradients = torch.autograd.grad(value.reshape(()), sources, allow_unused=True)
    for (builder, site), source, gradient in zip(places, sources, gradients, strict=False):
        flat = torch.zeros_like(source) if gradient is None else gradient
        builder.layer.gradients[site] = builder.shaped(site, flat.detach())
    for (name, parameter), gradient in zip(parameters.items(), gradients[len(places) :], strict=True):
        outputs.parameters[name] = torch.zeros_like(parameter) if gradient is None else gradient
    outputs.value = value.detach()


def tangents(request: Gradient, outputs: Outputs, recorder: Recorder) -> None:
    """Unpack the tangents of the value and of the sites."""
    outputs.value, outputs.derivative = unpacked(request.of(outputs))
    for builder in recorder.builders:
        for site, dual in builder.roots.items():
            builder.layer.gradients[site] = builder.shaped(site, unpacked(dual)[1])


def unpacked(dual: Tensor) -> tuple[Tensor, Tensor]:
    """Return the value and the tangent of a tensor, 0 where it carries none."""
    unpack: Any = forward_ad.unpack_dual
    primal, tangent = unpack(dual)
    return primal.detach(), torch.zeros_like(primal) if tangent is None else tangent.detach().clone()
