# SPDX-License-Identifier: MIT
"""Puts the tensors of one forward pass together, layer by layer, and hands each finished layer on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.capture import anatomy
from attnscope.capture.layer import Layer

# The consumer of the forward pass under way. A context variable: another thread's forward pass on the same
# model, or one that the consumer runs between two layers, does not see it and is left alone.
LIVE: ContextVar[Recorder | None] = ContextVar("attnscope_capture", default=None)

LATE = frozenset({"attention_output", "mlp_output", "block_output"})
# Additive masks go from -10000 (old models) to the smallest float; an ALiBi bias in a mask stays far above.
MASKED_BELOW = -9000.0


class Draft:
    """A layer that is being computed."""

    def __init__(self, stack: str, index: int, call: int, name: str) -> None:
        self.stack, self.index, self.call, self.name = stack, index, call, name
        self.tensors: dict[str, Tensor] = {}
        self.heads: list[int] = []
        self.kv_heads: list[int] = []
        self.valid = torch.empty(0)
        self.key_offset = 0
        self.cross = False
        self.wanted = False
        self.size = (0, 0)
        self.full: Tensor | None = None
        self._scratch: Callable[[tuple[int, ...]], Tensor] | None = None

    def storage(self, samples: slice, span: slice, shape: tuple[int, ...]) -> Tensor:
        """Where the probabilities of one tile are computed: in the layer itself if all its heads are kept."""
        if self.full is not None:
            return self.full[samples, span]
        assert self._scratch is not None
        return self._scratch(shape)

    def keep(self, samples: slice, span: slice, probabilities: Tensor) -> None:
        """Copies the kept heads of one tile out of the scratch memory."""
        if self.full is not None or "attention" not in self.tensors:
            return
        for position, head in enumerate(self.heads):
            if span.start <= head < span.stop:
                self.tensors["attention"][samples, position] = probabilities[:, head - span.start]


class Recorder:
    """Listens to one forward pass (or to the many of one ``generate``).

    Args:
        model: the model, already unwrapped.
        sites: which tensors to keep.
        layers: layer numbers to keep, negative ones counted from the end of each stack; None keeps all.
        heads: head numbers to keep, likewise.
        stacks: number of layers of each stack, from the preflight.
        chunk: heads per tile; None lets the size of the maps decide.
        emit: receives each finished layer; may block, may raise.
        parts: block, output projection and feed-forward module by attention module, for the sites that need
            them.
        unmasked: causal stacks that are known to run without a mask.
    """

    def __init__(
        self,
        model: nn.Module,
        emit: Callable[[Layer], None],
        *,
        sites: Collection[str] = ("attention",),
        layers: Collection[int] | None = None,
        heads: Collection[int] | None = None,
        stacks: dict[str, int] | None = None,
        chunk: int | None = None,
        parts: dict[str, tuple[str | None, str | None, str | None]] | None = None,
        unmasked: Collection[str] = (),
    ) -> None:
        self.emit = emit
        self.sites = frozenset(sites)
        self.layers, self.heads, self.chunk = layers, heads, chunk
        self.stacks = dict(stacks or {})
        self.indices: dict[str, set[int]] = {}
        self.parts = parts or {}
        self.unmasked = set(unmasked)
        self.modules = anatomy.named_modules(model)
        self.names = {id(module): name for name, module in self.modules.items()}
        self.root = model
        self.count: dict[tuple[Any, ...], int] = {}
        self.seen = 0
        self.step = -1
        self.offsets: dict[int, int] = {}
        self.input_mask: Tensor | None = None
        self.waiting: dict[str, list[Draft]] = {}
        self.blocks: dict[str, dict[str, Tensor]] = {}
        self.inputs: dict[str, Tensor] = {}
        self.projections: dict[str, Tensor] = {}
        self.trace: anatomy.Trace | None = None
        self.pulse: Callable[[], None] = lambda: None
        self._simple = not anatomy.takes(model, "decoder_input_ids")
        self._masks: list[tuple[Tensor, Tensor]] = []
        self._buffer = torch.empty(0)

    # Which layer is this -------------------------------------------------------------------------------

    def owns(self, module: nn.Module) -> bool:
        """Whether the module belongs to the captured model."""
        return id(module) in self.names

    def _enter_model(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A (sub)model's forward pass starts: the call counters of the stacks below it start again."""
        prefix = f"{name}." if name else ""
        self.count = {
            k: c for k, c in self.count.items() if not str(k[0]).startswith(anatomy.starred(prefix))
        }
        if not name:
            self.step += 1
            self.offsets.clear()
            self._masks.clear()
            mask = kwargs.get("attention_mask")
            self.input_mask = mask if torch.is_tensor(mask) and mask.ndim == 2 else None

    def locate(self, module: nn.Module) -> tuple[str, str, int, int]:
        """Name, stack, layer number and call number of an attention module that has just run.

        The layer number is the module's own ``layer_idx``; without one, the order of calls in the stack
        (shared modules, as in ALBERT, make one layer of every call).
        """
        self.pulse()
        name = self.names[id(module)]
        stack = anatomy.starred(name)
        nth = self.count[(stack,)] = self.count.get((stack,), -1) + 1
        own = getattr(module, "layer_idx", None)
        index = own if type(own) is int else nth
        call = self.count[(stack, index)] = self.count.get((stack, index), -1) + 1
        self.stacks[stack] = max(self.stacks.get(stack, 0), index + 1)
        self.indices.setdefault(stack, set()).add(index)
        return name, stack, index, call

    def note_key_offset(self, keys: int, offset: int) -> None:
        """Position of the first key of a cache that holds ``keys`` of them, told by the mask function."""
        self.offsets[keys] = offset

    # Masks ---------------------------------------------------------------------------------------------

    def check_mask(self, module: nn.Module, query: Tensor, key: Tensor, mask: Tensor | None) -> None:
        """Refuses a causal module without a mask, unless the preflight found its eager attention full."""
        if mask is None and query.shape[2] > 1 and getattr(module, "is_causal", False) is True:
            stack = anatomy.starred(self.names[id(module)])
            if self.trace is not None:
                self.unmasked.add(stack)
            elif stack not in self.unmasked:
                raise RuntimeError(
                    f"capture: {stack} is causal but the model passed no mask for {query.shape[2]} queries "
                    f"and {key.shape[2]} keys; its attention would look into the future"
                )

    def _valid(self, batch: int, keys: int, offset: int, cross: bool, mask: Tensor | None) -> Tensor:
        given = self.input_mask
        if given is not None and self._simple and not cross and tuple(given.shape) == (batch, offset + keys):
            return given[:, offset:].to(torch.bool).clone()
        if mask is None or mask.ndim != 4:
            device = given.device if given is not None else (mask.device if mask is not None else None)
            return torch.ones(batch, keys, dtype=torch.bool, device=device)
        for known, valid in self._masks:
            if known is mask:
                return valid
        seen = mask[..., :keys] if mask.dtype == torch.bool else mask[..., :keys] > MASKED_BELOW
        valid = seen.flatten(1, 2).any(1).expand(batch, -1).contiguous()
        self._masks = [*self._masks[-3:], (mask, valid)]
        return valid

    # Assembling a layer --------------------------------------------------------------------------------

    def _draft(self, module: nn.Module, heads: int, kv_heads: int) -> Draft:
        name, stack, index, call = self.locate(module)
        draft = Draft(stack, index, call, name)
        draft.cross = anatomy.is_cross(module, name)
        total = self.stacks[stack]
        draft.wanted = self.layers is None or index in {i + total if i < 0 else i for i in self.layers}
        draft.heads = choose(self.heads, heads, f"heads of {stack}, layer {index}")
        group = max(1, heads // max(1, kv_heads))
        draft.kv_heads = [h // group for h in draft.heads]
        return draft

    def begin_layer(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        dtype: torch.dtype,
    ) -> Draft:
        """A layer's attention starts (first tier)."""
        batch, heads, queries, _ = query.shape
        keys = key.shape[2]
        draft = self._draft(module, heads, key.shape[1])
        draft.size = (batch, queries)
        self.seen += 1
        if self.trace is not None:
            self.trace.events.append(("softmax", draft.name))
        device = query.device

        def scratch(shape: tuple[int, ...]) -> Tensor:
            size = torch.Size(shape).numel()
            if size > self._buffer.numel() or (self._buffer.dtype, self._buffer.device) != (dtype, device):
                self._buffer = torch.empty(size, dtype=dtype, device=device)
            return self._buffer[:size].view(shape)

        draft._scratch = scratch
        if not draft.wanted:
            return draft
        draft.key_offset = 0 if draft.cross else self.offsets.get(keys, 0)
        draft.valid = self._valid(batch, keys, draft.key_offset, draft.cross, mask).to(device)
        if "attention" in self.sites:
            store = torch.empty((batch, len(draft.heads), queries, keys), dtype=dtype, device=device)
            draft.tensors["attention"] = store
            if draft.heads == list(range(heads)):
                draft.full = store
        if "query" in self.sites:
            draft.tensors["query"] = query[:, draft.heads].detach().clone()
        for site, states in (("key", key), ("value", value)):
            if site in self.sites:
                draft.tensors[site] = states.detach().clone()
        return draft

    def end_attention(self, draft: Draft) -> None:
        """A layer's attention is there: hand it on, or let it wait for what the block still computes."""
        draft.full = None
        if not draft.wanted:
            return
        block = self.parts.get(draft.name, (None, None, None))[0]
        if "hidden" in self.sites:
            draft.tensors["hidden"] = self._found(self.blocks.get(block or "", {}), "hidden", draft)
        if "attention_input" in self.sites:
            draft.tensors["attention_input"] = self._found(self.inputs, draft.name, draft, "attention_input")
        if self.sites & LATE:
            self.waiting.setdefault(block or "", []).append(draft)
        else:
            self._send(draft)

    def take_weights(self, module: nn.Module, weights: Tensor, mask: Tensor | None) -> None:
        """A layer's attention came out of an eager module (second tier)."""
        batch, heads, queries, keys = weights.shape
        draft = self._draft(module, heads, heads)
        draft.size = (batch, queries)
        self.seen += 1
        if not draft.wanted:
            return
        if self.input_mask is not None and not draft.cross:
            draft.key_offset = max(0, self.input_mask.shape[-1] - keys)
        draft.valid = self._valid(batch, keys, draft.key_offset, draft.cross, mask).to(weights.device)
        if "attention" in self.sites:
            every = draft.heads == list(range(heads))
            draft.tensors["attention"] = weights.detach() if every else weights.detach()[:, draft.heads]
        self.end_attention(draft)

    @staticmethod
    def _found(tensors: dict[str, Tensor], key: str, draft: Draft, site: str = "") -> Tensor:
        if key not in tensors:
            raise RuntimeError(
                f"capture: site {site or key!r} was not seen in {draft.stack}, layer {draft.index}"
            )
        return tensors[key]

    def _send(self, draft: Draft) -> None:
        tensors, draft.tensors = draft.tensors, {}
        self.emit(
            Layer(
                draft.index,
                draft.stack,
                draft.call,
                step=max(0, self.step),
                cross=draft.cross,
                heads=draft.heads,
                kv_heads=draft.kv_heads,
                valid=draft.valid,
                key_offset=draft.key_offset,
                tensors=tensors,
            )
        )

    # Hooks ---------------------------------------------------------------------------------------------

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Installs the hooks that the asked sites need, and removes them."""
        from transformers import PreTrainedModel

        handles: list[Any] = []

        def before(name: str, act: Callable[[tuple[Any, ...], dict[str, Any]], None]) -> None:
            def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                if LIVE.get() is self:
                    act(args, kwargs)

            handles.append(self.modules[name].register_forward_pre_hook(hook, with_kwargs=True, prepend=True))

        def after(name: str, act: Callable[[Any], None]) -> None:
            def hook(_: nn.Module, args: Any, output: Any) -> None:
                if LIVE.get() is self:
                    act(output)

            handles.append(self.modules[name].register_forward_hook(hook))

        try:
            for name, module in self.modules.items():
                if isinstance(module, PreTrainedModel) or not name:
                    before(name, partial(self._enter_model, name))
            for core, (_, projection, _) in self.parts.items():
                if "attention_input" in self.sites:
                    before(core, partial(self._enter_core, core))
                if "attention_output" in self.sites and projection:
                    after(projection, partial(self._projected, core))
            for block, forward in dict.fromkeys((b, f) for b, _, f in self.parts.values()):
                if block and "hidden" in self.sites:
                    before(block, partial(self._enter_block, block))
                if block and forward and "mlp_output" in self.sites:
                    after(forward, partial(self._fed, block))
                if block and self.sites & (LATE | {"hidden", "attention_input"}):
                    after(block, partial(self._leave_block, block))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter_block(self, block: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.blocks[block] = {"hidden": _stream(args, kwargs).detach().clone()}

    def _enter_core(self, core: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.inputs[core] = _stream(args, kwargs).detach().clone()

    def _projected(self, core: str, output: Any) -> None:
        self.projections[core] = _first(output).detach().clone()

    def _fed(self, block: str, output: Any) -> None:
        self.blocks.setdefault(block, {})["mlp_output"] = _first(output).detach().clone()

    def _leave_block(self, block: str, output: Any) -> None:
        if "block_output" in self.sites:
            self.blocks.setdefault(block, {})["block_output"] = _first(output).detach().clone()
        for draft in self.waiting.pop(block, []):
            late = {
                "mlp_output": (self.blocks.get(block, {}), "mlp_output"),
                "block_output": (self.blocks.get(block, {}), "block_output"),
                "attention_output": (self.projections, draft.name),
            }
            for site in LATE & self.sites:
                tensor = self._found(*late[site], draft, site)
                # Some feed-forward parts work on [B * q, D].
                draft.tensors[site] = tensor.reshape(*draft.size, -1) if tensor.ndim == 2 else tensor
            self._send(draft)
        self.blocks.pop(block, None)
        for core, parts in self.parts.items():
            if parts[0] == block:
                self.inputs.pop(core, None)
                self.projections.pop(core, None)


def _stream(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The residual stream among a module's arguments: the first tensor, or ``hidden_states`` by name."""
    for candidate in (*args[:1], kwargs.get("hidden_states"), *kwargs.values()):
        if torch.is_tensor(candidate):
            return candidate
    raise RuntimeError(
        f"capture: no tensor among the arguments {[type(a).__name__ for a in args]}, {sorted(kwargs)}"
    )


def _first(output: Any) -> Tensor:
    tensor = output if torch.is_tensor(output) else output[0]
    assert torch.is_tensor(tensor)
    return tensor


def choose(wanted: Collection[int] | None, total: int, what: str) -> list[int]:
    """Non-negative numbers for ``wanted``, in its order.

    Raises:
        ValueError: naming the numbers that are out of range.
    """
    if wanted is None:
        return list(range(total))
    outside = [i for i in wanted if not -total <= i < total]
    if outside:
        raise ValueError(f"capture: {what}: {outside} out of range for {total} (-{total} to {total - 1})")
    return [i + total if i < 0 else i for i in wanted]
