# SPDX-License-Identifier: MIT
"""Puts the tensors of one forward pass together, layer by layer, and hands each finished layer on.

The attention function of the first tier, or the hooks of the second, report a layer's start and its tensors;
hooks on blocks add the sites that come later. A layer is handed on as soon as it is whole and then belongs to
the receiver alone, which is why two layers are alive at most, whatever the depth.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.capture import module_tracing
from attnscope.capture.capture_plan import AttentionCall, CapturePlan
from attnscope.capture.layer import Layer
from attnscope.capture.layer_builder import LayerBuilder, Scratch
from attnscope.capture.sites import ENTRY, EXIT, FEED_FORWARD, HOOKS_ONLY, INPUT, TABLE
from attnscope.capture.softmax_watch import SoftmaxWatch
from attnscope.capture.visibility import MASKED_BELOW, PLACES, visible_entries
from attnscope.models.architecture import Parts, Structure, is_cross, name_pattern, named_modules
from attnscope.models.layer_numbers import LayerNumbers

# The consumer of the pass under way. Another thread's pass, or one between two layers, does not see it.
LIVE: ContextVar[Recorder | None] = ContextVar("attnscope_capture", default=None)
# Moments at which a site is the block's; at the others it is the attention module's.
OF_BLOCK = (ENTRY, FEED_FORWARD, EXIT)


class Recorder:
    """Listens to one forward pass (or to the many of one ``generate``).

    Args:
        emit: receives each finished layer; may block, may raise.
        layers: layer numbers to keep, negative ones counted from the end of each stack; None keeps all.
        plan: what the preflight found; None listens to everything.
        chunk: heads per tile; None lets the size of the maps decide.
        blocks_only: the blocks, each of which is a layer, when the attention is not captured.
        graph: sites that stay in the graph of a forward pass with a gradient.
        dual: whether that pass carries tangents.
    """

    def __init__(
        self,
        model: nn.Module,
        emit: Callable[[Layer], None],
        *,
        sites: Collection[str] = ("attention",),
        layers: Collection[int] | None = None,
        heads: Collection[int] | None = None,
        plan: CapturePlan | None = None,
        chunk: int | None = None,
        blocks_only: Structure | None = None,
        graph: Collection[str] = (),
        dual: bool = False,
    ) -> None:
        self.emit = emit
        self.notices: set[str] = set()  # of all layers of the pass
        self.sites = frozenset(sites)
        self.layers, self.heads, self.chunk = layers, heads, chunk
        self.stacks = dict(plan.stacks) if plan else {}
        self.indices: dict[str, set[int]] = {}
        # Sites that are there after the attention: the layer waits for its block's end.
        self.hooked = frozenset(s for s in self.sites if HOOKS_ONLY in TABLE[s].tiers)
        self.late = frozenset(s for s in self.hooked if TABLE[s].moment not in (ENTRY, INPUT))
        self.parts = dict(plan.parts) if plan and self.hooked else {}
        self.unmasked = set(plan.unmasked) if plan else set()
        self.blocks_only = blocks_only
        source = blocks_only or plan
        self.tokens_first = source.tokens_first if source else ()
        self.blocks: dict[str, tuple[int, str | None]] = {}
        if blocks_only is not None:
            self.late = self.hooked
            self.parts, self.blocks = blocks_only.by_block()
            for block, (index, _) in self.blocks.items():
                stack = name_pattern(block)
                self.stacks[stack] = max(self.stacks.get(stack, 0), blocks_only.depth_of(block), index + 1)
        self.graph, self.dual = frozenset(graph), dual
        self.roots: dict[tuple[str, str], Tensor] = {}
        self.builders: list[LayerBuilder] = []
        self.modules = named_modules(model)
        self.names = {id(module): name for name, module in self.modules.items()}
        self.numbers = LayerNumbers(model, self.modules)
        self.captured: set[str] = set()
        self.unplaced = 0
        # True once a layer of the pass hid the padding of the tokens.
        self.hides_padding = False
        # Options of the `generate` under way, which some models hand on to the attention of a part of them.
        self.generation_options: frozenset[str] = frozenset()
        self.watch: SoftmaxWatch | None = None
        self.seen = 0
        self.step = -1
        # By number of keys, the position of the first one, as the mask function had it.
        self.offsets: dict[int, int] = {}
        self.token_masks = module_tracing.TokenMasks(self.modules)
        self.waiting: dict[str, list[LayerBuilder]] = {}
        self.kept: dict[tuple[str, str], Tensor] = {}
        self.trace: module_tracing.Trace | None = None
        self.raise_if_abandoned: Callable[[], None] = lambda: None
        self._masks: list[tuple[Tensor, Tensor]] = []
        self._hiding_biases: list[tuple[Tensor, bool]] = []
        self._scratch = Scratch()

    def _enter_model(self, name: str, inputs: Mapping[str, Any]) -> None:
        """Start the forward pass of a (sub)model: shared blocks below it are counted from the first again."""
        self.numbers.enter_model(name)
        if not name:
            self.step += 1
            self.offsets.clear()
            self._masks.clear()
            self._hiding_biases.clear()
        self.token_masks.enter(name, inputs)

    def combined_mask(self, mask: Tensor | None, bias: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
        """Return the mask of a call of our attention function, with the entries that its bias hides."""
        if mask is None:
            mask = torch.ones(1, 1, query.shape[2], 1, dtype=torch.bool, device=query.device)
            mask = mask.expand(-1, -1, -1, key.shape[2])
        if bias is None:
            return mask
        hides = next((hides for other, hides in self._hiding_biases if other is bias), None)
        if hides is None:  # the layers of a stack share their bias
            hides = bool((bias <= MASKED_BELOW).any())
            self._hiding_biases = [*self._hiding_biases[-3:], (bias, hides)]
        if not hides:
            return mask
        return visible_entries(mask[..., : key.shape[2]]) & visible_entries(bias[..., : key.shape[2]])

    def check_mask(self, call: AttentionCall) -> None:
        """Raise for a causal module without a mask, unless the preflight found its eager attention full."""
        queries, keys = call.query.shape[2], call.key.shape[2]
        if call.mask is None and queries > 1 and getattr(call.module, "is_causal", False) is True:
            stack = name_pattern(self.names[id(call.module)])
            if self.trace is not None:
                self.unmasked.add(stack)
            elif stack not in self.unmasked:
                raise RuntimeError(
                    f"capture: {stack} is causal but the model passed no mask for {queries} queries "
                    f"and {keys} keys; its attention would look into the future"
                )

    def _valid(self, builder: LayerBuilder, keys: int, mask: Tensor | None, device: torch.device) -> Tensor:
        """Return which keys are real: by the mask of the tokens where it fits, else of the attention.

        Without a mask of the tokens they are all real that are no padding by their ids.
        """
        batch = builder.size[0]
        tokens = self.token_masks.of(builder.name)
        if builder.layer.cross:  # its queries are the tokens
            if tokens is not None and tokens.shape == builder.size:
                builder.layer.query_valid = tokens.to(device, torch.bool, copy=True)
            tokens = None
        if tokens is not None and tokens.shape == (batch, builder.layer.key_offset + keys):
            real = tokens[:, builder.layer.key_offset :].to(device, torch.bool, copy=True)
            if not self._contradicts(mask, real):
                return real
        if mask is None or mask.ndim != 4:
            return torch.ones(batch, keys, dtype=torch.bool, device=device)
        valid = self._seen_keys(mask, keys, batch).to(device)
        unmasked = None if builder.layer.cross else self.token_masks.unmasked(builder.name)
        if unmasked is None or unmasked.shape != (batch, builder.layer.key_offset + keys):
            return valid
        return valid | unmasked[:, builder.layer.key_offset :].to(device)

    def _seen_keys(self, mask: Tensor, keys: int, batch: int) -> Tensor:
        """Return which keys a mask shows to a query, bool [B, k]; the layers of a stack share theirs."""
        for stored_mask, seen in self._masks:
            if stored_mask is mask:
                return seen
        visible = visible_entries(mask[..., :keys])
        seen = visible.flatten(1, 2).any(1).expand(batch, -1).contiguous()
        self._masks = [*self._masks[-3:], (mask, seen)]
        return seen

    def _contradicts(self, mask: Tensor | None, real: Tensor) -> bool:
        """Return True if a layer hides other keys than the mask of the tokens, which others of it obey.

        As many image patches as tokens are no tokens.

        Args:
            mask: [B, heads, q, k] of the layer.
            real: [B, k], which keys are tokens by their mask.
        """
        if mask is None or mask.ndim != 4 or bool(real.all()):
            return False
        seen = visible_entries(mask[..., : real.shape[1]]).any(1).to(real.device)
        queries = real[:, -seen.shape[1] :] if seen.shape[1] > 1 else real.any(1, keepdim=True)
        padding_seen = bool((seen & queries[..., None] & ~real[:, None]).any())
        # all queries see the same keys: these are the mask of what the layer reads
        alike = seen.shape[1] == seen.shape[2] and bool((seen == seen[:, :1]).all())
        differs = padding_seen or (alike and bool((seen[:, 0] != real).any()))
        self.hides_padding |= not differs
        return differs and self.hides_padding

    def _start(self, module: nn.Module, size: torch.Size, kv_heads: int) -> LayerBuilder:
        """Return the layer whose attention begins in the module; its maps have that size."""
        self.raise_if_abandoned()
        self.seen += 1
        name = self.names[id(module)]
        self.captured.add(name)
        stack = name_pattern(name)
        index, call = self.numbers.next(name)
        total = self.stacks[stack] = max(self.stacks.get(stack, 0), index + 1)
        self.indices.setdefault(stack, set()).add(index)
        builder = LayerBuilder(stack, index, call, name, max(0, self.step))
        builder.size, builder.total = (size[0], size[2]), size[1]
        builder.layer.cross = is_cross(module, name)
        builder.is_selected = self.layers is None or index in {i + total if i < 0 else i for i in self.layers}
        heads = module_tracing.resolve_indices(self.heads, builder.total, f"heads of {stack}, layer {index}")
        group = max(1, builder.total // max(1, kv_heads))
        builder.layer.heads, builder.layer.kv_heads = tuple(heads), tuple(head // group for head in heads)
        return builder

    def begin_layer(self, call: AttentionCall) -> LayerBuilder:
        """Start a layer whose attention begins (first tier)."""
        queries, keys, device = call.query.shape[2], call.key.shape[2], call.query.device
        builder = self._start(call.module, call.query.shape, call.key.shape[1])
        if self.trace is not None:
            self.trace.events.append(("softmax", builder.name))
        builder.scratch = partial(self._scratch.take, call.dtype, device)
        if not builder.is_selected:
            return builder
        if not builder.layer.cross:
            _, start = getattr(call.mask, PLACES, (0, self.offsets.get(keys, 0)))
            builder.layer.key_offset = start
        builder.layer.valid = self._valid(builder, keys, call.mask, device)
        if call.sink is not None:
            builder.layer.sink_logits = call.sink.detach().flatten()[builder.heads]
            builder.layer.has_sink = True
        builder.allocate(self.sites, queries, keys, call.dtype, device)
        if "query" in self.sites:
            builder.layer.tensors["query"] = call.query[:, builder.heads].detach().clone()
        for site, states in (("key", call.key), ("value", call.value)):
            if site in self.sites:
                builder.layer.tensors[site] = states.detach().clone()
        return builder

    def end_attention(self, builder: LayerBuilder) -> None:
        """Finish the attention of a layer: emit it, or let it wait for the rest of its block."""
        builder.full = None
        if not builder.is_selected:
            return
        parts = self.parts.get(builder.name, Parts())
        for site in self.hooked - self.late:
            self._fill(builder, parts, site)
        if self.late:
            self.waiting.setdefault(parts.block or "", []).append(builder)
        else:
            self._send(builder)

    def take_weights(
        self, module: nn.Module, weights: Tensor, mask: Tensor | None, *, cross: bool = False
    ) -> None:
        """Take the attention of a layer out of an eager module (second tier)."""
        keys = weights.shape[3]
        builder = self._start(module, weights.shape, weights.shape[1])
        builder.layer.cross |= cross
        if not builder.is_selected:
            return
        visible, exact = None, False
        if self.watch is not None:
            visible, exact = self.watch.take(weights, builder.name)
            builder.layer.has_sink = self.watch.has_sink
        mask = visible if visible is not None else mask
        tokens = None if builder.layer.cross else self.token_masks.of(builder.name)
        if tokens is not None and keys > weights.shape[2]:  # a cache holds the latest keys alone
            builder.layer.key_offset = max(0, tokens.shape[-1] - keys)
        builder.layer.valid = self._valid(builder, keys, mask, weights.device)
        builder.set_mask(mask, exact=exact)
        if "attention" in self.sites:
            builder.layer.tensors["attention"] = builder.shaped("attention", weights.detach())
            builder.note_partial_rows()
        self.end_attention(builder)

    def describe_output(self, builder: LayerBuilder, token_mask: Any) -> None:
        """Find the real keys and the visible entries of a map that came with the model's output (third tier).

        Args:
            token_mask: the mask of the model's tokens, where the map may be about them.
        """
        weights = builder.layer.tensors["attention"]
        batch, keys = weights.shape[0], weights.shape[-1]
        assert self.watch is not None  # the third tier is always watched
        visible, exact = self.watch.take(weights)
        builder.layer.has_sink = self.watch.has_sink
        core = self.watch.taken
        if core is not None:
            self.captured.add(core)
            builder.name = core
        else:
            self.unplaced += 1
        builder.set_mask(visible, exact=exact)
        if core is None and torch.is_tensor(token_mask) and token_mask.shape == (batch, keys):
            builder.layer.valid = token_mask.to(weights.device, torch.bool, copy=True)
        else:
            builder.layer.valid = self._valid(builder, keys, visible, weights.device)
        builder.note_partial_rows()

    def _fill(self, builder: LayerBuilder, parts: Parts, site: str) -> None:
        """Move a tensor that a hook has kept of the site into the layer."""
        place = (parts.block or "" if TABLE[site].moment in OF_BLOCK else builder.name), site
        if place not in self.kept:
            layer = builder.layer
            raise RuntimeError(f"capture: site {site!r} was not seen in {layer.stack}, layer {layer.index}")
        if parts.place(builder.name, site)[0] in self.tokens_first:
            builder.tokens_first.add(site)
        builder.layer.tensors[site] = builder.shaped(site, self.kept[place])
        if place in self.roots:
            builder.roots[site] = self.roots.pop(place)

    def _send(self, builder: LayerBuilder) -> None:
        if builder.roots:
            self.builders.append(builder)
        builder.layer.notices = self.notices
        # The consumer's name for the layer is the only one, so that the layer goes when the consumer lets go.
        self.emit(builder.layer if builder.roots else vars(builder).pop("layer"))

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Install the hooks of the requested sites, and remove them."""
        with ExitStack() as hooks:
            if self.watch is not None:
                hooks.enter_context(self.watch)
            entering = module_tracing.entering(
                self.modules, self.numbers, self._enter_model, lambda: LIVE.get() is self
            )
            hooks.enter_context(entering)
            blocks: dict[str, None] = {}
            for core, parts in self.parts.items():
                for site in self.hooked:
                    place, enters = parts.place(core, site)
                    owner = parts.block if TABLE[site].moment in OF_BLOCK else core
                    if place and owner and (owner not in blocks or owner == core):
                        keep = partial(self._keep, owner, site)
                        hooks.enter_context(module_tracing.hook(self.modules[place], enters=enters, act=keep))
                if parts.block:
                    blocks[parts.block] = None
            for block in blocks:
                leave = partial(self._leave_block, block)
                hooks.enter_context(module_tracing.hook(self.modules[block], enters=False, act=leave))
            yield

    def _keep(self, place: str, site: str, tensor: Tensor) -> Tensor | None:
        if LIVE.get() is not self:
            return None
        self.kept[place, site] = tensor.detach().clone()
        if site not in self.graph:
            return None
        root = self.roots[place, site] = self.rooted(tensor)
        return None if root is tensor else root

    def in_graph(self, builder: LayerBuilder, site: str, tensor: Tensor) -> Tensor:
        """Return a tensor of the attention, as part of the graph where its gradient is requested."""
        if site not in self.graph or not builder.is_selected:
            return tensor
        builder.roots[site] = self.rooted(tensor)
        return builder.roots[site]

    def rooted(self, tensor: Tensor) -> Tensor:
        """Return the tensor as part of the graph; the graph begins at the first requested tensor."""
        return tensor if self.dual or tensor.requires_grad else tensor.detach().requires_grad_()

    def _begin_block(self, block: str, leaving: Tensor) -> None:
        """Start the layer of a block that has just run."""
        index, core = self.blocks[block]
        stack = name_pattern(block)
        if (
            self.blocks_only is not None and self.blocks_only.depth_of(block) > 1
        ):  # each run of a shared block is a layer
            index += self.numbers.entered(block)
        builder = LayerBuilder(
            stack, index, self.numbers.call(stack, index), core or block, max(0, self.step)
        )
        builder.is_selected = index in module_tracing.resolve_indices(
            self.layers, self.stacks[stack], f"layers of {stack}"
        )
        if not builder.is_selected:
            return
        # towers of pictures hand on the patches of all pictures in one row, without an axis of samples
        states = leaving if leaving.ndim > 2 else leaving[None]
        batch, queries = builder.size = states.shape[0], states.shape[1]
        builder.total = self.blocks_only.heads.get(core or "", 0) if self.blocks_only else 0
        if builder.total:
            builder.layer.heads = tuple(
                module_tracing.resolve_indices(self.heads, builder.total, f"heads of {stack}")
            )
        token_mask = self.token_masks.of(block)
        keys = queries if token_mask is None else token_mask.shape[1]
        builder.layer.valid = torch.ones(batch, keys, dtype=torch.bool, device=leaving.device)
        if token_mask is not None and token_mask.shape == builder.layer.valid.shape:
            builder.layer.valid &= token_mask.to(leaving.device, torch.bool)
        self.seen += 1
        self.waiting.setdefault(block, []).append(builder)

    def _leave_block(self, block: str, tensor: Tensor) -> None:
        if LIVE.get() is not self:
            return
        if self.blocks_only is not None:
            self._begin_block(block, tensor)
        for builder in self.waiting.pop(block, []):
            parts = self.parts[builder.name]
            for site in self.late:
                # A layer without attention has none of its sites.
                if self.blocks_only is None or parts.place(builder.name, site)[0]:
                    self._fill(builder, parts, site)
            self._send(builder)
        inside = {block, *(core for core, parts in self.parts.items() if parts.block == block)}
        self.kept = {place: tensor for place, tensor in self.kept.items() if place[0] not in inside}
