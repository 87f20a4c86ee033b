# SPDX-License-Identifier: MIT
"""Where a model keeps its blocks, output projections and feed-forward parts, read off its structure.

No list of architectures: a module "has matrices" when a parameter below it has two or more dimensions (so a
norm has none), and a block is the nearest element of a module list that holds an attention module and more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torch import nn

_NUMBER = re.compile(r"(^|(?<=\.))\d+(?=\.|$)")
_CROSS = re.compile(r"cross|encdec|encoder_attn|enc_attn", re.IGNORECASE)


def qualified_names(model: nn.Module) -> dict[int, str]:
    """Names of all modules by identity, without the wrapper that torch.compile adds."""
    return {id(m): name.replace("_orig_mod.", "") for name, m in model.named_modules()}


def starred(name: str) -> str:
    """``model.layers.3.self_attn`` as ``model.layers.*.self_attn``: one name for a whole stack."""
    return _NUMBER.sub("*", name)


def is_cross(module: nn.Module, name: str) -> bool:
    """Whether the module attends to another sequence: GPT-2 flags it, other models say it in the name."""
    flag = getattr(module, "is_cross_attention", None)
    return bool(_CROSS.search(name.rsplit(".layers.", 1)[-1])) if flag is None else bool(flag)


def has_matrices(module: nn.Module) -> bool:
    """Whether the module holds weights with two or more dimensions."""
    return any(p.ndim >= 2 for p in module.parameters())


def _has_norm(module: nn.Module) -> bool:
    return any(
        any(True for _ in child.parameters()) and not has_matrices(child) for child in module.children()
    )


def block_of(core: str, modules: Mapping[str, nn.Module]) -> str | None:
    """Name of the block around the attention module named ``core``; None when it is not in a module list."""
    parts = core.split(".")
    fallback = None
    for cut in range(len(parts) - 1, 0, -1):
        name, parent = ".".join(parts[:cut]), ".".join(parts[: cut - 1])
        if not isinstance(modules.get(parent), nn.ModuleList):
            continue
        fallback = fallback or name
        inside = {id(p) for p in modules[core].parameters()}
        if feed_forward(name, core, modules) is not None or any(
            p.ndim >= 2 and id(p) not in inside and not fallback for p in modules[name].parameters()
        ):
            return name
    return fallback


def feed_forward(block: str, core: str, modules: Mapping[str, nn.Module]) -> str | None:
    """Name of the module whose output is the feed-forward part's contribution to the residual stream.

    It is the last child with matrices beside the attention; a child that also normalises (and so adds the
    residual itself) is entered, down to the last matrix before its norm.
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
        if not _has_norm(module) and not isinstance(module, nn.ModuleList):
            return name


def output_projection(
    core: str, log: Sequence[tuple[str, str]], block: str, modules: Mapping[str, nn.Module]
) -> str | None:
    """Name of the first module with matrices that runs after the softmax of the attention named ``core``.

    Args:
        core: the attention module.
        log: what one forward pass did, in order: ``("enter" | "exit" | "softmax", module name)``.
        block: the block around it; the search does not leave it.
        modules: the model's modules by name.
    """
    start = None
    inside = False
    for i, (event, name) in enumerate(log):
        if name == core and event in ("enter", "exit"):
            inside = event == "enter"
            if not inside and start is not None:
                break
        elif event == "softmax" and (name == core or (inside and name == "")):
            start = i
    if start is None:
        return None
    for event, name in log[start + 1 :]:
        if event == "exit" and name == block:
            return None
        if event != "enter" or not name.startswith(f"{block}."):
            continue
        if has_matrices(modules[name]) and not _has_norm(modules[name]):
            return name
    return None
