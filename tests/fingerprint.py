# SPDX-License-Identifier: MIT
"""A hash of what a capture must leave as it was: a model, its configuration, its modules, random states."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import torch


def fingerprint(model: torch.nn.Module) -> dict[str, str]:
    """Return a hash of each module (class, attributes, tensors, hooks), configuration and random state."""
    parts: dict[str, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        attributes = {key: value for key, value in vars(module).items() if key != "_modules"}
        children = [(child, type(held).__name__, id(held)) for child, held in module._modules.items()]
        parts[name] = _hash(type(module).__name__, children, attributes)
        for attribute in ("config", "generation_config"):
            if hasattr(getattr(module, attribute, None), "to_dict"):
                parts[f"{name}:{attribute}"] = _hash(vars(getattr(module, attribute)))
    parts["random"] = _hash(torch.get_rng_state(), np.random.get_state(), random.getstate())  # noqa: NPY002
    return parts


def _hash(*values: Any) -> str:
    digest = hashlib.sha256()
    _feed(digest, values)
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        digest.update(f"{value.dtype}{tuple(value.shape)}{value.device}{value.requires_grad}".encode())
        if not value.is_meta:
            data = value.detach().cpu().contiguous()
            digest.update(data.view(torch.uint8).numpy().tobytes() if data.ndim else repr(data).encode())
    elif isinstance(value, np.ndarray):
        digest.update(value.tobytes())
    elif isinstance(value, dict):
        for key in value:
            digest.update(repr(key).encode())
            _feed(digest, value[key])
    elif isinstance(value, (list, tuple)):
        for entry in value:
            _feed(digest, entry)
    elif isinstance(value, (set, frozenset)):
        digest.update(repr(sorted(map(repr, value))).encode())
    elif isinstance(value, (int, float, str, bytes, type(None))):
        digest.update(repr(value).encode())
    else:
        digest.update(f"{type(value).__name__}{id(value)}".encode())


def differing(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return the names of the parts that differ."""
    return sorted(name for name in {**before, **after} if before.get(name) != after.get(name))
