# SPDX-License-Identifier: MIT
"""The tensors of a pass that belong to the model and not to a layer.

Embeddings, the last norm and the logits come once a pass. The vocabulary head costs more than a layer, so
it runs only where logits or a gradient ask, and only on the rows that are wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.capture.sites import MODEL_SITES
from attnscope.models.head_rows import gathered

_LIVE: ContextVar[Outputs | None] = ContextVar("attnscope_outputs", default=None)


class Outputs:
    """The tensors of one forward pass besides its layers.

    | tensor | shape | meaning |
    |---|---|---|
    | ``embeddings`` | ``[B, q, D]`` | output of the embedding module, before a model scales or adds to it |
    | ``final_norm`` | ``[B, q, D]`` | residual stream behind the model's last norm |
    | ``logits`` | ``[B, q, V]`` | output of the vocabulary head, of the chosen rows where some were chosen |

    A tensor whose site was not asked for raises ``AttributeError``.

    Attributes:
        tensors: those that are there, by site.
        value: what the gradient was taken of, where one was.
        derivative: its derivative along the directions added, where tangents were carried.
        parameters: gradients of parameters by name.
    """

    def __init__(self, sites: Collection[str]) -> None:
        self.sites = tuple(sites)
        self.tensors: dict[str, Tensor] = {}
        self.value: Tensor | None = None
        self.derivative: Tensor | None = None
        self.parameters: dict[str, Tensor] = {}

    def __getattr__(self, name: str) -> Tensor:
        if name not in MODEL_SITES or "tensors" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        if name not in self.tensors:
            raise AttributeError(
                f"this pass holds {sorted(self.tensors)}, not {name!r}: ask for it with "
                f"Forward(sites=({name!r}, ...))"
            )
        return self.tensors[name]

    def detach(self) -> None:
        """Leave the graph, and drop sites that were not requested."""
        self.tensors = {site: self.tensors[site].detach() for site in self.sites}

    def __repr__(self) -> str:
        """Return the tensors by shape."""
        shown = (f"{name}={list(tensor.shape)}" for name, tensor in self.tensors.items())
        return f"Outputs({', '.join(shown)})"

    @contextmanager
    def listening(
        self, model: nn.Module, *, rows: Tensor | None = None, graph: bool = False
    ) -> Iterator[Callable[[Any], None]]:
        """Collect the tensors inside the block; yields the function that takes the model's output."""
        from transformers import PreTrainedModel

        def chosen(states: Tensor) -> Tensor:
            return states if rows is None else gathered(states, rows)

        def keep(site: str, tensor: Tensor) -> None:
            self.tensors[site] = tensor if graph else tensor.detach()

        def embedded(_: nn.Module, args: Any, output: Any) -> None:
            if _LIVE.get() is self and "embeddings" not in self.tensors:
                keep("embeddings", output if graph else output.clone())

        def normed(_: nn.Module, args: Any, output: Any) -> None:
            last = getattr(output, "last_hidden_state", None)
            if _LIVE.get() is self and torch.is_tensor(last):
                keep("final_norm", last)

        def cut_rows(_: nn.Module, args: tuple[Any, ...]) -> Any:
            if _LIVE.get() is not self or not args or not torch.is_tensor(args[0]) or args[0].ndim != 3:
                return None
            if not graph and "logits" not in self.sites:
                return args[0][:, :0], *args[1:]
            return chosen(args[0]), *args[1:]

        def finish(output: Any) -> None:
            logits = getattr(output, "logits", None)
            if "logits" in self.sites or (graph and logits is not None):
                if logits is None:
                    raise TypeError(
                        f"forward: {type(model).__name__} gives no logits; load it with its vocabulary head"
                    )
                keep("logits", logits if head is not None else chosen(logits))
            for site in self.sites:
                if site not in self.tensors:
                    raise RuntimeError(f"forward: site {site!r} was not seen in {type(model).__name__}")

        head = _head(model)
        inside = [module for module in model.modules() if isinstance(module, PreTrainedModel)]
        with ExitStack() as hooks:
            hooks.callback(_LIVE.reset, _LIVE.set(self))
            if graph or "embeddings" in self.sites:  # the parts of a model may have embeddings of their own
                for embedding in {_called(module, "get_input_embeddings") for module in inside}:
                    if embedding is not None:
                        hooks.enter_context(embedding.register_forward_hook(embedded))
            for module in inside if graph or "final_norm" in self.sites else ():
                hooks.enter_context(module.register_forward_hook(normed))
            if head is not None and (rows is not None or not (graph or "logits" in self.sites)):
                hooks.enter_context(head.register_forward_pre_hook(cut_rows))
            yield finish


def _called(model: nn.Module, getter: str) -> nn.Module | None:
    get: Any = getattr(model, getter, None)
    try:
        module = get() if get is not None else None
    except NotImplementedError:  # a part of a model that has none
        module = None
    return module if isinstance(module, nn.Module) else None


def _head(model: nn.Module) -> nn.Module | None:
    """Return the vocabulary head, where it is a module of its own."""
    head = _called(model, "get_output_embeddings")
    return None if head is _called(model, "get_input_embeddings") else head
