# SPDX-License-Identifier: MIT
"""A model's structure, read in one place: where its blocks keep queries, keys, values and the rest.

Every matrix of a block gets a role: q, k, v and gate, up read the residual stream, o and down write to it.
One stored tensor may hold several of them (fused projections) or one of them for many experts. A `WeightMap`
lists them one by one, as [out, in] matrices, whatever the file stores; it is made from the names and shapes
of tensors alone, so a folder of safetensors files, which is not loaded, and a model in memory give the same
entries. The names are data: `attnscope.models.families`.

    weight_map("path/to/gpt2")[3, "k"].of(tensors["h.3.attn.c_attn.weight"])    # [768, 768]
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from attnscope.models.families import (
    COMMON,
    FAMILIES,
    LAYOUTS,
    OUT_GAINS,
    OUTSIDE,
    SETTINGS,
    Claim,
    Family,
    Parts,
)
from attnscope.models.weight_entries import (
    Place,
    Rows,
    WeightEntry,
    WeightMap,
    WeightMapError,
    place_of,
)
from attnscope.models.weights import WeightFolder

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_NO_MATRIX = re.compile(r"(^|[._])(bias|causal_mask|inv_freq|sinks)$|rotary_emb")
#: Signs of a quantised matrix, which is not the matrix that was trained.
_QUANTISED = re.compile(
    r"_blocks$|_scales$|\.qweight$|\.qzeros$|\.scales$|\.absmax$|quant_state|weight_scale(_inv)?$|\.SCB$"
)
_FLOATING = ("float64", "float32", "float16", "bfloat16")
_ORDER = {role: at for at, role in enumerate(("q", "q_gate", "k", "v", "o", "gate", "up", "down"))}


def weight_map(
    source: str | Path | nn.Module | Mapping[str, tuple[int, ...]], *, config: Any = None
) -> WeightMap:
    """Where a transformer keeps the matrices of its blocks, one entry for each.

    Args:
        source: folder of config.json and safetensors files, of which only headers are read; a model; or the
            shapes of its tensors by name.
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
        shapes = {name: tuple(one.shape) for name, one in parameters.items()}
        dtypes = {name: str(one.dtype).removeprefix("torch.") for name, one in parameters.items()}
        same = {name: str(id(one)) for name, one in parameters.items()}
        return _read(shapes, dtypes, config or getattr(source, "config", None), same)
    if isinstance(source, Mapping):
        return _read(dict(source), {}, config, {})
    folder = WeightFolder(source)
    return _read(folder.shapes, folder.dtypes, config or folder.config, {})


def _read(
    shapes: Mapping[str, tuple[int, ...]],
    dtypes: Mapping[str, str],
    config: Any,
    same: Mapping[str, str],
) -> WeightMap:
    """The map of tensors with these shapes; `same` gives tensors that are one a common mark."""
    settings = _settings(config)
    model_type = str(settings.get("model_type") or "")
    family = FAMILIES.get(model_type, Family())
    heads = int(_setting(settings, "heads") or 0)
    kv = family.kv_heads(settings, heads) if family.kv_heads else int(_setting(settings, "kv_heads") or heads)
    stack = _stack(shapes, settings)
    limit = _setting(settings, "layers")
    entries: list[WeightEntry] = []
    norms: list[str] = []
    unclaimed: list[str] = []
    for tensor, shape in shapes.items():
        place = place_of(tensor)
        # what lies behind the last block of the configuration predicts further tokens (DeepSeek)
        if place is None or place.stack != stack or (limit is not None and place.layer >= int(limit)):
            continue
        if _NO_MATRIX.search(place.name):
            continue
        _refuse_quantised(tensor, shape, dtypes.get(tensor, "float32"))
        if len(shape) < 2:
            if "norm" in place.name.lower() or place.name.startswith("ln_"):
                norms.append(tensor)
            continue
        starred = _NUMBER.sub("*", place.name)
        claim = family.claims.get(starred) or COMMON.get(starred)
        if claim is None:
            unclaimed.append(f"{tensor} {list(shape)}")
        elif claim.means:
            gains = _out_gains(shapes, tensor, place)
            entries += _entries(tensor, shape, place, claim, heads, kv, gains)
    if unclaimed:
        more = f" and {len(unclaimed) - 5} more" if len(unclaimed) > 5 else ""
        raise WeightMapError(
            f"weight_map: no rule claims {', '.join(unclaimed[:5])}{more} (model type {model_type!r}); "
            "attnscope.models.families is where rules are"
        )
    outside = {role: _outside(shapes, role, stack) for role in OUTSIDE}
    embed, unembed = outside["embed"], outside["unembed"]
    tied = unembed is None or (embed is not None and bool(same) and same[embed] == same[unembed])
    if unembed is None and settings.get("tie_word_embeddings", True):
        unembed = embed
    entries += [
        WeightEntry(-1, role, None, (shapes[name][0], shapes[name][1]), name)
        for role, name in (("embed", embed), ("unembed", unembed))
        if name is not None
    ]
    final = outside["final_norm"]
    layer_norm = family.layer_norm
    if layer_norm is None:
        layer_norm = final is not None and f"{final.removesuffix('weight')}bias" in shapes
    # files are in alphabetical order, modules in that of their code
    entries.sort(
        key=lambda one: (one.layer < 0, one.layer, _ORDER.get(one.role, 99), one.role, one.expert or 0)
    )
    for one, other in itertools.pairwise(entries):
        if one.key == other.key:
            raise WeightMapError(f"weight_map: {one.tensor} and {other.tensor} are both {one.title}")
    return WeightMap(
        entries=tuple(entries),
        model_type=model_type,
        blocks=stack,
        layers=1 + max((entry.layer for entry in entries), default=-1),
        heads=heads,
        kv_heads=kv,
        tied=tied and embed is not None and unembed is not None,
        norms=tuple(sorted(norms)),
        final_norm=final,
        norm_offset=family.norm_offset,
        layer_norm=layer_norm,
        project_out=outside["project_out"],
        rotary="" if settings.get("alibi") else family.rotary,
    )


def _settings(config: Any) -> dict[str, Any]:
    """The text model's settings of a configuration, with the tie of the embeddings wherever it stands."""
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        config = config.to_dict()
    text = config.get("text_config")
    if not isinstance(text, Mapping):
        return dict(config)
    tie = {"tie_word_embeddings": config["tie_word_embeddings"]} if "tie_word_embeddings" in config else {}
    return {**tie, **text}


def _setting(settings: Mapping[str, Any], name: str) -> Any:
    return next((settings[key] for key in SETTINGS[name] if settings.get(key) is not None), None)


def _stack(shapes: Mapping[str, tuple[int, ...]], settings: Mapping[str, Any]) -> str:
    """The list of blocks; of several the one with the configuration's layers and width."""
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
    limit, width = _setting(settings, "layers"), _setting(settings, "width")
    fitting = [
        stack
        for stack in layers
        if len(layers) == 1
        or (len(layers[stack]) >= (limit or 0) and (width is None or width in widths[stack]))
    ]
    if len(fitting) != 1:
        counts = ", ".join(f"{stack} ({len(layers[stack])} layers)" for stack in layers)
        raise WeightMapError(
            f"weight_map: {len(layers)} stacks of blocks, {counts}, and the configuration does not single "
            f"one out ({limit} layers of width {width})"
        )
    return fitting[0]


def _entries(
    tensor: str,
    shape: tuple[int, ...],
    place: Place,
    claim: Claim,
    heads: int,
    kv: int,
    gains: Mapping[str, str],
) -> Iterator[WeightEntry]:
    """The entries that one stored tensor holds."""
    numbers = _NUMBER.findall(place.name)
    stored = shape[-2:][::-1] if claim.transposed else shape[-2:]
    if len(shape) > 3 or (len(shape) == 3 and numbers):
        raise WeightMapError(f"weight_map: {tensor} has shape {list(shape)}, which is no matrix per expert")
    fused = claim.means in LAYOUTS
    if fused and claim.means in ("stacked", "grouped", "gated_query") and not (heads and kv):
        raise WeightMapError(
            f"weight_map: {tensor} holds several roles, and without config their heads are unknown"
        )
    parts = LAYOUTS[claim.means](heads, kv, stored[0]) if fused else Parts(1, ((claim.means, 1),))
    whole = parts.repeats * sum(share for _, share in parts.shares)
    if whole == 0 or stored[0] % whole:
        raise WeightMapError(
            f"weight_map: {tensor} has {stored[0]} rows, which {heads} heads and {kv} key-value heads do not "
            f"divide into {', '.join(role for role, _ in parts.shares)}"
        )
    unit = stored[0] // whole
    start = 0
    for role, share in parts.shares:
        rows = Rows(start, share * unit, stored[0] // parts.repeats, parts.repeats) if fused else None
        start += share * unit
        out = stored[0] if rows is None else rows.size * rows.repeats
        for index in range(shape[0]) if len(shape) == 3 else (None,):
            yield WeightEntry(
                layer=place.layer,
                role=role,
                expert=int(numbers[0]) if numbers else index,
                shape=(out, stored[1]),
                tensor=tensor,
                rows=rows,
                index=index,
                transposed=claim.transposed,
                out_gain=gains.get(role),
            )


def _refuse_quantised(tensor: str, shape: tuple[int, ...], dtype: str) -> None:
    if _QUANTISED.search(tensor) or (len(shape) > 1 and dtype not in _FLOATING):
        kind = "MXFP4 blocks" if tensor.endswith(("_blocks", "_scales")) else dtype
        raise ValueError(
            f"weight_map: {tensor} is quantised ({kind}); a quantised matrix is not the one that was trained"
        )


def _out_gains(shapes: Mapping[str, tuple[int, ...]], tensor: str, place: Place) -> dict[str, str]:
    """Gains on what o and down write, for families with a norm behind the sub-layer."""
    block = tensor[: tensor.index(f".{place.layer}.") + len(f".{place.layer}.")]
    for after_o, after_down in OUT_GAINS:
        if block + after_o in shapes and block + after_down in shapes:
            return {"o": block + after_o, "down": block + after_down}
    return {}


def _outside(shapes: Mapping[str, tuple[int, ...]], role: str, stack: str) -> str | None:
    """The tensor of a role outside the blocks; of several the one closest to the stack."""
    parent = stack.rpartition(".")[0]
    found = []
    for name, shape in shapes.items():
        owner, _, last = name.removesuffix(".weight").rpartition(".")
        if last not in OUTSIDE[role] or place_of(name) is not None:
            continue
        # the norm before the unembedding stands beside the list of blocks; others belong to embeddings, heads
        if len(shape) == 2 if role != "final_norm" else len(shape) == 1 and owner == parent:
            found.append(name)
    near = stack.split(".")
    return max(
        found, key=lambda name: sum(a == b for a, b in zip(name.split("."), near, strict=False)), default=None
    )
