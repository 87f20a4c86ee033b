# SPDX-License-Identifier: MIT
"""One forward pass, declared: what is kept of it, what is changed in it, what is differentiated.

A `Forward` that keeps something of the attention itself runs the model as `capture` does. One that does not
is a pass of hooks alone, under the model's own backend, with one layer for each block; it needs no attention
that can be captured. The vocabulary head runs only when logits or a gradient ask for it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnscope._evaluation import differentiable
from attnscope.arguments.modules import module_argument
from attnscope.capture import preflight
from attnscope.capture.editing import check, installed, needs_interface, require_interface
from attnscope.capture.edits.edit import BaseEdit, Edit
from attnscope.capture.edits.states import AddDirection
from attnscope.capture.gradient import FORWARD, Gradient, backward, check_precision, differentiating, tangents
from attnscope.capture.implementation import implementation
from attnscope.capture.interface import NAME
from attnscope.capture.layer import Layer
from attnscope.capture.module_tracing import resolve_indices
from attnscope.capture.outputs import Outputs
from attnscope.capture.preflight import structure_of
from attnscope.capture.preservation import preserved_run
from attnscope.capture.recorder import LIVE, Recorder
from attnscope.capture.recording import Recording
from attnscope.capture.sites import INTERFACE, MODEL_SITES, SITES, TABLE, checked
from attnscope.capture.stream import Stream
from attnscope.models.architecture import Structure


@dataclass(frozen=True)
class Forward:
    """The specification of one forward pass.

    Attributes:
        sites: tensors to keep, of layers and of the model, see `Layer` and `Outputs`.
        layers: numbers of the layers to keep, negative ones counted from the end; None keeps all.
        edits: what is changed, see `attnscope.capture.edits`.
        heads: numbers of the query heads to keep; None keeps all.
        gradient: what is differentiated; None differentiates nothing.
        rows: columns of the input whose logits are kept, [r] or [B, r]; None keeps all.
    """

    sites: tuple[str, ...] = ()
    layers: Sequence[int] | None = None
    edits: tuple[Edit, ...] = ()
    gradient: Gradient | None = None
    heads: Sequence[int] | None = None
    rows: Tensor | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "sites", checked("Forward", self.sites, (*SITES, *MODEL_SITES)))
        object.__setattr__(self, "edits", tuple(self.edits))

    @property
    def of_layers(self) -> tuple[str, ...]:
        """The sites that layers own."""
        return tuple(site for site in self.sites if TABLE[site].owner == "layer")

    @property
    def of_model(self) -> tuple[str, ...]:
        """The sites that the model owns."""
        return tuple(site for site in self.sites if TABLE[site].owner == "model")

    @property
    def of_attention(self) -> bool:
        """True if a tensor of the attention itself is kept."""
        return any(TABLE[site].of_attention for site in self.sites)


@contextmanager
def forward(
    model: nn.Module, batch: Mapping[str, Any], declaration: Forward, *, max_memory: int | None = None
) -> Iterator[Run]:
    """Run a model once, as declared.

    Args:
        model: a transformers model in evaluation mode.
        batch: its inputs by name.
        declaration: see `Forward`.
        max_memory: bytes that the graph of a gradient may hold; None takes what is free.

    Returns:
        A context manager that gives a `Run`: iterate over it for the layers, of which at most two are alive
        at any time, then read its ``outputs``.

    Raises:
        RuntimeError: for a site that is out of reach for the model, by name.
        MemoryError: when the graph of a gradient would hold too much.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from attnscope.capture import Forward, forward
        >>> config = LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=8, num_hidden_layers=2,
        ...                      num_attention_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> inputs = {"input_ids": torch.arange(5)[None]}
        >>> with forward(model, inputs, Forward(sites=("block_output", "final_norm"))) as run:
        ...     states = [layer.block_output for layer in run]
        >>> len(states), run.outputs
        (2, Outputs(final_norm=[1, 5, 16]))
        >>> torch.equal(model.model.norm(states[-1]), run.outputs.final_norm)
        True
    """
    run = Run(model, batch, declaration, max_memory)
    try:
        yield run
    finally:
        run.close()


class Run:
    """A forward pass. Made by `forward`; see there.

    Attributes:
        declaration: the declaration.
        tier: how the model is run: 0 its own backend with hooks, 1 to 3 as `Recording.tier`.
    """

    def __init__(
        self, model: nn.Module, batch: Mapping[str, Any], declaration: Forward, max_memory: int | None = None
    ) -> None:
        self.declaration = declaration
        self._model = module_argument("forward", model)
        self._batch = dict(batch)
        self._outputs = Outputs(declaration.of_model)
        self._finish: Any = None
        self._done = False
        self.tier: int | None = None
        check(self._model, declaration.edits)
        if self._model.training:
            raise RuntimeError(
                f"forward: {type(model).__name__} is in training mode; call model.eval() first"
            )
        for edit in declaration.edits:
            if isinstance(edit, BaseEdit):
                edit.prepare(self._model)
        if needs_interface(declaration.edits):
            require_interface(self._model, declaration.edits, self._batch)
        self._batch = preflight.without_cache("forward", self._model, self._batch)
        self._max_memory = max_memory
        if declaration.gradient is not None:
            self._layers = self._run_with_gradient(declaration.gradient)
        else:
            self._layers = self._run_with_attention() if declaration.of_attention else self._run_hooks_only()

    def __iter__(self) -> Iterator[Layer]:
        """Return the layers in the order they are computed; a second time, the remaining ones."""
        return self._layers

    @property
    def outputs(self) -> Outputs:
        """The sites of the model. Finishes the pass; layers that were not taken are dropped."""
        if not self._done:
            for _layer in self._layers:
                pass
        if not self._done:
            raise RuntimeError("forward: the pass was left before its end, so it has no outputs")
        return self._outputs

    def close(self) -> None:
        """Stop the model where it is."""
        self._layers.close()

    @contextmanager
    def _around(self) -> Iterator[None]:
        """Install edits and listeners around the model, in the thread that runs it."""
        with (
            installed(self._model, self.declaration.edits, self._batch),
            self._outputs.listening(
                self._model, rows=self.declaration.rows, graph=self.declaration.gradient is not None
            ) as self._finish,
        ):
            yield

    def _run_with_attention(self) -> Generator[Layer, None, None]:
        """Yield the layers of a pass whose attention is captured."""
        declaration = self.declaration
        recording = Recording(
            self._model, declaration.layers, declaration.heads, declaration.of_layers, chunk=None
        )
        recording.around = self._around
        with recording:
            layers = recording.run(**self._batch)
            self.tier = recording.tier
            yield from layers
        self._finish(recording.output)
        self._done = True

    def _run_hooks_only(self) -> Generator[Layer, None, None]:
        """Yield the layers of a pass with hooks alone."""
        self.tier = 0
        name = NAME if needs_interface(self.declaration.edits) else ""
        with preserved_run(self._model), implementation(self._model, name):
            if self.declaration.of_layers:
                yield from self._blocks()
            else:
                with torch.no_grad(), self._around():
                    self._finish(self._model(**self._batch))
        self._done = True

    def _blocks(self) -> Iterator[Layer]:
        """Return a stream of one layer for each block."""
        structure = structure_of(self._model, self._batch)
        self._reachable(structure, self.declaration.of_layers)
        stream = Stream()
        recorder = Recorder(
            self._model,
            stream.emit,
            sites=self.declaration.of_layers,
            layers=self.declaration.layers,
            heads=self.declaration.heads,
            blocks_only=structure,
        )
        return stream.layers(recorder, self._around, lambda: self._finish(self._model(**self._batch)))

    def _run_with_gradient(self, gradient: Gradient) -> Generator[Layer, None, None]:
        """Yield the layers of a pass with a gradient, after the gradient is computed."""
        model, declaration = self._model, self.declaration
        check_precision(model)
        sites = tuple(dict.fromkeys((*declaration.of_layers, *gradient.at)))
        attention = any(TABLE[site].of_attention for site in sites)
        dual = gradient.mode == FORWARD
        if dual and not any(isinstance(change, AddDirection) for change in declaration.edits):
            raise ValueError("Gradient: mode 'forward' needs an AddDirection among the edits to go along")
        selects = gradient.parameters or (lambda name: False)
        parameters = {name: parameter for name, parameter in model.named_parameters() if selects(name)}
        layers: list[Layer] = []
        recorder = self._recorder(layers, sites, gradient, attention)
        # Tangents pass through no attention functions but eager's and ours.
        attention_name = NAME if attention or needs_interface(declaration.edits) else "eager" if dual else ""
        token = LIVE.set(recorder)
        try:
            with (
                preserved_run(model),
                implementation(model, attention_name),
                differentiable(model, parameters.values()),
                differentiating(gradient, self._max_memory),
            ):
                with self._around(), recorder.listening():
                    self._finish(model(**self._batch))
                if dual:
                    tangents(gradient, self._outputs, recorder)
                else:
                    backward(gradient, self._outputs, recorder, parameters)
                self._outputs.detach()
        finally:
            LIVE.reset(token)
        for layer in layers:
            layer.tensors = {s: t.detach() for s, t in layer.tensors.items() if s in declaration.of_layers}
        self._done = True
        yield from layers

    def _recorder(
        self, layers: list[Layer], sites: tuple[str, ...], gradient: Gradient, attention: bool
    ) -> Recorder:
        """Return the recorder of a pass with a gradient."""
        model, declaration = self._model, self.declaration
        options: dict[str, Any] = {"sites": sites, "layers": declaration.layers, "heads": declaration.heads}
        options |= {"graph": gradient.at, "dual": gradient.mode == FORWARD}
        self.tier = INTERFACE if attention else 0
        if attention:
            require_interface(model, [gradient], self._batch)
            options["plan"] = preflight.plan_for(model, self._batch)
        elif sites:
            options["blocks_only"] = structure_of(model, self._batch)
            self._reachable(options["blocks_only"], sites)
        return Recorder(model, layers.append, **options)

    def _reachable(self, structure: Structure, sites: Sequence[str]) -> None:
        name = type(self._model).__name__
        if not structure.depth:
            raise RuntimeError(f"forward: no list of blocks was found in {name}")
        resolve_indices(self.declaration.layers, structure.depth, f"layers of {name}")
        for site in sites:
            places = [parts.place(core or parts.block, site)[0] for parts, core, _ in structure.layers]
            if not any(places):
                raise RuntimeError(f"forward: no place for site {site!r} was found in {name}")
