# SPDX-License-Identifier: MIT
"""``capture(model, lazy=True)``: the model's own fast attention, and its queries and keys beside it.

An attention function and a mask function are registered under one name in transformers, like those of the
ordinary capture. The attention function calls torch's scaled dot product attention, as the model would, and
hands over queries and keys with all that changes scores. Effects that this function lacks (a softcap, a
learned sink, a window or padding without a mask) are computed from the lazy attention itself, so that nothing
of size n² is allocated.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnscope._warn import warn
from attnscope.arguments.modules import module_argument
from attnscope.capture import module_tracing
from attnscope.capture.implementation import implementation
from attnscope.capture.interface import INERT, check_boolean_mask, of_one_batch
from attnscope.capture.lazy.lazy_layer import LazyLayer
from attnscope.capture.lazy.mask_rules import MaskRule, MaskRules
from attnscope.capture.preflight import check_model, check_not_refused, run_inputs
from attnscope.capture.preservation import EvaluationMode, preserved, preserved_run, remember
from attnscope.capture.softmax_watch import SoftmaxWatch
from attnscope.capture.stream import Stream
from attnscope.capture.visibility import visible_entries
from attnscope.metrics.lazy.lazy_attention import LazyAttention
from attnscope.models.architecture import is_cross, name_pattern, named_modules
from attnscope.models.layer_numbers import LayerNumbers

NAME = "attnscope_lazy"
#: Arguments of an attention function that change scores and are understood.
_UNDERSTOOD = ("softcap", "s_aux", "position_bias", "is_causal")


class LazyRecording:
    """Runs a model and yields its layers as `LazyLayer`. Made by ``capture(model, lazy=True)``; see there.

    Attributes:
        output: what the model returned in the last finished run; None before.
        depths: number of layers of each stack that a run has reached.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[int] | None,
        heads: Sequence[int] | None,
        precision: str | None,
    ) -> None:
        self._model = module_argument("capture", model)
        self._name = type(self._model).__name__
        self._layers = layers
        self._heads = heads
        self._precision = precision
        self._inside = False
        self._open: weakref.WeakSet[Generator[LazyLayer, None, None]] = weakref.WeakSet()
        self.output: Any = None
        self.depths: dict[str, int] = {}

    def __repr__(self) -> str:
        """Return the model and how it is captured."""
        return f"LazyRecording({self._name})"

    def __enter__(self) -> LazyRecording:
        check_model(self._model)
        check_not_refused(self._model)
        register()
        self._mode = EvaluationMode(self._model)
        self._inside = True
        return self

    def __exit__(self, *_: object) -> None:
        self._inside = False
        for run in list(self._open):
            run.close()
        self._mode.put_back()

    def run(self, *unnamed: Any, **inputs: Any) -> Iterator[LazyLayer]:
        """Run the model on ``inputs`` and yield its layers in the order they are computed.

        Args:
            unnamed: nothing; a model's inputs are given by name.
            inputs: what the model takes, e.g. ``**tokenizer(text, return_tensors="pt")``.

        Raises:
            TypeError: for an input without a name, and for a text.
            ValueError: for inputs without a token, and for layers or heads that the model lacks.
            NotImplementedError: an argument of the model's attention that is not understood, by its name.
            RuntimeError: when no attention function of transformers ran, and outside of the ``with`` block.
        """
        if not self._inside:
            raise RuntimeError(
                "run: the recording is closed; use it inside 'with capture(...) as recording:'"
            )
        stream = self._stream(run_inputs(self._model, unnamed, inputs))
        self._open.add(stream)
        return stream

    def _stream(self, inputs: dict[str, Any]) -> Generator[LazyLayer, None, None]:
        self.output = None
        stream: Any = Stream()
        collector = _Collector(self._model, stream.emit, self._layers, self._heads, self._precision)
        self.depths = collector.depths
        not_seen = RuntimeError(
            f"capture: {self._name} did not call its attention through transformers' interface, so its "
            "queries and keys were not seen; capture it without lazy=True"
        )

        def work() -> None:
            token = _COLLECTOR.set(collector)
            try:
                self.output = self._model(**inputs)
            except KeyError as error:  # a model of transformers 4 may keep a table of functions of its own
                if error.args != (NAME,):
                    raise
                raise not_seen from None
            finally:
                _COLLECTOR.reset(token)

        with preserved_run(self._model), implementation(self._model, NAME):
            yield from stream.layers(collector, nullcontext, work)
        if not collector.seen:
            raise not_seen
        if missing := collector.watch.missing(collector.captured):
            stacks = ", ".join(dict.fromkeys(map(name_pattern, missing)))
            warn(
                f"capture: {self._name}: the attention of {stacks} is missing, which did not go through "
                "transformers' interface; capture(model) without lazy=True may give its maps",
                UserWarning,
            )
        collector.check_layers(self._name)


def modules_without_queries(model: nn.Module, inputs: Mapping[str, Any]) -> list[str] | None:
    """Return the attention modules that computed weights in one pass and handed over no queries and keys.

    Its effects on the model and on random states are undone, and later passes know of them. None where the
    pass shows nothing: no module handed anything over, some read the keys of another sequence, or it changes
    how the model computes.

    Raises:
        RuntimeError: captures of the model are refused.
        NotImplementedError: an argument of the model's attention that is not understood, by its name.
    """
    check_not_refused(model)
    register()
    collector = _Collector(model, lambda layer: None, None, None, None)
    arguments = run_inputs(model, (), inputs)
    mode, token = EvaluationMode(model), _COLLECTOR.set(collector)
    try:
        with preserved(model) as effects, torch.no_grad(), implementation(model, NAME), collector.watch:
            model(**arguments)
    finally:
        _COLLECTOR.reset(token)
        mode.put_back()
    remember(model, effects)
    if not collector.seen or collector.has_cross or effects.settings:
        return None
    return collector.watch.missing(collector.captured)


class _Collector:
    """The state of one forward pass: what it has shown so far, and where its layers go."""

    def __init__(
        self,
        model: nn.Module,
        emit: Any,
        layers: Sequence[int] | None,
        heads: Sequence[int] | None,
        precision: str | None,
    ) -> None:
        self.modules = named_modules(model)
        self.names = {id(module): name for name, module in self.modules.items()}
        self.numbers = LayerNumbers(model, self.modules)
        self.watch = SoftmaxWatch(self.names, visible=False)
        self.indices: dict[str, set[int]] = {}
        self.emit = emit
        self.precision = precision
        self.rules = MaskRules()
        self.seen = 0
        self.captured: set[str] = set()
        self.has_cross = False
        # True if the model was given a mask of pairs; those that are made for it are boolean here alone.
        self.has_boolean_mask = False
        self.token_masks = module_tracing.TokenMasks(self.modules)
        self._layers = layers
        self._heads = heads
        self.depths: dict[str, int] = {}
        self._last: tuple[weakref.ref[Tensor], ...] = (weakref.ref(Tensor()),)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Count the runs of shared blocks, and note the softmaxes that run outside of the interface."""
        with (
            self.watch,
            module_tracing.entering(
                self.modules, self.numbers, self._enter_model, lambda: _COLLECTOR.get() is self
            ),
        ):
            yield

    def _enter_model(self, name: str, inputs: Mapping[str, Any]) -> None:
        self.numbers.enter_model(name)
        self.token_masks.enter(name, inputs)
        if not name:
            masks = [mask for label, mask in inputs.items() if label.endswith("attention_mask")]
            self.has_boolean_mask = any(
                torch.is_tensor(mask) and mask.ndim == 4 and mask.dtype == torch.bool for mask in masks
            )

    def check_layers(self, model: str) -> None:
        """Raise for layers that were asked for and that no stack has, after a pass."""
        for layer in self._layers or ():
            if not any(layer in {n, n - self.depths[s]} for s, has in self.indices.items() for n in has):
                having = sorted(set().union(*self.indices.values()))
                raise ValueError(f"capture: layer {layer} of {model} has no attention; layers {having} have")

    def take(
        self,
        module: nn.Module,
        attention: LazyAttention,
        real: tuple[Tensor, Tensor | None],
        states: tuple[Tensor, Tensor],
    ) -> None:
        """Hand over a layer, if it is among those asked for.

        A module that multiplies one map with its values in parts calls its attention with the same queries
        and keys again, `states`, which is no further layer.

        Args:
            real: which keys are real, and of cross attention which queries.
        """
        self.seen += 1
        name = self.names[id(module)]
        self.captured.add(name)
        if all(last() is tensor for last, tensor in zip(self._last, states, strict=False)):
            return
        self._last = tuple(weakref.ref(tensor) for tensor in states)
        self.has_cross |= is_cross(module, name)
        stack = name_pattern(name)
        index, call = self.numbers.next(name)
        if stack not in self.depths:
            self.depths[stack] = self.numbers.total(name)
        self.depths[stack] = max(self.depths[stack], index + 1)
        self.indices.setdefault(stack, set()).add(index)
        if self._layers is not None and not {index, index - self.depths[stack]} & set(self._layers):
            return
        heads = tuple(module_tracing.resolve_indices(self._heads, attention.heads, f"heads of {stack}"))
        if self._heads is not None:
            attention = attention.select_heads(heads)
        self.emit(
            LazyLayer(
                index,
                stack,
                call,
                cross=is_cross(module, name),
                heads=heads,
                valid=real[0],
                query_valid=real[1],
                attention=attention,
            )
        )


_COLLECTOR: ContextVar[_Collector | None] = ContextVar("lazy capture", default=None)


@functools.cache
def register() -> None:
    """Enter both functions in transformers' tables, once per process."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention_function)
    AttentionMaskInterface.register(NAME, mask_function)


def mask_function(*args: Any, **description: Any) -> Tensor | None:
    """Return the mask that transformers describes, or a stand-in of one entry for its rule."""
    from transformers.masking_utils import sdpa_mask

    collector = _COLLECTOR.get()
    if collector is None or args:
        mask: Tensor | None = sdpa_mask(*args, **description)
        return mask
    return collector.rules.make(**description)


def attention_function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute what the model's own fast attention computes, and hand over its queries and keys."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    collector = _COLLECTOR.get()
    if collector is None or id(module) not in collector.names:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    options = {name: argument for name, argument in kwargs.items() if argument is not None}
    unknown = {
        name: type(argument).__name__
        for name, argument in options.items()
        if name not in INERT and name not in _UNDERSTOOD
    }
    if unknown:
        raise NotImplementedError(
            f"capture: {type(module).__name__} passes its attention arguments unknown to lazy capture: "
            f"{unknown}"
        )
    if collector.has_boolean_mask:
        check_boolean_mask(module, query, key, value, attention_mask, scaling, options)
    query, key, value = of_one_batch(query, key, value)
    scores = {name: options.get(name) for name in ("softcap", "s_aux", "position_bias")}
    cross = is_cross(module, collector.names[id(module)])
    tokens = collector.token_masks.of(collector.names[id(module)])
    real_queries = None
    if cross:  # its queries are the tokens
        if tokens is not None and tokens.shape == (query.shape[0], query.shape[2]):
            real_queries = tokens.bool().cpu()
        tokens = None
    rule, dense = _visible(
        collector.rules, tokens, module, query, key, attention_mask, options.get("is_causal")
    )
    if cross:
        rule = replace(rule, causal=False, window=None)
    attention, real, orders = _lazy(
        query, key, scaling, rule, dense, scores, collector.precision, cross=cross, real_queries=real_queries
    )
    # queries of causal attention see none of the padding behind their text
    is_plain = rule.window is None and all(argument is None for argument in scores.values())
    if is_plain and (rule.is_dense or not rule.causal or orders.keys is None):
        if dense is None and rule.real is not None and not rule.causal:
            dense = rule.real[:, None, None, :].to(query.device)
        plain = {"is_causal": rule.causal and query.shape[2] > 1, "dropout": 0.0}
        output, _ = sdpa_attention_forward(module, query, key, value, dense, scaling=scaling, **plain)
    else:
        output = _multiply(attention, value, orders)
    collector.take(module, attention, (real, real_queries), (query, key))
    return output, None


def _visible(
    rules: MaskRules,
    tokens: Tensor | None,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    is_causal: bool | None,
) -> tuple[MaskRule, Tensor | None]:
    """Return the rule of who sees whom, and the mask where it is no rule.

    Args:
        tokens: the mask of the tokens [batch, n], where the keys are these.
    """
    if mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        return MaskRule(bool(causal) and query.shape[2] > 1, None, None), None
    if rule := rules.find(mask):
        return rule, mask if rule.is_dense else None
    if mask.ndim != 4:
        raise NotImplementedError(
            f"capture: {type(module).__name__} passes its attention a mask of {mask.ndim} axes, "
            f"{tuple(mask.shape)}, which lazy capture does not understand"
        )
    dense = mask[..., : key.shape[2]]
    return MaskRule(False, None, _real_under(dense, tokens, query.shape[0]), is_dense=True), dense


def _real_under(mask: Tensor, tokens: Tensor | None, batch: int) -> Tensor | None:
    """Return which keys are no padding under a mask that is no rule, bool [batch, k], None if all are.

    They are those of the mask of the tokens where it hides its padding from all of them, else those that any
    query sees.
    """
    visible = visible_entries(mask)
    real = None
    if tokens is not None and tokens.shape == (batch, mask.shape[-1]):
        real_tokens = tokens.to(mask.device, torch.bool)
        rows = (
            real_tokens[:, -mask.shape[2] :, None] if mask.shape[2] > 1 else real_tokens.any(1)[:, None, None]
        )
        is_seen = visible.any(1) & rows & ~real_tokens[:, None]
        real = None if bool(is_seen.any()) else real_tokens
    if real is None:
        real = visible.flatten(1, 2).any(1).expand(batch, -1)
    return None if bool(real.all()) else real.cpu()


class _Orders(NamedTuple):
    """The orders [batch, tokens] that bring real queries and keys to the front; None: they are there."""

    queries: Tensor | None
    keys: Tensor | None


def _lazy(
    query: Tensor,
    key: Tensor,
    scaling: float | None,
    rule: MaskRule,
    dense: Tensor | None,
    scores: dict[str, Any],
    precision: str | None,
    *,
    cross: bool,
    real_queries: Tensor | None,
) -> tuple[LazyAttention, Tensor, _Orders]:
    """Return the attention, which keys are real, and the orders that bring real tokens to the front.

    Args:
        cross: the queries are tokens of another text, with no part in the padding of the keys.
        real_queries: of cross attention the queries that are no padding, bool [batch, q]; None: all.
    """
    options: dict[str, Any] = {"scaling": scaling, "causal": rule.causal, "window": rule.window}
    mask, bias = _visible_and_added(dense, scores["position_bias"])
    if mask is not None:
        options["mask"] = mask
    sinks = scores["s_aux"]
    options |= {
        "bias": bias,
        "softcap": scores["softcap"],
        "sink_logits": None if sinks is None else sinks.detach().reshape(-1),
        "precision": precision,
    }
    count, keys = query.shape[2], key.shape[2]
    real = rule.real
    if real is None:
        real = torch.ones(query.shape[0], keys, dtype=torch.bool, device="cpu")
    positions, real_queries = _query_places(real, count, cross=cross, real_queries=real_queries)
    if not bool(real.all()):
        options["lengths"] = real.sum(-1).clamp(min=1).cpu()
    orders = _Orders(_order(real_queries), _order(real))
    if orders.keys is not None:
        if not cross:
            _require_runs(real, rule)
        key = _gather(key, orders.keys)
    if orders.queries is not None:
        query = _gather(query, orders.queries)
    for name in ("mask", "bias"):
        if isinstance(options.get(name), Tensor):
            options[name] = _gather_pairs(options[name], orders)
    if positions is not None:
        in_order = positions if orders.queries is None else positions.gather(-1, orders.queries)
        options["query_positions"] = in_order
    return LazyAttention(query.detach(), key.detach(), **options), real, orders


def _query_places(
    real: Tensor, count: int, *, cross: bool, real_queries: Tensor | None
) -> tuple[Tensor | None, Tensor]:
    """Return the keys at which queries stand, and which queries are no padding.

    The keys are int64 [batch, count], behind the last key for padding; None where the queries stand at the
    last keys and none is padding, or where queries are the keys. Queries of cross attention have no key.

    Args:
        real: keys that are no padding, bool [batch, k].
        count: of the queries.
        cross, real_queries: as of `_lazy`.
    """
    keys, positions = real.shape[-1], None
    if not cross:
        if count == keys:
            return None, real
        positions, real_queries = _places_of_last_queries(real, count)
    elif real_queries is None:
        real_queries = torch.ones(real.shape[0], count, dtype=torch.bool, device="cpu")
    if positions is None:
        if bool(real.all()) and bool(real_queries.all()):
            return None, real_queries
        positions = torch.zeros(real_queries.shape, dtype=torch.int64, device="cpu")
    return torch.where(real_queries, positions, keys), real_queries


def _places_of_last_queries(real: Tensor, count: int) -> tuple[Tensor | None, Tensor]:
    """Return where a text's last queries stand among its real keys, and which of them are no padding.

    The places are int64 [batch, count], None where the queries stand at the last keys of all.

    Args:
        real: keys that are no padding and no empty place of a cache, bool [batch, k].
        count: of the queries.
    """
    used = int(real.any(0).nonzero().max()) + 1 if bool(real.any()) else real.shape[-1]
    if bool(real.all()) or used < count:
        return None, torch.ones(real.shape[0], count, dtype=torch.bool, device="cpu")
    at = slice(used - count, used)
    return (real.long().cumsum(-1) - 1)[:, at], real[:, at]


def _order(real: Tensor) -> Tensor | None:
    """Return the order [batch, tokens] that brings real tokens to the front, None where they are there."""
    if bool((real.long().cummin(-1).values.sum(-1) == real.sum(-1)).all()):
        return None
    return (~real).long().argsort(dim=-1, stable=True)


def _visible_and_added(*terms: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
    """Return the entries that masks and biases leave visible, and the sum of what they add to those.

    None stands for all entries, and for nothing. A hidden entry is no key that is seen with little weight:
    metrics ask which keys a query sees.
    """
    mask, added = None, None
    for term in terms:
        if term is None:
            continue
        visible = visible_entries(term)
        if hides := not bool(visible.all()):
            mask = visible if mask is None else mask & visible
        if term.dtype == torch.bool:
            continue
        bias = term.masked_fill(~visible, 0.0) if hides else term
        if bool(bias.any()):
            added = bias if added is None else added + bias
    return mask, added


def _require_runs(real: Tensor, rule: MaskRule) -> None:
    """Raise if padding lies inside a text whose queries see a window: distances would change."""
    runs = real[:, 0].long() + (~real[:, :-1] & real[:, 1:]).sum(-1)
    if rule.window is not None and bool((runs > 1).any()):
        raise NotImplementedError(
            "capture: lazy capture of a window takes padding in front of a text or behind it, not inside it"
        )


def _gather(states: Tensor, order: Tensor) -> Tensor:
    index = order[:, None, :, None].to(states.device)
    return states.gather(2, index.expand(-1, states.shape[1], -1, states.shape[3]))


def _gather_pairs(maps: Tensor, orders: _Orders) -> Tensor:
    """Return maps [batch or 1, heads or 1, q or 1, k or 1] with queries and keys in an order."""
    for axis, order in ((2, orders.queries), (3, orders.keys)):
        if order is None or maps.shape[axis] == 1:
            continue
        place = order[:, None].unsqueeze(5 - axis).to(maps.device)
        maps = maps.expand(order.shape[0], -1, -1, -1)
        maps = maps.gather(axis, place.expand(*(-1 if a == axis else n for a, n in enumerate(maps.shape))))
    return maps


def _multiply(attention: LazyAttention, value: Tensor, orders: _Orders) -> Tensor:
    """Return the output of the attention, [batch, tokens, heads, d], 0 for padding."""
    states = value.detach() if orders.keys is None else _gather(value.detach(), orders.keys)
    group = attention.heads // value.shape[1]
    states = states.cpu().repeat_interleave(group, 1)
    output = (attention @ states).nan_to_num(0.0)
    if orders.queries is not None:
        output = _gather(output, orders.queries.argsort(dim=-1))
    return output.transpose(1, 2).to(value.device, value.dtype).contiguous()
