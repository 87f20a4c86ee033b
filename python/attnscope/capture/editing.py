# SPDX-License-Identifier: MIT
"""``edit(model, ...)``: a model that runs changed for the time of a block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from attnscope.arguments.modules import module_argument
from attnscope.capture import module_tracing, preflight
from attnscope.capture.capture_plan import CapturePlan
from attnscope.capture.edits.edit import ACTIVE, Applied, Edit
from attnscope.capture.implementation import implementation
from attnscope.capture.interface import NAME, register
from attnscope.capture.preflight import structure_of
from attnscope.capture.sites import HOOKS_ONLY, INTERFACE


@contextmanager
def edit(model: nn.Module, *edits: Edit) -> Iterator[tuple[Applied, ...]]:
    """Run the model changed inside the block: by itself, under `capture`, in ``generate``.

    Edits of weights and inputs come first, then the others in their order, each seeing what the one before
    left; blocks nest. Edits of the softmax's argument change how the model computes its attention; compare
    such a run with one under an edit that changes nothing, so that both arms compute alike.

    Args:
        model: a transformers model in evaluation mode.
        edits: what is changed, see `attnscope.capture.edits`.

    Returns:
        A context manager that gives one `Applied` for each edit, which counts how often it acted.

    Raises:
        TypeError: for something that is no edit.
        ValueError: when two edits set the same thing, or for layers, heads or positions out of range.
        NotImplementedError: for a model that an edit cannot reach.
        RuntimeError: when an edit never acted, or the model is in training mode.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> import attnscope as asc
        >>> config = LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=8, num_hidden_layers=1,
        ...                      num_attention_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> with asc.edit(model, asc.edits.HideKeys([0])), asc.capture(model) as recording:
        ...     for layer in recording.run(input_ids=torch.arange(5)[None]):
        ...         print(layer.attention[0, :, 1:, 0].sum().item())
        0.0
    """
    check(model, edits)
    through_interface = needs_interface(edits)
    if through_interface:
        require_interface(model, edits)
    with implementation(model, NAME if through_interface else ""), installed(model, edits) as applied:
        yield tuple(applied)


@contextmanager
def installed(
    model: nn.Module, edits: Sequence[Edit], batch: Mapping[str, Any] | None = None
) -> Iterator[list[Applied]]:
    """Install the edits in the calling code's context. The caller chooses the attention function."""
    if not edits:
        yield []
        return
    architecture = structure_of(model, batch).of_text()
    applied: dict[int, Applied] = {}
    with ExitStack() as stack:
        for place in sorted(range(len(edits)), key=lambda i: not getattr(edits[i], "outermost", False)):
            applied[place] = stack.enter_context(edits[place].install(model, architecture, batch))
        yield [applied[place] for place in range(len(edits))]
        for place, record in applied.items():
            if record.count == 0:
                raise RuntimeError(
                    f"edit: {type(edits[place]).__name__} never acted on {type(model).__name__}: nothing "
                    "that it changes ran inside the block"
                )


def check(model: nn.Module, edits: Sequence[Edit]) -> None:
    """Raise for what cannot be edited, and for edits that contradict one another or those further up."""
    for change in edits:
        if not isinstance(change, Edit):
            raise TypeError(f"edit: {type(change).__name__} is no edit: it has no install()")
    module_argument("edit", model)
    if not edits:
        return
    name = type(model).__name__
    if model.training:
        raise RuntimeError(f"edit: {name} is in training mode; call model.eval() first")
    if module_tracing.takes(model, "decoder_input_ids"):
        raise NotImplementedError(
            f"edit: {name} has an encoder and a decoder, with tokens and layers of their own; edit one of "
            "them, as in edit(model.get_encoder(), ...)"
        )
    identities = {id(module) for module in model.modules()}
    above = [a.edit for a in ACTIVE.get() if any(id(m) in identities for m in a.model.modules())]
    for place, change in enumerate(edits):
        for other in (*above, *edits[:place]):
            if (target := _target(change)) is not None and target == _target(other):
                raise ValueError(f"edit: two {type(change).__name__} on one target, {target}")


def _target(change: Any) -> tuple[Any, ...] | None:
    return change.target() if hasattr(change, "target") else None


def needs_interface(edits: Sequence[Edit]) -> bool:
    """Return True if one of the edits acts on the softmax's argument."""
    return any(getattr(change, "of_softmax", False) for change in edits)


def require_interface(
    model: nn.Module, features: Sequence[Any], batch: Mapping[str, Any] | None = None
) -> None:
    """Raise for a model whose attention does not go through transformers' interface."""
    register()
    try:
        plan = preflight.plan_for(model, batch)
    except RuntimeError as error:
        plan = CapturePlan(HOOKS_ONLY, reasons=(str(error),))
    if plan is not None and plan.tier != INTERFACE:
        first = type(next((w for w in features if getattr(w, "of_softmax", False)), features[0])).__name__
        raise NotImplementedError(
            f"{first}: the attention of {type(model).__name__} does not go through transformers' attention "
            f"interface, so nothing can be changed before its softmax. {'; '.join(plan.reasons)}"
        )
