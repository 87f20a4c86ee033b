# SPDX-License-Identifier: MIT
"""The matrices of a model, one by one: what each is and where it is stored.

Entries know name, role, layer, shape and file, and read their matrix when asked, so that a model's weights
are compared one matrix at a time and never lie in memory whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from operator import eq
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnscope._nearest import nearest
from attnscope.errors import WeightMapError
from attnscope.models.families import LAYOUTS, OUT_GAINS, OUTSIDE, SETTINGS, FusedRows, NameRule
from attnscope.models.weights import WeightFolder

#: A tensor of a block: the list of blocks, the number of the block, the name inside it.
_PLACE = re.compile(r"(?P<stack>(?:.*?\.)?(?:layers?|h|blocks?))\.(?P<layer>\d+)\.(?P<name>.+)")
#: The number of an expert.
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
NO_MATRIX = re.compile(r"(^|[._])(bias|causal_mask|inv_freq|sinks)$|rotary_emb")
#: Signs of a quantised matrix, which is not the matrix that was trained.
_QUANTISED = re.compile(
    r"_blocks$|_scales$|\.qweight$|\.qzeros$|\.scales$|\.absmax$|quant_state|weight_scale(_inv)?$|\.SCB$"
)
#: Above every count of a configuration.
_MOST = 2**31
_FLOATING = ("float64", "float32", "float16", "bfloat16")


class Place(NamedTuple):
    """The place of a block's tensor: ``model.layers.3.mlp.up_proj.weight`` is 3 and ``mlp.up_proj``."""

    stack: str
    layer: int
    name: str


def place_of(tensor: str) -> Place | None:
    """Return the block that a tensor belongs to by its name; None outside the blocks.

    >>> place_of("gpt_neox.layers.3.attention.dense.weight")
    Place(stack='gpt_neox.layers', layer=3, name='attention.dense')
    """
    match = _PLACE.match(tensor)
    if match is None:
        return None
    return Place(match["stack"], int(match["layer"]), match["name"].removesuffix(".weight"))


class Rows(NamedTuple):
    """Rows of a fused matrix: `size` of every `period`, the first at `start`, `repeats` times."""

    start: int
    size: int
    period: int
    repeats: int

    def runs(self) -> Iterator[tuple[int, int]]:
        """Return the first row and the end of every stretch of rows.

        >>> list(Rows(start=2, size=2, period=6, repeats=2).runs())
        [(2, 4), (8, 10)]
        """
        for first in range(self.start, self.start + self.period * self.repeats, self.period):
            yield first, first + self.size


@dataclass(frozen=True)
class WeightEntry:
    """A matrix [out, in] of a model.

    Two entries are equal when they are the same matrix; where it is stored may differ between a file and a
    module (mixtures of experts are fused in memory and apart in files).

    Attributes:
        layer: its block, -1 outside the blocks.
        role: q, k, v, o, gate, up, down; q_gate; kv, q_up, kv_up of multi-head latent attention; router,
            shared_gate, shared_up, shared_down, shared_router of mixtures; mixer_in, mixer_out … of linear
            attention, convolutions and state-space layers; token_gate, token_out of a token's vector for each
            layer; embed, unembed [vocabulary, width].
        expert: number of a routed expert, None for a matrix that every token passes.
        shape: (out, in).
        tensor: name of the stored tensor.
        rows: of that tensor's output axis; None takes all.
        index: into a leading axis of experts.
        transposed: whether it is stored [in, out].
        out_gain: name of the norm's gain that multiplies this matrix's output before the residual stream.
    """

    layer: int
    role: str
    expert: int | None
    shape: tuple[int, int]
    tensor: str = field(compare=False)
    rows: Rows | None = field(default=None, compare=False)
    index: int | None = field(default=None, compare=False)
    transposed: bool = field(default=False, compare=False)
    out_gain: str | None = field(default=None, compare=False)

    @property
    def key(self) -> tuple[int, str, int | None]:
        """Layer, role and expert, which name the matrix in its model."""
        return self.layer, self.role, self.expert

    @property
    def title(self) -> str:
        """For messages: ``layer 3 q``, ``layer 3 up of expert 5``, ``unembed``."""
        place = f"layer {self.layer} {self.role}" if self.layer >= 0 else self.role
        return place if self.expert is None else f"{place} of expert {self.expert}"

    def of(self, tensor: Tensor) -> Tensor:
        """Return this matrix [out, in] of the stored tensor; a view unless its rows are apart.

        Raises:
            NotImplementedError: a tensor without memory, as those of offloaded models between passes.
        """
        return self.view(in_memory(self.tensor, tensor)).flatten(0, -2)

    def view(self, tensor: Tensor) -> Tensor:
        """Return this matrix as a view of the stored tensor, [repeats, rows, in] where its rows may be
        apart.
        """
        matrix = tensor if self.index is None else tensor[self.index]
        return self.rows_of(matrix.T if self.transposed else matrix)

    def rows_of(self, matrix: Tensor) -> Tensor:
        """Return its rows of a matrix with those of all that it is fused with, as a view, likewise."""
        if self.rows is None:
            return matrix
        start, size, period, repeats = self.rows
        return matrix.view(repeats, period, matrix.shape[1])[:, start : start + size]


def in_memory(name: str, tensor: Tensor) -> Tensor:
    """Return the stored tensor of that name.

    Raises:
        NotImplementedError: it has no memory, as those of offloaded models between passes.
    """
    if tensor.is_meta:
        raise NotImplementedError(
            f"{name} holds no weights here (meta): where the model is offloaded they come and go with its "
            "passes; load it without, or read the weights of its folder"
        )
    return tensor


@dataclass(frozen=True)
class WeightMap:
    """The matrices of a model by layer, role and expert, and the other facts of its structure.

    Attributes:
        entries: in the order of layers.
        model_type: of the configuration, "" when there is none.
        blocks: name of the list of blocks, as ``model.layers``.
        layers: number of blocks.
        heads: query heads, 0 when unknown; `heads_of` has those of a layer.
        kv_heads: key-value heads of the configuration, 0 when unknown; single layers may have others, as the
            shapes of their k say (MiMo-V2-Flash).
        tied: whether the unembedding is the embedding.
        final_norm: name of the gain of the norm before the unembedding, None without one.
        norm_offset: to be added to a stored gain (1 for Gemma).
        layer_norm: whether the final norm subtracts the mean.
        project_out: name of a matrix between final norm and unembedding, None without one.
        rotary: "half" when dimension p of a head turns with p + d/2, "interleaved" when 2p turns with
            2p + 1, "" without rotary encoding.
        heads_by_layer: query heads of each layer, of models whose layers differ in them; else empty.
    """

    entries: tuple[WeightEntry, ...]
    model_type: str
    blocks: str
    layers: int
    heads: int
    kv_heads: int
    tied: bool
    final_norm: str | None
    norm_offset: float
    layer_norm: bool
    project_out: str | None
    rotary: str
    heads_by_layer: tuple[int, ...] = ()

    def heads_of(self, layer: int) -> int:
        """Return the query heads of a layer, 0 when unknown."""
        return self.heads_by_layer[layer] if self.heads_by_layer else self.heads

    def __getitem__(self, key: tuple[int, str] | tuple[int, str, int | None]) -> WeightEntry:
        """Return the entry of (layer, role) or (layer, role, expert); layer -1 holds embed and unembed."""
        full_key = key if len(key) == 3 else (*key, None)
        for entry in self.entries:
            if entry.key == full_key:
                return entry
        raise KeyError(f"{full_key}{nearest(str(full_key[1]), self.roles)}")

    def __iter__(self) -> Iterator[WeightEntry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def __repr__(self) -> str:
        return (
            f"WeightMap({self.model_type or 'model'}, {self.layers} layers, {len(self)} matrices: "
            f"{', '.join(self.roles)})"
        )

    @property
    def roles(self) -> tuple[str, ...]:
        """All roles that occur."""
        return tuple(dict.fromkeys(entry.role for entry in self.entries))

    def select(
        self, roles: Iterable[str] | None = None, layers: Iterable[int] | None = None
    ) -> list[WeightEntry]:
        """Return the entries of some roles and layers, None for all.

        Raises:
            ValueError: a role or layer that the model does not have.
        """
        wanted_roles = None if roles is None else set(roles)
        wanted_layers = None if layers is None else set(layers)
        for role in wanted_roles or ():
            if role not in self.roles:
                raise ValueError(f"no matrix has the role {role!r}{nearest(role, self.roles)}")
        for layer in wanted_layers or ():
            if not -1 <= layer < self.layers:
                raise ValueError(f"layer {layer} is outside the model's 0 .. {self.layers - 1}")
        return [
            entry
            for entry in self.entries
            if (wanted_roles is None or entry.role in wanted_roles)
            and (wanted_layers is None or entry.layer in wanted_layers)
        ]


def setting_of(settings: Mapping[str, Any], name: str) -> int | None:
    """Return a count of a configuration, whatever name its family gives it; None where it has none.

    Raises:
        WeightMapError: the configuration has something else there than a whole number.
    """
    key = next((key for key in SETTINGS[name] if settings.get(key) is not None), None)
    if key is None:
        return None
    return whole_setting(key, settings[key])


def whole_setting(key: str, value: Any) -> int:
    """Return a count that a configuration states.

    Raises:
        WeightMapError: it is no whole number, or none that a model has.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or not 0 <= int(value) < _MOST:
        # Python refuses to write whole numbers of more than some thousand digits
        shown = "a long number" if isinstance(value, int) and value.bit_length() > 64 else repr(value)[:80]
        raise WeightMapError(f"weight_map: {key} of the configuration must be a whole number, got {shown}")
    return int(value)


def stack_of(shapes: Mapping[str, tuple[int, ...]], settings: Mapping[str, Any]) -> str:
    """Return the list of blocks; of several the one with the configuration's layers and width."""
    layers: dict[str, set[int]] = {}
    widths: dict[str, set[int]] = {}
    for tensor, shape in shapes.items():
        if (place := place_of(tensor)) and len(shape) > 1:
            layers.setdefault(place.stack, set()).add(place.layer)
            widths.setdefault(place.stack, set()).update(shape)
    if not layers:
        raise WeightMapError(
            "weight_map: no tensor lies in a numbered list of blocks "
            f"(layers, layer, h, block, blocks); the first names are {', '.join(list(shapes)[:5]) or 'none'}"
        )
    limit, width = setting_of(settings, "layers"), setting_of(settings, "width")
    fitting = [
        stack
        for stack in layers
        if len(layers) == 1
        or ((not limit or len(layers[stack]) >= limit) and (width is None or width in widths[stack]))
    ]
    if len(fitting) != 1:
        counts = ", ".join(f"{stack} ({len(layers[stack])} layers)" for stack in layers)
        raise WeightMapError(
            f"weight_map: {len(layers)} stacks of blocks, {counts}, and the configuration does not single "
            f"one out ({limit} layers of width {width})"
        )
    return fitting[0]


def entries_of(
    tensor: str,
    shape: tuple[int, ...],
    place: Place,
    claim: NameRule,
    heads: int,
    kv: int,
    gains: Mapping[str, str],
) -> Iterator[WeightEntry]:
    """Return the entries that one stored tensor holds."""
    refuse_empty(tensor, shape)
    numbers = NUMBER.findall(place.name)
    if len(shape) + bool(numbers) > 3:
        raise WeightMapError(f"weight_map: {tensor} has shape {list(shape)}, which is no matrix per expert")
    *_, height, width = shape
    if claim.transposed:
        height, width = width, height
    fused = claim.means in LAYOUTS
    parts = LAYOUTS[claim.means](heads, kv, height) if fused else FusedRows(1, ((claim.means, 1),))
    total_rows = parts.repeats * sum(share for _, share in parts.shares)
    if not total_rows or height % total_rows:
        raise WeightMapError(
            f"weight_map: {tensor} has {height} rows, which {heads} heads and {kv} key-value heads of the "
            f"configuration do not divide into {', '.join(role for role, _ in parts.shares)}"
        )
    unit = height // total_rows
    start = 0
    for role, share in parts.shares:
        rows = Rows(start, share * unit, height // parts.repeats, parts.repeats) if fused else None
        start += share * unit
        for index in range(shape[0]) if len(shape) == 3 else (None,):
            yield WeightEntry(
                layer=place.layer,
                role=role,
                expert=int(numbers[0]) if numbers else index,
                shape=(share * unit * parts.repeats, width),
                tensor=tensor,
                rows=rows,
                index=index,
                transposed=claim.transposed,
                out_gain=gains.get(role),
            )


def refuse_empty(tensor: str, shape: tuple[int, ...]) -> None:
    """Raise WeightMapError for a matrix without entries, whose other size may be any."""
    if 0 in shape:
        raise WeightMapError(f"weight_map: {tensor} has shape {list(shape)} and so no entry")


def refuse_quantised(tensor: str, shape: tuple[int, ...], dtype: str) -> None:
    """Raise where a tensor is not the matrix that was trained."""
    if _QUANTISED.search(tensor) or (len(shape) > 1 and dtype not in _FLOATING):
        kind = "MXFP4 blocks" if tensor.endswith(("_blocks", "_scales")) else dtype
        raise ValueError(
            f"weight_map: {tensor} is quantised ({kind}); a quantised matrix is not the one that was trained"
        )


def out_gains(shapes: Mapping[str, tuple[int, ...]], place: Place) -> dict[str, str]:
    """Return the gains on the writes of o and down, for families with a norm behind the sub-layer."""
    block = f"{place.stack}.{place.layer}."
    for after_o, after_down in OUT_GAINS:
        if block + after_o in shapes and block + after_down in shapes:
            return {"o": block + after_o, "down": block + after_down}
    return {}


def outside_of(shapes: Mapping[str, tuple[int, ...]], role: str, stack: str) -> str | None:
    """Return the tensor of a role outside the blocks; of several the one closest to the stack."""
    parent = stack.rpartition(".")[0]
    candidates = []
    for name, shape in shapes.items():
        owner, _, last = name.removesuffix(".weight").rpartition(".")
        if last not in OUTSIDE[role] or place_of(name) is not None:
            continue
        # the norm before the unembedding stands beside the list of blocks; others belong to embeddings, heads
        if len(shape) == 2 if role != "final_norm" else len(shape) == 1 and owner == parent:
            candidates.append(name)
    near = stack.split(".")
    return max(candidates, key=lambda name: sum(map(eq, name.split("."), near)), default=None)


def tied_tables(folder: WeightFolder, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return a common mark by the names of the two tables where they are one; nothing where they are not.

    The tables are read, up to their first difference, only where the configuration ties them.

    Args:
        folder: of the weights.
        settings: of the text model.
    """
    stack = stack_of(folder.shapes, settings)
    embed, unembed = (outside_of(folder.shapes, role, stack) for role in ("embed", "unembed"))
    if embed is None or unembed is None or embed == unembed or not _ties(settings):
        return {}
    embedding, other = ((folder.shapes[name], folder.dtypes[name]) for name in (embed, unembed))
    if embedding != other or len(embedding[0]) != 2:
        return {}
    pairs = zip(folder.blocks(embed), folder.blocks(unembed), strict=True)
    if all(torch.equal(block, others) for (_, block), (_, others) in pairs):
        return dict.fromkeys((embed, unembed), embed)
    return {}


def _ties(settings: Mapping[str, Any]) -> bool:
    """Return True where a configuration ties the two tables, itself or by the default of its kind."""
    if "tie_word_embeddings" in settings:
        return bool(settings["tie_word_embeddings"])
    import transformers

    kind = str(settings.get("model_type") or "")
    if kind not in transformers.CONFIG_MAPPING:
        return True
    return bool(getattr(transformers.CONFIG_MAPPING[kind](), "tie_word_embeddings", True))
