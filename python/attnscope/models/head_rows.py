# SPDX-License-Identifier: MIT
"""A model's own vocabulary head on chosen rows of its last hidden state.

Logits of all rows cost more than the layers of a small model when only a word's rows are wanted. The model is
called with its body replaced by a module output that holds the chosen rows, so biases, transforms, soft-caps
and scales come along. A trial pass per model says which module's output that is, and that the logits agree.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnscope._evaluation import evaluating
from attnscope._warn import warn
from attnscope.models.architecture import input_device, text_config
from attnscope.models.inputs.forward_inputs import ForwardInputs, names_taken
from attnscope.models.inputs.prompt_learning import virtual_tokens

#: Tokens of the trial pass, of which the later half differs between its two texts.
_TRIAL = 6
#: Difference of logits beyond rounding, as a share of the largest one.
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class HeadPlan:
    """The way to reach the head of one model.

    Attributes:
        body: name of the module whose output the head reads; None where no module's output is all of it.
        output: what that module gave in the trial pass; its other parts are handed on.
        causal: whether logits at a position depend on that position and those before it only.
        vocabulary: V, entries of a row of logits.
        note: what sets this model apart; empty when nothing does.
    """

    body: str | None
    output: Any
    causal: bool
    vocabulary: int
    note: str = ""


_plans: weakref.WeakKeyDictionary[nn.Module, tuple[Any, HeadPlan]] = weakref.WeakKeyDictionary()


def row_logits(model: nn.Module, hidden: Tensor, rows: Tensor) -> Tensor:
    """Compute the logits of chosen positions by the model's own head.

    Args:
        model: of transformers with a vocabulary head, in evaluation mode.
        hidden: its last hidden state [B, n, D], behind the final norm (site ``final_norm``).
        rows: positions [r], or [B, r] with those of each text.

    Returns:
        Logits [B, r, V] in the model's dtype: the rows of its full logits.

    Raises:
        ValueError: with gradients on, in training mode, rows outside 0 .. n − 1, a hidden state of another
            rank.
        NotImplementedError: an encoder-decoder, no vocabulary head, or a head that reads more than the last
            hidden state.

    Example:
        A model whose weights are 0 says nothing of any token.

        >>> import torch, attnscope as asc
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=9, hidden_size=4, intermediate_size=4, num_hidden_layers=1,
        ...                      num_attention_heads=1)
        >>> model = LlamaForCausalLM(config).eval()
        >>> _ = model.lm_head.weight.data.zero_()
        >>> with torch.no_grad():
        ...     asc.row_logits(model, torch.ones(2, 5, 4), torch.tensor([3])).flatten(1).abs().sum(1)
        tensor([0., 0.])
    """
    name = "row_logits"
    if torch.is_grad_enabled():
        raise ValueError(f"{name}: gradients must be off (torch.no_grad), got grad mode")
    if model.training:
        raise ValueError(
            f"{name}: model must be in evaluation mode, got {type(model).__name__} in training mode"
        )
    if hidden.ndim != 3:
        raise ValueError(f"{name}: hidden must have shape [B, n, D], got {tuple(hidden.shape)}")
    if rows.ndim not in (1, 2) or rows.dtype not in (torch.int64, torch.int32):
        raise ValueError(
            f"{name}: rows must be integers [r] or [B, r], got {rows.dtype} of shape {tuple(rows.shape)}"
        )
    if rows.ndim == 2 and len(rows) != len(hidden):
        raise ValueError(f"{name}: rows must be those of {len(hidden)} texts, got shape {tuple(rows.shape)}")
    outside = (rows < 0) | (rows >= hidden.shape[1])
    if bool(outside.any()):
        raise ValueError(
            f"{name}: rows must lie between 0 and n - 1 = {hidden.shape[1] - 1}, got {int(rows[outside][0])}"
        )
    plan = head_plan(model, name)
    if plan.body is None:
        raise NotImplementedError(f"{name}: {plan.note}")
    return _run_head(model, plan, gathered(hidden, rows))


def gathered(states: Tensor, rows: Tensor) -> Tensor:
    """Return the rows [r] or [B, r] of states [B, n, ·]."""
    if rows.ndim == 1:
        return states[:, rows.to(states.device)]
    place = rows.to(states.device, torch.int64)[..., None].expand(-1, -1, states.shape[-1])
    return states.gather(1, place)


def head_plan(model: nn.Module, function: str = "row_logits") -> HeadPlan:
    """Return the way to the head of a model, found by a trial pass the first time. A plan with a note gives
    one warning.
    """
    parameter = next(model.parameters(), None)
    key = (parameter.dtype, parameter.device) if parameter is not None else ()
    stored = _plans.get(model)
    if stored is not None and stored[0] == key:
        return stored[1]
    plan = _make(model, function)
    _plans[model] = (key, plan)
    if plan.note:
        warn(f"{function}: {plan.note}")
    return plan


class LastStates:
    """A forward pass whose logits are asked for by rows.

    Args:
        model: of transformers with a vocabulary head.
        ids: [B, n].
        mask: [B, n], True at tokens, False at padding.
        function: whose name errors begin with.
        extras: what else the forward pass takes for these texts.
    """

    def __init__(
        self,
        model: nn.Module,
        ids: Tensor,
        mask: Tensor,
        function: str = "row_logits",
        extras: ForwardInputs | None = None,
    ) -> None:
        self.model, self.plan = model, head_plan(model, function)
        parameter = next(model.parameters())
        device = input_device(model)
        inputs = {} if extras is None else extras.to(device, parameter.dtype)
        inputs["input_ids"] = ids.to(device)
        if getattr(inputs.get("attention_mask"), "ndim", 2) == 2:
            inputs["attention_mask"] = mask.to(device, torch.int64)
        body = None if self.plan.body is None else model.get_submodule(self.plan.body)
        # what the body alone does not take, the whole model does
        self.is_whole = body is None or not set(inputs) <= names_taken(body)
        with evaluating(model), torch.no_grad():
            if self.is_whole or body is None:
                self.states = _aligned(_logits(model(**inputs)), ids.shape[1], model, function)
            else:
                self.states = _first(body(**inputs))

    def logits(self, rows: Tensor) -> Tensor:
        """Return the logits [B, r, V] of positions [r] or [B, r]."""
        chosen = gathered(self.states, rows)
        if self.is_whole:
            return chosen
        with evaluating(self.model), torch.no_grad():
            return _run_head(self.model, self.plan, chosen)


def _run_head(model: nn.Module, plan: HeadPlan, states: Tensor) -> Tensor:
    assert plan.body is not None
    body = model.get_submodule(plan.body)
    output = _replaced(plan.output, states)
    replaced_forward = body.__dict__.get("forward")
    body.forward = lambda *_args, **_kwargs: output
    try:
        ids = torch.zeros(states.shape[:2], dtype=torch.int64, device=states.device)
        logits: Tensor = _logits(model(input_ids=ids))
    finally:
        if replaced_forward is None:
            del body.forward
        else:
            body.forward = replaced_forward
    return logits


def _logits(output: Any) -> Any:
    """Return the logits over the vocabulary; a model with a second head has them under another name."""
    return getattr(output, "logits", getattr(output, "prediction_logits", None))


def _aligned(logits: Tensor, n: int, model: nn.Module, function: str) -> Tensor:
    """Return the logits of the n tokens of a text, without those of virtual tokens before it."""
    virtual = virtual_tokens(model)
    if logits.shape[1] not in (n, n + virtual.number):
        raise NotImplementedError(
            f"{function}: {type(model).__name__} gave {logits.shape[1]} rows of logits for {n} tokens"
        )
    return logits[:, -n:]


def _first(output: Any) -> Any:
    """Return the last hidden state of a module's output, None where it has none."""
    states = getattr(output, "last_hidden_state", None)
    if states is None and isinstance(output, tuple) and output:
        states = output[0]
    return states if torch.is_tensor(states) and states.ndim == 3 else None


def _replaced(output: Any, states: Tensor) -> Any:
    if hasattr(output, "last_hidden_state"):
        pooled = getattr(output, "pooler_output", None)
        fields = {} if pooled is None else {"pooler_output": pooled}
        return type(output)(last_hidden_state=states, **fields)
    return (states, *output[1:])


def _trial(model: nn.Module, function: str) -> Mapping[str, Tensor]:
    config: Any = getattr(model, "config", None)
    name = type(model).__name__
    if getattr(config, "is_encoder_decoder", False):
        raise NotImplementedError(f"{function}: {name} is an encoder-decoder")
    vocabulary = getattr(text_config(config), "vocab_size", None)
    if getattr(model, "main_input_name", None) != "input_ids" or not isinstance(vocabulary, int):
        raise NotImplementedError(f"{function}: {name} does not read token ids")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(min(5, vocabulary - 1), vocabulary, (2, _TRIAL), generator=generator, device="cpu")
    ids[1, : _TRIAL // 2] = ids[0, : _TRIAL // 2]
    device = input_device(model)
    return {"input_ids": ids.to(device), "attention_mask": torch.ones_like(ids).to(device)}


def _make(model: nn.Module, function: str) -> HeadPlan:
    from transformers import PreTrainedModel

    inputs = _trial(model, function)
    name = type(model).__name__
    seen: dict[str, Any] = {}

    def listener(place: str) -> Any:
        def listen(_module: nn.Module, _args: Any, output: Any) -> None:
            if _first(output) is not None:
                seen[place] = output

        return listen

    inside = {
        module: place
        for place, module in model.named_modules()
        if isinstance(module, PreTrainedModel) and place
    }
    with evaluating(model), torch.no_grad(), ExitStack() as hooks:
        for module, place in inside.items():
            hooks.enter_context(module.register_forward_hook(listener(place)))
        logits = _logits(model(**inputs))
    if torch.is_tensor(logits) and logits.ndim == 3:
        logits = _aligned(logits, _TRIAL, model, function)
    text = model.config.get_text_config()  # type: ignore[operator, union-attr]
    if not torch.is_tensor(logits) or logits.ndim != 3 or logits.shape[-1] < text.vocab_size:
        raise NotImplementedError(
            f"{function}: {name} has no vocabulary head; load it with one, or take the likelihood from "
            "another model of the same vocabulary (likelihood_from)"
        )
    inner: Any = getattr(model, "get_base_model", None)
    causal = _is_causal(name if inner is None else type(inner()).__name__, model, logits)
    if virtual := virtual_tokens(model).number:
        note = f"{name} puts {virtual} virtual tokens before a text; its full logits are computed"
        return HeadPlan(None, None, causal, int(logits.shape[-1]), note)
    base: Any = getattr(model, "base_model", None)
    first = inside.get(base)
    for place in sorted(seen, key=lambda candidate: candidate != first):
        plan = HeadPlan(place, _without_cache(seen[place]), causal, int(logits.shape[-1]))
        if _agrees(model, plan, inputs, logits):
            note = "" if place == first else f"{name} goes past its base_model; {place} stands for it"
            return HeadPlan(plan.body, plan.output, causal, plan.vocabulary, note)
    note = f"the head of {name} reads more than the last hidden state; its full logits are computed"
    return HeadPlan(None, None, causal, int(logits.shape[-1]), note)


def _without_cache(output: Any) -> Any:
    """Return a small copy that keeps no keys and values alive."""
    if hasattr(output, "last_hidden_state"):
        return _replaced(output, output.last_hidden_state[:, :0])
    return (output[0][:, :0],)


def _agrees(model: nn.Module, plan: HeadPlan, inputs: Mapping[str, Tensor], logits: Tensor) -> bool:
    assert plan.body is not None
    try:
        with evaluating(model), torch.no_grad():
            states = _first(model.get_submodule(plan.body)(**inputs))
            head_logits = _run_head(model, plan, states)
    except Exception:  # noqa: BLE001  (a module that cannot be run alone is not the one)
        return False
    bound = _TOLERANCE * float(logits.abs().max())
    return head_logits.shape == logits.shape and bool(((head_logits - logits).abs() <= bound).all())


def _is_causal(name: str, model: nn.Module, logits: Tensor) -> bool:
    """Return True if a change in the later half of the trial changes nothing before it."""
    config: Any = model.config
    if "MaskedLM" in name and not getattr(config, "is_decoder", False):
        return False
    first, other = logits[:, : _TRIAL // 2].double()
    tolerance = max(1e-4, 10 * torch.finfo(logits.dtype).eps)
    return bool((first - other).abs().max() <= tolerance * first.abs().max())
