# SPDX-License-Identifier: MIT
"""A model and its tokenizer, from objects or from their names: a folder or a hub id."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from attnscope.arguments.modules import model_hint
from attnscope.errors import ConfigError
from attnscope.models import Checkpoint, find_checkpoints, load_model, load_tokenizer


class NamedModel(NamedTuple):
    """A loaded model with its tokenizer, and what tables call it."""

    model: Any
    tokenizer: Any
    label: str


def open_model(function: str, model: Any, tokenizer: Any = None) -> NamedModel:
    """Return a model and its tokenizer, loaded where they are names.

    Args:
        function: whose name errors begin with.
        model: of transformers, or a folder or hub id.
        tokenizer: likewise; None takes the own one of a model that is a name.

    Raises:
        TypeError: an object that is no model or no tokenizer.
        ValueError: a module without a configuration.
        LoadError: a name that cannot be loaded.
    """
    if isinstance(tokenizer, (str, Path)):
        place = os.path.expanduser(tokenizer)
        tokenizer = load_tokenizer(Checkpoint(place, "", -1, place, os.path.isdir(place)))
    elif tokenizer is not None and not callable(tokenizer):
        raise TypeError(
            f"{function}: tokenizer must be one of transformers, a folder or a hub id, got {tokenizer!r:.60}"
        )
    if isinstance(model, nn.Module):
        config = getattr(model, "config", None)
        if config is None:
            raise ValueError(
                f"{function}: {type(model).__name__} has no config; a transformers model is needed"
            )
        return NamedModel(model, tokenizer, label_of(model))
    if not isinstance(model, (str, os.PathLike)):
        raise TypeError(
            f"{function}: model must be a transformers model, a folder or a hub id, got "
            f"{type(model).__name__}{model_hint(model)}"
        )
    checkpoint = find_checkpoints(str(model))[-1]
    loaded = load_model(checkpoint)
    return NamedModel(loaded.model, tokenizer or load_tokenizer(checkpoint), checkpoint.model)


def label_of(model: nn.Module) -> str:
    """Return what tables call a loaded model: a hub id as it is, a folder by its last names.

    >>> from torch import nn
    >>> label_of(nn.Linear(1, 1))
    'Linear'
    """
    name = str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")
    if not name:
        return type(model).__name__
    if not os.path.isdir(name):
        return name
    try:
        return find_checkpoints(name)[-1].model
    except (FileNotFoundError, ConfigError):
        return "/".join(Path(name).parts[-2:])
