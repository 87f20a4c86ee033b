# SPDX-License-Identifier: MIT
"""Settings of a generation: by the call, by a configuration that is passed, or by the model's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn


def generation_option(model: nn.Module, options: Mapping[str, Any], name: str) -> Any:
    """Return an option of ``model.generate(**options)``, None where nothing sets it.

    An option of the call overrules the configuration that is passed, and that the model's for all that it
    names.

    Args:
        model: of transformers, or a module that holds one.
        options: of the call, `generation_config` among them.
        name: of the option.
    """
    if name in options:
        return options[name]
    passed = getattr(options.get("generation_config"), name, None)
    return getattr(first_attribute(model, "generation_config"), name, None) if passed is None else passed


def generation_options_among(names: Iterable[str]) -> frozenset[str]:
    """Return the names that are settings of a generation, and no input of a model.

    >>> sorted(generation_options_among(["input_ids", "do_sample", "max_new_tokens"]))
    ['do_sample', 'max_new_tokens']
    """
    from transformers import GenerationConfig

    settings = GenerationConfig()
    return frozenset(name for name in names if hasattr(settings, name))


def first_attribute(model: nn.Module, name: str) -> Any:
    """Return an attribute of a model, or of the first module inside that has it; None without one."""
    values = (getattr(module, name, None) for module in model.modules())
    return next((value for value in values if value is not None), None)
