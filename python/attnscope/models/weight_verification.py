# SPDX-License-Identifier: MIT
"""Proof on a running model that each matrix has the role that its map says.

A wrong split of a fused matrix still gives plausible numbers, but q, k and v do different things. Noise added
to one token's projection changes what the attention passes on (the input of o):

* q: at that token only, since a query is read by its own row alone; and nowhere where all values are equal,
  since it chooses among them, while a gate on what is read moves them all the same;
* v: at other tokens, and affinely, since rows are weighted sums of values. Norms inside the attention, behind
  v or before o, multiply by what they multiply by without noise, or nothing behind them were affine;
* k: at other tokens, and not affinely, since keys stand inside the softmax.

And the input of down is linear in the up projection, which it is not in the gate.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnscope._evaluation import evaluating
from attnscope.errors import WeightMapError
from attnscope.models.architecture import input_device, weight_map
from attnscope.models.weight_entries import WeightEntry, WeightMap

_TOKENS = 12
_TOKEN = 5
_QUERIES = ("q", "q_up", "q_gate")
_KEYS = ("k", "kv", "kv_up")
#: Noise in units of the projection's own output, until keys move the softmax.
_NOISE = (1.0, 8.0, 64.0, 512.0, 4096.0)


def verify_weight_map(model: nn.Module, map: WeightMap | None = None) -> None:
    """Prove by running one block of a model that its q, k, v, gate and up are those of the map.

    Args:
        model: a Hugging Face model of any dtype; one forward pass of 12 random tokens, then one block of it
            in float32 or better. Mode, weights and random state are left as they were.
        map: from `weight_map`; None makes it.

    Returns:
        nothing.

    Raises:
        WeightMapError: a role moves what another would; the message names the matrix and what it did.

    Example:
        >>> import attnscope as asc
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> config = LlamaConfig(vocab_size=16, hidden_size=16, intermediate_size=8, num_hidden_layers=2,
        ...                      num_attention_heads=2)
        >>> asc.verify_weight_map(LlamaForCausalLM(config))

    References:
        Vaswani et al., Attention is all you need, 2017, for what queries, keys and values do.
    """
    weights = weight_map(model) if map is None else map
    attention = _middle(weights, ("q",), ("o",), _KEYS)
    if attention is None:
        raise WeightMapError("verify_weight_map: no layer has q, k and o, so nothing can be proved")
    _check_attention(_Block(model, weights, attention), attention)
    feed_forward = _middle(weights, ("gate",))
    if feed_forward is not None:
        _check_gate(_Block(model, weights, feed_forward), feed_forward)


def _middle(weights: WeightMap, *roles: Sequence[str]) -> int | None:
    """Return the middle one of the layers that have a role of each of the groups."""
    groups = ({entry.layer for entry in weights if entry.role in group} for group in roles)
    layers = sorted(set.intersection(*groups))
    return layers[len(layers) // 2] if layers else None


class _Block:
    """A block of a model, replayed on the inputs that it got in one forward pass."""

    def __init__(self, model: nn.Module, weights: WeightMap, layer: int) -> None:
        self.entries = [entry for entry in weights if entry.layer == layer]
        self.heads = max(1, weights.heads_of(layer))
        self._name = f"{weights.blocks}.{layer}"
        block = model.get_submodule(self._name)
        self._args, self._kwargs = _inputs(model, weights, block)
        half = any(parameter.dtype in (torch.float16, torch.bfloat16) for parameter in block.parameters())
        self._block = copy.deepcopy(block).float() if half else block
        self._args, self._kwargs = _fresh(self._args, half), _fresh(self._kwargs, half)
        self._plain: dict[tuple[int, bool, bool], Tensor] = {}

    def of(self, role: str) -> list[WeightEntry]:
        """Return the entries of a role."""
        return [entry for entry in self.entries if entry.role == role]

    def owner(self, entry: WeightEntry) -> nn.Module:
        """Return the module whose parameter holds the entry."""
        inside = entry.tensor.removeprefix(f"{self._name}.").rpartition(".")[0]
        return self._block.get_submodule(inside)

    def module_of(self, entry: WeightEntry) -> nn.Module:
        """Return the module that holds the owner of an entry."""
        inside = entry.tensor.removeprefix(f"{self._name}.").rpartition(".")[0]
        return self._block.get_submodule(inside.rpartition(".")[0])

    def norms_of(self, parent: nn.Module) -> list[nn.Module]:
        """Return the norms inside a module."""
        return [module for module in parent.modules() if "norm" in type(module).__name__.lower()]

    @contextlib.contextmanager
    def holding_norms(self, parent: nn.Module) -> Iterator[None]:
        """Make each norm of a module multiply by the factors of a run without noise, inside."""
        factors: dict[nn.Module, list[Tensor]] = {norm: [] for norm in self.norms_of(parent)}
        if not factors:
            yield
            return

        def record(norm: nn.Module, arguments: Any, output: Tensor) -> None:
            entered = _first(arguments)
            factors[norm].append(torch.where(entered == 0, 0, output / entered))

        def hold(norm: nn.Module, arguments: Any, _output: Tensor) -> Tensor:
            factor = factors[norm].pop(0)
            factors[norm].append(factor)
            return _first(arguments) * factor

        with contextlib.ExitStack() as stack, torch.no_grad(), evaluating(self._block):
            for norm in factors:
                stack.enter_context(norm.register_forward_hook(record))
            self._block(*self._args, **self._kwargs)
        with contextlib.ExitStack() as stack:
            for norm in factors:
                stack.enter_context(norm.register_forward_hook(hold))
            yield

    def run(
        self, watched: nn.Module, site: str, changes: Sequence[tuple[nn.Module, Callable[[Tensor], Tensor]]]
    ) -> Tensor:
        """Return what enters or leaves a module when the outputs of others are changed."""
        seen: list[Tensor] = []

        def see(_: nn.Module, *passing: Any) -> None:
            seen.append(_first(passing[-1]).detach().clone())

        with contextlib.ExitStack() as stack, torch.no_grad(), evaluating(self._block):
            for module, change in changes:
                acting = module.register_forward_hook(lambda _m, _a, output, change=change: change(output))
                stack.enter_context(acting)
            enters = site == "input"
            watch = watched.register_forward_pre_hook if enters else watched.register_forward_hook
            stack.enter_context(watch(see))
            self._block(*self._args, **self._kwargs)
        if not seen:
            raise WeightMapError(f"verify_weight_map: {type(watched).__name__} did not run in {self._name}")
        return seen[0].double().reshape(-1, seen[0].shape[-1])

    def noise(
        self,
        watched: nn.Module,
        entry: WeightEntry,
        size: float,
        held: bool = False,
        equal: Sequence[WeightEntry] = (),
    ) -> Tensor:
        """Return how what enters `watched` changes when noise is added to one token of the entry's output.

        The outputs of the entries `equal` are those of their first token at all tokens.
        """
        generator = torch.Generator().manual_seed(0)

        def change(output: Tensor) -> Tensor:
            if not isinstance(output, Tensor):  # a projection that hands on a scale besides (I-BERT)
                raise WeightMapError(
                    f"verify_weight_map: {entry.title} ({entry.tensor}) is of a projection that hands on "
                    f"{type(output).__name__} of several tensors, so nothing can be proved"
                )
            rows = _row_numbers(entry).to(output.device)
            scale = output.double().std().clamp_min(1e-6) * size
            direction = torch.randn(len(rows), generator=generator, dtype=torch.float64, device="cpu")
            changed = output.clone()
            token = changed.view(-1, changed.shape[-1])[_TOKEN]
            token[rows] += (scale * direction.to(output.device)).to(output.dtype)
            return changed

        alike = [(self.owner(entry), _equalising(entry)) for entry in equal]
        key = (id(watched), held, bool(equal))
        if key not in self._plain:
            self._plain[key] = self.run(watched, "input", alike)
        return self.run(watched, "input", [*alike, (self.owner(entry), change)]) - self._plain[key]

    def plain(self, watched: nn.Module) -> Tensor:
        """Return what enters `watched` where all values are equal and nothing else is changed."""
        return self._plain[id(watched), False, True]


def _check_attention(block: _Block, layer: int) -> None:
    (output,) = block.of("o")
    watched = block.owner(output)
    others = torch.arange(_TOKENS, device="cpu") != _TOKEN
    keys = [entry for role in _KEYS for entry in block.of(role)]
    if not keys:
        raise WeightMapError(f"verify_weight_map: layer {layer} has q but no k")
    # flat attention hides that keys stand inside a softmax, so the noise grows until it shows
    size, curved = next(
        ((size, bend) for size in _NOISE if (bend := _bend(block, watched, keys[0], size, others))[1] > 1e-2),
        (_NOISE[-1], _bend(block, watched, keys[0], _NOISE[-1], others)),
    )
    if curved[0] <= 1e-3 or curved[1] <= 1e-2:
        _require_movement(block, watched, layer)
        raise WeightMapError(
            f"verify_weight_map: {keys[0].title} ({keys[0].tensor}) is no key: noise in it moves other "
            f"tokens by {curved[0]:.1g} of the largest move, {curved[1]:.1g} of that not affinely"
        )
    for entry in (query_entry for role in _QUERIES for query_entry in block.of(role)):
        moved, _ = _bend(block, watched, entry, size, others)
        if moved > 1e-6:
            raise WeightMapError(
                f"verify_weight_map: {entry.title} ({entry.tensor}) is no query: noise in it moves other "
                f"tokens by {moved:.1g} of the largest move, a query moves its own row only"
            )
    for entry in block.of("v"):
        with block.holding_norms(block.module_of(output)):
            moved, bent = _bend(block, watched, entry, size, others, held=True)
        if moved <= 1e-3 or bent > 1e-4:
            _require_free_lengths(block, watched, entry, size)
            raise WeightMapError(
                f"verify_weight_map: {entry.title} ({entry.tensor}) is no value: noise in it moves other "
                f"tokens by {moved:.1g} of the largest move, {bent:.1g} of that not affinely"
            )
    for entry in (query_entry for role in ("q", "q_up") for query_entry in block.of(role)):
        gated = _turn(block, watched, entry, size) if block.of("v") else 0.0
        if gated > 1e-3:
            raise WeightMapError(
                f"verify_weight_map: {entry.title} ({entry.tensor}) is no query, or holds a gate besides: "
                f"where all values are equal, noise in it turns what heads read by {gated:.1g} of its size"
            )


def _require_movement(block: _Block, watched: nn.Module, layer: int) -> None:
    """Raise if what the attention passes on depends on none of its matrices (MRA without a GPU)."""
    entries = [entry for role in (*_QUERIES, *_KEYS, "v") for entry in block.of(role)]
    if not any(bool(block.noise(watched, entry, 1.0).any()) for entry in entries):
        roles = ", ".join(entry.role for entry in entries)
        raise WeightMapError(
            f"verify_weight_map: noise in {roles} of layer {layer} moves nothing of what its attention "
            "passes on, as where the model computes no attention on this device, so nothing can be proved"
        )


def _require_free_lengths(block: _Block, watched: nn.Module, entry: WeightEntry, size: float) -> None:
    """Raise if what heads read has the same lengths whatever the values are, by no norm that is a module
    (YOSO).
    """
    before = block.run(watched, "input", [])
    after = before + block.noise(watched, entry, size)
    if before.shape[-1] % block.heads:
        return
    lengths, moved_lengths = (
        heads.reshape(len(heads), block.heads, -1).norm(dim=-1) for heads in (before, after)
    )
    if torch.allclose(lengths, moved_lengths, rtol=1e-4, atol=0.0):
        raise WeightMapError(
            f"verify_weight_map: layer {entry.layer} scales what each head reads to a length of "
            f"{float(lengths.mean()):.3g}, whatever the values are and by no module, so it cannot be proved "
            f"that it is affine in {entry.title} ({entry.tensor})"
        )


def _bend(
    block: _Block,
    watched: nn.Module,
    entry: WeightEntry,
    size: float,
    others: Tensor,
    held: bool = False,
) -> tuple[float, float]:
    """Return the move of other tokens relative to the largest move, and the part of it that is not affine."""
    once, twice = (block.noise(watched, entry, factor * size, held) for factor in (1.0, 2.0))
    elsewhere, largest = once[others].abs().max(), once.abs().max().clamp_min(1e-300)
    bend = (twice - 2 * once)[others].abs().max() / elsewhere.clamp_min(1e-300)
    return float(elsewhere / largest), float(bend)


def _turn(block: _Block, watched: nn.Module, entry: WeightEntry, size: float) -> float:
    """Return by how much noise in an entry turns what each head reads of values that are all equal.

    A query leaves it or, where a learned sink takes a share, makes it longer or shorter.
    """
    moved = block.noise(watched, entry, size, equal=block.of("v"))[_TOKEN]
    heads = block.heads if len(moved) % block.heads == 0 else 1
    moved, plain = moved.view(heads, -1), block.plain(watched)[_TOKEN].view(heads, -1)
    along = (moved * plain).sum(-1, keepdim=True) / plain.square().sum(-1, keepdim=True).clamp_min(1e-300)
    return float((moved - along * plain).norm() / plain.norm().clamp_min(1e-300))


def _check_gate(block: _Block, layer: int) -> None:
    ups, downs = block.of("up"), block.of("down")
    if not ups or not downs:
        raise WeightMapError(f"verify_weight_map: layer {layer} has a gate but not both up and down")
    watched = block.owner(downs[0])
    # the activation beside alternating columns bounds what it gets, so there the steps are small
    step = 0.125 if any(entry.rows is not None and entry.rows.size == 1 for entry in ups) else 1.0
    outputs = []
    for factor in (0.0, step, 2 * step):
        if ups[0].expert is None:
            changes = [(block.owner(entry), _scaling(entry, factor)) for entry in ups]
            # a norm before down would hide that its input is linear
            with block.holding_norms(block.module_of(downs[0])):
                outputs.append(block.run(watched, "input", changes))
            continue
        # experts are fused in memory: their weights are scaled, and what they add up to is watched
        with _scaled(block, ups, factor):
            outputs.append(block.run(watched, "output", []))
    none, once, twice = outputs
    size = (twice - none).abs().max().clamp_min(1e-300)
    error = float((twice - 2 * once + none).abs().max() / size)
    if error > 1e-4:
        raise WeightMapError(
            f"verify_weight_map: {ups[0].title} ({ups[0].tensor}) is not up but gate: the input of down is "
            f"not linear in it (off by {error:.1g})"
        )


def _equalising(entry: WeightEntry) -> Callable[[Tensor], Tensor]:
    def change(output: Tensor) -> Tensor:
        changed = output.clone()
        tokens = changed.view(-1, changed.shape[-1])
        rows = _row_numbers(entry).to(output.device)
        tokens[:, rows] = tokens[0, rows]
        return changed

    return change


def _scaling(entry: WeightEntry, factor: float) -> Callable[[Tensor], Tensor]:
    def change(output: Tensor) -> Tensor:
        changed = output.clone()
        changed[..., _row_numbers(entry).to(output.device)] *= factor
        return changed

    return change


@contextlib.contextmanager
def _scaled(block: _Block, entries: Sequence[WeightEntry], factor: float) -> Iterator[None]:
    """Multiply the weights of some experts by a factor inside the block, and restore the same bits
    after it.
    """
    parameters = {
        entry.tensor: getattr(block.owner(entry), entry.tensor.rpartition(".")[2]) for entry in entries
    }
    originals = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    try:
        with torch.no_grad():
            for entry in entries:
                entry.view(parameters[entry.tensor]).mul_(factor)
        yield
    finally:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(originals[name])


def _row_numbers(entry: WeightEntry) -> Tensor:
    """Return which rows of the stored matrix's output axis are the entry's."""
    if entry.rows is None:
        return torch.arange(entry.shape[0], device="cpu")
    return torch.cat([torch.arange(first, end, device="cpu") for first, end in entry.rows.runs()])


def _inputs(model: nn.Module, weights: WeightMap, block: nn.Module) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the inputs of one block in a forward pass of random tokens."""
    seen: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    embed = next((entry for entry in weights if entry.role == "embed"), None)
    if embed is None:
        raise WeightMapError("verify_weight_map: the model has no token embedding, so nothing can be proved")
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(embed.shape[0], (1, _TOKENS), generator=generator, device="cpu")
    inputs: dict[str, Any] = {"input_ids": ids.to(input_device(model))}
    arguments = inspect.signature(model.forward).parameters
    if "attention_mask" in arguments:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    if "use_cache" in arguments:
        inputs["use_cache"] = False
    keeping = block.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append((args, kwargs)), with_kwargs=True
    )
    with keeping, torch.no_grad(), evaluating(model):
        model(**inputs)
    if not seen:
        raise WeightMapError(f"verify_weight_map: {weights.blocks} did not run in a forward pass")
    return seen[0]


def _fresh(value: Any, half: bool) -> Any:
    """Return inputs for a replay: without the cache that the first run filled, half precision widened."""
    if isinstance(value, Tensor):
        return value.float() if half and value.is_floating_point() else value
    if isinstance(value, (tuple, list)):
        return type(value)(_fresh(element, half) for element in value)
    if isinstance(value, dict):
        return {name: _fresh(element, half) for name, element in value.items()}
    return None if hasattr(value, "get_seq_length") else value


def _first(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]
