# SPDX-License-Identifier: MIT
"""A model's structure, read in one place: its blocks, and where they keep queries, keys, values and the rest.

`Structure` holds the modules of a model in memory: its blocks in order and the parts of each. It has no list
of architectures: a module "has matrices" when a parameter below it has two or more dimensions (so a norm has
none), and a block is the nearest element of a module list that holds an attention module and more.

Every matrix of a block gets a role: q, k, v and gate, up read the residual stream, o and down write to it.
One stored tensor may hold several of them (fused projections) or one of them for many experts. A `WeightMap`
lists them one by one, as [out, in] matrices, whatever the file stores; it is made from the names and shapes
of tensors alone, so a folder of safetensors files, which is not loaded, and a model in memory give the same
entries. The names are data: `attnscope.models.families`.

    weight_map("path/to/gpt2")[3, "k"].of(tensors["h.3.attn.c_attn.weight"])    # [768, 768]
"""

from __future__ import annotations

import itertools
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload
from weakref import WeakKeyDictionary

import torch
from torch import nn

from attnscope.errors import WeightMapError
from attnscope.models.families import COMMON, FAMILIES, OUTSIDE, Family
from attnscope.models.weight_entries import (
    NO_MATRIX,
    NUMBER,
    WeightEntry,
    WeightMap,
    entries_of,
    out_gains,
    outside_of,
    place_of,
    refuse_empty,
    refuse_quantised,
    setting_of,
    stack_of,
    tied_tables,
    whole_setting,
)
from attnscope.models.weights import WeightFolder

_COMPILED = re.compile(r"(^|\.)_orig_mod(?=\.|$)")
_CROSS = re.compile(r"cross|encdec|encoder_attn|enc_attn", re.IGNORECASE)
_ANY_NUMBER = re.compile(r"(^|(?<=\.))\d+(?=\.|$)")
_ORDER = {role: at for at, role in enumerate(("q", "q_gate", "k", "v", "o", "gate", "up", "down"))}


class Parts(NamedTuple):
    """The modules of the block around an attention module, by name; None for a part that was not found.

    block: the whole. projection: the first matrix behind the softmax, W_O. feed_forward: whose output the
    feed-forward part adds to the residual stream. first: the matrix that reads the feed-forward part's input.
    """

    block: str | None = None
    projection: str | None = None
    feed_forward: str | None = None
    first: str | None = None

    def place(self, core: str | None, site: str) -> tuple[str | None, bool]:
        """Return the module at which a site is seen, and True if on the way in."""
        return {
            "hidden": (self.block, True),
            "attention_input": (core if core != self.block else None, True),
            "head_output": (self.projection, True),
            "attention_output": (self.projection, False),
            "mlp_input": (self.first, True),
            "mlp_output": (self.feed_forward, False),
            "block_output": (self.block, False),
        }[site]


def named_modules(model: nn.Module, *, every_name: bool = False) -> dict[str, nn.Module]:
    """Return all modules by name; a module that torch.compile has wrapped has the wrapper's name.

    Args:
        every_name: list a module that has several places in the model under each of them.
    """
    modules = model.named_modules(remove_duplicate=not every_name)
    return {_COMPILED.sub("", name): module for name, module in modules}


def name_pattern(name: str) -> str:
    """Return ``model.layers.*.self_attn`` for ``model.layers.3.self_attn``: one name for a whole stack."""
    return _ANY_NUMBER.sub("*", name)


def is_cross(module: nn.Module, name: str) -> bool:
    """Return True if the module attends to another sequence: GPT-2 flags it, other models have it in the
    name.
    """
    flag = getattr(module, "is_cross_attention", None)
    return bool(_CROSS.search(name.rpartition(".layers.")[2])) if flag is None else bool(flag)


def has_matrices(module: nn.Module) -> bool:
    """Return True if the module holds weights with two or more dimensions."""
    return any(p.ndim >= 2 for p in module.parameters())


def has_norm(module: nn.Module) -> bool:
    """Return True if a child of the module holds weights and no matrix."""
    return any(
        any(True for _ in child.parameters()) and not has_matrices(child) for child in module.children()
    )


def block_of(core: str, modules: Mapping[str, nn.Module]) -> str | None:
    """Return the name of the block around the attention module named ``core``; None when it is not in a
    module list.
    """
    parts = core.split(".")
    fallback = None
    for cut in range(len(parts) - 1, 0, -1):
        name, parent = ".".join(parts[:cut]), ".".join(parts[: cut - 1])
        if not isinstance(modules.get(parent), nn.ModuleList):
            continue
        fallback = fallback or name
        if feed_forward(name, core, modules) is not None:
            return name
    return fallback


def numbers_in_stack(name: str, modules: Collection[str]) -> dict[str, int]:
    """Return the number of each module of one stack, by name.

    A stack holds the modules whose names differ in numbers alone. Where one number differs it is the number
    of the module; where several do (stages of blocks), the modules are counted in their order.

    >>> numbers_in_stack("h.3.attn", ["h.3.attn", "h.5.attn", "h.5.mlp"])
    {'h.3.attn': 3, 'h.5.attn': 5}
    >>> numbers_in_stack("s.1.b.0", ["s.0.b.0", "s.1.b.0", "s.1.b.1"])
    {'s.0.b.0': 0, 's.1.b.0': 1, 's.1.b.1': 2}
    """
    pattern = name_pattern(name)
    members = [member for member in modules if name_pattern(member) == pattern]
    numbers = [[int(part) for part in member.split(".") if part.isdigit()] for member in members]
    differing = [column for column in zip(*numbers, strict=True) if len(set(column)) > 1]
    if len(differing) == 1:
        return dict(zip(members, differing[0], strict=True))
    return {member: place for place, member in enumerate(members)}


def text_config(config: Any) -> Any:
    """Return the part of a configuration that is about the text model; other objects are returned
    unchanged.
    """
    if not hasattr(config, "get_text_config"):
        return config
    try:
        return config.get_text_config()
    except ValueError:  # a text that one part reads, and a decoder that writes something else (MusicGen)
        return config.get_text_config(encoder=True)


def text_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that read a model's text, by name: all but those of towers of pictures and sounds,
    which have a configuration of another kind.
    """
    modules = named_modules(model, every_name=True)
    kinds: dict[str, type] = {}  # of the configuration nearest around each module
    for name, module in modules.items():
        config = getattr(module, "config", None)
        kinds[name] = (
            type(config) if hasattr(config, "to_dict") else kinds.get(name.rpartition(".")[0], object)
        )
    root = next((m.config for m in modules.values() if hasattr(getattr(m, "config", None), "to_dict")), None)
    text = type(text_config(root))
    return {name: module for name, module in modules.items() if kinds[name] is text} or modules


@overload
def largest_setting(config: Any, name: str) -> int | None: ...


@overload
def largest_setting(config: Any, name: str, default: int) -> int: ...


def largest_setting(config: Any, name: str, default: int | None = None) -> int | None:
    """Return a whole number of a configuration, the largest one where its layers or its stacks differ."""
    if getattr(config, "is_heterogeneous", False):
        values = [getattr(layer, name, None) for layer in config.per_layer_config]
    else:
        value: Any = getattr(config, name, None)
        value = value.values() if isinstance(value, Mapping) else value
        values = [value] if value is None or isinstance(value, (int, float)) else list(value)
    return max((int(value) for value in values if value), default=default)


def input_device(model: nn.Module) -> torch.device:
    """Return the device that a model's inputs belong on: of offloaded weights the one that they come to."""
    for module in model.modules():
        execution = getattr(getattr(module, "_hf_hook", None), "execution_device", None)
        if execution is not None:
            return torch.device(execution)
    return next(model.parameters()).device


def depth(model: nn.Module) -> int:
    """Return the number of layers that the model's configuration names; 1 where it names none."""
    return largest_setting(text_config(getattr(model, "config", None)), "num_hidden_layers", 1)


def blocks(model: nn.Module, modules: Mapping[str, nn.Module], cores: Sequence[str]) -> list[str]:
    """Return the names of all blocks in order: the neighbours of known ones, else the first list of fitting
    length.
    """
    lists = list(dict.fromkeys(block.rpartition(".")[0] for block in cores))
    if not lists:
        total = depth(model)
        names = text_modules(model)
        fitting = (n for n, m in modules.items() if isinstance(m, nn.ModuleList) and len(m) == total)
        lists = [name for name in fitting if name in names][:1]
    return [f"{name}.{child}" for name in lists for child, _ in modules[name].named_children()]


def feed_forward(
    block: str, core: str, modules: Mapping[str, nn.Module], mixing: Collection[str] = ()
) -> str | None:
    """Return the name of the module whose output is the feed-forward part's contribution to the residual
    stream.

    It is the last child with matrices beside the attention; a child that adds the residual itself (it has a
    norm of its own, or is given two streams) is entered, down to its last matrix.
    """
    name, module = block, modules[block]
    attention = {id(modules[core])}
    while True:
        children = [
            (f"{name}.{child_name}", child)
            for child_name, child in module.named_children()
            if has_matrices(child)
            and not any(id(m) in attention for m in child.modules())
            and not _CROSS.search(child_name)
        ]
        lists = [
            (f"{name}.{child_name}", child)
            for child_name, child in module.named_children()
            if isinstance(child, nn.ModuleList) and any(id(m) in attention for m in child.modules())
        ]
        if not children and lists:
            name, module = lists[-1]
            continue
        if not children:
            return None if name == block or isinstance(module, nn.ModuleList) else name
        name, module = children[-1]
        if not has_norm(module) and name not in mixing and not isinstance(module, nn.ModuleList):
            return name


class Structure:
    """The blocks of a model.

    Attributes:
        modules: the model's modules by name.
        layers: for each layer its parts, the name of its attention module (None for a layer without one) and
            which call of these modules it is.
        heads: number of heads by attention module.
        tokens_first: names of the modules whose states are [q, B, D].
    """

    def __init__(
        self,
        model: nn.Module,
        parts: Mapping[str, Parts],
        heads: Mapping[str, int] | None = None,
        tokens_first: Collection[str] = (),
    ) -> None:
        self.model = model
        self.tokens_first = tokens_first
        heads = heads or {}
        self._parts, self._heads = parts, heads
        self.heads = {core: heads[s] for core in parts if (s := name_pattern(core)) in heads}
        self.modules = named_modules(model)
        self.layers: list[tuple[Parts, str | None, int]] = []
        cores: dict[str, str] = {}
        core: str | None
        for core, part in parts.items():
            if part.block and not is_cross(self.modules[core], core):
                cores.setdefault(part.block, core)
        for block in blocks(model, self.modules, list(cores)):
            core = cores.get(block)
            self.layers.append((parts[core] if core else Parts(block), core, 0))
        if len(self.layers) == 1:  # one block that runs as often as there are layers
            part, core, _ = self.layers[0]
            self.layers = [(part, core, call) for call in range(depth(model))]

    def of_text(self) -> Structure:
        """Return the blocks that read the text alone; all of them where none does."""
        names = text_modules(self.model)
        parts = {core: part for core, part in self._parts.items() if core in names}
        return Structure(self.model, parts or self._parts, self._heads, self.tokens_first)

    def by_block(self) -> tuple[dict[str, Parts], dict[str, tuple[int, str | None]]]:
        """Return the parts by attention module (by block without one), and each block's number and attention
        module.
        """
        parts = {core or str(part.block): part for part, core, _ in self.layers}
        numbers: dict[str, tuple[int, str | None]] = {}
        counts: dict[str, int] = {}
        for part, core, _ in self.layers:
            block = str(part.block)
            stack = name_pattern(block)
            if block not in numbers:
                numbers[block] = (counts.get(stack, 0), core)
                counts[stack] = counts.get(stack, 0) + 1
        return parts, numbers

    def numbers(self) -> dict[int, int]:
        """Return the number of the layer that each module lies in, by the module's id.

        Modules that lie in several layers, or whose block is several, have none.
        """
        names = [str(part.block) for part, _, _ in self.layers]
        inside = [(id(m), at) for at, name in enumerate(names) for m in self.modules[name].modules()]
        times = Counter(module for module, _ in inside)
        return {module: at for module, at in inside if times[module] == 1}

    def depth_of(self, block: str) -> int:
        """Return how often the block runs in a pass."""
        return sum(part.block == block for part, _, _ in self.layers)

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.layers)

    def layer(self, function: str, number: int) -> int:
        """Return the number counted from the front.

        Raises:
            ValueError: when there is no such layer.
            NotImplementedError: when no layers were found in the model.
        """
        if not self.depth:
            raise NotImplementedError(
                f"{function}: no list of blocks was found in {type(self.model).__name__}, so it has no layer "
                f"{number}"
            )
        if not -self.depth <= number < self.depth:
            raise ValueError(
                f"{function}: layer {number} of {type(self.model).__name__}, which has {self.depth} layers"
            )
        return number % self.depth

    def place(self, function: str, layer: int, site: str) -> tuple[str, bool, int | None]:
        """Return the module at which a site of a layer is seen, True if on the way in, and which of its
        calls; None for all of them, where a pass runs the layer several times (HRM).
        """
        parts, core, call = self.layers[layer]
        try:
            name, enters = parts.place(core, site)
        except KeyError:
            raise ValueError(f"{function}: site must be one that a module hands on, got {site!r}") from None
        if name is None:
            raise ValueError(
                f"{function}: no place for site {site!r} was found in layer {layer} of "
                f"{type(self.model).__name__}"
            )
        runs_for_others = self.depth_of(str(parts.block)) > 1 or self._is_shared(name)
        return name, enters, call if runs_for_others else None

    def _is_shared(self, name: str) -> bool:
        """Return True for a module that several layers share, which each run it once (Zamba)."""
        places = self.model.named_modules(remove_duplicate=False)
        return sum(module is self.modules[name] for _, module in places) > 1


#: Model -> its parameters when its map was read, and the map.
_MAPS: WeakKeyDictionary[nn.Module, tuple[tuple[Any, ...], WeightMap]] = WeakKeyDictionary()


def weight_map(
    source: str | Path | nn.Module | Mapping[str, tuple[int, ...]], *, config: Any = None
) -> WeightMap:
    """Find the matrices of a transformer's blocks, one entry for each.

    Args:
        source: folder of config.json and safetensors files, of which only headers are read (and a head's
            table where the configuration ties it to an embedding of its own); a model; or the shapes of its
            tensors by name.
        config: configuration (object or mapping), where the source has none. Without any, fused queries, keys
            and values cannot be separated.

    Returns:
        A `WeightMap`; entries are [out, in], fused and transposed layouts are resolved.

    Raises:
        WeightMapError: no blocks, several stacks of blocks, a matrix in a block that no rule claims (named),
            or shapes that contradict the configuration.
        ValueError: a folder without safetensors files, or quantised weights.

    Example:
        The keys of GPT-2 are the middle third of a fused matrix.

        >>> import attnscope as asc
        >>> shapes = {"h.0.attn.c_attn.weight": (4, 12), "h.0.attn.c_proj.weight": (4, 4)}
        >>> found = asc.weight_map(shapes, config={"model_type": "gpt2", "n_head": 2})
        >>> [(entry.role, entry.shape) for entry in found]
        [('q', (4, 4)), ('k', (4, 4)), ('v', (4, 4)), ('o', (4, 4))]
        >>> found[0, "k"].rows
        Rows(start=4, size=4, period=12, repeats=1)

    References:
        Vaswani et al., Attention is all you need, 2017. Names: transformers 5, and the files of its models.
    """
    if isinstance(source, nn.Module):
        parameters = dict(source.named_parameters(remove_duplicate=False))
        shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        dtypes = {name: str(parameter.dtype).removeprefix("torch.") for name, parameter in parameters.items()}
        identities = {name: str(id(parameter)) for name, parameter in parameters.items()}
        config = config or getattr(source, "config", None)
        # a model is asked again for every edit of a matrix; its parameters say whether the answer still holds
        state = (
            tuple(shapes.items()),
            tuple(dtypes.items()),
            tuple(identities.items()),
            str(_settings(config)),
        )
        cached = _MAPS.get(source)
        if cached is None or cached[0] != state:
            cached = (state, _read(shapes, dtypes, config, identities))
            _MAPS[source] = cached
        return cached[1]
    if isinstance(source, Mapping):
        return _read(dict(source), {}, config, {})
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(
            f"weight_map: source must be a model, a folder or shapes by name, got {type(source).__name__}"
        )
    folder = WeightFolder(source)
    config = config or folder.config
    return _read(folder.shapes, folder.dtypes, config, tied_tables(folder, _settings(config)))


def _read(
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, str],
    config: Any,
    identities: Mapping[str, str],
) -> WeightMap:
    """Return the map of tensors with these shapes; `identities` gives shared tensors a common mark."""
    settings = _settings(config)
    model_type = str(settings.get("model_type") or "")
    family = FAMILIES.get(model_type, Family())
    heads = setting_of(settings, "heads") or 0
    kv = setting_of(settings, "kv_heads") or heads
    if family.kv_heads:
        kv = whole_setting("num_kv_heads", family.kv_heads(settings, heads))
    stack = stack_of(shapes, settings)
    entries = _block_entries(shapes, dtypes, settings, family, stack, (heads, kv))
    outside = {role: outside_of(shapes, role, stack) for role in OUTSIDE}
    embed, unembed = outside["embed"], outside["unembed"]
    marks = [identities[name] for name in (embed, unembed) if name is not None and name in identities]
    tied = unembed is None or (len(marks) == 2 and marks[0] == marks[1])
    if unembed is None and settings.get("tie_word_embeddings", True):
        unembed = embed
    for role, name in (("embed", embed), ("unembed", unembed)):
        if name is not None:
            refuse_empty(name, shapes[name])
            refuse_quantised(name, shapes[name], dtypes.get(name, "float32"))
            entries.append(WeightEntry(-1, role, None, (shapes[name][0], shapes[name][1]), name))
    final = outside["final_norm"]
    layer_norm = family.layer_norm
    if layer_norm is None:
        layer_norm = final is not None and f"{final.removesuffix('weight')}bias" in shapes
    entries.sort(key=_in_order)
    for previous, other in itertools.pairwise(entries):
        if previous.key == other.key:
            raise WeightMapError(
                f"weight_map: {previous.tensor} and {other.tensor} are both {previous.title}"
            )
    return WeightMap(
        entries=tuple(entries),
        model_type=model_type,
        blocks=stack,
        layers=1 + max((entry.layer for entry in entries), default=-1),
        heads=heads,
        kv_heads=kv,
        tied=tied and embed is not None and unembed is not None,
        final_norm=final,
        norm_offset=family.norm_offset,
        layer_norm=layer_norm,
        project_out=outside["project_out"],
        rotary=_rotary_of(settings, family),
        heads_by_layer=tuple(settings.get("num_attention_heads_per_layer") or ()),
    )


def _rotary_of(settings: Mapping[str, Any], family: Family) -> str:
    """Return which dimensions of a head turn together; latent attention has a setting for it."""
    if settings.get("alibi"):
        return ""
    interleaved = settings.get("rope_interleave")
    return family.rotary if interleaved is None else "interleaved" if interleaved else "half"


def _in_order(entry: WeightEntry) -> tuple[Any, ...]:
    """Return the key to sort an entry by: files are in alphabetical order, modules in that of their code."""
    role = _ORDER.get(entry.role, len(_ORDER))
    return entry.layer < 0, entry.layer, role, entry.role, entry.expert or 0


def _block_entries(
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, str],
    settings: Mapping[str, Any],
    family: Family,
    stack: str,
    heads: tuple[int, int],
) -> list[WeightEntry]:
    """Return the entries of the matrices inside the blocks.

    Args:
        shapes: of all tensors.
        dtypes: of the tensors whose dtype is known.
        settings: of the text model.
        family: the rules of its model type.
        stack: name of the list of blocks.
        heads: numbers of query heads and of key heads.

    Raises:
        WeightMapError: no rule claims a matrix.
    """
    limit = setting_of(settings, "layers")
    entries: list[WeightEntry] = []
    unclaimed: list[str] = []
    for tensor, shape in shapes.items():
        place = place_of(tensor)
        # what lies behind the last block of the configuration predicts further tokens (DeepSeek)
        if place is None or place.stack != stack or (limit is not None and place.layer >= limit):
            continue
        if NO_MATRIX.search(place.name):
            continue
        refuse_quantised(tensor, shape, dtypes.get(tensor, "float32"))
        if len(shape) < 2:
            continue
        pattern = NUMBER.sub("*", place.name)
        claim = family.claims.get(pattern) or COMMON.get(pattern)
        if claim is None:
            unclaimed.append(f"{tensor} {list(shape)}")
        elif claim.means:
            entries += entries_of(tensor, shape, place, claim, *heads, out_gains(shapes, place))
    if unclaimed:
        others = f" and {len(unclaimed) - 5} more" if len(unclaimed) > 5 else ""
        raise WeightMapError(
            f"weight_map: no rule claims {', '.join(unclaimed[:5])}{others} (model type "
            f"{settings.get('model_type') or ''!r}); attnscope.models.families is where rules are"
        )
    return entries


def _settings(config: Any) -> dict[str, Any]:
    """Return the text model's settings of a configuration, with the tie of the embeddings wherever it
    is set.
    """
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        config = config.to_dict()
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return dict(config)
    tie = {"tie_word_embeddings": config["tie_word_embeddings"]} if "tie_word_embeddings" in config else {}
    return {**tie, **text}
