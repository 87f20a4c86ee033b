# SPDX-License-Identifier: MIT
"""Edits of what goes into a model: embeddings, position ids, rotary frequencies."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from attnscope.capture.edits.edit import ACTIVE, Applied, BaseEdit, PassPosition
from attnscope.capture.module_tracing import takes

if TYPE_CHECKING:
    from attnscope.models.architecture import Structure

#: Frequencies of these kinds are made again from the longest position seen.
MOVING = ("dynamic", "longrope")


@dataclass(frozen=True, eq=False)
class SetEmbedding(BaseEdit):
    """A replacement of the embedding module's output at one position.

    Attributes:
        position: counted from each sample's first real token, negative ones from its end.
        vector: [D] or [B, D].
    """

    position: int
    vector: Tensor
    outermost: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not torch.is_tensor(self.vector) or not bool(self.vector.isfinite().all()):
            raise ValueError("SetEmbedding: vector must be a tensor of finite numbers")

    def target(self) -> tuple[Any, ...]:
        """See `BaseEdit`."""
        return ("embedding", self.position)

    def hooks(self, model: nn.Module, architecture: Structure, applied: Applied) -> list[Any]:
        """See `BaseEdit`."""

        def after(_: nn.Module, args: Any, output: Tensor) -> Tensor | None:
            if not applied.live:
                return None
            vector = self.vector.to(output)
            if vector.shape[-1] != output.shape[-1] or vector.ndim > 2:
                raise ValueError(
                    f"SetEmbedding: vector must have shape [{output.shape[-1]}] or [B, {output.shape[-1]}], "
                    f"got {tuple(vector.shape)}"
                )
            applied.count += 1
            where = applied.where
            if where.past and not self.position - where.past >= 0:
                return None  # the position came in an earlier step
            chosen = where.columns(self.name, [self.position]).to(output.device)
            return torch.where(chosen[..., None], vector[:, None] if vector.ndim == 2 else vector, output)

        return [_embedding(model).register_forward_hook(after)]


@dataclass(frozen=True, eq=False)
class SetPositionIds(BaseEdit):
    """Other position ids than the model makes itself: its ids plus a constant, or explicit ones.

    Attributes:
        shift: added to the position ids that the model would have made itself (or was given).
        ids: [n] or [B, n], in their place, one for each token of a pass; no generation has such passes alone.
    """

    shift: int = 0
    ids: Tensor | None = None
    outermost: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.ids is not None and (self.shift or self.ids.is_floating_point() or self.ids.is_complex()):
            raise ValueError("SetPositionIds: give either shift or ids, and ids as whole numbers")

    def target(self) -> tuple[Any, ...]:
        """See `BaseEdit`."""
        return ("position_ids",)

    def prepare(self, model: nn.Module) -> None:
        """See `BaseEdit`."""
        if self.ids is None:
            position_rule(model)

    def hooks(self, model: nn.Module, architecture: Structure, applied: Applied) -> list[Any]:
        """See `BaseEdit`."""
        from transformers import PreTrainedModel

        taking = [m for m in model.modules() if isinstance(m, PreTrainedModel) and takes(m, "position_ids")]
        if not taking:
            raise NotImplementedError(f"SetPositionIds: {type(model).__name__} takes no position ids")
        if self.ids is not None and _has_slopes(model):
            raise NotImplementedError(
                f"SetPositionIds: {type(model).__name__} makes its slopes from the mask and reads no ids"
            )
        for name, module in _rotary(model):
            if (kind := _kind(module, model)) in MOVING:
                raise NotImplementedError(
                    f"SetPositionIds: {name} makes its {kind!r} frequencies from the positions"
                )
        rule = position_rule(model) if self.ids is None else None

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            where = applied.where
            if not applied.live or where.call_index("position ids"):
                return None  # the model hands them on to the models inside it
            applied.count += 1
            ids = kwargs.get("position_ids")
            if self.ids is not None:
                ids = self._ids_of_pass(self.ids, where)
            elif ids is None:
                if rule is None:
                    raise NotImplementedError(
                        f"SetPositionIds: how {type(model).__name__} numbers its positions is not known; "
                        "give position_ids among its inputs"
                    )
                ids = rule(where.mask)[:, where.past :]
            # Without a mask, steps other than 1 would pass for the borders of packed sequences.
            mask = kwargs.get("attention_mask")
            return args, {
                **kwargs,
                "position_ids": ids + self.shift,
                "attention_mask": where.mask.long() if mask is None else mask,
            }

        return [module.register_forward_pre_hook(before, with_kwargs=True) for module in taking]

    @staticmethod
    def _ids_of_pass(ids: Tensor, where: PassPosition) -> Tensor:
        """Return the given ids for the tokens of a pass."""
        shape = tuple(ids.shape)
        ids = ids.to(where.mask.device)
        ids = ids if ids.ndim == 2 else ids[None]
        batch, tokens = len(where.mask), where.queries
        if ids.shape not in ((1, tokens), (batch, tokens)):
            raise ValueError(
                f"SetPositionIds: ids must have shape [{tokens}] or [{batch}, {tokens}], as the tokens of a "
                f"pass, got {shape}; a generation takes shift alone"
            )
        return ids


Rule = Callable[[Tensor], Tensor]
_rules: weakref.WeakKeyDictionary[nn.Module, Rule | None] = weakref.WeakKeyDictionary()


def position_rule(model: nn.Module) -> Rule | None:
    """Return the rule by which the model numbers positions, from its mask to its ids; trial passes find
    it.
    """
    if model not in _rules:
        from attnscope.capture.preflight import trial_inputs

        inputs = trial_inputs(model)
        _rules[model] = None if inputs is None else _found_rule(model, inputs)
    return _rules[model]


def _found_rule(model: nn.Module, inputs: dict[str, Tensor]) -> Rule | None:
    padding = int(getattr(getattr(model, "config", None), "pad_token_id", None) or 0)
    rules: tuple[Rule, ...] = (
        lambda mask: torch.arange(mask.shape[1], device=mask.device)[None],
        lambda mask: (mask.cumsum(-1) * mask - 1).long(),
        lambda mask: (mask.cumsum(-1) * mask).long() + padding,
    )
    body = _body(model)
    ids = inputs["input_ids"]
    if padding and bool((ids == padding).any()):
        ids = torch.where(ids == padding, ids + 1, ids)
    mask = inputs["attention_mask"].bool()
    ids = ids.masked_fill(~mask, padding)
    arguments = {"input_ids": ids, "attention_mask": inputs["attention_mask"]}
    token = ACTIVE.set(())
    try:
        with torch.no_grad():
            expected = body(**arguments)[0]
            for rule in rules:
                try:
                    states = body(**arguments, position_ids=rule(mask))[0]
                except (IndexError, RuntimeError):  # positions that this model does not have
                    continue
                if torch.equal(states.nan_to_num(), expected.nan_to_num()):
                    return rule
    finally:
        ACTIVE.reset(token)
    return None


@dataclass(frozen=True, eq=False)
class SetRotary(BaseEdit):
    """The frequencies of the rotary embedding are replaced, in place, for all who run the model meanwhile.

    Attributes:
        rule: ``"none"`` (no rotation), ``("ntk", f)`` (θ_k · f^(−2k/(d−2))), ``("interpolate", f)``
            (θ_k / f), or the frequencies themselves, a tensor or one by the name of each buffer.
    """

    rule: str | tuple[str, float] | Tensor | Mapping[str, Tensor]
    outermost: ClassVar[bool] = True

    def __post_init__(self) -> None:
        rule = self.rule
        named = isinstance(rule, tuple) and len(rule) == 2 and rule[0] in ("ntk", "interpolate")
        if named and not float(rule[1]) > 0:  # type: ignore[index]
            raise ValueError(f"SetRotary: the factor must be positive, got {rule!r}")
        if not (named or torch.is_tensor(rule) or isinstance(rule, Mapping) or rule == "none"):
            raise ValueError(
                f"SetRotary: rule must be 'none', ('ntk', f), ('interpolate', f) or a tensor, got {rule!r}"
            )

    def target(self) -> tuple[Any, ...]:
        """See `BaseEdit`."""
        return ("rotary",)

    @contextmanager
    def _installed(self, model: nn.Module, architecture: Structure) -> Iterator[Applied]:
        rotary_modules = _rotary(model)
        buffers = [
            (f"{name}.{buffer}" if name else buffer, module, buffer)
            for name, module in rotary_modules
            for buffer, _ in module.named_buffers(recurse=False)
            if buffer.endswith("inv_freq") and not buffer.endswith("original_inv_freq")
        ]
        if not buffers:
            raise NotImplementedError(f"SetRotary: {type(model).__name__} has no rotary frequencies")
        new = [self._frequencies(name, module, buffer, model) for name, module, buffer in buffers]
        old = [module._buffers[buffer] for _, module, buffer in buffers]
        try:
            for (_, module, buffer), tensor in zip(buffers, new, strict=True):
                module._buffers[buffer] = tensor
            with super()._installed(model, architecture) as applied:
                yield applied
        finally:
            for (_, module, buffer), before in zip(buffers, old, strict=True):
                module._buffers[buffer] = before

    def hooks(self, model: nn.Module, architecture: Structure, applied: Applied) -> list[Any]:
        """See `BaseEdit`."""

        def after(*_: Any) -> None:
            applied.count += applied.live

        return [module.register_forward_hook(after) for _, module in _rotary(model)]

    def _frequencies(self, name: str, module: nn.Module, buffer: str, model: nn.Module) -> Tensor:
        old = module._buffers[buffer]
        assert old is not None
        rule = self.rule
        if isinstance(rule, Mapping):
            if name not in rule:
                raise ValueError(f"SetRotary: no frequencies for {name!r}, only for {sorted(rule)}")
            rule = rule[name]
        if torch.is_tensor(rule):
            if rule.shape != old.shape:
                raise ValueError(
                    f"SetRotary: {name} has {tuple(old.shape)} frequencies, got {tuple(rule.shape)}"
                )
            return rule.to(old)
        if (kind := _kind(module, model)) in MOVING:
            raise NotImplementedError(
                f"SetRotary: {name} makes its {kind!r} frequencies from the positions; give them as a tensor"
            )
        if rule == "none":
            return torch.zeros_like(old)
        kind, factor = rule[0], float(rule[1])
        if kind == "interpolate":
            return old / factor
        k = torch.arange(len(old), dtype=torch.float64, device=old.device)
        return (old.double() * factor ** (-k / max(1, len(old) - 1))).to(old)


def _rotary(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules that hold the rotary frequencies of the attention."""
    return [
        (name, module)
        for name, module in ([] if _has_slopes(model) else model.named_modules())
        if any(buffer.endswith("inv_freq") for buffer, _ in module.named_buffers(recurse=False))
    ]


def _has_slopes(model: nn.Module) -> bool:
    """Return True if the attention adds ALiBi's slopes; Falcon then ignores its rotary frequencies."""
    return bool(getattr(getattr(model, "config", None), "alibi", False))


def _kind(module: nn.Module, model: nn.Module) -> str:
    config: Any = getattr(module, "config", None) or getattr(model, "config", None)
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    rope_type = getattr(module, "rope_type", None)
    kinds = (
        [rope_type]
        if isinstance(rope_type, str)
        else list(rope_type.values())
        if isinstance(rope_type, dict)
        else []
    )
    kinds += [parameters.get("rope_type")] if isinstance(parameters, dict) else []
    return next((str(kind) for kind in kinds if kind in MOVING), str(kinds[0]) if kinds else "default")


def _body(model: nn.Module) -> nn.Module:
    body = getattr(model, "base_model", model)
    return body if isinstance(body, nn.Module) else model


def _embedding(model: nn.Module) -> nn.Module:
    getter: Any = getattr(model, "get_input_embeddings", None)
    text = getter() if getter else None
    if not isinstance(text, nn.Module):
        raise NotImplementedError(f"SetEmbedding: {type(model).__name__} has no embedding module")
    return text
