# SPDX-License-Identifier: MIT
"""A batch of sentences through a model, its self-attention layers one at a time."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attnscope._precision import Precision
from attnscope._warn import warn
from attnscope.errors import SitesRefused
from attnscope.models import Encoder, LoadError
from attnscope.models.inputs.forward_inputs import MAIN, names_taken
from attnscope.models.inputs.prompt_learning import virtual_tokens
from attnscope.study_api.units import Input

if TYPE_CHECKING:
    from attnscope.capture import Layer, Recording
    from attnscope.capture.lazy.lazy_layer import LazyLayer

#: Rows of a map that are averaged at a time: few enough to stay in the cache.
_BAND = 128
#: Tokens on which a model shows whether it hands over its queries and keys.
_FEW_TOKENS = 8
#: Answers of `lazy_refusal` for models in memory.
_REFUSALS: WeakKeyDictionary[Any, dict[Hashable, str]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Batch:
    """The sentences of one forward pass, in the order of the batch axis.

    Attributes:
        query_mask: of a layer of cross attention the queries that are no padding, bool [batch, q]; None where
            the queries are the tokens.
    """

    samples: Sequence[int]
    lengths: Sequence[int]
    token_ids: Sequence[Sequence[int]]
    tokens: Sequence[Sequence[str]]
    groups: Sequence[str]
    query_mask: Tensor | None = None

    @property
    def query_lengths(self) -> Sequence[int]:
        """Number of queries of each sentence."""
        mask = self.query_mask
        return self.lengths if mask is None else [int(count) for count in mask.sum(-1)]

    def tokens_at(self, positions: Any) -> list[str | None]:
        """Return the token at every position of a masked array [batch, maps], flat, None if there is none."""
        return [
            None if position is None or position < 0 else tokens[position]
            for tokens, row in zip(self.tokens, positions.tolist(), strict=True)
            for position in row
        ]


def batch_of(group: Sequence[Input], encoder: Encoder) -> Batch:
    """Return the sentences of one forward pass as a batch."""
    ids = [text.encoded.ids.tolist() for text in group]
    return Batch(
        samples=[text.sentence.sample for text in group],
        lengths=[text.n_tokens for text in group],
        token_ids=ids,
        tokens=[encoder.names(ids_of_text) for ids_of_text in ids],
        groups=[text.sentence.group for text in group],
    )


def head_mean(heads: Tensor) -> Tensor:
    """Return the mean over heads of [batch, h, n, n], [batch, 1, n, n] in float64.

    By bands of rows: `torch.mean` with another dtype first copies all heads into it, which is two layers'
    worth of memory, and a sum of two dtypes copies the one of them.
    """
    mean = torch.zeros(heads.shape[0], *heads.shape[2:], dtype=torch.float64, device=heads.device)
    for first in range(0, heads.shape[2], _BAND):
        band = mean[:, first : first + _BAND]
        for head in heads[:, :, first : first + _BAND].unbind(1):
            band += head
    return mean.div_(heads.shape[1]).unsqueeze(1)


def padded(batch: Batch, pad_id: int, device: Any) -> dict[str, Tensor]:
    """Return the sentences of a batch as tensors, padded on the right."""
    rows = [torch.tensor(ids, dtype=torch.long, device="cpu") for ids in batch.token_ids]
    ids = pad_sequence(rows, batch_first=True, padding_value=pad_id)
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


def self_attention(
    model: Any,
    inputs: Mapping[str, Any],
    *,
    layers: Sequence[int] | None = None,
    sites: Sequence[str] = ("attention",),
    extra: Sequence[str] = (),
    outputs: list[Any] | None = None,
    reasons: dict[str, str] | None = None,
    stack: str = "",
    cross: bool = False,
) -> Iterator[tuple[int, Layer]]:
    """Stream the self-attention layers of one forward pass with a number that is unique in the model.

    The vocabulary head is left out: its logits can outweigh all else. An encoder-decoder's encoder is
    run, unless the decoder has inputs. `extra` sites are captured too where the model lets them, and
    `reasons` takes why one is not; `outputs` gets what the model returns. Only stacks whose name contains
    `stack` are yielded. With `cross`, layers whose keys come from another sequence are yielded too.

    Raises:
        LoadError: the model cannot be captured, or no layer has a map of tokens by the same tokens.
        ValueError: no stack of attention modules is called so.
    """
    body = attention_body(model, inputs)
    offsets: dict[tuple[str, int], int] = {}
    size = 0
    uneven: list[str] = []
    with ExitStack() as opened:
        recording = _opened(opened, body, layers, sites, extra, inputs, {} if reasons is None else reasons)
        for layer in recording.run(**inputs):
            if (layer.cross and not cross) or stack not in layer.stack:
                continue
            queries, keys = layer.attention.shape[-2:]
            if queries != keys and not layer.cross:
                uneven.append(f"layer {layer.index} of {layer.stack}: {queries} x {keys}")
                continue
            # a second stack, or a layer that runs twice, counts on where the first one ends
            if (layer.stack, layer.call) not in offsets:
                offsets[layer.stack, layer.call] = size
                size += max(recording.depths.get(layer.stack, 0), layer.index + 1)
            yield offsets[layer.stack, layer.call] + layer.index, layer
        if outputs is not None:
            outputs.append(recording.output)
    name = type(model).__name__
    if stack and not any(stack in other for other in recording.depths):
        raise ValueError(f"{name}: no stack is called {stack!r}, only {', '.join(recording.depths)}")
    if not offsets:
        shapes = f"; its maps are no squares: {', '.join(uneven[:3])}" if uneven else ""
        raise LoadError(f"{name}: no layer gave a map of the tokens by the same tokens{shapes}")
    if uneven:
        warn(f"{name}: {len(uneven)} layers are left out, whose maps are no squares: {', '.join(uneven[:3])}")


def lazy_self_attention(
    model: Any,
    inputs: Mapping[str, Any],
    *,
    layers: Sequence[int] | None = None,
    precision: Precision | None = None,
) -> Iterator[tuple[int, LazyLayer]]:
    """Stream the self-attention layers of one forward pass as queries and keys, numbered as `self_attention`.

    `precision` is that of `LazyAttention`.

    Raises:
        LoadError: the model does not hand its queries and keys over, or hides some of what changes scores.
    """
    from attnscope.capture import capture

    offsets: dict[tuple[str, int], int] = {}
    size = 0
    body = attention_body(model, inputs)
    try:
        with capture(body, layers=layers, lazy=True, precision=precision) as recording:
            for layer in recording.run(**inputs):
                queries, keys = layer.attention.shape[-2:]
                if layer.cross or queries != keys:
                    continue
                if (layer.stack, layer.call) not in offsets:
                    offsets[layer.stack, layer.call] = size
                    size += max(recording.depths.get(layer.stack, 0), layer.index + 1)
                yield offsets[layer.stack, layer.call] + layer.index, layer
    except (NotImplementedError, RuntimeError) as error:
        if offsets:
            raise
        raise LoadError(f"{type(model).__name__}: attention cannot be measured lazily: {error}") from None
    if not offsets:
        raise LoadError(f"{type(model).__name__}: no layer attends from its tokens to the same tokens")


def lazy_refusal(
    model: Any, inputs: Mapping[str, Any], *, layers: Sequence[int] | None = None, cross: bool = False
) -> str:
    """Return why the layers of a pass cannot be measured from queries and keys, "" if all can.

    The model runs on the first few tokens of a text: each layer that has a map must hand over its queries and
    keys, and where a softmax ran outside of those layers, their maps are counted. The answer is kept as long
    as the model is made of the same modules.

    Args:
        model: as it is run.
        inputs: of the pass.
        layers: that are measured; None takes all.
        cross: layers of cross attention are measured too, which only their maps are.
    """
    if further := set(inputs) - {"input_ids", "attention_mask"}:
        return f"the model reads {', '.join(sorted(further))} too"
    question = (tuple(layers or ()), cross, _structure_of(model))
    answers = _REFUSALS.setdefault(model, {})
    if question not in answers:
        answers.clear()
        answers[question] = _find_refusal(model, inputs, layers, cross)
    return answers[question]


def _structure_of(model: Any) -> int:
    """Return a number that changes with a model's modules, their functions and hooks."""
    return hash(
        tuple(
            (
                type(module),
                module.__dict__.get("forward"),
                len(module._forward_hooks),
                len(module._forward_pre_hooks),
            )
            for module in model.modules()
        )
    )


def _find_refusal(model: Any, inputs: Mapping[str, Any], layers: Sequence[int] | None, cross: bool) -> str:
    """Return the answer of `lazy_refusal` from a short pass, or from two where it is no plain "all can"."""
    from attnscope.capture.lazy.lazy_recording import modules_without_queries

    few = {"input_ids": inputs["input_ids"][:1, :_FEW_TOKENS]}
    try:
        if modules_without_queries(attention_body(model, few), few) == []:
            return ""
        lazily = set()
        for number, _ in lazy_self_attention(model, few, layers=layers):
            lazily.add(number)
        captured = {number for number, _ in self_attention(model, few, layers=layers, cross=cross)}
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
        return str(error)  # of a model's own code too, which the capture then says in its words
    missing = sorted(captured - lazily)
    return f"layers {missing} do not hand over queries and keys" if missing else ""


def attention_body(model: Any, inputs: Collection[str]) -> Any:
    """Return the part of a model that is run for its self-attention.

    Args:
        model: of transformers, or of peft around it.
        inputs: names of the arguments of the forward pass.

    Raises:
        LoadError: a learned prefix, whose keys make no map of tokens by the same tokens.
    """
    virtual = virtual_tokens(model)
    if virtual.number and not virtual.are_queries:
        raise LoadError(
            f"{type(model).__name__}: {virtual.number} virtual keys are before each text (prefix tuning), so "
            "its maps are no squares; capture(model) gives them, and view(model, text) shows them"
        )
    if virtual.number:
        return model
    decoder = any(name.startswith("decoder_") for name in inputs)
    # weights that are spread over processes are gathered where the whole model begins its pass
    is_spread = any(hasattr(parameter, "device_mesh") for parameter in model.parameters())
    bodies = [model] if is_spread else [getattr(model, "base_model", model), model]
    if getattr(model.config, "is_encoder_decoder", False) and not decoder:
        bodies.insert(0, model.get_encoder())
    # some models keep their embeddings outside of what they call their base or their encoder
    main = set(MAIN) & set(inputs)
    return next((body for body in bodies if main <= names_taken(body)), bodies[0])


def _opened(
    stack: ExitStack,
    body: Any,
    layers: Sequence[int] | None,
    sites: Sequence[str],
    extra: Sequence[str],
    inputs: Mapping[str, Any],
    reasons: dict[str, str],
) -> Recording:
    """Return the open capture of the sites, and of those extra ones that the model allows."""
    from attnscope.capture import capture

    def refusal(names: Sequence[str]) -> str:
        """Return why these sites cannot be captured together; nothing runs before a layer is asked for."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the capture that is kept says it
                with capture(body, layers=layers, sites=names) as recording:
                    recording.run(**inputs)
        except (RuntimeError, TypeError, ValueError) as error:
            return str(error)
        return ""

    if extra and refusal((*sites, *extra)):
        refusals = {site: refusal((*sites, site)) for site in extra}
        reasons |= {site: why for site, why in refusals.items() if why}
        extra = [site for site, why in refusals.items() if not why]
    if reason := refusal((*sites, *extra)):
        has_attention = len(sites) > 1 and not refusal(("attention",))
        raise (SitesRefused if has_attention else LoadError)(reason)
    return stack.enter_context(capture(body, layers=layers, sites=(*sites, *extra)))
