# SPDX-License-Identifier: MIT
"""Edits of a model's run: each is installed for a while and counts how often it acted.

An edit acts in one of four ways: on what goes into the model, on what a module hands on (hooks), on the
argument of the softmax (a bias), or on weights and buffers (in place). The first three act in the context
that installed them alone: another thread's pass over the same model is left as it is. Weights and buffers
belong to the model, so an edit of them is seen by all who run it meanwhile.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from attnscope.capture.module_tracing import CACHE, cached_tokens, takes
from attnscope.capture.visibility import visible_entries
from attnscope.models.architecture import is_cross, text_modules
from attnscope.models.layer_numbers import running_number

if TYPE_CHECKING:
    from attnscope.models.architecture import Structure


def cache_name(model: nn.Module) -> str:
    """Return this model's name for the keys and values of earlier passes, as an argument and in its
    output.
    """
    return next((name for name in CACHE if takes(model, name)), CACHE[-1])


class PassPosition:
    """The place of a forward pass in its sequences.

    Attributes:
        root: the module whose pass it is; None between passes.
        mask: ``[B, past + n]`` bool, True at real tokens.
        past: tokens that came in earlier passes and are cached.
        first: ``[B]``, column of each sample's first real token.
        last: ``[B]``, column of its last one.
        offsets: by number of keys, the positions of the first query and of the first key.
        calls: how often modules without a layer number ran in this pass.
    """

    def __init__(self) -> None:
        self.root: nn.Module | None = None
        self.past = 0
        # Of the pass before this one: whether it read a prompt, and how many tokens there were behind it.
        self._before: tuple[bool, int] | None = None
        self._is_in_pieces = False
        self.mask = torch.ones(0, 0, dtype=torch.bool, device="cpu")
        self.offsets: dict[int, tuple[int, int]] = {}
        self.calls: dict[Any, int] = {}

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Note the arguments of a model or of a model inside it."""
        # After an interrupted pass the root is still there; it, or what holds it, starts another one.
        outermost = self.root is None or any(m is self.root for m in module.modules())
        tokens = next(
            (
                t
                for t in (*args[:1], kwargs.get("input_ids"), kwargs.get("inputs_embeds"))
                if torch.is_tensor(t) and t.ndim >= 2
            ),
            None,
        )
        if tokens is None:
            return
        batch, n = tokens.shape[:2]
        if outermost:
            self._before = (not self.is_step, self.mask.shape[1]) if self.mask.numel() else None
            self.root = module
            self.calls.clear()
            self.offsets.clear()
        mask = kwargs.get("attention_mask")
        if torch.is_tensor(mask) and mask.ndim == 2:
            self.mask = mask.to(torch.bool)
        elif outermost or self.mask.shape[0] != batch:
            past = cached_tokens(kwargs)
            real = torch.ones(batch, past + n, dtype=torch.bool, device=tokens.device)
            pairs = next(iter(mask.values()), None) if isinstance(mask, Mapping) else mask
            if torch.is_tensor(pairs) and pairs.ndim == 4:  # made ahead, for a cache of fixed size
                if not past:
                    real &= visible_entries(pairs).flatten(1, 2).any(1)[:, :n].to(real.device)
                elif self.mask.shape == (batch, past):
                    real[:, :past] = self.mask.to(real.device)
            self.mask = real
        self.past = max(0, self.mask.shape[1] - n)
        if outermost:
            self._is_in_pieces = _reads_prompt_in_pieces(self.mask.shape[1])

    @property
    def is_step(self) -> bool:
        """True where the pass is behind those that read the prompt.

        The first pass reads a prompt, whatever a cache held before.
        """
        return bool(self.past) and self._before is not None and not self.is_piece

    @property
    def is_piece(self) -> bool:
        """True for tokens that go on with a prompt of which the pass before read the beginning."""
        # a last piece of one token looks like a step of the generation
        may_be = self.queries > 1 or self._is_in_pieces
        return may_be and self.past > 0 and self._before == (True, self.past)

    @property
    def queries(self) -> int:
        """Tokens of this pass."""
        return self.mask.shape[1] - self.past

    def reads_prompt(self, function: str) -> bool:
        """Return True where the pass reads a prompt, False for a step of a generation.

        Args:
            function: whose name errors begin with.

        Raises:
            NotImplementedError: a piece of a prompt, or several tokens behind another pass, which may be one.
        """
        if self.past and self._before is not None and (self.queries > 1 or self.is_piece):
            number = "one token" if self.queries == 1 else f"{self.queries} tokens"
            raise NotImplementedError(
                f"{function}: a pass of {number} behind {self.past} in the cache may be a piece "
                "of the prompt, another prompt, or tokens that were guessed; let the model read a prompt in "
                "one pass and write without an assistant, and begin a block of the edit for each prompt "
                "behind a cache"
            )
        return not self.is_step

    @property
    def first(self) -> Tensor:
        """Column of each sample's first real token."""
        return self.mask.int().argmax(-1)

    @property
    def last(self) -> Tensor:
        """Column of each sample's last real token."""
        return self.mask.shape[1] - 1 - self.mask.flip(-1).int().argmax(-1)

    def columns(
        self, function: str, positions: str | Sequence[int] | Tensor, *, cached: bool = False
    ) -> Tensor:
        """Return which of this pass's tokens (with ``cached``: of all so far) are at the positions, bool [B,
        n].

        Args:
            function: whose argument the positions are.
            positions: ``"last"``, ``"all"``, or numbers [p] or [B, p], counted from each sample's first real
                token, negative ones from its end.
            cached: count from the beginning of the cache.

        Raises:
            ValueError: for positions that the shortest sample does not have, or that are no whole numbers.
            NotImplementedError: positions from the end of a prompt that is read in pieces.
        """
        batch, total = self.mask.shape
        columns = torch.arange(0 if cached else self.past, total, device=self.mask.device)
        if isinstance(positions, str):
            if positions == "all":
                return torch.ones(batch, len(columns), dtype=torch.bool, device=columns.device)
            self._refuse_piece(function)
            return columns[None] == self.last[:, None]
        chosen = torch.as_tensor(positions, device=columns.device)
        places = chosen.to(torch.int64)
        if bool((places < 0).any()):
            self._refuse_piece(function)
        if bool((places != chosen).any()):
            raise ValueError(f"{function}: positions must be whole numbers, got {chosen.tolist()}")
        places = (places if places.ndim == 2 else places.reshape(1, -1)).expand(batch, -1)
        shortest = int(self.mask.sum(-1).min())
        if places.numel() and not -shortest <= int(places.min()) <= int(places.max()) < shortest:
            raise ValueError(
                f"{function}: positions must lie between {-shortest} and {shortest - 1} (the shortest "
                f"sample), got {places.tolist()}"
            )
        column = torch.where(places < 0, self.last[:, None] + 1 + places, self.first[:, None] + places)
        return (columns[None, :, None] == column[:, None]).any(-1)

    def _refuse_piece(self, function: str) -> None:
        if self.is_piece:
            raise NotImplementedError(
                f"{function}: the prompt is read in pieces, whose last tokens are not its own; count "
                "positions from its beginning, or let the model read it in one pass"
            )

    def call_index(self, module: Any) -> int:
        """Return the zero-based call index of the module in this pass, and advance it."""
        count = self.calls[module] = self.calls.get(module, -1) + 1
        return count


def _reads_prompt_in_pieces(tokens: int) -> bool:
    """Return True inside transformers' `generate` where a pass reads a piece of the prompt.

    Nothing that a model is given tells a piece of one token from a step. Before transformers 5 the last token
    of a prompt in pieces is read where steps are.

    Args:
        tokens: that were read with this pass.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_name.startswith("_prefill") and len(frame.f_locals.get("input_chunks", ())) > 1:
            return True
        if frame.f_code.co_name == "generate" and "input_ids_length" in frame.f_locals:
            return tokens <= int(frame.f_locals["input_ids_length"])
    return False


class Applied:
    """An installed edit.

    Attributes:
        edit: the edit.
        model: that is edited.
        depth: number of its layers, over all stacks of its text.
        count: how often it acted.
        where: the state of the pass under way.
    """

    def __init__(self, edit: Any, model: nn.Module, architecture: Structure) -> None:
        self.edit = edit
        self.model = model
        self.depth = architecture.depth
        self._layers = architecture.numbers()
        self.count = 0
        self.where = PassPosition()
        self._of_text = {
            id(module) for name, module in text_modules(model).items() if not is_cross(module, name)
        }

    def mixes_tokens(self, module: nn.Module) -> bool:
        """Return True if an attention module's queries and keys are tokens of the edited model's text."""
        return id(module) in self._of_text

    def layer(self, module: nn.Module) -> int:
        """Return the number of the layer whose attention module runs, as other edits count layers."""
        number = self._layers.get(id(module), getattr(module, "layer_idx", None))
        if type(number) is int and number < 0:  # a module that several blocks share
            number = running_number(self.model)
        return self.where.call_index("attention") if type(number) is not int else number

    @property
    def live(self) -> bool:
        """True if the running code is inside the edit."""
        return any(applied is self for applied in ACTIVE.get())


#: The edits that the running code is inside of, outermost first.
ACTIVE: ContextVar[tuple[Applied, ...]] = ContextVar("attnscope_edits", default=())


@runtime_checkable
class Edit(Protocol):
    """A change of how a model runs. Other kinds of edits need `install` alone."""

    def install(
        self, model: nn.Module, architecture: Structure, batch: Mapping[str, Any] | None
    ) -> AbstractContextManager[Applied]:
        """Change the model's runs inside the block and restore the model after it."""


class BaseEdit:
    """The base class of the edits of this package.

    Attributes:
        outermost: weights and inputs are changed before the rest.
        of_softmax: acts on the argument of the softmax, which needs our attention function.
    """

    outermost: ClassVar[bool] = False
    of_softmax: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """As errors call it."""
        return type(self).__name__

    def target(self) -> tuple[Any, ...] | None:
        """Return a key that only one active edit may hold; None if edits of this kind add up."""
        return None

    def prepare(self, model: nn.Module) -> None:
        """Run trial passes of the model, before hooks are installed."""

    def install(
        self, model: nn.Module, architecture: Structure, batch: Mapping[str, Any] | None
    ) -> AbstractContextManager[Applied]:
        """See `Edit`."""
        return self._installed(model, architecture)

    @contextmanager
    def _installed(self, model: nn.Module, architecture: Structure) -> Iterator[Applied]:
        applied = Applied(self, model, architecture)
        handles: list[Any] = []
        token = ACTIVE.set((*ACTIVE.get(), applied))
        try:
            handles += follow(model, applied)
            handles += self.hooks(model, architecture, applied)
            yield applied
        finally:
            for handle in handles:
                handle.remove()
            ACTIVE.reset(token)

    def hooks(self, model: nn.Module, architecture: Structure, applied: Applied) -> list[Any]:
        """Register the hooks of the edit and return their handles."""
        return []


def follow(model: nn.Module, applied: Applied) -> list[Any]:
    """Install hooks that keep `applied.where` up to date."""
    from transformers import PreTrainedModel

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if applied.live:
            applied.where.enter(module, args, kwargs)

    def leave(module: nn.Module, *_: Any) -> None:
        if applied.live and applied.where.root is module:
            applied.where.root = None

    handles: list[Any] = []
    for module in [m for m in model.modules() if isinstance(m, PreTrainedModel)] or [model]:
        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(module.register_forward_hook(leave))
    return handles
