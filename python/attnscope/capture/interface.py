# SPDX-License-Identifier: MIT
"""The first tier: an attention function and a mask function of our own, under one name in transformers.

Equal to eager attention, operation by operation, so that probabilities agree to the last bit where a model's
own code works in float32; computed tile by tile straight into the captured layer.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.capture.capture_plan import AttentionCall
from attnscope.capture.edits import softmax
from attnscope.capture.edits.edit import ACTIVE
from attnscope.capture.implementation import original_implementation
from attnscope.capture.layer_builder import LayerBuilder
from attnscope.capture.recorder import LIVE, Recorder
from attnscope.capture.visibility import MASKED_BELOW, PLACES, float_mask

# A name that transformers reads nothing into: "flash" and "a/b" would make it look for kernels.
NAME = "attnscope"

# Arguments that change nothing once the mask is there and dropout is off. Anything else is refused.
INERT = frozenset(
    {
        "cache",
        "cache_params",
        "cache_position",
        "decoder_input_ids",
        "deterministic",
        "dropout",
        "encoder_hidden_states",
        "is_causal",
        "layer_idx",
        "logits_to_keep",
        "num_items_in_batch",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "past_key_values",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "sliding_window",
        "token_type_ids",
        "use_cache",
    }
)
TILE_ELEMENTS = 1 << 22


@functools.cache
def register() -> None:
    """Register both functions in transformers' tables, once per process.

    They stay there: a deep copy of a model taken during a run keeps the name, and an unknown name is an
    error. The mask function matters most: under a name without one, transformers passes no mask at all.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention_function)
    AttentionMaskInterface.register(NAME, mask_function)


def mask_function(*args: Any, **kwargs: Any) -> Tensor | None:
    """Return the float mask of eager attention, which is never left out for causal models.

    A boolean mask would break models that do arithmetic on their masks.
    """
    from transformers.masking_utils import eager_mask

    mask: Tensor | None = eager_mask(*args, **kwargs)
    keys = kwargs.get("kv_length", mask.shape[-1] if mask is not None else None)
    if keys is not None:
        start = int(kwargs.get("kv_offset", 0))
        if mask is not None:
            setattr(mask, PLACES, (_first_query(kwargs), start))
        if recorder := LIVE.get():
            recorder.offsets[int(keys)] = start
        for applied in ACTIVE.get():
            applied.where.offsets[int(keys)] = (_first_query(kwargs), start)
    return mask


def _first_query(arguments: dict[str, Any]) -> int:
    """Return the position of the first query of a mask; transformers before 5 give those of all."""
    positions = arguments.get("cache_position")
    if "q_offset" not in arguments and positions is not None and len(positions):
        return int(positions[0])
    return int(arguments.get("q_offset", 0))


def attention_function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute the attention of a model that is being captured, in the place of its own function."""
    recorder = LIVE.get()
    dual = recorder is not None and recorder.dual
    if recorder is not None and (recorder.blocks_only is not None or id(module) not in recorder.names):
        recorder = None  # edits brought the pass here; its layers are the blocks, or another model's
    options = {name: value for name, value in kwargs.items() if value is not None}
    if recorder is None:
        edits = softmax.active(module)
        # Edits of the mask alone keep the model's own arithmetic.
        if not edits or (_eager(module) and not any(isinstance(a.edit, softmax.SubtractRead) for a in edits)):
            if edits:
                check_boolean_mask(module, query, key, value, attention_mask, scaling, options)
            mask, _ = softmax.attended(edits, module, query, key, attention_mask)
            return _run_uncaptured(module, query, key, value, mask, bool(edits), scaling=scaling, **options)
    check_boolean_mask(module, query, key, value, attention_mask, scaling, options)
    special = {name: options.pop(name, None) for name in ("softcap", "s_aux", "position_bias")}
    inert = INERT if recorder is None else INERT | recorder.generation_options
    unknown = {name: type(value).__name__ for name, value in options.items() if name not in inert}
    if unknown:
        raise NotImplementedError(
            f"capture: {type(module).__name__} passes its attention arguments unknown to capture: {unknown}"
        )
    query, key, value = of_one_batch(query, key, value)
    call = AttentionCall(module, query, key, value, attention_mask, scaling, **special)
    if recorder is not None:
        recorder.check_mask(call)
    graph = torch.is_grad_enabled() and (recorder is not None or query.requires_grad)
    compute = _out_of_place if graph or dual else _captured
    with torch.autocast(query.device.type, enabled=False):
        return compute(recorder, call), None


def of_one_batch(*states: Tensor) -> Iterator[Tensor]:
    """Return states with one batch: a product repeats learned queries, which some models have once."""
    batch = max(map(len, states))
    return (tensor if len(tensor) == batch else tensor.expand(batch, -1, -1, -1) for tensor in states)


def start_layer(
    recorder: Recorder | None, call: AttentionCall
) -> tuple[LayerBuilder, list[Tensor], Tensor | None]:
    """Return the layer that is put together, the terms added to its scores, and the entries not read."""
    builder = LayerBuilder() if recorder is None else recorder.begin_layer(call)
    active = softmax.active(call.module)
    mask, unread = softmax.attended(active, call.module, call.query, call.key, call.mask)
    # windows and hidden keys of edits are part of what is seen
    if recorder is not None and builder.is_selected:
        builder.set_mask(recorder.combined_mask(mask, call.position_bias, call.query, call.key))
    return builder, [bias for bias in (call.position_bias, mask) if bias is not None], unread


def _captured(recorder: Recorder | None, call: AttentionCall) -> Tensor:
    query, key, value, dtype = call.query, call.key, call.value, call.dtype
    batch, heads, queries, width = query.shape
    keys, group = key.shape[2], query.shape[1] // key.shape[1]
    out = value.new_empty(batch, queries, heads, value.shape[-1])
    builder, biases, unread = start_layer(recorder, call)
    sinks = call.sink
    for samples, span in _tiles(batch, heads, queries * keys, recorder.chunk if recorder else None):
        shape = (samples.stop - samples.start, span.stop - span.start, queries, keys)
        p = builder.storage(samples, span, shape)
        rows = query[samples, span].to(dtype).reshape(-1, queries, width)
        columns = _repeat(key[samples], span, group).to(dtype).reshape(-1, keys, width)
        flat = torch.bmm(rows, columns.mT, out=p.view(-1, queries, keys))
        p.mul_(call.scale)  # after the product, as eager attention does it: then the bits agree
        if call.softcap is not None:
            p.div_(call.softcap).tanh_().mul_(call.softcap)
        for bias in biases:
            tile = _tile(bias, samples, span, keys)
            if tile.dtype == torch.bool:  # as numbers it would take four times the memory
                p.masked_fill_(~tile, torch.finfo(dtype).min)
            else:
                p.add_(tile)
        sink = None if sinks is None else sinks[:, span]
        if builder.wants_scores:
            builder.keep_scores(samples, span, _visible(p, biases, samples, span), sink)
        if sink is None:
            torch.softmax(p, -1, out=p)
        else:  # a learned sink is one more logit without a value: rows sum to less than 1
            top = torch.maximum(p.amax(-1, keepdim=True), sink)
            p.sub_(top).exp_()
            p.div_(p.sum(-1, keepdim=True) + (sink - top).exp())
        builder.keep(samples, span, p)
        if unread is not None:
            flat = p.masked_fill(_tile(unread, samples, span, keys), 0.0).view(-1, queries, keys)
        columns = _repeat(value[samples], span, group).to(dtype).reshape(-1, keys, value.shape[-1])
        mixed = torch.bmm(flat, columns)
        out[samples, :, span] = mixed.view(*shape[:3], -1).transpose(1, 2).to(out.dtype)
    if recorder is not None:
        recorder.end_attention(builder)
    return out


def _out_of_place(recorder: Recorder | None, call: AttentionCall) -> Tensor:
    """Compute the same arithmetic in a graph: all heads at once, nothing overwritten."""
    texts, heads = slice(0, call.query.shape[0]), slice(0, call.query.shape[1])
    dtype, keys, sink = call.dtype, call.key.shape[2], call.sink
    builder, biases, unread = start_layer(recorder, call)

    def in_graph(site: str, tensor: Tensor) -> Tensor:
        return tensor if recorder is None else recorder.in_graph(builder, site, tensor)

    query, key, value = (in_graph(site, getattr(call, site)) for site in ("query", "key", "value"))
    group = query.shape[1] // key.shape[1]
    scores = query.to(dtype) @ _repeat(key, heads, group).to(dtype).mT * call.scale
    if call.softcap is not None:
        scores = (scores / call.softcap).tanh() * call.softcap
    for bias in biases:
        if bias.dtype == torch.bool:
            scores = scores.masked_fill(~bias[..., :keys], torch.finfo(dtype).min)
        else:
            scores = scores + bias[..., :keys]
    scores = in_graph("scores", scores)
    if builder.wants_scores:
        plain = _visible(scores.detach(), biases, texts, heads)
        builder.keep_scores(texts, heads, plain, None if sink is None else sink.detach())
    if sink is None:
        p = torch.softmax(scores, -1)
    else:
        column = sink.expand(*scores.shape[:3], 1)
        p = torch.softmax(torch.cat((scores, column), -1), -1)[..., :-1]
    p = in_graph("attention", p)
    builder.full = None
    builder.keep(texts, heads, p.detach())
    if unread is not None:
        p = p.masked_fill(unread, 0.0)
    out = (p @ _repeat(value, heads, group).to(dtype)).transpose(1, 2).to(value.dtype)
    if recorder is not None:
        recorder.end_attention(builder)
    return out


def _tiles(batch: int, heads: int, size: int, chunk: int | None) -> Iterator[tuple[slice, slice]]:
    """Yield blocks of samples x heads, each contiguous in a ``[B, H, q, k]`` tensor and of bounded size."""
    limit = max(1, TILE_ELEMENTS // max(1, size)) if chunk is None else chunk
    together = max(1, limit // heads) if chunk is None else 1
    for b in range(0, batch, together):
        for h in range(0, heads, limit):
            yield slice(b, min(batch, b + together)), slice(h, min(heads, h + limit))


def _repeat(states: Tensor, span: slice, group: int) -> Tensor:
    """Return the key or value heads that the query heads in ``span`` read."""
    if group == 1:
        return states[:, span]
    return states[:, torch.arange(span.start, span.stop, device=states.device) // group]


def _tile(bias: Tensor, samples: slice, span: slice, keys: int) -> Tensor:
    bias = bias[..., :keys]  # a static cache may bring a longer mask
    bias = bias if bias.shape[0] == 1 else bias[samples]
    return bias if bias.shape[1] == 1 else bias[:, span]


def _visible(scores: Tensor, biases: Sequence[Tensor], samples: slice, span: slice) -> Tensor:
    """Return the scores of a tile, -inf where any of the biases hides an entry."""
    for bias in biases:
        tile = _tile(bias, samples, span, scores.shape[-1])
        hidden = ~tile if tile.dtype == torch.bool else tile <= MASKED_BELOW
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores


def check_boolean_mask(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float | None,
    options: dict[str, Any],
) -> None:
    """Raise if the module's own attention is eager and adds a boolean mask to its scores.

    Our functions would hide the keys, and the maps would not be those of the model. A query that the mask
    hides keys from shows which of the two its attention does.
    """
    if mask is None or mask.ndim != 4 or mask.dtype != torch.bool:
        return
    eager = _eager(module)
    if eager is None or original_implementation(module) != "eager":
        return
    seen = mask[..., : key.shape[2]]
    # a query without a key has weights somewhere
    queries = (seen.any(-1) & ~seen.all(-1)).all(1).nonzero()
    if not len(queries):
        return
    text, row = queries[0].tolist()
    bias = options.get("position_bias")
    options = options if bias is None else {**options, "position_bias": bias[..., row : row + 1, :]}
    at = slice(text, text + 1)
    seen = (seen if len(seen) == 1 else seen[at])[..., row : row + 1, :]
    with torch.no_grad():
        query = query[at, :, row : row + 1]
        _, weights = eager(module, query, key[at], value[at], seen, scaling=scaling, **options)
    if torch.is_tensor(weights) and bool((weights.masked_fill(seen, 0.0) > 0).any()):
        raise ValueError(
            f"capture: the model was loaded with eager attention, where {type(module).__name__} adds a "
            "boolean attention_mask to its scores and hides no key; give the mask as numbers (0 where a key "
            "is seen, torch.finfo(dtype).min where it is hidden), or load the model with "
            "attn_implementation='sdpa' where it has that"
        )


def _eager(module: nn.Module) -> Any:
    """Return the eager attention function of the module's own code; None where it has none."""
    return getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)


def _run_uncaptured(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, edited: bool, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Compute a forward pass that is not captured (another thread's, or the consumer's) in spite of the name.

    It gets the implementation that the model had, an edited one eager attention. The name may have come
    between its mask and its attention, so a four-dimensional mask goes to a function that reads one.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    eager = _eager(module)
    name = "eager" if edited else original_implementation(module)
    dense = torch.is_tensor(mask) and mask.ndim == 4
    if name not in (None, "eager", "sdpa") and dense:
        name = "sdpa"
    if eager is not None and ("softcap" in options or "s_aux" in options):
        name = "eager"
    function = eager if name in (None, "eager") else ALL_ATTENTION_FUNCTIONS[name]
    if function is None:
        raise RuntimeError(
            f"capture: a forward pass of {type(module).__name__} outside the capture needs eager "
            f"attention, and {type(module).__module__} has none; run it before or after the capture"
        )
    is_own = original_implementation(module) == "eager" and not edited
    if function is eager and not is_own and dense and mask.dtype == torch.bool:
        mask = float_mask(mask, query.dtype)
    return function(module, query, key, value, mask, **options)
