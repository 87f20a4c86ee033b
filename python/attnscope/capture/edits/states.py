# SPDX-License-Identifier: MIT
"""Edits of what modules hand on: states at chosen layers and positions, and logits."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from attnscope._checks import as_tensor
from attnscope.capture.edits.edit import Applied, BaseEdit
from attnscope.capture.module_tracing import hook, is_tokens_first

if TYPE_CHECKING:
    from attnscope.models.architecture import Structure


#: Whether directions are added as tangents, in a pass differentiated along them.
TANGENT: ContextVar[bool] = ContextVar("attnscope_tangent", default=False)


class _AtSite(BaseEdit):
    """Acts on one site of some layers, by hooks."""

    site: str

    def layers_of(self, architecture: Structure) -> list[int]:
        """Return the layers that the edit acts on."""
        raise NotImplementedError

    def changed(self, states: Tensor, applied: Applied) -> Tensor:
        """Return the states [B, n, D] that replace a layer's states."""
        raise NotImplementedError

    def hooks(self, model: nn.Module, architecture: Structure, applied: Applied) -> list[Any]:
        """See `BaseEdit`."""
        by_place: dict[tuple[str, bool], set[int | None]] = {}
        for layer in self.layers_of(architecture):
            name, enters, call = architecture.place(self.name, layer, self.site)
            by_place.setdefault((name, enters), set()).add(call)
        return [
            self._hook(architecture.modules[name], enters, calls, applied, name in architecture.tokens_first)
            for (name, enters), calls in by_place.items()
        ]

    def _hook(
        self,
        module: nn.Module,
        enters: bool,
        calls: set[int | None],
        applied: Applied,
        has_tokens_first: bool,
    ) -> Any:
        def act(states: Tensor) -> Tensor | None:
            if not applied.live or calls.isdisjoint((None, applied.where.call_index((id(module), enters)))):
                return None
            size = len(applied.where.mask), applied.where.queries
            if is_tokens_first(states, *size, was_seen=has_tokens_first):
                return act_on(states.transpose(0, 1)).transpose(0, 1)
            if states.numel() % (size[0] * size[1]):
                raise NotImplementedError(
                    f"{self.name}: {type(module).__name__} hands on a tensor of shape {tuple(states.shape)} "
                    f"for {size[0]} texts of {size[1]} tokens, so a token's states are not known"
                )
            return act_on(states)

        def act_on(states: Tensor) -> Tensor:
            size = len(applied.where.mask), applied.where.queries
            return self.changed(states.reshape(*size, -1), applied).reshape(states.shape)

        return hook(module, enters=enters, act=act)


@dataclass(frozen=True, eq=False)
class _AtPositions(_AtSite):
    layer: int
    value: Tensor
    positions: str | Sequence[int] | Tensor = "last"
    steps: str = "first"
    site: str = "block_output"

    def __post_init__(self) -> None:
        if isinstance(self.positions, str) and self.positions not in ("last", "all"):
            raise ValueError(
                f"{self.name}: positions must be 'last', 'all' or numbers, got {self.positions!r}"
            )
        if self.steps not in ("first", "all"):
            raise ValueError(f"{self.name}: steps must be 'first' or 'all', got {self.steps!r}")
        if not torch.is_tensor(self.value) or not bool(self.value.isfinite().all()):
            raise ValueError(f"{self.name}: value must be a tensor of finite numbers")

    def layers_of(self, architecture: Structure) -> list[int]:
        """See `_AtSite`."""
        return [architecture.layer(self.name, self.layer)]

    def changed(self, states: Tensor, applied: Applied) -> Tensor:
        """See `_AtSite`."""
        applied.count += 1
        if self.steps == "first" and not applied.where.reads_prompt(self.name):
            return states
        chosen = applied.where.columns(self.name, self.positions).to(states.device)
        return torch.where(chosen[..., None], self.new(states, self.fitted(states)), states)

    def fitted(self, states: Tensor) -> Tensor:
        """Return the value as wide as the states, [D], [B, 1, D] or [B, n, D]."""
        batch, n, width = states.shape
        value = self.value.to(states)
        if value.numel() == width:
            return value.reshape(width)
        if value.numel() in (batch * width, batch * n * width) and len(value) == batch:
            return value.reshape(batch, -1, width)
        raise ValueError(
            f"{self.name}: value must have shape [{width}], [{batch}, {width}] or "
            f"[{batch}, {n}, {width}], got {tuple(value.shape)}"
        )

    def new(self, states: Tensor, value: Tensor) -> Tensor:
        """Return the new values of the chosen states."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class AddDirection(_AtPositions):
    """The value is added to the states of a layer, each time that a pass runs it.

    Attributes:
        layer: number of the block; negative ones count from the end. A block that is the only one and runs
            as often as there are layers (ALBERT) has the numbers of its runs.
        value: [D], [B, D] or [B, n, D].
        positions: "last", "all", or numbers counted from each sample's first real token, negative ones from
            its end.
        steps: "first" acts on the prompt, behind a filled cache too, "all" on every step of a generation as
            well. Without a cache every step reads a prompt of its own.
        site: any site of a layer but those of the attention itself.
    """

    def new(self, states: Tensor, value: Tensor) -> Tensor:
        """See `_AtPositions`."""
        if not TANGENT.get():
            return states + value
        unpack: Any = forward_ad.unpack_dual
        make: Any = forward_ad.make_dual
        primal, tangent = unpack(states)
        along = value.expand_as(primal)
        return make(primal, along.clone() if tangent is None else tangent + along)


@dataclass(frozen=True, eq=False)
class SetState(_AtPositions):
    """The value takes the place of the states of a layer.

    Attributes:
        layer, value, positions, steps, site: as for `AddDirection`.
    """

    def target(self) -> tuple[Any, ...]:
        """See `BaseEdit`."""
        where = self.positions
        named = (
            where
            if isinstance(where, str)
            else str(as_tensor(type(self).__name__, "positions", where).tolist())
        )
        return ("state", self.layer, self.site, named)

    def new(self, states: Tensor, value: Tensor) -> Tensor:
        """See `_AtPositions`."""
        return value.expand_as(states)


@dataclass(frozen=True, eq=False)
class Project(_AtPositions):
    """The part of the states of a layer that lies in a subspace is taken away.

    Attributes:
        layer, positions, steps, site: as for `AddDirection`.
        value: a direction [D] or several that span the subspace, [k, D]; k = 0 takes nothing.
    """

    def fitted(self, states: Tensor) -> Tensor:
        """Return the directions as an orthonormal basis, [k, D]."""
        basis = self.value.to(states.device, torch.float64).reshape(-1, self.value.shape[-1])
        if basis.shape[1] != states.shape[-1]:
            raise ValueError(
                f"Project: value must have width {states.shape[-1]}, got shape {tuple(self.value.shape)}"
            )
        if bool((basis.norm(dim=1) == 0).any()):
            raise ValueError("Project: value must not hold a direction of norm 0")
        return torch.linalg.qr(basis.mT).Q.mT

    def new(self, states: Tensor, value: Tensor) -> Tensor:
        """See `_AtPositions`."""
        if not len(value):
            return states
        wide = states.double()
        return (wide - (wide @ value.mT) @ value).to(states)


@dataclass(frozen=True, eq=False)
class Scale(_AtSite):
    """A site is multiplied by a factor in some layers, each time that a pass runs them.

    Attributes:
        site: any site of a layer but those of the attention itself.
        factor: a number, or a tensor that fits the site's last axes: [h, 1] weighs the heads of
            ``head_output``.
        layers: numbers of blocks; None for all.
    """

    site: str
    factor: float | Tensor
    layers: Sequence[int] | None = None

    def layers_of(self, architecture: Structure) -> list[int]:
        """See `_AtSite`."""
        if self.layers is None:
            return list(range(architecture.depth))
        return [architecture.layer(self.name, layer) for layer in self.layers]

    def changed(self, states: Tensor, applied: Applied) -> Tensor:
        """See `_AtSite`."""
        applied.count += 1
        factor = torch.as_tensor(self.factor, dtype=states.dtype, device=states.device)
        if factor.ndim < 2:
            return states * factor
        split: Tensor = states.reshape(*states.shape[:-1], factor.shape[0], -1) * factor
        return split.flatten(-2)


@dataclass(frozen=True, eq=False)
class AddLogits(BaseEdit):
    """Values are added to the model's logits, at every position.

    Attributes:
        values: [V], or anything that broadcasts over [B, n, V].
        steps: as for `AddDirection`.
    """

    values: Tensor
    steps: str = "all"

    def hooks(self, model: nn.Module, architecture: Structure, applied: Applied) -> list[Any]:
        """See `BaseEdit`."""

        def after(_: nn.Module, args: Any, output: Any) -> Any:
            if not applied.live:
                return None
            logits = getattr(output, "logits", None)
            if logits is None:
                raise TypeError(
                    f"AddLogits: {type(model).__name__} gives no logits; load it with its vocabulary head"
                )
            applied.count += 1
            if self.steps != "first" or applied.where.reads_prompt(self.name):
                output["logits"] = logits + self.values.to(logits)
            return output

        return [model.register_forward_hook(after)]
