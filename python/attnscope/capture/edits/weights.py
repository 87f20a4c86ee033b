# SPDX-License-Identifier: MIT
"""An edit of one matrix of a model, found by its role."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from attnscope.capture.edits.edit import Applied, BaseEdit

if TYPE_CHECKING:
    from attnscope.models.architecture import Structure
    from attnscope.models.weight_entries import WeightEntry


@dataclass(frozen=True, eq=False)
class ReplaceWeight(BaseEdit):
    """A matrix W [out, in] becomes W + size·‖W‖_F·u vᵀ, in place, for all who run the model meanwhile.

    Attributes:
        layer: number of the block; negative ones count from the end.
        role: q, k, v, o, gate, up, down, … as `attnscope.weight_map` names them, fused layouts split.
        u: [out], its length does not matter.
        v: [in], likewise.
        size: of the change, relative to the matrix.
        expert: number of a routed expert.
    """

    layer: int
    role: str
    u: Tensor
    v: Tensor
    size: float = 0.05
    expert: int | None = None
    outermost: ClassVar[bool] = True

    def target(self) -> tuple[Any, ...]:
        """See `BaseEdit`."""
        return ("weight", self.layer, self.role, self.expert)

    @contextmanager
    def _installed(self, model: nn.Module, architecture: Structure) -> Iterator[Applied]:
        if torch.is_grad_enabled():
            raise RuntimeError("ReplaceWeight: weights are changed in place; run it under torch.no_grad()")
        entry = self.entry(model)
        with writable(model, entry) as add:
            add(self.change(entry, entry.of(model.get_parameter(entry.tensor))))
            with super()._installed(model, architecture) as applied:
                yield applied

    def hooks(self, model: nn.Module, architecture: Structure, applied: Applied) -> list[Any]:
        """See `BaseEdit`."""

        def after(*_: Any) -> None:
            applied.count += applied.live

        owner = self.entry(model).tensor.rpartition(".")[0]
        return [model.get_submodule(owner).register_forward_hook(after)]

    def entry(self, model: nn.Module) -> WeightEntry:
        """Return the entry of the matrix in a model's map of weights."""
        from attnscope.models.architecture import weight_map

        entries = weight_map(model)
        if not -entries.layers <= self.layer < entries.layers:
            raise ValueError(
                f"ReplaceWeight: layer {self.layer} of {type(model).__name__}, which has {entries.layers} "
                "layers"
            )
        try:
            return entries[self.layer % entries.layers, self.role, self.expert]
        except KeyError as missing:
            raise ValueError(f"ReplaceWeight: no such matrix, {missing.args[0]}") from None

    def change(self, entry: WeightEntry, matrix: Tensor) -> Tensor:
        """Return what is added to the matrix of an entry, [out, in] float64."""
        u, v = (vector.to(matrix.device, torch.float64).flatten() for vector in (self.u, self.v))
        if (len(u), len(v)) != entry.shape:
            raise ValueError(
                f"ReplaceWeight: {entry.title} has shape {entry.shape}, got u and v of {len(u)} and {len(v)}"
            )
        lengths = float(u.norm()) * float(v.norm())
        if not 0 < lengths < float("inf"):
            raise ValueError("ReplaceWeight: u and v must be finite and not 0")
        return self.size * matrix.double().norm() / lengths * torch.outer(u, v)


@contextmanager
def writable(model: nn.Module, entry: WeightEntry) -> Iterator[Callable[[Tensor], None]]:
    """Give a function that makes a matrix what it was plus a change [out, in]; at the end it is as before.

    Raises:
        NotImplementedError: the parameter holds no weights that can be added to.
    """
    parameter = model.get_parameter(entry.tensor)
    if not parameter.is_floating_point() or parameter.is_meta:
        kind = "meta" if parameter.is_meta else str(parameter.dtype)
        raise NotImplementedError(f"ReplaceWeight: {entry.tensor} holds no weights to add to ({kind})")
    before = parameter.detach().clone()
    rows, rows_before = entry.view(parameter.detach()), entry.view(before)

    def add(change: Tensor) -> None:
        rows.copy_(rows_before.double() + change.reshape(rows.shape))

    try:
        yield add
    finally:
        parameter.detach().copy_(before)
