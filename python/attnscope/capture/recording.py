# SPDX-License-Identifier: MIT
"""``capture(model)``: a context manager whose ``run`` yields one layer after the other.

The model runs in a thread of its own and waits while a layer is being looked at, so a loop over layers reads
like a loop over a list and holds one layer at a time. Leaving the loop early ends the pass and removes every
hook.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from typing import Any, Literal, overload

import torch
from torch import nn

from attnscope._warn import warn
from attnscope.arguments.modules import module_argument
from attnscope.arguments.scalars import flag
from attnscope.capture import preflight
from attnscope.capture.capture_plan import CapturePlan
from attnscope.capture.implementation import (
    attention_outputs,
    capture_eager_weights,
    float_masks,
    implementation,
)
from attnscope.capture.interface import NAME
from attnscope.capture.layer import Layer
from attnscope.capture.lazy.lazy_recording import LazyRecording
from attnscope.capture.module_tracing import indices_argument, resolve_indices
from attnscope.capture.preservation import EvaluationMode, preserved_run
from attnscope.capture.recorder import LIVE, Recorder
from attnscope.capture.rectangles.assembled import GeneratedRows
from attnscope.capture.rectangles.generation_settings import GenerationSettings
from attnscope.capture.sites import HOOKS, OUTPUTS, SITES, TABLE, checked
from attnscope.capture.softmax_watch import SoftmaxWatch
from attnscope.capture.stream import Stream
from attnscope.models.architecture import name_pattern
from attnscope.models.inputs.generation_options import generation_options_among

Numbers = Sequence[int] | None


@overload
def capture(
    model: nn.Module,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    sites: Sequence[str] = ("attention",),
    chunk: int | None = None,
    lazy: Literal[False] = False,
) -> Recording: ...
@overload
def capture(
    model: nn.Module,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    lazy: Literal[True],
    precision: Literal["fast", "exact"] | None = None,
) -> LazyRecording: ...
def capture(
    model: nn.Module,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    sites: Sequence[str] = ("attention",),
    chunk: int | None = None,
    lazy: bool = False,
    precision: Literal["fast", "exact"] | None = None,
) -> Recording | LazyRecording:
    """Stream a Hugging Face model's attention (and values, states, ...) one layer at a time.

    Args:
        model: a transformers model in evaluation mode, or a module that holds one.
        layers: numbers of the layers to keep; negative ones count from the end of each stack. Default: all.
        heads: numbers of the query heads to keep. Default: all.
        sites: which tensors to keep, any of those in the table of `Layer`; memory is spent on these only.
        chunk: heads computed at once; the default bounds the working memory to 16 MiB.
        lazy: run the model's own fast attention and give each layer's attention as `LazyAttention`: queries
            and keys, and nothing of the size of a map. ``run`` then yields `LazyLayer`.
        precision: of the measures of lazy attention, "fast" or "exact".

    Returns:
        A context manager that gives a ``Recording``, or a ``LazyRecording``. The model is as it was
        whenever no run is under way; one in training mode is evaluated inside the block and put back.

    Raises:
        TypeError: when there is no transformers model in ``model``.
        ValueError: for an unknown site, or layers or heads out of range.
        RuntimeError: when the model's attention cannot be captured (with the reasons), when a site is out of
            reach for it, or when it is set in training mode inside the block.

    Example:
        >>> import torch, attnscope as asc
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
        ...                      num_attention_heads=4, num_key_value_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> with asc.capture(model, sites=("attention", "value")) as recording:
        ...     for layer in recording.run(input_ids=torch.arange(6)[None]):
        ...         rows = layer.attention.sum(-1)
        ...         print(layer.index, list(layer.attention.shape), bool((rows - 1).abs().max() < 1e-6))
        0 [1, 4, 6, 6] True
        1 [1, 4, 6, 6] True
    """
    if not flag("capture", "lazy", lazy):
        if precision is not None:
            raise ValueError(f"capture: precision belongs to lazy=True, got {precision!r} without it")
        return Recording(model, layers, heads, sites, chunk)
    if tuple(sites) != ("attention",) or chunk is not None:
        raise ValueError(
            f"capture: lazy=True takes neither sites nor chunk, got sites={sites!r}, chunk={chunk!r}"
        )
    chosen_layers, chosen_heads = (
        indices_argument("capture", name, numbers) for name, numbers in (("layers", layers), ("heads", heads))
    )
    return LazyRecording(model, chosen_layers, chosen_heads, precision)


class Recording:
    """Runs a model and yields its layers. Made by ``capture``; see there.

    Attributes:
        output: what the model returned in the last finished run (logits and so on); None before.
        tier: 1 own attention function, 2 hooks on eager attention, 3 ``output_attentions=True``; None for a
            model whose first run has to show it.
    """

    def __init__(
        self, model: nn.Module, layers: Numbers, heads: Numbers, sites: Sequence[str], chunk: int | None
    ) -> None:
        sites = checked("capture", sites)
        if not sites:
            raise ValueError(f"capture: sites must be among {', '.join(SITES)}, got {sites}")
        if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
            raise ValueError(f"capture: chunk must be a positive number of heads, got {chunk!r}")
        self._model = module_argument("capture", model)
        self._name = type(self._model).__name__
        self._layers = indices_argument("capture", "layers", layers)
        self._heads = indices_argument("capture", "heads", heads)
        self._sites = sites
        self._chunk = chunk
        self._plan: CapturePlan | None = None
        self._inside = False
        self._open: weakref.WeakSet[Generator[Layer, None, None]] = weakref.WeakSet()
        self._rows: GeneratedRows | None = None
        self.output: Any = None
        # What a forward pass runs inside, in the thread that runs it: edits, and hooks for the model's sites.
        self.around: Callable[[], AbstractContextManager[Any]] = nullcontext

    def __repr__(self) -> str:
        """Return the model, what is captured and how."""
        return f"Recording({self._name}, sites={self._sites}, tier={self.tier})"

    @property
    def tier(self) -> int | None:
        """The number of the way that is used, 1 to 3; None while no run has shown it."""
        return None if self._plan is None else self._plan.tier

    @property
    def depths(self) -> dict[str, int]:
        """Number of layers by stack of attention modules; empty while no run has shown them."""
        return {} if self._plan is None else dict(self._plan.stacks)

    def __enter__(self) -> Recording:
        preflight.check_model(self._model)
        self._mode = EvaluationMode(self._model)
        try:
            self._settle(preflight.plan_for(self._model))
        except BaseException:
            self._mode.put_back()
            raise
        self._inside = True
        return self

    def __exit__(self, *_: object) -> None:
        self._inside = False
        for run in list(self._open):
            run.close()
        self._mode.put_back()

    def run(self, *unnamed: Any, **inputs: Any) -> Iterator[Layer]:
        """Run the model on ``inputs`` and yield its layers in the order they are computed.

        The next layer is computed while the last one is in the loop's body; at most two are alive, unless the
        caller keeps them. Leaving the loop early stops the model. Gradients are off. The key/value cache is
        off unless ``use_cache`` or ``past_key_values`` is given.

        Args:
            unnamed: nothing; a model's inputs are given by name.
            inputs: what the model takes, e.g. ``**tokenizer(text, return_tensors="pt")``.

        Raises:
            TypeError: for an input without a name.
            RuntimeError: when no attention module ran, and outside of the ``with`` block.
        """
        self._check("run")
        inputs = preflight.run_inputs(self._model, unnamed, inputs)
        plan = self._plan_for(inputs)
        assert plan is not None  # there are inputs to find it on
        return self._start(plan, self._model, inputs)

    def generate(self, *unnamed: Any, **inputs: Any) -> Iterator[Layer]:
        """Run ``model.generate`` and yield the layers of every step.

        Step 0 sees the whole prompt (``n x n``), later steps one new query (``1 x k``); ``layer.step`` counts
        them, and ``layer.key_offset`` is the position of key 0, > 0 once a sliding cache has dropped some.
        ``recording.output`` holds the generated tokens at the end, and ``recording.assembled()`` gives the
        rows of all steps as one map per layer. For that they are kept, up to a quarter of the free memory.
        Virtual tokens that an adapter's ``generate`` leaves out, or reads again in each step, are said.

        Args:
            unnamed: nothing; a model's inputs are given by name.
            inputs: what the model's ``generate`` takes, options among them.

        Raises:
            TypeError: for an input without a name, a text, and a model that does not generate.
            ValueError: for inputs without a token, and for `output_attentions`.
            RuntimeError: when the model is captured by its output alone, and outside of the ``with`` block.
        """
        self._check("generate")
        if not callable(getattr(self._model, "generate", None)):
            raise TypeError(f"generate: {self._name} does not generate text")
        preflight.check_inputs("generate", unnamed, inputs, has_options=True)
        if self._plan is None:
            raise RuntimeError("generate: run the model once before, so that the way to capture it is known")
        plan = self._plan_for({name: value for name, value in inputs.items() if torch.is_tensor(value)})
        assert plan is not None  # there was one before
        if plan.tier == OUTPUTS:
            raise RuntimeError(f"generate: {self._name} is captured by output_attentions, use run")
        settings = GenerationSettings.of(self._model, inputs)
        rows = self._rows = GeneratedRows(settings)
        if settings.beams == 1:
            return self._keep_rows(rows, self._start(plan, self._model.generate, inputs))

        def search(**arguments: Any) -> Any:
            """Generate with beams, and keep which row of the batch each sequence was in."""
            output = self._model.generate(**arguments, return_dict_in_generate=True)  # type: ignore[operator]
            rows.beams = output.beam_indices.cpu()
            return output if settings.is_dictionary else output.sequences

        inputs.pop("return_dict_in_generate", None)
        return self._keep_rows(rows, self._start(plan, search, inputs))

    def _keep_rows(self, rows: GeneratedRows, stream: Iterator[Layer]) -> Iterator[Layer]:
        for layer in stream:
            rows.add(layer)
            yield layer
            del layer

    def assembled(self) -> Iterator[Layer]:
        """Yield each layer of the last generation with the rows of all its steps as one map.

        Row i is what token i gave to the tokens before it when it was computed, whatever the cache: equal to
        one forward pass over the prompt and the answer but for rounding, which of a quantized cache is coarse
        (.02 with 4 bits). The last generated token was never a query and has no row. Keys that a sliding
        cache had dropped have no attention and are outside of what the row sees. The queries of cross
        attention are put below each other. With beams, a sample is a returned sequence, followed back to the
        rows that it came from. A text that ended before the others of its batch goes on with padding tokens,
        as the model computes them. Keys of a cache that was filled before, or of a learned prefix, were no
        queries: the map is then a rectangle, with the queries at its last keys. Maps of pictures are given as
        they are, one of each picture.

        Yields:
            `Layer` objects with the site ``attention``, in the order in which the layers run. Their
            ``answer_start`` is the number of queries of each sample's prompt.

        Raises:
            RuntimeError: no generation, or one that was not followed to its end, computes rows that are no
                part of the text (assisted generation, virtual tokens read again), or is too large to be kept.

        Example:
            >>> import torch, attnscope as asc
            >>> from transformers import LlamaConfig, LlamaForCausalLM
            >>> config = LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            ...                      num_attention_heads=2)
            >>> model = LlamaForCausalLM(config).eval()
            >>> with asc.capture(model) as recording:
            ...     steps = list(recording.generate(input_ids=torch.arange(3, 7)[None], max_new_tokens=3,
            ...                                     eos_token_id=None, pad_token_id=0))
            ...     print([list(step.attention.shape[-2:]) for step in steps])
            ...     print([list(layer.attention.shape) for layer in recording.assembled()])
            [[4, 4], [1, 5], [1, 6]]
            [[1, 2, 6, 6]]
        """
        if self._rows is None:
            raise RuntimeError("assembled: nothing was generated; loop over recording.generate(...) first")
        if self.output is None:
            raise RuntimeError("assembled: the generation was left before its end")
        return self._rows.layers()

    def _plan_for(self, inputs: dict[str, Any]) -> CapturePlan | None:
        """Return the plan for these inputs, checked against what was asked for where it is another one."""
        plan = preflight.plan_for(self._model, inputs)
        return plan if plan is self._plan else self._settle(plan)

    def _check(self, inside: str = "") -> None:
        """Raise for a model in training mode, and outside of the block for what is done inside it."""
        if inside and not self._inside:
            raise RuntimeError(
                f"{inside}: the recording is closed; use it inside 'with capture(model) as recording:'"
            )
        if self._model.training:
            raise RuntimeError(
                f"capture: {self._name} is in training mode, where dropout changes its "
                "attention; call model.eval() first"
            )

    def _settle(self, plan: CapturePlan | None) -> CapturePlan | None:
        """Check what was asked against what the preflight found, and name what is missing."""
        self._plan = plan
        if plan is None:
            return None
        name, reasons = self._name, "; ".join(plan.reasons)
        if plan.caution:
            warn(f"capture: {plan.caution}", UserWarning)
        if plan.missing:
            words = _missing_words(plan.missing)
            if self._layers is not None:
                raise RuntimeError(
                    f"capture: layers {self._layers} of {name} were asked for, and attention maps of "
                    f"{words} are missing; leave layers out to capture the others. {reasons}"
                )
            warn(
                f"capture: {name}: the attention maps of {words} are missing, the others are captured. "
                f"{reasons}",
                UserWarning,
            )
        resolve_indices(self._layers, max(plan.stacks.values()), f"layers of {name}")
        for layer in self._layers or ():
            if not any(
                (layer + plan.stacks[s] if layer < 0 else layer) in has for s, has in plan.indices.items()
            ):
                have = sorted(set().union(*plan.indices.values()))
                raise ValueError(f"capture: layer {layer} of {name} has no attention; layers {have} have")
        for stack, heads in plan.heads.items():
            resolve_indices(self._heads, heads, f"heads of {name}, {stack}")
        if plan.tier == OUTPUTS:
            warn(
                f"capture: the attention of {name} only comes out all at once (output_attentions=True): "
                f"every layer's maps are in memory together. {reasons}",
                UserWarning,
            )
        if far := [site for site in self._sites if plan.tier not in TABLE[site].tiers]:
            raise RuntimeError(f"capture: {name} does not let {far} be captured. {reasons}")
        for site, (core, parts) in product(self._sites, plan.parts.items()):
            if not TABLE[site].of_attention and parts.place(core, site)[0] is None:
                raise RuntimeError(f"capture: {name}: no place for site {site!r} was found around {core}")
        return plan

    def _start(self, plan: CapturePlan, forward: Any, inputs: dict[str, Any]) -> Iterator[Layer]:
        stream = (self._outputs if plan.tier == OUTPUTS else self._streamed)(plan, forward, inputs)
        self._open.add(stream)
        return stream

    def _streamed(
        self, plan: CapturePlan, forward: Any, inputs: dict[str, Any]
    ) -> Generator[Layer, None, None]:
        self.output = None
        hooks = plan.tier == HOOKS
        if hooks:
            inputs = float_masks(inputs, self._model)
            if plan.ask:
                inputs["output_attentions"] = True
        stream = Stream()
        recorder = Recorder(
            self._model,
            stream.emit,
            sites=self._sites,
            layers=self._layers,
            heads=self._heads,
            plan=plan,
            chunk=self._chunk,
        )
        if forward is not self._model:
            recorder.generation_options = generation_options_among(inputs)
        if hooks:
            recorder.watch = SoftmaxWatch(recorder.names, visible=True)

        def work() -> None:
            try:
                self.output = forward(**inputs)
            except ValueError as error:
                if "inputs_embeds" not in str(error):
                    raise
                lacking = 'takes token ids: run(**tokenizer(text, return_tensors="pt"))'
                if "input_ids" in inputs or "inputs_embeds" in inputs:
                    lacking = "has a decoder, which needs inputs of its own: give decoder_input_ids"
                raise ValueError(f"run: {self._name} {lacking}") from error

        taking: AbstractContextManager[None] = (
            capture_eager_weights(recorder, dict(plan.weights), forced=plan.forced)
            if hooks
            else nullcontext()
        )
        name = "eager" if hooks else NAME
        with preserved_run(self._model), implementation(self._model, name), taking:
            yield from stream.layers(recorder, self.around, work)
        if not recorder.seen:
            raise RuntimeError(f"capture: tier {plan.tier} saw no attention of {self._name} in this run")

    def _outputs(
        self, plan: CapturePlan, forward: Any, inputs: dict[str, Any]
    ) -> Generator[Layer, None, None]:
        inputs = float_masks(inputs, self._model)
        recorder = Recorder(self._model, lambda layer: None)
        recorder.watch = SoftmaxWatch(recorder.names, visible=True, keep_all=True)
        token = LIVE.set(recorder)
        try:
            with (
                preserved_run(self._model),
                implementation(self._model, "eager"),
                self.around(),
                torch.no_grad(),
                recorder.listening(),
            ):
                self.output = forward(**inputs, output_attentions=True)
        finally:
            LIVE.reset(token)
        layers = attention_outputs(self.output, inputs, recorder)
        while layers:
            layer = layers.pop(0)
            chosen = self._layers and resolve_indices(self._layers, plan.stacks[layer.stack], layer.stack)
            if chosen and layer.index not in chosen:
                continue
            if self._heads is not None:
                heads = resolve_indices(self._heads, len(layer.heads), layer.stack)
                layer.heads = layer.kv_heads = tuple(heads)
                if layer.mask is not None and layer.mask.shape[1] > 1:
                    layer.mask = layer.mask[:, heads]
                layer.tensors = {"attention": layer.attention[:, heads]}
            yield layer


def _missing_words(names: Sequence[str]) -> str:
    """Return names of modules by their stacks, and how many of each there are."""
    counts = Counter(map(name_pattern, names))
    return ", ".join(f"{stack} ({count} modules)" if count > 1 else stack for stack, count in counts.items())
