# SPDX-License-Identifier: MIT
"""Second moments of what every matrix of a model reads, and of the gradients at what it writes, over texts.

Inputs are the tensors that the projections multiply, behind norms and their gains, seen by hooks on the
projections themselves. One matrix stands for all that read the same tensor: q for k and v, gate for up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attnscope._evaluation import differentiable, evaluating
from attnscope.arguments import scalars
from attnscope.arguments.tokenizers import tokenizer_argument
from attnscope.capture.gradient import check_precision
from attnscope.errors import LoadError
from attnscope.metrics.weights.moments import Moments, site_of
from attnscope.models.architecture import input_device, weight_map
from attnscope.models.inputs.text_inputs import stream_ids
from attnscope.models.weight_entries import WeightEntry, WeightMap

Labels = Literal["data", "sampled"]


def second_moments(
    model: nn.Module,
    texts: Any,
    *,
    tokenizer: Any = None,
    column: str = "",
    map: WeightMap | None = None,
    gradients: bool = False,
    labels: Labels = "data",
    skip_first: bool = True,
    groups: int = 8,
    rank: int | None = None,
    max_tokens: int | None = None,
) -> Moments:
    """Stream texts through a model and sum x xᵀ of its matrices' inputs and of their output gradients.

    Args:
        model: of transformers; one in training mode is evaluated.
        texts: as `analyze` takes them: sentences, token ids, a table with a column of texts, what a
            tokenizer gives; a generator is read one text at a time.
        tokenizer: that makes ids of strings.
        column: of a table, the one that holds the texts.
        map: from `weight_map`; None makes it.
        gradients: also of δ_t = ∂L/∂(output), L the summed next-token loss of a text.
        labels: tokens that the loss asks for: "data", the next ones, or "sampled" from the model. Text
            number i draws them from a generator of its own, with seed i, whatever the other texts are.
        skip_first: leave out position 0, whose states are unlike any other's.
        groups: text i goes into group i mod `groups`; their sums are kept apart.
        rank: columns of a sketch, for widths where whole moments do not fit; None keeps them whole.
        max_tokens: longer texts are cut.

    Returns:
        `Moments`. Routed experts have no `down` inputs of their own and no gradients; their gate and up read
        the inputs of the whole block of experts.

    Raises:
        ValueError: no text, one with fewer than two tokens after `skip_first`, which have no spread about
            their mean, strings without a tokenizer, half precision with gradients.
        LoadError: gradients of a model without a vocabulary head, such as a classifier.

    Example:
        >>> import torch, attnscope as asc
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=8, num_hidden_layers=1,
        ...                      num_attention_heads=2)
        >>> model = LlamaForCausalLM(config).eval()
        >>> moments = asc.second_moments(model, [[1, 2, 3], [4, 5, 6, 7]])
        >>> moments.tokens(0, "q"), round(moments.trace(0, "q"))  # the norm makes every token's square 16
        (5, 16)

    References:
        Martens and Grosse, Optimizing neural networks with Kronecker-factored approximate curvature, 2015,
        for the two moments of a matrix and for labels sampled from the model.
    """
    name = "second_moments"
    tokenizer_argument(name, tokenizer)
    scalars.choice_argument(name, "labels", labels, ("data", "sampled"))
    gradients = scalars.flag(name, "gradients", gradients)
    skip_first = scalars.flag(name, "skip_first", skip_first)
    if groups < 1:
        raise ValueError(f"{name}: groups must be at least 1, got {groups}")
    moments = Moments(rank)
    tracer = Tracer(model, map, gradients=gradients)
    count = 0
    for number, row in enumerate(stream_ids(name, texts, tokenizer, column)):
        ids = torch.tensor(row[:max_tokens], dtype=torch.int64, device="cpu")
        check_length(f"{name}: text {number}", len(ids), skip_first=skip_first)
        generator = torch.Generator().manual_seed(number)
        for trace in tracer.run(ids, labels=labels, generator=generator):
            trace.add_to(moments, number % groups, skip_first=skip_first)
        count += 1
    if not count:
        raise ValueError(f"{name}: texts must hold at least one text, got none")
    return moments


def check_length(text: str, tokens: int, *, skip_first: bool) -> None:
    """Raise for a text below two tokens, which has no mean of its own and no loss."""
    if tokens < 2 + skip_first:
        behind = f", of which {max(0, tokens - 1)} behind the first," if skip_first else ""
        raise ValueError(f"{text} has {tokens} tokens{behind} and two are needed")


class Trace:
    """The inputs of one matrix (and of those that share them) in one text, and the gradient at its output.

    Attributes:
        layer: its block.
        entries: matrices that read this tensor.
        x: [n, in].
        deltas: by role, ∂L/∂(output) [n, out]; empty without gradients.
    """

    def __init__(self, layer: int, entries: Sequence[WeightEntry]) -> None:
        self.layer, self.entries = layer, entries
        self.x = torch.empty(0, dtype=torch.float32, device="cpu")
        self.deltas: dict[str, Tensor] = {}

    @property
    def role(self) -> str:
        """The first of its roles."""
        return self.entries[0].role

    def add_to(self, moments: Moments, group: int, *, skip_first: bool) -> None:
        """Add the trace's tokens to moments."""
        start = int(skip_first)
        moments.add(self.x[start:], layer=self.layer, role=self.role, group=group)
        for role, delta in self.deltas.items():
            moments.add(delta[start:], layer=self.layer, role=role, side="out", group=group)


class Tracer:
    """Runs texts and hands on what the matrices of a model read and what the loss asks of their outputs.

    Args:
        model: of transformers; one in training mode is evaluated.
        map: of its matrices.
        gradients: take them.
        layers: only these blocks; None takes all.
    """

    def __init__(
        self,
        model: nn.Module,
        map: WeightMap | None = None,
        *,
        gradients: bool = False,
        layers: Sequence[int] | None = None,
    ) -> None:
        if gradients:
            check_precision(model)
        self.model, self.gradients = model, gradients
        self.map = weight_map(model) if map is None else map
        inside = [entry for entry in self.map if entry.layer >= 0]
        self.entries = [entry for entry in inside if layers is None or entry.layer in layers]
        self._sites: dict[tuple[int, str], list[WeightEntry]] = {}
        for entry in self.entries:
            if entry.expert is None or entry.role in ("gate", "up"):
                self._sites.setdefault((entry.layer, site_of(entry.role, "in")), []).append(entry)
        for entries in self._sites.values():
            entries.sort(key=lambda entry: entry.expert is not None)

    def run(
        self, ids: Tensor, *, labels: str = "data", generator: torch.Generator | None = None
    ) -> Iterator[Trace]:
        """Yield the traces of one text, layer by layer.

        Args:
            ids: [n].
            labels: as in `second_moments`.
            generator: of sampled labels.
        """
        traces, _ = self.traced(ids, labels=labels, generator=generator)
        yield from traces

    def traced(
        self,
        ids: Tensor,
        *,
        labels: str = "data",
        generator: torch.Generator | None = None,
        parameters: bool = False,
    ) -> tuple[list[Trace], dict[str, Tensor]]:
        """Return the traces of one text, and with `parameters` the gradients of the stored tensors."""
        inputs = {"input_ids": ids[None].to(input_device(self.model))}
        names = list(dict.fromkeys(entry.tensor for entry in self.entries)) if parameters else []
        weights = {name: self.model.get_parameter(name) for name in names}
        with (
            evaluating(self.model),
            self._hooked() as (traces, outputs),
            differentiable(self.model, weights.values()),
        ):
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            if not self.gradients:
                with torch.no_grad():  # no logits are needed
                    getattr(self.model, "base_model", self.model)(**inputs)
                return self._read(traces), {}
            with torch.enable_grad():
                result = self.model(**inputs)
            if getattr(result, "logits", None) is None:
                raise LoadError(
                    f"second_moments: {type(self.model).__name__} has no vocabulary head, whose loss has "
                    "gradients; load it with its head, or take gradients=False (options.gradients=false)"
                )
            _check_logits(self.model, result.logits, inputs["input_ids"])
            loss = _loss(result.logits[0], inputs["input_ids"][0], labels, generator)
            sources = [*outputs.values(), *weights.values()]
            grads = torch.autograd.grad(loss, sources, allow_unused=True)
            dense = [
                torch.zeros_like(source) if grad is None else grad
                for source, grad in zip(sources, grads, strict=True)
            ]
        gradients = dict(zip(outputs, dense, strict=False))
        for (layer, tensor), gradient in gradients.items():
            flat = gradient.reshape(-1, gradient.shape[-1]).detach()
            for entry in self.entries:
                if entry.expert is None and (entry.layer, entry.tensor) == (layer, tensor):
                    trace = traces[layer, site_of(entry.role, "in")]
                    trace.deltas[entry.role] = _columns(entry, flat)
        of_parameters = dict(zip(names, dense[len(gradients) :], strict=True))
        return self._read(traces), of_parameters

    @staticmethod
    def _read(traces: Mapping[tuple[int, str], Trace]) -> list[Trace]:
        """Return the traces of modules that ran; of some a model takes the weights and calls them itself."""
        return [trace for trace in traces.values() if trace.x.ndim == 2]

    @contextmanager
    def _hooked(self) -> Iterator[tuple[dict[tuple[int, str], Trace], dict[tuple[int, str], Tensor]]]:
        traces = {place: Trace(place[0], entries) for place, entries in self._sites.items()}
        outputs: dict[tuple[int, str], Tensor] = {}

        def reading(trace: Trace) -> Any:
            def keep(_: nn.Module, args: tuple[Any, ...]) -> None:
                trace.x = args[0].detach().reshape(-1, args[0].shape[-1])

            return keep

        def writing(entry: WeightEntry) -> Any:
            def keep(_: nn.Module, args: Any, output: Any) -> None:
                outputs[entry.layer, entry.tensor] = output if torch.is_tensor(output) else output[0]

            return keep

        with ExitStack() as hooks:
            for place, entries in self._sites.items():
                for owner in self._readers(entries):
                    hooks.enter_context(owner.register_forward_pre_hook(reading(traces[place])))
            if self.gradients:
                hooks.enter_context(self._embedding().register_forward_hook(_differentiable))
                linear = {
                    entry.tensor: entry
                    for entry in self.entries
                    if entry.expert is None and self._is_linear(entry)
                }
                for entry in linear.values():
                    hooks.enter_context(self._owner(entry).register_forward_hook(writing(entry)))
            yield traces, outputs

    def _readers(self, entries: Sequence[WeightEntry]) -> list[nn.Module]:
        """Return the modules that read a site: of some models the first is a router that is never called,
        because its block reads its weight itself.
        """
        dense = [entry for entry in entries if entry.expert is None] or entries[:1]
        return list(dict.fromkeys(self._owner(entry) for entry in dense))

    def _owner(self, entry: WeightEntry) -> nn.Module:
        return self.model.get_submodule(entry.tensor.rpartition(".")[0])

    def _is_linear(self, entry: WeightEntry) -> bool:
        """Return True if the entry's owner hands on W·x (a router hands on what it made of it)."""
        return entry.tensor.endswith(".weight") and type(self._owner(entry)).__name__ in (
            "Linear",
            "Conv1D",
            "NonDynamicallyQuantizableLinear",
            "FalconLinear",
        )

    def _embedding(self) -> nn.Module:
        return self.model.get_input_embeddings()  # type: ignore[operator]


def _differentiable(module: nn.Module, args: Any, output: Tensor) -> Tensor:
    if not torch.is_tensor(output):
        raise NotImplementedError(
            f"second_moments: the token embedding ({type(module).__name__}) hands on several tensors, so "
            "there is none to differentiate along; gradients=False measures without"
        )
    # parameters are frozen, so something at the bottom must ask for the graph
    return output if output.requires_grad else output.requires_grad_(True)


def _check_logits(model: nn.Module, logits: Any, ids: Tensor) -> None:
    """Raise where logits are no scores of a vocabulary at every token, as of a classifier."""
    shape = tuple(getattr(logits, "shape", ()))
    if len(shape) != 3 or shape[:2] != tuple(ids.shape) or shape[2] <= int(ids.max()):
        raise LoadError(
            f"second_moments: {type(model).__name__} predicts no tokens: for {ids.shape[1]} tokens its "
            f"logits have shape {shape}; load it with its vocabulary head, or take gradients=False "
            "(options.gradients=false)"
        )


def _loss(logits: Tensor, ids: Tensor, labels: str, generator: torch.Generator | None) -> Tensor:
    """Return the summed loss of the next tokens, or of tokens that the model draws at every position."""
    log_probabilities = logits[:-1].log_softmax(-1)
    targets = ids[1:]
    if labels == "sampled":
        drawn = torch.multinomial(log_probabilities.detach().exp().cpu(), 1, generator=generator)
        targets = drawn[:, 0].to(ids.device)
    return -log_probabilities.gather(-1, targets[:, None]).sum()


def _columns(entry: WeightEntry, flat: Tensor) -> Tensor:
    """Return the entry's own outputs of a fused matrix."""
    if entry.rows is None:
        return flat
    return torch.cat([flat[:, first:end] for first, end in entry.rows.runs()], dim=1)


def identity_errors(tracer: Tracer, ids: Tensor) -> dict[tuple[int, str], float]:
    """Compute ‖∂L/∂W − Σ_t δ_t a_tᵀ‖/‖∂L/∂W‖ of every matrix on one text; both sides are the matrix's own.

    Args:
        ids: of the text [n].
    """
    traces, parameters = tracer.traced(ids, parameters=True)
    errors: dict[tuple[int, str], float] = {}
    for trace in traces:
        for entry in trace.entries:
            if entry.role not in trace.deltas or entry.expert is not None:
                continue
            gradient = entry.of(parameters[entry.tensor].double())
            product = trace.deltas[entry.role].double().mT @ trace.x.double()
            size = float(gradient.norm())
            errors[entry.layer, entry.role] = float((gradient - product).norm()) / size if size else 0.0
    return errors
