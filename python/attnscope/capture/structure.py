# SPDX-License-Identifier: MIT
"""What edits and hooks need to know of a model: its blocks in order, and where each keeps what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from attnscope.capture import anatomy
from attnscope.capture.anatomy import Parts


class Structure:
    """The blocks of a model.

    Attributes:
        modules: the model's modules by name.
        layers: for each layer its parts, the name of its attention module (None for a layer without one) and
            which call of these modules it is.
        heads: number of heads by attention module.
    """

    def __init__(
        self, model: nn.Module, parts: Mapping[str, Parts], heads: Mapping[str, int] | None = None
    ) -> None:
        self.model = model
        heads = heads or {}
        self.heads = {core: heads[s] for core in parts if (s := anatomy.starred(core)) in heads}
        self.modules = anatomy.named_modules(model)
        self.layers: list[tuple[Parts, str | None, int]] = []
        cores: dict[str, str] = {}
        core: str | None
        for core, one in parts.items():
            if one.block and not anatomy.is_cross(self.modules[core], core):
                cores.setdefault(one.block, core)
        for block in anatomy.blocks(model, self.modules, list(cores)):
            core = cores.get(block)
            self.layers.append((parts[core] if core else Parts(block), core, 0))
        total = anatomy.depth(model)
        if len(self.layers) == 1 and total > 1:  # one block that runs as often as there are layers
            one, core, _ = self.layers[0]
            self.layers = [(one, core, call) for call in range(total)]

    def by_block(self) -> tuple[dict[str, Parts], dict[str, tuple[int, str | None]]]:
        """Parts by attention module (by block without one), and each block's number and attention module."""
        parts = {core or str(one.block): one for one, core, _ in self.layers}
        numbers: dict[str, tuple[int, str | None]] = {}
        counts: dict[str, int] = {}
        for one, core, _ in self.layers:
            block = str(one.block)
            stack = anatomy.starred(block)
            if block not in numbers:
                numbers[block] = (counts.get(stack, 0), core)
                counts[stack] = counts.get(stack, 0) + 1
        return parts, numbers

    def depth_of(self, block: str) -> int:
        """How often the block runs in a pass."""
        return sum(one.block == block for one, _, _ in self.layers)

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.layers)

    def layer(self, function: str, number: int) -> int:
        """The number counted from the front.

        Raises:
            ValueError: when there is no such layer.
        """
        if not -self.depth <= number < self.depth:
            raise ValueError(
                f"{function}: layer {number} of {type(self.model).__name__}, which has {self.depth} layers"
            )
        return number % self.depth

    def place(self, function: str, layer: int, site: str) -> tuple[str, bool, int]:
        """The module at which a site of a layer is seen, whether on the way in, and which of its calls."""
        parts, core, call = self.layers[layer]
        try:
            name, enters = parts.place(core, site)
        except KeyError:
            raise ValueError(f"{function}: site must be one that a module hands on, got {site!r}") from None
        if name is None:
            raise ValueError(
                f"{function}: no place for site {site!r} was found in layer {layer} of "
                f"{type(self.model).__name__}"
            )
        return name, enters, call


def structure_of(model: nn.Module, batch: Mapping[str, Any] | None = None) -> Structure:
    """The structure of a model: from the preflight where its attention can be captured, else of its lists."""
    from attnscope.capture import preflight

    inputs = preflight.trial_inputs(model) or batch
    plan = preflight.Plan(preflight.PLAIN)
    if inputs is not None:
        try:
            plan = preflight.plan_for(model, inputs)
        except RuntimeError:  # its attention cannot be captured; its blocks are still there
            plan = preflight.Plan(preflight.PLAIN)
    return Structure(model, plan.parts, plan.heads)
