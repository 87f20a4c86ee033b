# SPDX-License-Identifier: MIT
"""One prompt whose last token is run again and again, each time with other states.

An edit of the last token's state leaves every earlier position as it is. So the prompt's other tokens run
once, and each set of edits is a single-token step on their cache, the edits as its batch. The former tensors
are put back into the cache after each step, which copies nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.capture.edits.edit import Edit, cache_name
from attnscope.capture.forward import Forward, forward
from attnscope.capture.gradient import Gradient
from attnscope.capture.layer import Layer
from attnscope.capture.outputs import Outputs

#: Gap of logits, relative to the largest, between a step behind a cache and the whole prompt: rounding.
_STEP_GAP = 1e-3


class PromptSteps:
    """The last token of a prompt, as often as asked.

    Args:
        model: of transformers, in evaluation mode, with causal attention.
        ids: [n], the prompt's tokens without padding.
        cached: keep the prompt's other tokens in a cache; False runs the whole prompt each time. So do models
            with recurrent layers, which write their states over those of the cache, and models whose step
            behind a repeated cache is not that of the whole prompt.

    Attributes:
        uncached_reason: why the whole prompt runs in each step, "" while its other tokens are in a cache.
    """

    def __init__(self, model: nn.Module, ids: Tensor, *, cached: bool = True) -> None:
        self.model = model
        self.ids = ids.reshape(1, -1)
        self._caches: dict[int, Any] = {}
        # Of the last token [1, V], in a pass of the whole prompt.
        self._prompt_logits: Tensor | None = None
        self._tried: set[int] = set()
        self.uncached_reason = "" if cached else "no cache was asked for"
        if cached and self.ids.shape[1] == 1:
            self.uncached_reason = "the prompt has one token"

    @property
    def _cached(self) -> bool:
        return not self.uncached_reason

    def step(
        self,
        size: int,
        edits: Sequence[Edit] = (),
        *,
        sites: Sequence[str] = ("logits",),
        layers: Sequence[int] | None = None,
        gradient: Gradient | None = None,
    ) -> tuple[list[Layer], Outputs]:
        """Run the last token in `size` copies.

        Args:
            edits: with ``steps="all"``: a step on a cache is no first step.
            sites: what is kept; tensors are of the last token where the prompt is cached.

        Returns:
            The layers and the outputs; logits are those of the last token [size, 1, V].
        """
        if self._cached and keeps_recurrent_states(self._cache(1)):
            self.uncached_reason = "the model keeps recurrent states"
        if self._cached and size not in self._tried:
            if not self._step_is_right(size):
                self.uncached_reason = "a step behind the cache does not give the logits of the whole prompt"
            self._tried.add(size)
        declaration = Forward(
            sites=tuple(sites),
            layers=layers,
            edits=tuple(edits),
            gradient=gradient,
            rows=torch.tensor([-1 if self._cached else self.ids.shape[1] - 1], device="cpu").clamp_min(0),
        )
        with self._inputs(size) as inputs, forward(self.model, inputs, declaration) as run:
            return list(run), run.outputs

    def _step_is_right(self, size: int) -> bool:
        """Return True if the last token behind the repeated cache gives the logits of the whole prompt.

        Caches with parts of their own (DeepSeek V4) are not repeated, and some models read their whole prompt
        behind a cache again (CPM-Ant): those fail or give other logits.
        """
        with torch.no_grad():
            if self._prompt_logits is None:
                prompt = {"input_ids": self.ids, "attention_mask": torch.ones_like(self.ids)}
                self._prompt_logits = self.model(**prompt, use_cache=False).logits[:, -1].double()
            expected = self._prompt_logits
            try:
                with self._inputs(size) as inputs:
                    logits = self.model(**inputs).logits[:, -1].double()
            except (RuntimeError, ValueError, IndexError) as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                return False  # of the whole prompt, which ran
        if logits.shape != (size, expected.shape[-1]):
            return False
        scale = max(1.0, float(expected.abs().nan_to_num().max()))
        return float((logits - expected).abs().nan_to_num().max()) <= _STEP_GAP * scale

    @contextmanager
    def _inputs(self, size: int) -> Iterator[dict[str, Any]]:
        n = self.ids.shape[1]
        mask = torch.ones(size, n, dtype=torch.long, device=self.ids.device)
        if not self._cached:
            yield {"input_ids": self.ids.expand(size, -1), "attention_mask": mask}
            return
        cache = self._cache(size)
        before = [vars(layer).copy() for layer in cache.layers]
        try:
            last = self.ids[:, -1:].expand(size, -1)
            yield {
                "input_ids": last,
                "attention_mask": mask,
                cache_name(self.model): cache,
                "use_cache": True,
            }
        finally:
            for layer, states in zip(cache.layers, before, strict=True):
                vars(layer).clear()
                vars(layer).update(states)

    def _cache(self, size: int) -> Any:
        if 1 not in self._caches:
            ids = self.ids[:, :-1]
            with torch.no_grad():
                output = self.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=True)
            cache = getattr(output, cache_name(self.model), None)
            if cache is None or not hasattr(cache, "layers"):
                raise NotImplementedError(
                    f"sensitivity: {type(self.model).__name__} keeps no cache of layers"
                )
            self._caches[1] = cache
        if size not in self._caches:
            self._caches = {1: self._caches[1], size: _expanded(self._caches[1], size)}
        return self._caches[size]


def keeps_recurrent_states(cache: Any) -> bool:
    """Return True if a cache holds states of recurrent layers, such as state-space ones.

    A step changes them in place, and they are not repeated with the keys and values of other layers.
    """
    return any(hasattr(layer, "recurrent_states") for layer in getattr(cache, "layers", ()))


def _expanded(cache: Any, size: int) -> Any:
    """Return a prompt's cache as that of so many copies of it, without copying a tensor."""
    copies = copy.copy(cache)
    copies.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in copies.layers:
        for name, value in vars(layer).items():
            if torch.is_tensor(value) and value.ndim > 1 and len(value) == 1:
                setattr(layer, name, value.expand(size, *value.shape[1:]))
    return copies


def prompts_of(function: str, inputs: Any) -> list[Tensor]:
    """Return the prompts of a batch without their padding on either side.

    Args:
        inputs: `input_ids` [B, n], and `attention_mask` where there is padding.
    """
    ids = inputs.get("input_ids")
    if not torch.is_tensor(ids) or ids.ndim != 2:
        got = tuple(ids.shape) if torch.is_tensor(ids) else type(ids).__name__
        raise ValueError(f"{function}: inputs must hold input_ids [B, n], got {got}")
    mask = inputs.get("attention_mask")
    mask = torch.ones_like(ids) if mask is None else mask
    prompts = [row[keep.bool()] for row, keep in zip(ids, mask, strict=True)]
    for place, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"{function}: prompt {place} has no token")
    return prompts
