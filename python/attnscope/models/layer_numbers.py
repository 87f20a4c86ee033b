# SPDX-License-Identifier: MIT
"""The number of a layer, and how often it ran before in a forward pass.

A layer's number is that of its block among the blocks of its stack, whatever its module says of itself and
however often it runs. A module that several blocks share has the number of the block that runs it; the only
block of a stack, which ALBERT runs as often as it has layers, counts its runs.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping

from torch import nn

from attnscope.models.architecture import block_of, depth, name_pattern, named_modules, numbers_in_stack


class LayerNumbers:
    """The numbers of the layers of one model, counted through its forward passes.

    Attributes:
        single: names of the blocks that are the only one of their stack.
    """

    def __init__(self, model: nn.Module, modules: Mapping[str, nn.Module]) -> None:
        self._modules = modules
        self._depth = depth(model)
        modules_by_name = named_modules(model, every_name=True)
        self._blocks = {
            name: id(module)
            for name, module in modules_by_name.items()
            if isinstance(modules_by_name.get(name.rpartition(".")[0]), nn.ModuleList)
        }
        counts = Counter(map(name_pattern, self._blocks))
        self.single = [n for n in self._blocks if counts[name_pattern(n)] == 1 and n in modules]
        self._numbers: dict[str, tuple[str, int]] = {}
        self._places: dict[int, list[str]] = {}
        for name, module in modules_by_name.items():
            self._places.setdefault(id(module), []).append(name)
        times = Counter(map(id, modules_by_name.values()))
        self._shared = {number for number, count in times.items() if count > 1}
        self._entered: dict[str, int] = {}
        self._calls: dict[tuple[str, int], int] = {}

    def enter_model(self, name: str) -> None:
        """Start the pass of a (sub)model: its shared blocks, in the outermost all layers, count from 0."""
        prefix = f"{name}." if name else ""
        self._entered = {block: n for block, n in self._entered.items() if not block.startswith(prefix)}
        if not name:
            self._calls.clear()

    def enter_block(self, name: str) -> None:
        """Count a run of the only block of a stack."""
        self._entered[name] = self._entered.get(name, -1) + 1

    def entered(self, block: str) -> int:
        """Return how often a block ran before in this pass of its model."""
        return max(0, self._entered.get(block, 0))

    def call(self, stack: str, index: int) -> int:
        """Return how often a layer ran before in this pass, and count this time."""
        count = self._calls[stack, index] = self._calls.get((stack, index), -1) + 1
        return count

    def next(self, core: str) -> tuple[int, int]:
        """Return the number of the layer whose attention module runs, and how often it ran before."""
        if core not in self._numbers:
            self._numbers[core] = self._place(core)
        block, number = self._numbers[core]
        if id(self._modules[core]) in self._shared:
            running = self.running()
            number = number if running is None else running
        elif block in self.single:
            number = self.entered(block)
        return number, self.call(name_pattern(core), number)

    def total(self, core: str) -> int:
        """Return the number of layers in the stack of an attention module, as its names tell it.

        The only block of a stack runs once where the layers of the configuration are a list of blocks, and
        where they are none, as often as the configuration has layers.
        """
        stack = name_pattern(core)
        if id(self._modules[core]) in self._shared:
            around = [self._block_around(place) for place in self._places[id(self._modules[core])]]
            if blocks := [name for name in around if name]:  # none where the blocks are shared themselves
                return 1 + max(numbers_in_stack(name, self._blocks)[name] for name in blocks)
        cores = [name for name in self._modules if name_pattern(name) == stack]
        block, _ = self._place(core)
        if block in self.single and all(
            len(module) != self._depth
            for module in self._modules.values()
            if isinstance(module, nn.ModuleList)
        ):
            return self._depth
        return 1 + max(self._place(name)[1] for name in cores)

    def _block_around(self, name: str) -> str | None:
        """Return the innermost block with one place in the model that a name lies in."""
        parts = name.split(".")
        names = (".".join(parts[:cut]) for cut in range(len(parts), 0, -1))
        return next((n for n in names if self._blocks.get(n, 0) not in {0, *self._shared}), None)

    def _place(self, core: str) -> tuple[str, int]:
        """Return the block of an attention module and its number."""
        block = block_of(core, self._modules)
        if block is not None:
            return block, numbers_in_stack(block, self._blocks)[block]
        return core, numbers_in_stack(core, self._modules)[core]

    def running(self) -> int | None:
        """Return the number of the innermost block that runs now and has one place in the model."""
        names = {number: name for name, number in self._blocks.items() if number not in self._shared}
        frame = sys._getframe(1)
        while frame.f_back is not None:
            if frame.f_code.co_varnames[:1] == ("self",):
                name = names.get(id(frame.f_locals.get("self")))
                if name is not None:
                    return numbers_in_stack(name, self._blocks)[name]
            frame = frame.f_back
        return None


def running_number(model: nn.Module) -> int | None:
    """Return the number of the block of a model that runs now; None where none does."""
    return LayerNumbers(model, named_modules(model)).running()
